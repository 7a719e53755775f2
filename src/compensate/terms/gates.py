"""Gates: which samples a term is for."""

from __future__ import annotations

from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.layout import rowwise
from compensate.errors import InputError


@final
class Threshold(nn.Module):
    """The gate for samples on one side of a plain loss; made by :func:`above` and :func:`below`."""

    def __init__(self, tau: Value, side: Literal["above", "below"]) -> None:
        super().__init__()
        self.tau, self.side = tau, side

    def forward(self, s: Batch) -> Tensor:
        """(B,) true where the gate is open."""
        reached = s.plain_losses >= at(self.tau, s)
        return reached if self.side == "above" else ~reached

    def extra_repr(self) -> str:
        return self.side if isinstance(self.tau, nn.Module) else f"{self.side} {self.tau}"


def above(tau: Value) -> Threshold:
    r"""The gate for samples with :math:`l_i \ge \tau`; `tau` is a number or a callable of the state.

    >>> import torch
    >>> from compensate import Compensated
    >>> from compensate.terms import Pull
    >>> criterion = Compensated(logit=Where(above(1.0), Pull(1.0)))
    >>> s = criterion.evaluate(torch.nn.Identity(), torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]))
    >>> (s.du != 0).any(1).tolist()
    [False, True]
    """
    return Threshold(tau, "above")


def below(tau: Value) -> Threshold:
    r"""The gate for samples with :math:`l_i < \tau`; `tau` is a number or a callable of the state.

    >>> import torch
    >>> from compensate import Compensated
    >>> from compensate.terms import Pull
    >>> criterion = Compensated(logit=Where(below(1.0), Pull(1.0)))
    >>> s = criterion.evaluate(torch.nn.Identity(), torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]))
    >>> (s.du != 0).any(1).tolist()
    [True, False]
    """
    return Threshold(tau, "below")


@final
class Where(nn.Module):
    r"""A term for the samples that a gate lets through; the others get nothing.

    The gate is handed into inner loops and tables: gated-out samples stay clean while the others are attacked, and their rows
    do not move.

    Args:
        gate: a callable of the state that returns (B,) booleans.
        term: the term. One with `gated = True` reads `s.gate` and is zero by itself for samples that are kept out.

    >>> from compensate import Compensated
    >>> from compensate.terms import Pull
    >>> mixcomp = Compensated(logit=Where(above(2.0), Pull(1.0)))   # Eq. 44
    >>> mixcomp(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.0171)
    """

    def __init__(self, gate: Any, term: Any) -> None:
        super().__init__()
        self.gate, self.term = gate, term

    @property
    def gated_term(self) -> Any:
        """The term, which has the place of both in the taxonomy."""
        return self.term

    def forward(self, s: Batch) -> Tensor:
        """The term, zero for the samples that the gate keeps out."""
        if s.by_input:
            raise InputError(
                f"a gate on features asks for one loss of each input, and an input of this batch has {s.places.each}. Gate logits "
                "or labels, as mixcomp(eps2=0) does."
            )
        mask, outer = self.gate(s), s.gate
        s.gate = mask if outer is None else outer & mask
        try:
            delta = self.term(s)
        finally:
            s.gate = outer
        return delta if getattr(self.term, "gated", False) else torch.where(rowwise(mask, delta), delta, 0.0)
