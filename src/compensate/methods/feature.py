"""Methods that compensate features, a value for each sample."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from compensate.checks import checked_keys
from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.gates import Where, above
from compensate.inference.adversarial import Adversarial
from compensate.inference.statistics import Statistic
from compensate.inference.tuning import Top
from compensate.methods.registry import method
from compensate.methods.search import Choice, PaperData, Real, Space, each
from compensate.places import rowwise
from compensate.proximal import Norm
from compensate.state import State, Value, at

__all__ = ["adversarial_feature", "center_feature", "pgd_at"]


_TEXT = Space({"eps": Choice((0.005, 0.01, 0.015))})
_PAPER_SEARCH: dict[PaperData, Space] = {
    "image": Space({"eps": Choice((8 / 255, 10 / 255, 12 / 255))}),
    "imdb": _TEXT,
    "sst2": _TEXT,
}


@method(
    "feature", "negative", "adversarial", "sample",
    equation="15",
    reference="Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018",
    needs=["model"],
    limits="eps = 0 leaves cross entropy. Each step of the attack costs a forward and a backward pass; clean accuracy falls.",
    search=Space({"eps": Real(0.001, 0.1, log=True)}),
    paper_search=_PAPER_SEARCH,
    candidates=each(eps=(1 / 255, 2 / 255, 4 / 255, 8 / 255, 10 / 255)) | {"text": each(eps=(0.005, 0.01, 0.015, 0.05, 0.1))["text"]},
)  # fmt: skip
def pgd_at(
    *,
    eps: Value = 8 / 255,
    norm: Norm = "linf",
    steps: int = 7,
    step_size: float | None = None,
    random_start: bool = True,
    bounds: tuple[float, float] | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Adversarial training: each input is replaced by the worst one nearby.

    .. math:: L = \frac1B \sum_i \max_{\|\Delta x_i\| \le \epsilon} l(S(f(x_i + \Delta x_i)), y_i)

    where the maximum is sought by projected gradient ascent.

    Args:
        eps: the radius :math:`\epsilon`, in pixels of [0, 1] for images; for text it acts on `embed(x)`.
        norm: "linf" or "l2".
        steps: the number of steps.
        step_size: their size; 2.5 eps / steps if not given (the reference: 2/255 for 7 steps at 8/255).
        random_start: start at a random point of the ball.
        bounds: the smallest and largest value of an input, (0, 1) for images.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(pgd_at(eps=8 / 255, bounds=(0, 1)).taxonomy)
    feature · negative · adversarial · sample
    """
    attack = Adversarial(
        eps, sign=1, norm=norm, steps=steps, step_size=step_size, random_start=random_start, bounds=bounds
    )
    return Compensated(feature=attack, weight=weight)


@method(
    "feature", "positive", "adversarial", "sample",
    equation="15, 16",
    reference="Yao and Wu, Compensation Learning, 2021, Sec. III-C(5)",
    needs=["model"],
    limits="eps = 0 leaves cross entropy. A large eps lets the input explain every label, and the model learns little.",
    search=Space({"eps": Real(0.001, 0.1, log=True)}),
)  # fmt: skip
def adversarial_feature(
    *,
    eps: Value = 8 / 255,
    sign: Literal[1, -1] = -1,
    norm: Norm = "linf",
    steps: int = 7,
    step_size: float | None = None,
    bounds: tuple[float, float] | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Feature compensation by an inner loop: the best input nearby, or the worst.

    .. math:: \Delta x_i^* = \arg\min_{\|\Delta x_i\| \le \epsilon} l(S(f(x_i + \Delta x_i)), y_i)
              \quad\text{or}\quad \arg\max

    The minimum (Eq. 16, positive compensation) takes the edge off samples that fit badly, a maximum (Eq. 15, negative)
    is adversarial training without its random start.

    Args:
        eps: the radius :math:`\epsilon`.
        sign: -1 lowers the loss, +1 raises it.
        norm, steps, step_size, bounds: of the inner loop, as in :func:`pgd_at`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(adversarial_feature(sign=1).taxonomy)
    feature · negative · adversarial · sample
    """
    loop = Adversarial(eps, sign=sign, norm=norm, steps=steps, step_size=step_size, random_start=False, bounds=bounds)
    return Compensated(feature=loop, weight=weight)


@final
class ClassCenter(Statistic):
    r"""The mean input of each class over all batches so far; as a value, that of the given class, (B, \*shape).

    .. math:: m_c = \frac1{n_c} \sum_{j: y_j = c} x_j

    Args:
        num_classes: the number of classes.
        feature_shape: the shape of an input (or of the model's `embed(x)`).
    """

    granularity, reader = "category", "a center of each class"

    def __init__(self, num_classes: int, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.track("count", torch.zeros(num_classes), merge="sum")
        self.track("total", torch.zeros(num_classes, *feature_shape), merge="sum")
        self.count: Tensor
        self.total: Tensor

    def forward(self, s: State) -> Tensor:
        """(B, *shape) the center of each sample's given class, zeros for a class not seen yet."""
        s.places.one_class_each(self.reader)
        checked_keys(s.labels, len(self.total), self.reader, "class", s.check)  # outputs are not known yet
        self._check_shape(s)
        return self.total[s.labels] / rowwise(self.count[s.labels].clamp(min=1), self.total)

    def _check_shape(self, s: State) -> None:
        if s.e.shape[1:] != self.total.shape[1:]:
            raise InputError(
                f"inputs have shape {tuple(s.e.shape[1:])}, but feature_shape is {tuple(self.total.shape[1:])}; give the "
                "shape of one sample."
            )

    def check(self, s: State) -> None:
        """Inputs must fit, too."""
        super().check(s)
        s.places.one_class_each(self.reader)
        self._check_shape(s)

    def known(self, s: State) -> Tensor:
        """(B,) true where the class of the sample has been seen."""
        return self.count[s.labels] > 0

    def observe(self, s: State) -> None:
        """Adds the inputs of the batch."""
        x = s.e.detach().to(self.total.dtype)
        x = x if s.complete else torch.where(rowwise(s.valid, x), x, 0.0)
        self.total.index_add_(0, s.labels, x)
        self.count.index_add_(0, s.labels, s.valid.to(self.count.dtype))

    def extra_repr(self) -> str:
        """Sizes."""
        return " x ".join(str(size) for size in self.total.shape)


@final
class ToCenter(nn.Module):
    r"""Pulls each input toward the center of its class.

    .. math:: \Delta x_i = \lambda (m_{y_i} - x_i)

    where :math:`m_c` is the center of class :math:`c`. With :math:`\lambda = 1` nothing is left of the sample itself. A class
    that has not been seen yet leaves its samples alone.

    Args:
        center: :math:`m`, a :class:`ClassCenter`.
        lam: :math:`\lambda` in [0, 1], a number or a callable of the state.

    Reference: Yao and Wu, Compensation Learning, 2021, remark after Eq. (8).
    """

    direction, inference, granularity = "mixed", "prior", "sample"

    def __init__(self, center: ClassCenter, lam: Value) -> None:
        super().__init__()
        if not callable(lam) and not 0 <= lam <= 1:
            raise InputError(f"lambda is {lam}; expected a share of the way to the center, from 0 to 1.")
        self.center, self.lam = center, lam

    def forward(self, s: State) -> Tensor:
        """The feature compensation, a constant shaped like the input."""
        x = s.e.detach()
        pull = rowwise(at(self.lam, s), x) * (self.center(s).to(x.dtype) - x)
        return torch.where(rowwise(self.center.known(s), x), pull, 0.0)

    def extra_repr(self) -> str:
        """How far."""
        return "" if isinstance(self.lam, nn.Module) else f"lambda={self.lam}"


@method(
    "feature", "mixed", "prior", "sample",
    equation="remark after 8",
    reference="Yao and Wu, Compensation Learning, 2021, remark after Eq. (8)",
    needs=["model"],
    limits="lam = 0 leaves cross entropy, lam = 1 trains on the centers alone. A center in raw inputs suits roughly convex classes.",
    search=Space({"lam": Real(0.0, 0.6)}),
)  # fmt: skip
def center_feature(
    *,
    num_classes: int,
    feature_shape: tuple[int, ...],
    lam: Value = 0.2,
    pro: Value | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Feature compensation toward the class: each input moves toward the center of its class.

    .. math:: \Delta x_i = \lambda (m_{y_i} - x_i)

    where :math:`m_c` is the mean input of class :math:`c` over all batches so far. At :math:`\lambda = 1` a sample counts no more than
    the center of its class does, which is what a wrong sample should do.

    Args:
        num_classes: the number of classes.
        feature_shape: the shape of an input (or of the model's `embed(x)`).
        lam: the share :math:`\lambda` of the way, a number or a callable of the state.
        pro: percent of samples, those of the largest plain losses, that move; all of them if not given.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(center_feature(num_classes=10, feature_shape=(1, 8, 8)).taxonomy)
    feature · mixed · prior · sample
    """
    pull = ToCenter(ClassCenter(num_classes, feature_shape), lam)
    return Compensated(feature=pull if pro is None else Where(above(Top(pro)), pull), weight=weight)
