"""Lightning: a callback for the criterion of a module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from compensate.core.criterion import Compensated
from compensate.errors import InputError
from compensate.extras import stand_in
from compensate.integrations import CriterionHooks, batches_of_steps, loader_length, repeated
from compensate.training.distributed import Exchange

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # pragma: no cover
    Callback = stand_in("lightning", "lightning")


@final
class CompensationCallback(Callback):
    """Sets the clock of a criterion, ends its epochs, takes its meta steps, stores its state and checks its index.

    The criterion is an attribute of the module, called in `training_step`; `validation_step` gets the plain loss. Samples that a
    distributed sampler repeats at the end of an epoch are left out.

    Args:
        criterion: a criterion outside the module; the callback then moves and stores it.
        clean: batches ``(x, target)`` of trusted data for methods with meta steps, which are taken before each training step; the
            module's `forward` must map `x` to logits, and batches must be ``(x, target, index)``.
        meta_optimizer: for methods with networks of their own; Adam by default.
        own_meta: true if `training_step` calls `meta_step`.
        fixed_labels: false if labels change on purpose during the training.
        exchange: with several processes, each evaluates its own slice of the batch; the copies of the criterion are merged after
            each epoch and before each checkpoint. False if `training_step` uses :func:`compensate.training.together`.

    >>> import torch, lightning as L
    >>> from compensate import methods
    >>> from compensate.data import Indexed
    >>> class Net(L.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(4, 3)
    ...         self.criterion = methods.logcomp(num_samples=12, num_classes=3)
    ...     def training_step(self, batch, _):
    ...         x, y, index = batch                     # (B, 4), (B,), (B,)
    ...         return self.criterion(self.layer(x), y, index)
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.layer.parameters(), lr=0.1)
    >>> data = Indexed([(torch.randn(4), k % 3) for k in range(12)])
    >>> loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    >>> net, quiet = Net(), dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
    >>> import warnings; warnings.simplefilter("ignore")
    >>> trainer = L.Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, callbacks=[CompensationCallback()], **quiet)
    >>> trainer.fit(net, loader)
    >>> int(net.criterion.epoch), int(net.criterion.step)
    (2, 6)
    """

    def __init__(
        self, criterion: Compensated | None = None, *, clean: Iterable[Any] | None = None,
        meta_optimizer: torch.optim.Optimizer | None = None, own_meta: bool = False, fixed_labels: bool = True,
        exchange: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.criterion, self.own_meta, self.exchange = criterion, own_meta, exchange
        self._options: dict[str, Any] = {"clean": clean, "meta_optimizer": meta_optimizer, "fixed_labels": fixed_labels}
        self.hooks: Any = None  # the `CriterionHooks`, once `setup` has found the criterion
        self._exchange: Exchange | None = None
        self._last = False  # in the last batch of an epoch
        self._loose = False  # for a criterion that is not part of the module

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Finds the criterion, before a checkpoint is read and before the module is copied to several processes."""
        registered = [m for m in pl_module.modules() if isinstance(m, Compensated)]
        if self.criterion is None and len(registered) != 1:
            count = f"{len(registered)} criteria" if registered else "no criterion"
            raise InputError(
                f"{type(pl_module).__name__} has {count} of compensate; expected one: write self.criterion = ... in its __init__, or pass it."
            )
        criterion = self.criterion or registered[0]
        self._loose = all(c is not criterion for c in registered)
        if self.hooks is None or self.hooks.criterion is not criterion:
            self.hooks = CriterionHooks(criterion, **self._options)
        if not self._loose and trainer.world_size > 1:
            # DDP must not overwrite the tables of all processes with the tables of the first.
            name = next(name for name, module in pl_module.named_modules() if module is criterion)
            ignored = [f"{name}.{key}" for key, _ in (*criterion.named_buffers(), *criterion.named_parameters())]
            known = getattr(pl_module, "_ddp_params_and_buffers_to_ignore", ())
            pl_module._ddp_params_and_buffers_to_ignore = [*known, *ignored]  # type: ignore[assignment]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Sets the clock, and checks the optimizers."""
        criterion = self.hooks.criterion
        if self._loose:
            criterion.to(pl_module.device).train()
        done = trainer.fit_loop.epoch_loop.batch_progress.total.completed
        self.hooks.begin(
            total=_total(trainer), done=done, epochs=trainer.current_epoch, optimizers=trainer.optimizers, own_meta=self.own_meta
        )  # fmt: skip
        self._exchange = Exchange(criterion) if self.exchange and trainer.world_size > 1 else None
        if trainer.world_size > 1:
            self._leave_out_padding(trainer)

    def _leave_out_padding(self, trainer: Any) -> None:
        loaders = _loaders(trainer.train_dataloader)
        if not any(map(repeated, loaders)):
            return
        if len(loaders) > 1 or self.hooks.clean is not None:
            raise InputError(
                "the sampler repeats samples, which cannot be identified in meta steps and with several training loaders. Use "
                "sampler=torch.utils.data.DistributedSampler(dataset, drop_last=True), and Trainer(use_distributed_sampler=False)."
            )
        processes, extra = trainer.world_size, repeated(loaders[0])
        repeats = trainer.global_rank >= processes - extra

        def kept_of_slice(size: int) -> slice | None:
            return slice(0, size - 1) if self._last and repeats else None

        def share(size: int) -> float:
            return processes * size / (processes * (size + repeats) - extra) if self._last else 1.0

        def kept_of_all(size: int) -> Tensor | None:
            if not self._last:
                return None
            again = {(r + 1) * (size // processes) - 1 for r in range(processes - extra, processes)}
            return torch.tensor([row for row in range(size) if row not in again])

        self.hooks.leave_out(*(kept_of_slice, share) if self.exchange else (kept_of_all,))

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        """Takes the meta step before the training step, if there are clean data."""
        loaders = _loaders(trainer.train_dataloader)
        self._last = len(loaders) == 1 and batch_idx + 1 == loader_length(loaders[0])
        if self.hooks.clean is None:
            return
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise InputError(
                f"the training batch is a {type(batch).__name__}; expected (x, target, index). Else call compensate.meta_step in "
                "training_step, and pass own_meta=True."
            )
        self.hooks.meta(pl_module, tuple(batch), trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Ends the epoch of the criterion."""
        self.hooks.catch_up(trainer.current_epoch + 1, None if self._exchange is None else self._exchange.end_epoch)

    def on_validation_start(self, trainer: Any, pl_module: nn.Module, *, evaluating: bool = True) -> None:
        """Evaluation batches must not change a row."""
        self.hooks.index_check.evaluating = evaluating
        if self._loose:
            self.hooks.criterion.train(not evaluating)

    def on_validation_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Training continues."""
        self.on_validation_start(trainer, pl_module, evaluating=False)

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def on_save_checkpoint(self, trainer: Any, pl_module: nn.Module, checkpoint: dict[str, Any]) -> None:
        """Merges the copies of several processes; the checkpoint holds the tensors of the criterion."""
        if self._exchange is not None:
            self._exchange()

    def state_dict(self) -> dict[str, Any]:
        """The state of the hooks that is not in the module's state."""
        state = {} if self.hooks is None else self.hooks.state_dict()
        if not self._loose:
            state.pop("criterion", None)  # part of the module's state
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state, after the module."""
        if state_dict:  # the module's state may hold the criterion
            self.hooks.load_state_dict({"criterion": self.hooks.criterion.state_dict(), **state_dict})


def _loaders(given: Any) -> list[Any]:
    """The training loaders: one, or several in a list or a dictionary."""
    if isinstance(given, Mapping):
        given = list(given.values())
    return [loader for one in given for loader in _loaders(one)] if isinstance(given, list | tuple) else [given]


def _total(trainer: Any) -> int | None:
    """Batches of the whole training; None if unknown."""
    per_epoch = None if trainer.num_training_batches == float("inf") else int(trainer.num_training_batches)
    known = []
    if trainer.max_epochs not in (None, -1) and per_epoch is not None:
        known.append(int(trainer.max_epochs * per_epoch))
    if trainer.max_steps not in (None, -1):
        known.append(batches_of_steps(trainer.max_steps, trainer.accumulate_grad_batches, per_epoch))
    return max(1, min(known)) if known else None
