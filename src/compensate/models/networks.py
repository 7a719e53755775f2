"""Networks in three stages, `forward(x) = head(features(embed(x)))`, layers for them, and models by name for a data set."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compensate.data.arrays import channel_statistics
from compensate.data.dataset import Dataset, Ragged
from compensate.errors import InputError, check, nearest

Layer = str | nn.Module  # a layer of a model, or its name
Stage = Callable[[Tensor], Tensor]  # a module, or a function of one tensor


class Network(nn.Module):
    head: nn.Module

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, e: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


class Normalize(nn.Module):
    r"""Shifts and scales each channel c, the first dimension after the batch: :math:`x \mapsto (x - \mu_c) / \sigma_c`.

    >>> Normalize([0.5], [0.25])(torch.ones(1, 1, 2, 2)).unique()
    tensor([2.])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not len(mean):
            raise InputError(f"mean has {len(mean)} and std {len(std)} values; expected one each a channel.")
        if min(float(s) for s in std) <= 0:
            raise InputError(f"std is {list(std)}; each value must be positive. Use 1 for a channel that never varies.")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1,) + (1,) * (x.ndim - 2)
        return (x - self.mean.view(shape)) / self.std.view(shape)


def normalizer(channels: int, mean: Sequence[float] | None, std: Sequence[float] | None) -> nn.Module:
    """`Normalize` with the given statistics, or with 0.5 and 0.25, for pixels in [0, 1]."""
    if mean is not None and len(mean) != channels:
        raise InputError(f"mean has {len(mean)} values; the model was asked to take {channels} channels.")
    return Normalize([0.5] * channels if mean is None else mean, [0.25] * channels if std is None else std)


class CNN(Network):
    """Convolutions of 3 x 3, each followed by halving the image, then an average: for digits and MNIST.

    Args:
        num_classes, channels: the numbers of logits and of channels of the images.
        widths: channels after each convolution; the image is halved between them.
        hidden, dropout: units of the layer before the head, and the share of them dropped in training.
        batch_norm: whether BatchNorm follows each convolution.
        mean, std: of each channel, for the first layer (`Normalize`).

    Shapes: x (B, channels, H, W) in [0, 1]; ``features`` (B, hidden); logits (B, C).

    >>> CNN(10)(torch.rand(4, 1, 8, 8)).shape
    torch.Size([4, 10])
    """

    def __init__(
        self,
        num_classes: int,
        *,
        channels: int = 1,
        widths: Sequence[int] = (32, 64),
        hidden: int = 128,
        dropout: float = 0.0,
        batch_norm: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if not widths:
            raise InputError("widths is empty; a CNN needs at least one convolution, for example widths=(32, 64).")
        self.normalize = normalizer(channels, mean, std)
        layers: list[nn.Module] = []
        for before, after in zip([channels, *widths], widths, strict=False):
            layers += [nn.Conv2d(before, after, 3, padding=1), *([nn.BatchNorm2d(after)] if batch_norm else [])]
            # ceil_mode: an image of one pixel stays one pixel.
            layers += [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.hidden = nn.Sequential(nn.Linear(4 * widths[-1], hidden), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(hidden, num_classes)

    def features(self, e: Tensor) -> Tensor:
        return self.hidden(self.body(self.normalize(e)))


class MLP(Network):
    """Fully connected layers on features; anything after the batch dimension is flattened.

    Args:
        num_features, num_classes: the numbers of entries of a sample and of logits.
        hidden, dropout: units of each hidden layer, and the share of them dropped in training.

    Shapes: x (B, ...) with num_features entries each; ``features`` (B, hidden[-1]); logits (B, C).

    >>> MLP(64, 10)(torch.rand(4, 1, 8, 8)).shape
    torch.Size([4, 10])
    """

    def __init__(
        self, num_features: int, num_classes: int, *, hidden: Sequence[int] = (256, 256), dropout: float = 0.0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in zip([num_features, *hidden], hidden, strict=False):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear([num_features, *hidden][-1], num_classes)

    def features(self, e: Tensor) -> Tensor:
        return self.body(e)


def probe(num_features: int, num_classes: int) -> MLP:
    """A linear classifier, such as for embeddings of a large model: an `MLP` without hidden layers.

    >>> probe(5, 3).head
    Linear(in_features=5, out_features=3, bias=True)
    """
    return MLP(num_features, num_classes, hidden=())


DEPTHS = (8, 14, 20, 32, 44, 56, 110)


class ResNet(Network):
    """The network of He et al. for CIFAR: three stages of 16, 32 and 64 channels, depth 6n + 2.

    Args:
        depth, num_classes, channels: 6n + 2, and the numbers of logits and of channels of the images.
        width: channels of the first stage; 16 in the reference.
        stride: of the first convolution; 1 in the reference. With 2 the stages work at half the size, four times as fast.
        mean, std: of each channel, for the first layer (`Normalize`).

    Shapes: x (B, channels, H, W) in [0, 1]; ``features`` (B, 4 * width); logits (B, C).

    >>> sum(p.numel() for p in ResNet(20, 10).parameters())
    269722

    Reference: He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, 2016, Sec. 4.2.
    """

    def __init__(
        self,
        depth: int = 20,
        num_classes: int = 10,
        *,
        channels: int = 3,
        width: int = 16,
        stride: int = 1,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise InputError(f"a CIFAR ResNet has depth 6n + 2, and {depth} is not; choose one of {DEPTHS}.")
        self.normalize = normalizer(channels, mean, std)
        # With a stride of two or more, patches overlap by half.
        size, padding = (3, 1) if stride == 1 else (2 * stride, stride // 2)
        first = nn.Conv2d(channels, width, size, stride=stride, padding=padding, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        widths = np.repeat([width, 2 * width, 4 * width], (depth - 2) // 6).tolist()
        self.blocks = nn.Sequential(*(ResidualBlock(a, b) for a, b in zip([width, *widths], widths, strict=False)))
        self.head = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def features(self, e: Tensor) -> Tensor:
        return self.blocks(self.stem(self.normalize(e))).mean((2, 3))


class ResidualBlock(nn.Module):
    """``relu(x + f(x))``; if channels grow, the shortcut takes every second pixel and adds zeros, option A of the reference."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride, self.extra = 1 if before == after else 2, after - before
        self.conv1 = nn.Conv2d(before, after, 3, self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        f = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        if self.stride > 1:
            low = self.extra // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, low, self.extra - low))
        return torch.relu(x + f)


class BiLSTM(Network):
    r"""The paper's network for texts.

    .. math::
        h_t = [\overrightarrow{h}_t ; \overleftarrow{h}_t], \qquad
        \alpha = \operatorname{softmax}_t(w^\top \tanh h_t), \qquad
        z = \tanh \sum_t \alpha_t h_t, \qquad u = W z + b

    where :math:`h_t`, (2H,), are the states of the two LSTMs at word :math:`t` and :math:`w` is learned. Padding, which has the zero
    vector, does not count; terms added to ``embed(x)`` must be zero there (see `padding`).

    Args:
        num_words, num_classes: the numbers of token ids, of which 0 is padding, and of logits.
        size, hidden: length of a word vector, unless ``vectors`` are given, and H, states of each direction.
        dropout: share of the word vectors' and of z's entries dropped in training.
        vectors, train_vectors: (num_words, size) the word vectors to start from, with zeros in row 0, and whether they learn.

    Shapes: x (B, T) token ids; ``embed(x)`` (B, T, size); ``features(e)`` (B, 2H); logits (B, C).

    >>> model = BiLSTM(100, 2, size=8, hidden=4)
    >>> x = torch.tensor([[5, 6, 7], [8, 0, 0]])
    >>> model(x).shape, model.padding(x)[1].tolist()
    (torch.Size([2, 2]), [False, True, True])

    Reference: Zhou et al., Attention-Based Bidirectional LSTM Networks for Relation Classification, 2016.
    """

    def __init__(
        self,
        num_words: int,
        num_classes: int,
        *,
        size: int = 100,
        hidden: int = 256,
        dropout: float = 0.5,
        vectors: Any = None,
        train_vectors: bool = True,
    ) -> None:
        super().__init__()
        if vectors is not None:
            vectors = torch.as_tensor(vectors, dtype=torch.float32)
            if vectors.ndim != 2 or len(vectors) != num_words:
                expected = f"({num_words}, size), one a token id"
                remedy = "Make them with compensate.data.embedding_matrix(vocabulary, vectors)"
                raise InputError(f"the word vectors have shape {tuple(vectors.shape)}; expected {expected}. {remedy}.")
            size = vectors.shape[1]
        self.embedding = nn.Embedding(num_words, size, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight.copy_(0.1 * self.embedding.weight if vectors is None else vectors)
            self.embedding.weight[0].zero_()
        self.embedding.weight.requires_grad_(train_vectors)
        # Two one-way LSTMs and an explicit reversal equal a packed two-way LSTM, on the fast kernels.
        self.forth, self.back = (nn.LSTM(size, hidden, batch_first=True) for _ in range(2))
        self.attention, self.dropout = nn.Linear(2 * hidden, 1, bias=False), nn.Dropout(dropout)
        self.head = nn.Linear(2 * hidden, num_classes)

    def padding(self, x: Tensor) -> Tensor:
        """(B, T) true for padding."""
        return x == 0

    def embed(self, x: Tensor) -> Tensor:
        return self.embedding(x)

    def features(self, e: Tensor) -> Tensor:
        word, t = (e != 0).any(-1), torch.arange(e.shape[1], device=e.device)
        # The last word instead of the number of words: a word with a zero vector must not shift the others.
        length = torch.where(word, t + 1, 0).amax(1, keepdim=True)
        # Positions that reverse each text but not its padding; the reversal is its own inverse.
        mirror = torch.where(t < length, length - 1 - t, t)[..., None]
        e = self.dropout(e)
        forth, back = self.forth(e)[0], self.back(e.gather(1, mirror.expand_as(e)))[0]
        h = torch.cat([forth, back.gather(1, mirror.expand_as(back))], dim=-1)
        score = self.attention(torch.tanh(h)).squeeze(-1)
        alpha = score.masked_fill(~word, torch.finfo(score.dtype).min).softmax(-1)
        return self.dropout(torch.tanh((alpha[..., None] * h).sum(1)))


class GCN(nn.Module):
    r"""Two graph convolutions over one graph with weighted edges, which compensation may change.

    .. math:: u = \hat A\, \mathrm{ReLU}(\hat A X W_1) W_2, \qquad \hat A = D^{-1/2} (A + I) D^{-1/2}

    where :math:`A` has the weight of each undirected edge, kept in [0, 1], and :math:`D` are its row sums with 1 added.

    Args:
        x: (N, F) features of the nodes.
        edges: (2, E) the two nodes of each undirected edge, each edge once.
        num_classes, hidden: the numbers of logits and of hidden units.
        weight: (E,) weights of the edges; 1 if not given. An edge of weight 0 is a candidate that compensation may add.

    >>> net = GCN(torch.eye(3), torch.tensor([[0, 1], [1, 2]]), 2)
    >>> net(torch.tensor([0, 2])).shape, net(torch.tensor([0]), torch.tensor([-1.0, 0.0])).shape
    (torch.Size([2, 2]), torch.Size([1, 2]))

    Reference: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017.
    """

    x: Tensor
    edges: Tensor
    structure: Tensor
    dissimilarity: Tensor

    def __init__(
        self, x: Tensor, edges: Tensor, num_classes: int, *, hidden: int = 32, weight: Tensor | None = None
    ) -> None:
        super().__init__()
        if x.ndim != 2 or edges.ndim != 2 or len(edges) != 2:
            given = f"x is {tuple(x.shape)} and edges are {tuple(edges.shape)}"
            raise InputError(f"{given}; expected features (N, F) and pairs of nodes (2, E).")
        low, high = (int(edges.min()), int(edges.max())) if edges.numel() else (0, -1)
        if low < 0 or high >= len(x):
            raise InputError(f"edges name nodes from {low} to {high}; there are {len(x)}, from 0.")
        weight = x.new_ones(edges.shape[1]) if weight is None else weight
        valid = weight.shape == edges.shape[1:] and not bool(((weight < 0) | (weight > 1)).any())
        check(valid, f"a number in [0, 1] for each of {edges.shape[1]} edges", weight=tuple(weight.shape))
        unit = F.normalize(x, dim=-1)
        unlike = 1 - (unit[edges[0]] * unit[edges[1]]).sum(-1)
        for name, value in {"x": x, "edges": edges, "structure": weight, "dissimilarity": unlike}.items():
            self.register_buffer(name, value, persistent=False)
        self.first, self.last = nn.Linear(x.shape[1], hidden, bias=False), nn.Linear(hidden, num_classes)

    def forward(self, nodes: Tensor, change: Tensor | None = None) -> Tensor:
        """(B, C) logits of the nodes (B,), optionally with a change (E,) of the edges."""
        a = self.structure if change is None else (self.structure + change).clamp(0, 1)
        one, other = self.edges
        degree = torch.ones_like(self.x[:, 0]).index_add(0, one, a).index_add(0, other, a)
        along = (a * degree.rsqrt()[one] * degree.rsqrt()[other])[:, None]

        def spread(h: Tensor) -> Tensor:
            own = h / degree[:, None]
            return own.index_add(0, one, along * h[other]).index_add(0, other, along * h[one])

        u: Tensor = self.last(spread(spread(self.first(self.x)).relu()))
        return u[nodes]


@final
class GatedHead(nn.Module):
    r"""The head of a model for :func:`~compensate.methods.logit.gated_category`: logits followed by the gate.

    .. math:: h(z) = [\text{head}(z),\; w^\top \mathrm{BN}(V z + c)]

    The last weights of the gate start ten times smaller than usual, and gates half open.

    Args:
        head: the layers for the logits, (B, D, d1, ...) -> (B, C, d1, ...). If they return another size, the gate is interpolated.
        in_features, hidden: the numbers of features D and of hidden units.

    >>> head = GatedHead(nn.Conv2d(8, 3, 1), in_features=8)
    >>> head(torch.rand(2, 8, 5, 5)).shape
    torch.Size([2, 4, 5, 5])

    Reference: Kaiser et al., Compensation Learning in Semantic Segmentation, CVPR workshops 2023.
    """

    def __init__(self, head: nn.Module, in_features: int, hidden: int = 64) -> None:
        super().__init__()
        self.head = head
        last = nn.Conv1d(hidden, 1, 1, bias=False)
        last.weight.data /= 10
        self.gate = nn.Sequential(nn.Conv1d(in_features, hidden, 1), nn.BatchNorm1d(hidden), last)

    def forward(self, z: Tensor) -> Tensor:
        """(B, C + 1, d1, ...) logits and gate."""
        u: Tensor = self.head(z)
        gate = self.gate(z.reshape(*z.shape[:2], -1)).reshape(len(z), 1, *z.shape[2:])
        if gate.shape[2:] != u.shape[2:]:
            gate = F.interpolate(gate, u.shape[2:], mode="bilinear", align_corners=False)
        return torch.cat([u, gate], 1)


class Staged(Network):
    r"""A model split into stages, :math:`f = \text{head} \circ \text{features} \circ \text{embed}`.

    Args:
        model: any module whose last layer is linear. It is not changed; its parameters are shared.
        head: this layer, or its name, such as ``"fc"`` or ``"classifier.6"``.
        embed: for texts, the embedding layer or its name: ``embed(x)`` are then the word vectors.
        example: a batch on which the stages are compared with the model.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> staged = Staged(model, head="2", example=torch.rand(5, 4))
    >>> staged.features(torch.rand(5, 4)).shape, staged.head
    (torch.Size([5, 8]), Linear(in_features=8, out_features=3, bias=True))
    """

    def __init__(
        self, model: nn.Module, head: Layer = "fc", *, embed: Layer | None = None, example: Tensor | None = None
    ) -> None:
        super().__init__()
        name, layer = _find(model, head, "head")
        if not isinstance(layer, nn.Linear):
            linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
            found = f"Its linear layers: {', '.join(linear[-5:])}." if linear else "It has no linear layer."
            problem = f'the head "{name}" is a {type(layer).__name__}'
            raise InputError(f"{problem}; expected the nn.Linear that gives the logits. {found}")
        self.body, self.head, self.embedding = _without(model, name), layer, cast(nn.Module, nn.Identity())
        if embed is not None:
            name, self.embedding = _find(model, embed, "embedding")
            self.body = _without(self.body, name)
        if example is None:
            return
        modes = {module: module.training for module in (*model.modules(), *self.modules())}
        try:
            model.eval(), self.eval()  # without dropout
            with torch.no_grad():
                ours, theirs = self(example), model(example)
        finally:
            for module, mode in modes.items():
                module.training = mode
        if ours.shape != theirs.shape or not torch.allclose(ours, theirs, atol=1e-5, rtol=1e-4):
            reason = "the forward pass does something after the head (a softmax?) or uses x outside the embedding"
            remedy = "Use compensate.models.Stages with your own functions"
            raise InputError(f"the stages and the model differ on the example: {reason}. {remedy}.")

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
            problem = f"without its head the model returns {got}; expected features (B, {self.head.in_features})"
            remedy = "use compensate.models.Stages with your own functions"
            raise InputError(f"{problem}. Something follows the head in its forward pass: {remedy}.")
        return z


class Stages(Network):
    """A model from functions or modules for its stages.

    Args:
        features: takes ``embed(x)`` and returns (B, F); a plain function must be at the top level of a module for pickling.
        head: the linear layer that gives the logits.
        embed: takes the batch; the identity by default.
        padding: takes the batch and returns (B, T), true for padding; for texts.

    >>> Stages(torch.tanh, nn.Linear(4, 2))(torch.rand(3, 4)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self, features: Stage, head: nn.Module, *, embed: Stage | None = None, padding: Stage | None = None
    ) -> None:
        super().__init__()
        for name, stage in {"features": features, "head": head, "embed": embed, "padding": padding}.items():
            if stage is not None and not callable(stage):
                raise InputError(f"{name} is a {type(stage).__name__}; expected a module or a function of one tensor.")
        self.head, self.stage_features, self.stage_padding = head, features, padding
        self.stage_embed = nn.Identity() if embed is None else embed

    def padding(self, x: Tensor) -> Tensor:
        none = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        return none if self.stage_padding is None else self.stage_padding(x)

    def embed(self, x: Tensor) -> Tensor:
        return self.stage_embed(x)

    def features(self, e: Tensor) -> Tensor:
        return self.stage_features(e)


def _find(model: nn.Module, layer: Layer, role: str) -> tuple[str, nn.Module]:
    named = dict(model.named_modules(remove_duplicate=False))
    if isinstance(layer, str) and (layer == "" or layer not in named):
        raise InputError(f'the model has no layer "{layer}" for its {role}; {nearest(layer, list(named)[1:])}')
    wanted = named[layer] if isinstance(layer, str) else layer
    names = [name for name, module in named.items() if module is wanted]
    if len(names) != 1 or names[0] == "":
        places = ", ".join(names) or "nowhere"
        raise InputError(f"the {role} given is found {len(names)} times in the model ({places}); expected once.")
    return names[0], named[names[0]]


def _without(model: nn.Module, name: str) -> nn.Module:
    """The model with one layer replaced by the identity; only the modules that contain it are copied, without their parameters."""
    first, _, rest = name.partition(".")
    twin = copy.copy(model)
    twin.__dict__["_modules"] = dict(model._modules)
    child = model._modules[first]
    assert child is not None
    twin._modules[first] = _without(child, rest) if rest else nn.Identity()
    return twin


def _build(name: str, network: Callable[..., nn.Module], kind: str, data: Dataset, **options: Any) -> nn.Module:
    images, shape = kind == _IMAGES, cast("tuple[int, ...]", getattr(data.x, "shape", ()))
    if len(shape) < (4 if images else 2) or data.x.dtype.kind == "O":
        got = "texts or token ids" if len(shape) < 2 else f"an array of shape {shape}"
        raise InputError(f"the model {name} takes {kind}, and this data set has {got}. Choose another model, or auto.")
    options = {"num_classes": 1 if data.regression else data.num_classes, **options}
    if not images:
        return network(int(np.prod(shape[1:])), **options)
    mean, std = channel_statistics(data.x)
    return network(**({"channels": shape[1], "mean": mean, "std": std} | options))


def _bilstm(data: Dataset, **options: Any) -> nn.Module:
    if not isinstance(data.x, Ragged):
        remedy = "make them with compensate.data.encode_texts"
        raise InputError(f"the model bilstm takes token ids, and this data set has none; {remedy}.")
    if options.get("vectors") is not None:
        options.setdefault("num_words", len(options["vectors"]))
    if "num_words" not in options:
        raise InputError("the model bilstm needs num_words=len(vocabulary), the number of token ids, or vectors.")
    return BiLSTM(num_classes=1 if data.regression else data.num_classes, **options)


_IMAGES, _FEATURES = "images (N, C, H, W)", "features (N, F)"
MODELS: dict[str, Callable[..., nn.Module]] = {
    **{f"resnet{depth}": partial(_build, f"resnet{depth}", partial(ResNet, depth), _IMAGES) for depth in DEPTHS},
    "bilstm": _bilstm,
    "cnn": partial(_build, "cnn", CNN, _IMAGES),
    "mlp": partial(_build, "mlp", MLP, _FEATURES),
    "probe": partial(_build, "probe", probe, _FEATURES),
}
"""Functions that build a model from a data set and the model's options."""


def build(name: str, data: Dataset, **options: Any) -> nn.Module:
    """The named model, with the inputs, outputs and channel statistics of the (training) data set; ``auto`` chooses one.

    >>> from compensate.data import digits
    >>> type(build("auto", digits())).__name__
    'CNN'
    """
    return MODELS[resolve(name, data)](data, **options)


def resolve(name: str, data: Dataset) -> str:
    """The name as in :data:`MODELS`; ``auto`` becomes a model for the kind of data: tokens, large or small images, features.

    >>> from compensate.data import digits
    >>> resolve("ResNet-20", digits()), resolve("auto", digits())
    ('resnet20', 'cnn')
    """
    key = name.lower().replace("-", "").replace("_", "")
    if key == "auto":
        if isinstance(data.x, Ragged):
            return "bilstm"
        return "mlp" if np.ndim(data.x) != 4 else "cnn" if data.x.shape[1] == 1 else "resnet20"
    if key not in MODELS:
        raise InputError(f'unknown model "{name}"; {nearest(key, MODELS)}')
    return key
