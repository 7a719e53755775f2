"""How a model is run: in stages, with fixed randomness, and without leaving traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

_SWITCHED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_WRITING = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class ModelStages(NamedTuple):
    """A model cut where compensation may enter: `head(features(embed(x) + dx))`.

    A model that does not offer the three methods is run whole; then only `dx` on raw input is possible. A graph network
    offers `structure`, (E,) the weights of its edges, and takes a change of them: `model(x, change)`.
    """

    embed: Callable[[Any], Any] | None
    features: Callable[[Any], Tensor] | None
    head: Callable[[Tensor], Tensor] | None
    whole: Callable[[Any], Tensor]
    padding: Callable[[Any], Tensor] | None
    structure: Tensor | None = None

    @classmethod
    def of(cls, model: Callable[[Any], Tensor]) -> ModelStages:
        """The stages that `model` offers by the names `embed`, `features`, `head` and `padding`, and its `structure`."""
        features, head = getattr(model, "features", None), getattr(model, "head", None)
        staged = callable(features) and callable(head)
        return cls(
            embed=getattr(model, "embed", None) if staged else None,
            features=features if staged else None,
            head=head if staged else None,
            whole=model,
            padding=getattr(model, "padding", None) if staged else None,
            structure=getattr(model, "structure", None),
        )


@contextmanager
def traceless(model: Any) -> Iterator[None]:
    """Extra forwards inside use batch statistics in training mode, and move no running statistics.

    >>> net = nn.BatchNorm1d(2).train()
    >>> with traceless(net):
    ...     _ = net(torch.randn(8, 2))
    >>> net.num_batches_tracked
    tensor(0)
    """
    modules = [m for m in model.modules() if m.training] if isinstance(model, nn.Module) else []
    switched = [m for m in modules if isinstance(m, _SWITCHED) and m.track_running_stats]
    # Instance normalization writes its statistics whatever the switch says, so they are put back.
    kept = [(b, b.clone()) for m in modules if isinstance(m, _WRITING) for b in m.buffers(False)]
    for layer in switched:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in switched:
            layer.track_running_stats = True
        for buffer, value in kept:
            buffer.copy_(value)


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Random numbers inside are those of `seed`; outside, the generators go on as if nothing had happened.

    All forwards of one batch run under one seed, so that they see the same dropout mask. `None` does nothing.
    """
    if seed is None:
        yield
        return
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else ()  # a seed is set on all of them
    with torch.random.fork_rng(devices=devices):
        if device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # the function of torch seeds all devices, in milliseconds
        else:
            torch.manual_seed(seed)
        yield


class _Lent(nn.Module):
    """Lends its model to a function, so that `functional_call` covers methods other than `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[[nn.Module], Any]) -> Any:
        return run(self.model)


def under(model: nn.Module, parameters: dict[str, Tensor], run: Callable[[nn.Module], Any]) -> Any:
    """`run(model)` as if the model had these parameters; the model itself is left alone.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> under(net, {"weight": torch.tensor([[1.0, 2.0]])}, lambda m: m(torch.tensor([[1.0, 1.0]])))
    tensor([[3.]])
    """
    new = {id(p): parameters[name] for name, p in model.named_parameters() if name in parameters}
    # By module and not by name: a layer may be reached under two names, and a parameter may belong to two layers.
    lent = {
        ".".join(filter(None, ("model", path, name))): new[id(p)]
        for path, module in model.named_modules()
        for name, p in module.named_parameters(recurse=False)
        if id(p) in new
    }
    return functional_call(_Lent(model), lent, (run,), tie_weights=False)


def full_precision(values: Tensor) -> Tensor:
    """Numbers of 16 bits as float32, others as they are: exponentials, logarithms and distances need more than half precision.

    >>> full_precision(torch.ones(1, dtype=torch.float16)).dtype, full_precision(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
