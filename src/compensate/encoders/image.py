"""Images to embeddings: one way to read, resize and normalize them for every network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from compensate.encoders.text import Batch
from compensate.errors import InputError

SMALL, SMALL_SIDE, SIDE = 64, 160, 224
"""A network with no size of its own gets images of up to 64 pixels at 160 pixels, larger ones at 224. A linear model of
EfficientNet-Lite0's features of CIFAR-10 (1,000 labels) is right about .779 at 96 pixels, .823 at 128, .853 at 160."""

PIXELS = {"cpu": 1 << 19, "cuda": 1 << 23}
"""Of a batch: 20 images of 160 pixels a side on a CPU, whose cache would not hold more."""


class ImageEncoder:
    """A network of images.

    Args:
        forward: from images (B, 3, side, side), normalized, to embeddings (B, D).
        device: where the network is.
        mean, std: of each channel for pixels in [0, 1]: the network sees (x - mean) / std.
        side: the size that the network was made for; none if any will do.
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        device: torch.device,
        mean: Sequence[float],
        std: Sequence[float],
        side: int | None = None,
    ) -> None:
        self.forward, self.device, self.fixed = forward, device, side
        self.mean = torch.tensor(mean, dtype=torch.float32, device=device).reshape(1, -1, 1, 1)
        self.std = torch.tensor(std, dtype=torch.float32, device=device).reshape(1, -1, 1, 1)

    def __call__(self, images: Sequence[Any], batch_size: int | None = None) -> Iterator[Batch]:
        """Embeddings, some images at a time; images of one size go together."""
        waiting: dict[tuple[int, ...], list[tuple[int, NDArray[Any]]]] = {}
        for row in range(len(images)):
            image = pixels(images[row], self.fixed)
            group = waiting.setdefault((*image.shape, image.dtype.num), [])
            group.append((row, image))
            if len(group) >= (batch_size or self._fitting(image.shape)):
                yield self._batch(group)
                group.clear()
        for group in waiting.values():
            if group:
                yield self._batch(group)

    def _fitting(self, shape: tuple[int, ...]) -> int:
        return max(1, PIXELS.get(self.device.type, PIXELS["cpu"]) // self._side(shape) ** 2)

    def _side(self, shape: tuple[int, ...]) -> int:
        return self.fixed or (SMALL_SIDE if max(shape[1:]) <= SMALL else SIDE)

    @torch.inference_mode()
    def _batch(self, group: list[tuple[int, NDArray[Any]]]) -> Batch:
        x = torch.from_numpy(np.stack([image for _, image in group])).to(self.device)
        x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        side = self._side(group[0][1].shape)
        if x.shape[2:] != (side, side):
            x = F.interpolate(x, size=(side, side), mode="bilinear", antialias=True)
        x = ((x.expand(-1, 3, -1, -1) - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        return np.array([row for row, _ in group]), self.forward(x).float().cpu().numpy()


def pixels(image: Any, side: int | None = None) -> NDArray[Any]:
    """(1 or 3, H, W) of an array (C, H, W) or (H, W), or of a file; large photographs are reduced on reading.

    Bytes stay bytes; floats must be in [0, 1], as everywhere in this library.

    >>> pixels(np.zeros((8, 9), np.uint8)).shape
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
    """The content of an image, by which its embedding is found again."""
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
            image.draft("RGB", (side, side))  # a JPEG of many megapixels is decoded at a fraction of its size
            picture = ImageOps.exif_transpose(image).convert("RGB")
            if max(picture.size) > side:
                picture = picture.resize((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"the image {path} cannot be read ({error}). Remove it, or write it again.") from error
    return np.ascontiguousarray(np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1))
