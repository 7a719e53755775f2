"""Images small enough to hold thousands of them in one page."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.images import as_images

EXACT = 64
"""Up to this size every pixel is kept (PNG); larger images are photographs and may lose some (JPEG)."""


def thumbnail(image: NDArray[Any], largest: int = 160) -> bytes:
    """The bytes of an image for a `Content`, its longer side at most ``largest`` pixels.

    Args:
        image: (C, H, W) with 1, 3 or 4 channels, bytes or floats in [0, 1], as the data sets hold it.
        largest: pixels of the longer side; small images are not enlarged, the page does that with hard pixels.

    >>> thumbnail(np.zeros((1, 8, 8), np.uint8))[1:4], thumbnail(np.zeros((3, 300, 200)))[:3]
    (b'PNG', b'\\xff\\xd8\\xff')
    """
    from PIL import Image

    pixels = as_images(np.asarray(image)[None], "the image")[0]
    if pixels.dtype != np.uint8:
        pixels = np.round(pixels * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    exact = max(picture.size) <= EXACT
    if max(picture.size) > largest:
        picture.thumbnail((largest, largest))
    file = io.BytesIO()
    if exact:
        picture.save(file, "PNG", optimize=True)
    else:
        picture.convert("L" if picture.mode == "L" else "RGB").save(file, "JPEG", quality=85)
    return file.getvalue()
