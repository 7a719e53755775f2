"""Any model as embed, features and head."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from compensate.errors import InputError, nearest


class Staged(nn.Module):
    r"""A model split into stages, :math:`f = \text{head} \circ \text{features} \circ \text{embed}`.

    Feature compensation acts on ``embed(x)``, and some terms read the classifier ``head`` or the features before it.

    Args:
        model: any module whose last layer is linear. It is not changed, and its parameters are shared: training either
            trains both.
        head: the name of that layer, such as ``"fc"`` or ``"classifier.6"``, or the layer itself.
        embed: for texts, the embedding layer or its name: ``embed(x)`` are then the word vectors.
        example: a batch on which the stages are compared with the model.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> staged = Staged(model, head="2", example=torch.rand(5, 4))
    >>> staged.features(torch.rand(5, 4)).shape, staged.head
    (torch.Size([5, 8]), Linear(in_features=8, out_features=3, bias=True))
    """

    def __init__(
        self,
        model: nn.Module,
        head: str | nn.Module = "fc",
        *,
        embed: str | nn.Module | None = None,
        example: Tensor | None = None,
    ) -> None:
        super().__init__()
        name, layer = _find(model, head, "head")
        if not isinstance(layer, nn.Linear):
            raise InputError(
                f'the head "{name}" is a {type(layer).__name__}; expected the nn.Linear that gives the logits. '
                f"{_linear(model)}"
            )
        body = _without(model, name)
        self.embedding: nn.Module = nn.Identity()
        if embed is not None:
            name, self.embedding = _find(model, embed, "embedding")
            body = _without(body, name)
        self.body = body
        self.head = layer
        if example is not None:
            self._try(model, example)

    def padding(self, x: Tensor) -> Tensor:
        """(B, T) true for padding, by the ``padding_idx`` of the embedding layer; all false without one."""
        blank = getattr(self.embedding, "padding_idx", None)
        return torch.zeros_like(x, dtype=torch.bool) if blank is None else x == blank

    def embed(self, x: Tensor) -> Tensor:
        return self.embedding(x)

    def features(self, e: Tensor) -> Tensor:
        z = self.body(e)
        if not isinstance(z, Tensor) or z.shape[-1] != self.head.in_features:
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise InputError(
                f"without its head the model returns {got}; expected features (B, {self.head.in_features}). "
                "Something follows the head in its forward pass: use compensate.models.Stages with your own functions."
            )
        return z

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))

    def _try(self, model: nn.Module, example: Tensor) -> None:
        modes = {module: module.training for module in (*model.modules(), *self.modules())}
        try:
            model.eval(), self.eval()  # without dropout
            with torch.no_grad():
                ours, theirs = self(example), model(example)
        finally:
            for module, mode in modes.items():
                module.training = mode
        if ours.shape != theirs.shape or not torch.allclose(ours, theirs, atol=1e-5, rtol=1e-4):
            raise InputError(
                "the stages and the model differ on the example: the forward pass does something after the head (a softmax?) "
                "or uses x outside the embedding. Use compensate.models.Stages with your own functions."
            )


class Stages(nn.Module):
    """A model from functions or modules for its stages.

    Args:
        features: takes ``embed(x)`` and returns (B, F). Modules are trained; a plain function must be at the top level of a
            Python module for pickling.
        head: the linear layer that gives the logits.
        embed: takes the batch; the identity by default.
        padding: takes the batch and returns (B, T), true for padding; for texts.

    >>> body = nn.Sequential(nn.Flatten(), nn.Linear(4, 8))
    >>> Stages(torch.tanh, nn.Linear(4, 2))(torch.rand(3, 4)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        features: Callable[[Tensor], Tensor],
        head: nn.Module,
        *,
        embed: Callable[[Tensor], Tensor] | None = None,
        padding: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        for name, stage in (("features", features), ("head", head), ("embed", embed), ("padding", padding)):
            if stage is not None and not callable(stage):
                raise InputError(f"{name} is a {type(stage).__name__}; expected a module or a function of one tensor.")
        self.head = head
        self.stage_features = features
        self.stage_embed = embed
        self.stage_padding = padding

    def padding(self, x: Tensor) -> Tensor:
        if self.stage_padding is None:
            return torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        return self.stage_padding(x)

    def embed(self, x: Tensor) -> Tensor:
        return x if self.stage_embed is None else self.stage_embed(x)

    def features(self, e: Tensor) -> Tensor:
        return self.stage_features(e)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


def _find(model: nn.Module, layer: str | nn.Module, role: str) -> tuple[str, nn.Module]:
    named = dict(model.named_modules(remove_duplicate=False))
    if isinstance(layer, str):
        if layer == "" or layer not in named:
            raise InputError(f'the model has no layer "{layer}" for its {role}; {nearest(layer, list(named)[1:])}')
        names = [name for name, module in named.items() if module is named[layer]]
    else:
        names = [name for name, module in named.items() if module is layer]
    if len(names) != 1 or names[0] == "":
        raise InputError(
            f"the {role} given is found {len(names)} times in the model ({', '.join(names) or 'nowhere'}); expected once."
        )
    return names[0], named[names[0]]


def _linear(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return "Its linear layers: " + ", ".join(names[-5:]) + "." if names else "It has no linear layer."


def _without(model: nn.Module, name: str) -> nn.Module:
    """The model with one layer replaced by the identity; the modules that contain it are copied, the rest is shared.

    Only the copies' dictionaries of children are new. Parameters and buffers stay the same objects, and an optimizer of the
    user's model still trains this one.
    """
    first, _, rest = name.partition(".")
    twin = copy.copy(model)
    twin.__dict__["_modules"] = dict(model._modules)
    child = model._modules[first]
    assert child is not None
    twin._modules[first] = _without(child, rest) if rest else nn.Identity()
    return twin
