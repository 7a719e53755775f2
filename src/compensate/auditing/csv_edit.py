"""Changing a few cells of a CSV or TSV file and not one byte beside them.

Reading a table and writing it again would change quotes, line ends and numbers everywhere. So the cells are found by
their place in the text, and only they are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compensate.errors import InputError


@dataclass(frozen=True)
class Dialect:
    """How a table is written: the sign between cells, and whether a quote is a letter like any other."""

    delimiter: str
    plain: bool = False

    @staticmethod
    def of(text: str, suffix: str, delimiter: str | None = None) -> Dialect:
        r"""The dialect of a text, by the rules of `compensate.data.tables.read_frame`.

        >>> Dialect.of("a;b\n1;2\n", ".csv")
        Dialect(delimiter=';', plain=False)
        """
        header = text.lstrip("\n").split("\n", 1)[0].rstrip("\r")
        if delimiter is None:
            delimiter = "\t" if suffix == ".tsv" else max(",;\t|", key=header.count)
        tabs = header.count("\t")
        even = all(line.count("\t") == tabs for line in text.split("\n") if line.strip("\r"))
        return Dialect(delimiter, delimiter == "\t" and '"' not in header and even)

    def value(self, raw: str) -> str:
        """What a cell says.

        >>> Dialect(",").value('"say ""hi"" twice"'), Dialect(",", plain=True).value('"a"')
        ('say "hi" twice', '"a"')
        """
        if self.plain or not raw.startswith('"'):
            return raw
        end = _QUOTED.match(raw)
        quoted = end[0] if end else raw
        inner = quoted[1:-1] if len(quoted) > 1 and quoted.endswith('"') else quoted[1:]
        return inner.replace('""', '"') + raw[len(quoted) :]

    def write(self, value: str, raw: str) -> str:
        """A cell that says ``value``, written like the cell ``raw`` that it replaces.

        >>> Dialect(",").write("dog", '"cat"'), Dialect(",").write("dog", " cat"), Dialect(",").write("a,b", "cat")
        ('"dog"', ' dog', '"a,b"')
        """
        special = any(sign in value for sign in (self.delimiter, '"', "\r", "\n"))
        if self.plain:
            if self.delimiter in value or "\r" in value or "\n" in value:
                raise InputError(
                    f"the label {value[:80]!r} holds a tab or a line end, which a table without quotes cannot express. "
                    "Choose another label."
                )
            special = False
        if special or (raw.startswith('"') and not self.plain):
            return '"' + value.replace('"', '""') + '"'
        core = raw.strip(" ")  # a tab may be part of the label
        lead, _, trail = raw.partition(core) if core else ("", "", "")
        return lead + value + trail


_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*(?:"|\Z)')


def find_cells(text: str, column: int, dialect: Dialect) -> list[tuple[int, int] | None]:
    r"""Where in the text the cells of a column stand, one for each row below the header; blank lines are no rows.

    None stands for a row that is too short to have the cell.

    >>> text = 'id,label\n1,cat\n\n2,"dog, big"\n3\n'
    >>> [span and text[slice(*span)] for span in find_cells(text, 1, Dialect(","))]
    ['cat', '"dog, big"', None]
    """
    sign = re.escape(dialect.delimiter)
    quoted = "" if dialect.plain else r'(?:"[^"]*(?:""[^"]*)*(?:"|\Z))?'
    field = re.compile(rf"({quoted}[^{sign}\r\n]*)({sign}|\r\n|\r|\n|\Z)")
    spans: list[tuple[int, int] | None] = []
    at, header = 0, True
    while at < len(text):
        start, place, span = at, 0, None
        while match := field.match(text, at):
            if place == column:
                span = match.span(1)
            at, place = match.end(), place + 1
            if match[2] != dialect.delimiter:
                break
        else:
            raise InputError(f"the table cannot be followed beyond its character {at}; check the quotes there.")
        blank = place == 1 and not text[start : match.end(1)].strip(" \t")
        if not blank and not header:
            spans.append(span)
        header = header and blank
    return spans


def replace_cells(text: str, spans: list[tuple[int, int] | None], new: Mapping[int, str], dialect: Dialect) -> str:
    """The text with the cells of some rows changed."""
    parts, last = [], 0
    for row in sorted(new):
        span = spans[row]
        if span is None:
            raise InputError(f"row {row} ends before the label column; add the missing cells to the file first.")
        parts += [text[last : span[0]], dialect.write(new[row], text[slice(*span)])]
        last = span[1]
    return "".join((*parts, text[last:]))


def csv_bytes(rows: Iterable[Sequence[str]]) -> bytes:
    r"""A table of comma-separated cells.

    >>> csv_bytes([("a", "b,c")])
    b'a,"b,c"\n'
    """
    comma = Dialect(",")
    return "".join(",".join(comma.write(cell, "") for cell in row) + "\n" for row in rows).encode()
