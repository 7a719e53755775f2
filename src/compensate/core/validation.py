"""Cheap checks of batches, indices, saved states and class weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from compensate.errors import InputError, NotFinite

if TYPE_CHECKING:
    from compensate.core.batch import Batch

Check = Literal["auto", "sync", "async", "off"]
"""How a criterion checks its batches."""

Reduction = Literal["mean", "sum", "none"]
"""How the losses of a batch are reduced."""

CheckMode = Literal["sync", "async", "kernels", "off"]
"""How one batch is checked. "auto" becomes "sync" for eager CPU tensors and "kernels" elsewhere: as "async", but indexing
kernels assert the range of classes and rows themselves."""

_simulated = False


def is_eager_cpu(values: Tensor) -> bool:
    """True for eager CPU tensors, whose values can be read without waiting for a device or breaking a compiled graph.

    >>> is_eager_cpu(torch.zeros(3))
    True
    """
    return values.is_cpu and not _simulated and not torch.compiler.is_compiling()


@contextmanager
def simulated_device() -> Iterator[None]:
    """CPU tensors inside are treated like tensors of another device: for tests on machines without one.

    >>> with simulated_device():
    ...     is_eager_cpu(torch.zeros(3))
    False
    """
    global _simulated
    before, _simulated = _simulated, True
    try:
        yield
    finally:
        _simulated = before


def within(values: Tensor, size: int) -> bool:
    """True if eager CPU values lie in 0..size-1; false if that is not known.

    >>> within(torch.tensor([0, 4]), 4), within(torch.tensor([0, 3]), 4), within(torch.tensor([-1, 3]), 4)
    (False, True, False)
    """
    if not is_eager_cpu(values):
        return False
    numbers = values.numpy()  # numpy calls take a tenth of the time of torch calls
    return bool(numbers.view(f"u{numbers.itemsize}").max() < size)  # without a sign, negative numbers are large


def require_true(condition: Tensor, message: str, check: CheckMode) -> None:
    """Raises `message` unless `condition`, a boolean scalar tensor, holds.

    "sync" waits for the value; "async" leaves it to the device, which neither stalls it nor breaks a compiled graph.
    """
    if check in ("async", "kernels"):
        torch._assert_async(condition, message)
    elif check == "sync" and not bool(condition):
        raise InputError(message)


def check_target(target: object, *, binary: bool = False) -> None:
    """Raises unless the target is a tensor, and unless a target with one axis has class numbers, if not `binary`."""
    if not isinstance(target, Tensor):
        raise InputError(
            f"target is a {type(target).__name__}; expected a tensor on the device of the logits: write "
            "torch.as_tensor(target)."
        )
    if target.ndim == 1 and not binary and target.dtype != torch.long:
        raise InputError(_CLASS_TYPE.format(target.dtype))


def check_state(own: Mapping[str, Tensor], state: Mapping[str, Any], prefix: str) -> None:
    """Raises if a saved state holds NaN, or a tensor of another size than the one that it is to replace.

    Args:
        own: the tensors of the criterion that reads it.
        state: the saved state; names of the criterion begin with `prefix`.
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
    if s.places.binary:
        _check_labels(s, check)
    elif s.hard:
        if target.dtype != torch.long:
            raise InputError(_CLASS_TYPE.format(target.dtype))
        classes = u.shape[-1]
        if check not in ("off", "kernels") and target.shape[0] and not within(target, classes):
            message = (
                f"a target lies outside 0..{classes - 1}, but the logits have {classes} classes. Number the classes from 0, or "
                f"mark samples without a label with ignore_index ({s.criterion.ignore_index})."
            )
            inside = (target >= 0) & (target < classes) | ~s.valid
            if check == "sync" and not bool(inside.all()):
                raise InputError(f"target {int(target[~inside][0])}: {message}")
            require_true(inside.all(), message, check)
    elif target.shape != u.shape or not target.is_floating_point():
        raise InputError(
            f"target is {target.dtype} of shape {tuple(target.shape)}; targets with two axes are distributions, "
            f"floating point of shape {tuple(u.shape)}."
        )
    else:
        _check_distributions(target, check)
    classes, weight = s.places.labels if s.places.binary else u.shape[-1], s.criterion.weight
    if weight is not None and weight.shape != (classes,):
        raise InputError(
            f"the criterion's weight has shape {tuple(weight.shape)} and the logits have {classes} classes; expected one "
            f"weight for each class, ({classes},)."
        )
    if s.learn and not torch.compiler.is_compiling() and u.is_inference():
        raise InputError(
            "logits were made under torch.inference_mode(), which records no gradients for the model. Run the model of a training "
            "step outside of it, or write criterion.eval() for the plain loss."
        )
    if check != "off" and u.numel():
        total = (
            u.detach().sum()
        )  # NaN and infinity survive a sum; large finite numbers may overflow, hence the second check
        if check != "sync":
            require_true(total == total, _NAN, check)
        elif not math.isfinite(total.item()):
            odd = (u.isnan() | (u == math.inf)).any(-1)
            if bool(odd.any()):
                rows, kind = odd.nonzero().flatten().tolist(), "NaN" if bool(u.isnan().any()) else "infinity"
                raise NotFinite(f"{_NAN.replace('NaN', kind, 1)} First rows of the batch with {kind}: {rows[:5]}.")


def check_losses(s: Batch) -> None:
    """Raises if a loss is not finite: logits are too large, or minus infinity for the class of a label."""
    if s.check == "off" or torch.compiler.is_compiling():
        return
    total = s.loss.detach()
    total = total.sum() if total.ndim else total
    if s.check != "sync":
        require_true(total < math.inf, _NAN, s.check)
        return
    if math.isfinite(total.item()):
        return
    finite = s.compensated.detach().isfinite()
    if not bool(finite.all()):
        if bool((s.u == -math.inf).any()):
            reason = (
                "logits contain -infinity where the loss depends on them. Take out only classes that a sample cannot have, "
                "or write a large negative number such as -1e4 instead."
            )
        else:
            reason = (
                "the compensated loss is not finite though the logits are: they, or the weights of the model, are too "
                "large for their type. Lower the learning rate, or clip gradients."
            )
        raise NotFinite(f"{reason} First rows of the batch: {(~finite).nonzero().flatten().tolist()[:5]}.")


_CLASS_TYPE = (
    "target is {}; class numbers are torch.long. Write target.long(), or give distributions of shape (batch, classes)."
)

_NAN = (
    "logits contain NaN: the training has diverged or the input has missing values. Look at the input of these samples, "
    "lower the learning rate, or clip gradients; check='off' on the criterion skips this check."
)


SUM_ERROR = 0.02
"""The largest difference between the sum of a soft label and 1: three classes rounded to two digits are 0.01 off, half precision less."""


def _check_distributions(target: Tensor, check: CheckMode) -> None:
    if check == "off" or not target.numel():
        return
    # In 32 bits: a sum of many small numbers would lose them in half precision. NaN fails every comparison.
    sums = target.sum(-1, dtype=torch.promote_types(target.dtype, torch.float32))
    proper = ((sums - 1).abs() <= SUM_ERROR) & (target.amin(-1) >= -1e-6)
    message = (
        "targets with two axes are distributions over the classes: entries of at least 0 that sum to 1. For one class a sample give "
        'class numbers (batch,). Several classes at once (multi-hot) are not a distribution: write base="bce", under which each class is '
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


def _check_labels(s: Batch, check: CheckMode) -> None:
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

    While inputs are compensated, there is one for each input. Each of several labels has a row of its own.
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
    index = index.to(s.target.device, torch.long, non_blocking=True)
    keys = checked_keys(index, num_samples // labels, reader, "index", s.check)
    if places.several and not by_input:
        keys = places.pairs(places.expanded(keys, "index"))
    s.checked[num_samples, by_input] = keys
    return keys


def checked_keys(keys: Tensor, rows: int, reader: str, name: str, check: CheckMode) -> Tensor:
    """Keys as torch.long, if they lie in 0..rows-1."""
    if not isinstance(keys, Tensor):
        raise InputError(f"{name} is a {type(keys).__name__}; expected a tensor of whole numbers, one for each sample.")
    if check not in ("off", "kernels") and len(keys) and not within(keys, rows):
        message = (
            f"{name} lies outside 0..{rows - 1}: {reader} has {rows} rows. Pass the row of each sample in the whole "
            "training set, counted from 0, not its place in the batch, and give the table the size of that set."
        )
        inside = (keys >= 0) & (keys < rows)
        if check == "sync" and not bool(inside.all()):
            raise InputError(f"{name} {int(keys[~inside][0])}: {message}")
        require_true(inside.all(), message, check)
    return keys.long()
