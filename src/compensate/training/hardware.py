"""Where and how a model is trained: device, precision, processes. Plain torch; accelerate is asked for trackers alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
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
        precision: "no" for the model's own, "bf16" or "fp16" for mixed precision.
        processes: those that train together; this one alone if not given.

    >>> Hardware("cpu", "fp16")
    Traceback (most recent call last):
    compensate.errors.InputError: fp16 needs a CUDA device, and this one is cpu. Take precision="bf16" or "no".
    """

    def __init__(
        self, device: torch.device | str = "cpu", precision: str = "no", processes: Processes | None = None
    ) -> None:
        self.device, self.precision = torch.device(device), precision
        self.processes = Processes() if processes is None else processes
        if precision not in ("no", *_DTYPES):
            raise InputError(f'precision is "{precision}"; {nearest(precision, ["no", *_DTYPES])}')
        if precision == "fp16" and self.device.type != "cuda":
            raise InputError(f'fp16 needs a CUDA device, and this one is {self.device}. Take precision="bf16" or "no".')
        # Gradients of 16 bits with few digits of exponent are scaled, and steps that overflow are left out.
        self.scaler = torch.amp.GradScaler("cuda") if precision == "fp16" else None

    @classmethod
    def found(cls, device: torch.device | str | None = None, precision: str = "no") -> Hardware:
        """The device that is given, or a graphics card where there is one; with the processes that were launched."""
        return cls(found_device(device), precision, Processes.launched())

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module whose backward pass averages gradients over the processes."""
        if self.processes.size == 1:
            return module
        return DistributedDataParallel(module, device_ids=[self.device] if self.device.type == "cuda" else None)

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision inside, if it is asked for."""
        kind = _DTYPES.get(self.precision)
        return nullcontext() if kind is None else torch.autocast(self.device.type, dtype=kind)

    def backward(self, loss: Tensor) -> None:
        """The backward pass."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self, optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], clip: float | None) -> None:
        """A step of the optimizer, the norm of the gradient cut at `clip`."""
        if clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, clip)
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()


def found_device(device: torch.device | str | None = None) -> torch.device:
    """The device that is given, or this process's graphics card where there is one.

    >>> found_device("cpu")
    device(type='cpu')
    """
    if device is not None:
        return torch.device(device)
    card = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", card) if torch.cuda.is_available() else torch.device("cpu")


def move(x: Any, device: torch.device | str) -> Any:
    """A tensor, or tensors in tuples, lists and dictionaries, on the device; anything else as it is.

    >>> move((torch.ones(1), "a"), "meta")
    (tensor(..., device='meta', size=(1,)), 'a')
    """
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, tuple | list):
        return type(x)(move(part, device) for part in x)
    return {name: move(part, device) for name, part in x.items()} if isinstance(x, dict) else x


def gathering(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """While gradients of several batches add up, they are sent with the last of them only."""
    return nullcontext() if last or not isinstance(module, DistributedDataParallel) else module.no_sync()


class Trackers:
    """Accelerate's trackers, told of every epoch.

    Args:
        asked: names such as "tensorboard", or `GeneralTracker` objects.
        folder: where they write.
    """

    def __init__(self, asked: Sequence[Any], folder: str | Path | None) -> None:
        self._accelerator: Any = None
        if not asked:
            return
        accelerate = require("accelerate", "tracking", "accelerate")
        try:
            made = accelerate.Accelerator(
                cpu=not torch.cuda.is_available(),
                log_with=list(asked),
                project_dir=None if folder is None else str(folder),
            )
        except ValueError as error:
            raise InputError(f"{error} Leave out the tracker that is not installed.") from error
        if len(made.log_with) < len(asked):
            raise InputError(
                f"of the trackers {', '.join(map(str, asked))} not all are installed; pip install the missing."
            )
        self._accelerator = made

    def begin(self, settings: dict[str, Any]) -> None:
        """The start of the run, with its settings. Nothing is written before."""
        if self._accelerator is not None:
            self._accelerator.init_trackers("compensate", config=settings)

    def log(self, row: dict[str, float], step: int) -> None:
        """The metrics of an epoch."""
        if self._accelerator is not None:
            self._accelerator.log(row, step=step)

    def finish(self) -> None:
        """The end of the run."""
        for tracker in self._accelerator.trackers if self._accelerator is not None else ():
            tracker.finish()
