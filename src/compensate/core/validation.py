"""Cheap checks of a batch and of class weights, with errors that say what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compensate.errors import InputError, NotFinite

if TYPE_CHECKING:
    from compensate.core.batch import Batch

Check = Literal["auto", "sync", "async", "off"]
"""How a criterion looks at its batches."""

Reduction = Literal["mean", "sum", "none"]
"""How the losses of a batch become one, or stay as they are."""

Looks = Literal["sync", "async", "kernels", "off"]
"""How it looks at this one: "auto" is "sync" where values are at hand, else "kernels": as "async", but that classes and rows out of range are
left to the kernels that read them, which assert their range themselves. Looking twice would cost more than the loss."""

_away: bool = False


def at_hand(values: Tensor) -> bool:
    """True if code may look at values without waiting for a device, and without breaking a compiled graph.

    >>> at_hand(torch.zeros(3))
    True
    """
    return values.is_cpu and not _away and not torch.compiler.is_compiling()


@contextmanager
def as_on_a_device() -> Iterator[None]:
    """Inside, nothing counts as at hand: the way that batches take on a device, for tests on machines without one.

    >>> with as_on_a_device():
    ...     at_hand(torch.zeros(3))
    False
    """
    global _away
    before, _away = _away, True
    try:
        yield
    finally:
        _away = before


def resolved(check: Check, target: Tensor) -> Looks:
    """How to look at a batch with this target."""
    if check == "auto":
        return "sync" if at_hand(target) else "kernels"
    return check


def unsigned(values: Tensor) -> NDArray[Any]:
    """Whole numbers at hand as numpy has them, without a sign: what was negative is large. Calls of numpy take a tenth of the time.

    >>> int(unsigned(torch.tensor([3, -1])).max()) > 3
    True
    """
    found = values.numpy()
    return found.view(_UNSIGNED[found.itemsize])


_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def within(values: Tensor, size: int) -> bool:
    """True if values at hand lie in 0..size-1.

    >>> within(torch.tensor([0, 4]), 4), within(torch.tensor([0, 3]), 4), within(torch.tensor([-1, 3]), 4)
    (False, True, False)
    """
    return bool(np.maximum.reduce(unsigned(values), axis=None) < size)


def require_true(condition: Tensor, message: str, check: Looks) -> None:
    """Raises `message` unless `condition`, a boolean scalar tensor, holds.

    "sync" waits for the value; "async" leaves it to the device, which neither stalls it nor breaks a compiled graph.
    """
    if check in ("async", "kernels"):
        torch._assert_async(condition, message)
    elif check == "sync" and not bool(condition):
        raise InputError(message)


def check_target(target: object, *, binary: bool = False) -> None:
    """Raises unless the target is a tensor; and unless one number a sample is a class number, if no class is a label of its own."""
    if not isinstance(target, Tensor):
        raise InputError(
            f"target is a {type(target).__name__}; expected a tensor on the device of the logits: write "
            "torch.as_tensor(target)."
        )
    if target.ndim == 1 and not binary:
        check_numbers(target)


def check_numbers(target: Tensor) -> None:
    """Raises unless class numbers have their type."""
    if target.dtype != torch.long:
        raise InputError(
            f"target is {target.dtype}; class numbers are torch.long. Write target.long(), or give distributions of shape "
            "(batch, classes)."
        )


def check_state(own: Mapping[str, Tensor], state: Mapping[str, Any], prefix: str) -> None:
    """Raises if a saved state holds NaN, or a tensor of another size than the one that it is to replace.

    Args:
        own: the tensors of the criterion that reads it.
        state: what was saved; the state of the criterion has names that begin with `prefix`.
        prefix: the name of the criterion in the module that it is a part of.
    """
    for key, value in state.items():
        if not key.startswith(prefix) or not isinstance(value, Tensor):
            continue
        name = key.removeprefix(prefix)
        if name in own and own[name].shape != value.shape:
            raise InputError(
                f"{name} of the saved state has shape {tuple(value.shape)}, and that of this criterion has {tuple(own[name].shape)}. "
                "Build the criterion with the sizes it was saved with (num_samples, num_classes)."
            )
        if value.is_floating_point() and bool(value.isnan().any()):
            raise InputError(
                f"{name} of the saved state contains NaN: the training that wrote it had diverged, or the file is damaged. Load an "
                "earlier checkpoint."
            )


def checked_weights(given: Tensor | Sequence[float] | None) -> Tensor | None:
    """Class weights as a tensor, if there are any.

    >>> checked_weights([1, 2])
    tensor([1., 2.])
    """
    if given is None:
        return None
    weight = torch.as_tensor(given, dtype=None if isinstance(given, Tensor) else torch.get_default_dtype())
    if weight.ndim != 1 or not weight.is_floating_point():
        raise InputError(
            f"weight is {weight.dtype} of shape {tuple(weight.shape)}; expected a floating point number for each class, (C,)."
        )
    return weight


def checked_reduction(given: Reduction) -> Reduction:
    """How losses are reduced, if it is a way that torch knows.

    >>> checked_reduction("sum")
    'sum'
    """
    if given not in ("mean", "sum", "none"):
        raise InputError(f'reduction is "{given}"; expected "mean", "sum" or "none".')
    return given


def check_batch(s: Batch, u: Tensor) -> None:
    """Shapes of logits `u` and targets always; label range and NaN as `s.check` says."""
    target, check = s.target, s.check
    if not isinstance(u, Tensor):
        raise InputError(f"logits are a {type(u).__name__}; expected a tensor (batch, classes), as the model gives it.")
    if u.ndim != 2:
        raise InputError(
            f"logits have shape {tuple(u.shape)} for a target of shape {tuple(target.shape)}; expected (batch, classes) for "
            "(batch,), or (batch, classes, d1, ...) for (batch, d1, ...)."
        )
    if not u.is_floating_point():
        raise InputError(f"logits are {u.dtype}; expected floating point numbers, as they come out of the model.")
    if target.ndim not in (1, 2) or target.shape[0] != u.shape[0]:
        raise InputError(
            f"target has shape {tuple(target.shape)} for logits of shape {tuple(u.shape)}; expected ({len(u)},) class "
            f"numbers or {tuple(u.shape)} distributions."
        )
    if s.places.binary:
        _check_labels(s, check)
    elif s.hard:
        _check_classes(s, u, check)
    elif target.shape != u.shape or not target.is_floating_point():
        raise InputError(
            f"target is {target.dtype} of shape {tuple(target.shape)}; targets with two axes are distributions, "
            f"floating point of shape {tuple(u.shape)}."
        )
    else:
        _check_distributions(target, check)
    classes = s.places.labels if s.places.binary else u.shape[-1]
    weight = None if s.ordinary else s.criterion.weight
    if weight is not None and weight.shape != (classes,):
        raise InputError(
            f"the criterion's weight has shape {tuple(weight.shape)} and the logits have {classes} classes; expected one "
            f"weight for each class, ({classes},)."
        )
    if s.learn and not torch.compiler.is_compiling() and u.is_inference():
        raise InputError(
            "logits were made under torch.inference_mode(), so that no gradient can reach the model. Run the model of a training "
            "step outside of it, or write criterion.eval() for the plain loss."
        )
    if check != "off" and not s.seen_by_loss and u.numel():
        # One pass and no temporary: what is not finite survives the sum. Large numbers overflow too, hence the second look.
        total = u.detach().sum()
        if check != "sync":
            require_true(total == total, _NAN, check)
        elif not math.isfinite(total.item()):
            _look_closer(s, u.detach())


def _look_closer(s: Batch, u: Tensor) -> None:
    odd = (u.isnan() | (u == math.inf)).any(-1)
    if bool(odd.any()):
        rows, what = odd.nonzero().flatten().tolist(), "NaN" if bool(u.isnan().any()) else "infinity"
        raise NotFinite(f"{_NAN.replace('NaN', what, 1)} First rows of the batch with {what}: {rows[:5]}.")
    s.masked = bool((u == -math.inf).any())


def check_losses(s: Batch) -> None:
    """Raises if finite logits gave a loss that is not, or if a logit of minus infinity took out the class of a label."""
    if s.check == "off" or torch.compiler.is_compiling():
        return
    if s.check != "sync":
        if s.seen_by_loss:
            total = s.loss if s.loss.ndim == 0 else s.losses.sum()
            require_true(total < math.inf, _NAN, s.check)
        return
    if s.finite:
        return
    if s.seen_by_loss:
        _look_closer(s, s.u.detach())
    losses = s.compensated.detach()
    if not bool(losses.isfinite().all()):
        rows = (~losses.isfinite()).nonzero().flatten().tolist()
        if s.masked:
            said = (
                "logits contain -infinity where the loss depends on them. Take out only classes that a sample cannot have, "
                "or write a large negative number such as -1e4 instead."
            )
        else:
            said = (
                "the compensated loss is not finite though the logits are: they, or the weights of the model, are too "
                "large for their type. Lower the learning rate, or clip gradients."
            )
        raise NotFinite(f"{said} First rows of the batch: {rows[:5]}.")


_NAN = (
    "logits contain NaN: the training has diverged or the input has missing values. Look at the input of these samples, "
    "lower the learning rate, or clip gradients; check='off' on the criterion skips this check."
)


SUM_ERROR = 0.02
"""How far the sum of a soft label may be from 1: three classes rounded to two digits are 0.01 off, half precision less."""


def _check_distributions(target: Tensor, check: Looks) -> None:
    if check == "off" or not target.numel():
        return
    # In 32 bits: a sum of many small numbers would lose them in half precision. NaN fails every comparison.
    sums = target.sum(-1, dtype=torch.promote_types(target.dtype, torch.float32))
    proper = ((sums - 1).abs() <= SUM_ERROR) & (target.amin(-1) >= -1e-6)
    message = (
        "targets with two axes are distributions over the classes: entries of at least 0 that sum to 1. For one class a sample give "
        'class numbers (batch,). Several classes at once (multi-hot) are no distribution: write base="bce", under which each class is '
        "a label of its own, or share the label among them, target / target.sum(-1, keepdim=True)."
    )
    if check == "sync" and not bool(proper.all()):
        row = int((~proper).nonzero()[0])
        if not bool(target[row].isfinite().all()):
            raise NotFinite(f"row {row} of the target contains NaN or infinity: {message}")
        raise InputError(
            f"row {row} of the target sums to {float(sums[row]):.4g}, its least entry is {float(target[row].min()):.4g}: {message}"
        )
    require_true(proper.all(), message, check)


def checked_classes(s: Batch, size: int, reader: str) -> None:
    """Raises if the model has more or fewer outputs than something has classes."""
    if s.u.shape[-1] != size:
        raise InputError(
            f"the model has {s.u.shape[-1]} outputs and {reader} has {size} classes. Build the criterion for the classes of the "
            "model (num_classes, class_counts), or give the model an output for each class."
        )


def checked_features(s: Batch, size: int) -> None:
    """Raises unless features are (B, size)."""
    if s.z.ndim != 2 or s.z.shape[-1] != size:
        raise InputError(f"features have shape {tuple(s.z.shape)}; expected (B, {size}): feature_dim.")


def _check_classes(s: Batch, u: Tensor, check: Looks) -> None:
    target, classes = s.target, u.shape[-1]
    check_numbers(target)
    if check in ("off", "kernels") or not target.shape[0]:
        return
    if at_hand(target) and within(target, classes):
        if not 0 <= s.criterion.ignore_index < classes:
            s.complete = True
        return
    message = (
        f"a target lies outside 0..{classes - 1}, but the logits have {classes} classes. Number the classes from 0, or "
        f"mark samples without a label with ignore_index ({s.criterion.ignore_index})."
    )
    inside = (target >= 0) & (target < classes) | ~s.valid
    if check == "sync" and not bool(inside.all()):
        raise InputError(f"target {int(target[~inside][0])}: {message}")
    require_true(inside.all(), message, check)


def _check_labels(s: Batch, check: Looks) -> None:
    target = s.target
    if check == "off" or not target.numel():
        return
    inside = (target >= 0) & (target <= 1) | ~s.valid[:, None]
    message = (
        "labels of several classes are 0 or 1 (or between, where they are not certain). Mark those that are not known "
        f"with ignore_index ({s.criterion.ignore_index})."
    )
    if check == "sync" and not bool(inside.all()):
        raise InputError(f"target {float(target[~inside][0]):g}: {message}")
    require_true(inside.all(), message, check)


def checked_index(s: Batch, num_samples: int, reader: str) -> Tensor:
    """The row of a table for each row of the batch, if its index can address `num_samples` of them.

    While inputs are compensated, one for each input. Where a sample has several labels, each has a row of its own.
    """
    index, by_input = s.index, s.by_input
    known = s.checked.get((num_samples, by_input))
    if known is not None:
        return known
    if index is None:
        raise InputError(
            f"index is missing: {reader} keeps a row per sample. Wrap the data set with "
            "compensate.data.Indexed(dataset) and pass the index: criterion(logits, target, index). For validation write "
            "criterion.eval(), which is the plain loss and needs no index."
        )
    if not isinstance(index, Tensor):
        raise InputError(f"index is a {type(index).__name__}; expected a tensor of whole numbers, one row per sample.")
    if index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(f"index is {index.dtype}; expected whole numbers, the row of each sample in the training set.")
    places = s.places
    if index.shape != (places.batch,) and (by_input or index.shape != (places.batch, *places.shape)):
        each = f" or {(places.batch, *places.shape)}, one for each place" if places.dense and not by_input else ""
        raise InputError(f"index has shape {tuple(index.shape)}; expected ({places.batch},), one row per sample{each}.")
    if places.dense and index.ndim > 1 and not places.binary and not s.complete:  # padding names no row
        index = index.to(s.target.device).masked_fill(~s.valid.reshape(index.shape), 0)
    labels = 1 if by_input else places.labels
    if num_samples % labels:
        raise InputError(
            f"{reader} has {num_samples} rows, and a sample has {labels} labels; expected a row for each label of each sample, "
            f"num_samples * {labels}."
        )
    found = _in_range(s, index, num_samples // labels, reader)
    if places.several and not by_input:
        found = places.pairs(places.expanded(found, "index"))
    s.checked[num_samples, by_input] = found
    return found


def _in_range(s: Batch, index: Tensor, rows: int, reader: str) -> Tensor:
    """The index on the device of the batch, as torch.long. At hand, one sort tells its range and, to tables, whether a sample repeats."""
    device = s.target.device
    if s.check != "off" and index.ndim == 1 and index.shape[0] and at_hand(index):
        largest: Any
        if s.criterion.keeps_rows:
            ordered = unsigned(index).copy()
            ordered.sort()
            largest, s.repeats = ordered[-1], bool(np.logical_or.reduce(ordered[1:] == ordered[:-1]))
        else:
            largest = np.maximum.reduce(unsigned(index))
        if largest < rows:
            there = index.dtype == torch.long and index.device == device
            return index if there else index.to(device, torch.long, non_blocking=True)
    return checked_keys(index.to(device, non_blocking=True), rows, reader, "index", s.check)


def checked_keys(keys: Tensor, rows: int, reader: str, name: str, check: Looks) -> Tensor:
    """Keys as torch.long, if they lie in 0..rows-1."""
    if not isinstance(keys, Tensor):
        raise InputError(f"{name} is a {type(keys).__name__}; expected a tensor of whole numbers, one for each sample.")
    if check not in ("off", "kernels") and len(keys) and not (at_hand(keys) and within(keys, rows)):
        message = (
            f"{name} lies outside 0..{rows - 1}: {reader} has {rows} rows. Pass the row of each sample in the whole "
            "training set, counted from 0, not its place in the batch, and give the table the size of that set."
        )
        inside = (keys >= 0) & (keys < rows)
        if check == "sync" and not bool(inside.all()):
            raise InputError(f"{name} {int(keys[~inside][0])}: {message}")
        require_true(inside.all(), message, check)
    return keys.long()
