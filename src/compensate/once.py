"""Properties that are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, final, overload

T = TypeVar("T")


@final
class once(Generic[T]):
    """A property that is computed when it is first asked for, and kept; assigning to it replaces the value.

    It is `functools.cached_property` without the lock that the latter takes before Python 3.12, which a compiled graph
    cannot enter.

    >>> class Circle:
    ...     @once
    ...     def area(self) -> float:
    ...         print("computed")
    ...         return 3.14
    >>> circle = Circle()
    >>> circle.area + circle.area
    computed
    6.28
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> once[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object | None, kind: type) -> once[T] | T:
        if owner is None:
            return self
        value = self.compute(owner)
        setattr(owner, self.name, value)  # found before this descriptor from now on, which has no __set__
        return value
