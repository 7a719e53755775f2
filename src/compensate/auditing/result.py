"""The result of an audit: what is suspect, how sure that is, and what to do with it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.auditing import exchange, store
from compensate.auditing.decisions import (
    Applied,
    Correction,
    apply_corrections,
    changes,
    check_source,
    read_corrections,
)
from compensate.auditing.digests import digest_text
from compensate.auditing.labels.base import part_columns, part_rows
from compensate.auditing.page.model import Estimate
from compensate.auditing.write_back import guard
from compensate.data.dataset import Floats, Ints, Singles, Source
from compensate.errors import InputError
from compensate.files import write_atomically

if TYPE_CHECKING:
    from torch import nn

    from compensate.auditing.judge import Judge
    from compensate.data.dataset import Dataset

KINDS = {"images": "image", "text": "text", "table": "table", "features": "embedding"}
"""From the kind of the samples to the kind of the audit."""

FLAGGED = 2 / 3
"""A label is flagged where an error is twice as likely as not."""

LIKELY = 0.5
"""From here on a label is more likely wrong than right."""

WRITTEN = 20_000
"""Rows of a list that are made into text at once."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Provenance:
    """How an audit was made.

    Attributes:
        seed: of folds and everything random.
        folds: the number of folds.
        views: the share of each learner in the pooled prediction.
        agreement: the share of given labels that the pooled prediction agrees with; for quantities, the explained variance.
        by_chance: whether the labels cannot be predicted from the samples better than by chance.
        encoder, license, encoder_source: of the pretrained encoder.
        hint: which extra would bring better features.
        finetuned: the encoder that was trained on the labels.
        method, hyper, epochs, crossfit: of the training of a model.
        fitted_rows: the rows that learners were fitted on, if not all.
        labels: the names of the labels in label sets.
        shown: the kind of the samples, where labels are quantities.
        masks: the folder of masks.
        decided: decisions that were used.
        since: changes since an earlier audit.
        asked: arguments of the command line.
        rows, flagged: of all data, where only a part is listed.
    """

    seed: int | None = None
    folds: int = 1
    views: Mapping[str, float] = field(default_factory=dict)
    agreement: float | None = None
    by_chance: bool | None = None
    encoder: str = ""
    license: str = ""
    encoder_source: str = ""
    hint: str = ""
    finetuned: str = ""
    method: str = ""
    hyper: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    crossfit: bool = False
    fitted_rows: int | None = None
    labels: tuple[str, ...] = ()
    shown: str = ""
    masks: str = ""
    decided: Mapping[str, Any] | None = None
    since: Mapping[str, Any] | None = None
    asked: Mapping[str, Any] | None = None
    rows: int | None = None
    flagged: int | None = None

    def stored(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        empty = Provenance()
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != getattr(empty, f.name)}

    @classmethod
    def of_stored(cls, config: Mapping[str, Any]) -> Provenance:
        """From the stored fields; other keys are ignored."""
        known = {f.name: config[f.name] for f in fields(cls) if f.name in config}
        return cls(**known | {"labels": tuple(known.get("labels", ()))})


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


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found. Arrays have an entry for each audited row, in the order of the data.

    Attributes:
        kind: image, text, table, embedding or regression.
        source: where the data came from, and how they were read.
        classes: their names, in the order of their numbers; ``()`` for regression.
        index: (N,) the 0-based row of the source.
        given: (N,) the label as a class number, or a quantity.
        suggested: (N,) the label the audit would give.
        log_odds: (N,) that the given label is wrong; the score of the list of suspects.
        p_error: (N,) the probability of it.
        evidence: (N,) each: what the run observed, by name.
        noise_rate: the estimated share of wrong labels, with a 90 % interval.
        ids: (N,) names of the rows, if the source has any.
        probabilities: (N, C) the pooled out-of-fold prediction, if there is one.
        unlabeled: rows without a label: ``index``, ``suggested`` and its ``probability``.
        curves: accuracy and loss after each epoch.
        provenance: how the audit was made.
        notes: what a reader should know, such as rows that were left out.
        data: the audited data, if it is available; it is not saved.
        model: the trained model, if there is one; it is not saved here.
        parts: (N,) which label is meant, where a row has several; see `compensate.auditing.labels.base`. ``index`` then numbers the labels, and
            `rows` has the rows.
        sample: (N,) the position in ``data`` of the sample that a label belongs to, where it has several.
        row_digests: (N,) of the rows without their labels, if the source has any.
        fitted: the fitted model, by which `score` judges new rows, or the folder that it is read from when it is needed; none for
            quantities, probabilities and models of the user's.
        found_issues: what else is wrong with the data, if it was looked for; see `issues`.
        listed: for data that were read in chunks, the rows with their samples that are shown and saved; see `shown`.
    """

    kind: str
    source: Source
    classes: tuple[str, ...]
    index: Ints
    given: NDArray[Any]
    suggested: NDArray[Any]
    log_odds: Floats
    p_error: Floats
    evidence: Mapping[str, Floats]
    noise_rate: Estimate
    ids: tuple[str, ...] = ()
    probabilities: Singles | None = None
    unlabeled: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    curves: Mapping[str, list[float]] = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance)
    notes: tuple[str, ...] = ()
    data: Dataset | None = None
    model: nn.Module | None = None
    vectors: Any = None
    parts: tuple[str, ...] = ()
    sample: Ints | None = None
    row_digests: NDArray[np.uint64] | None = None
    fitted: Judge | Path | None = None
    found_issues: pd.DataFrame | None = None
    listed: ListedRows | None = None

    def __post_init__(self) -> None:
        if self.row_digests is None and not self.parts and self.source.row_digests is not None:
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
        from compensate.auditing.page.contents import audit_html

        return audit_html(self)

    # --- what was found ---------------------------------------------------------------------------------------

    @property
    def regression(self) -> bool:
        return not self.classes

    @property
    def threshold(self) -> float:
        """The probability of error from which on labels are flagged."""
        return FLAGGED

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(N,) which rows are flagged."""
        return self.p_error >= self.threshold

    @property
    def expected_precision(self) -> float:
        """The share of flags that are expected to be right; 1 if there are none."""
        return float(self.p_error[self.mask].mean()) if self.mask.any() else 1.0

    @property
    def rows(self) -> Ints:
        """(N,) the 0-based row of the source that each label belongs to: a sentence of tagged tokens, an image of masks."""
        if not self.parts:
            return self.index
        found = part_rows(self.parts)
        return np.asarray(self.sample if found is None else found, np.int64)

    @cached_property
    def suspects(self) -> pd.DataFrame:
        """All audited labels, most suspect first: index (the row), id, given, suggested, score, p_error, flagged, and the evidence.

        Where a row has several labels, further columns say which one is meant: label; token and tokens; or file and pixels.
        """
        order = np.argsort(-self.log_odds, kind="stable")
        columns: dict[str, Any] = {"index": self.rows[order]}
        if self.ids:
            columns["id"] = [self.ids[i] for i in order]
        if self.parts:
            columns |= part_columns([self.parts[i] for i in order])
        columns |= {
            "given": self.names(self.given[order]),
            "suggested": self.names(self.suggested[order]),
            "score": self.log_odds[order],
            "p_error": self.p_error[order],
            "flagged": self.mask[order],
        }
        return pd.DataFrame(columns | {name: values[order] for name, values in self.evidence.items()})

    @cached_property
    def issues(self) -> pd.DataFrame:
        """What else is wrong with the data (`compensate.auditing.issues.KINDS`): duplicates, those with different labels first, outliers, and so on.

        Rows are named by ``index`` and, if the source has any, by the file or ``id``.

        It is looked for when it is first asked for. With a test set: ``compensate.auditing.issues.find_issues(audit, test)``.
        """
        from compensate.auditing.issues import find_issues, with_ids

        return with_ids(find_issues(self) if self.found_issues is None else self.found_issues, self)

    @property
    def flagged(self) -> pd.DataFrame:
        """The suspects that are flagged."""
        return self.suspects[self.suspects["flagged"]]

    @property
    def predicted(self) -> pd.DataFrame:
        """Rows without a label: index, the label the model would give, and its probability."""
        if not self.unlabeled:
            return pd.DataFrame({"index": [], "suggested": [], "probability": []})
        columns = {**self.unlabeled, "suggested": self.names(self.unlabeled["suggested"])}
        return pd.DataFrame(columns)

    @cached_property
    def confusion(self) -> pd.DataFrame:
        """(C, C) the estimated number of rows by given label (rows) and true label (columns)."""
        if self.regression:
            raise InputError("quantities have no confusion matrix; see suspects.")
        found = np.zeros((len(self.classes), len(self.classes)))
        np.add.at(found, (self.given, self.given), 1 - self.p_error)
        np.add.at(found, (self.given, self.suggested), self.p_error)
        return pd.DataFrame(
            found, index=pd.Index(self.classes, name="given"), columns=pd.Index(self.classes, name="true")
        )

    def names(self, labels: NDArray[Any]) -> list[str]:
        """Labels as texts."""
        if self.regression:
            return [f"{value:.12g}" for value in labels]
        return [self.classes[c] for c in labels]

    @cached_property
    def scorer(self) -> Judge | None:
        """The fitted model, if there is one."""
        if isinstance(self.fitted, Path):
            from compensate.auditing.judge import Judge

            return Judge.load(self.fitted)
        return self.fitted

    def score(self, new: Any, labels: Any = None, **options: Any) -> pd.DataFrame:
        """How likely the labels of new rows are wrong, by the fitted model of this audit; nothing is trained.

        Args:
            new: what `audit` takes, of the kind that was audited: a data frame or file with the same columns, texts, features or images.
            labels: (N,) class names or numbers, if the new data does not hold them.
            options: of the reader, as for `audit`.

        Returns:
            In the order of the rows: index, given, suggested, score, p_error, flagged. Rows without a label have a suggestion, and
            no probability; a label that is none of the classes has the probability 1.
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

    # --- what to do with it -----------------------------------------------------------------------------------

    def report(self, path: str | Path, *, data: Dataset | None = None) -> Path:
        """Writes the review page; `data` shows the samples of an audit that was loaded from disk."""
        from compensate.auditing.page import write_page
        from compensate.auditing.page.contents import page_of, page_of_listed

        if self.listed is not None:
            write_page(page_of_listed(self, self.shown), path)
        else:
            write_page(page_of(self if data is None else replace(self, data=data)), path)
        return Path(path)

    def accepted(self, at_least: float = LIKELY) -> tuple[Correction, ...]:
        """Corrections that accept every suggestion with at least this probability of error, without review."""
        if not 0 <= at_least <= 1:
            raise InputError(f"{at_least:g} is no probability; give a number from 0 to 1, for example 0.9.")
        rows = np.flatnonzero(self.p_error >= at_least)
        given, suggested = self.names(self.given[rows]), self.names(self.suggested[rows])
        if self.regression:  # as exact as the data, or a decision would not be known to be about this row
            given = [repr(float(value)) for value in self.given[rows]]
        return tuple(
            Correction(
                int(self.index[i]),
                g,
                "accept",
                s,
                self.row_digest(i),
                self.source_digest,
                self.parts[i] if self.parts else "",
            )
            for i, g, s in zip(rows.tolist(), given, suggested, strict=True)
        )

    def position(self, rows: Any) -> Any:
        """The positions in `data` of the samples that these audited labels belong to."""
        return rows if self.sample is None else self.sample[rows]

    def row_digest(self, row: int) -> str:
        """The digest of an audited row as corrections carry it; nothing if there is none."""
        return "" if self.row_digests is None or not self.row_digests[row] else digest_text(int(self.row_digests[row]))

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

        Labels are returned for the audited rows in their order: class names, or quantities.
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
        rows = int(self.index.max(initial=-1)) + 1
        cells: list[Any] = [""] * rows
        for place, name in zip(self.index.tolist(), self.names(self.given), strict=True):
            cells[place] = name
        new = changes(cells, decided, self.title)
        labels: NDArray[Any] = np.array([new.get(i, cells[i]) for i in self.index.tolist()], dtype=object)
        return labels.astype(np.float64) if self.regression else labels

    def to_cleanlab(self) -> dict[str, Any]:
        """`pred_probs` (N, C), `labels` (N,) and `issues`, a frame as cleanlab's Datalab has it for label issues.

        The frame has is_label_issue, label_score (1 - p_error, smaller is worse), given_label and predicted_label. Rows
        are those of `index`. The probabilities are out of fold.
        """
        if self.regression or self.probabilities is None:
            raise InputError("cleanlab's form needs class probabilities, which this audit has not kept.")
        issues = pd.DataFrame(
            {
                "is_label_issue": self.mask,
                "label_score": 1 - self.p_error,
                "given_label": self.names(self.given),
                "predicted_label": self.names(np.where(self.mask, self.suggested, self.given)),
            },
            index=self.index,
        )
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
            everything: all rows, and not the flagged ones alone.
            images: where Label Studio finds the files of an image folder, such as ``/data/local-files/?d=pics``; by default images
                are embedded.

        Sort by prediction score: it is 1 - p_error. `compensate.auditing.exchange.label_studio_config` makes the labeling interface. What
        is decided there comes back with ``apply(export.json)``.
        """
        return exchange.label_studio_tasks(self, everything=everything, images=images)

    def to_argilla(self, *, everything: bool = False, images: str | None = None) -> list[dict[str, Any]]:
        """Records for ``dataset.records.log`` of Argilla 2, most suspect first; arguments as for `to_label_studio`.

        Argilla wants to be told where suggestions stand: ``mapping={key: key for key in records[0] if key.startswith("label.")}``.
        """
        return exchange.argilla_records(self, everything=everything, images=images)

    def to_fiftyone(self, *, everything: bool = True, images: str | None = None) -> list[dict[str, Any]]:
        """Samples for ``fiftyone.Sample.from_dict``: ground_truth, suggested, mistakenness, and a tag on what is flagged.

        Args:
            everything: all images, or the flagged ones alone.
            images: the folder of the images, if it is not where it was.
        """
        return exchange.fiftyone_samples(self, everything=everything, images=images)

    # --- files ------------------------------------------------------------------------------------------------

    def write_suspects(self, path: str | Path) -> Path:
        """Writes `suspects` as CSV; text that a spreadsheet would evaluate is guarded.

        Flagged rows carry what their samples say, if the data is available: the text, or the cells of the table.
        """
        from compensate.auditing.page.contents import sample_cells

        if self.listed is not None:
            return self.shown.write_suspects(path)
        frame = self.suspects
        flagged = np.argsort(-self.log_odds, kind="stable")[: int(self.mask.sum())]
        said = sample_cells(self, flagged, set(frame.columns))
        if said:
            # Flagged rows come first; the others stay empty, or the list would be as large as the data.
            said = {name: [*values, *[""] * (len(frame) - len(values))] for name, values in said.items()}
            frame = pd.concat([frame, pd.DataFrame(said)], axis=1)
        write_csv(path, frame)
        return Path(path)

    def write_issues(self, path: str | Path) -> Path:
        """Writes `issues` as CSV."""
        write_csv(path, self.issues.astype({"index": object, "other": object}).where(self.issues.notna(), ""))
        return Path(path)

    def write_predictions(self, path: str | Path) -> Path:
        """Writes `predicted` as CSV."""
        write_csv(path, self.predicted)
        return Path(path)

    def save(self, path: str | Path) -> Path:
        """Writes the audit and its fitted model to a folder, nothing pickled. `load` reads it."""
        store.save_audit(self.shown, Path(path))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Audit:
        """Reads what `save` wrote; data and model are not part of it."""
        found = store.load_audit(Path(path))
        provenance = Provenance.of_stored(found.pop("config"))
        return cls(**found, provenance=provenance)


def build_audit(
    data: Dataset | None,
    source: Source,
    *,
    classes: tuple[str, ...],
    index: Ints,
    given: NDArray[Any],
    suggested: NDArray[Any],
    log_odds: Floats,
    p_error: Floats,
    noise_rate: Estimate,
    evidence: Mapping[str, Floats],
    provenance: Provenance,
    kind: str | None = None,
    labels: str = "labels",
    notes: tuple[str, ...] = (),
    **more: Any,
) -> Audit:
    """Builds an audit from what a judge found.

    If the labels are predicted no better than by chance, no probability of error exceeds 1/2 and a note says so.

    Args:
        data: the audited samples, if they are kept.
        source: where they came from.
        classes, index, given, suggested, log_odds, p_error, noise_rate, evidence, provenance: as in `Audit`.
        kind: as in `Audit`; by default from the kind of the samples.
        labels: what the note calls the labels.
        notes: remarks for the reader.
        more: further fields of `Audit`.
    """
    if provenance.by_chance:
        p_error = np.minimum(p_error, 0.5)
        notes = (*notes, by_chance_note(labels, source))
    return Audit(
        kind=kind or KINDS.get(source.kind, "embedding"),
        source=source,
        classes=classes,
        index=index,
        given=given,
        suggested=suggested,
        log_odds=log_odds,
        p_error=p_error,
        evidence=evidence,
        noise_rate=noise_rate,
        provenance=provenance,
        notes=(*source.notes, *notes),
        data=data,
        **more,
    )


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


def write_csv(path: str | Path, frame: pd.DataFrame) -> None:
    """Writes a table as CSV; text that a spreadsheet would evaluate is guarded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([guard(str(name)) for name in frame.columns])
    # Column by column is quicker than cell by cell; some rows at a time, or all cells would be in memory as texts.
    for first in range(0, len(frame), WRITTEN):
        part = frame.iloc[first : first + WRITTEN]
        writer.writerows(zip(*(_texts(part.iloc[:, j]) for j in range(part.shape[1])), strict=True))
    write_atomically(path, text.getvalue().encode("utf-8", "surrogatepass"))


def _texts(column: pd.Series[Any]) -> list[str]:
    values = column.tolist()
    if column.dtype.kind == "b":
        return ["true" if value else "false" for value in values]
    if column.dtype.kind == "f":
        return [f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}" for value in values]
    if column.dtype.kind in "iu":
        return [str(value) for value in values]
    texts = [str(value) for value in values]
    guarded = {text: guard(text) for text in set(texts)}  # most columns have few distinct cells
    return [guarded[text] for text in texts]
