"""Cheap checks of batches, indices, saved states and class weights."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from compensate.errors import InputError, NotFinite, check

if TYPE_CHECKING:
    from compensate.core.batch import Batch

Check = Literal["auto", "sync", "async", "off"]
"""How a criterion checks its batches."""

Reduction = Literal["mean", "sum", "none"]
"""How the losses of a batch are reduced."""

CheckMode = Literal["sync", "async", "kernels", "off"]
"""How one batch is checked. "auto" becomes "sync" for eager CPU tensors, else "kernels": as "async", except that indexing
kernels assert the range of classes and rows."""

SUM_ERROR = 0.02
"""The largest difference between the sum of a soft label and 1: three classes rounded to two digits are 0.01 off, half precision less."""

_NAN = (
    "logits contain NaN: the training has diverged or the input has missing values. Look at the input of these samples, "
    "lower the learning rate, or clip gradients; check='off' on the criterion skips this check."
)
_CLASSES = (
    "{name} lies outside 0..{last}, but the logits have {size} classes. Number the classes from 0, or mark samples without "
    "a label with ignore_index ({ignored})."
)
_ROWS = (
    "{name} lies outside 0..{last}: {reader} has {size} rows. Pass the row of each sample in the whole training set, counted "
    "from 0, not its place in the batch, and give the table the size of that set."
)


def require_true(
    condition: Tensor, message: str, check: CheckMode, example: Callable[[Tensor], str] | None = None
) -> None:
    """Raises `message` unless all of `condition`, a boolean tensor, holds.

    "sync" waits for the value; "async" asserts on the device, without waiting and within compiled graphs.

    Args:
        condition: the values that must be true.
        message: the error message.
        check: the mode of checking.
        example: makes the message in "sync" mode from the mask of failures.
    """
    if check in ("async", "kernels"):
        torch._assert_async(condition.all() if condition.ndim else condition, message)
    elif check == "sync" and not bool(condition.all()):
        raise InputError(message if example is None else example(~condition))


def check_range(
    values: Tensor, size: int, check: CheckMode, message: str, ignored: int = 0, name: str = "target", reader: str = ""
) -> bool:
    """Whether values are known to lie in 0..size-1; raises if one lies outside and is not `ignored`, as indexing does in "kernels" mode."""
    if check in ("off", "kernels") or not values.numel():
        return False
    if check == "sync" and values.is_cpu:
        least, most = values.aminmax()
        if least.item() >= 0 and most.item() < size:
            return True
    inside = (values >= 0) & (values < size) | (values == ignored)
    message = message.format(size=size, last=size - 1, ignored=ignored, name=name, reader=reader)
    require_true(inside, message, check, lambda out: message.replace(name, f"{name} {int(values[out][0])}", 1))
    return False


def checked_whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number as an int, at least `least`; raises otherwise.

    >>> checked_whole("num_samples", [5, 7])
    Traceback (most recent call last):
    compensate.errors.InputError: num_samples is a list; expected a whole number, such as len(dataset).
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        size = operator.index(value)
    except TypeError:
        usual: object = "len(dataset)" if name == "num_samples" else 10
        usual = round(value) if isinstance(value, float) and math.isfinite(value) else usual
        given = value if isinstance(value, float | bool | None) else f"a {type(value).__name__}"
        raise InputError(f"{name} is {given}; expected a whole number, such as {usual}.") from None
    check(least is None or size >= least, f"{least} or more {name.removeprefix('num_')}", **{name: size})
    return size


def check_state(own: Mapping[str, Tensor], state: Mapping[str, Any], prefix: str) -> None:
    """Raises if a saved state, whose names begin with `prefix`, holds NaN, or a tensor of another size than that in `own`."""
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
                f"{name} of the saved state contains NaN: the training that wrote it had diverged, or the file is damaged. Load an earlier checkpoint."
            )


def checked_weights(given: Tensor | Sequence[float] | None) -> Tensor | None:
    """Class weights as a tensor, if there are any.

    >>> checked_weights([1, 2])
    tensor([1., 2.])
    """
    if given is None:
        return None
    weight = torch.as_tensor(given, dtype=None if isinstance(given, Tensor) else torch.get_default_dtype())
    numbers, found = weight.ndim == 1 and weight.is_floating_point(), f"{weight.dtype} of shape {tuple(weight.shape)}"
    check(numbers, "a floating point number for each class, (C,)", weight=found)
    return weight


def check_batch(s: Batch, u: Tensor) -> None:
    """Checks the shapes of logits `u` and targets, and as `s.check` says the range of labels and NaN."""
    target, check = s.target, s.check
    if not isinstance(u, Tensor):
        raise InputError(
            f"logits are a {type(u).__name__}; expected a tensor (batch, classes), the output of the model."
        )
    if u.ndim != 2:
        raise InputError(
            f"logits have shape {tuple(u.shape)} for a target of shape {tuple(target.shape)}; expected (batch, classes) for "
            "(batch,), or (batch, classes, d1, ...) for (batch, d1, ...)."
        )
    if not u.is_floating_point():
        raise InputError(f"logits are {u.dtype}; expected floating point numbers, the output of the model.")
    if target.ndim not in (1, 2) or target.shape[0] != u.shape[0]:
        raise InputError(
            f"target has shape {tuple(target.shape)} for logits of shape {tuple(u.shape)}; expected ({len(u)},) class "
            f"numbers or {tuple(u.shape)} distributions."
        )
    if s.hard:
        if target.dtype != torch.long:
            raise InputError(
                f"target is {target.dtype}; class numbers are torch.long. Write target.long(), or give distributions of shape (batch, classes)."
            )
        inside = check_range(target, u.shape[-1], check, _CLASSES, s.criterion.ignore_index)
        if inside and s.criterion.ignore_index < 0:
            s.complete = True
    elif not s.places.binary and (target.shape != u.shape or not target.is_floating_point()):
        raise InputError(
            f"target is {target.dtype} of shape {tuple(target.shape)}; targets with two axes are distributions, floating point of shape {tuple(u.shape)}."
        )
    elif check != "off" and target.numel():
        _check_soft_labels(s, target, check)
    classes, weight = s.places.labels if s.places.binary else u.shape[-1], s.weight
    if weight is not None and weight.shape != (classes,):
        raise InputError(
            f"the criterion's weight has shape {tuple(weight.shape)} and the logits have {classes} classes; expected one weight for each class, ({classes},)."
        )
    if s.learn and not s.compiled and u.is_inference():
        raise InputError(
            "logits were made under torch.inference_mode(), which records no gradients for the model. Run the model of a training "
            "step outside of it, or write criterion.eval() for the plain loss."
        )
    if check != "off" and u.numel():
        # NaN and infinity survive a sum; large finite numbers may overflow, hence the second check.
        total = u.detach().sum()
        if check != "sync":
            require_true(total == total, _NAN, check)
        elif not math.isfinite(total.item()):
            odd = (u.isnan() | (u == math.inf)).any(-1)
            if bool(odd.any()):
                rows, kind = odd.nonzero().flatten().tolist(), "NaN" if bool(u.isnan().any()) else "infinity"
                raise NotFinite(f"{_NAN.replace('NaN', kind, 1)} First rows of the batch with {kind}: {rows[:5]}.")


def _check_soft_labels(s: Batch, target: Tensor, check: CheckMode) -> None:
    if s.places.binary:
        message = (
            "labels of several classes are 0 or 1 (or between, where they are not certain). Mark those that are not known "
            f"with ignore_index ({s.criterion.ignore_index})."
        )
        inside = (target >= 0) & (target <= 1) | ~s.valid[:, None]
        require_true(inside, message, check, lambda out: f"target {float(target[out][0]):g}: {message}")
        return
    # In 32 bits: a sum of many small numbers would lose them in half precision. NaN fails every comparison.
    sums = target.sum(-1, dtype=torch.promote_types(target.dtype, torch.float32))
    proper = ((sums - 1).abs() <= SUM_ERROR) & (target.amin(-1) >= -1e-6)
    message = (
        "targets with two axes are distributions over the classes: entries of at least 0 that sum to 1. For one class a sample give "
        'class numbers (batch,). Several classes at once (multi-hot) are not a distribution: write base="bce", under which each class is '
        "a label of its own, or share the label among them, target / target.sum(-1, keepdim=True)."
    )

    def example(wrong: Tensor) -> str:
        row = int(wrong.nonzero()[0])
        if not bool(target[row].isfinite().all()):
            raise NotFinite(f"row {row} of the target contains NaN or infinity: {message}")
        total, least = float(sums[row]), float(target[row].min())
        return f"row {row} of the target sums to {total:.4g}, its least entry is {least:.4g}: {message}"

    require_true(proper, message, check, example)


def check_losses(s: Batch) -> None:
    """Raises if a loss is not finite: logits are too large, or minus infinity for the class of a label."""
    if s.check == "off" or s.compiled:
        return
    total = s.loss.detach()
    total = total.sum() if total.ndim else total
    if s.check != "sync":
        require_true(total < math.inf, _NAN, s.check)
    elif not math.isfinite(total.item()) and not bool(s.compensated.isfinite().all()):
        reason = (
            "the compensated loss is not finite though the logits are: they, or the weights of the model, are too "
            "large for their type. Lower the learning rate, or clip gradients."
        )
        if bool((s.u == -math.inf).any()):
            reason = (
                "logits contain -infinity where the loss depends on them. Take out only classes that a sample cannot have, "
                "or write a large negative number such as -1e4 instead."
            )
        rows = (~s.compensated.isfinite()).nonzero().flatten().tolist()
        raise NotFinite(f"{reason} First rows of the batch: {rows[:5]}.")


def checked_classes(s: Batch, size: int, reader: str) -> None:
    """Raises unless the model has `size` outputs; `reader` names the term that has as many classes."""
    if s.u.shape[-1] != size:
        raise InputError(
            f"the model has {s.u.shape[-1]} outputs and {reader} has {size} classes. Build the criterion for the classes of the "
            "model (num_classes, class_counts), or give the model an output for each class."
        )


def checked_features(s: Batch, size: int) -> None:
    """Raises unless features are (B, size)."""
    if s.z.ndim != 2 or s.z.shape[-1] != size:
        raise InputError(f"features have shape {tuple(s.z.shape)}; expected (B, {size}): feature_dim.")


def checked_index(s: Batch, num_samples: int, reader: str) -> Tensor:
    """(B,) the table row of each row of the batch; raises unless the index addresses `num_samples` rows.

    While inputs are compensated, there is one for each input. If a sample has several labels, each has its own row.
    """
    index, places = s.index, s.places
    by_input = places.several and s.by_input
    known = s.checked.get((num_samples, by_input))
    if known is not None:
        return known
    if index is None:
        raise InputError(
            f"index is missing: {reader} keeps a row per sample. Wrap the data set with compensate.data.Indexed(dataset) and pass the index: "
            "criterion(logits, target, index). For validation write criterion.eval(), which is the plain loss and needs no index."
        )
    if not isinstance(index, Tensor):
        raise InputError(f"index is a {type(index).__name__}; expected a tensor of whole numbers, one row per sample.")
    if index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(f"index is {index.dtype}; expected whole numbers, the row of each sample in the training set.")
    if index.shape != (places.batch,) and (by_input or index.shape != (places.batch, *places.shape)):
        each = f" or {(places.batch, *places.shape)}, one for each place" if places.dense and not by_input else ""
        raise InputError(f"index has shape {tuple(index.shape)}; expected ({places.batch},), one row per sample{each}.")
    if places.dense and index.ndim > 1 and not places.binary and not s.complete:  # padding names no row
        index = index.to(s.target.device).masked_fill(~s.valid.reshape(index.shape), 0)
    labels = 1 if by_input else places.labels
    if num_samples % labels:
        raise InputError(
            f"{reader} has {num_samples} rows, and a sample has {labels} labels; expected a row for each label of each sample, num_samples * {labels}."
        )
    keys = index.to(s.target.device, torch.long, non_blocking=True)
    check_range(keys, num_samples // labels, s.check, _ROWS, name="index", reader=reader)
    if places.several and not by_input:
        keys = places.expanded(keys, "index")
        keys = keys if labels == 1 else keys * labels + places.classes(keys)
    s.checked[num_samples, by_input] = keys
    return keys


def checked_keys(keys: Tensor, rows: int, reader: str, name: str, check: CheckMode) -> Tensor:
    """Keys as torch.long, if they lie in 0..rows-1."""
    if not isinstance(keys, Tensor):
        raise InputError(f"{name} is a {type(keys).__name__}; expected a tensor of whole numbers, one for each sample.")
    keys = keys.long()
    check_range(keys, rows, check, _ROWS, name=name, reader=reader)
    return keys
