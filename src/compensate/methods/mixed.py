"""Methods that compensate several targets, or in several directions."""

from __future__ import annotations

import math
from typing import Any, Literal, final

from torch import Tensor

from compensate.core.batch import Batch, Value
from compensate.core.criterion import BinaryBase, Compensated
from compensate.core.statistics import labels_of
from compensate.errors import InputError, check, one_of
from compensate.methods.registry import Block, Choice, Formula, PaperData, Real, Space, each, method
from compensate.terms.adversarial import Adversarial, Pull
from compensate.terms.prior import Toward, uniform
from compensate.terms.schedules import Over, Ramp, Top, Warmup, Where, above, below
from compensate.terms.strength import Scaled, Strength

__all__ = ["mixcomp", "mixcomp_adaptive", "semantics_preserving_at"]

LOG_2 = math.log(2)
"""The loss of a label with probability one half."""

_AT_ONCE = {"warmup": 0.0, "floor": 0.0}
"""The settings of the paper."""

_PRO = Choice((0, 5, 7.5, 15, 25, 35, 45, 50))
_TEXT = Space(
    {"eta": Choice((0, 0.075, 0.15, 0.25, 0.5, 0.75, 1)), "eps2": Choice((0, 0.005, 0.01, 0.015)), "pro": _PRO},
    _AT_ONCE,
)
_IMAGE = Space(
    {"eta": Choice((0.5, 1.5, 2, 3, 4, 5)), "eps2": Choice((0, 8 / 255, 10 / 255, 12 / 255)), "pro": _PRO}, _AT_ONCE
)
_PAPER_SEARCH: dict[PaperData, Space] = {"image": _IMAGE, "imdb": _TEXT, "sst2": _TEXT}
# On texts the paper's best compensates in both directions, with smaller steps on logits.
_TEXT_CANDIDATES = [
    {"eta": 5.0, "pro": 35.0} | _AT_ONCE,
    {"eta": 5.0, "pro": 25.0} | _AT_ONCE,
    {"eta": 1.0, "pro": 25.0} | _AT_ONCE,
    {"eta": 5.0, "pro": 25.0, "eps2": 0.05, "steps": 3} | _AT_ONCE,
    {"eta": 1.0, "pro": 25.0, "eps2": 0.05, "steps": 3} | _AT_ONCE,
]


def _in_both_directions(
    threshold: Value, eta: Value, eps: Value, loop: dict[str, Any], base: BinaryBase = None
) -> Compensated:
    """Logits of samples above a threshold move to lower the loss; features of the others, if `eps` is not 0, to raise it."""
    attack = Where(below(threshold), Adversarial(eps, **loop)) if callable(eps) or eps else None
    return Compensated(logit=Where(above(threshold), Pull(eta)), feature=attack, base=base)


@method(
    "logit", "positive", "adversarial", "sample", equation="44, 45, 47", record="margin", needs=["index"],
    reference="Yao and Wu, Compensation Learning, 2021, Algorithm 2",
    limits="A threshold above every loss leaves adversarial training; eps2 = 0 leaves the positive part, which is drop-in.",
    search=Space({"eta": Real(0.5, 10.0, log=True), "pro": Real(0.0, 60.0)}), paper_search=_PAPER_SEARCH,
    candidates=each(eta=(5.0, 5.0, 5.0, 10.0, 2.0), pro=(35.0, 25.0, 45.0, 35.0, 35.0), warmup=(0.0,) * 5, floor=(0.0,) * 5) | {"text": _TEXT_CANDIDATES},
)  # fmt: skip
def mixcomp(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    eta: Value = 5.0,
    pro: Value = 35.0,
    tau: Value | None = None,
    floor: float = LOG_2,
    over: Over = "batch",
    warmup: float | tuple[float, float] = 2.0,
    strength: Literal["auto"] | None = None,
    preset: Literal["paper"] | None = None,
    eps2: float = 0.0,
    base: BinaryBase = None,
    **loop: Any,
) -> Compensated:
    r"""Mixed compensation: lowers the loss of the samples that fit worst, raises the loss of the others.

    .. math:: L = \sum_{i: l_i \ge \tau} l(S(u_i + v_i), y_i)
              + \sum_{i: l_i < \tau} \max_{\|\delta_i\| \le \epsilon_2} l(S(f(x_i + \delta_i)), y_i), \qquad
              v_i = \eta (y_i - S(u_i))

    where :math:`l_i` is the plain loss. With :math:`\epsilon_2 = 0` (the paper's choice for clean accuracy, and the default) features are
    not compensated and the criterion is drop-in; else it needs `criterion.evaluate`. Line 6 of Algorithm 2 exchanges the two groups;
    this follows Eq. 45. With several labels per sample, :math:`i` runs over the labels of all samples.

    Args:
        eta: the bound :math:`\eta = \epsilon_1` of the logit compensation.
        pro: the percentage of samples above the threshold, if `tau` is not given.
        tau: the threshold :math:`\tau` itself.
        floor: the smallest threshold that `pro` may give. The default, log 2, excludes labels with a probability above one half; 0 takes
            `pro` percent of every batch, as in the paper, including right labels once a model fits most of them.
        over: the losses that `pro` counts: of the "batch", or of the last "epoch" (needs `num_samples`).
        warmup: epochs over which `eta`, a number, rises from 0 to its value, if `num_samples` gives the length of an epoch; or the
            shares of the training between which it rises; 0 for none, as in the paper, where a model may ignore a whole class.
        strength: "auto" multiplies `eta` by the strength that the training measures, and needs `num_samples` and `num_classes`; see
            :class:`~compensate.terms.Strength`.
        preset: "paper" compensates `pro` percent of every batch from the first step: `warmup=0, floor=0`.
        eps2: the radius :math:`\epsilon_2` of the feature compensation; 0 with `base="bce"`.

    >>> import torch
    >>> criterion = mixcomp(pro=50, eta=1.0)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2], [2.0, 0.0, 0.0]]), torch.tensor([1, 0]))
    tensor(0.6283)
    """
    one_of("preset", preset, None, "paper")
    if base == "bce" and eps2:
        raise InputError(
            f'eps2 is {eps2}: features are compensated where the loss of a sample is small, and with base="bce" a sample has a loss for '
            "each label. Leave out eps2."
        )
    check(floor >= 0, "a loss, at least 0", floor=floor)
    rows = None if num_samples is None else num_samples * labels_of(base, num_samples, num_classes)
    threshold = Top(pro, over, rows, floor=0.0 if preset == "paper" else floor) if tau is None else tau
    if preset == "paper":
        warmup = 0.0
    if not isinstance(warmup, int | float):
        check(not callable(eta), "a number to warm up, or a schedule without warmup", eta=eta, warmup=warmup)
        eta = Ramp(0.0, float(eta), begin=warmup[0], finish=warmup[1])
    elif warmup and num_samples is not None and not callable(eta):
        eta = Warmup(0.0, float(eta), epochs=warmup, num_samples=num_samples)
    one_of("strength", strength, None, "auto")
    if strength is None:
        return _in_both_directions(threshold, eta, eps2, loop, base)
    if rows is None or num_classes is None:
        raise InputError('strength="auto" measures each sample: give num_samples and num_classes.')
    measured = Strength(rows, 2 if base == "bce" else num_classes, several=base is not None)
    return _in_both_directions(threshold, Scaled(eta, measured), eps2, loop, base)


def by_loss(s: Batch, eps: float, tau: Tensor | float) -> Tensor:
    """(B,) the bounds of :func:`mixcomp_adaptive`, from the bound `eps` at the threshold `tau`."""
    ratio = s.plain_losses / tau
    # If the gate is closed the value does not matter, but it must be finite: all losses reach a threshold of 0.
    return eps * (1 + (ratio - 1).abs()).nan_to_num(posinf=2.0)


@method(
    "logit", "positive", "adversarial", "sample", equation="53", record="margin", needs=["index"],
    reference="Yao and Wu, Compensation Learning, 2021, Eq. (53)",
    limits="All losses at the threshold leave mixcomp. A threshold near 0 makes bounds without measure; eps2 = 0 is drop-in.",
    search=Space({"eps1": Real(0.5, 10.0, log=True), "pro": Real(0.0, 60.0)}),
)  # fmt: skip
def mixcomp_adaptive(
    *,
    num_samples: int | None = None,
    eps1: float = 5.0,
    pro: Value = 35.0,
    tau: Value | None = None,
    over: Over = "batch",
    eps2: float = 0.0,
    **loop: Any,
) -> Compensated:
    r"""Mixed compensation whose bounds follow the loss: the worse a sample fits, the more its loss is lowered.

    .. math:: \|v_i\| \le \epsilon_1 \frac{l_i}{\tau} \;\text{ if } l_i \ge \tau, \qquad
              \|\delta_i\| \le \epsilon_2 \left(2 - \frac{l_i}{\tau}\right) \;\text{ if } l_i < \tau

    where :math:`v_i = \eta_i (y_i - S(u_i))` with :math:`\eta_i` its bound, :math:`\delta_i` is a feature compensation that raises the
    loss, and :math:`l_i` is the plain loss. The paper's Eq. 53 writes :math:`\delta_i` in both places and leaves out the norms.

    Args:
        eps1: :math:`\epsilon_1`, the bound of a logit compensation at the threshold.
        pro, tau, over: the threshold, as in :func:`mixcomp`.
        eps2: :math:`\epsilon_2`, the bound of a feature compensation at the threshold; 0 for none.

    >>> import torch
    >>> criterion = mixcomp_adaptive(tau=1.0, eps1=1.0)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(0.1823)
    """
    threshold = Top(pro, over, num_samples) if tau is None else tau
    attack = Formula(by_loss, eps=eps2, tau=threshold) if eps2 else 0.0
    return _in_both_directions(threshold, Formula(by_loss, eps=eps1, tau=threshold), attack, loop)


@final
class AttackOnLabels(Block):
    """A feature term whose inner loop sees compensated labels, which are otherwise inferred after the features."""

    def __init__(self, label: Toward, attack: Adversarial) -> None:
        super().__init__()
        self.label, self.attack = label, attack
        self.direction, self.inference, self.granularity = attack.direction, attack.inference, attack.granularity

    def forward(self, s: Batch) -> Tensor:
        _ = s.plain  # the number of classes is known only after the logits
        s.dy = self.label(s)
        try:
            return self.attack(s)
        finally:
            s.dy = None


@method(
    "feature+label", "mixed", "adversarial+prior", "sample", equation="8", needs=["model"],
    reference="Lee et al., Semantics-Preserving Adversarial Training, 2020",
    limits="lam = 0 is adversarial training, eps = 0 is label smoothing.",
)  # fmt: skip
def semantics_preserving_at(
    *, eps: float = 8 / 255, lam: float = 0.1, attack_on: Literal["smoothed", "given"] = "smoothed", **loop: Any
) -> Compensated:
    r"""Adversarial training with smoothed labels: features and labels are compensated together.

    .. math:: L = \frac1B \sum_i l(S(f(x_i + \Delta x_i)), y_i + \Delta y_i), \qquad \Delta y_i = \lambda (I/C - y_i), \qquad
              \Delta x_i = \arg\max_{\|\Delta\| \le \epsilon} l(S(f(x_i + \Delta)), y_i + \Delta y_i)

    An attack on smoothed labels changes the features that separate the classes less, and the input keeps its meaning.

    Args:
        eps: the radius :math:`\epsilon`.
        lam: the smoothing :math:`\lambda`.
        attack_on: the labels of the inner loop, "smoothed" or "given".

    >>> print(semantics_preserving_at().taxonomy)
    feature+label · mixed · adversarial+prior · sample
    """
    smooth = Toward(uniform, lam)
    if not eps:
        return Compensated(label=smooth)
    attack = Adversarial(eps, **loop)
    return Compensated(feature=AttackOnLabels(smooth, attack) if attack_on == "smoothed" else attack, label=smooth)
