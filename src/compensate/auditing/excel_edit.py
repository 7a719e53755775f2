"""Changing a few cells of an Excel workbook and no part of it beside them.

A workbook is an archive of XML files. Reading it into objects and writing it again loses what the library does not know:
charts, pictures, conditional formats. So the cells are replaced in the text of their sheet, and everything else is copied.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from xml.sax.saxutils import escape  # nosec B406: writes, and parses nothing

from compensate.data.excel import read_sheet
from compensate.errors import InputError

_CELL = re.compile(r"<((?:\w+:)?)c\b([^>]*?)(?:/>|>(.*?)</\1c>)", re.DOTALL)
_PLACE = re.compile(r'\br="([A-Z]+)([0-9]+)"')
_KIND = re.compile(r'\s+t="[^"]*"')
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def edited(content: bytes, path: Path, name: str, cells: list[Any], new: Mapping[int, str]) -> bytes:
    """The workbook with some cells of the column `name` of its first sheet changed.

    A label that other cells hold is written as they write it; another one as a text.
    """
    from compensate.auditing.rewrite import label_text, same_label

    sheet = read_sheet(content, path)
    column = sheet.places[sheet.names.index(name)]
    rows = {number: row for row, number in enumerate(sheet.numbers)}
    part, text = _sheet_text(content, path)
    found = {}
    for match in _CELL.finditer(text):
        place = _PLACE.search(match[2])
        if place is not None and _column_number(place[1]) == column and int(place[2]) in rows:
            found[rows[int(place[2])]] = match
    forms = {label_text(cells[row]): match for row, match in found.items() if match[3] and "<f" not in match[3]}
    pieces, last = [], 0
    for row in sorted(new):
        if row not in found:
            raise InputError(
                f"row {sheet.numbers[row]} of the sheet of {path} has no label cell; type a label there first."
            )
        match = found[row]
        pieces += [text[last : match.start()], _cell(match, forms.get(new[row]), new[row])]
        last = match.end()
    changed = _replaced(content, part, "".join((*pieces, text[last:])))
    again = [row[column] for row in read_sheet(changed, path).rows]
    right = [same_label(cell, new[row]) if row in new else cell == cells[row] for row, cell in enumerate(again)]
    if len(again) != len(cells) or not all(right):
        raise InputError(f"the cells of {path} cannot be told apart safely; save it again as .xlsx, or as CSV.")
    return changed


def _cell(old: re.Match[str], like: re.Match[str] | None, value: str) -> str:
    """A cell with the place and the style of `old`, and the content of `like` or a text."""
    prefix, attributes = old[1], _KIND.sub("", old[2].rstrip())
    if like is not None and like[1] == prefix:
        kind = _KIND.search(like[2])
        return f"<{prefix}c{attributes}{kind[0] if kind else ''}>{like[3]}</{prefix}c>"
    inner = f'<{prefix}is><{prefix}t xml:space="preserve">{escape(value)}</{prefix}t></{prefix}is>'
    return f'<{prefix}c{attributes} t="inlineStr">{inner}</{prefix}c>'


def _sheet_text(content: bytes, path: Path) -> tuple[str, str]:
    """The name and the text of the part of the archive that holds the first sheet that is shown."""
    from openpyxl.xml.functions import fromstring

    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        book = fromstring(packed.read("xl/workbook.xml"))
        sheets = [node for node in book.iter() if str(node.tag).endswith("}sheet")]
        shown = [node for node in sheets if node.get("state", "visible") == "visible"] or sheets
        links = fromstring(packed.read("xl/_rels/workbook.xml.rels"))
        targets = {node.get("Id"): node.get("Target") for node in links}
        part = str(PurePosixPath("xl", str(targets[shown[0].get(_RELATION)]).removeprefix("/xl/")))
        raw = packed.read(part)
    try:
        return part, raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not written in UTF-8; save it again as .xlsx.") from error


def _replaced(content: bytes, part: str, text: str) -> bytes:
    """The archive with one part replaced; the others keep their bytes, their order and their times."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as packed, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for info in packed.infolist():
            made.writestr(info, text.encode() if info.filename == part else packed.read(info))
    return out.getvalue()


def _column_number(letters: str) -> int:
    """The place of a column, counted from 0.

    >>> _column_number("A"), _column_number("AB")
    (0, 27)
    """
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - 64
    return number - 1
