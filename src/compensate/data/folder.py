"""A folder of images: one folder a class, or images and a label file."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import PARTS, Dataset, Source, Splits
from compensate.data.label_files import read_labels
from compensate.data.labels import encode_labels
from compensate.errors import InputError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
MAX_SIDE = 64
"""Larger images, and images that differ in size, are resized to squares with this side, unless a size is given."""

GRAY = ("1", "L", "I;16")
"""Modes of images without color."""

LABEL_FILES = ("labels.csv", "metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Label tables of an image folder; the last three follow Hugging Face."""


def is_image(path: Path) -> bool:
    """Whether a path is an image file, by its suffix."""
    return path.is_file() and path.suffix.lower() in IMAGES and not path.name.startswith(".")


def name_in(file: Path, folder: Path) -> str:
    """The name of a file in a folder, as in label tables; raises if it is not valid UTF-8."""
    name = file.relative_to(folder).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        raise InputError(
            f"the name of {shown} in {folder} is not valid UTF-8, which lists of files and labels are written in. Rename it."
        ) from None
    return name


def label_file(folder: Path) -> Path | None:
    """The label table in a folder of images, if there is one."""
    return next((folder / name for name in LABEL_FILES if (folder / name).is_file()), None)


def read_folder(
    path: str | Path, *, labels: str | Path | None = None, label: str | None = None, size: int | None = None
) -> Splits:
    """Images from a folder.

    Args:
        path: ``path/cat/1.png`` is an image of class cat. Folders ``train``, ``test`` and ``validation`` in it are parts. With a
            label table the images may be anywhere below ``path``.
        labels: a table with the columns file (or file_name, relative to the folder of the table) and label; by default one of
            `LABEL_FILES` in ``path`` or in each part.
        label: the label column of that table.
        size: resize every image to a square of this side; by default only images that differ in size or are large.

    ``index`` is the position in the list of files sorted by name, ``ids`` holds the files. Unreadable images are left out with a
    warning.

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
    labels = label_file(path) if labels is None else labels
    parts = {PARTS[p.name.lower()]: p for p in sorted(path.iterdir()) if p.is_dir() and p.name.lower() in PARTS}
    if labels is not None or "train" not in parts:
        return Splits(_part(path, labels, label, size, None))
    train = _part(parts["train"], label_file(parts["train"]), label, size, None)
    left_out = {p.name: sum(map(is_image, p.rglob("*"))) for name, p in parts.items() if name != "train"}
    train = replace(train, source=replace(train.source, left_out=left_out))
    shape = train.x.shape[-1] if train.x.shape[-1] == train.x.shape[-2] else size
    others = {
        name: _part(folder, label_file(folder), label, shape, train.classes, train.x.shape[1])
        for name, folder in parts.items()
        if name != "train"
    }
    return Splits(train, **others)


def _part(
    folder: Path,
    labels: str | Path | None,
    label: str | None,
    size: int | None,
    classes: tuple[str, ...] | None,
    channels: int | None = None,
) -> Dataset:
    files = sorted(p for p in folder.rglob("*") if is_image(p))
    names = np.array([name_in(p, folder) for p in files], dtype=object)
    if not files:
        raise InputError(f"{folder} holds no images ({' '.join(IMAGES)}).")
    column = None
    if labels is not None:
        cells, column = _labels(names, labels, label)
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
    source = Source(kind="images", folder=str(folder), label=column)
    return Dataset(
        images, target[rows], found, rows, ids=names[rows], raw=names[rows], rows=len(files), source=source
    )  # fmt: skip


def _labels(names: NDArray[Any], path: str | Path, label: str | None) -> tuple[list[Any], str | None]:
    """The label of each image, and its column in the table."""
    found = read_labels(path, label)
    if found.by in ("", "index"):
        if len(found.cells) == len(names) and found.keys is None:
            return list(found.cells), found.column
        raise InputError(f"{path} must have the columns file and label, or one label for each of {len(names)} images.")
    assert found.keys is not None
    given = {relative(file): cell for file, cell in zip(found.keys, found.cells, strict=True)}
    if len(given) < len(found.keys):
        raise InputError(f"{path} names a file more than once; keep one row for each.")
    lost = sorted(set(given) - set(names))
    if lost:
        raise InputError(f"{path} names {lost[0]} (and {len(lost) - 1} more), which is not among the images.")
    return [given.get(name, "") for name in names], found.column


def relative(file: Any) -> str:
    """The name of a file in a label table, with forward slashes.

    >>> relative("./cats\\\\1.png")
    'cats/1.png'
    """
    return str(file).replace("\\", "/").removeprefix("./")


def _read(files: list[Path], size: int | None, channels: int | None) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    from PIL import Image

    errors = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
    sizes: set[tuple[int, int]] = set()
    gray = True
    readable = np.zeros(len(files), dtype=bool)
    for i, file in enumerate(files):
        with suppress(*errors), Image.open(file) as image:
            sizes.add(image.size)
            gray = gray and image.mode in GRAY
            readable[i] = True
    if size is None and (len(sizes) > 1 or (sizes and max(next(iter(sizes))) > MAX_SIDE)):
        size = MAX_SIDE
    mode = "L" if (gray if channels is None else channels == 1) else "RGB"
    images: list[NDArray[np.uint8]] = []
    for i in np.flatnonzero(readable).tolist():
        try:
            with Image.open(files[i]) as image:
                images.append(pixels(image, mode, size))
        except errors:
            readable[i] = False
    if not images:
        raise InputError(f"none of the {len(files)} images in {files[0].parent} can be read.")
    bad = [files[i].name for i in np.flatnonzero(~readable)]
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        warnings.warn(f"{len(bad)} images cannot be read and are left out: {', '.join(bad[:5])}{more}.", stacklevel=4)
    return np.stack(images), readable


def pixels(image: Any, mode: str, size: int | None) -> NDArray[np.uint8]:
    """(C, H, W) of a picture; with ``size``, its shorter side is resized to it, and the center is cropped."""
    image = image.convert(mode)
    if size is not None:
        w, h = image.size
        scale = size / min(w, h)
        image = image.resize((max(size, round(w * scale)), max(size, round(h * scale))))
        left, top = (image.width - size) // 2, (image.height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
