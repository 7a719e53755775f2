"""Data sets that are read chunk by chunk: row groups of Parquet files, ranges of an .npy file, or parts of data in memory.

A chunk says how it is read and holds no rows, so any process that sees the files can read it. Rows are numbered by the row counts in the
footers of the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from compensate.auditing.class_names import merge_spellings
from compensate.auditing.content import digest_source, digest_text, short_digest
from compensate.auditing.labels.sets import label_sets_of_table
from compensate.auditing.source import read
from compensate.data.arrays import not_finite
from compensate.data.columns import embeddings, is_nested, row_texts
from compensate.data.dataset import UNLABELED, Dataset, Ints, Singles, Source
from compensate.data.label_files import read_labels
from compensate.data.labels import encode_labels
from compensate.data.pairs import TASK, pair_columns, table_names
from compensate.data.parquet import SUFFIXES, is_pattern, parquet_files, parquet_source, remote_files
from compensate.data.tables import from_frame
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import check_size, check_width, is_address, make_folder, numpy_damage, write_atomically

CHUNK_ROWS = 100_000  # of a file: smaller row groups are read together
MEMORY_CHUNK_ROWS = 25_000  # of data in memory: small enough to keep several workers busy
SAMPLE_ROWS, SAMPLE_CHUNKS = 200_000, 20  # from which columns, words and scales are learned


@dataclass(frozen=True, eq=False)
class ChunkedDataset(Dataset):
    """A data set whose samples are read chunk by chunk; ``x`` is a placeholder, and ``sample`` holds some evenly spaced rows."""

    pieces: tuple[Chunk, ...] = ()
    sample: Dataset = field(default_factory=lambda: Dataset(np.zeros((0, 1)), np.zeros(0, np.int64), ()))

    @staticmethod
    def of(
        pieces: Sequence[Chunk], target: Ints, classes: tuple[str, ...], sample: Dataset, **more: Any
    ) -> ChunkedDataset:
        """From chunks and the labels of all rows."""
        placeholder = np.broadcast_to(np.float32(0), (len(target), 1))
        more = {"source": sample.source, "rows": len(target), **more}
        return ChunkedDataset(placeholder, target, classes, pieces=tuple(pieces), sample=sample, **more)

    def chunks(self, rows: Ints) -> Iterator[tuple[int, Chunk, Ints]]:
        """The number of each chunk, the chunk, and which of its rows are among these, in ascending order."""
        for k, chunk in enumerate(self.pieces):
            first, last = np.searchsorted(rows, [chunk.start, chunk.start + chunk.rows])
            yield k, chunk, rows[first:last] - chunk.start

    def subset(self, rows: ArrayLike) -> Dataset:
        """Reads the samples of some rows, in ascending order."""
        chosen = np.asarray(rows, np.int64)
        parts = [chunk.read().subset(here) for _, chunk, here in self.chunks(chosen) if len(here)]
        return replace(_joined(parts), target=self.target[chosen], classes=self.classes, rows=self.rows)


def open_chunks(data: Any, labels: Any, options: Mapping[str, Any]) -> Dataset:
    """Opens data with one class a row chunk by chunk; formats other than Parquet and .npy are read and then cut.

    Data with other labels are read as a whole; only their features are computed in chunks.
    """
    if options.get("task") == TASK or (labels is None and pair_columns(table_names(data)) is not None):
        return read(data, labels, None, options)
    options = dict(options)
    merge = options.pop("merge_alike", False)
    found: ChunkedDataset | None = None
    path = Path(data).expanduser() if isinstance(data, (str, Path)) and not is_address(data) else None
    table = path is not None and (path.suffix.lower() in SUFFIXES or is_pattern(path))
    if is_address(data) or table or (path is not None and path.is_dir() and parquet_files(path)):
        if labels is not None:
            raise InputError(
                "a Parquet table has its labels in a column; name it by label= (--label), and leave labels out."
            )
        found = _open_parquet(path or data, options)
        if found is None and is_address(data):
            raise InputError(
                "remote files are audited with one class a row, and these labels are others; copy them to a disk."
            )
    elif path is not None and path.suffix.lower() == ".npy":
        found = _open_array(path, labels, options)
    if found is None:
        whole = read(data, labels, None, {**options, "merge_alike": merge})
        return whole if whole.regression or whole.parts is not None else cut(whole)
    if not merge:
        return found
    target, classes, merged = merge_spellings(found.target, found.classes)
    return replace(found, target=target, classes=classes, source=replace(found.source, merged=merged))


def cut(data: Dataset) -> ChunkedDataset:
    """Data in memory as chunks."""
    if data.source.kind == "images" and np.ndim(data.x) != 4:
        raise InputError("images of several sizes are not supported with memory= or backend=; leave them out.")
    data, size = replace(data, parts=None), MEMORY_CHUNK_ROWS
    pieces = [MemoryRange(start, min(size, len(data) - start), data) for start in range(0, len(data), size)]
    sample = data if len(data) <= SAMPLE_ROWS else data.subset(evenly(len(data), SAMPLE_ROWS))
    return ChunkedDataset.of(pieces, data.target, data.classes, sample, index=data.index, rows=data.rows)


def evenly(number: int, most: int) -> Ints:
    """Up to `most` evenly spaced row indices."""
    return np.arange(number) if number <= most else np.linspace(0, number - 1, most).astype(np.int64)


def _sampled(pieces: Sequence[Any]) -> Iterator[tuple[Any, Ints]]:
    """Some chunks, and the rows of each that columns, words and scales are learned from; all of few rows."""
    few = sum(piece.rows for piece in pieces) <= SAMPLE_ROWS
    chosen = pieces if few else [pieces[k] for k in evenly(len(pieces), SAMPLE_CHUNKS)]
    for piece in chosen:
        yield piece, np.arange(piece.rows) if few else evenly(piece.rows, max(SAMPLE_ROWS // len(chosen), 1))


@dataclass(frozen=True, eq=False)
class MemoryRange:
    """Consecutive rows of data in memory; ``data`` are these rows alone in another process."""

    start: int
    rows: int
    data: Dataset

    def read(self) -> Dataset:
        if len(self.data) == self.rows:
            return self.data
        return self.data.subset(np.arange(self.start, self.start + self.rows))

    def __getstate__(self) -> dict[str, Any]:
        return {"start": self.start, "rows": self.rows, "data": self.read()}


def _joined(parts: list[Dataset]) -> Dataset:
    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], pd.DataFrame):
            return pd.concat(values, ignore_index=True)
        return None if values[0] is None else np.concatenate(values)

    return replace(parts[0], **{name: joined(name) for name in ("x", "target", "index", "ids", "raw")})


# --- Parquet --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowGroups:
    """Consecutive row groups of a Parquet file."""

    path: str
    first: int
    last: int
    start: int
    rows: int
    source: Source = field(default_factory=Source, repr=False)

    def frame(self, columns: list[str] | None = None) -> pd.DataFrame:
        """The rows as a data frame."""
        from pyarrow import parquet

        with parquet_source(self.path) as where, parquet.ParquetFile(where) as file:
            return file.read_row_groups(range(self.first, self.last), columns=columns, use_threads=False).to_pandas()

    def read(self) -> Dataset:
        frame = self.frame().reset_index(drop=True)
        frame.columns = pd.Index([str(name) for name in frame.columns])
        x: NDArray[Any] = np.zeros((len(frame), 1), np.float32)
        if self.source.text:
            x = row_texts(frame, self.source.text)
        if self.source.embedding:
            x = embeddings(frame, self.source.embedding, self.path)
        index = np.arange(self.start, self.start + len(frame))
        return Dataset(x, np.full(len(frame), UNLABELED), (), index=index, raw=frame, source=self.source)


def _row_groups(files: Iterable[str]) -> Iterator[RowGroups]:
    """Chunks of some files, numbered by the row counts in their footers."""
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
        except Exception as error:  # Arrow raises many kinds for damaged files
            raise InputError(f"{path} is damaged or not a Parquet file ({error}). Write or fetch it again.") from error
        names = columns if names is None else names
        if columns != names:
            odd = sorted(set(columns) ^ set(names))
            raise InputError(f"{path} has other columns than the files before it ({', '.join(odd[:5])}).")
        sizes = [head.row_group(k).num_rows for k in range(head.num_row_groups)]
        first = 0
        for k, total in enumerate(accumulate(sizes)):
            taken = total - sum(sizes[:first])
            if k + 1 == len(sizes) or taken + sizes[k + 1] > CHUNK_ROWS:
                if taken:
                    yield RowGroups(path, first, k + 1, start, taken)
                start, first = start + taken, k + 1


def _open_parquet(path: str | Path, options: Mapping[str, Any]) -> ChunkedDataset | None:
    """The chunks of Parquet files; None if the labels are not one class a row."""
    if isinstance(path, str):  # remote files are digested by the versions that the storage reports
        require("pyarrow.parquet", "reading Parquet", "parquet")
        listing = remote_files(path)
        folder, _, name = path.rstrip("/").rpartition("/")
        files, digest = [file for file, _ in listing], digest_text(short_digest(repr(listing).encode()))
        title = folder.rpartition("/")[2] if "*" in name else name
    else:
        files = [str(file) for file in ([path] if path.is_file() else parquet_files(path))]
        if not files:
            raise InputError(f"there is no file {path}; check the path.")
        digest, title = digest_source(path), path.parent.name if is_pattern(path) else path.name
    pieces = list(_row_groups(files))
    rows = sum(piece.rows for piece in pieces)
    if not rows:
        raise InputError(f"{path} has no rows.")
    if options.get("labels_columns") is not None:
        return None
    odd = [
        name
        for name in options
        if name not in ("label", "text", "task", "ignore", "columns", "embedding", "split", "missing")
    ]
    if odd:
        raise InputError(f"{odd[0]} is not an option for Parquet files; leave it out.")
    frames = [piece.frame().iloc[here] for piece, here in _sampled(pieces)]
    splits = from_frame(pd.concat(frames, ignore_index=True), str(path), several=label_sets_of_table, **options)
    if splits.train.parts is not None:
        return None
    if splits.test is not None or splits.validation is not None:
        raise InputError(
            f'{path} has a column "split", which is not supported with memory= or backend=. Audit all rows: split="all" '
            "(--split all on the command line), or write the training rows to files of their own."
        )
    if splits.train.regression:
        return None
    source = replace(splits.train.source, path=str(path), digest=digest, title=title)
    codes: list[Any] = []
    values: list[Any] = []
    for piece in pieces:  # each distinct cell is encoded once
        column = piece.frame([str(source.label)])[str(source.label)]
        if is_nested(column):
            raise InputError(f'the column "{source.label}" holds lists; expected one label a row.')
        numbers, distinct = pd.factorize(column, use_na_sentinel=False)
        codes.append(numbers + len(values))
        values += list(distinct)
    target, classes = encode_labels(values, missing=source.missing_given)
    fields = ("kind", "label", "text", "columns", "embedding", "features_given")
    read_as = Source(**{name: getattr(source, name) for name in fields})
    pieces = [replace(piece, source=read_as) for piece in pieces]
    return ChunkedDataset.of(pieces, target[np.concatenate(codes)], classes, replace(splits.train, source=source))


# --- .npy files -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrayRange:
    """Consecutive rows of an .npy file."""

    path: str
    start: int
    rows: int

    def read(self) -> Dataset:
        # Mapped only for this moment: mapped pages count as memory of the process.
        with numpy_damage(self.path):
            x = np.load(self.path, mmap_mode="r", allow_pickle=False)[self.start : self.start + self.rows]
        x = np.array(x, np.float32)
        broken = not_finite(x)
        if len(broken):
            raise InputError(
                f"{self.path} has a value that is not a finite number in row {self.start + broken[0]}. Fill or remove it."
            )
        index = np.arange(self.start, self.start + self.rows)
        return Dataset(x, np.full(len(x), UNLABELED), (), index=index, source=Source(kind="features"))


def _open_array(path: Path, labels: Any, options: Mapping[str, Any]) -> ChunkedDataset | None:
    """The chunks of an .npy file; None if the labels are not one class a row."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path.")
    with numpy_damage(path):
        shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    if len(shape) != 2:
        raise InputError(f"{path} has shape {shape}; expected (N, features) with memory= or backend=.")
    if labels is None:
        raise InputError("an .npy file has no labels of its own; name them by labels= (--labels).")
    cells = (
        read_labels(labels, options.get("labels_key")).cells if isinstance(labels, (str, Path)) else np.asarray(labels)
    )
    if cells.ndim == 2:
        return None
    if cells.shape != shape[:1]:
        raise InputError(f"{path} has {shape[0]} samples, and the labels have shape {cells.shape}.")
    if cells.dtype.kind == "f" and (np.mod(cells[np.isfinite(cells)], 1) != 0).any():
        return None
    codes, values = pd.factorize(cells, use_na_sentinel=False)
    numbers, classes = encode_labels(list(values))
    rows, size = shape[0], CHUNK_ROWS
    pieces = [ArrayRange(str(path), start, min(size, rows - start)) for start in range(0, rows, size)]
    sample = _joined([piece.read().subset(here) for piece, here in _sampled(pieces)])
    source = Source(kind="features", path=str(path), digest=digest_source(path), title=path.name)
    return ChunkedDataset.of(pieces, numbers[codes], classes, replace(sample, source=source))


Chunk = MemoryRange | RowGroups | ArrayRange
"""Consecutive rows of a data set; `read` returns the samples without their labels, with their ``index`` in the whole source."""


# --- finished stages ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FinishedStages:
    """Results of finished stages in a folder, from which an interrupted audit goes on."""

    folder: Path

    def embeddings(self, chunk: int) -> Path:
        """The file with the embeddings of a chunk."""
        return self.folder / f"embeddings-{chunk:05d}.npy"

    def embedded(self, chunk: int) -> Singles:
        """The embeddings of a chunk."""
        return np.load(self.embeddings(chunk), allow_pickle=False)

    def judged(self, chunk: int) -> Path:
        """The file with the judged rows of a chunk."""
        return self.folder / "suspects" / f"part-{chunk:05d}.parquet"

    def write_judged(self, chunk: int, columns: Mapping[str, NDArray[Any]], classes: tuple[str, ...]) -> None:
        """Stores the judged rows of a chunk: columns (B,) by name; "given" and "suggested" are class numbers, -1 for missing ones."""
        pyarrow = require("pyarrow", "writing suspects as Parquet", "parquet")

        names = pyarrow.array(classes, pyarrow.string())
        table = {}
        for name, values in columns.items():
            table[name] = pyarrow.array(values, from_pandas=True)
            if name in ("given", "suggested"):
                codes = pyarrow.array(values.astype(np.int32), mask=values == UNLABELED)
                table[name] = pyarrow.DictionaryArray.from_arrays(codes, names)
        make_folder(self.folder / "suspects")
        _write_table(pyarrow.table(table), self.judged(chunk))

    def flag(self, index: Ints) -> None:
        """Flags the judged rows with these indices, and no others."""
        from pyarrow import array, parquet

        for file in sorted((self.folder / "suspects").glob("*.parquet")):
            table = parquet.read_table(file, partitioning=None)
            flagged = array(np.isin(table["index"].to_numpy(), index))
            _write_table(table.set_column(table.column_names.index("flagged"), "flagged", flagged), file)


def _write_table(table: Any, path: Path) -> None:
    from pyarrow import BufferOutputStream, parquet

    out = BufferOutputStream()
    parquet.write_table(table, out)
    write_atomically(path, out.getvalue().to_pybytes())
