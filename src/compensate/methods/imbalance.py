"""Methods that compensate logits by the sizes of the classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from compensate.equation import BinaryBase, Compensated, Weights
from compensate.errors import InputError
from compensate.granularity import Category
from compensate.inference.classes import Adjust, Counts, increasing, proportions
from compensate.inference.regularized import AtLeast
from compensate.methods.registry import method
from compensate.methods.search import Real, Space
from compensate.state import Value

__all__ = ["logit_adjustment", "meta_logit_adjustment", "posthoc_logit_adjustment"]


@method(
    "logit", "mixed", "prior", "corpus",
    equation="28, 29",
    reference="Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021",
    limits="Equal class sizes or tau = 0 leave cross entropy. Predict with the plain logits afterwards, not the adjusted ones.",
    search=Space({"tau": Real(0.0, 2.0)}),
)  # fmt: skip
def logit_adjustment(
    *,
    class_counts: Counts,
    tau: Value = 1.0,
    g: Callable[[Tensor], Tensor] = torch.log,
    num_samples: int | None = None,
    base: BinaryBase = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Logit adjustment: in training, each logit gets a head start by the size of its class.

    .. math:: L = -\frac1B \sum_i \log \frac{e^{u_{i,y_i} + \tau g(\pi_{y_i})}}{\sum_c e^{u_{i,c} + \tau g(\pi_c)}}

    where :math:`\pi_c` is the share of class :math:`c` and :math:`g` the logarithm, or any increasing function. The loss of the
    largest class falls for every sample, that of the smallest rises; classes between go either way. With several labels, each is a
    problem of two classes with shares :math:`\pi_c` and :math:`1 - \pi_c`, and its logit gets
    :math:`\tau (g(\pi_c) - g(1 - \pi_c))`, the log odds of the label.

    Args:
        class_counts: (C,) training samples of each class.
        tau: the strength :math:`\tau`, a number or a callable of the state.
        g: an increasing function of the shares, (C,) to (C,).
        num_samples: the size of the training set, for `base="bce"`: a sample with several labels counts in several classes.
        base: "bce" for several labels a sample.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = logit_adjustment(class_counts=[900, 90, 10])
    >>> criterion(torch.zeros(1, 3), torch.tensor([2]))        # as rare as it is: -log 0.01
    tensor(4.6052)
    """
    if base == "bce" and num_samples is None:
        raise InputError(
            'base="bce" needs num_samples=...: the share of a label is its count over the number of samples.'
        )
    total = num_samples if base == "bce" else None
    return Compensated(logit=Adjust(class_counts, tau, g, total=total), base=base, weight=weight)


def posthoc_logit_adjustment(
    logits: Tensor, *, class_counts: Counts, tau: float = 1.0, g: Callable[[Tensor], Tensor] = torch.log
) -> Tensor:
    r"""(B, C) the logits of a plainly trained model, adjusted for a world in which all classes are equally frequent.

    .. math:: u'_{i,c} = u_{i,c} - \tau g(\pi_c)

    It is the same idea without training: the sign is the other one because it acts on the answer, not on the loss.

    >>> posthoc_logit_adjustment(torch.tensor([[1.0, 0.0]]), class_counts=[90, 10]).argmax(-1)
    tensor([1])

    Reference: Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021.
    """
    return logits - tau * increasing(g, proportions(class_counts)).to(logits)


@method(
    "logit", "mixed", "meta", "category",
    equation="a-1, a-2, a-3",
    reference="Yao and Wu, Compensation Learning, 2021, Appendix A",
    needs=["clean"],
    limits="Without meta steps tau stays where it starts and this is logit adjustment. Needs a balanced, clean set.",
    search=Space({"lr": Real(0.01, 1.0, log=True)}),
)  # fmt: skip
def meta_logit_adjustment(
    *,
    class_counts: Counts,
    tau: float = 1.0,
    lr: float = 0.1,
    nonnegative: bool = False,
    g: Callable[[Tensor], Tensor] = torch.log,
    weight: Weights | None = None,
) -> Compensated:
    r"""Meta logit adjustment: each class has its own strength, learned on clean data.

    .. math:: L(\tau) = -\sum_i \log \frac{e^{u_{i,y_i} + \tau_{y_i} \log \pi_{y_i}}}
              {\sum_c e^{u_{i,c} + \tau_{y_i} \log \pi_c}}, \qquad
              \tau^* = \arg\min_\tau \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(\tau))), y_j)

    where :math:`\Omega` is the clean set. The paper's Eq. a-3 minimizes minus the sum, a slip of sign; this is the corrected form.

    Args:
        class_counts: (C,) training samples of each class.
        tau: where all :math:`\tau_c` start.
        lr: the step of :math:`\tau` in :func:`compensate.meta_step`.
        nonnegative: keeps all :math:`\tau_c \ge 0`.
        g: an increasing function of the shares, in the place of the logarithm.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(meta_logit_adjustment(class_counts=[900, 90, 10]).taxonomy)
    logit · mixed · meta · category
    """
    strength = Category(
        len(class_counts), 1, update="meta", init=tau, lr=lr, bound=AtLeast(0.0) if nonnegative else None
    )
    return Compensated(logit=Adjust(class_counts, strength, g), weight=weight)
