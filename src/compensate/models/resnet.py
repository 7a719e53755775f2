"""The residual networks for small images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compensate.errors import InputError
from compensate.models.normalize import normalizer

DEPTHS = (8, 14, 20, 32, 44, 56, 110)


class ResNet(nn.Module):
    """The network of He et al. for CIFAR: three stages of 16, 32 and 64 channels, depth 6n + 2.

    Where a stage begins the shortcut takes every second pixel and adds zero channels (the reference's option A), so
    that it has no parameters.

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
        # A stride of two or more reads patches that overlap by half.
        first = _conv(channels, width) if stride == 1 else _patches(channels, width, stride)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        widths = [width] * blocks + [2 * width] * blocks + [4 * width] * blocks
        self.blocks = nn.Sequential(*(ResidualBlock(a, b) for a, b in zip([width, *widths], widths, strict=False)))
        self.head = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, e: Tensor) -> Tensor:
        return self.blocks(self.stem(self.normalize(e))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut: ``relu(x + f(x))``; halves the image where the number of channels grows."""

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


def _patches(before: int, after: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 2 * stride, stride=stride, padding=stride // 2, bias=False)
