"""`InputError`, the error for invalid input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Invalid input: the message states the given value, the expected one and the remedy.

    The command line prints it without a stack trace.

    >>> from compensate.methods import find
    >>> find("logkomp")
    Traceback (most recent call last):
    compensate.errors.InputError: "logkomp" is not a method; did you mean "logcomp"?
    """


class NotFinite(InputError):
    """Numbers are not finite: training diverged, or the input has missing values."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, or all of them.

    >>> nearest("logcmp", ["base", "logcomp", "mixcomp"])
    'did you mean "logcomp"?'
    >>> nearest("zzz", ["base", "logcomp"])
    'known: base, logcomp'
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f'did you mean "{close[0]}"?' if close else "known: " + ", ".join(known)


def check(holds: bool, expected: str, **given: Any) -> None:
    """Raises unless a condition on arguments holds.

    >>> check(False, "a probability", beta=2)
    Traceback (most recent call last):
    compensate.errors.InputError: beta is 2; expected a probability.
    """
    if not holds:
        raise InputError(", ".join(f"{name} is {value}" for name, value in given.items()) + f"; expected {expected}.")


def one_of(name: str, value: Any, *options: Any) -> None:
    """Raises unless an argument has one of these values.

    >>> one_of("per", "class", "sample", "category")
    Traceback (most recent call last):
    compensate.errors.InputError: per is "class"; expected "sample" or "category".
    """
    if value not in options:
        quoted = [f'"{option}"' for option in options if option is not None]
        listed = " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
        raise InputError(f'{name} is "{value}"; expected {listed}.')
