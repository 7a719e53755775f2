"""`accelerate`: prepare a criterion for a custom loop."""

from __future__ import annotations

from typing import Any

from compensate.core.criterion import Compensated
from compensate.errors import InputError
from compensate.integrations import UNEVEN, CriterionHooks, loader_length


def prepare(
    accelerator: Any, criterion: Compensated, loader: Any = None, *, epochs: int | None = None,
    optimizer: Any = None, own_meta: bool = False, fixed_labels: bool = True,
) -> Compensated:  # fmt: skip
    """Moves the criterion to the device, sets its clock, adds it to checkpoints and checks its index in every batch.

    Then call the criterion as usual, and `criterion.end_epoch()` after each epoch; do not give it to `accelerator.prepare`. With several
    processes write ``criterion(*together(model(x), target, index))``, with :func:`compensate.training.together`; samples that accelerate
    repeats to fill the last batch of an epoch are left out. To resume, call `prepare` first and `accelerator.load_state` afterwards.

    Args:
        accelerator: an `accelerate.Accelerator`.
        criterion: the criterion.
        loader: the training loader, as `accelerator.prepare` returned it.
        epochs: number of epochs. Without it, or with a loader of unknown length, methods with a schedule ask for
            `criterion.start(total_steps)`.
        optimizer: the optimizer of the model, or a list; if given, `prepare` checks that an optimizer or a meta step updates each
            parameter of the criterion.
        own_meta: true if the loop calls :func:`compensate.meta_step`.
        fixed_labels: false if labels change on purpose during the training.

    Returns:
        The criterion.

    >>> import accelerate, torch
    >>> from compensate import methods
    >>> from compensate.data import Indexed
    >>> model = torch.nn.Linear(4, 3)
    >>> data = Indexed([(torch.randn(4), k % 3) for k in range(12)])
    >>> accelerator = accelerate.Accelerator(cpu=True)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    >>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    >>> criterion = methods.logcomp(num_samples=12, num_classes=3)
    >>> criterion = prepare(accelerator, criterion, loader, epochs=2, optimizer=optimizer)
    >>> for epoch in range(2):
    ...     for x, y, index in loader:                 # (B, 4), (B,), (B,)
    ...         accelerator.backward(criterion(model(x), y, index))
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...     criterion.end_epoch()
    >>> int(criterion.step), int(criterion.total)
    (6, 6)
    """
    if not hasattr(accelerator, "register_for_checkpointing"):
        raise InputError(f"prepare was given a {type(accelerator).__name__}; expected an accelerate.Accelerator first.")
    if getattr(criterion, "module", None) is not None:
        raise InputError("the criterion has been wrapped for several processes; do not give it to accelerator.prepare.")
    hooks = CriterionHooks(criterion, fixed_labels=fixed_labels)
    criterion.to(accelerator.device).train()
    hooks.index_check.whole = accelerator.num_processes > 1
    if accelerator.num_processes > 1:
        if not accelerator.even_batches:
            raise InputError(UNEVEN)
        source = loader if loader is not None else accelerator.gradient_state

        def kept(size: int) -> slice | None:
            """The rows of a gathered batch that accelerate did not repeat: the first ones of the last batch."""
            real = source.remainder if source.end_of_dataloader else 0
            return slice(0, real) if 0 < real < size else None

        hooks.leave_out(kept)
    optimizers: list[Any] = [optimizer] if hasattr(optimizer, "param_groups") else list(optimizer or ())
    size = loader_length(loader)
    total = None if size is None or epochs is None else epochs * size
    remedy = "Call compensate.meta_step(criterion, model, batch, clean_batch, lr=...) before each step, and pass own_meta=True."
    hooks.begin(total=total, optimizers=optimizers, own_meta=own_meta, remedy=remedy)
    accelerator.register_for_checkpointing(hooks)
    return criterion
