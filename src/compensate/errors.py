"""`InputError`, the error for invalid input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Invalid input: the message states the given value, the expected one and the remedy.

    The command line prints it without a stack trace.

    >>> from compensate.methods import find
    >>> try:
    ...     find("logkomp")
    ... except InputError as error:
    ...     print(str(error).split(";")[0])
    "logkomp" is not a method
    """


class NotFinite(InputError):
    """Numbers are not finite: training diverged, or the input has missing values.

    >>> issubclass(NotFinite, InputError)
    True
    """


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
