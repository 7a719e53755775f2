"""A criterion as people read it: its equation and terms on a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn


def equation_text(reduction: str, terms: Mapping[str, Iterable[Any]], *, penalized: bool) -> str:
    """The equation with the compensation that there is, and a line for each.

    Args:
        reduction: "mean", "sum" or "none".
        terms: those of each compensation, by its letters in the paper.
        penalized: whether tables pay a penalty.

    >>> print(equation_text("mean", {"du": [abs]}, penalized=True))
    mean_i [ l( S(f(x_i) + du_i), y_i ) + penalty_i ]
      du = abs
    """
    x = "x_i" + " + V_i dv_i" * ("dv" in terms) + " + dx_i" * ("dx" in terms) + "; A + da" * ("da" in terms)
    p = (f"S(f({x}) + du_i)" if "du" in terms else f"S(f({x}))") + " + dp_i" * ("dp" in terms)
    y = "y_i" + " + dy_i" * ("dy" in terms)
    tail = " + dl_i" * ("dl" in terms) + " + penalty_i" * penalized
    tail += " + <dg_i, u_i - [u_i]>" * ("dg" in terms)  # in brackets, a constant
    summand = f"l( {p}, {y} ){tail}"
    lines = [summand if reduction == "none" else f"{reduction}_i [ {summand} ]"]
    lines += [f"  {letters} = {' + '.join(map(term_text, some))}" for letters, some in terms.items()]
    return "\n".join(lines)


def term_text(term: Any) -> str:
    """A term on one line."""
    text = repr(term) if isinstance(term, nn.Module) else getattr(term, "__name__", repr(term))
    return " ".join(text.split())


def in_bytes(count: int) -> str:
    """A size for people.

    >>> in_bytes(512), in_bytes(71_880), in_bytes(5_124_000_000)
    ('512 bytes', '72 kB', '5.1 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2g} {unit}" if count < 10 * size else f"{count / size:.0f} {unit}"
    return f"{count} bytes"
