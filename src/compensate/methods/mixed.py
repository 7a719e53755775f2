"""Methods that compensate several targets, or in several directions."""

from __future__ import annotations

import math
from typing import Literal, final

from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import BinaryBase, Compensated, Weights
from compensate.core.proximal import Norm
from compensate.core.statistics import labels_of, recorded
from compensate.errors import InputError
from compensate.methods.registry import Choice, PaperData, Real, Space, each, method
from compensate.terms.adversarial import Adversarial, Pull
from compensate.terms.gates import Where, above, below
from compensate.terms.prior import Toward, uniform
from compensate.terms.schedules import Ramp, Top, Warmup

__all__ = ["mixcomp", "mixcomp_adaptive", "semantics_preserving_at"]


_AT_ONCE = {"warmup": 0.0, "floor": 0.0}
"""The form of the paper."""

_PRO = Choice((0, 5, 7.5, 15, 25, 35, 45, 50))
_TEXT = Space(
    {"eta": Choice((0, 0.075, 0.15, 0.25, 0.5, 0.75, 1)), "eps2": Choice((0, 0.005, 0.01, 0.015)), "pro": _PRO},
    _AT_ONCE,
)
_PAPER_SEARCH: dict[PaperData, Space] = {
    "image": Space(
        {"eta": Choice((0.5, 1.5, 2, 3, 4, 5)), "eps2": Choice((0, 8 / 255, 10 / 255, 12 / 255)), "pro": _PRO}, _AT_ONCE
    ),
    "imdb": _TEXT,
    "sst2": _TEXT,
}
# The paper's best on texts compensates in both directions, and with smaller steps on logits.
_TEXT_CANDIDATES = [
    {"eta": 5.0, "pro": 35.0} | _AT_ONCE,
    {"eta": 5.0, "pro": 25.0} | _AT_ONCE,
    {"eta": 1.0, "pro": 25.0} | _AT_ONCE,
    {"eta": 5.0, "pro": 25.0, "eps2": 0.05, "steps": 3} | _AT_ONCE,
    {"eta": 1.0, "pro": 25.0, "eps2": 0.05, "steps": 3} | _AT_ONCE,
]


def _warmed(eta: Value, warmup: float | tuple[float, float], num_samples: int | None) -> Value:
    """The bound with its warm-up; a schedule has its own."""
    if isinstance(warmup, int | float):
        if not warmup or num_samples is None or callable(eta):
            return eta
        return Warmup(0.0, float(eta), epochs=warmup, num_samples=num_samples)
    if callable(eta):
        raise InputError(
            f"eta is a {type(eta).__name__} and warmup={warmup}; expected a number to warm up, or a schedule without warmup."
        )
    begin, finish = warmup
    return Ramp(0.0, float(eta), begin=begin, finish=finish)


EVEN = math.log(2)
"""The loss of a label that the model finds as likely as not."""


@method(
    "logit", "positive", "adversarial", "sample",
    equation="44, 45, 47",
    reference="Yao and Wu, Compensation Learning, 2021, Algorithm 2",
    needs=["index"],
    limits="A threshold above every loss leaves adversarial training; eps2 = 0 leaves the positive part, which is drop-in.",
    search=Space({"eta": Real(0.5, 10.0, log=True), "pro": Real(0.0, 60.0)}),
    paper_search=_PAPER_SEARCH,
    candidates=each(eta=(5.0, 5.0, 5.0, 10.0, 2.0), pro=(35.0, 25.0, 45.0, 35.0, 35.0), warmup=(0.0,) * 5, floor=(0.0,) * 5) | {"text": _TEXT_CANDIDATES},
)  # fmt: skip
def mixcomp(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    eta: Value = 5.0,
    pro: Value = 35.0,
    tau: Value | None = None,
    floor: float = EVEN,
    over: Literal["batch", "epoch"] = "batch",
    warmup: float | tuple[float, float] = 2.0,
    preset: Literal["paper"] | None = None,
    eps2: float = 0.0,
    norm: Norm = "linf",
    steps: int = 7,
    step_size: float | None = None,
    random_start: bool = True,
    bounds: tuple[float, float] | None = None,
    base: BinaryBase = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Mixed compensation: lowers the loss of the samples that fit worst, raises that of the others.

    .. math:: L = \sum_{i: l_i \ge \tau} l(S(u_i + v_i), y_i)
              + \sum_{i: l_i < \tau} \max_{\|\delta_i\| \le \epsilon_2} l(S(f(x_i + \delta_i)), y_i), \qquad
              v_i = \eta (y_i - S(u_i))

    where :math:`l_i` is the plain loss. With :math:`\epsilon_2 = 0` (the paper's choice for clean accuracy, and the
    default) no feature term is built and the criterion is drop-in; else it needs `criterion.evaluate`, and :math:`\delta_i` is found
    by projected gradient steps from a random point of the ball. Line 6 of
    Algorithm 2 has the two groups the wrong way round; this follows Eq. 45. With several labels, :math:`i` runs over the labels of all
    samples, and :math:`v_{i,c} = \eta (y_{i,c} - \sigma(u_{i,c}))` where the loss of the label reaches :math:`\tau`.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's compensation.
        num_classes: the number of classes, for a record under `base="bce"`.
        eta: the bound :math:`\eta = \epsilon_1` of the logit compensation.
        pro: percent of samples above the threshold, if `tau` is not given.
        tau: the threshold :math:`\tau` itself.
        floor: the smallest threshold that `pro` may give. log 2, if not given, leaves labels alone that the model finds likelier than not; 0 takes `pro`
            percent of every batch, as in the paper, right labels too once a model fits most of them.
        over: the losses that `pro` counts: those of the "batch", or of the last "epoch" (needs `num_samples`).
        warmup: epochs over which `eta`, a number, rises from 0 to its value, if `num_samples` tells how long an epoch is; or the shares
            of the training between which it does; 0 for at once, as in the paper. A model that is compensated before it knows
            anything takes long to learn, and may explain a whole class away.
        preset: "paper" compensates from the first step on and `pro` percent of every batch: `warmup=0, floor=0`.
        eps2: the radius :math:`\epsilon_2` of the feature compensation.
        norm, steps, step_size, bounds: of its inner loop, as in :func:`pgd_at`.
        random_start: start the inner loop at a random point of the ball; false starts it at the sample itself.
        base: "bce" for several labels a sample; then eps2 is 0.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> criterion = mixcomp(pro=50, eta=1.0)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2], [2.0, 0.0, 0.0]]), torch.tensor([1, 0]))
    tensor(0.6283)
    """
    if base == "bce" and eps2:
        raise InputError(
            f'eps2 is {eps2}: features are compensated where the loss of a sample is small, and with base="bce" a sample has a loss for '
            "each label. Leave out eps2."
        )
    labels = labels_of(base, num_samples, num_classes)
    rows = None if num_samples is None else num_samples * labels
    if preset not in (None, "paper"):
        raise InputError(f'preset is "{preset}"; expected "paper".')
    if not floor >= 0:
        raise InputError(f"floor is {floor}; expected a loss, at least 0.")
    threshold = Top(pro, over, rows, floor=0.0 if preset == "paper" else floor) if tau is None else tau
    eta = eta if preset == "paper" else _warmed(eta, warmup, num_samples)
    harder = Where(above(threshold), Pull(eta))
    easier = None
    if eps2:
        attack = Adversarial(
            eps2, sign=1, norm=norm, steps=steps, step_size=step_size, random_start=random_start, bounds=bounds
        )
        easier = Where(below(threshold), attack)
    record = recorded(num_samples, "margin", labels)
    return Compensated(logit=harder, feature=easier, base=base, record=record, weight=weight)


@final
class ByLoss(nn.Module):
    r"""A bound that grows with the distance of a plain loss from the threshold, (B,).

    .. math:: \epsilon \left( 1 + \frac{|l_i - \tau|}{\tau} \right)

    which is :math:`\epsilon\, l_i / \tau` from the threshold on and :math:`\epsilon\, (2 - l_i / \tau)` below it.
    """

    def __init__(self, eps: float, tau: Value) -> None:
        super().__init__()
        self.eps, self.tau = eps, tau

    def forward(self, s: Batch) -> Tensor:
        """(B,) the bound of each sample."""
        ratio = s.plain_losses / at(self.tau, s)
        # Where the gate is closed the value does not matter, but it must be a number: a threshold of 0 is met by all.
        return self.eps * (1 + (ratio - 1).abs()).nan_to_num(posinf=2.0)

    def extra_repr(self) -> str:
        """The bound at the threshold."""
        return f"{self.eps:g} at the threshold"


@method(
    "logit", "positive", "adversarial", "sample",
    equation="53",
    reference="Yao and Wu, Compensation Learning, 2021, Eq. (53)",
    needs=["index"],
    limits="All losses at the threshold leave mixcomp. A threshold near 0 makes bounds without measure; eps2 = 0 is drop-in.",
    search=Space({"eps1": Real(0.5, 10.0, log=True), "pro": Real(0.0, 60.0)}),
)  # fmt: skip
def mixcomp_adaptive(
    *,
    num_samples: int | None = None,
    eps1: float = 5.0,
    pro: Value = 35.0,
    tau: Value | None = None,
    over: Literal["batch", "epoch"] = "batch",
    eps2: float = 0.0,
    norm: Norm = "linf",
    steps: int = 7,
    step_size: float | None = None,
    random_start: bool = True,
    bounds: tuple[float, float] | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Mixed compensation whose bounds follow the loss: the worse a sample fits, the more its loss is lowered.

    .. math:: \|v_i\| \le \epsilon_1 \frac{l_i}{\tau} \;\text{ if } l_i \ge \tau, \qquad
              \|\delta_i\| \le \epsilon_2 \left(2 - \frac{l_i}{\tau}\right) \;\text{ if } l_i < \tau

    where :math:`v_i = \eta_i (y_i - S(u_i))` with :math:`\eta_i` its bound, :math:`\delta_i` is a feature compensation that
    raises the loss, and :math:`l_i` is the plain loss. The paper's Eq. 53 writes :math:`\delta_i` in both places and leaves out
    the norms.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's compensation.
        eps1: :math:`\epsilon_1`, the bound of a logit compensation at the threshold.
        pro, tau, over: the threshold, as in :func:`mixcomp`.
        eps2: :math:`\epsilon_2`, the bound of a feature compensation at the threshold; 0 builds none.
        norm, steps, step_size, bounds: of its inner loop, as in :func:`pgd_at`.
        random_start: start the inner loop at a random point of the ball; false starts it at the sample itself.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> criterion = mixcomp_adaptive(tau=1.0, eps1=1.0)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(0.1823)
    """
    threshold = Top(pro, over, num_samples) if tau is None else tau
    harder = Where(above(threshold), Pull(ByLoss(eps1, threshold)))
    easier = None
    if eps2:
        attack = Adversarial(
            ByLoss(eps2, threshold), sign=1, norm=norm, steps=steps, step_size=step_size, random_start=random_start,
            bounds=bounds,
        )  # fmt: skip
        easier = Where(below(threshold), attack)
    record = recorded(num_samples, "margin")
    return Compensated(logit=harder, feature=easier, record=record, weight=weight)


@final
class Under(nn.Module):
    """A feature term whose inner loop sees compensated labels.

    Features are settled before labels; this lends the label term to the inner loop ahead of its time.
    """

    def __init__(self, label: Toward, attack: Adversarial) -> None:
        super().__init__()
        self.label, self.attack = label, attack

    @property
    def direction(self) -> str:
        """That of the attack."""
        return self.attack.direction

    @property
    def inference(self) -> str:
        """That of the attack."""
        return self.attack.inference

    @property
    def granularity(self) -> str:
        """That of the attack."""
        return self.attack.granularity

    def forward(self, s: Batch) -> Tensor:
        """The feature compensation."""
        _ = s.plain  # how many classes there are is known once logits are
        s.dy = self.label(s)
        try:
            return self.attack(s)
        finally:
            s.dy = None


@method(
    "feature+label", "mixed", "adversarial+prior", "sample",
    equation="8",
    reference="Lee et al., Semantics-Preserving Adversarial Training, 2020",
    needs=["model"],
    limits="lam = 0 is adversarial training, eps = 0 is label smoothing.",
)  # fmt: skip
def semantics_preserving_at(
    *,
    eps: float = 8 / 255,
    lam: float = 0.1,
    attack_on: Literal["smoothed", "given"] = "smoothed",
    norm: Norm = "linf",
    steps: int = 7,
    step_size: float | None = None,
    random_start: bool = True,
    bounds: tuple[float, float] | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Adversarial training with smoothed labels: features and labels are compensated together.

    .. math:: L = \frac1B \sum_i l(S(f(x_i + \Delta x_i)), y_i + \Delta y_i), \qquad \Delta y_i = \lambda (I/C - y_i), \qquad
              \Delta x_i = \arg\max_{\|\Delta\| \le \epsilon} l(S(f(x_i + \Delta)), y_i + \Delta y_i)

    An attack on smoothed labels moves less in what tells the classes apart, so that the input keeps its meaning.

    Args:
        eps: the radius :math:`\epsilon`.
        lam: the smoothing :math:`\lambda`.
        attack_on: the labels that the inner loop sees, "smoothed" or "given".
        norm, steps, step_size, random_start, bounds: of the inner loop, as in :func:`pgd_at`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(semantics_preserving_at().taxonomy)
    feature+label · mixed · adversarial+prior · sample
    """
    smooth = Toward(uniform, lam)
    if not eps:
        return Compensated(label=smooth, weight=weight)
    attack = Adversarial(
        eps, sign=1, norm=norm, steps=steps, step_size=step_size, random_start=random_start, bounds=bounds
    )
    return Compensated(
        feature=Under(smooth, attack) if attack_on == "smoothed" else attack, label=smooth, weight=weight
    )
