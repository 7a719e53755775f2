"""Excel workbooks (.xlsx): the first sheet is the table, and its first non-empty row holds the column names."""

from __future__ import annotations

import io
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from compensate.errors import InputError
from compensate.extras import require
from compensate.files import check_file, check_size, check_unpacked, check_width

SUFFIXES = (".xlsx", ".xlsm")
MAX_ROWS = 1 << 20
"""Rows of a sheet."""


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
    sheet = read_sheet(path.read_bytes(), path, tell=True)
    twice = next((name for name in sheet.names if sheet.names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f'{path} has more than one column named "{twice}"; rename all but one.')
    columns = {}
    for name, place in zip(sheet.names, sheet.places, strict=True):
        column = pd.Series([row[place] for row in sheet.rows], dtype=object)
        columns[name] = column.infer_objects() if len({type(cell) for cell in column}) == 1 else column
    return pd.DataFrame(columns)


def read_sheet(content: bytes, path: Path, *, tell: bool = False) -> Sheet:
    """The first sheet of a workbook; with ``tell``, a warning names the other sheets."""
    openpyxl = require("openpyxl", "reading Excel", "excel")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            check_unpacked(sum(info.file_size for info in packed.infolist()), path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about styles and extensions
            book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
            try:
                sheets = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"] or book.worksheets
                found = _cells(sheets[0], path)
            finally:
                book.close()
    except InputError:
        raise
    except Exception as error:  # from zipfile, the XML parser or openpyxl
        raise InputError(
            f"{path} is damaged or not an Excel workbook ({error or type(error).__name__}). Save it again as .xlsx."
        ) from error
    if tell and len(sheets) > 1:
        others = ", ".join(str(sheet.title)[:40] for sheet in sheets[1:4]) + (", ..." if len(sheets) > 4 else "")
        warnings.warn(
            f'{path}: the sheet "{str(sheets[0].title)[:40]}" is read; the others are not: {others}.', stacklevel=4
        )
    return found


def _cells(sheet: Any, path: Path) -> Sheet:
    sheet.reset_dimensions()  # some programs write wrong ones
    header: tuple[Any, ...] | None = None
    rows: list[tuple[Any, ...]] = []
    numbers: list[int] = []
    width = 0
    for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
        if number > MAX_ROWS:  # a row may claim any number
            raise InputError(
                f"{path} has a row beyond {MAX_ROWS:,}, the last that Excel knows. Save it again as .xlsx."
            )
        if all(cell is None for cell in cells):
            continue
        width = max(width, len(cells))
        check_width(width, path)
        if header is None:
            header = cells
            continue
        rows.append(cells)
        numbers.append(number)
        check_size(len(rows), width, path)
    if header is None:
        raise InputError(f"{path} is empty; expected a first row with the names of the columns.")
    rows = [(*row, *(None,) * (width - len(row))) for row in rows]
    header = (*header, *(None,) * (width - len(header)))
    places = [k for k, name in enumerate(header) if name is not None or any(row[k] is not None for row in rows)]
    names = ["" if header[k] is None else str(header[k]) for k in places]
    return Sheet(names, places, rows, numbers)
