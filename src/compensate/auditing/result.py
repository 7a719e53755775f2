"""The result of an audit: suspect labels, their probabilities of error, and what to do with them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.auditing import exchange, store
from compensate.auditing.apply import apply_corrections
from compensate.auditing.content import sample_cells
from compensate.auditing.decisions import Applied, Correction, changes, check_source, read_corrections
from compensate.auditing.digests import digest_text
from compensate.auditing.findings import SAMPLE_KINDS, Findings
from compensate.auditing.labels.base import LabelKind
from compensate.auditing.labels.classes import Classes
from compensate.auditing.write_back import guard
from compensate.data.dataset import Dataset, Ints, Singles, Source
from compensate.errors import InputError
from compensate.files import write_atomically

if TYPE_CHECKING:
    from compensate.auditing.judge import Judge

FLAGGED = 2 / 3
"""A label is flagged where an error is twice as likely as not."""

LIKELY = 0.5
"""The probability above which a label is more likely wrong than right."""

WRITTEN = 20_000
"""Rows of a table that are converted to text at once."""


@dataclass(frozen=True, eq=False)
class ListedRows:
    """The rows of chunked data that are shown and saved: the most suspect ones, and some certain ones.

    Attributes:
        rows: (L,) their positions in the audit, ascending.
        data, probabilities, vectors, row_digests, ids: as in `Audit`, of these rows.
    """

    rows: Ints
    data: Dataset
    probabilities: Singles
    vectors: Any
    row_digests: NDArray[np.uint64] | None = None
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Audit(Findings):
    """Findings about the labels of a source; see `compensate.auditing.findings.Findings` for its arrays.

    Attributes:
        kind: image, text, table, embedding or regression.
        source: where the data came from, and how they were read.
        label_kind: the kind of the labels; see `compensate.auditing.labels`.
        row_digests: (N,) of the rows without their labels, if the source has any.
        found_issues: other problems of the data, if they were searched for; see `issues`.
        listed: for data that were read in chunks, the rows with their samples that are shown and saved; see `shown`.
    """

    kind: str
    source: Source
    label_kind: type[LabelKind] = Classes
    row_digests: NDArray[np.uint64] | None = None
    found_issues: pd.DataFrame | None = None
    listed: ListedRows | None = None

    def __post_init__(self) -> None:
        if self.row_digests is None and not self.addresses and self.source.row_digests is not None:
            object.__setattr__(self, "row_digests", self.source.row_digests[self.index])

    @property
    def title(self) -> str:
        """The name of the data."""
        return self.source.title

    @property
    def source_digest(self) -> str:
        """The digest of the audited file or folder; see `compensate.auditing.digests`."""
        return self.source.digest

    @property
    def config(self) -> dict[str, Any]:
        """How the data were read and the audit was made, as it is stored."""
        return {**self.source.stored(), **self.provenance.stored()}

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        r = self.noise_rate
        return (
            f"Audit of {self.title}: {len(self):,} labels, about {r.value:.1%} look wrong ({r.low:.1%} to {r.high:.1%}), "
            f"{int(self.mask.sum()):,} flagged at {self.expected_precision:.2f} expected precision"
        )

    def _repr_html_(self) -> str:
        from compensate.auditing.page import audit_html

        return audit_html(self)

    # --- findings ---------------------------------------------------------------------------------------------

    @property
    def regression(self) -> bool:
        """Whether the labels are quantities."""
        return not self.classes

    @property
    def threshold(self) -> float:
        """The probability of error from which on labels are flagged."""
        return FLAGGED

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(N,) which labels are flagged."""
        return self.p_error >= self.threshold

    @property
    def expected_precision(self) -> float:
        """The expected share of flags that are right; 1 if there are none."""
        return float(self.p_error[self.mask].mean()) if self.mask.any() else 1.0

    @cached_property
    def rows(self) -> Ints:
        """(N,) the 0-based row of the source that each label belongs to: a sentence of tagged tokens, an image of masks."""
        return np.array([address.row for address in self.addresses], np.int64) if self.addresses else self.index

    def position(self, labels: Any) -> Any:
        """The positions in `data` of the samples that these labels belong to."""
        return labels if not self.addresses else self._positions[labels]

    @cached_property
    def _positions(self) -> Ints:
        if self.data is None:
            return self.rows
        places = {row: place for place, row in enumerate(self.data.index.tolist())}
        return np.array([places[row] for row in self.rows.tolist()], np.int64)

    def part(self, label: int) -> str:
        """The address of a label as corrections carry it; empty where rows have one label."""
        return self.label_kind.format(self.addresses[label]) if self.addresses else ""

    def row_digest(self, label: int) -> str:
        """The digest of the row of a label as corrections carry it; empty if there is none."""
        digest = 0 if self.row_digests is None else int(self.row_digests[label])
        return digest_text(digest) if digest else ""

    @cached_property
    def suspects(self) -> pd.DataFrame:
        """All audited labels, most suspect first: index (the row), id, given, suggested, score, p_error, flagged, and the evidence.

        Where a row has several labels, further columns name the label: label; token and tokens; or file and pixels.
        """
        order = np.argsort(-self.log_odds, kind="stable")
        columns: dict[str, Any] = {"index": self.rows[order]}
        if self.ids:
            columns["id"] = [self.ids[i] for i in order]
        if self.addresses:
            columns |= self.label_kind.address_columns([self.addresses[i] for i in order])
        columns |= {
            "given": self.names(self.given[order]),
            "suggested": self.names(self.suggested[order]),
            "score": self.log_odds[order],
            "p_error": self.p_error[order],
            "flagged": self.mask[order],
        }
        return pd.DataFrame(columns | {name: values[order] for name, values in self.evidence.items()})

    @property
    def flagged(self) -> pd.DataFrame:
        """The suspects that are flagged."""
        return self.suspects[self.suspects["flagged"]]

    @cached_property
    def issues(self) -> pd.DataFrame:
        """Other problems of the data (`compensate.auditing.issues.KINDS`), such as duplicates and outliers; duplicates with different labels come first.

        Rows are named by ``index`` and, if the source has any, by the file or ``id``. The search runs on first access. With a test set, call
        ``compensate.auditing.issues.find_issues(audit, test)``.
        """
        from compensate.auditing.issues import find_issues, with_ids

        return with_ids(find_issues(self) if self.found_issues is None else self.found_issues, self)

    @property
    def predicted(self) -> pd.DataFrame:
        """Rows without a label: index, the predicted label, and its probability."""
        if not self.unlabeled:
            return pd.DataFrame({"index": [], "suggested": [], "probability": []})
        return pd.DataFrame({**self.unlabeled, "suggested": self.names(self.unlabeled["suggested"])})

    @cached_property
    def confusion(self) -> pd.DataFrame:
        """(C, C) the estimated number of rows by given label (rows) and true label (columns)."""
        if self.regression:
            raise InputError("quantities have no confusion matrix; see suspects.")
        counts = np.zeros((len(self.classes), len(self.classes)))
        np.add.at(counts, (self.given, self.given), 1 - self.p_error)
        np.add.at(counts, (self.given, self.suggested), self.p_error)
        given, true = (pd.Index(self.classes, name=name) for name in ("given", "true"))
        return pd.DataFrame(counts, index=given, columns=true)

    def names(self, labels: NDArray[Any]) -> list[str]:
        """Labels as texts."""
        return [f"{value:.12g}" for value in labels] if self.regression else [self.classes[c] for c in labels]

    @cached_property
    def scorer(self) -> Judge | None:
        """The fitted model, if there is one."""
        if isinstance(self.fitted, Path):
            from compensate.auditing.judge import Judge

            return Judge.load(self.fitted)
        return self.fitted

    def score(self, new: Any, labels: Any = None, **options: Any) -> pd.DataFrame:
        """Scores the labels of new rows with the fitted model of this audit; nothing is trained.

        Args:
            new: data as `audit` takes it, of the kind that was audited: a data frame or file with the same columns, texts, features or images.
            labels: (N,) class names or numbers, if the new data does not hold them.
            options: of the reader, as for `audit`.

        Returns:
            In the order of the rows: index, given, suggested, score, p_error, flagged. Rows without a label have a suggestion but no
            probability; a label outside the classes has the probability 1.
        """
        from compensate.auditing.check import score

        return score(self, new, labels, options)

    @cached_property
    def shown(self) -> Audit:
        """The audit that is shown and saved: this one, or its listed rows."""
        if self.listed is None:
            return self
        listed, rows = self.listed, self.listed.rows
        return replace(
            self,
            listed=None,
            **{name: getattr(self, name)[rows] for name in ("index", "given", "suggested", "log_odds", "p_error")},
            evidence={name: values[rows] for name, values in self.evidence.items()},
            **{name: getattr(listed, name) for name in ("data", "probabilities", "vectors", "row_digests", "ids")},
            provenance=replace(self.provenance, rows=len(self), flagged=int(self.mask.sum())),
        )

    # --- decisions --------------------------------------------------------------------------------------------

    def report(self, path: str | Path, *, data: Dataset | None = None) -> Path:
        """Writes the review page; `data` shows the samples of an audit that was loaded from disk."""
        from compensate.auditing.page import page_of, write_page

        return write_page(page_of(self if data is None else replace(self, data=data)), path)

    def accepted(self, at_least: float = LIKELY) -> tuple[Correction, ...]:
        """Corrections that accept every suggestion with at least this probability of error, without review."""
        if not 0 <= at_least <= 1:
            raise InputError(f"{at_least:g} is not a probability; give a number from 0 to 1, for example 0.9.")
        chosen = np.flatnonzero(self.p_error >= at_least)
        given, suggested = self.names(self.given[chosen]), self.names(self.suggested[chosen])
        if self.regression:  # as exact as the data, to be recognized there
            given = [repr(float(value)) for value in self.given[chosen]]
        return tuple(
            Correction(int(self.index[i]), g, "accept", s, self.row_digest(i), self.source_digest, self.part(i))
            for i, g, s in zip(chosen.tolist(), given, suggested, strict=True)
        )

    @property
    def reading(self) -> dict[str, str]:
        """The encoding and the delimiter that the file was read with, where they were given."""
        asked = (self.provenance.asked or {}).get("options")
        given = {**(asked if isinstance(asked, dict) else {}), **self.source.stored()}
        return {name: str(given[name]) for name in ("encoding", "delimiter") if given.get(name)}

    def apply(
        self,
        corrections: str | Path | Iterable[Correction],
        out: str | Path | None = None,
        *,
        force: bool = False,
        rematch: bool = False,
    ) -> NDArray[Any] | Applied:
        """The corrected labels, or with `out` (for an audit of a file or folder) the corrected data written there.

        Args:
            corrections: corrections.csv as the review page exports it, or `Correction` records such as `accepted` gives.
            out: the file to write.
            force: overwrite it.
            rematch: with `out`, find each row by its content if the file has changed.

        Returns:
            Labels of the audited rows in their order, class names or quantities; with `out`, a summary.
        """
        decided = read_corrections(corrections) if isinstance(corrections, (str, Path)) else tuple(corrections)
        if out is not None:
            if not self.source.path:
                raise InputError(
                    "this audit is of arrays, not of a file, so there is no file to write; call `apply` without `out` and take "
                    "the labels it returns."
                )
            return apply_corrections(
                self.source.path, decided, out, label=self.source.label, **self.reading, force=force, rematch=rematch
            )
        check_source(decided, self.source_digest, self.title)
        cells: list[Any] = [""] * (int(self.index.max(initial=-1)) + 1)
        for place, name in zip(self.index.tolist(), self.names(self.given), strict=True):
            cells[place] = name
        new = changes(cells, decided, self.title)
        labels: NDArray[Any] = np.array([new.get(i, cells[i]) for i in self.index.tolist()], dtype=object)
        return labels.astype(np.float64) if self.regression else labels

    # --- other tools ------------------------------------------------------------------------------------------

    def to_cleanlab(self) -> dict[str, Any]:
        """`pred_probs` (N, C), `labels` (N,) and `issues`, a frame as cleanlab's Datalab has it for label issues.

        The frame has is_label_issue, label_score (1 - p_error, smaller is worse), given_label and predicted_label, indexed by the row. The
        probabilities are out of fold.
        """
        if self.regression or self.probabilities is None:
            raise InputError("cleanlab's form needs class probabilities, which this audit has not kept.")
        columns = {
            "is_label_issue": self.mask,
            "label_score": 1 - self.p_error,
            "given_label": self.names(self.given),
            "predicted_label": self.names(np.where(self.mask, self.suggested, self.given)),
        }
        issues = pd.DataFrame(columns, index=self.index)
        return {"pred_probs": self.probabilities, "labels": self.given, "issues": issues}

    def to_frame(self) -> pd.DataFrame:
        """All audited rows in the order of the data: their own columns, then suggested, p_error and flagged."""
        return exchange.frame(self)

    def to_dataset(self) -> Any:
        """As `to_frame`, a data set of Hugging Face's `datasets` with the names of the classes in its label columns."""
        return exchange.dataset(self)

    def to_label_studio(self, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
        """Tasks to import into Label Studio, most suspect first: the suggestion as a prediction, the given label as an annotation.

        Args:
            everything: all rows, not only the flagged ones.
            images: where Label Studio finds the files of an image folder, such as ``/data/local-files/?d=pics``; by default images
                are embedded.

        The prediction score is 1 - p_error. `compensate.auditing.exchange.label_studio_config` makes the labeling interface, and
        ``apply(export.json)`` reads the decisions.
        """
        return exchange.label_studio_tasks(self, everything=everything, images=images)

    def to_argilla(self, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
        """Records for ``dataset.records.log`` of Argilla 2, most suspect first; arguments as for `to_label_studio`.

        Argilla needs a mapping of suggestions: ``mapping={key: key for key in records[0] if key.startswith("label.")}``.
        """
        return exchange.argilla_records(self, everything=everything, images=images)

    def to_fiftyone(self, *, everything: bool = True, images: str | None = None) -> list[dict[str, Any]]:
        """Samples for ``fiftyone.Sample.from_dict``: ground_truth, suggested, mistakenness, and a tag for flagged samples.

        Args:
            everything: all images, or only the flagged ones.
            images: the folder of the images, if it has moved.
        """
        return exchange.fiftyone_samples(self, everything=everything, images=images)

    # --- files ------------------------------------------------------------------------------------------------

    def write_suspects(self, path: str | Path) -> Path:
        """Writes `suspects` as CSV; text that a spreadsheet would evaluate is guarded.

        Flagged rows carry the content of their samples, if the data is available: the text, or the cells of the table.
        """
        if self.listed is not None:
            return self.shown.write_suspects(path)
        frame = self.suspects
        flagged = np.argsort(-self.log_odds, kind="stable")[: int(self.mask.sum())]
        cells = sample_cells(self, flagged, set(frame.columns))
        # Flagged rows come first; the others stay empty to keep the list smaller than the data.
        padded = {name: [*values, *[""] * (len(frame) - len(values))] for name, values in cells.items()}
        return write_csv(path, pd.concat([frame, pd.DataFrame(padded)], axis=1) if padded else frame)

    def write_issues(self, path: str | Path) -> Path:
        """Writes `issues` as CSV."""
        return write_csv(path, self.issues.astype({"index": object, "other": object}).where(self.issues.notna(), ""))

    def write_predictions(self, path: str | Path) -> Path:
        """Writes `predicted` as CSV."""
        return write_csv(path, self.predicted)

    def save(self, path: str | Path) -> Path:
        """Writes the audit and its fitted model to a folder, nothing pickled. `load` reads it."""
        store.save_audit(self.shown, Path(path))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Audit:
        """Reads the files of `save`; they hold neither data nor model."""
        return cls(**store.load_audit(Path(path)))


def build_audit(
    source: Source, findings: Findings, label_kind: type[LabelKind] = Classes, kind: str | None = None
) -> Audit:
    """Builds an audit from findings.

    If the labels are predicted no better than by chance, no probability of error exceeds 1/2 and a note says so.

    Args:
        source: where the data came from.
        findings: of a judge; an audit of classes gets the kind of the labels.
        label_kind: the kind of the labels.
        kind: as in `Audit`; by default it follows the labels and the samples.
    """
    if isinstance(findings, Audit):
        return replace(findings, label_kind=label_kind)
    fields: dict[str, Any] = {**vars(findings), "notes": (*source.notes, *findings.notes)}
    if findings.provenance.by_chance:
        fields["p_error"] = np.minimum(findings.p_error, 0.5)
        fields["notes"] += (by_chance_note(label_kind.noun, source),)
    kind = kind or label_kind.page or SAMPLE_KINDS.get(source.kind, "embedding")
    return Audit(kind=kind, source=source, label_kind=label_kind, **fields)


def by_chance_note(labels: str, source: Source) -> str:
    """The note on labels or values that are predicted no better than by chance.

    >>> note = by_chance_note("labels", Source(label="priority", text="message", passed_over={"category": "is empty"}))
    >>> note[note.index("If") :]
    'If another column holds the labels: --label NAME ("category" was passed over: it is empty).'
    """
    if not source.label:
        return (
            f"The {labels} cannot be predicted from the samples better than by chance, so none is flagged. "
            f"Check that {labels} and samples are in the same order."
        )
    by = "the given features" if source.features_given else f'"{source.text}"' if source.text else "the other columns"
    over = ", ".join(f'"{name}" was passed over: it {why}' for name, why in source.passed_over.items())
    return (
        f'The {labels} in "{source.label}" cannot be predicted from {by} better than by chance, so none is flagged. '
        f"If another column holds the {labels}: --label NAME{f' ({over})' if over else ''}."
    )


def write_csv(path: str | Path, frame: pd.DataFrame) -> Path:
    """Writes a table as CSV; text that a spreadsheet would evaluate is guarded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([guard(str(name)) for name in frame.columns])
    # Columns are converted in blocks of rows: quicker than cell by cell, and without all cells in memory as texts.
    for first in range(0, len(frame), WRITTEN):
        part = frame.iloc[first : first + WRITTEN]
        writer.writerows(zip(*(_texts(part.iloc[:, j]) for j in range(part.shape[1])), strict=True))
    write_atomically(path, text.getvalue().encode("utf-8", "surrogatepass"))
    return Path(path)


def _texts(column: pd.Series[Any]) -> list[str]:
    values, kind = column.tolist(), column.dtype.kind
    if kind == "b":
        return ["true" if value else "false" for value in values]
    if kind == "f":
        return [f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}" for value in values]
    texts = [str(value) for value in values]
    if kind in "iu":
        return texts
    guarded = {text: guard(text) for text in set(texts)}  # most columns have few distinct cells
    return [guarded[text] for text in texts]
