"""Optional libraries: imported when they are first needed, with advice where one is missing."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from compensate.errors import InputError


def require(module: str, what: str, extra: str) -> Any:
    """The module of an optional library.

    Args:
        module: its full name, such as "optuna.storages".
        what: the task that needs it, the subject of the message.
        extra: the extra of this package that installs it.

    >>> require("json", "reading", "plots").loads("1")
    1
    >>> require("no_such_library", "drawing", "plots")
    Traceback (most recent call last):
    compensate.errors.InputError: drawing needs no_such_library, which is not installed: pip install "compensate[plots]".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(_advice(what, module.split(".")[0], extra)) from error


def connect_ray(what: str, workers: int | None = None) -> Any:
    """Ray, connected to a cluster: that of the environment variable RAY_ADDRESS, or one that is started on this machine.

    Args:
        what: the task that needs it, the subject of the message if it is missing.
        workers: processors of a cluster that is started; all by default.
    """
    ray = require("ray", what, "cluster")
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        ray.init(address=address, num_cpus=None if address else workers, include_dashboard=False, log_to_driver=False)
    return ray


@contextmanager
def ray_cluster(what: str, workers: int | None = None) -> Iterator[Any]:
    """As `connect_ray`; a cluster that was started for it ends with it."""
    before = require("ray", what, "cluster").is_initialized()
    ray = connect_ray(what, workers)
    try:
        yield ray
    finally:
        if not before:
            ray.shutdown()


def installed(library: str) -> bool:
    """Whether a library can be imported; nothing is imported to find out.

    >>> installed("json"), installed("no_such_library")
    (True, False)
    """
    try:
        return importlib.util.find_spec(library) is not None
    except ImportError:
        return False


def stand_in(library: str, extra: str) -> Any:
    """A class to inherit from in place of one that could not be imported: making an object of it says what to install.

    >>> class Callback(stand_in("lightning", "lightning")):
    ...     pass
    >>> Callback()
    Traceback (most recent call last):
    compensate.errors.InputError: Callback needs lightning, which is not installed: pip install "compensate[lightning]".
    """

    class Missing:
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # before any argument is looked at
            raise InputError(_advice(cls.__name__, library, extra))

    return Missing


def _advice(what: str, library: str, extra: str) -> str:
    return f'{what} needs {library}, which is not installed: pip install "compensate[{extra}]".'
