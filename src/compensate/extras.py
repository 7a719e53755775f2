"""Optional libraries, imported on first use; an error names the extra to install."""

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
        what: the task that needs it, for the error.
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
    """Ray, connected to the cluster at RAY_ADDRESS, or to a new one on this machine.

    Args:
        what: the task that needs it, for the error if Ray is missing.
        workers: processors of a new cluster; by default all.
    """
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
    """Whether a library can be imported, without importing it.

    >>> installed("json"), installed("no_such_library")
    (True, False)
    """
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
