"""The four axes of the paper's taxonomy, and the place of a criterion on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.errors import InputError

TARGETS = ("feature", "logit", "label", "prediction", "loss", "gradient", "view", "structure")
DIRECTIONS = ("positive", "negative", "mixed")
INFERENCES = ("prior", "tuning", "regularized", "meta", "adversarial", "mixed")
GRANULARITIES = ("sample", "category", "group", "corpus", "mixed")


class Taxonomy(NamedTuple):
    """The place of a method in the taxonomy: target, direction, inference and granularity.

    Several values on an axis are joined by a plus sign; the paper calls that mixed.

    >>> print(Taxonomy("logit", "mixed", "regularized", "sample"))
    logit · mixed · regularized · sample
    """

    target: str
    direction: str
    inference: str
    granularity: str

    def __str__(self) -> str:
        return " · ".join(self)


def taxonomy_of(terms: Mapping[str, Iterable[Any]]) -> Taxonomy:
    """The taxonomy row of the terms under each target.

    Terms have the attributes `direction`, `inference` and `granularity`. Without them the gated term or the child modules
    decide; a bare formula is prior knowledge about a sample.
    """
    if not terms:
        return Taxonomy("none", "none", "none", "none")
    axes = [axis for many in terms.values() for term in many for axis in _axes(term)]
    directions = {direction for direction, _, _ in axes}
    return Taxonomy(
        "+".join(terms),
        directions.pop() if len(directions) == 1 else "mixed",
        _joined(inference for _, inference, _ in axes),
        _joined(granularity for _, _, granularity in axes),
    )


def _axes(term: Any) -> list[tuple[str, str, str]]:
    inference, granularity = getattr(term, "inference", None), getattr(term, "granularity", None)
    direction = getattr(term, "direction", "mixed")
    if inference or granularity:
        return [(direction, inference or "prior", granularity or "sample")]
    gated = getattr(term, "gated_term", None)
    if gated is not None:
        return _axes(gated)
    inside = [axis for child in term.children() for axis in _axes(child)] if isinstance(term, nn.Module) else []
    inside = inside or [(direction, "prior", "sample")]
    return inside if direction == "mixed" else [(direction, *rest) for _, *rest in inside]  # type: ignore[misc]


def _joined(names: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(names))


TOLERANCE = 1e-6
"""Relative changes of a loss below this count as none."""


def measured(s: Batch) -> Tensor:
    r"""(B,) the sign of :math:`l'_i - l_i`: +1 if compensation raised the loss, -1 if it lowered it, else 0.

    In the paper's words +1 is *negative* compensation (the sample counts more) and -1 is *positive*.

    >>> from compensate import Compensated
    >>> from compensate.terms import Pull
    >>> criterion = Compensated(logit=Pull(1.0))
    >>> s = criterion.evaluate(torch.nn.Identity(), torch.tensor([[3.0, 0.8], [0.1, 0.0]]), torch.tensor([1, 0]))
    >>> measured(s)
    tensor([-1., -1.])
    """
    moved = change(s)
    return torch.where(moved.abs() <= TOLERANCE * (1 + s.plain_losses.abs()), 0.0, moved.sign())


def change(s: Batch) -> Tensor:
    r"""(B,) :math:`l'_i - l_i`, constants; where gradients are compensated, with :math:`\langle \Delta g_i, g_i \rangle` added.

    A gradient term does not change the value of the loss. It makes a sample count more if it lengthens its gradient, as a
    higher loss does, hence the same sign.
    """
    moved = s.compensated.detach() - s.plain_losses
    return moved if s.dg is None else moved + (s.dg.detach() * s.gradient).sum(-1)


def effective_weight(s: Batch) -> tuple[Tensor, Tensor]:
    r"""(B,) how much each sample counts under compensation, and (B,) how far it still pulls the same way.

    .. math:: w_i = \frac{\|g'_i\|}{\|g_i\|}, \qquad c_i = \frac{\langle g'_i, g_i \rangle}{\|g'_i\| \|g_i\|}, \qquad
              g_i = \frac{\partial l_i}{\partial u_i}, \quad g'_i = \frac{\partial l'_i}{\partial u_i}

    A weight on the loss has :math:`c_i = 1` for every sample; where :math:`c_i` is smaller, compensation is more than a weight. A sample
    without a gradient counts 0 and pulls the same way.

    Args:
        s: of a batch whose logits have gradients, before the backward pass.

    >>> from compensate.methods import gce
    >>> u = torch.tensor([[2.0, 0.0], [0.0, 2.0]], requires_grad=True)
    >>> weight, cosine = effective_weight(gce(q=0.7).evaluate(torch.nn.Identity(), u, torch.tensor([0, 0])))
    >>> weight, u.softmax(-1)[:, 0].detach() ** 0.7
    (tensor([0.9150, 0.2256]), tensor([0.9150, 0.2256]))
    """
    with torch.enable_grad():
        u = s.plain.detach().requires_grad_()
        (plain,) = torch.autograd.grad(s.criterion.losses_of(s, u).sum(), u)
    (ours,) = torch.autograd.grad(s.summands.sum(), s.u, retain_graph=True)
    long, short = plain.norm(dim=-1), ours.norm(dim=-1)
    tiny = torch.finfo(long.dtype).tiny
    product = (long * short).clamp(min=tiny)
    cosine = torch.where(long * short > 0, (plain * ours).sum(-1) / product, 1.0)
    return short / long.clamp(min=tiny), cosine


def overall_sign(signs: Tensor) -> str:
    """One word for many signs: positive, negative, mixed or none.

    >>> overall_sign(torch.tensor([-1.0, 0.0])), overall_sign(torch.tensor([1.0, -1.0])), overall_sign(torch.zeros(2))
    ('positive', 'mixed', 'none')
    """
    raised, lowered = bool((signs > 0).any()), bool((signs < 0).any())
    return {(True, True): "mixed", (True, False): "negative", (False, True): "positive"}.get((raised, lowered), "none")


def relative_change_by_class(states: Iterable[Batch]) -> Tensor:
    r"""(C,) by how much compensation changes the loss of each class, relative to the loss without it.

    .. math:: \frac{\sum_{i: y_i = c} (l'_i - l_i)}{\sum_{i: y_i = c} l_i}

    where :math:`l_i` is the plain loss of a sample and :math:`l'_i` the compensated one. Sums are taken first: the ratio of a single
    sample that fits perfectly would drown all others. NaN for a class without a sample.

    Args:
        states: of batches, as `criterion.evaluate` returns them.

    >>> from compensate.methods import logit_adjustment
    >>> u, y = torch.zeros(2, 2), torch.tensor([0, 1])
    >>> relative_change_by_class([logit_adjustment(class_counts=[90, 10]).evaluate(torch.nn.Identity(), u, y)])
    tensor([-0.8480,  2.3219])

    Reference: Yao and Wu, Compensation Learning, 2021, Fig. 2.
    """
    before: Tensor | None = None
    for s in states:
        if before is None:
            before, change = (s.plain_losses.new_zeros(s.u.shape[-1]) for _ in range(2))
        kept = s.labels[s.valid]
        before.index_add_(0, kept, s.plain_losses[s.valid])
        change.index_add_(0, kept, (s.compensated.detach() - s.plain_losses)[s.valid])
    if before is None:
        raise InputError("There is no batch to measure; pass at least one: [criterion.evaluate(model, x, y)].")
    return change / before
