"""Checkpoints without pickle: tensors as safetensors, everything else as JSON.

A checkpoint is two files, ``step-N.safetensors`` and ``step-N.json``, which is written last, with checksums of the tensors and of
itself. The checkpoint before it is kept, in case the process is killed or a file is damaged.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from compensate.errors import InputError
from compensate.files import make_folder, write_atomically

_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, safetensors.SafetensorError)


def pack(tree: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The tree as JSON values; tensors go to `tensors` and are replaced by their names.

    >>> import torch
    >>> tensors = {}
    >>> pack({"a": torch.ones(2), "b": (1, {3: "c"})}, tensors)
    {'a': {'$tensor': '/a'}, 'b': {'$tuple': [1, {'$items': [[3, 'c']]}]}}
    >>> unpack(pack({"a": torch.ones(2), "b": (1, {3: "c"})}, tensors), tensors)
    {'a': tensor([1., 1.]), 'b': (1, {3: 'c'})}
    """
    if isinstance(tree, Tensor):
        # A copy: safetensors refuses tensors that share memory, such as tied weights.
        tensors[path] = tree.detach().cpu().contiguous().clone()
        return {"$tensor": path}
    if isinstance(tree, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in tree):
            return {key: pack(value, tensors, f"{path}/{key}") for key, value in tree.items()}
        return {"$items": [[key, pack(value, tensors, f"{path}/{key}")] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        packed = [pack(value, tensors, f"{path}/{number}") for number, value in enumerate(tree)]
        return packed if isinstance(tree, list) else {"$tuple": packed}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise InputError(f"a checkpoint cannot hold a {type(tree).__name__} ({path}); expected tensors, numbers and texts.")


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `pack`."""
    if isinstance(packed, list):
        return [unpack(value, tensors) for value in packed]
    if not isinstance(packed, dict):
        return packed
    if "$tensor" in packed:
        return tensors[packed["$tensor"]]
    if "$tuple" in packed:
        return tuple(unpack(value, tensors) for value in packed["$tuple"])
    if "$items" in packed:
        return {key: unpack(value, tensors) for key, value in packed["$items"]}
    return {key: unpack(value, tensors) for key, value in packed.items()}


def save_checkpoint(folder: str | Path, step: int, tree: Mapping[str, Any]) -> None:
    """Writes the checkpoint of a step, then deletes all but this one and the one before."""
    folder = Path(folder)
    make_folder(folder)
    tensors: dict[str, Tensor] = {}
    body = pack(tree, tensors)
    content = safetensors.torch.save(tensors)
    write_atomically(folder / f"step-{step}.safetensors", content)
    head = {"step": step, "sha256": hashlib.sha256(content).hexdigest(), "state": body}
    head["check"] = _digest(head)
    write_atomically(folder / f"step-{step}.json", json.dumps(head).encode())
    before = max((s for s in _steps(folder) if s < step), default=step)
    kept = {f"step-{s}.{suffix}" for s in (step, before) for suffix in ("json", "safetensors")}
    for old in folder.iterdir():
        if old.name not in kept:
            old.unlink(missing_ok=True)


def latest(folder: str | Path) -> dict[str, Any] | None:
    """The newest complete checkpoint, or None; damaged ones are skipped."""
    folder = Path(folder)
    steps = sorted(_steps(folder), reverse=True)
    for step in steps:
        try:
            head = json.loads((folder / f"step-{step}.json").read_bytes())
            content = (folder / f"step-{step}.safetensors").read_bytes()
            if head.pop("check") == _digest(head) and hashlib.sha256(content).hexdigest() == head["sha256"]:
                return unpack(head["state"], safetensors.torch.load(content))
        except _DAMAGE:
            continue
    if steps:
        raise InputError(
            f"the checkpoint of step {steps[0]} in {folder} is damaged (its checksum differs) and there is no other. "
            "Delete the folder and train again."
        )
    return None


def _steps(folder: Path) -> list[int]:
    return [int(m[1]) for p in folder.glob("step-*.json") if (m := re.fullmatch(r"step-(\d+)\.json", p.name))]


def _digest(head: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()


def save_weights(path: str | Path, state: Mapping[str, Tensor]) -> None:
    """Writes the weights of a model to a safetensors file."""
    write_atomically(path, safetensors.torch.save({k: v.detach().cpu().contiguous().clone() for k, v in state.items()}))


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """Reads what `save_weights` wrote."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}; the run has not finished, or it is in another folder.")
    try:
        return dict(safetensors.torch.load(path.read_bytes()))
    except safetensors.SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}); train again.") from error
