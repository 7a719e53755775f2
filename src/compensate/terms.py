"""The terms of a criterion: how they are held, walked through and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from compensate.errors import InputError
from compensate.state import State

Term = Callable[[State], Tensor]
Terms = Term | tuple[Term, ...] | None


class Sum(nn.Module):
    """The terms of one target. Those that are modules become children, so that state follows `.to()` and `state_dict`."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        many: Iterable[Any] = terms if isinstance(terms, tuple | list) else (terms,)
        for number, term in enumerate(many):
            if not callable(term):
                raise InputError(
                    f"A term is {term!r}; expected a callable of the state, such as a table, a function or a module."
                )
            setattr(self, str(number), term)
        self.size = number + 1

    @property
    def terms(self) -> tuple[Term, ...]:
        """In order."""
        return tuple(getattr(self, str(number)) for number in range(self.size))


def within(module: nn.Module) -> Iterator[nn.Module]:
    """As `module.modules()`, in less time: this runs in every step."""
    found = {module: None}
    waiting = [module]
    while waiting:
        inner = [m for m in waiting.pop()._modules.values() if m is not None and m not in found]
        found.update(dict.fromkeys(inner))
        waiting += reversed(inner)
    return iter(found)


def shown(term: Any) -> str:
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
