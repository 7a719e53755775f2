"""Small networks: a CNN for small images, an MLP for features, a linear probe."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from compensate.errors import InputError
from compensate.models.normalize import normalizer


class CNN(nn.Module):
    """Convolutions of 3 x 3, each halving the image after it, then an average: good for digits and MNIST.

    It has neither BatchNorm nor dropout by default, so that a batch's samples do not touch each other.

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

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, e: Tensor) -> Tensor:
        return self.hidden(self.body(self.normalize(e)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


class MLP(nn.Module):
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

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, e: Tensor) -> Tensor:
        return self.body(e)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


def probe(num_features: int, num_classes: int) -> MLP:
    """A linear classifier, as is usual on embeddings of a large model: an `MLP` without hidden layers.

    >>> probe(5, 3).head
    Linear(in_features=5, out_features=3, bias=True)
    """
    return MLP(num_features, num_classes, hidden=())
