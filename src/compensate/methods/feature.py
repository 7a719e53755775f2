"""Methods that compensate features, a value for each sample."""

from __future__ import annotations

from typing import Literal

from compensate.equation import Compensated, Weights
from compensate.gates import Where, above
from compensate.inference.adversarial import Adversarial
from compensate.inference.centres import ClassCentre, ToCentre
from compensate.inference.tuning import Top
from compensate.methods.registry import method
from compensate.methods.search import Choice, Kind, Real, Space, each
from compensate.proximal import Norm
from compensate.state import Value

__all__ = ["adversarial_feature", "center_feature", "pgd_at"]


_TEXT = Space({"eps": Choice((0.005, 0.01, 0.015))})
_PAPER_SEARCH: dict[Kind, Space] = {
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


@method(
    "feature", "mixed", "prior", "sample",
    equation="remark after 8",
    reference="Yao and Wu, Compensation Learning, 2021, remark after Eq. (8)",
    needs=["model"],
    limits="lam = 0 leaves cross entropy, lam = 1 trains on the centres alone. A centre in raw inputs suits roughly convex classes.",
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
    r"""Feature compensation toward the class: each input moves toward the centre of its class.

    .. math:: \Delta x_i = \lambda (m_{y_i} - x_i)

    where :math:`m_c` is the mean input of class :math:`c` over all batches so far. At :math:`\lambda = 1` a sample counts no more than
    the centre of its class does, which is what a wrong sample should do.

    Args:
        num_classes: the number of classes.
        feature_shape: the shape of an input (or of the model's `embed(x)`).
        lam: the share :math:`\lambda` of the way, a number or a callable of the state.
        pro: percent of samples, those of the largest plain losses, that move; all of them if not given.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(center_feature(num_classes=10, feature_shape=(1, 8, 8)).taxonomy)
    feature · mixed · prior · sample
    """
    pull = ToCentre(ClassCentre(num_classes, feature_shape), lam)
    return Compensated(feature=pull if pro is None else Where(above(Top(pro)), pull), weight=weight)
