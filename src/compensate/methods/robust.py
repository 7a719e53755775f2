"""The method to try first: labels and losses are compensated toward the model's own past predictions, as far as labels are memorized."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import BinaryBase, Compensated
from compensate.core.statistics import Evidence, Statistic, labels_of
from compensate.errors import InputError, check
from compensate.methods.registry import Block, Choice, Real, Space, method
from compensate.terms.strength import GAIN, Strength

__all__ = ["robust"]

FLOOR = 1e-4
"""Predictions are kept this far from 0 and 1 in the running means; with more than ten classes, closer to 0."""


def distribution(s: Batch, values: Tensor) -> Tensor:
    """(B, C) the values; with several labels, (B, 2) of the probabilities (B, 1) that a label holds."""
    return torch.cat([1 - values, values], -1) if s.places.binary else values


def label_class(s: Batch) -> Tensor:
    """(B,) the given class of each row; with several labels, twice the number of the label plus its value, 0 or 1."""
    return 2 * s.places.classes(s.target) + s.labels if s.places.binary else s.labels


@final
class RunningMean(Statistic):
    r"""The running mean :math:`t_i \leftarrow \beta t_i + (1 - \beta) p_i` of the predictions of each sample, from zero; (B, C)."""

    reader, binary = "a running mean of predictions", True

    def __init__(self, num_samples: int, num_classes: int, beta: float, several: bool = False) -> None:
        super().__init__()
        check(0 <= beta < 1, "a momentum in [0, 1)", beta=beta)
        self.num_samples, self.beta = num_samples, beta
        self.floor = min(FLOOR, 10 * FLOOR / num_classes)  # the floors of all classes have a sum of at most 0.001
        self.num_classes = None if several else num_classes  # the logits of several labels have one column
        self.rows = self.track("rows", torch.zeros(num_samples, num_classes), merge="rows")

    def observe(self, s: Batch) -> None:
        """Keeps the means of the batch."""
        rows, index = self.rows, self.index(s)
        moved = self(s).to(rows.dtype)
        rows.index_copy_(0, index, moved if s.complete else torch.where(s.valid[:, None], moved, rows[index]))

    def forward(self, s: Batch) -> Tensor:
        """The means with the predictions of this batch."""
        if self not in s.shared:
            p = distribution(s, s.p.detach()).clamp(self.floor, 1 - FLOOR)
            s.shared[self] = torch.lerp(p, self.rows.index_select(0, self.index(s)).to(p.dtype), self.beta)
        return s.shared[self]

    def extra_repr(self) -> str:
        return f"beta={self.beta:g}"


@final
class Doubt(Statistic):
    """The doubt about each label, from the mean :meth:`support` of the labels of its class over the last epoch, 1 before; (B,)."""

    reader, binary = "the support of classes", True

    def __init__(self, mean: RunningMean, num_classes: int) -> None:
        super().__init__()
        self.mean, self.rolls = mean, True
        self.sums = self.track("sums", torch.zeros(2, num_classes), merge="sum")
        self.line = self.track("line", torch.ones(3, num_classes), merge="same")

    def support(self, s: Batch) -> Tensor:
        """(B,) the running mean at the given label, relative to its largest entry; with several labels, its share.

        The larger of two entries is never far from the other where a label is not learned, hence the share.
        """
        if self not in s.shared:
            mean = self.mean(s)
            if s.places.binary:
                s.shared[self] = (mean * distribution(s, s.y.to(mean.dtype))).sum(-1) / mean.sum(-1)
            else:
                s.shared[self] = s.of_label(mean) / mean.amax(-1)
        return s.shared[self]

    def observe(self, s: Batch) -> None:
        """Adds the support of the labels of the batch."""
        self.collect(s, self.support(s), label_class(s))

    def add(self, valid: Tensor | None, *columns: Tensor) -> None:
        """Adds the support (n,) of labels (n,)."""
        support, labels = columns[0].to(self.sums.dtype), columns[1]
        counted = torch.ones_like(support) if valid is None else valid.to(support.dtype)
        self.sums.index_add_(1, labels, torch.stack([support * counted, counted]))

    def end_epoch(self) -> None:
        """The means of this epoch give the doubt of the next: its value without any support, its slope, and the scale of guesses."""
        total, count = self.sums
        given = count.sum() / (count > 0).sum()  # mean of the classes with labels
        usual = (total / count).clamp(min=FLOOR)
        most = (GAIN * (2 * usual - 1)).clamp(0, 1)
        self.line.copy_(torch.where(count > 0, torch.stack([most, most / usual, (given / count).sqrt()]), self.line))
        self.sums.zero_()

    def forward(self, s: Batch) -> Tensor:
        most, slope, _ = self.line.index_select(1, label_class(s)).unbind()
        return torch.addcmul(most, slope, self.support(s), value=-1).relu_().to(s.u.dtype)


@final
class TowardMean(Block):
    """The label term of :func:`robust`."""

    on_simplex, binary = True, True

    def __init__(self, doubt: Doubt, strength: Value) -> None:
        super().__init__()
        self.doubt, self.strength = doubt, strength

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the label compensation."""
        t = self.doubt.mean(s)
        guess = t / t.sum(-1, keepdim=True)
        doubt = (at(self.strength, s) * self.doubt(s)).unsqueeze(1)
        return doubt * ((guess[:, 1:] if s.places.binary else guess) - s.y)


@final
class Agreement(Block):
    """The loss term of :func:`robust`."""

    binary = True

    def __init__(self, doubt: Doubt, strength: Value, lam: float) -> None:
        super().__init__()
        self.strength, self.lam = strength, lam
        self._doubt = (doubt,)  # in a tuple: the label term has it, and rows are saved once

    def forward(self, s: Batch) -> Tensor:
        """(B,) the loss compensation."""
        doubt, p = self._doubt[0], distribution(s, s.p)
        t = doubt.mean(s)
        if s.places.binary:
            agreement = (t * p).sum(-1)
        else:
            even = t * doubt.line[2]
            agreement = (even * p).sum(-1) * (t.sum(-1).clamp(max=1 - FLOOR) / even.sum(-1))
        delta = torch.log1p(-agreement) * (at(self.strength, s) * self.lam)
        return delta if s.complete else torch.where(s.valid, delta, 0.0)


@method(
    "label+loss", "mixed", "prior+tuning", "sample+corpus", equation="6, 7, in a nonlinear form", needs=["index", "epochs"],
    reference="this library; the loss term is of Liu et al., Early-Learning Regularization, NeurIPS 2020",
    limits="Strength 0 is cross entropy. Fewer than 200 samples cannot tell memorization from chance: the strength stays 0. It costs accuracy on rare "
    "classes: for long-tailed data take a method for imbalance. Errors that a model learns as a pattern are found by an audit.",
    search=Space({"lam": Real(0.5, 10.0, log=True), "beta": Real(0.3, 0.99), "strength": Choice((0.5, 1.0))}),
)  # fmt: skip
def robust(
    *,
    num_samples: int,
    num_classes: int,
    strength: Value | Literal["auto"] = "auto",
    lam: float = 5.0,
    beta: float = 0.7,
    withheld: float = 0.02,
    seed: int = 0,
    base: BinaryBase = None,
) -> Compensated:
    r"""Compensation toward the model's own past predictions, as strong as the memorization that it measures in itself.

    .. math:: \Delta y_i = s\, a_i (\bar t_i - y_i), \qquad \Delta l_i = s \lambda \log(1 - \langle \tilde t_i, p_i \rangle), \qquad
              a_i = \max\left(0,\; 1 - \frac{r_i}{\bar r_{y_i}}\right), \quad r_i = \frac{\langle t_i, y_i \rangle}{\max_c t_{i,c}}

    where :math:`t_i \leftarrow \beta t_i + (1 - \beta) p_i` is the running mean of the predictions of a sample and :math:`\bar t_i` is
    :math:`t_i` divided by its sum. With :math:`n_c` labels of class :math:`c`, :math:`\tilde t_{i,c} \propto t_{i,c} / \sqrt{n_c}` has the sum of
    :math:`t_i`: without the root, the model prefers frequent classes more and more. The doubt :math:`a_i` compares the support
    :math:`r_i` of the given label with :math:`\bar r_c`, the mean support of its class over the last epoch, and is scaled by
    :math:`\min(1, \max(0, 5 (2 \bar r_c - 1)))`: a class that the model has not learned yet is not doubted.

    The strength :math:`s` starts at 0, which is cross entropy, and is measured once per epoch on a few labels that are withheld from the
    model (:class:`~compensate.terms.Strength`). It rises where the model memorizes labels and, once learning has slowed down, where it
    predicts withheld labels well. Training that memorizes nothing, for example with strong augmentation, stays as it is.

    Call `criterion.end_epoch()` after each epoch. `print(criterion)` shows the strength, `Strength.of(criterion).curve()` its history.
    Withheld samples have the loss 0 and no record, so they are no suspects. Once the strength is 1, they are trained on with their labels and
    recorded as all others, from then on; `print(criterion.suspects())` states how many samples are not judged.

    Args:
        strength: "auto", or a number from 0 to 1 or a schedule; then nothing is withheld or measured.
        lam, beta: :math:`\lambda` and :math:`\beta`, as in :func:`~compensate.methods.loss.elr`.
        withheld: the share of withheld samples; small sets withhold up to 100 samples, at most a tenth.
        seed: of the choice of withheld samples.

    >>> criterion = robust(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(2.3584)
    """
    labels = labels_of(base, num_samples, num_classes)
    rows, classes = num_samples * labels, 2 if base == "bce" else num_classes
    measured = Strength(rows, classes, withheld, seed, several=base is not None) if strength == "auto" else None
    if isinstance(strength, str) and measured is None:
        raise InputError(f'strength is "{strength}"; expected "auto" or a number from 0 to 1.')
    check(not isinstance(strength, int | float) or 0 <= strength <= 1, "a strength from 0 to 1", strength=strength)
    mean, value = RunningMean(rows, classes, beta, base is not None), measured or strength
    record = Evidence(num_samples, score="margin", num_classes=classes, num_labels=labels)
    doubt = Doubt(mean, classes * labels)
    return Compensated(
        label=TowardMean(doubt, value),
        loss=Agreement(doubt, value, lam),
        base=base,
        record=record,
    )
