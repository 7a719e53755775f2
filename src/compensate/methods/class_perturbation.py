"""Class-level logit perturbation: classes that are learned badly get harder, the others easier."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from compensate.equation import BinaryBase, Compensated, Weights
from compensate.errors import InputError
from compensate.forwards import full_precision
from compensate.inference.classes import Counts, label_shares, proportions
from compensate.inference.statistics import labels_of, recorded
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.proximal import TINY, row_norm
from compensate.state import State
from compensate.touched import present_rows

__all__ = ["lpl"]


def below_mean(scores: Tensor, counts: Tensor) -> Tensor:
    """(R,) how far the score of each class is below the mean of the classes that count; 0 for the others.

    >>> below_mean(torch.tensor([0.75, 0.25, 0.0]), torch.tensor([True, True, False]))
    tensor([-0.2500,  0.2500,  0.0000])
    """
    mean = (scores * counts).sum() / counts.sum().clamp(min=1)
    equal = (mean - scores).abs() <= 1e-5 * mean  # up to rounding
    return torch.where(counts & ~equal, mean - scores, 0.0)


def by_probability(likely: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    r"""The sign of each class, and how far it is from the threshold, :math:`|\tau - q_c|`.

    Args:
        likely: (R,) the mean probability :math:`q_c` of each class in the batch.
        present: (R,) false for classes without a sample that counts.

    >>> by_probability(torch.tensor([0.9, 0.5, 0.4]), torch.ones(3, dtype=torch.bool))
    (tensor([-1.,  1.,  1.]), tensor([0.3000, 0.1000, 0.2000]))
    """
    gap = below_mean(likely, present)
    return gap.sign(), gap.abs()


def by_share(shares: Tensor) -> tuple[Tensor, Tensor]:
    r"""The sign of each class, and its share relative to the extreme of its side: :math:`q_c / q_{\max}` or :math:`q_{\min} / q_c`.

    Args:
        shares: (C,) the share :math:`q_c` of each class in the training set.

    >>> by_share(torch.tensor([0.5, 0.4, 0.1]))
    (tensor([-1., -1.,  1.]), tensor([1.0000, 0.8000, 1.0000]))
    """
    gap = below_mean(shares, torch.ones_like(shares, dtype=torch.bool))
    return gap.sign(), torch.where(gap < 0, shares / shares.max(), shares.min() / shares)


@final
class ClassPerturbation(nn.Module):
    r"""A shift of the logits for each class of the batch, by unit steps up or down the mean loss of the class.

    .. math:: d_c \leftarrow d_c + s_c\, \alpha \frac{g_c}{\|g_c\|_2}, \qquad
              g_c = \frac{1}{n_c} \sum_{i: y_i = c} S(u_i + d_c) - y_i, \qquad s_c = \mathrm{sign}(\tau - q_c)

    where :math:`q_c` says how well off class :math:`c` is and :math:`\tau` is the mean of the :math:`q_c`. A class takes
    :math:`\lfloor \epsilon_c / \alpha \rfloor` steps, and stays within the radius :math:`\epsilon_c = \epsilon + D\, r_c`:

    - :math:`r_c = |\tau - q_c|` if :math:`q_c` is the mean probability that the batch gives to the class;
    - :math:`r_c = q_c / q_{\max}` for :math:`q_c > \tau` and :math:`q_{\min} / q_c` for :math:`q_c < \tau` if :math:`q_c` is
      the share of the class in the training set.

    A soft label belongs to its likeliest class, and :math:`y_i` in :math:`g_c` is the label as given.

    Args:
        eps: the radius :math:`\epsilon`.
        step: :math:`\alpha`.
        growth: :math:`D`.
        class_counts: if given, :math:`q_c` is the share of the class in the training set; else the mean probability that the
            batch gives to it.
        total: training samples in all, for several labels a sample: each label then is two classes, of the samples that have it and
            of those that do not, and :math:`S` is the sigmoid.
    """

    inference, granularity, direction = "adversarial", "category", "mixed"
    whole_batch = True
    binary = True
    shares: Tensor | None

    def __init__(
        self, eps: float, step: float, growth: float, class_counts: Counts | None = None, total: int | None = None
    ) -> None:
        super().__init__()
        if eps < 0 or step <= 0 or growth < 0:
            raise InputError(f"eps={eps}, step={step}, growth={growth}; expected eps >= 0, step > 0 and growth >= 0.")
        self.eps, self.step, self.growth = eps, step, growth
        shares = None
        if class_counts is not None and total is None:
            shares = proportions(class_counts)
        elif class_counts is not None:
            assert total is not None
            having = label_shares(class_counts, total)
            shares = torch.stack([1 - having, having], -1).flatten()
        self.register_buffer("shares", shares)

    @torch.no_grad()
    def forward(self, s: State) -> Tensor:
        """(B, C) the shift of each sample's class, a constant."""
        u = full_precision(s.u.detach())
        binary = s.places.binary
        labels = 2 * s.places.classes(s.target) + s.labels if binary else s.labels
        classes, which = present_rows(labels, 2 * s.places.labels if binary else u.shape[-1])
        counts = s.valid.to(u.dtype)
        size = u.new_zeros(len(classes)).index_add_(0, which, counts)
        present = size > 0
        size = size.clamp(min=1)[:, None]

        def means(values: Tensor) -> Tensor:
            return (
                values.new_zeros(len(classes), values.shape[-1]).index_add_(0, which, values * counts[:, None]) / size
            )

        def predicted(d: Tensor) -> Tensor:
            moved = u + d[which]
            return means(moved.sigmoid() if binary else moved.softmax(-1))

        given = means(s.y.to(u.dtype))
        d = torch.zeros_like(given)
        p = predicted(d)
        sign, far = self._places(p, classes, present)
        # A quotient of whole steps must not lose one by rounding.
        steps = ((self.eps + self.growth * far) / self.step * (1 + 1e-6)).floor()
        for k in range(int((self.eps + self.growth) / self.step * (1 + 1e-6))):
            g = (predicted(d) if k else p) - given
            moves = (sign * (k < steps))[:, None]
            d = d + moves * self.step * g / row_norm(g).clamp(min=TINY)
        return d[which].to(s.u.dtype)

    def _places(self, p: Tensor, classes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """The sign and the relative radius of some classes, from the mean predictions of their samples."""
        if self.shares is not None:
            sign, far = by_share(self.shares.to(p.dtype))
            return sign[classes], far[classes]
        if p.shape[-1] == 1:
            return by_probability(torch.where(classes % 2 > 0, p[:, 0], 1 - p[:, 0]), present)
        return by_probability(p.gather(1, classes[:, None])[:, 0], present)

    def extra_repr(self) -> str:
        """The radius."""
        return f"eps={self.eps:g}, step={self.step:g}"


@method(
    "logit", "mixed", "adversarial", "category",
    equation="17 with 15 and 16",
    reference="Li et al., Logit Perturbation, AAAI 2022; Class-Level Logit Perturbation, TNNLS 2022 (arXiv 2209.05668)",
    limits="eps = 0 with growth = 0 is cross entropy, and so is a batch of one class. A batch must hold some samples of most classes.",
    search=Space({"eps": Real(0.05, 3.0, log=True)}),
    candidates=each(eps=(0.5, 0.1, 0.25, 1.0, 2.0)),
)  # fmt: skip
def lpl(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    class_counts: Counts | None = None,
    eps: float = 0.5,
    step: float = 0.05,
    growth: float = 0.1,
    by: str = "probability",
    base: BinaryBase = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Logit perturbation learning: the logits of a class are shifted up the loss if it is learned badly or rare, else down.

    .. math:: \Delta u_i = d_{y_i}, \qquad d_c = \arg\max_{\|d\| \le \epsilon_c} \pm \sum_{i: y_i = c} l(S(u_i + d), y_i)

    by :math:`\lfloor \epsilon_c / \alpha \rfloor` unit steps of length :math:`\alpha`, anew for each batch, as in the authors' Algorithm 1:
    see :class:`~compensate.methods.class_perturbation.ClassPerturbation` for the radius :math:`\epsilon_c = \epsilon + D\, r_c`.
    On skewed data the authors choose by hand which classes are rare; here these are the classes below the mean share. Their code
    differs from their paper, which is followed here: it takes each of 40 steps of 0.01 twice, divides by the norm of the columns of
    the gradients instead of the rows, and rounds and cuts the number of steps. The paper has class numbers; of a soft label the
    likeliest class counts, and the slope is the prediction minus the label.
    With several labels, each is two classes, of the samples that have it and of those that do not, and their shifts
    :math:`d_{c,y} = \pm \epsilon_{c,y} (1 - 2y)` are numbers, as a loss of one logit is monotone.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for a record under `base="bce"`.
        class_counts: (C,) training samples of each class, for `by="share"`.
        eps: the least radius :math:`\epsilon`.
        step: the length :math:`\alpha` of a step.
        growth: :math:`D`, by how much the radius of the most and of the least frequent class is larger under `by="share"`, and that of a class
            at a distance of 1 from the mean probability else. Only whole steps are taken: a growth far below `step` has no effect.
        by: what parts the classes: "probability", their mean probability in the batch (for balanced data), or "share",
            their share in the training set (for skewed data; with several labels it needs `num_samples`).
        base: "bce" for several labels a sample.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> u = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    >>> s = lpl(eps=0.5).evaluate(nn.Identity(), u, torch.tensor([0, 1]))
    >>> s.du.round(decimals=3)          # the first class is learned and gets easier, the second harder
    tensor([[ 0.3540, -0.3540],
            [ 0.3540, -0.3540]])
    """
    if by not in ("probability", "share"):
        raise InputError(f'by is "{by}"; expected "probability" or "share".')
    if by == "share" and class_counts is None:
        raise InputError('by="share" needs class_counts=..., the number of training samples of each class.')
    if by == "share" and base == "bce" and num_samples is None:
        raise InputError('by="share" with base="bce" needs num_samples=...: the share of a label is its count over it.')
    total = num_samples if base == "bce" else None
    term = ClassPerturbation(eps, step, growth, class_counts if by == "share" else None, total)
    record = recorded(num_samples, num_labels=labels_of(base, num_samples, num_classes))
    return Compensated(logit=term, base=base, record=record, weight=weight)
