"""The content of samples as people see it: on the review page, in lists of suspects, notebooks and annotation tools."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from compensate.data.arrays import as_images
from compensate.data.dataset import Dataset, Ints

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

KINDS = ("image", "text", "table", "embedding", "regression")
"""Kinds of samples; `regression` stands for quantities, whatever the samples are."""

MAX_ITEMS = 5000  # suspects on the review page; the others are in suspects.csv
POOL = 150  # certain rows of a class among which the examples of a suspect are searched
LOSSLESS = 64  # images up to this size are stored as PNG, larger ones as JPEG
MAX_COLUMNS, MAX_CELL = 100, 200  # columns of the data in a list of suspects, and characters of a cell
_MAGIC = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF87a", "gif"), (b"GIF89a", "gif"))


@dataclass(frozen=True)
class Content:
    """The content of a sample: any of an image, a text and named values.

    Attributes:
        image: the bytes of a small PNG, JPEG, GIF or WebP file.
        text: the text.
        fields: name and value of each cell of a table row, in the order of the columns.
        missing: why there is nothing to show, for example ``"the file cats/7.png cannot be read"``.
        chips: the labels of a sample that has several, and whether each is given.
        marked: the judged chip; or the first judged word and the one after the last.
        tokens: the words of a sentence, each with its tag; they replace the text.
        votes: annotators and the label that each gave.
    """

    image: bytes | None = None
    text: str | None = None
    fields: tuple[tuple[str, str], ...] = ()
    missing: str = ""
    chips: tuple[tuple[str, bool], ...] = ()
    marked: int | tuple[int, int] | None = None
    tokens: tuple[tuple[str, str], ...] = ()
    votes: tuple[tuple[str, str], ...] = ()


def thumbnail(image: NDArray[Any], largest: int = 160) -> bytes:
    """The bytes of an image file, the longer side at most ``largest`` pixels.

    Args:
        image: (C, H, W) with 1, 3 or 4 channels, bytes or floats in [0, 1].
        largest: pixels of the longer side; smaller images are not enlarged.

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
    r"""The image for a ``data:image/`` address; None unless it is of a format that browsers show without running anything.

    >>> embedded_image(b"GIF89a..."), embedded_image(b"<svg onload=alert(1)>")
    ('gif;base64,R0lGODlhLi4u', None)
    """
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
        text, label = data.source.text, data.source.label
        fields = tuple((str(name), str(value)) for name, value in cells.items() if name not in (text, label))
        return Content(text=str(cells[text]), fields=fields) if text else Content(fields=fields)
    return Content(text=str(raw[row]))


def label_content(audit: Audit, row: int) -> Content:
    """The content of the sample of an audited label, with the label marked if the sample has several."""
    content = sample_content(audit.data, int(audit.position(row)))
    parts = None if audit.data is None else audit.data.parts
    return content if parts is None else cast(Content, parts.show(content, audit, row))


def sample_cells(audit: Audit, rows: Ints, taken: Collection[str]) -> dict[str, list[str]]:
    """The texts or table cells of samples as columns of a list, long ones cut; nothing for images and embeddings.

    Args:
        audit: an audit; without its data the result is empty.
        rows: positions among the audited rows.
        taken: existing names of columns; a column with such a name gets a suffix.
    """
    data = audit.data
    if data is None or data.source.kind not in ("text", "table") or data.raw is None:
        return {}
    rows, table, text = audit.position(rows), data.table, data.source.text
    # As `sample_content`, but column by column, which is much faster.
    if table is None:
        columns: list[tuple[str, Any]] = [(text or "text", [data.raw[row] for row in rows.tolist()])]
    else:
        names = list(table.columns)
        order = [j for j, name in enumerate(names) if name not in (text, data.source.label)]
        order = [names.index(text), *order] if text else order
        columns = [(str(names[j]), table.iloc[:, j].iloc[rows].tolist()) for j in order]

    def cell(value: Any) -> str:
        short = " ".join(str(value)[: 2 * MAX_CELL].split())
        return short if len(short) <= MAX_CELL else short[: MAX_CELL - 1] + "…"

    return {
        f"{name} (data)" if name in taken else name: [cell(value) for value in values]
        for name, values in columns[:MAX_COLUMNS]
    }
