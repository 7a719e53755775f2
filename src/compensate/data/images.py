"""Images as arrays: their statistics, and augmentation of a whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compensate.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CropFlip:
    """Shifts each image by up to ``padding`` pixels, black beyond the border, and mirrors every second one.

    Args:
        padding: the largest shift in pixels, each way.
        flip: whether to mirror left and right; do not where sides matter, as in digits.

    Called with images (B, C, H, W) and draws (B, 3), uniform in [0, 1): shift down, shift right, mirror. One gather
    serves the whole batch.

    >>> import torch
    >>> image = torch.arange(4).view(1, 1, 2, 2)
    >>> CropFlip(1)(image, np.array([[0.5, 0.5, 0.9]])).flatten().tolist()      # neither moved nor mirrored
    [0, 1, 2, 3]
    >>> CropFlip(1)(image, np.array([[0.0, 0.5, 0.1]])).flatten().tolist()      # moved down and mirrored
    [0, 0, 1, 0]
    """

    padding: int = 4
    flip: bool = True

    def __call__(self, images: Tensor, drawn: NDArray[np.float64]) -> Tensor:
        import torch  # late, as in `compensate.data.batches`
        from torch.nn import functional as F

        if images.ndim != 4:
            raise InputError(f"CropFlip takes images (B, C, H, W), and was given shape {tuple(images.shape)}.")
        b, _, h, w = images.shape
        steps = 2 * self.padding + 1
        down, right = (torch.from_numpy((drawn[:, i] * steps).astype(np.int64)) for i in (0, 1))
        padded = F.pad(images, (self.padding,) * 4)
        columns = right[:, None] + torch.arange(w)
        if self.flip:
            mirrored = torch.from_numpy(drawn[:, 2] < 0.5)
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        rows = down[:, None] + torch.arange(h)
        moved = padded[torch.arange(b)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return moved.permute(0, 3, 1, 2).contiguous()


def channel_statistics(images: Any) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, of pixels in [0, 1]; a constant channel has deviation 1.

    >>> channel_statistics(np.array([[[[0, 255]]]], dtype=np.uint8))
    ([0.5], [0.5])
    """
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    mean, std = [], []
    for c in range(images.shape[1]):
        # A histogram or a float64 copy of everything would cost more memory than the images themselves.
        channel = images[:, c]
        total = channel.sum(dtype=np.float64) / channel.size / scale
        square = sum(float((part.astype(np.float64) ** 2).sum()) for part in np.array_split(channel, 16))
        mean.append(round(float(total), 6))
        spread = max(square / channel.size / scale**2 - total**2, 0.0) ** 0.5
        std.append(round(float(spread), 6) or 1.0)
    return mean, std


def as_images(x: NDArray[Any], where: str) -> NDArray[Any]:
    """Images as (N, C, H, W), bytes or floats in [0, 1]; channels may come last, and gray images without a channel.

    >>> as_images(np.zeros((5, 32, 32, 3), np.uint8), "x").shape
    (5, 3, 32, 32)
    """
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4):
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if x.ndim != 4:
        raise InputError(f"{where} has shape {x.shape}; images are (N, C, H, W), (N, H, W, C) or (N, H, W).")
    if x.dtype == np.uint8:
        return x
    x = x.astype(np.float32)
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"{where} holds images with values from {low:g} to {high:g}; expected bytes (uint8) or floats in [0, 1]. "
            "Divide by 255, or undo the normalization: the model's first layer does it."
        )
    return x
