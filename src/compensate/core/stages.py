"""Running a model: in stages, with fixed randomness, and without changing its running statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from compensate.core.layout import Places
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.terms.views import Views

_SWITCHED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_WRITING = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class ModelStages(NamedTuple):
    """A model cut where compensation may enter: `head(features(embed(x) + dx))`, or run whole if it has no such methods.

    A graph network has `structure`, (E,) the weights of its edges, and takes a change of them: `model(x, change)`.
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
        found = {name: getattr(model, name, None) for name in ("embed", "features", "head", "padding")}
        if not callable(found["features"]) or not callable(found["head"]):
            found = dict.fromkeys(found)
        return cls(**found, whole=model, structure=getattr(model, "structure", None))


class ForwardPass:
    """The model on one batch, with compensation of edges, views and features."""

    def __init__(
        self, model: Callable[[Any], Tensor], x: Any, places: Places, views: Views | None, device: torch.device
    ) -> None:
        self.stages, self.x, self.places, self.device, self._views = ModelStages.of(model), x, places, device, views
        self.seed: int | None = None
        self._recording = torch.is_grad_enabled()
        self._embedded: Any = None
        self._differences: Tensor | None = None

    @property
    def embedded(self) -> Any:
        """`embed(x)` if the model has that method, else `x`."""
        if self._embedded is None:
            with torch.set_grad_enabled(self._recording):  # a gate may ask for it first, under no_grad
                self._embedded = self.stages.embed(self.x) if self.stages.embed else self.x
        return self._embedded

    @property
    def e(self) -> Tensor:
        """The input that feature compensation is added to, a floating point tensor."""
        e = self.embedded
        if not (isinstance(e, Tensor) and e.is_floating_point()):
            kind = e.dtype if isinstance(e, Tensor) else type(e).__name__
            raise InputError(
                f"Feature compensation adds numbers to the input, but the input is {kind}. Give the model three "
                "methods, embed(x), features(e) and head(z): compensation is then added to embed(x)."
            )
        return e

    @property
    def structure(self) -> Tensor:
        """(E,) the weights of the edges of a graph network."""
        if self.stages.structure is None:
            raise InputError(
                "Structure compensation changes the edges of a graph, and this model has none. Use a graph network with "
                "the attribute structure, (E,) the weights of its edges, such as compensate.models.GCN."
            )
        return self.stages.structure

    @property
    def differences(self) -> Tensor:
        """(B, K, ...) the difference between each of the K views and the input."""
        if self._differences is None:
            assert self._views is not None
            self._views.check(self.places)
            self._differences = torch.stack([self.unpadded(view(self.e) - self.e) for view in self._views.of], 1)
        return self._differences

    def unpadded(self, delta: Tensor) -> Tensor:
        """`delta`, zero on the padding of texts."""
        if self.stages.padding is None:
            return delta
        padding = self.stages.padding(self.x)
        return delta.masked_fill(padding.reshape(padding.shape + (1,) * (delta.ndim - padding.ndim)), 0.0)

    def logits(self, dx: Tensor | None, dv: Tensor | None, da: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits and features with features, views and edges compensated as given."""
        stages, places = self.stages, self.places
        if dv is not None:
            mixed = (self.differences * dv.reshape(dv.shape + (1,) * (self.e.ndim - 1))).sum(1)
            dx = mixed if dx is None else dx + mixed
        with seeded(self.seed, self.device):
            if da is not None:
                return stages.whole(self.x, da), None  # type: ignore[call-arg]
            if stages.features is None or stages.head is None:
                return stages.whole(self.x if dx is None else self.e + dx), None
            z = stages.features(self.embedded if dx is None else self.e + dx)
            if places.dense and z.shape[2:] == places.shape:
                z = places.rows(z, "features")
                return stages.head(places.back(z)), z  # through the rows, which terms differentiate by
            return stages.head(z), z


@contextmanager
def traceless(model: Any) -> Iterator[None]:
    """Normalization layers inside use batch statistics in training mode and do not update running statistics.

    >>> net = nn.BatchNorm1d(2).train()
    >>> with traceless(net):
    ...     _ = net(torch.randn(8, 2))
    >>> net.num_batches_tracked
    tensor(0)
    """
    modules = [m for m in model.modules() if m.training] if isinstance(model, nn.Module) else []
    switched = [m for m in modules if isinstance(m, _SWITCHED) and m.track_running_stats]
    # Instance normalization updates its statistics regardless of the switch, so they are restored.
    saved = [(b, b.clone()) for m in modules if isinstance(m, _WRITING) for b in m.buffers(False)]
    for layer in switched:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in switched:
            layer.track_running_stats = True
        for buffer, value in saved:
            buffer.copy_(value)


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Random numbers inside come from `seed`; the generators are restored afterwards. `None` does nothing.

    All forward passes of one batch use one seed and so the same dropout mask.
    """
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if device.type == "cuda" else ()):
        if device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds all devices, which takes milliseconds
        else:
            torch.manual_seed(seed)
        yield


class _Runner(nn.Module):
    """Passes its model to a function, for `functional_call` on methods other than `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[[nn.Module], Any]) -> Any:
        return run(self.model)


def run_with_parameters(model: nn.Module, parameters: dict[str, Tensor], run: Callable[[nn.Module], Any]) -> Any:
    """`run(model)` with these parameters in the model; the model itself is not changed.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> run_with_parameters(net, {"weight": torch.tensor([[1.0, 2.0]])}, lambda m: m(torch.tensor([[1.0, 1.0]])))
    tensor([[3.]])
    """
    new = {id(p): parameters[name] for name, p in model.named_parameters() if name in parameters}
    # By module and not by name: a layer may have two names, and a parameter may belong to two layers.
    replaced = {
        ".".join(filter(None, ("model", path, name))): new[id(p)]
        for path, module in model.named_modules()
        for name, p in module.named_parameters(recurse=False)
        if id(p) in new
    }
    return functional_call(_Runner(model), replaced, (run,), tie_weights=False)


def full_precision(values: Tensor) -> Tensor:
    """16-bit numbers as float32, others unchanged: exponentials, logarithms and distances need more than half precision.

    >>> full_precision(torch.ones(1, dtype=torch.float16)).dtype, full_precision(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
