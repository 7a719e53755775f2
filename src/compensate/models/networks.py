"""Networks in three stages, `forward(x) = head(features(embed(x)))`, and heads and layers for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compensate.errors import InputError


class Normalize(nn.Module):
    r"""Shifts and scales each channel.

    .. math:: x \mapsto (x - \mu_c) / \sigma_c

    where :math:`\mu_c` and :math:`\sigma_c` are the mean and standard deviation of channel :math:`c`, the first
    dimension after the batch.

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
        self.register_buffer("mean", torch.tensor([float(m) for m in mean]))
        self.register_buffer("std", torch.tensor([float(s) for s in std]))

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1,) + (1,) * (x.ndim - 2)
        return (x - self.mean.view(shape)) / self.std.view(shape)

    def extra_repr(self) -> str:
        return f"channels={len(self.mean)}"


class _Network(nn.Module):
    head: nn.Linear

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, e: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


def normalizer(channels: int, mean: Sequence[float] | None, std: Sequence[float] | None) -> nn.Module:
    """`Normalize` with the given statistics, or with 0.5 and 0.25, for pixels in [0, 1]."""
    mean = [0.5] * channels if mean is None else mean
    std = [0.25] * channels if std is None else std
    if len(mean) != channels:
        raise InputError(f"mean has {len(mean)} values; the model was asked to take {channels} channels.")
    return Normalize(mean, std)


class CNN(_Network):
    """Convolutions of 3 x 3, each followed by halving the image, then an average: for digits and MNIST.

    It has no BatchNorm or dropout by default: the samples of a batch are independent.

    Args:
        num_classes: number of logits.
        channels: of the images.
        widths: channels after each convolution; the image is halved between them.
        hidden: units of the layer before the head.
        dropout: share of the hidden units dropped in training.
        batch_norm: whether each convolution is followed by BatchNorm.
        mean, std: of each channel, for the first layer (`Normalize`).

    Shapes: x (B, channels, H, W) in [0, 1]; ``features`` (B, hidden); logits (B, C).

    >>> import torch
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
            layers += [nn.Conv2d(before, after, 3, padding=1)]
            layers += [nn.BatchNorm2d(after)] if batch_norm else []
            # ceil_mode: an image of one pixel stays one pixel.
            layers += [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.hidden = nn.Sequential(nn.Linear(4 * widths[-1], hidden), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(hidden, num_classes)

    def features(self, e: Tensor) -> Tensor:
        return self.hidden(self.body(self.normalize(e)))


class MLP(_Network):
    """Fully connected layers on features; anything after the batch dimension is flattened.

    Args:
        num_features: entries of a sample.
        num_classes: number of logits.
        hidden: units of each hidden layer.
        dropout: share of the hidden units dropped in training.

    Shapes: x (B, ...) with num_features entries each; ``features`` (B, hidden[-1]); logits (B, C).

    >>> import torch
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


class ResNet(_Network):
    """The network of He et al. for CIFAR: three stages of 16, 32 and 64 channels, depth 6n + 2.

    At the start of a stage the shortcut takes every second pixel and adds zero channels (the reference's option A), without
    parameters.

    Args:
        depth: 8, 14, 20, 32, 44, 56, 110 or any other 6n + 2.
        num_classes: number of logits.
        channels: of the images, 3 for color.
        width: channels of the first stage; 16 in the reference.
        stride: of the first convolution; 1 in the reference. With 2 the stages work at half the size, four times as fast.
        mean, std: of each channel, for the first layer (`Normalize`).

    Shapes: x (B, channels, H, W) in [0, 1]; ``embed(x)`` the same; ``features(e)`` (B, 4 * width); logits (B, C).

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
        blocks = (depth - 2) // 6
        self.normalize = normalizer(channels, mean, std)
        # With a stride of two or more, patches overlap by half.
        size, padding = (3, 1) if stride == 1 else (2 * stride, stride // 2)
        first = nn.Conv2d(channels, width, size, stride=stride, padding=padding, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        widths = [width] * blocks + [2 * width] * blocks + [4 * width] * blocks
        self.blocks = nn.Sequential(*(ResidualBlock(a, b) for a, b in zip([width, *widths], widths, strict=False)))
        self.head = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def features(self, e: Tensor) -> Tensor:
        return self.blocks(self.stem(self.normalize(e))).mean((2, 3))


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut: ``relu(x + f(x))``; halves the image if the number of channels grows."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride = 1 if before == after else 2
        self.extra = after - before
        self.conv1 = _conv(before, after, self.stride)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = _conv(after, after)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        f = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        if self.stride > 1:
            low = self.extra // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, low, self.extra - low))
        return torch.relu(x + f)


def _conv(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


class BiLSTM(_Network):
    r"""The paper's network for texts.

    .. math::
        h_t = [\overrightarrow{h}_t ; \overleftarrow{h}_t], \qquad
        \alpha = \operatorname{softmax}_t(w^\top \tanh h_t), \qquad
        z = \tanh \sum_t \alpha_t h_t, \qquad u = W z + b

    where :math:`h_t`, (2H,), are the states of the two LSTMs at word :math:`t`, :math:`w` is learned, and the sums
    run over the words of the text, never over padding.

    Args:
        num_words: number of token ids; id 0 is padding.
        num_classes: number of logits.
        size: length of a word vector; taken from ``vectors`` if they are given.
        hidden: H, states of each direction.
        dropout: share of the word vectors' and of z's entries dropped in training.
        vectors: (num_words, size) the word vectors to start from; row 0 becomes zero.
        train_vectors: whether the word vectors learn.

    Shapes: x (B, T) token ids; ``embed(x)`` (B, T, size); ``features(e)`` (B, 2H); logits (B, C).

    Padding has the zero vector, by which ``features`` recognizes it; terms added to ``embed(x)`` must be zero there
    (see `padding`).

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
                raise InputError(
                    f"the word vectors have shape {tuple(vectors.shape)}; expected ({num_words}, size), one a token id. "
                    "Make them with compensate.data.embedding_matrix(vocabulary, vectors)."
                )
            size = vectors.shape[1]
        self.embedding = nn.Embedding(num_words, size, padding_idx=0)
        with torch.no_grad():
            if vectors is None:
                self.embedding.weight.mul_(0.1)
            else:
                self.embedding.weight.copy_(vectors)
            self.embedding.weight[0].zero_()
        self.embedding.weight.requires_grad_(train_vectors)
        # Two one-way LSTMs and an explicit reversal equal a packed two-way LSTM, on the fast kernels.
        self.forth = nn.LSTM(size, hidden, batch_first=True)
        self.back = nn.LSTM(size, hidden, batch_first=True)
        self.attention = nn.Linear(2 * hidden, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * hidden, num_classes)

    def padding(self, x: Tensor) -> Tensor:
        """(B, T) true for padding."""
        return x == 0

    def embed(self, x: Tensor) -> Tensor:
        return self.embedding(x)

    def features(self, e: Tensor) -> Tensor:
        word = (e != 0).any(-1)
        mirror = reversal(word)[..., None]
        e = self.dropout(e)
        forth = self.forth(e)[0]
        back = self.back(e.gather(1, mirror.expand_as(e)))[0]
        h = torch.cat([forth, back.gather(1, mirror.expand_as(back))], dim=-1)
        score = self.attention(torch.tanh(h)).squeeze(-1)
        alpha = score.masked_fill(~word, torch.finfo(score.dtype).min).softmax(-1)
        return self.dropout(torch.tanh((alpha[..., None] * h).sum(1)))


def reversal(word: Tensor) -> Tensor:
    """(B, T) positions that reverse each text but not its padding; its own inverse.

    >>> reversal(torch.tensor([[True, True, True, False]])).tolist()
    [[2, 1, 0, 3]]
    """
    t = torch.arange(word.shape[1], device=word.device)
    # The last word instead of the number of words: a word with a zero vector must not shift the others.
    length = torch.where(word, t + 1, 0).amax(1, keepdim=True)
    return torch.where(t < length, length - 1 - t, t)


class GCN(nn.Module):
    r"""Two graph convolutions over one graph with weighted edges, which compensation may change.

    .. math:: u = \hat A\, \mathrm{ReLU}(\hat A X W_1) W_2, \qquad \hat A = D^{-1/2} (A + I) D^{-1/2}

    where :math:`A` has the weight of each undirected edge, kept in [0, 1], and :math:`D` are its row sums with 1 added.

    Args:
        x: (N, F) features of the nodes.
        edges: (2, E) the two nodes of each undirected edge, each edge once.
        num_classes: number of logits.
        hidden: units of the hidden layer.
        dropout: share of the hidden units dropped in training.
        weight: (E,) weights of the edges; 1 if not given. An edge of weight 0 is a candidate that compensation may add.

    `forward` takes node numbers (B,) and optionally a change of the edges (E,), and returns logits (B, C).

    >>> edges = torch.tensor([[0, 1], [1, 2]])
    >>> net = GCN(torch.eye(3), edges, 2)
    >>> net(torch.tensor([0, 2])).shape, net(torch.tensor([0]), torch.tensor([-1.0, 0.0])).shape
    (torch.Size([2, 2]), torch.Size([1, 2]))

    Reference: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017.
    """

    x: Tensor
    edges: Tensor
    structure: Tensor
    dissimilarity: Tensor

    def __init__(
        self,
        x: Tensor,
        edges: Tensor,
        num_classes: int,
        *,
        hidden: int = 32,
        dropout: float = 0.0,
        weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        if x.ndim != 2 or edges.ndim != 2 or len(edges) != 2:
            raise InputError(
                f"x is {tuple(x.shape)} and edges are {tuple(edges.shape)}; expected features (N, F) and pairs of nodes (2, E)."
            )
        if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= len(x)):
            raise InputError(
                f"edges name nodes from {int(edges.min())} to {int(edges.max())}; there are {len(x)}, from 0."
            )
        weight = x.new_ones(edges.shape[1]) if weight is None else weight
        if weight.shape != edges.shape[1:] or bool(((weight < 0) | (weight > 1)).any()):
            raise InputError(
                f"weight is {tuple(weight.shape)}; expected a number in [0, 1] for each of {edges.shape[1]} edges."
            )
        self.register_buffer("x", x, persistent=False)
        self.register_buffer("edges", edges, persistent=False)
        self.register_buffer("structure", weight, persistent=False)
        unit = F.normalize(x, dim=-1)
        self.register_buffer("dissimilarity", 1 - (unit[edges[0]] * unit[edges[1]]).sum(-1), persistent=False)
        self.first, self.last = nn.Linear(x.shape[1], hidden, bias=False), nn.Linear(hidden, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, nodes: Tensor, change: Tensor | None = None) -> Tensor:
        """(B, C) logits of some nodes."""
        a = self.structure if change is None else (self.structure + change).clamp(0, 1)
        one, other = self.edges
        degree = torch.ones_like(self.x[:, 0]).index_add(0, one, a).index_add(0, other, a)
        share = degree.rsqrt()
        along = (a * share[one] * share[other])[:, None]

        def spread(h: Tensor) -> Tensor:
            own = h / degree[:, None]
            return own.index_add(0, one, along * h[other]).index_add(0, other, along * h[one])

        h = self.dropout(spread(self.first(self.x)).relu())
        u: Tensor = self.last(spread(h))
        return u[nodes]


@final
class GatedHead(nn.Module):
    r"""The head of a model for :func:`~compensate.methods.logit.gated_category`: logits followed by the gate.

    .. math:: h(z) = [\text{head}(z),\; w^\top \mathrm{BN}(V z + c)]

    The gate reads the features of the classifier at each place, by two linear layers with batch normalization in between. Its last
    weights start ten times smaller than usual, and gates half open.

    Args:
        head: the layers for the logits, (B, D, d1, ...) -> (B, C, d1, ...). If they return another size, the gate is interpolated.
        in_features: the number of features D.
        hidden: the number of hidden units.

    >>> head = GatedHead(nn.Conv2d(8, 3, 1), in_features=8)
    >>> head(torch.rand(2, 8, 5, 5)).shape
    torch.Size([2, 4, 5, 5])

    Reference: Kaiser et al., Compensation Learning in Semantic Segmentation, CVPR workshops 2023.
    """

    def __init__(self, head: nn.Module, in_features: int, hidden: int = 64) -> None:
        super().__init__()
        self.head = head
        last = nn.Conv1d(hidden, 1, 1, bias=False)
        with torch.no_grad():
            last.weight /= 10
        self.gate = nn.Sequential(nn.Conv1d(in_features, hidden, 1), nn.BatchNorm1d(hidden), last)

    def forward(self, z: Tensor) -> Tensor:
        """(B, C + 1, d1, ...) logits and gate."""
        u = cast(Tensor, self.head(z))
        gate = self.gate(z.reshape(*z.shape[:2], -1)).reshape(len(z), 1, *z.shape[2:])
        if gate.shape[2:] != u.shape[2:]:
            gate = F.interpolate(gate, u.shape[2:], mode="bilinear", align_corners=False)
        return torch.cat([u, gate], 1)
