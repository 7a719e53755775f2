"""Saved tables, read back by tables that keep their rows in another way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compensate.errors import InputError
from compensate.stores.numbers import Packed
from compensate.stores.transfer import Kept

PARTS = ("rows", "counts", "columns", "values")


def restored(
    kept: Kept | None,
    shape: tuple[int, ...],
    state: dict[str, Any],
    prefix: str,
    missing: list[str],
    errors: list[str],
) -> dict[str, Any]:
    """The state of a table, brought to the form of the one that reads it.

    Args:
        kept: the rows of that table, filled here; None if they are the tensor `weight`, which torch then reads itself.
        shape: of that table.
        state: what was saved, under names that begin with `prefix`; what is used up here is taken out.
        missing, errors: take what is not there and what does not fit, as torch wants it.
    """
    whole, width = prefix + "weight", math.prod(shape[1:])
    if all(prefix + name in state for name in PARTS):
        packed = Packed.from_tensors({name: state.pop(prefix + name) for name in PARTS})
    elif kept is not None and whole in state:
        weight = state.pop(whole)
        if weight.shape != shape:
            errors.append(f"{whole} has shape {tuple(weight.shape)}; this table is {shape}.")
            return state
        packed = without_zeros(weight)
    else:
        missing += [prefix + name for name in PARTS if kept is not None and prefix + name not in state]
        return state
    try:
        packed.check(shape[0], width)
    except InputError as error:
        errors.append(str(error))
        return state
    if kept is not None:
        kept.load(packed)
        return state
    full = torch.zeros(shape[0], width)
    for rows, block in packed.blocks(width):
        full[torch.from_numpy(rows)] = torch.from_numpy(block)
    state[whole] = full.reshape(shape)
    return state


def without_zeros(weight: Tensor) -> Packed:
    """The rows of a tensor that are not zero.

    >>> without_zeros(torch.tensor([[0.0, 2.0], [0.0, 0.0]])).rows
    array([0])
    """
    full = weight.detach().cpu().float().reshape(len(weight), -1).numpy()
    at, columns = np.nonzero(full)
    rows, place = np.unique(at, return_inverse=True)
    return Packed.of(rows, place, columns, full[at, columns])
