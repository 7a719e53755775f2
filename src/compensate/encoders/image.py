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


def relu6(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=True)


@final
class Convolution(nn.Module):
    """Convolution and batch norm with the padding of TensorFlow: the last row and column get the odd pixel."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs, eps=1e-3)
        self.kernel, self.stride = kernel, stride
        if stride == 1:
            self.conv.padding = (kernel // 2, kernel // 2)  # equal on both sides: no copy is needed

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            bottom, right = (
                max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0) for size in x.shape[2:]
            )
            x = F.pad(x, (right // 2, right - right // 2, bottom // 2, bottom - bottom // 2))
        return self.norm(self.conv(x))

    def fuse(self) -> None:
        """Fold the batch norm into the convolution."""
        assert isinstance(self.norm, nn.BatchNorm2d)
        self.conv, self.norm = fuse_conv_bn_eval(self.conv, self.norm), nn.Identity()


@final
class InvertedResidual(nn.Module):
    """Inverted residual: expand the channels, convolve each separately, project."""

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
    """EfficientNet-Lite0 up to its pooled features, without squeeze-and-excitation, with ReLU6.

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
        """The network for inference with the published weights, all of which must match."""
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


SMALL, SMALL_SIDE, SIDE = 64, 160, 224
"""Images of up to 64 pixels are resized to 160, larger ones to 224, unless the network has a fixed size. With EfficientNet-Lite0 and
a linear model of CIFAR-10 (1,000 labels) the accuracy is .779 at 96 pixels, .823 at 128 and .853 at 160."""

BATCH_PIXELS = {"cpu": 1 << 19, "cuda": 1 << 23}
"""Pixels of a batch. On a CPU, 20 images of 160 pixels a side fill the cache."""


class ImageNetwork(nn.Module):
    """A network that resizes and normalizes its images.

    Shapes: images (B, 1 or 3, H, W) in [0, 1]; embeddings (B, D).

    Args:
        model: from images (B, 3, side, side), normalized, to embeddings (B, D).
        mean, std: of each channel for pixels in [0, 1].
        side: the fixed image size of the model; None for any size.
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
        return self.model(
            ((x.expand(-1, 3, -1, -1) - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        )


def resized(x: Tensor, side: int) -> Tensor:
    """Images (B, C, H, W) resized to squares."""
    if x.shape[2:] == (side, side):
        return x
    return F.interpolate(x, size=(side, side), mode="bilinear", antialias=True)


class ImageEncoder:
    """Embeddings of images.

    Args:
        model, mean, std, side: of its `ImageNetwork`.
        device: of the network.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        mean: Sequence[float],
        std: Sequence[float],
        side: int | None = None,
    ) -> None:
        self.device = device
        self.network = ImageNetwork(model, mean, std, side).to(device)

    def __call__(self, images: Sequence[Any], batch_size: int | None = None) -> Iterator[EncodedBatch]:
        """Batches of embeddings; a batch has images of one size."""
        waiting: dict[tuple[int, ...], list[tuple[int, NDArray[Any]]]] = {}
        for row in range(len(images)):
            image = image_array(images[row], self.network.fixed)
            group = waiting.setdefault((*image.shape, image.dtype.num), [])
            group.append((row, image))
            pixels = BATCH_PIXELS.get(self.device.type, BATCH_PIXELS["cpu"])
            if len(group) >= (batch_size or max(1, pixels // self.network.side(image.shape) ** 2)):
                yield self._batch(group)
                group.clear()
        for group in waiting.values():
            if group:
                yield self._batch(group)

    @torch.inference_mode()
    def _batch(self, group: list[tuple[int, NDArray[Any]]]) -> EncodedBatch:
        x = unit(torch.from_numpy(np.stack([image for _, image in group])).to(self.device))
        return np.array([row for row, _ in group]), self.network(x).float().cpu().numpy()


def unit(x: Tensor) -> Tensor:
    """Pixels as floats in [0, 1]."""
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def image_array(image: Any, side: int | None = None) -> NDArray[Any]:
    """(1 or 3, H, W) of an array (C, H, W) or (H, W) of bytes or floats in [0, 1], or of a file; large files are reduced on reading.

    >>> image_array(np.zeros((8, 9), np.uint8)).shape
    (1, 8, 9)
    """
    if isinstance(image, (str, Path)):
        return _read(Path(image), side or SIDE)
    array = np.asarray(image)
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[0] not in (1, 3, 4) or 0 in array.shape:
        raise InputError(
            f"an image has the shape {array.shape}; expected (channels, height, width) or (height, width)."
        )
    array = array[:3] if len(array) == 4 else array
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


def _read(path: Path, side: int) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            image.draft("RGB", (side, side))  # a large JPEG is decoded at a fraction of its size
            picture = ImageOps.exif_transpose(image).convert("RGB")
            if max(picture.size) > side:
                picture = picture.resize((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"the image {path} cannot be read ({error}). Remove it, or write it again.") from error
    return np.ascontiguousarray(np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1))
