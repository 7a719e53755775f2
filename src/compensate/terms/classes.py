"""Terms from classes: shifts of the logits by class sizes, weights that start late, and margins on logits or angles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.layout import rowwise
from compensate.core.statistics import Statistic
from compensate.core.tables import Group
from compensate.core.validation import checked_classes, require_true
from compensate.errors import InputError, check, one_of

Counts = Sequence[int] | Tensor
Guard = Literal["linear", "easy", "none"]
Increasing = Callable[[Tensor], Tensor]


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
    r"""(C,) the share :math:`\pi_c` of each class."""
    counts = checked_counts(class_counts)
    return counts / counts.sum()


def label_shares(class_counts: Counts, total: int) -> Tensor:
    r"""(C,) the share :math:`\pi_c` of the samples that have label :math:`c`, where a sample may have several."""
    shares = checked_counts(class_counts) / total
    if bool((shares >= 1).any()):
        raise InputError(
            f"class_counts go up to {int(torch.as_tensor(class_counts).max())} of {total} samples; expected some samples without each "
            "label. One that all have can be left out."
        )
    return shares


def increasing(g: Increasing, pi: Tensor) -> Tensor:
    r"""(C,) the shifts :math:`g(\pi_c)`, if `g` is finite and does not fall anywhere between the given shares."""
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
        self, class_counts: Counts, tau: Value = 1.0, g: Increasing = torch.log, *, total: int | None = None
    ) -> None:
        super().__init__()
        self.tau = tau
        if total is None:
            shift = increasing(g, proportions(class_counts))
        else:
            pi = label_shares(class_counts, total)
            shift = increasing(g, pi) - increasing(g, 1 - pi)
        self.register_buffer("shift", shift)
        self.inference = getattr(tau, "inference", "prior")
        self.granularity = getattr(tau, "granularity", "corpus")

    def forward(self, s: Batch) -> Tensor:
        if s.places.binary:
            labels = s.places.labels
            if len(self.shift) != labels:
                raise InputError(
                    f"a sample has {labels} labels and class_counts has {len(self.shift)} numbers; give one for each label."
                )
            shift = self.shift[s.places.classes(s.target)][:, None].to(s.u.dtype)
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
    check(0 <= beta < 1, "a number from 0 up to, but not including, 1", beta=beta)
    counts = checked_counts(class_counts).double()
    weights = (1 - beta) / -torch.expm1(counts * torch.log(torch.tensor(beta, dtype=torch.double)))
    return (weights / weights.mean()).to(torch.get_default_dtype())


@final
class DeferredWeights(Statistic):
    r"""Switches the criterion's class weights on once a share of the training is done: deferred re-weighting.

    Until then the weights are one. This part is weighting, not compensation.

    Args:
        weights: (C,) the weights of the second stage.
        defer: the share of the training before it, in [0, 1]; 0 weighs from the start.

    Reference: Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019.
    """

    observes = "logits"

    def __init__(self, weights: Tensor, defer: float = 0.8) -> None:
        super().__init__()
        check(0 <= defer <= 1, "a share of the training, from 0 to 1", defer=defer)
        self.defer = defer
        self.weights = self.track("weights", weights, merge="same")

    def undo(self, s: Batch) -> Callable[[], None]:
        """Sets the weights back."""
        return partial(setattr, s.criterion, "weight", s.criterion.weight)

    def observe(self, s: Batch) -> None:
        """Sets the weights that hold for this step."""
        # A new tensor, not a copy into the old one: the graph of an earlier batch may still hold that.
        s.criterion.weight = torch.where(s.progress >= self.defer, self.weights, torch.ones_like(self.weights))

    def extra_repr(self) -> str:
        return f"from {self.defer:.0%} on, weights {self.weights.min():.3g} to {self.weights.max():.3g}"


@final
class CosineHead(nn.Module):
    r"""A classifier whose logits are scaled cosines.

    .. math:: u_{i,c} = s \cos\theta_{i,c} = s\, \frac{w_c^\top z_i}{\|w_c\| \|z_i\|}

    where :math:`z_i` are the features, :math:`w_c` the weight of a class and :math:`s` the scale.

    Args:
        feature_dim: the number of features D.
        num_classes: the number of classes C.
        scale: :math:`s`.

    >>> CosineHead(8, 3, scale=30.0)(torch.randn(5, 8)).abs().max() <= 30.0
    tensor(True)
    """

    def __init__(self, feature_dim: int, num_classes: int, scale: float = 64.0) -> None:
        super().__init__()
        check(scale > 0, "a positive number", scale=scale)
        self.scale = scale
        self.weight = nn.Parameter(torch.randn(num_classes, feature_dim) / math.sqrt(feature_dim))

    def forward(self, z: Tensor) -> Tensor:
        # Dividing the answers costs less than dividing the weights.
        lengths = torch.linalg.vector_norm(self.weight, dim=-1).clamp(min=1e-12)
        return F.linear(F.normalize(z, dim=-1), self.weight) * (self.scale / lengths)

    def extra_repr(self) -> str:
        classes, features = self.weight.shape
        return f"{features} -> {classes}, scale={self.scale:g}"


@final
class LogitMargin(nn.Module):
    r"""Takes a margin off the logit of the given class, larger for some classes than for others.

    .. math:: \Delta u_{i,c} = -s\, m_c\, y_{i,c}

    where :math:`m_c \ge 0` is the margin of class :math:`c` and :math:`s` the scale of the logits.

    Args:
        margins: (C,).
        scale: :math:`s`.
    """

    direction, inference, granularity = "negative", "prior", "category"
    margins: Tensor

    def __init__(self, margins: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        positive = not bool((margins < 0).any()) and scale > 0
        check(positive, "margins of at least 0, a positive scale", margins=margins, scale=scale)
        self.scale = scale
        self.register_buffer("margins", margins)

    def forward(self, s: Batch) -> Tensor:
        checked_classes(s, len(self.margins), "a margin for each class")
        return -self.scale * self.margins.to(s.u.dtype) * s.y

    def extra_repr(self) -> str:
        return f"{self.margins.min():.3g} to {self.margins.max():.3g}, scale={self.scale:g}"


@final
class AngularMargin(nn.Module):
    r"""Adds an angle to that between a sample and its class; the logits must be scaled cosines.

    .. math:: \Delta u_{i,y_i} = s \cos(\theta_{i,y_i} + m_i) - s \cos\theta_{i,y_i}

    where :math:`u = s \cos\theta`. Past :math:`\theta + m = \pi` the cosine would rise again; there the guard takes over. The gradient
    of the model runs through this term.

    Args:
        margin: :math:`m_i` in radians, from 0 to pi/2: a number, or a callable of the batch that returns (B,) or (B, 1).
        scale: :math:`s`, that of the head.
        guard: past pi, "linear" puts :math:`\cos\theta - m \sin m` in the place of :math:`\cos(\theta + m)`, which goes on
            falling; "easy" leaves out the margin wherever :math:`\theta > \pi/2`; "none" trusts the data.

    Reference: Deng et al., ArcFace, CVPR 2019.
    """

    direction = "negative"

    def __init__(self, margin: Value, scale: float, guard: Guard = "linear") -> None:
        super().__init__()
        check(callable(margin) or 0 <= margin <= math.pi / 2, "an angle from 0 to pi/2, in radians", margin=margin)
        check(scale > 0, "the positive scale of the cosine head", scale=scale)
        one_of("guard", guard, "linear", "easy", "none")
        self.margin, self.scale = margin, scale
        self.guard: Guard = guard
        self.inference = getattr(margin, "inference", "tuning")  # a number is tuned, and is for all
        self.granularity = getattr(margin, "granularity", "corpus")

    def forward(self, s: Batch) -> Tensor:
        given = s.labels[:, None]
        cos = s.u.gather(1, given)[:, 0] / self.scale
        size = cos.detach().abs()
        require_true(
            ((size <= 1 + 1e-3) | ~size.isfinite()).all(),  # other checks report infinity and NaN
            f"a logit is larger than the scale {self.scale:g}, so the logits are not scaled cosines. Give the model a cosine "
            f"head: model.head = CosineHead(feature_dim, num_classes, scale={self.scale:g}).",
            s.check,
        )
        cos = cos.clamp(-1, 1)
        m = torch.as_tensor(at(self.margin, s)).to(cos)
        m = m.flatten() if m.ndim == 2 else m
        # The slope of the sine is infinite at 0 and pi; a floor under the root stands in for it there.
        sin = (1 - cos.square()).clamp(min=1e-9).sqrt()
        beyond = cos * m.cos() - sin * m.sin()
        if self.guard == "linear":
            beyond = torch.where(cos > -m.cos(), beyond, cos - m * m.sin())
        elif self.guard == "easy":
            beyond = torch.where(cos > 0, beyond, cos)
        change = self.scale * (beyond - cos)
        change = change if s.complete else torch.where(s.valid, change, 0.0)
        return torch.zeros_like(s.u).scatter(1, given, change[:, None])

    def extra_repr(self) -> str:
        margin = "" if isinstance(self.margin, nn.Module) else f"m={self.margin:g}, "
        return f"{margin}scale={self.scale:g}, {self.guard}"


@final
class GroupOfClass(nn.Module):
    """The row of a table of groups, whose group follows from the class by `groups` (C,), or is given by the batch."""

    groups: Tensor | None

    def __init__(self, table: Group, groups: Tensor | None = None) -> None:
        super().__init__()
        self.table, self.inference, self.granularity = table, table.inference, table.granularity
        self.register_buffer("groups", groups)

    def forward(self, s: Batch) -> Tensor:
        """(B, *shape) the row of each sample's group."""
        if s.group is None and self.groups is not None:
            checked_classes(s, len(self.groups), "a list of groups")
            s.group = self.groups[s.labels]
        return self.table(s)
