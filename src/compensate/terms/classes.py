"""Terms from the class sizes: shifts of the logits, and weights that start late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.layout import rowwise
from compensate.core.statistics import Statistic
from compensate.core.validation import checked_classes
from compensate.errors import InputError

Counts = Sequence[int] | Tensor


def checked_counts(class_counts: Counts) -> Tensor:
    """(C,) the number of training samples of each class, all positive."""
    counts = torch.as_tensor(class_counts).to(torch.get_default_dtype())
    if counts.ndim != 1 or len(counts) < 2:
        raise InputError(f"class_counts has shape {tuple(counts.shape)}; expected one number for each class, (C,).")
    empty = (counts <= 0).nonzero().flatten().tolist()
    if empty:
        raise InputError(
            f"classes {empty[:5]} have no training sample, so nothing follows from their size. Leave them out, or count "
            "one sample for them: class_counts.clamp(min=1)."
        )
    return counts


def proportions(class_counts: Counts) -> Tensor:
    r"""(C,) the share :math:`\pi_c` of each class.

    >>> proportions([6, 3, 1])
    tensor([0.6000, 0.3000, 0.1000])
    """
    counts = checked_counts(class_counts)
    return counts / counts.sum()


def label_shares(class_counts: Counts, total: int) -> Tensor:
    r"""(C,) the share :math:`\pi_c` of the samples that have label :math:`c`, where a sample may have several.

    >>> label_shares([6, 3], 12)
    tensor([0.5000, 0.2500])
    """
    shares = checked_counts(class_counts) / total
    if bool((shares >= 1).any()):
        raise InputError(
            f"class_counts go up to {int(torch.as_tensor(class_counts).max())} of {total} samples; expected some samples without each "
            "label. One that all have can be left out."
        )
    return shares


def of_labels(values: Tensor, s: Batch) -> Tensor:
    """(B,) of one value for each label (C,), that of each row."""
    if len(values) != s.places.labels:
        raise InputError(
            f"a sample has {s.places.labels} labels and class_counts has {len(values)} numbers; give one for each label."
        )
    return values[s.places.classes(s.target)]


def increasing(g: Callable[[Tensor], Tensor], pi: Tensor) -> Tensor:
    r"""(C,) the shifts :math:`g(\pi_c)`, if `g` is finite and does not fall anywhere between the given shares.

    >>> increasing(torch.log, torch.tensor([0.5, 0.5]))
    tensor([-0.6931, -0.6931])
    """
    shift = g(pi)
    if shift.shape != pi.shape or not bool(shift.isfinite().all()):
        raise InputError(f"g gives {shift}; expected a finite number for each of the {len(pi)} classes.")
    if bool((shift[pi.argsort()].diff() < 0).any()):
        raise InputError("g falls somewhere; an adjustment that helps rare classes needs an increasing g, such as log.")
    return shift


@final
class Adjust(nn.Module):
    r"""Adds a shift to each logit that depends on the size of its class.

    .. math:: \Delta u_{i,c} = \tau\, g(\pi_c)

    where :math:`\pi_c` is the share of class :math:`c` in the training set, :math:`g` an increasing function and
    :math:`\tau` the strength.

    Args:
        class_counts: (C,) training samples of each class.
        tau: a number, or a callable of the batch that returns a scalar, (B,) or (B, 1), such as a table.
        g: an increasing function of the shares, (C,) to (C,).
        total: training samples in all, for several labels a sample: each logit then gets :math:`\tau (g(\pi_c) - g(1 - \pi_c))`.

    Reference: Yao and Wu, Compensation Learning, 2021, Eq. (28).
    """

    direction, binary = "mixed", True
    shift: Tensor

    def __init__(
        self,
        class_counts: Counts,
        tau: Value = 1.0,
        g: Callable[[Tensor], Tensor] = torch.log,
        *,
        total: int | None = None,
    ) -> None:
        super().__init__()
        self.tau = tau
        if total is None:
            shift = increasing(g, proportions(class_counts))
        else:
            pi = label_shares(class_counts, total)
            shift = increasing(g, pi) - increasing(g, 1 - pi)
        self.register_buffer("shift", shift)

    @property
    def inference(self) -> str:
        """That of the strength, if something infers it."""
        return getattr(self.tau, "inference", "prior")

    @property
    def granularity(self) -> str:
        """That of the strength: one shift for all samples if it is a number."""
        return getattr(self.tau, "granularity", "corpus")

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the logit compensation."""
        if s.places.binary:
            shift = of_labels(self.shift, s)[:, None].to(s.u.dtype)
        else:
            checked_classes(s, len(self.shift), "an adjustment by class counts")
            shift = self.shift.to(s.u.dtype).expand_as(s.u)
        return rowwise(at(self.tau, s), shift) * shift

    def extra_repr(self) -> str:
        tau = "" if isinstance(self.tau, nn.Module) else f"tau={self.tau}, "
        return f"{tau}g from {self.shift.min():.3g} to {self.shift.max():.3g}"


def effective_weights(class_counts: Counts, beta: float = 0.9999) -> Tensor:
    r"""(C,) class weights by the effective number of samples, scaled to a mean of one over the classes.

    .. math:: w_c \propto \frac{1 - \beta}{1 - \beta^{n_c}}

    where :math:`n_c` counts the samples of class :math:`c`; :math:`\beta = 0` weighs all alike, :math:`\beta \to 1` by
    the inverse count.

    >>> effective_weights([100, 10], beta=0.0)
    tensor([1., 1.])

    Reference: Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019.
    """
    if not 0 <= beta < 1:
        raise InputError(f"beta is {beta}; expected a number from 0 up to, but not including, 1.")
    counts = checked_counts(class_counts).double()
    weights = (1 - beta) / -torch.expm1(counts * torch.log(torch.tensor(beta, dtype=torch.double)))
    return (weights / weights.mean()).to(torch.get_default_dtype())


@final
class DeferredWeights(Statistic):
    r"""Switches the criterion's class weights on once a share of the training is done: deferred re-weighting.

    It looks at the clock only. Until then the weights are one; a weighted mean over the batch is what
    :func:`torch.nn.functional.cross_entropy` makes of them. This part is weighting, not compensation.

    Args:
        weights: (C,) the weights of the second stage.
        defer: the share of the training before it, in [0, 1]; 0 weighs from the start.

    Reference: Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019.
    """

    observes = "logits"

    def __init__(self, weights: Tensor, defer: float = 0.8) -> None:
        super().__init__()
        if not 0 <= defer <= 1:
            raise InputError(f"defer is {defer}; expected a share of the training, from 0 to 1.")
        self.defer = defer
        self.track("weights", weights, merge="same")
        self.weights: Tensor

    def undo(self, s: Batch) -> Callable[[], None]:
        """Sets the weights back."""
        before = s.criterion.weight

        def back() -> None:
            s.criterion.weight = before

        return back

    def observe(self, s: Batch) -> None:
        """Sets the weights that hold for this step."""
        # A new tensor, not a copy into the old one: the graph of an earlier batch may still hold that.
        s.criterion.weight = torch.where(s.progress >= self.defer, self.weights, torch.ones_like(self.weights))

    def extra_repr(self) -> str:
        return f"from {self.defer:.0%} on, weights {self.weights.min():.3g} to {self.weights.max():.3g}"
