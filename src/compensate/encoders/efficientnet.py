"""EfficientNet-Lite0: ImageNet features of images, 1,280 numbers each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

STEM, HEAD, CLASSES = 32, 1280, 1000

STAGES = (
    # expansion, kernel, stride, channels, blocks
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def relu6(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=True)


@final
class Convolution(nn.Module):
    """Convolution and batch norm with TensorFlow's padding, in which the last row and column get the odd pixel."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs, eps=1e-3)
        self.kernel, self.stride = kernel, stride
        if stride == 1:
            self.conv.padding = (kernel // 2, kernel // 2)  # even on both sides: no copy is needed

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            bottom, right = (
                max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0) for size in x.shape[2:]
            )
            x = F.pad(x, (right // 2, right - right // 2, bottom // 2, bottom - bottom // 2))
        return self.norm(self.conv(x))

    def fuse(self) -> None:
        """Fold the batch norm into the convolution: the same function of the input with half the passes over memory."""
        assert isinstance(self.norm, nn.BatchNorm2d)
        self.conv, self.norm = fuse_conv_bn_eval(self.conv, self.norm), nn.Identity()


@final
class InvertedResidual(nn.Module):
    """Inverted residual: expand the channels, convolve each by itself, project."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = Convolution(inputs, wide) if expansion > 1 else None
        self.depthwise = Convolution(wide, wide, kernel, stride, groups=wide)
        self.project = Convolution(wide, outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else relu6(self.expand(x))
        y = self.project(relu6(self.depthwise(y)))
        return y.add_(x) if self.residual else y


@final
class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 up to its pooled features: no squeeze-and-excitation, ReLU6 throughout.

    Shapes: images (B, 3, H, W), normalized as (255 x - 127) / 128; features (B, 1280).

    >>> EfficientNetLite0()(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 1280])

    Reference: Tan and Le, EfficientNet, 2019; the Lite variant: tensorflow/tpu, efficientnet/lite, 2020.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = Convolution(3, STEM, 3, 2)
        blocks, inputs = [], STEM
        for expansion, kernel, stride, outputs, repeats in STAGES:
            for i in range(repeats):
                blocks.append(InvertedResidual(inputs, outputs, expansion, kernel, stride if i == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = Convolution(inputs, HEAD)
        self.classifier = nn.Linear(HEAD, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return relu6(self.head(self.blocks(relu6(self.stem(x))))).mean((2, 3))

    @classmethod
    def from_weights(cls, weights: Mapping[str, Tensor]) -> EfficientNetLite0:
        """The network for inference with the published weights, every one of which must have its place."""
        network = cls()
        network.load_state_dict({_rename(name): value for name, value in weights.items()}, strict=True)
        network.eval().requires_grad_(False)
        for module in network.modules():
            if isinstance(module, Convolution):
                module.fuse()
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


_PLACES = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_conv_head": "head.conv",
    "_bn1": "head.norm",
    "_fc": "classifier",
}
_IN_BLOCK = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}


def _rename(name: str) -> str:
    """The name of a published weight in this network.

    >>> _rename("_blocks.3._bn1.weight"), _rename("_fc.bias")
    ('blocks.3.depthwise.norm.weight', 'classifier.bias')
    """
    parts = name.split(".")
    if parts[0] == "_blocks" and len(parts) == 4:
        return ".".join(["blocks", parts[1], _IN_BLOCK.get(parts[2], parts[2]), parts[3]])
    return ".".join([_PLACES.get(parts[0], parts[0]), *parts[1:]])
