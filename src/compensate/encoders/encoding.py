"""`encode`: embeddings of texts or images; each distinct item is encoded once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compensate.data.dataset import Dataset
from compensate.encoders.cache import Cache, cache_folder
from compensate.encoders.catalog import find_encoder
from compensate.encoders.image import image_bytes
from compensate.errors import InputError

Progress = Callable[[int, int], None]
"""Called with the number of encoded items and the number of all items."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """Embeddings and where they come from.

    Attributes:
        values: (N, D) a row for each item.
        name, license, source: of the encoder, for the report.
        reused: how many items were in the cache.

    >>> Encoded(np.zeros((2, 3), np.float32), "tiny", "MIT", "a folder").values.shape
    (2, 3)
    """

    values: NDArray[np.float32]
    name: str
    license: str
    source: str
    reused: int = 0


def encode(
    items: Sequence[Any] | NDArray[Any],
    encoder: str | Path = "auto",
    kind: str = "text",
    *,
    cache: str | Path | bool | None = None,
    progress: Progress | None = None,
    device: str | torch.device | None = None,
    batch_size: int | None = None,
) -> Encoded | None:
    """Embeddings of texts or images from a pretrained model.

    Args:
        items: texts; or images: (N, C, H, W) or (N, H, W), uint8 or float in [0, 1], or paths of image files.
        encoder: ``"auto"``, the installed one for this kind; ``"none"``; all-MiniLM-L6-v2 or efficientnet-lite0; a model of the
            Hugging Face hub, optionally with ``@revision``; or the folder of a saved model.
        kind: ``"text"`` or ``"image"``.
        cache: the folder of cached embeddings; by default see `cache_folder`; ``False`` for none.
        progress: called with the number of encoded items and the number of all items.
        device: by default a GPU if there is one.
        batch_size: by default chosen for the device.

    Returns:
        The embeddings; None if the encoder is ``"none"``, or ``"auto"`` and none is installed (see `hint`).

    >>> encode(["a text"], "none") is None
    True
    """
    found = find_encoder(encoder, kind)
    if found is None:
        return None
    if not len(items):
        raise InputError("there are no items to encode; expected at least one text or image.")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; expected 1 or more.")
    items = [str(item) for item in items] if kind == "text" else items
    contents = (item.encode("utf-8", "surrogatepass") if kind == "text" else image_bytes(item) for item in items)
    keys = [hashlib.blake2b(content, digest_size=16).digest() for content in contents]
    first = {key: row for row, key in reversed(list(enumerate(keys)))}  # equal items are encoded once
    folder = cache_folder(None if isinstance(cache, bool) else cache)
    with Cache(folder, found.identity, on=cache is not False) as store:
        known = store.get(list(first))
        reused = sum(key in known for key in keys)
        todo = sorted(row for key, row in first.items() if key not in known)
        done, repeats = reused, Counter(keys)
        if progress is not None:
            progress(done, len(items))
        # The weights are loaded only if there are new items.
        batches = found.load(_device(device))([items[row] for row in todo], batch_size) if todo else ()
        for positions, values in batches:
            if not np.isfinite(values).all():
                raise InputError(f"{found.name} gives numbers that are not finite; choose another encoder or device.")
            fresh = [keys[todo[position]] for position in positions]
            known.update(zip(fresh, values, strict=True))
            store.put(fresh, values)
            done += sum(repeats[key] for key in fresh)
            if progress is not None:
                progress(done, len(items))
    return Encoded(np.stack([known[key] for key in keys]), found.name, found.license, found.source, reused)


def encode_data(data: Dataset, encoder: str | Path = "auto", **options: Any) -> Encoded | None:
    """Embeddings of a data set of texts or images; None for other samples, or as in `encode`.

    Args:
        data: the samples. Images from a folder are read again, at the size of the encoder.
        encoder, options: as for `encode`.

    >>> texts = Dataset(np.array(["a film", "a play"], dtype=object), np.array([0, 1]), ("x", "y"))
    >>> encode_data(texts, "none") is None
    True
    """
    kind = sample_kind(data)
    if kind is None:
        return None
    return encode(image_files(data) or data.x, encoder, kind, **options)


def sample_kind(data: Dataset) -> str | None:
    """``"text"`` or ``"image"``, or None for features.

    >>> sample_kind(Dataset(np.zeros((2, 3)), np.array([0, 1]), ("x", "y")))
    """
    dtype = getattr(data.x, "dtype", None)
    if dtype is not None and dtype.kind in "OU" and np.ndim(data.x) == 1:
        return "text"
    return "image" if np.ndim(data.x) == 4 else None


def image_files(data: Dataset) -> list[Path] | None:
    """The files of images from a folder, if they still exist: they may be larger than the samples."""
    if np.ndim(data.x) != 4 or not data.source.folder or data.ids is None:
        return None
    files = [Path(data.source.folder) / str(name) for name in data.ids]
    return files if all(file.is_file() for file in files) else None


def _device(given: str | torch.device | None) -> torch.device:
    if given is not None:
        try:
            return torch.device(given)
        except RuntimeError as error:
            raise InputError(f'device is "{given}"; expected cpu, cuda or mps.') from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
