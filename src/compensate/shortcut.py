"""The short way through the equation: where logits take constants under cross entropy, one softmax serves everything.

The long way in :mod:`compensate.equation` stays the definition; what is here gives the same numbers with less work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from compensate.checks import at_hand
from compensate.fused import blocks, cross_entropy_with_slope, slope_of, sloped
from compensate.gates import Where
from compensate.granularity import Sample, Table
from compensate.inference.adversarial import Pull
from compensate.inference.regularised import L1, L2, GroupL2
from compensate.inference.statistics import Evidence
from compensate.state import State, at, rowwise

Way = Literal["tables", "pull"]


def way_of(terms: Mapping[str, tuple[Any, ...]]) -> Way | None:
    """What the terms of a criterion, by target, allow under plain cross entropy.

    "tables": rows are tables on logits and nothing else, so that their gradient is S(u) - y. "pull": logits are pulled
    toward their labels, so that samples whose gate is closed need no second softmax.
    """
    if [*terms] != ["logit"]:
        return None
    if all(isinstance(term, Table) for term in terms["logit"]):
        return "tables"
    term = terms["logit"][0]
    pulls = isinstance(term.term if isinstance(term, Where) else term, Pull)
    learned = isinstance(term, nn.Module) and any(isinstance(m, Table) for m in term.modules())
    return "pull" if len(terms["logit"]) == 1 and pulls and not learned else None


def sloping(s: State) -> bool:
    """True if what is added to the logits of the batch is constant, so that its slope is known with its losses."""
    return s.by_slope or (torch.compiler.is_compiling() and s.learn and s.hard and s.criterion.way is not None)


def losses_with_slope(s: State) -> Tensor:
    """(B,) cross entropies of the compensated logits; their slope stays in the state for the rows."""
    du, valid = s.du, None if s.complete else s.valid
    if du is None or (du.shape == s.u.shape and not du.requires_grad):
        losses, s.slope = cross_entropy_with_slope(s.u, s.labels, du, valid)
    else:
        losses, s.slope = cross_entropy_with_slope(s.u + du, s.labels, None, valid)
    return losses


def short_losses(s: State) -> Tensor | None:
    """(B,) losses of the batch by the shortest way there is, all else done; None if it has to walk the long way."""
    match s.criterion.way:
        case "tables":
            return table_losses(s)
        case "pull":
            return pulled_losses(s)
    return None


def table_losses(s: State) -> Tensor | None:
    """(B,) cross entropies under one table of samples, whose rows take their step on the way; None if there is no short way.

    A portion of the batch is read, compensated, differentiated, moved and written before the next one, while it is in the cache.
    Samples that are ignored or appear twice need more care than this.
    """
    table = _lone_table(s)
    if table is None or not distinct(keys := table.key(s)):
        return None
    u, labels = s.u.detach(), s.labels
    parts = blocks(u)
    if len(parts) == 1:
        s.du, s.penalty, losses, slope = _step(s, table, keys, u, labels)
    else:
        slope, (losses, penalty, size) = torch.empty_like(u), u.new_empty(3, len(u))
        du = torch.empty_like(u) if _asked(s) else None  # memory that is touched for the first time costs most
        for part in parts:
            v, penalty[part], losses[part], _ = _step(s, table, keys[part], u[part], labels[part], slope[part])
            if du is None:
                size[part] = v.abs().sum(1)
            else:
                du[part] = v
        s.du, s.penalty = du, penalty
        if du is None:
            s.size = size
    return sloped(s.u, losses, slope, labels)


@torch.no_grad()
def _step(
    s: State, table: Sample, keys: Tensor, u: Tensor, labels: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows (B, C), penalties (B,), losses (B,) and slopes (B, C) of a portion, whose rows are moved."""
    assert table.penalty is not None
    v = table.gather(keys)
    losses, slope = slope_of((u + v).log_softmax(-1), labels, out)
    table.write(keys, table.stepped(v, slope, s))
    return v, table.penalty(v, s), losses, slope


def _asked(s: State) -> bool:
    """True if somebody may read `s.du`: the drop-in call hands the state to nobody but statistics."""
    return not s.brief or any(not isinstance(statistic, Evidence) for statistic in s.criterion.statistics())


def _lone_table(s: State) -> Sample | None:
    """The table of a batch that :func:`table_losses` can serve."""
    # Its rows move before all losses are known, so the batch must be past doubt.
    if not (s.by_slope and at_hand(s.u) and s.complete and len(s.u)) or s.masked:
        return None
    table, *others = s.criterion.terms_of("logit")
    if others or not isinstance(table, Sample) or table.inference != "regularised":
        return None
    # A weight that is not a number may be one per sample.
    known = isinstance(table.penalty, L1 | L2 | GroupL2) and isinstance(table.penalty.lam, int | float)
    fits = table.kept is None and table.weight.shape[1:] == s.u.shape[1:] and table.weight.dtype == s.u.dtype
    return table if known and fits else None


def distinct(keys: Tensor) -> bool:
    """True if no key comes twice.

    >>> distinct(torch.tensor([3, 1])), distinct(torch.tensor([3, 3]))
    (True, False)
    """
    few = len(keys) < 512
    return len(set(keys.tolist()) if few else keys.unique()) == len(keys)  # what is quicker


def pulled_losses(s: State) -> Tensor | None:
    r"""(B,) cross entropies of logits that are pulled toward their labels where a gate is open; None if there is no short way.

    .. math:: l_i = -\log S(u_i + v_i)_{y_i}, \qquad v_i = \eta (y_i - S(u_i)) \text{ or } 0

    :math:`S(u_i)` is known from the plain losses that the gate looks at. It gives the slope of the samples behind a closed gate
    and :math:`v_i` of the others, and only those need a second softmax.
    """
    if not (s.learn and s.hard and at_hand(s.u)):
        return None
    term: Any = s.criterion.terms_of("logit")[0]
    gate, pull = (term.gate, term.term) if isinstance(term, Where) else (None, term)
    s.slot = "du"
    mask = torch.ones_like(s.valid) if gate is None else gate(s)
    with s.gated(mask):
        eta = at(pull.eta, s)
    s.slot = None
    if isinstance(eta, Tensor) and (eta.requires_grad or eta.ndim > 1):
        return None
    losses, slope = _pulled(s, eta, mask & s.valid)

    def du() -> Tensor:
        return torch.where(mask[:, None], rowwise(eta, s.u) * (s.y - s.logq.exp()), 0.0)

    s.du = du
    s.size = torch.where(mask, 2 * eta * (1 - (-s.plain_losses).exp()), 0.0)
    return sloped(s.u, losses, slope, s.labels)


@torch.no_grad()
def _pulled(s: State, eta: Any, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (B,) and slopes (B, C): those of the plain logits, and of the pulled ones in the rows of the mask."""
    losses, slope, labels = s.plain_losses.clone(), s.logq.exp(), s.labels[:, None]
    slope.scatter_add_(1, labels, slope.new_full(labels.shape, -1.0))
    if not s.complete:
        slope.masked_fill_(~s.valid[:, None], 0.0)
    rows = mask.nonzero()[:, 0]
    if len(rows):
        step = eta[rows, None] if isinstance(eta, Tensor) and eta.ndim else eta
        u = s.u.index_select(0, rows) - slope.index_select(0, rows).mul_(step)
        losses[rows], slope[rows] = slope_of(u.log_softmax(-1), s.labels[rows])
    return losses, slope
