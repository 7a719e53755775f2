"""`accelerate`: a criterion made ready for a custom loop."""

from __future__ import annotations

from typing import Any

from compensate.core.criterion import Compensated
from compensate.errors import InputError
from compensate.integrations.common import TAKE_THEM, CriterionHooks


def prepare(
    accelerator: Any,
    criterion: Compensated,
    loader: Any = None,
    *,
    epochs: int | None = None,
    optimizer: Any = None,
    own_meta: bool = False,
    fixed_labels: bool = True,
) -> Compensated:
    """Moves the criterion to the device, sets its clock, puts it into checkpoints and checks its index in every batch.

    In place of `accelerator.prepare`, which would wrap it for several processes. After it, the criterion is called as ever, and
    `criterion.end_epoch()` after each epoch. Accumulation of gradients changes nothing for it. With several processes write
    ``criterion(*together(model(x), target, index))``, with :func:`compensate.training.together`; forgetting it is an error
    at the first batch. The samples that accelerate repeats to fill up the last batch of an epoch are left out. To
    resume, call this first and `accelerator.load_state` then.

    Args:
        accelerator: an `accelerate.Accelerator`.
        criterion: the criterion.
        loader: the training loader, as `accelerator.prepare` gave it.
        epochs: of the training. Without it, or without a length of the loader, methods with a schedule ask for
            `criterion.start(total_steps)`.
        optimizer: of the model, or a list of several; given, it is checked that an optimizer or a meta step moves each parameter of the criterion.
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
            raise InputError(
                "even_batches=False gives the processes slices of different sizes, which cannot be put together. Leave it out: "
                "samples that are repeated to even out the last batch are left out of the loss."
            )
        hooks.leave_out(lambda size: _real(loader if loader is not None else accelerator.gradient_state, size))
    many: list[Any] = [optimizer] if hasattr(optimizer, "param_groups") else list(optimizer or ())
    try:
        size = None if loader is None else len(loader)
    except TypeError:
        size = None
    total = None if size is None or epochs is None else epochs * size
    hooks.begin(total=total, optimizers=many, own_meta=own_meta, remedy=TAKE_THEM)
    accelerator.register_for_checkpointing(hooks)
    return criterion


def _real(loader: Any, size: int) -> slice | None:
    """The rows of a gathered batch that were not repeated to fill it up: in the last one of an epoch, the first few."""
    real = loader.remainder if loader.end_of_dataloader else 0
    return slice(0, real) if 0 < real < size else None
