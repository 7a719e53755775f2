"""Operations that each method dispatches in a step, relative to cross-entropy; no method waits for the device.

python -m benchmarks.operations [--quick]

Tensors are on torch's device "meta", which has shapes and no values: a batch takes the way that it
takes on every other device but the CPU, and whatever would wait for a value (`item`, `nonzero`, `unique`, a copy to the host, the truth of a
tensor) raises an error.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import Ratio, options, report
from compensate import METHODS, Compensated
from compensate.methods.registry import Method
from compensate.models.networks import MLP

BATCH, CLASSES, SAMPLES, FEATURES, STEPS = 128, 10, 50_000, 32, 52
BAR = 4.0
ABOUT = """Operations dispatched by a step, forward and backward, including the record and the step of the rows;
batches of 128 samples and 10 classes, averaged over 52 steps. Views count as operations. Relative to cross-entropy:
the loss alone, or a two-layer model with the loss for methods that run the model. Tensors are on the device "meta",
which has no values, so any wait for a value raises an error; no method does. If the index is still on the host, as
the loader returns it, duplicate samples need no operations."""
WAITING = ("_local_scalar_dense", "nonzero", "unique", "_unique", "is_nonzero", "equal", "masked_select", "bincount")
"""Operations whose result the host has to wait for, or whose shape depends on values."""


class Waits(RuntimeError):
    """Something would wait for the device."""


class Count(TorchDispatchMode):
    """Counts operations on the device and refuses any that wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation."""
        kwargs = kwargs or {}
        given = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        name = func.overloadpacket.__name__
        away = any(not t.is_cpu for t in given)
        if away and name.startswith(WAITING):
            raise Waits(name)
        result = func(*args, **kwargs)
        made = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)]
        if away and name in ("_to_copy", "copy_") and any(t.is_cpu for t in made):
            raise Waits("a copy to the host")
        if away or any(not t.is_cpu for t in made):
            self.names.append(name)
        return result


def counted(step: Callable[[], Tensor], steps: int = STEPS) -> float:
    """Operations of a step, forward and backward, on average; work done once in several steps counts in parts."""
    step().backward()
    with Count() as count:
        for _ in range(steps):
            step().backward()
    return len(count.names) / steps


def sizes() -> dict[str, Any]:
    """Of a training set, for any method."""
    counts = [SAMPLES // CLASSES] * CLASSES
    return {"num_samples": SAMPLES, "num_classes": CLASSES, "class_counts": counts, "feature_dim": FEATURES, "feature_shape": (64,)}  # fmt: skip


def needs_model(row: Method, criterion: Compensated) -> bool:
    """True if logits do not suffice."""
    return criterion.reads_inputs or bool({"model", "features"} & {*row.needs})


def operations(row: Method, *, on_host: bool = False, steps: int = STEPS) -> tuple[float, float]:
    """Operations of a method and of cross entropy with the same model; the index lies on the device, or still on the host."""
    criterion = row.make(**sizes()).start(10**6).to("meta")
    classes = CLASSES + row.extra_outputs
    model: nn.Module = MLP(64, classes, hidden=(FEATURES,)).to("meta")
    x, u = torch.randn(BATCH, 64, device="meta"), torch.randn(BATCH, classes, device="meta", requires_grad=True)
    y = torch.randint(CLASSES, (BATCH,), device="meta")
    epoch = itertools.cycle(torch.randperm(SAMPLES, device="cpu" if on_host else "meta").split(BATCH)[:-1])
    if needs_model(row, criterion):
        ours, theirs = lambda: criterion.evaluate(model, x, y, next(epoch)).loss, lambda: F.cross_entropy(model(x), y)
    else:
        ours, theirs = lambda: criterion(u, y, next(epoch)), lambda: F.cross_entropy(u, y)
    return counted(ours, steps), counted(theirs, steps)


def rows(names: list[str], *, on_host: bool = False) -> list[Ratio]:
    """A line for each method."""
    found = []
    for name in names:
        ours, theirs = operations(METHODS[name], on_host=on_host)
        what = f"{name}: {ours:.3g} operations{', the index on the host' * on_host}"
        bar = BAR if name == "logcomp" and on_host else None
        found.append(Ratio(what, f"cross entropy: {theirs:g}", [ours], [theirs], bar, "operations"))
    return found


def main() -> None:
    """Counts, prints and stores."""
    quick = options(__doc__).quick
    warnings.simplefilter("ignore")  # of epochs that do not end
    names = ["base", "logcomp", "mixcomp"] if quick else [*METHODS]
    ratios = rows(["logcomp", "mixcomp"], on_host=True) + rows(names)
    report("operations", ratios, about=ABOUT, quick=quick, threads=1)


if __name__ == "__main__":
    main()
