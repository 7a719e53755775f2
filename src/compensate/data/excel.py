"""Excel workbooks (.xlsx): the first sheet is the table, and its first non-empty row holds the column names."""

from __future__ import annotations

import io
import warnings
import zipfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from compensate.data.columns import typed_frame
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import check_file, check_size, check_unpacked, check_width, readable_as

SUFFIXES = (".xlsx", ".xlsm")
MAX_ROWS = 1 << 20  # rows that a sheet can have


@dataclass(frozen=True)
class Sheet:
    """The cells of a sheet: column names and their positions, the non-empty rows, and their row numbers in the sheet."""

    names: list[str]
    places: list[int]
    rows: list[tuple[Any, ...]]
    numbers: list[int]


def read_excel(path: str | Path) -> pd.DataFrame:
    """The table of the first sheet, with the saved values of formulas."""
    path = Path(path)
    check_file(path)
    sheet = read_sheet(path.read_bytes(), path, warn=True)
    duplicate = next((name for name in sheet.names if sheet.names.count(name) > 1), None)
    if duplicate is not None:
        raise InputError(f'{path} has more than one column named "{duplicate}"; rename all but one.')
    places = zip(sheet.names, sheet.places, strict=True)
    return typed_frame({name: [row[place] for row in sheet.rows] for name, place in places})


def read_sheet(content: bytes, path: Path, *, warn: bool = False) -> Sheet:
    """The first sheet of a workbook; with ``warn``, a warning names the other sheets."""
    openpyxl = require("openpyxl", "reading Excel", "excel")
    with readable_as(path, "an Excel workbook", "Save it again as .xlsx"):
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            check_unpacked(sum(info.file_size for info in packed.infolist()), path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and extensions
            with closing(openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)) as book:
                sheets = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"] or book.worksheets
                cells = _cells(sheets[0], path)
    if warn and len(sheets) > 1:
        first, *others = (str(sheet.title)[:40] for sheet in sheets)
        named = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        warnings.warn(f'{path}: the sheet "{first}" is read; the others are not: {named}.', stacklevel=4)
    return cells


def _cells(sheet: Any, path: Path) -> Sheet:
    sheet.reset_dimensions()  # some programs write wrong dimensions
    rows: list[tuple[Any, ...]] = []
    numbers: list[int] = []
    width = 0
    for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
        if number > MAX_ROWS:  # a damaged file may claim any row number
            raise InputError(f"{path} has a row beyond {MAX_ROWS:,}, the limit of Excel. Save it again as .xlsx.")
        if any(cell is not None for cell in cells):
            width = max(width, len(cells))
            check_width(width, path)
            rows.append(cells)
            numbers.append(number)
            check_size(len(rows), width, path)
    if not rows:
        raise InputError(f"{path} is empty; expected a first row with the names of the columns.")
    header, *rows = [(*row, *(None,) * (width - len(row))) for row in rows]
    places = [k for k, name in enumerate(header) if name is not None or any(row[k] is not None for row in rows)]
    names = ["" if header[k] is None else str(header[k]) for k in places]
    return Sheet(names, places, rows, numbers[1:])
