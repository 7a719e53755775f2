"""Models of `transformers` as a criterion sees them: logits from a dictionary of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from compensate.errors import InputError


@final
class HubModel(nn.Module):
    """A model that is run as it is: inputs as a dictionary in, logits (B, C) out.

    Args:
        model: takes the inputs by name and returns an object with `logits`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.outputs: Any = None
        """What the model returned last."""

    def forward(self, inputs: Mapping[str, Any]) -> Tensor:
        """(B, C) logits."""
        self.outputs = self.model(**inputs)
        return find_logits(self.outputs)


@final
class StagedHubModel(nn.Module):
    r"""The same model cut in stages, :math:`f = \text{head} \circ \text{features} \circ \text{embed}`, without changing it.

    `features` runs the whole model and notes what its last layer saw, `head` returns what it made of it.

    Args:
        model: as the training loop runs it, wrapped for several devices or not.
        inner: the model itself, a `PreTrainedModel`.
        head: its last layer.
        embed: true if features are compensated, which act on the word vectors.

    Shapes: word vectors (B, T, E), features (B, D), logits (B, C); of models for tokens (B, D, T) and (B, C, T).
    """

    def __init__(self, model: nn.Module, inner: Any, head: nn.Linear, *, embed: bool) -> None:
        super().__init__()
        self.model = model
        self.outputs: Any = None
        self._inner, self._layer = [inner], [head]  # in lists: they are parts of the model already
        self._inputs: Mapping[str, Any] = {}
        self._z: Tensor | None = None
        if embed:
            self.embed = self._embed

    def _embed(self, inputs: Mapping[str, Any]) -> Tensor:
        if "input_ids" not in inputs:
            raise InputError(
                f"feature compensation acts on word vectors, but the batch has {', '.join(inputs)} and no input_ids."
            )
        self._inputs = {name: value for name, value in inputs.items() if name != "input_ids"}
        return self._inner[0].get_input_embeddings()(inputs["input_ids"])

    def padding(self, inputs: Mapping[str, Any]) -> Tensor:
        """(B, T) true where there is no word."""
        mask = inputs.get("attention_mask")
        return torch.zeros_like(inputs["input_ids"], dtype=torch.bool) if mask is None else mask == 0

    def features(self, e: Any) -> Tensor:
        """(B, D) what the last layer sees."""
        inputs = {**self._inputs, "inputs_embeds": e} if isinstance(e, Tensor) else e
        handle = self._layer[0].register_forward_pre_hook(self._note)
        try:
            self.outputs = self.model(**inputs)
        finally:
            handle.remove()
        assert self._z is not None
        if find_logits(self.outputs).ndim == 3:
            self._z = classes_second(self._z)
        return self._z

    def _note(self, layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._z = arguments[0]

    @property
    def head(self) -> _Head:
        """The last layer, whose weights terms may read."""
        return _Head(self)

    def forward(self, inputs: Mapping[str, Any]) -> Tensor:
        """(B, C) logits."""
        return self.head(self.features(inputs))


class _Head:
    def __init__(self, stages: StagedHubModel) -> None:
        self._stages = stages

    def __call__(self, z: Tensor) -> Tensor:
        if z is self._stages._z:
            return find_logits(self._stages.outputs)
        layer = self._stages._layer[0]
        return layer(z.movedim(1, -1)).movedim(-1, 1) if find_logits(self._stages.outputs).ndim == 3 else layer(z)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stages._layer[0], name)


def find_logits(outputs: Any) -> Tensor:
    """(B, C) the logits among what a model returned; of tokens (B, C, T), classes second, as torch's losses have them."""
    logits = getattr(outputs, "logits", None)
    if logits is None:
        logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
    if not isinstance(logits, Tensor):
        raise InputError(
            f"the model returned a {type(outputs).__name__} without logits; expected a model for classification, such as "
            "AutoModelForSequenceClassification."
        )
    return classes_second(logits)


def classes_second(values: Tensor) -> Tensor:
    """(B, C, T) of what models of `transformers` say of tokens, (B, T, C); others are left as they are."""
    return values.movedim(-1, 1) if values.ndim == 3 else values


def last_layer(model: nn.Module, num_labels: int) -> nn.Linear | None:
    """The linear layer that gives the logits: the last one with this number of outputs.

    >>> last_layer(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), 3)
    Linear(in_features=8, out_features=3, bias=True)
    """
    found = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == num_labels]
    return found[-1] if found else None
