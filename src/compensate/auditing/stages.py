"""Finished stages of an audit in pieces, in a folder: what is there is not computed again.

Every file gets its name once it is complete. Embeddings and judged rows have a file for each piece, written by whoever computed it: the
workers of a cluster need a folder that all of them see.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from compensate.auditing.arrays import Ints, Singles
from compensate.auditing.learners import View
from compensate.auditing.result import FLAGGED
from compensate.data.dataset import UNLABELED
from compensate.extras import require
from compensate.files import make_folder, replaced_folder, write_atomically

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
