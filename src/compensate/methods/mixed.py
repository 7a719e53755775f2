"""Methods that compensate several targets, or in several directions."""

from __future__ import annotations

from typing import Literal

from compensate.equation import Compensated
from compensate.gates import Where, above, below
from compensate.inference.adversarial import Adversarial, Pull
from compensate.inference.statistics import Evidence
from compensate.inference.tuning import Top
from compensate.methods.registry import method
from compensate.proximal import Norm
from compensate.state import Value

__all__ = ["mixcomp"]


@method(
    "logit", "positive", "adversarial", "sample",
    equation="44, 45, 47",
    reference="Yao and Wu, Compensation Learning, 2021, Algorithm 2",
    needs=["index"],
    limits="A threshold above every loss leaves adversarial training; eps2 = 0 leaves the positive part, which is drop-in.",
)  # fmt: skip
def mixcomp(
    *,
    num_samples: int | None = None,
    eta: Value = 5.0,
    pro: Value = 35.0,
    tau: Value | None = None,
    over: Literal["batch", "epoch"] = "batch",
    eps2: float = 0.0,
    norm: Norm = "linf",
    steps: int = 7,
    bounds: tuple[float, float] | None = None,
) -> Compensated:
    r"""Mixed compensation: lowers the loss of the samples that fit worst, raises that of the others.

    .. math:: L = \sum_{i: l_i \ge \tau} l(S(u_i + v_i), y_i)
              + \sum_{i: l_i < \tau} \max_{\|\delta_i\| \le \epsilon_2} l(S(f(x_i + \delta_i)), y_i), \qquad
              v_i = \eta (y_i - S(u_i))

    where :math:`l_i` is the plain loss. With :math:`\epsilon_2 = 0` (the paper's choice for clean accuracy, and the
    default) no feature term is built and the criterion is drop-in; else it needs `criterion.evaluate`. Line 6 of
    Algorithm 2 has the two groups the wrong way round; this follows Eq. 45.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's compensation.
        eta: the bound :math:`\eta = \epsilon_1` of the logit compensation.
        pro: percent of samples above the threshold, if `tau` is not given.
        tau: the threshold :math:`\tau` itself.
        over: the losses that `pro` counts: those of the "batch", or of the last "epoch" (needs `num_samples`).
        eps2: the radius :math:`\epsilon_2` of the feature compensation.
        norm, steps, bounds: of its inner loop.

    >>> import torch
    >>> criterion = mixcomp(pro=50, eta=1.0)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2], [2.0, 0.0, 0.0]]), torch.tensor([1, 0]))
    tensor(0.6283)
    """
    threshold = Top(pro, over, num_samples) if tau is None else tau
    harder = Where(above(threshold), Pull(eta))
    easier = Where(below(threshold), Adversarial(eps2, sign=1, norm=norm, steps=steps, bounds=bounds)) if eps2 else None
    record = None if num_samples is None else Evidence(num_samples)
    return Compensated(logit=harder, feature=easier, record=record)
