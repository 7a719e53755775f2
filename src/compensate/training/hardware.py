"""Device, precision and processes of a training, and experiment trackers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from compensate.errors import InputError, nearest
from compensate.extras import require
from compensate.training.distributed import Processes

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Hardware:
    """A device, a precision and the processes that share a batch.

    Args:
        device: of torch.
        precision: "no", or "bf16" or "fp16" for mixed precision.
        processes: the processes that train together; only this one by default.

    >>> Hardware("cpu", "fp16")
    Traceback (most recent call last):
    compensate.errors.InputError: fp16 needs a CUDA device, and this one is cpu. Use precision="bf16" or "no".
    """

    def __init__(
        self, device: torch.device | str = "cpu", precision: str = "no", processes: Processes | None = None
    ) -> None:
        self.device, self.precision = torch.device(device), precision
        self.processes = Processes() if processes is None else processes
        if precision not in ("no", *_DTYPES):
            raise InputError(f'precision is "{precision}"; {nearest(precision, ["no", *_DTYPES])}')
        if precision == "fp16" and self.device.type != "cuda":
            raise InputError(f'fp16 needs a CUDA device, and this one is {self.device}. Use precision="bf16" or "no".')
        # Scales gradients into the range of fp16, and skips steps that overflow.
        self.scaler = torch.amp.GradScaler("cuda") if precision == "fp16" else None

    @classmethod
    def detect(cls, device: torch.device | str | None = None, precision: str = "no") -> Hardware:
        """The given device, or a graphics card if there is one, with the processes of `torchrun`."""
        return cls(default_device(device), precision, Processes.launched())

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, averaging gradients over the processes in its backward pass."""
        if self.processes.size == 1:
            return module
        return DistributedDataParallel(module, device_ids=[self.device] if self.device.type == "cuda" else None)

    def autocast(self) -> AbstractContextManager[Any]:
        """A context with mixed precision, if it is enabled."""
        kind = _DTYPES.get(self.precision)
        return nullcontext() if kind is None else torch.autocast(self.device.type, dtype=kind)

    def backward(self, loss: Tensor) -> None:
        """Runs the backward pass."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self, optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], clip: float | None) -> None:
        """Takes an optimizer step, with the norm of the gradient limited to `clip`."""
        if clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, clip)
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()


def default_device(device: torch.device | str | None = None) -> torch.device:
    """The given device, or this process's graphics card if there is one.

    >>> default_device("cpu")
    device(type='cpu')
    """
    if device is not None:
        return torch.device(device)
    card = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", card) if torch.cuda.is_available() else torch.device("cpu")


def move(x: Any, device: torch.device | str) -> Any:
    """Moves tensors to the device, also inside tuples, lists and mappings; other values are returned unchanged.

    >>> move((torch.ones(1), "a"), "meta")
    (tensor(..., device='meta', size=(1,)), 'a')
    """
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, tuple | list):
        return type(x)(move(part, device) for part in x)
    return {name: move(part, device) for name, part in x.items()} if isinstance(x, Mapping) else x


def no_gradient_sync(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """A context in which gradients are exchanged with the last batch of a group only."""
    return nullcontext() if last or not isinstance(module, DistributedDataParallel) else module.no_sync()


class Trackers:
    """Accelerate's experiment trackers, with a log entry for every epoch.

    Args:
        trackers: names such as "tensorboard", or `GeneralTracker` objects.
        folder: their output folder.
    """

    def __init__(self, trackers: Sequence[Any], folder: str | Path | None) -> None:
        self._accelerator: Any = None
        if not trackers:
            return
        accelerate = require("accelerate", "tracking", "accelerate")
        try:
            made = accelerate.Accelerator(
                cpu=not torch.cuda.is_available(),
                log_with=list(trackers),
                project_dir=None if folder is None else str(folder),
            )
        except ValueError as error:
            raise InputError(f"{error} Leave out the tracker that is not installed.") from error
        if len(made.log_with) < len(trackers):
            raise InputError(
                f"not all of the trackers {', '.join(map(str, trackers))} are installed; pip install the missing ones."
            )
        self._accelerator = made

    def begin(self, settings: dict[str, Any]) -> None:
        """Starts the run with its settings."""
        if self._accelerator is not None:
            self._accelerator.init_trackers("compensate", config=settings)

    def log(self, row: dict[str, float], step: int) -> None:
        """Logs the metrics of an epoch."""
        if self._accelerator is not None:
            self._accelerator.log(row, step=step)

    def finish(self) -> None:
        """Ends the run."""
        for tracker in self._accelerator.trackers if self._accelerator is not None else ():
            tracker.finish()
