"""Reading pickles of arrays without running their code.

A pickle is a program. This reader knows a few harmless words of it - make an array, make its type, a number of such a
type, a dictionary in order, bytes from text - and refuses any other; and even those build our own holders of bytes, which
become arrays only after their sizes are checked.
"""

from __future__ import annotations

import io
import pickle  # nosec B403
import pickletools  # nosec B403
from collections import OrderedDict
from typing import Any

import numpy as np

from compensate.errors import InputError


def load_arrays(content: bytes, where: str) -> Any:
    """The content of a pickle: dictionaries, lists, numbers, texts, bytes and arrays of numbers. Anything else is refused.

    >>> load_arrays(pickle.dumps({"labels": np.array([3, 4])}), "example")
    {'labels': array([3, 4])}
    """
    try:
        _scan(content)
        return _plain(_Reader(io.BytesIO(content), encoding="bytes").load(), {})
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where} is nested too deeply to be a data set.") from None
    except Exception as error:
        raise InputError(f"{where} is damaged or not a pickle of arrays ({error}). Fetch it again.") from error


def _scan(content: bytes) -> None:
    # The place a pickle remembers an object at is its own choice, and a large one would fill the memory with nothing.
    for op, arg, _ in pickletools.genops(content):
        if op.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(arg or 0) <= len(content):
            raise InputError("it remembers things at places that no data set needs. Do not trust this file.")


class _Array:
    """Holds an array's parts until they are checked."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def value(self, seen: dict[int, Any]) -> Any:
        _, shape, kind, fortran, data = self.state
        kind = kind.value()
        # Before Python 3 the bytes were a text of Latin letters.
        data = data.encode("latin-1") if isinstance(data, str) else data
        if kind is None and isinstance(data, list):
            return _plain(data, seen)
        if kind is None or not isinstance(data, bytes):
            raise InputError("an array in it holds objects instead of numbers.")
        if any(not isinstance(n, int) or n < 0 for n in shape):
            raise InputError(f"an array in it has the shape {shape}.")
        return np.frombuffer(data, kind).reshape(shape, order="F" if fortran else "C").copy()


class _Buffer(_Array):
    """An array in the newest form of pickles: its bytes, type, shape and order at once."""

    def __init__(self, data: Any = b"", kind: Any = None, shape: Any = (), order: Any = "C") -> None:
        data = bytes(data) if isinstance(data, (bytes, bytearray)) else data
        self.state = (1, shape, kind, order == "F", data)


class _Kind:
    """Holds the type of an array until it is checked."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        self.order = order.decode("ascii") if isinstance(order, bytes) else order

    def value(self) -> np.dtype[Any] | None:
        """The type, or nothing for an array of objects, which is then read as a list."""
        if self.code in ("O", "O8", "O4"):
            return None
        if not isinstance(self.code, str) or self.code[:1] not in "biufSU" or self.order not in "<>|=":
            raise InputError(f"an array in it is of the type {self.code!r}; only numbers and texts are read.")
        order = {"<": "<", ">": ">"}.get(self.order, "=")
        return np.dtype(order + self.code)


class _Scalar:
    """Holds a single number of an array's type."""

    def __init__(self, kind: _Kind, data: Any) -> None:
        self.kind, self.data = kind, data

    def __setstate__(self, state: Any) -> None:
        raise InputError("a number in it carries more than a number.")

    def value(self, seen: dict[int, Any]) -> Any:
        data = self.data.encode("latin-1") if isinstance(self.data, str) else self.data
        kind = self.kind.value()
        if kind is None or not isinstance(data, bytes):
            raise InputError("a number in it is malformed.")
        return np.frombuffer(data, kind)[0]


class _Encode:
    """Bytes written as Latin letters. A class and not a function: a pickle could set attributes of a function."""

    def __new__(cls, text: Any, encoding: Any = "latin1") -> Any:
        if not isinstance(text, (str, bytes)) or encoding not in ("latin1", b"latin1", "latin-1"):
            raise InputError("it holds text in an unexpected form.")
        return text.encode("latin-1") if isinstance(text, str) else text

    def __setstate__(self, state: Any) -> None:
        raise InputError("bytes in it carry more than bytes.")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _Encode,
    ("collections", "OrderedDict"): OrderedDict,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _Scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Buffer for core in ("core", "_core")},
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise InputError(
                f"it asks to run {module}.{name}, which no data set needs. It was not run. Do not trust this file."
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise InputError("it refers to objects outside of itself, which are not read.")


def _plain(value: Any, seen: dict[int, Any]) -> Any:
    """The value with its holders turned into arrays; each object once, because shared objects could multiply."""
    if isinstance(value, (_Array, _Scalar, dict, list, tuple)):
        if id(value) not in seen:
            seen[id(value)] = None  # a container within itself shows as None instead of going on for ever
            if isinstance(value, (_Array, _Scalar)):
                done: Any = value.value(seen)
            elif isinstance(value, dict):
                done = {_plain(k, seen): _plain(v, seen) for k, v in value.items()}
            else:
                done = type(value)(_plain(v, seen) for v in value)
            seen[id(value)] = done
        return seen[id(value)]
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise InputError(f"it holds a {type(value).__name__}, which is not data.")
