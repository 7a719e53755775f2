"""Optional libraries, imported on first use, and HTML for notebooks.

An error about a missing library names the extra to install. Every text in HTML is escaped; nothing is fetched or executed.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from compensate.errors import InputError

# Control characters and marks of the writing direction.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def require(module: str, what: str, extra: str) -> Any:
    """The module of an optional library, such as "optuna.storages"; ``what`` needs it, and ``extra`` of this package installs it.

    >>> require("no_such_library", "drawing", "plots")
    Traceback (most recent call last):
    compensate.errors.InputError: drawing needs no_such_library, which is not installed: pip install "compensate[plots]".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(_advice(what, module.split(".")[0], extra)) from error


def connect_ray(what: str, workers: int | None = None) -> Any:
    """Ray, connected to the cluster at RAY_ADDRESS, or to a new one of ``workers`` processors (default: all) on this machine."""
    ray = require("ray", what, "cluster")
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        ray.init(address=address, num_cpus=None if address else workers, include_dashboard=False, log_to_driver=False)
    return ray


@contextmanager
def ray_cluster(what: str, workers: int | None = None) -> Iterator[Any]:
    """As `connect_ray`; a new cluster is shut down at the end."""
    before = require("ray", what, "cluster").is_initialized()
    ray = connect_ray(what, workers)
    try:
        yield ray
    finally:
        if not before:
            ray.shutdown()


def installed(library: str) -> bool:
    """Whether a library can be imported, without importing it."""
    try:
        return importlib.util.find_spec(library) is not None
    except ImportError:
        return False


def stand_in(library: str, extra: str) -> Any:
    """A base class for a class of a missing library: creating an object raises with the extra to install.

    >>> class Callback(stand_in("lightning", "lightning")):
    ...     pass
    >>> Callback()
    Traceback (most recent call last):
    compensate.errors.InputError: Callback needs lightning, which is not installed: pip install "compensate[lightning]".
    """

    class Missing:
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # before the arguments are checked
            raise InputError(_advice(cls.__name__, library, extra))

    return Missing


def _advice(what: str, library: str, extra: str) -> str:
    return f'{what} needs {library}, which is not installed: pip install "compensate[{extra}]".'


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: object, longest: int = 200) -> Html:
    """A text as HTML, with markup escaped and invisible characters replaced."""
    if isinstance(text, Html):
        return text
    plain = str(text)
    plain = plain if len(plain) <= longest else plain[: longest - 1] + "…"
    return Html(html.escape(_INVISIBLE.sub("\ufffd", plain)))


def element(tag: str, *parts: object, style: str = "") -> Html:
    """An element with escaped content.

    >>> element("b", "1 < 2")
    '<b>1 &lt; 2</b>'
    """
    attributes = f' style="{html.escape(style)}"' if style else ""
    return Html(f"<{tag}{attributes}>{''.join(map(escape, parts))}</{tag}>")


def html_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """A table, aligned to the left."""
    left = "text-align:left"
    heads = element("tr", *(element("th", cell, style=left) for cell in head))
    lines = (element("tr", *(element("td", cell, style=left) for cell in row)) for row in rows)
    return element("table", element("thead", heads), element("tbody", *lines))
