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
# Larger images, and images that differ in size, are resized to squares with this side, unless a size is given
MAX_SIDE = 64
GRAY = ("1", "L", "I;16")  # modes of images without color
# Label tables of an image folder; the last three follow Hugging Face
LABEL_FILES = ("labels.csv", "metadata.csv", "metadata.jsonl", "metadata.parquet")


def is_image(path: Path) -> bool:
    """Whether a path is an image file, by its suffix."""
    return path.suffix.lower() in IMAGES and not path.name.startswith(".") and path.is_file()


def name_in(file: Path, folder: Path) -> str:
    """The name of a file in a folder, as in label tables; raises if it is not valid UTF-8."""
    name = file.relative_to(folder).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        raise InputError(f"the name of {shown} in {folder} is not valid UTF-8. Rename the file.") from None
    return name


def label_file(folder: Path) -> Path | None:
    """The label table in a folder of images, if there is one."""
    return next((folder / name for name in LABEL_FILES if (folder / name).is_file()), None)


def read_folder(
    path: str | Path, *, labels: str | Path | None = None, label: str | None = None, size: int | None = None
) -> Splits:
    """Images from a folder.

    Args:
        path: ``path/cat/1.png`` is an image of class cat. Folders ``train``, ``test`` and ``validation`` in it are parts.
        labels: a table with the columns file (or file_name) and label; by default one of `LABEL_FILES` in ``path`` or in each part.
        label: the label column of that table.
        size: resize every image to a square of this side; by default only images that differ in size or are large.

    ``index`` is the position in the sorted list of files, ``ids`` holds the files. Unreadable images are left out with a warning.

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
        return Splits(_part(path, labels, label, size))
    first = parts.pop("train")
    train = _part(first, label_file(first), label, size)
    left_out = {p.name: sum(map(is_image, p.rglob("*"))) for p in parts.values()}
    train = replace(train, source=replace(train.source, left_out=left_out))
    return Splits(train, **{name: _part(p, label_file(p), label, size, train) for name, p in parts.items()})


def _part(
    folder: Path, labels: str | Path | None, label: str | None, size: int | None, like: Dataset | None = None
) -> Dataset:
    """The images of a folder; with the size, colors and classes of a part that was read before, if there is one."""
    files = sorted(p for p in folder.rglob("*") if is_image(p))
    if not files:
        raise InputError(f"{folder} holds no images ({' '.join(IMAGES)}).")
    names = np.array([name_in(p, folder) for p in files], dtype=object)
    column = None
    if labels is not None:
        table = read_labels(labels, label)
        cells, column = list(table.cells), table.column
        if table.keys is not None and table.by != "index":
            given = {relative(key): cell for key, cell in zip(table.keys, cells, strict=True)}
            if len(given) < len(cells):
                raise InputError(f"{labels} names a file more than once; keep one row for each.")
            lost = sorted(set(given) - set(names))
            if lost:
                raise InputError(f"{labels} names {lost[0]} (and {len(lost) - 1} more), which is not among the images.")
            cells = [given.get(name, "") for name in names]
        elif table.keys is not None or len(cells) != len(names):
            expected = f"the columns file and label, or one label for each of {len(names)} images"
            raise InputError(f"{labels} must have {expected}.")
    else:
        loose = [n for n in names if "/" not in n]
        if loose:
            remedy = "Put each class in a folder of its own, or add a labels.csv with the columns file and label"
            raise InputError(f"{folder} holds images outside of class folders, such as {loose[0]}. {remedy}.")
        cells = [n.partition("/")[0] for n in names]
        empty = sorted({p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")} - set(cells))
        if empty:
            raise InputError(f"{folder}: the class folders {', '.join(empty)} hold no images. Remove or fill them.")
    target, classes = encode_labels(cells, None if like is None else like.classes)
    if len(classes) < 2:
        raise InputError(f"{folder} has the one class {', '.join(classes) or '(none)'}; expected two or more.")
    channels = None
    if like is not None:
        channels, height, width = like.x.shape[1:]
        size = width if width == height else size
    images = _read(files, size, channels)
    rows = np.array(list(images))
    source = Source(kind="images", folder=str(folder), label=column)
    x, shown = np.stack(list(images.values())), names[rows]
    return Dataset(x, target[rows], classes, rows, ids=shown, raw=shown, rows=len(files), source=source)


def relative(file: Any) -> str:
    """The name of a file in a label table, with forward slashes."""
    return str(file).replace("\\", "/").removeprefix("./")


def _read(files: list[Path], size: int | None, channels: int | None) -> dict[int, NDArray[np.uint8]]:
    """The pixels of the images that can be read, by their position in the list."""
    from PIL import Image

    errors = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
    sizes, gray = set(), True
    for file in files:
        with suppress(*errors), Image.open(file) as image:
            sizes.add(image.size)
            gray = gray and image.mode in GRAY
    if size is None and (len(sizes) > 1 or (sizes and max(next(iter(sizes))) > MAX_SIDE)):
        size = MAX_SIDE
    mode = "L" if (gray if channels is None else channels == 1) else "RGB"
    images: dict[int, NDArray[np.uint8]] = {}
    for i, file in enumerate(files):
        with suppress(*errors), Image.open(file) as image:
            images[i] = pixels(image, mode, size)
    if not images:
        raise InputError(f"none of the {len(files)} images in {files[0].parent} can be read.")
    bad = [file.name for i, file in enumerate(files) if i not in images]
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        warnings.warn(f"{len(bad)} images cannot be read and are left out: {', '.join(bad[:5])}{more}.", stacklevel=4)
    return images


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
