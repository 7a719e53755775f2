"""Embeddings of images with a network, and EfficientNet-Lite0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from compensate.encoders.text import EncodedBatch
from compensate.errors import InputError

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


@final
class Convolution(nn.Module):
    """Convolution, batch norm and optionally ReLU6, with the padding of TensorFlow: the last row and column get the odd pixel."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, *, relu: bool = True
    ) -> None:
        super().__init__()
        padding = kernel // 2 if stride == 1 else 0  # padding that is equal on both sides needs no copy
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs, eps=1e-3)
        self.kernel, self.stride, self.relu = kernel, stride, relu

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            # The last window begins at the largest multiple of the stride below the size.
            bottom, right = (max((n - 1) // self.stride * self.stride + self.kernel - n, 0) for n in x.shape[2:])
            x = F.pad(x, (right // 2, right - right // 2, bottom // 2, bottom - bottom // 2))
        x = self.norm(self.conv(x))
        return F.relu6(x, inplace=True) if self.relu else x


@final
class InvertedResidual(nn.Module):
    """Inverted residual: expand the channels, convolve each separately, project."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = Convolution(inputs, wide) if expansion > 1 else nn.Identity()
        self.depthwise = Convolution(wide, wide, kernel, stride, groups=wide)
        self.project = Convolution(wide, outputs, relu=False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return y.add_(x) if self.residual else y


@final
class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 from images (B, 3, H, W), normalized as (255 x - 127) / 128, to pooled features (B, 1280).

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
        return self.head(self.blocks(self.stem(x))).mean((2, 3))

    @classmethod
    def from_weights(cls, weights: Mapping[str, Tensor]) -> EfficientNetLite0:
        """The network for inference with the published weights, all of which must match."""
        renamed = {}
        for name, value in weights.items():
            first, *rest = name.split(".")
            if first == "_blocks" and len(rest) == 3:
                first, rest = "blocks", [rest[0], _IN_BLOCK.get(rest[1], rest[1]), rest[2]]
            renamed[".".join([_PLACES.get(first, first), *rest])] = value
        network = cls()
        network.load_state_dict(renamed, strict=True)
        network.eval().requires_grad_(False)
        for module in network.modules():
            if isinstance(module, Convolution):
                assert isinstance(module.norm, nn.BatchNorm2d)
                module.conv, module.norm = fuse_conv_bn_eval(module.conv, module.norm), nn.Identity()
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


# Names of the published weights, and of the layers here
_PLACES = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "head.conv", "_bn1": "head.norm",
           "_fc": "classifier"}  # fmt: skip
_IN_BLOCK = {"_expand_conv": "expand.conv", "_bn0": "expand.norm", "_depthwise_conv": "depthwise.conv",
             "_bn1": "depthwise.norm", "_project_conv": "project.conv", "_bn2": "project.norm"}  # fmt: skip


SMALL, SMALL_SIDE, SIDE = 64, 160, 224
"""Images of up to 64 pixels are resized to 160, larger ones to 224, unless the network has a fixed size. With EfficientNet-Lite0 and
a linear model of CIFAR-10 (1,000 labels) the accuracy is .779 at 96 pixels, .823 at 128 and .853 at 160."""

BATCH_PIXELS = {"cpu": 1 << 19, "cuda": 1 << 23}
"""Pixels of a batch. On a CPU, 20 images of 160 pixels a side fill the cache."""


class ImageNetwork(nn.Module):
    """A model (B, 3, side, side) -> (B, D) that resizes and normalizes its images, (B, 1 or 3, H, W) in [0, 1].

    `mean` and `std` are of each channel; without a fixed `side` the model takes any size.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float], side: int | None = None) -> None:
        super().__init__()
        self.model, self.fixed = model, side
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1, 1), persistent=False)

    def side(self, shape: Sequence[int]) -> int:
        """The size to which images of this shape are resized."""
        return self.fixed or (SMALL_SIDE if max(shape[-2:]) <= SMALL else SIDE)

    def forward(self, x: Tensor) -> Tensor:
        x = resized(x, self.side(x.shape))
        x = (x.expand(-1, 3, -1, -1) - self.mean) / self.std
        return self.model(x.contiguous(memory_format=torch.channels_last))


def resized(x: Tensor, side: int) -> Tensor:
    """Images (B, C, H, W) resized to squares."""
    same = x.shape[2:] == (side, side)
    return x if same else F.interpolate(x, size=(side, side), mode="bilinear", antialias=True)


class ImageEncoder:
    """Embeddings of images by a network on a device."""

    def __init__(self, network: ImageNetwork, device: torch.device) -> None:
        self.network, self.device = network.to(device), device

    def __call__(self, images: Sequence[Any], batch_size: int | None = None) -> Iterator[EncodedBatch]:
        """Batches of embeddings; a batch has images of one size."""
        pixels = BATCH_PIXELS.get(self.device.type, BATCH_PIXELS["cpu"])
        waiting: dict[tuple[int, ...], list[tuple[int, NDArray[Any]]]] = {}
        for row in range(len(images)):
            image = image_array(images[row], self.network.fixed)
            group = waiting.setdefault((*image.shape, image.dtype.num), [])
            group.append((row, image))
            if len(group) >= (batch_size or max(1, pixels // self.network.side(image.shape) ** 2)):
                yield self._batch(group)
                group.clear()
        yield from (self._batch(group) for group in waiting.values() if group)

    @torch.inference_mode()
    def _batch(self, group: list[tuple[int, NDArray[Any]]]) -> EncodedBatch:
        x = unit(torch.from_numpy(np.stack([image for _, image in group])).to(self.device))
        return np.array([row for row, _ in group]), self.network(x).float().cpu().numpy()


def unit(x: Tensor) -> Tensor:
    """Pixels as floats in [0, 1]."""
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def image_array(image: Any, side: int | None = None) -> NDArray[Any]:
    """(1 or 3, H, W) of an array (C, H, W) or (H, W) of bytes or floats in [0, 1], or of a file; large files are reduced on reading."""
    if isinstance(image, (str, Path)):
        from PIL import Image, ImageOps

        size = (side or SIDE, side or SIDE)
        try:
            with Image.open(image) as opened:
                opened.draft("RGB", size)  # a large JPEG is decoded at a fraction of its size
                picture = ImageOps.exif_transpose(opened).convert("RGB")
                if max(picture.size) > size[0]:
                    picture = picture.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError(f"the image {image} cannot be read ({error}). Remove it, or write it again.") from error
        return np.ascontiguousarray(np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1))
    array = np.asarray(image)
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[0] not in (1, 3, 4) or 0 in array.shape:
        expected = "(channels, height, width) or (height, width)"
        raise InputError(f"an image has the shape {array.shape}; expected {expected}.")
    array = array[:3]
    return array if array.dtype == np.uint8 else array.astype(np.float32)


def image_bytes(image: Any) -> bytes:
    """The content of an image, as the key of its embedding."""
    if isinstance(image, (str, Path)):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise InputError(f"the image {image} cannot be read: {error.strerror}. Check the path.") from error
    array = np.asarray(image)
    return f"{array.dtype.str}{array.shape}".encode() + array.tobytes()
