"""Nested tables of numbers, texts and arrays as two files: JSON, and safetensors for the arrays. Nothing is pickled.

The JSON holds the checksum of the other file, so that they belong together.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.errors import InputError
from compensate.files import write_atomically

MARK = "array"
"""The key under which a place in the JSON names its array."""


def write_packed(tree: Any, path: Path) -> None:
    """Writes ``path.json`` and ``path.safetensors``.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> write_packed({"x": np.arange(2), "names": ["a", "b"]}, path)
    >>> read_packed(path)
    {'x': array([0, 1]), 'names': ['a', 'b']}
    """
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {}
    plain = _taken_out(tree, arrays)
    content = save({name: np.ascontiguousarray(value) for name, value in arrays.items()})
    texts = {"arrays": hashlib.sha256(content).hexdigest(), "tree": plain}
    write_atomically(path.with_name(f"{path.name}.safetensors"), content)
    text = json.dumps(texts, ensure_ascii=False)
    write_atomically(path.with_name(f"{path.name}.json"), text.encode("utf-8", "surrogatepass"))


def read_packed(path: Path) -> Any:
    """What was written."""
    from safetensors.numpy import load

    content = path.with_name(f"{path.name}.safetensors").read_bytes()
    texts = json.loads(path.with_name(f"{path.name}.json").read_bytes().decode("utf-8", "surrogatepass"))
    if not isinstance(texts, dict) or texts.get("arrays") != hashlib.sha256(content).hexdigest():
        raise InputError(f"{path}.safetensors is not the file that {path.name}.json was written with")
    return _put_back(texts["tree"], load(content))


def _taken_out(tree: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(tree, np.ndarray):
        name = str(len(arrays))
        arrays[name] = tree
        return {MARK: name}
    if isinstance(tree, dict):
        return {key: _taken_out(value, arrays) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_taken_out(value, arrays) for value in tree]
    return tree


def _put_back(tree: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {MARK}:
            return arrays[tree[MARK]]
        return {key: _put_back(value, arrays) for key, value in tree.items()}
    return [_put_back(value, arrays) for value in tree] if isinstance(tree, list) else tree
