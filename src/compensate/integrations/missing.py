"""Stand-ins for libraries that are not installed."""

from __future__ import annotations

from typing import Any

from compensate.errors import InputError


def missing(library: str, extra: str) -> Any:
    """A class to inherit from in place of one that could not be imported: making an object of it says what to install.

    >>> class Callback(missing("lightning", "lightning")):
    ...     pass
    >>> Callback()
    Traceback (most recent call last):
    compensate.errors.InputError: Callback needs lightning, which is not installed: pip install "compensate[lightning]".
    """

    class Missing:
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # before any argument is looked at
            raise InputError(
                f'{cls.__name__} needs {library}, which is not installed: pip install "compensate[{extra}]".'
            )

    return Missing
