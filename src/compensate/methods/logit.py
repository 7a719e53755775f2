"""Methods that compensate logits."""

from __future__ import annotations

from typing import Literal

from compensate.equation import Compensated
from compensate.errors import InputError
from compensate.granularity import Sample
from compensate.inference.regularised import L1
from compensate.inference.statistics import Evidence
from compensate.methods.registry import method
from compensate.state import Value

__all__ = ["logcomp"]


PAPER_LAMBDA, PAPER_RATE = 0.25, 3.0
"""From the sets that the paper's Appendix B searches: {0.25, 0.35} and {1.5, 3, 4.5, 6}."""


@method(
    "logit", "positive", "regularised", "sample",
    equation="43",
    reference="Yao and Wu, Compensation Learning, 2021, Algorithm 1",
    needs=["index"],
    limits="lambda >= 1 means no compensation at all. Too large a step hurts while the model is still learning.",
)  # fmt: skip
def logcomp(
    *,
    num_samples: int,
    num_classes: int,
    lam: Value = 0.05,
    lr: float = 1.0,
    update: Literal["prox", "subgradient"] = "prox",
    preset: Literal["paper", "paper-per-sample"] | None = None,
    batch_size: int = 128,
) -> Compensated:
    r"""Logit compensation with an l1 penalty: each sample has a logit vector that takes up what its label cannot explain.

    .. math:: L = \frac1B \sum_i l(S(u_i + v_i), y_i) + \lambda \|v_i\|_1

    where :math:`v_i`, learned with the model, is a row of a table that persists over the epochs. Rows take proximal steps,
    so that samples without doubt keep exact zeros. For fixed logits the optimum moves only the given class, by
    :math:`\max(0, \mathrm{logit}(1-\lambda) - \mathrm{logit}(p_{y}))`. The paper's Algorithm 1 leaves out the update of
    :math:`v`; its Appendix B gives it a learning rate of its own, which is `lr`.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        lam: the weight :math:`\lambda` of the penalty, in [0, 1) to have an effect.
        lr: the step of a row per sample and visit.
        update: "prox", with exact zeros, or "subgradient", as written in the paper.
        preset: the paper's numbers: "paper" reads its learning rate as acting on the mean over a batch (divided by
            `batch_size`), "paper-per-sample" on each sample; both by subgradient.
        batch_size: for `preset="paper"`.

    >>> import torch
    >>> criterion = logcomp(num_samples=1000, num_classes=3)
    >>> loss = criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    """
    if preset is not None:
        if preset not in ("paper", "paper-per-sample"):
            raise InputError(f'preset is "{preset}"; expected "paper" or "paper-per-sample".')
        lam, update = PAPER_LAMBDA, "subgradient"
        lr = PAPER_RATE / batch_size if preset == "paper" else PAPER_RATE
    table = Sample(num_samples, num_classes, penalty=L1(lam), lr=lr, update=update)
    return Compensated(logit=table, record=Evidence(num_samples))
