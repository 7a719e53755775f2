"""The content of rows: as people see it, and the digests by which decisions find the rows they were made about.

A row digest covers everything except the label, which may be corrected in between. Digests are the first 64 bits of a SHA-256 sum. They
distinguish files and rows, but do not protect against forgery.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data.arrays import as_images
from compensate.data.columns import messages, text_columns
from compensate.data.dataset import PARTS, Dataset, Ints
from compensate.data.folder import is_image, label_file
from compensate.data.load import is_saved
from compensate.data.parquet import parquet_files
from compensate.files import checksum

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

KINDS = ("image", "text", "table", "embedding", "regression", "pair")
"""Kinds of samples; `regression` stands for quantities, whatever the samples are, and `pair` for two texts that are compared."""

MAX_ITEMS = 5000  # suspects on the review page; the others are in suspects.csv
LOSSLESS = 64  # images up to this size are stored as PNG, larger ones as JPEG
MAX_COLUMNS, MAX_CELL = 100, 200  # columns of the data in a list of suspects, and characters of a cell
_MAGIC = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF87a", "gif"), (b"GIF89a", "gif"))


@dataclass(frozen=True)
class Content:
    """The content of a sample: any of an image, a text and named values."""

    image: bytes | None = None  # a small PNG, JPEG, GIF or WebP file
    text: str | None = None
    fields: tuple[tuple[str, str], ...] = ()  # name and value of each cell of a table row
    missing: str = ""  # why there is nothing to show, for example "the file cats/7.png cannot be read"
    chips: tuple[tuple[str, bool], ...] = ()  # the labels of a sample that has several, and whether each is given
    marked: int | tuple[int, int] | None = None  # the judged chip; or the first judged word and the one after the last
    tokens: tuple[tuple[str, str], ...] = ()  # the words of a sentence with their tags; they replace the text
    votes: tuple[tuple[str, str], ...] = ()  # annotators and the label that each gave
    sides: tuple[
        tuple[str, str], ...
    ] = ()  # names and texts that are shown side by side, with their differences marked


def thumbnail(image: NDArray[Any], largest: int = 160) -> bytes:
    """The bytes of an image file of at most ``largest`` pixels a side, from (C, H, W) bytes or floats in [0, 1].

    >>> thumbnail(np.zeros((1, 8, 8), np.uint8))[1:4], thumbnail(np.zeros((3, 300, 200)))[:3]
    (b'PNG', b'\\xff\\xd8\\xff')
    """
    from PIL import Image

    pixels = as_images(np.asarray(image)[None], "the image")[0]
    if pixels.dtype != np.uint8:
        pixels = np.round(pixels * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    lossless = max(picture.size) <= LOSSLESS
    if max(picture.size) > largest:
        picture.thumbnail((largest, largest))
    file = io.BytesIO()
    if lossless:
        picture.save(file, "PNG", optimize=True)
    else:
        picture.convert("L" if picture.mode == "L" else "RGB").save(file, "JPEG", quality=85)
    return file.getvalue()


def embedded_image(image: bytes) -> str | None:
    """The image for a ``data:image/`` address; None unless it is of a format that browsers show without running anything."""
    webp = image[:4] == b"RIFF" and image[8:12] == b"WEBP"
    kind = "webp" if webp else next((kind for magic, kind in _MAGIC if image.startswith(magic)), None)
    return None if kind is None else f"{kind};base64,{base64.b64encode(image).decode()}"


def sample_content(data: Dataset | None, row: int) -> Content:
    """The content of a row of the audited data."""
    if data is None:
        return Content(missing="The data are not available.")
    kind, raw = data.source.kind, data.raw
    images = data.x if np.ndim(data.x) == 4 else raw  # images with embeddings of the user's are in raw
    if kind == "images" and np.ndim(images) == 4:
        image = images[row]  # any number of channels, and floats beyond [0, 1]
        pixels = image[: len(image) if len(image) in (1, 3, 4) else 3 if len(image) > 4 else 1]
        return Content(image=thumbnail(pixels if pixels.dtype == np.uint8 else np.clip(pixels, 0, 1)))
    if raw is None:
        return Content(text=str(data.x[row])) if kind == "text" else Content(missing="An embedding has no picture.")
    if data.table is not None:
        cells = data.table.iloc[row]
        texts, label = text_columns(data.source.text, data.table.columns), data.source.label
        fields = tuple((str(name), str(value)) for name, value in cells.items() if name not in (*texts, label))
        names = [f"{name}: " if len(texts) > 1 else "" for name in texts]
        said = ("\n\n".join(messages(cells[text])) for text in texts)
        shown = "\n\n".join(f"{name}{text}" for name, text in zip(names, said, strict=True))
        return Content(text=shown, fields=fields) if texts else Content(fields=fields)
    return Content(text=str(raw[row]))


def label_content(audit: Audit, row: int) -> Content:
    """The content of the sample of an audited label, with the label marked if the sample has several."""
    content = sample_content(audit.data, int(audit.position(row)))
    parts = None if audit.data is None else audit.data.parts
    return content if parts is None else cast(Content, parts.show(content, audit, row))


def sample_cells(audit: Audit, rows: Ints, taken: Collection[str]) -> dict[str, list[str]]:
    """The texts or table cells of audited rows as columns of a list, long ones cut; columns with a name in ``taken`` get a suffix."""
    data = audit.data
    if data is None or data.source.kind not in ("text", "table") or data.raw is None:
        return {}
    rows, table = audit.position(rows), data.table
    if table is None:
        columns: list[tuple[str, Any]] = [(data.source.text or "text", [data.raw[row] for row in rows.tolist()])]
    else:
        names = list(table.columns)
        texts = text_columns(data.source.text, names)
        order = [j for j, name in enumerate(names) if name not in (*texts, data.source.label)]
        order = [*map(names.index, texts), *order]
        columns = [(str(names[j]), table.iloc[:, j].iloc[rows].tolist()) for j in order]

    def cell(value: Any) -> str:
        short = " ".join(str(value)[: 2 * MAX_CELL].split())
        return short if len(short) <= MAX_CELL else short[: MAX_CELL - 1] + "…"

    return {
        f"{name} (data)" if name in taken else name: [cell(value) for value in values]
        for name, values in columns[:MAX_COLUMNS]
    }


def short_digest(content: bytes) -> int:
    """The first 64 bits of the SHA-256 sum."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def digest_text(digest: int) -> str:
    """A digest as text, with a prefix that keeps a spreadsheet from reading it as a number."""
    return f"sha256:{digest:016x}"


def digest_file(path: str | Path) -> str:
    """The digest of a file's bytes."""
    return f"sha256:{checksum(path)[:16]}"


def digest_source(path: str | Path) -> str:
    """The digest of a file, of the files of a table or a saved data set, or of the images and the label file of a folder."""
    path = Path(path)
    files = _list_files(path)
    if files:
        return digest_text(short_digest(repr([(file.name, digest_file(file)) for file in files]).encode()))
    return _digest_folder(path)[0] if path.is_dir() else digest_file(path)


def _digest_folder(path: Path) -> tuple[str, list[str], NDArray[np.uint64]]:
    """The digest of a folder of images, their names, and the digest of each."""
    folder, names, labels = list_images(path)
    images = digest_images(folder, names)
    parts = list(zip(names, images.tolist(), strict=True)), "" if labels is None else digest_file(labels)
    return digest_text(short_digest(repr(parts).encode())), names, images


def digest_frame(frame: pd.DataFrame, label: str) -> NDArray[np.uint64]:
    """(N,) the digest of each row of a table, without its label.

    >>> frame = pd.DataFrame({"text": ["a", "b", "a"], "label": ["x", "x", "y"]})
    >>> first, second, third = digest_frame(frame, "label")
    >>> bool(first == third != second)
    True
    """
    columns = [map(str, frame.iloc[:, j].tolist()) for j, name in enumerate(frame.columns) if str(name) != label]
    rows: Iterable[tuple[str, ...]] = zip(*columns, strict=True) if columns else [()] * len(frame)
    texts = ("\x1f".join(row).encode("utf-8", "surrogatepass") for row in rows)
    return np.fromiter(map(short_digest, texts), np.uint64, len(frame))


def digest_images(folder: Path, names: Iterable[str]) -> NDArray[np.uint64]:
    """(N,) the digest of the bytes of each image."""
    return np.array([short_digest((folder / name).read_bytes()) for name in names], dtype=np.uint64)


def digests_of(data: Dataset, path: Path) -> tuple[str, NDArray[np.uint64]]:
    """The digest of the source of the data, and (rows,) the digests of its rows, zero where there is none."""
    rows = np.zeros(data.rows, dtype=np.uint64)
    if path.is_dir() and not _list_files(path):
        digest, names, images = _digest_folder(path)
        if data.ids is not None and len(names) == data.rows and [names[i] for i in data.index] == list(data.ids):
            rows[data.index] = images[data.index]
        return digest, rows
    if data.table is not None:
        rows[data.index] = digest_frame(data.table, str(data.source.label))
    return digest_source(path), rows


def _list_files(path: Path) -> list[Path]:
    """The files of a table that is spread over several, or of a saved data set; otherwise none."""
    return sorted(path.rglob("*.arrow")) if is_saved(path) else parquet_files(path)


def list_images(path: Path) -> tuple[Path, list[str], Path | None]:
    """The audited folder (`path`, or its training part), its images in order, and its label file, if any."""
    labels = label_file(path)
    if labels is None:
        parts = [p for p in sorted(path.iterdir()) if p.is_dir() and PARTS.get(p.name.lower()) == "train"]
        path = parts[0] if parts else path
        labels = label_file(path) if parts else None
    return path, [p.relative_to(path).as_posix() for p in sorted(p for p in path.rglob("*") if is_image(p))], labels
