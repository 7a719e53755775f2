"""A folder of images: one folder a class, or images and a label file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import Data, Splits
from compensate.data.labels import encode_labels, read_labels
from compensate.errors import InputError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
LARGEST = 64
"""Images that are larger, or that differ in size, are brought to squares of so many pixels, unless a size is given."""


def is_image(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in IMAGES and not path.name.startswith(".")


def read_folder(path: str | Path, *, labels: str | Path | None = None, size: int | None = None) -> Splits:
    """Images from a folder.

    Args:
        path: ``path/cat/1.png`` is an image of class cat. With folders ``train`` and ``test`` (and ``validation``) in
            it, each is a part. With a label file the images may lie anywhere below ``path``.
        labels: a table with the columns file (relative to ``path``) and label; by default ``labels.csv`` in ``path``,
            if there is one.
        size: bring every image to a square of this size; by default only where they differ or are large.

    ``index`` is the place in the list of files sorted by name, ``ids`` the file. An image that cannot be read is left
    out with a warning that names it.

    >>> import tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (folder / name).mkdir()
    ...     Image.new("RGB", (8, 8)).save(folder / name / "1.png")
    >>> read_folder(folder).train.classes
    ('cat', 'dog')
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"there is no folder {path}; check the path.")
    if labels is None and (path / "labels.csv").is_file():
        labels = path / "labels.csv"
    from compensate.data.tables import PARTS

    parts = {PARTS[p.name.lower()]: p for p in sorted(path.iterdir()) if p.is_dir() and p.name.lower() in PARTS}
    if labels is not None or "train" not in parts:
        return Splits(_part(path, labels, size, None))
    train = _part(parts["train"], None, size, None)
    shape = train.x.shape[-1] if train.x.shape[-1] == train.x.shape[-2] else size
    others = {
        name: _part(folder, None, shape, train.classes, train.x.shape[1])
        for name, folder in parts.items()
        if name != "train"
    }
    return Splits(train, **others)


def _part(
    folder: Path,
    labels: str | Path | None,
    size: int | None,
    classes: tuple[str, ...] | None,
    channels: int | None = None,
) -> Data:
    files = sorted(p for p in folder.rglob("*") if is_image(p))
    names = np.array([p.relative_to(folder).as_posix() for p in files], dtype=object)
    if not files:
        raise InputError(f"{folder} holds no images ({' '.join(IMAGES)}).")
    if labels is not None:
        cells = _labels(names, labels)
        empty: list[str] = []
    else:
        loose = [n for n in names if "/" not in n]
        if loose:
            raise InputError(
                f"{folder} holds images outside of class folders, such as {loose[0]}. Put each class in a folder of its "
                "own, or add a labels.csv with the columns file and label."
            )
        cells = [n.partition("/")[0] for n in names]
        empty = sorted({p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")} - set(cells))
    if empty:
        raise InputError(f"{folder}: the class folders {', '.join(empty)} hold no images. Remove or fill them.")
    target, found = encode_labels(cells, classes)
    if len(found) < 2:
        raise InputError(f"{folder} has the one class {', '.join(found) or '(none)'}; expected two or more.")
    images, kept = _read(files, size, channels)
    rows = np.flatnonzero(kept)
    info = {"kind": "images", "folder": str(folder)}
    return Data(images, target[rows], found, rows, ids=names[rows], raw=names[rows], rows=len(files), info=info)


def _labels(names: NDArray[Any], labels: str | Path) -> list[Any]:
    cells, files, by = read_labels(labels)
    if files is None or by == "index":
        if len(cells) == len(names) and files is None:
            return list(cells)
        raise InputError(
            f"{labels} must have the columns file and label, or one label for each of {len(names)} images."
        )
    given = {str(file).replace("\\", "/").removeprefix("./"): cell for file, cell in zip(files, cells, strict=True)}
    if len(given) < len(files):
        raise InputError(f"{labels} names a file more than once; keep one row for each.")
    lost = sorted(set(given) - set(names))
    if lost:
        raise InputError(f"{labels} names {lost[0]} (and {len(lost) - 1} more), which is not among the images.")
    return [given.get(name, "") for name in names]


def _read(files: list[Path], size: int | None, channels: int | None) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    from PIL import Image

    sizes: set[tuple[int, int]] = set()
    gray = True
    readable = np.zeros(len(files), dtype=bool)
    for i, file in enumerate(files):
        try:
            with Image.open(file) as image:
                sizes.add(image.size)
                gray = gray and image.mode in ("1", "L", "I;16")
                readable[i] = True
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
    if size is None and (len(sizes) > 1 or (sizes and max(next(iter(sizes))) > LARGEST)):
        size = LARGEST
    mode = "L" if (gray if channels is None else channels == 1) else "RGB"
    images: list[NDArray[np.uint8]] = []
    for i in np.flatnonzero(readable).tolist():
        try:
            with Image.open(files[i]) as image:
                images.append(_pixels(image, mode, size))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            readable[i] = False
    if not images:
        raise InputError(f"none of the {len(files)} images in {files[0].parent} can be read.")
    bad = [files[i].name for i in np.flatnonzero(~readable)]
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        warnings.warn(f"{len(bad)} images cannot be read and are left out: {', '.join(bad[:5])}{more}.", stacklevel=4)
    return np.stack(images), readable


def _pixels(image: Any, mode: str, size: int | None) -> NDArray[np.uint8]:
    """(C, H, W); resized so that the shorter side fits, then cut from the middle."""
    image = image.convert(mode)
    if size is not None:
        w, h = image.size
        scale = size / min(w, h)
        image = image.resize((max(size, round(w * scale)), max(size, round(h * scale))))
        left, top = (image.width - size) // 2, (image.height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
