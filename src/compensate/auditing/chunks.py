"""Data that is read piece by piece: row groups of Parquet files, ranges of an .npy file, or parts of what is in memory.

Rows are numbered by their place: the row counts in the footers of the files add up to the number of the first row of each piece. A piece
says how it is read and holds no rows, so that any process that sees the files can read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from compensate.auditing.class_names import merge_spellings
from compensate.auditing.digests import digest_source, digest_text, short_digest
from compensate.auditing.learners import View
from compensate.auditing.result import FLAGGED
from compensate.auditing.source import read
from compensate.data.arrays import not_finite
from compensate.data.columns import is_nested
from compensate.data.dataset import UNLABELED, Dataset, Ints, Singles, Source
from compensate.data.label_column import SeveralLabels
from compensate.data.labels import encode_labels, is_missing, read_labels
from compensate.data.parquet import SUFFIXES, is_pattern, parquet_files, parquet_source, remote_files
from compensate.data.tables import from_frame
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import (
    check_size,
    check_width,
    is_address,
    make_folder,
    numpy_damage,
    replaced_folder,
    write_atomically,
)

ROWS = 100_000
"""Rows of a piece: small row groups are read together up to this number."""

AT_HAND = 25_000
"""Rows of a piece of data in memory: several workers have something to do, and reading costs nothing."""

LOOKED_AT = 200_000
"""Rows from which the columns of a table, its words and the scale of its numbers are learned; of more rows these are drawn evenly."""

NO_PARTS = "rows with several labels are not audited in pieces; leave memory and backend out."

LOOKED_INTO = 20
"""Pieces that these rows are drawn from."""


class Piece(Protocol):
    """Consecutive rows of the source."""

    @property
    def start(self) -> int:
        """The number of the first row."""

    @property
    def rows(self) -> int:
        """Their number."""

    def read(self) -> Dataset:
        """The samples, without their labels; ``index`` counts through the whole source."""


@dataclass(frozen=True)
class PiecedSource:
    """Data in pieces.

    Attributes:
        pieces: in the order of their rows.
        labels: (N,) class numbers; -1 where there is none.
        classes: their names.
        sample: some of the rows, evenly drawn; all of them if there are few.
        info: as `Data.source`.
        index: (N,) as `Data.index`; None where no row of the source is left out.
    """

    pieces: tuple[Piece, ...]
    labels: Ints
    classes: tuple[str, ...]
    sample: Dataset
    info: Source = field(default_factory=Source)
    index: Ints | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def numbers(self, rows: Ints) -> Ints:
        """The rows of the source that these are."""
        return rows if self.index is None else self.index[rows]

    @property
    def outline(self) -> Dataset:
        """The labels of all rows, without the samples."""
        nothing = np.broadcast_to(np.float32(0), (len(self), 1))
        return Dataset(nothing, self.labels, self.classes, rows=len(self), source=self.info)

    def rows(self, index: Ints) -> Dataset:
        """The samples in these rows, in ascending order, with their labels."""
        found = []
        for piece in self.pieces:
            here = index[np.searchsorted(index, piece.start) : np.searchsorted(index, piece.start + piece.rows)]
            if len(here):
                found.append(piece.read().subset(here - piece.start))
        return replace(_joined(found), target=self.labels[index], classes=self.classes, rows=len(self))


def open_pieces(data: Any, labels: Any, options: Mapping[str, Any]) -> PiecedSource:
    """The data in pieces; what is neither Parquet nor an .npy file is read as a whole and cut."""
    options = dict(options)
    if not options.pop("merge_alike", False):
        return _opened(data, labels, options)
    found = _opened(data, labels, options)
    numbers, classes, merged = merge_spellings(found.labels, found.classes)
    return replace(found, labels=numbers, classes=classes, info=replace(found.info, merged=merged))


def _opened(data: Any, labels: Any, options: Mapping[str, Any]) -> PiecedSource:
    if is_address(data) or (isinstance(data, (str, Path)) and _is_parquet(Path(data))):
        if labels is not None:
            raise InputError(
                "a Parquet table has its labels in a column; name it by label= (--label), and leave labels out."
            )
        return _of_parquet(data if is_address(data) else Path(data).expanduser(), options)
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".npy":
        return _of_array(Path(data).expanduser(), labels, options)
    return cut(read(data, labels, None, options))


def cut(data: Dataset) -> PiecedSource:
    """Data in memory, in pieces."""
    _check_labels(data)
    if data.source.kind == "images" and np.ndim(data.x) != 4:
        raise InputError("images of several sizes cannot be audited in pieces; leave memory and backend out.")
    pieces = tuple(_Cut(start, min(AT_HAND, len(data) - start), data, start) for start in range(0, len(data), AT_HAND))
    sample = data.subset(_even(len(data), LOOKED_AT)) if len(data) > LOOKED_AT else data
    return PiecedSource(pieces, data.target.astype(np.int64), data.classes, sample, data.source, data.index)


def _check_labels(data: Dataset) -> None:
    if data.regression:
        raise InputError("quantities are not audited in pieces; leave memory and backend out.")
    if data.parts is not None:
        raise InputError(NO_PARTS)


def _even(number: int, most: int) -> Ints:
    """At most so many of so many rows, evenly.

    >>> _even(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return np.arange(number) if number <= most else np.linspace(0, number - 1, most).astype(np.int64)


@dataclass(frozen=True)
class _Cut:
    start: int
    rows: int
    data: Dataset
    first: int
    """The place of its first row in `data`."""

    def read(self) -> Dataset:
        """As `Piece.read`; nothing is copied."""
        data, here = self.data, slice(self.first, self.first + self.rows)
        return replace(
            data,
            x=data.x[here],
            target=data.target[here],
            index=data.index[here],
            ids=None if data.ids is None else data.ids[here],
            raw=data.table.iloc[here] if data.table is not None else None if data.raw is None else data.raw[here],
        )

    def __getstate__(self) -> dict[str, Any]:
        """Another process gets the rows of this piece alone."""
        mine = self.read() if self.rows < len(self.data) else self.data
        return {"start": self.start, "rows": self.rows, "data": mine, "first": 0}


def _joined(parts: list[Dataset]) -> Dataset:
    first = parts[0]
    if len(parts) == 1:
        return first
    frames = isinstance(first.raw, pd.DataFrame)
    raw = pd.concat([p.raw for p in parts], ignore_index=True) if frames else None
    return replace(
        first,
        x=np.concatenate([p.x for p in parts]),
        target=np.concatenate([p.target for p in parts]),
        index=np.concatenate([p.index for p in parts]),
        ids=None if first.ids is None else np.concatenate([p.ids for p in parts]),
        raw=raw if frames or first.raw is None else np.concatenate([p.raw for p in parts]),
    )


# --- Parquet --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowGroups:
    """Consecutive row groups of a Parquet file."""

    path: str
    first: int
    last: int
    start: int
    rows: int
    text: str | None = None
    info: Source = field(default_factory=Source, repr=False)

    def frame(self, columns: list[str] | None = None) -> pd.DataFrame:
        """The rows as a data frame."""
        from pyarrow import parquet

        with parquet_source(self.path) as where, parquet.ParquetFile(where) as file:
            return file.read_row_groups(range(self.first, self.last), columns=columns, use_threads=False).to_pandas()

    def read(self) -> Dataset:
        """As `Piece.read`."""
        frame = self.frame().reset_index(drop=True)
        frame.columns = pd.Index([str(name) for name in frame.columns])
        x: NDArray[Any] = np.zeros((len(frame), 1), np.float32)
        if self.text:
            x = np.array(["" if is_missing(v) else str(v) for v in frame[self.text]], dtype=object)
        return Dataset(
            x, np.full(len(frame), -1), (), index=np.arange(self.start, self.start + len(frame)), raw=frame,
            source=self.info,
        )  # fmt: skip


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES or is_pattern(path) or (path.is_dir() and bool(parquet_files(path)))


def _row_groups(files: Iterable[str]) -> Iterator[RowGroups]:
    """Pieces of some files, numbered by the row counts in their footers."""
    parquet = require("pyarrow.parquet", "reading Parquet", "parquet")
    start, names = 0, None
    for path in files:
        try:
            with parquet_source(path) as where, parquet.ParquetFile(where) as file:
                head, columns = file.metadata, sorted(file.schema_arrow.names)
                check_width(head.num_columns, path)
                check_size(head.num_rows, head.num_columns, path, size=where.size if is_address(path) else None)
        except InputError:
            raise
        except Exception as error:  # of Arrow: what is there may be anything
            raise InputError(f"{path} is damaged or not a Parquet file ({error}). Write or fetch it again.") from error
        names = columns if names is None else names
        if columns != names:
            odd = sorted(set(columns) ^ set(names))
            raise InputError(f"{path} has other columns than the files before it ({', '.join(odd[:5])}).")
        sizes = [head.row_group(k).num_rows for k in range(head.num_row_groups)]
        first = 0
        for k, total in enumerate(accumulate(sizes)):
            last = k + 1 == len(sizes)
            taken = total - sum(sizes[:first])
            if last or taken + sizes[k + 1] > ROWS:
                if taken:
                    yield RowGroups(path, first, k + 1, start, taken)
                start, first = start + taken, k + 1


def _files(path: str | Path) -> tuple[list[str], str, str]:
    """The files of a table, a digest of them, and a title. Of remote files, what the storage says of their versions is digested."""
    if isinstance(path, str):
        require("pyarrow.parquet", "reading Parquet", "parquet")
        found = remote_files(path)
        folder, _, name = path.rstrip("/").rpartition("/")
        title = folder.rpartition("/")[2] if "*" in name else name
        return [file for file, _ in found], digest_text(short_digest(repr(found).encode())), title
    files = [path] if path.is_file() else parquet_files(path)
    if not files:
        raise InputError(f"there is no file {path}; check the path.")
    return [str(file) for file in files], digest_source(path), path.parent.name if is_pattern(path) else path.name


def _of_parquet(path: str | Path, options: Mapping[str, Any]) -> PiecedSource:
    files, digest, title = _files(path)
    pieces = list(_row_groups(files))
    rows = sum(piece.rows for piece in pieces)
    if not rows:
        raise InputError(f"{path} has no rows.")
    odd = [name for name in options if name not in ("label", "text", "task", "ignore", "columns", "split", "missing")]
    if odd:
        raise InputError(f"{odd[0]} is no option for Parquet files; leave it out.")
    try:
        sample = from_frame(_looked_at(pieces, rows), str(path), **options)
    except SeveralLabels:
        raise InputError(NO_PARTS) from None
    if sample.test is not None or sample.validation is not None:
        raise InputError(
            f'{path} has a column "split", by which rows are not told apart where data are read in pieces. Audit all rows: split="all" '
            "(--split all on the command line), or write the training rows to files of their own."
        )
    _check_labels(sample.train)
    info = replace(sample.train.source, path=str(path), digest=digest, title=title)
    label = str(info.label)
    labels, classes = _all_labels(pieces, label, info.missing_given)
    told = Source(kind=info.kind, label=info.label, text=info.text, columns=info.columns)
    pieces = [replace(piece, text=info.text, info=told) for piece in pieces]
    return PiecedSource(tuple(pieces), labels, classes, replace(sample.train, source=info), info)


def _looked_at(pieces: list[RowGroups], rows: int) -> pd.DataFrame:
    """Rows from which it is learned what the columns are."""
    if rows <= LOOKED_AT:
        parts = [piece.frame() for piece in pieces]
    else:
        chosen = [pieces[k] for k in _even(len(pieces), LOOKED_INTO)]
        parts = [piece.frame().iloc[_even(piece.rows, LOOKED_AT // len(chosen))] for piece in chosen]
    return pd.concat(parts, ignore_index=True)


def _all_labels(pieces: list[RowGroups], label: str, missing: list[str] | None) -> tuple[Ints, tuple[str, ...]]:
    """(N,) class numbers, and the names of the classes; each distinct cell is looked at once."""
    codes: list[Any] = []
    values: list[Any] = []
    for piece in pieces:
        column = piece.frame([label])[label]
        if is_nested(column):
            raise InputError(f'the column "{label}" holds lists; expected one label a row.')
        found, distinct = pd.factorize(column, use_na_sentinel=False)
        codes.append(found + len(values))
        values += list(distinct)
    numbers, classes = encode_labels(values, missing=missing)
    return numbers[np.concatenate(codes)], classes


# --- .npy files -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrayRange:
    """Consecutive rows of an .npy file."""

    path: str
    start: int
    rows: int

    def read(self) -> Dataset:
        """As `Piece.read`."""
        # Mapped for this moment alone: what stays mapped counts as memory of the process.
        with numpy_damage(self.path):
            x = np.load(self.path, mmap_mode="r", allow_pickle=False)[self.start : self.start + self.rows]
        x = np.array(x, np.float32)
        broken = not_finite(x)
        if len(broken):
            raise InputError(
                f"{self.path} has a value that is not a finite number in row {self.start + broken[0]}. Fill or remove it."
            )
        index = np.arange(self.start, self.start + self.rows)
        return Dataset(x, np.full(len(x), -1), (), index=index, source=Source(kind="features"))


def _of_array(path: Path, labels: Any, options: Mapping[str, Any]) -> PiecedSource:
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path.")
    with numpy_damage(path):
        shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    if len(shape) != 2:
        raise InputError(f"{path} has shape {shape}; expected (N, features) for an audit in pieces.")
    if labels is None:
        raise InputError("an .npy file has no labels of its own; name them by labels= (--labels).")
    cells = (
        read_labels(labels, options.get("labels_key")).cells if isinstance(labels, (str, Path)) else np.asarray(labels)
    )
    if cells.shape != shape[:1]:
        raise InputError(f"{path} has {shape[0]} samples, and the labels have shape {cells.shape}.")
    if cells.dtype.kind == "f" and (np.mod(cells[np.isfinite(cells)], 1) != 0).any():
        raise InputError("quantities are not audited in pieces; leave memory and backend out.")
    codes, values = pd.factorize(cells, use_na_sentinel=False)
    numbers, classes = encode_labels(list(values))
    pieces = tuple(ArrayRange(str(path), start, min(ROWS, shape[0] - start)) for start in range(0, shape[0], ROWS))
    chosen = pieces if shape[0] <= LOOKED_AT else [pieces[k] for k in _even(len(pieces), LOOKED_INTO)]
    each = LOOKED_AT // len(chosen)
    sample = _joined(
        [d.subset(_even(len(d), max(each, 1) if shape[0] > LOOKED_AT else len(d))) for d in (p.read() for p in chosen)]
    )
    info = Source(kind="features", path=str(path), digest=digest_source(path), title=path.name)
    return PiecedSource(pieces, numbers[codes], classes, replace(sample, source=info), info)


SPARSE = ("data", "indices", "indptr")
"""The arrays of a sparse matrix."""


@dataclass(frozen=True)
class FinishedStages:
    """The stages in a folder.

    Attributes:
        folder: where they are.
        temporary: nobody will look for them later: what is in memory too is not written.
    """

    folder: Path
    temporary: bool = False

    # --- embeddings

    def embeddings(self, piece: int) -> Path:
        """The file with the embeddings of a piece."""
        return self.folder / f"embeddings-{piece:05d}.npy"

    def embedded(self, piece: int) -> Singles:
        """The embeddings of a piece."""
        return np.load(self.embeddings(piece), allow_pickle=False)

    def write_embedded(self, piece: int, values: Singles) -> None:
        """Keeps the embeddings of a piece."""
        content = BytesIO()
        np.save(content, values)
        write_atomically(self.embeddings(piece), content.getvalue())

    def embedded_rows(self, pieces: Sequence[Any], rows: Ints) -> Singles:
        """The embeddings of some rows, in ascending order."""
        found = []
        for k, piece in enumerate(pieces):
            here = rows[np.searchsorted(rows, piece.start) : np.searchsorted(rows, piece.start + piece.rows)]
            if len(here):
                found.append(self.embedded(k)[here - piece.start])
        return np.concatenate(found)

    # --- keys of all rows, and the features of the part that learners are fitted on

    @property
    def scan(self) -> Path:
        """Their folder."""
        return self.folder / "scan"

    def write_scan(self, keys: Ints | None, views: tuple[View, ...]) -> None:
        """Keeps them, each array in a file of its own: nothing is copied to be written."""
        if self.temporary:
            return
        with replaced_folder(self.scan) as new:
            if keys is not None:
                np.save(new / "keys.npy", keys)
            about = []
            for k, view in enumerate(views):
                same = view.trees is view.x
                about.append({"name": view.name, "same": same, "shape": view.x.shape})
                arrays = {name: getattr(view.x, name) for name in SPARSE} if sp.issparse(view.x) else {"x": view.x}
                if view.trees is not None and not same:
                    arrays["trees"] = view.trees
                for name, values in arrays.items():
                    np.save(new / f"{k}.{name}.npy", values)
            write_atomically(new / "views.json", json.dumps(about).encode())

    def read_scan(self) -> tuple[Ints | None, tuple[View, ...]] | None:
        """What was kept, if anything was."""
        if not self.scan.exists():
            return None

        def array(name: str) -> Any:
            file = self.scan / f"{name}.npy"
            return np.load(file, allow_pickle=False) if file.exists() else None

        views = []
        for k, one in enumerate(json.loads((self.scan / "views.json").read_bytes())):
            x = array(f"{k}.x")
            if x is None:
                x = sp.csr_matrix(tuple(array(f"{k}.{name}") for name in SPARSE), tuple(one["shape"]))
            views.append(View(one["name"], x, x if one["same"] else array(f"{k}.trees")))
        return array("keys"), tuple(views)

    # --- judged rows

    @property
    def suspects(self) -> Path:
        """The folder of judged rows."""
        return self.folder / "suspects"

    def judged(self, piece: int) -> Path:
        """The file with the judged rows of a piece."""
        return self.suspects / f"part-{piece:05d}.parquet"

    def write_judged(
        self, piece: int, index: Ints, given: Ints, found: dict[str, NDArray[Any]], classes: tuple[str, ...]
    ) -> None:
        """Keeps the judged rows of a piece.

        Args:
            piece: its number.
            index: (B,) the rows of the source.
            given: (B,) labels; -1 where there is none.
            found: (B,) each, by name.
            classes: the names of the classes.
        """
        pyarrow = require("pyarrow", "writing suspects as Parquet", "parquet")
        from pyarrow import parquet

        names = pyarrow.array(classes, pyarrow.string())

        def named(numbers: NDArray[Any]) -> Any:
            codes = pyarrow.array(numbers.astype(np.int32), mask=numbers == UNLABELED)
            return pyarrow.DictionaryArray.from_arrays(codes, names)

        columns = {
            "index": index, "given": named(given), "suggested": named(found["suggested"]),
            "score": found["score"], "p_error": found["p_error"], "flagged": found["p_error"] >= FLAGGED,
            **{name: found[name] for name in ("margin", "loss", "probability")},
        }  # fmt: skip
        columns = {
            name: pyarrow.array(v, from_pandas=True) if isinstance(v, np.ndarray) else v for name, v in columns.items()
        }
        out = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.table(columns), out)
        make_folder(self.suspects)
        write_atomically(self.judged(piece), out.getvalue().to_pybytes())

    def read_judged(self, piece: int, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Some columns of the judged rows of a piece; classes as their numbers."""
        from pyarrow import parquet

        table = parquet.read_table(self.judged(piece), columns=list(names), use_threads=False, partitioning=None)
        numbers = (table[name].combine_chunks() for name in names)
        return {
            name: (column.indices if name == "suggested" else column).to_numpy(zero_copy_only=False)
            for name, column in zip(names, numbers, strict=True)
        }
