"""`Dataset`: samples with labels and a stable index, and the description of their source."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

DATA_VARIABLE = "COMPENSATE_DATA"


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder of named data sets and word vectors: `data_dir`, else the environment variable COMPENSATE_DATA, else the user's cache.

    >>> data_folder("my/data").name
    'data'
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compensate"
    return Path(data_dir or os.environ.get(DATA_VARIABLE) or cache).expanduser()


def generator(seed: int, purpose: str, *more: int) -> np.random.Generator:
    """A random generator that depends on the seed, the purpose, and further numbers such as the epoch.

    Two purposes never share a stream: the split of a run must not determine which labels are flipped.
    """
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number of at least 0.")
    return np.random.default_rng([int(seed), zlib.crc32(purpose.encode()), *more])


class Ragged:
    """N sequences of whole numbers, concatenated in one array.

    ``x[3]`` is one sequence, ``x[rows]`` a `Ragged` of these rows, `pad` a rectangular array.

    >>> Ragged.of([[5, 6, 7], [8], [9, 4]])[np.array([2, 0])].pad()
    array([[9, 4, 0],
           [5, 6, 7]])
    """

    def __init__(self, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self.values, self.offsets = values, offsets

    @classmethod
    def of(cls, sequences: Iterable[ArrayLike], dtype: Any = np.int64) -> Ragged:
        """From one array or list per sequence."""
        rows = [np.asarray(row, dtype=dtype) for row in sequences]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
        return cls(np.concatenate(rows) if rows else np.empty(0, dtype), offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: Any) -> Any:
        if np.ndim(rows) > 0:
            return Ragged.of([self[row] for row in rows], self.values.dtype)
        row = range(len(self))[rows]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def pad(self) -> NDArray[np.int64]:
        """(N, longest) the sequences, each followed by zeros; at least one column wide."""
        lengths = self.lengths
        out = np.zeros((len(self), int(lengths.max(initial=1))), dtype=np.int64)
        out[np.arange(out.shape[1]) < lengths[:, None]] = self.values
        return out


Ints = NDArray[np.int64]  # class numbers, rows, folds
Floats = NDArray[np.float64]  # log probabilities and numbers computed from them
Singles = NDArray[np.float32]  # features and predictions, of which there are many
UNLABELED = -1  # the target of a row whose label is missing
# Names of folders, splits and cells that stand for a part of a data set
PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test", "validation": "validation"}
PARTS |= dict.fromkeys(("valid", "val", "dev"), "validation")
OTHERS = ("test", "validation")  # parts that are not used for training


@dataclass(frozen=True)
class Estimate:
    """An estimated value with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Source:
    """Where a data set came from, and how it was read."""

    kind: str = ""  # of the samples: "text", "table", "images" or "features"
    title: str = "the data"
    path: str = ""  # the file, folder or pattern that was read; empty for arrays
    digest: str = ""  # of the file or folder; see `compensate.auditing.content`
    row_digests: NDArray[np.uint64] | None = None  # (rows,) of the rows without their labels
    label: str | None = None  # the label column of a table
    text: str | None = None  # the text column of a table
    label_given: bool = False  # whether the user named the label column
    target: str = ""  # how the labels were read, such as "5 classes"
    columns: tuple[Any, ...] = ()  # the roles of the columns of a table
    passed_over: Mapping[str, str] = field(default_factory=dict)  # columns that look like labels, and why they are not
    encoder: Any = None  # the fitted encoder of a table's columns
    folder: str = ""  # of the images
    encoding: str | None = None  # of a text file, where the user gave it
    delimiter: str | None = None
    embedding: str | None = None  # the column of a table that holds embeddings, which are judged
    features_given: bool = False  # whether the user gave embeddings of the samples
    split: str | None = None  # the column that assigns rows to parts
    left_out: Mapping[str, int] = field(default_factory=dict)  # the number of rows in each part that is not read here
    missing: Mapping[str, int] = field(default_factory=dict)  # cells that stand for a missing label, and their counts
    missing_given: list[str] | None = None  # the cells that the user named as missing labels
    runners_up: tuple[str, ...] = ()  # other columns that could hold the labels
    merged: Mapping[str, str] = field(default_factory=dict)  # merged spellings of class names, with the name they got
    notes: tuple[str, ...] = ()  # remarks about how the data were read

    def stored(self) -> dict[str, Any]:
        """The fields that an audit stores."""
        fields = {"source": self.path} | {name: getattr(self, name) for name in STORED}
        return {name: value for name, value in fields.items() if value}


# Fields of a `Source` that an audit stores under their own names
STORED = ("label", "text", "embedding", "label_given", "missing_given", "merged", "encoding", "delimiter")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples in memory.

    Attributes:
        x: the samples: (N, C, H, W) images, uint8 or float in [0, 1]; (N, F) features; texts; `Ragged` token ids.
        target: (N,) class numbers, `UNLABELED` for a missing label; floats for regression.
        classes: the class names, in the order of their numbers; empty for regression.
        index: (N,) the 0-based row of the source before any split or filter; by default 0..N-1.
        ids: (N,) names of the samples in the source (a file name, an id column), if it has any.
        raw: the rows of the source (texts, table rows, paths) to show to people, if they differ from ``x``.
        rows: the number of rows of the source; ``index < rows``.
        source: where the samples came from and how they were read.
        others: the other parts of the source by name, such as the test part, in which copies of the samples are looked for.
        parts: the labels of samples with several: label sets, token tags or masks. ``target`` then only groups the samples.

    >>> data = Dataset(np.eye(4), np.array([0, 1, 0, 1]), ("cat", "dog"))
    >>> data.subset(data.target == 1).index
    array([1, 3])
    """

    x: Any
    target: NDArray[Any]
    classes: tuple[str, ...]
    index: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    ids: NDArray[Any] | None = None
    raw: Any = None
    rows: int = -1
    source: Source = field(default_factory=lambda: Source())
    parts: Any = None
    others: Mapping[str, Dataset] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.index):
            object.__setattr__(self, "index", np.arange(len(self.target)))
        if self.rows < 0:
            object.__setattr__(self, "rows", int(self.index.max(initial=-1)) + 1)
        parts = {name: getattr(self, name) for name in ("x", "target", "index", "ids", "raw")}
        sizes = {name: len(part) for name, part in parts.items() if part is not None}
        if len(set(sizes.values())) > 1:
            raise InputError(f"the parts of a data set differ in length: {sizes}. Each needs one entry a sample.")
        if not self.regression and len(self) and not -1 <= self.target.min() <= self.target.max() < self.num_classes:
            row = int(np.flatnonzero((self.target < -1) | (self.target >= self.num_classes))[0])
            known = f"0 to {self.num_classes - 1}, or -1 for a missing label"
            raise InputError(f"the label of row {self.index[row]} is {self.target[row]}; expected {known}.")

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, row: int) -> tuple[Any, Any, int]:
        """A sample ``(x, target, index)``, as in a PyTorch data set; bytes of images become floats in [0, 1]."""
        x = self.x[row]
        if getattr(x, "dtype", None) == np.uint8 and x.ndim == 3:
            x = x.astype(np.float32) / 255
        return x, self.target[row].item(), int(self.index[row])

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def regression(self) -> bool:
        """Whether the target is a quantity and not a class."""
        return bool(np.issubdtype(self.target.dtype, np.floating))

    @property
    def labeled(self) -> NDArray[np.bool_]:
        """(N,) whether the row has a label."""
        return ~np.isnan(self.target) if self.regression else self.target != UNLABELED

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """(C,) the number of labeled samples of each class."""
        return np.bincount(self.target[self.labeled], minlength=self.num_classes)

    def subset(self, rows: ArrayLike) -> Dataset:
        """The rows at these positions, or under this mask; ``index`` still refers to the rows of the source."""
        rows = np.asarray(rows)
        if rows.dtype == bool:
            if rows.shape != (len(self),):
                raise InputError(f"the mask has shape {rows.shape}; expected ({len(self)},), one entry a sample.")
            rows = np.flatnonzero(rows)
        rows = rows.astype(np.int64)
        if rows.ndim != 1 or (rows.size and not 0 <= rows.min() <= rows.max() < len(self)):
            raise InputError(f"subset needs positions from 0 to {len(self) - 1} in one dimension, or a mask.")
        ids = None if self.ids is None else self.ids[rows]
        raw = self.table.iloc[rows] if self.table is not None else None if self.raw is None else self.raw[rows]
        return replace(self, x=self.x[rows], target=self.target[rows], index=self.index[rows], ids=ids, raw=raw)

    @property
    def table(self) -> pd.DataFrame | None:
        """The rows as they were read from a table; None for other data."""
        return self.raw if hasattr(self.raw, "iloc") else None

    def relabel(self, target: ArrayLike) -> Dataset:
        """The same samples with other labels, one each."""
        return replace(self, target=np.asarray(target).astype(self.target.dtype))

    def split(self, fractions: Sequence[float], *, seed: int = 0) -> tuple[Dataset, ...]:
        """Random parts of the given shares, which must sum to one, stratified by class; samples keep the order of the source."""
        if min(fractions, default=0) <= 0 or abs(sum(fractions) - 1) > 1e-6:
            raise InputError(f"the fractions {tuple(fractions)} must be positive and sum to 1, as (0.8, 0.2).")
        order = generator(seed, "split").permutation(len(self))
        if not self.regression:
            order = order[np.argsort(self.target[order], kind="stable")]
        parts, rest = [], 1.0
        for share in fractions[:-1]:
            # Taking every (1 / share)-th sample, ordered by class, stratifies the parts.
            steps = np.floor(np.arange(len(order) + 1) * (share / rest) + 0.5)
            taken = np.diff(steps) > 0
            parts.append(order[taken])
            order, rest = order[~taken], rest - share
        return tuple(self.subset(np.sort(rows)) for rows in (*parts, order))


@dataclass(frozen=True, eq=False)
class Splits:
    """The training part of a data set, and its test and validation parts if it has them.

    >>> len(Splits(*Dataset(np.eye(4), np.array([0, 1, 0, 1]), ("cat", "dog")).split((0.5, 0.5))).test)
    2
    """

    train: Dataset
    test: Dataset | None = None
    validation: Dataset | None = None

    def part(self, name: str = "train") -> Dataset:
        """A part, with the others and the number of their rows."""
        parts = {n: part for n in ("train", *OTHERS) if (part := getattr(self, n)) is not None}
        if name not in parts:
            raise InputError(
                f'split is "{name}", and the data have the parts {", ".join(parts)}; expected one of them, or all.'
            )
        chosen = parts.pop(name)
        source = chosen.source
        left_out = source.left_out if name == "train" and source.left_out else {n: len(p) for n, p in parts.items()}
        return replace(chosen, others=parts, source=replace(source, left_out=left_out))
