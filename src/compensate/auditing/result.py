"""The result of an audit: suspect labels, their probabilities of error, and what to do with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from compensate.auditing import check as checking
from compensate.auditing import exchange, store
from compensate.auditing.content import digest_text, sample_cells
from compensate.auditing.decisions import Applied, Correction, changes, check_source
from compensate.auditing.findings import SAMPLE_KINDS, Findings
from compensate.auditing.issues import find_issues, with_ids
from compensate.auditing.judge import Judge
from compensate.auditing.labels import kind_of
from compensate.auditing.labels.base import Classes, LabelKind, Reading
from compensate.auditing.noise_model import expected_errors
from compensate.auditing.page import audit_html, page_of, write_page
from compensate.auditing.sampling import Sample, describe_looks, draw, recalibrate
from compensate.auditing.write_back import arrange_images, check_place, open_labels, write_csv, writes_folder
from compensate.data.dataset import Dataset, Estimate, Ints, Source
from compensate.errors import InputError, check

FLAGGED = 2 / 3
"""A label is flagged where an error is twice as likely as not."""

BEFORE = "score before looks"
"""The evidence that holds the log odds of an audit before the labels that a person looked at changed them."""

REASONS = 5  # words or columns that are listed for a suspect
LAYOUTS = ("file", "links", "move")
WORKLOADS = (50, 100, 500, 1_000)  # lengths of the list for which the expected errors are stated


@dataclass(frozen=True, eq=False, kw_only=True)
class Audit(Findings):
    """Findings about the labels of a source; its arrays are described in `compensate.auditing.findings.Findings`.

    Attributes:
        kind: image, text, table, embedding or regression.
        source: where the data came from, and how they were read.
        label_kind: the kind of the labels; see `compensate.auditing.labels`.
        row_digests: (N,) of the rows without their labels, if the source has any.
        found_issues: other problems of the data, if they were searched for; see `issues`.
    """

    kind: str
    source: Source
    label_kind: type[LabelKind] = Classes
    row_digests: NDArray[np.uint64] | None = None
    found_issues: pd.DataFrame | None = None

    def __post_init__(self) -> None:
        if self.row_digests is None and self.source.row_digests is not None:
            object.__setattr__(self, "row_digests", self.source.row_digests[self.rows])

    @property
    def title(self) -> str:
        """The name of the data."""
        return self.source.title

    @property
    def source_digest(self) -> str:
        """The digest of the audited file or folder."""
        return self.source.digest

    @property
    def config(self) -> dict[str, Any]:
        """How the data were read and the audit was made, as it is stored."""
        return {**self.source.stored(), **self.provenance.stored()}

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        r, looks = self.noise_rate, self.provenance.looks
        share = (
            f"about {r.value:.1%} look wrong ({r.low:.1%} to {r.high:.1%})" if looks is None else describe_looks(looks)
        )
        judged = f"{len(self):,} labels, {share}; {self.flag_summary}"
        return f"Audit of {self.title}: {self.label_kind.summary(self) or judged}"

    _repr_html_ = audit_html

    @property
    def regression(self) -> bool:
        """Whether the labels are quantities."""
        return not self.classes

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """(N,) which labels are flagged."""
        if self.provenance.first is None:
            return self.p_error >= FLAGGED
        flagged = np.zeros(len(self), bool)
        flagged[np.argsort(-self.log_odds, kind="stable")[: self.provenance.first]] = True
        return flagged

    @property
    def threshold(self) -> float:
        """The probability of error from which on labels are flagged."""
        return FLAGGED if self.provenance.first is None else float(self.p_error[self.mask].min(initial=1.0))

    def flag(self, *, precision: float | None = None, budget: int | None = None) -> Audit:
        """This audit with other flags: the first ``budget`` labels of the list, or as many as have this expected precision.

        With both, the smaller number is flagged; with neither, labels that are wrong with a probability of two thirds.

        >>> from compensate.data import digits, noise
        >>> from compensate.auditing.api import audit
        >>> found = audit(digits().relabel(noise.symmetric(digits().target, 10, 0.2).labels), encoder="none")
        >>> int(found.flag(budget=50).mask.sum())
        50
        """
        check(precision is None or 0 < precision <= 1, "a share above 0 and up to 1", precision=precision)
        check(budget is None or budget >= 1, "1 or more", budget=budget)
        first = None if precision is None and budget is None else min(budget or len(self), len(self))
        if precision is not None:
            p = np.sort(self.p_error)[::-1]
            enough = np.flatnonzero(np.cumsum(p) / np.arange(1, len(p) + 1) >= precision)
            first = min(first or 0, int(enough.max(initial=-1)) + 1)
        return replace(self, provenance=replace(self.provenance, first=first))

    def sample(self, seed: int = 0) -> Sample:
        """A random sample of at most 200 labels for a person to look at, in this order; `estimate` takes the answers.

        More labels are drawn where the audit is unsure; see `compensate.auditing.sampling`.
        """
        if self.listed is not None or self.provenance.rows is not None:
            raise InputError(
                "a sample of data in chunks is not supported; audit a part of the data that fits into memory."
            )
        return draw(self.p_error, self.index, seed)

    def estimate(self, sample: Sample, wrong: Sequence[bool | None]) -> Audit:
        """This audit with the share of wrong labels and the probabilities of error by what a person saw in a sample.

        The order of the labels stays; the probabilities, the flags and the expected errors follow the answers.

        Args:
            sample: of this audit.
            wrong: for the first labels of the sample, in their order: True for a wrong label, False for a right one, None if nobody can tell.

        >>> from compensate.data import digits, noise
        >>> from compensate.auditing.api import audit
        >>> labels = noise.symmetric(digits().target, 10, 0.2).labels
        >>> found = audit(digits().relabel(labels), encoder="none")
        >>> sample = found.sample()
        >>> looked_at = found.estimate(sample, (labels != digits().target)[sample.index[:100]].tolist())
        >>> looked_at.noise_rate.low < float((labels != digits().target).mean()) < looked_at.noise_rate.high
        True
        """
        looks, places = sample.estimate(wrong), pd.Index(self.index).get_indexer(pd.Index(sample.index[: len(wrong)]))
        if looks.wrong is None or sample.sizes.sum() != len(self) or (places < 0).any():
            raise InputError(f"{len(wrong)} answers to this sample are too few, or it is a sample of another audit.")
        before = np.asarray(self.evidence.get(BEFORE, self.log_odds), np.float64)
        log_odds = recalibrate(before, places, wrong, looks.wrong)
        most = 0.5 if self.provenance.by_chance else 1.0
        provenance = replace(self.provenance, looks=looks.stored(), expected=())
        return replace(
            self, log_odds=log_odds, p_error=np.minimum(expit(log_odds), most), noise_rate=looks.wrong, provenance=provenance,
            evidence={**self.evidence, BEFORE: before},
        )  # fmt: skip

    def expected_errors(self, first: int) -> Estimate:
        """The number of errors that are expected among the first labels of the list, with a 90 % interval."""
        rate = self.noise_rate
        return expected_errors(self.log_odds, self.p_error, rate, first) if np.isfinite(rate.value) else rate

    @cached_property
    def workload(self) -> pd.DataFrame:
        """How many errors to expect in the first labels of the list, and in those that were asked for: first, errors, low, high."""
        numbers = sorted({*(n for n in WORKLOADS if n <= len(self)), self.provenance.first or 0} - {0}) or [len(self)]
        rows = self.provenance.expected or [(n, *vars(self.expected_errors(n)).values()) for n in numbers]
        return pd.DataFrame(rows, columns=["first", "errors", "low", "high"]).round(1).astype({"first": int})

    @property
    def flag_summary(self) -> str:
        """How many labels are flagged, and how many of them should be wrong.

        >>> from compensate.data import digits, noise
        >>> from compensate.auditing.api import audit
        >>> found = audit(digits().relabel(noise.symmetric(digits().target, 10, 0.2).labels), encoder="none")
        >>> found.flag(budget=50).flag_summary
        '50 labels flagged; nearly all of them should be wrong'
        """
        flagged, noun, share = int(self.mask.sum()), "value" if self.regression else "label", self.expected_precision
        if flagged < 2:
            sure = f"; it is wrong with a probability of {share:.2f}"
            return f"{flagged} {noun}{'s' * (not flagged)} flagged{sure * flagged}"
        wrong = f"about {share * flagged:,.0f} of them ({share:.0%})" if share < 0.995 else "nearly all of them"
        return f"{flagged:,} {noun}s flagged; {wrong} should be wrong"

    @property
    def expected_precision(self) -> float:
        """The expected share of flags that are right; 1 if there are none."""
        return float(self.p_error[self.mask].mean()) if self.mask.any() else 1.0

    @property
    def figures(self) -> dict[str, Any]:
        """The result in figures and names, ready for JSON."""
        rate, how = self.noise_rate, self.provenance
        listed = self.flagged[[name for name in ("label", "given", "suggested") if name in self.suspects]]
        pairs = [] if self.regression else listed.value_counts().rename("labels").reset_index().to_dict("records")
        issues = {} if self.found_issues is None else self.found_issues["issue"].value_counts().to_dict()
        return {
            "data": self.title, "source": self.source.path, "digest": self.source_digest, "labels": how.rows or len(self),
            "classes": list(self.classes), "by_chance": bool(how.by_chance), "noise_rate": rate.value, "noise_rate_low": rate.low,
            "noise_rate_high": rate.high, "flagged": int(self.mask.sum()) if how.flagged is None else how.flagged,
            "expected_precision": self.expected_precision, "workload": self.workload.to_dict("records"), "pairs": pairs,
            "issues": issues, "predicted": len(self.predicted), "notes": list(self.notes),
        }  # fmt: skip

    @cached_property
    def rows(self) -> Ints:
        """(N,) the 0-based row of the source that each label belongs to: a sentence of tagged tokens, an image of masks."""
        return np.array([address.row for address in self.addresses], np.int64) if self.addresses else self.index

    @property
    def by_row(self) -> bool:
        """Whether each label belongs to a whole row of the source, whose number is its index."""
        return all(address.part is None for address in self.addresses)

    def position(self, labels: Any) -> Any:
        """The positions in `data` of the samples that these labels belong to."""
        return self._positions[labels] if self.addresses else labels

    @cached_property
    def _positions(self) -> Ints:
        return self.rows if self.data is None else pd.Index(self.data.index).get_indexer(pd.Index(self.rows))

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

    def written(self, labels: NDArray[Any]) -> list[str]:
        """Labels as corrections carry them: quantities are as exact as the data, to be recognized there."""
        return [repr(float(value)) for value in labels] if self.regression else self.names(labels)

    @cached_property
    def scorer(self) -> Judge | None:
        """The fitted model, if there is one."""
        return Judge.load(self.fitted) if isinstance(self.fitted, Path) else self.fitted

    def reasons(self, labels: Ints) -> list[list[tuple[str, float]]]:
        """For each of these labels, the words or columns that speak most against it, and how much; see `Judge.reasons`."""
        data, scorer = self.data, None if self.addresses or self.regression else self.scorer
        if data is None or scorer is None or not len(labels):
            return [[] for _ in labels]
        found = scorer.reasons(data.subset(labels), self.given[labels], self.suggested[labels])
        return [[part for part in parts if part[1] > 0][:REASONS] for parts in found]

    score = checking.score
    """Scores the labels of new rows with the fitted model of this audit; see `compensate.auditing.check.score`."""

    @cached_property
    def shown(self) -> Audit:
        """The audit that is shown and saved: this one, or its listed rows."""
        if self.listed is None:
            return self
        expected = tuple(map(tuple, self.workload.to_numpy().tolist()))
        first = self.provenance.first and int(np.isin(self.listed["index"], self.index[self.mask]).sum())
        flagged = int(self.mask.sum())
        provenance = replace(self.provenance, rows=len(self), flagged=flagged, expected=expected, first=first)
        return replace(self, listed=None, **self.listed, provenance=provenance)

    def report(self, path: str | Path, *, data: Dataset | None = None) -> Path:
        """Writes the review page; `data` shows the samples of an audit that was loaded from disk."""
        return write_page(page_of(self if data is None else replace(self, data=data)), path)

    def accepted(self, at_least: float = 0.5, *, relabel: bool = False) -> tuple[Correction, ...]:
        """Corrections that accept every suggestion with at least this probability of error, without review.

        Pairs are dropped; with `relabel`, they get the likeliest other label instead.
        """
        if not 0 <= at_least <= 1:
            raise InputError(f"{at_least:g} is not a probability; give a number from 0 to 1, for example 0.9.")
        chosen = np.flatnonzero(self.p_error >= at_least)
        likeliest = self.suggested[chosen]
        if relabel and self.probabilities is not None:
            p = self.probabilities[chosen].copy()
            p[np.arange(len(p)), self.given[chosen]] = -1
            likeliest = p.argmax(1)
        given, suggested = self.written(self.given[chosen]), self.names(likeliest)
        return tuple(
            Correction(int(self.index[i]), g, "accept", s, self.row_digest(i), self.source_digest, self.part(i))
            for i, g, s in zip(chosen.tolist(), given, suggested, strict=True)
        )

    @property
    def reading(self) -> dict[str, str]:
        """The encoding and the delimiter that the file was read with, where they were given; of pairs also the columns of texts."""
        asked = (self.provenance.asked or {}).get("options")
        given = {**(asked if isinstance(asked, dict) else {}), **self.source.stored()}
        names = ("encoding", "delimiter", *self.label_kind.located)
        return {name: str(given[name]) for name in names if given.get(name)}

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
            Labels of the audited rows in their order, class names or quantities, None or NaN for dropped rows; with `out`, a summary.
        """
        if out is not None:
            if not self.source.path:
                raise InputError(
                    "this audit is of arrays, not of a file, so there is no file to write; call `apply` without `out` and take "
                    "the labels it returns."
                )
            options: dict[str, Any] = {"label": self.source.label, **self.reading, "force": force, "rematch": rematch}
            return apply_corrections(self.source.path, corrections, out, label_kind=self.label_kind, **options)
        decided = exchange.read_decisions(corrections)
        check_source(decided, self.source_digest, self.title)
        cells: list[Any] = [""] * (int(self.index.max(initial=-1)) + 1)
        for place, name in zip(self.index.tolist(), self.names(self.given), strict=True):
            cells[place] = name
        new = changes(cells, decided, self.title)
        labels: NDArray[Any] = np.array(
            [new.get(i, cells[i]) for i in self.index.tolist()], dtype=object
        )  # None is NaN
        return labels.astype(np.float64) if self.regression else labels

    to_cleanlab = exchange.cleanlab_issues
    """The probabilities, labels and label issues in the form of cleanlab; see `compensate.auditing.exchange.cleanlab_issues`."""
    to_frame = exchange.frame
    """All audited rows in the order of the data: their own columns, then suggested, p_error and flagged."""
    to_dataset = exchange.dataset
    """As `to_frame`, a data set of Hugging Face's `datasets` with the names of the classes in its label columns."""
    to_label_studio = exchange.label_studio_tasks
    """Tasks to import into Label Studio; see `compensate.auditing.exchange.label_studio_tasks`."""
    to_argilla = exchange.argilla_records
    """Records for ``dataset.records.log`` of Argilla 2; see `compensate.auditing.exchange.argilla_records`."""
    to_fiftyone = exchange.fiftyone_samples
    """Samples for ``fiftyone.Sample.from_dict``; see `compensate.auditing.exchange.fiftyone_samples`."""

    def write_suspects(self, path: str | Path) -> Path:
        """Writes `suspects` as CSV; text that a spreadsheet would evaluate is guarded.

        Flagged rows carry their `reasons` and the content of their samples, if the data is available: the text, or the cells of the table.
        """
        shown, frame = self.shown, self.shown.suspects
        flagged = np.argsort(-shown.log_odds, kind="stable")[: int(shown.mask.sum())]
        cells = sample_cells(shown, flagged, {*frame.columns, "why"})
        why = [", ".join(f"{name} {value:.2f}" for name, value in parts) for parts in shown.reasons(flagged)]
        cells = {"why": why, **cells} if any(why) else cells
        # Flagged rows come first; the others stay empty to keep the list smaller than the data.
        padded = {name: [*values, *[""] * (len(frame) - len(values))] for name, values in cells.items()}
        return write_csv(path, pd.concat([frame, pd.DataFrame(padded)], axis=1) if padded else frame)

    def write_issues(self, path: str | Path) -> Path:
        """Writes `issues` as CSV."""
        return write_csv(path, self.issues.astype({"index": object, "other": object}).where(self.issues.notna(), ""))

    def save(self, path: str | Path) -> Path:
        """Writes the audit and its fitted model to a folder, nothing pickled. `load` reads it."""
        store.save_audit(self.shown, Path(path))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Audit:
        """Reads the files of `save`, or those in the folder of a run; they hold neither data nor model."""
        whole = Path(path, "audit")
        return cls(**store.load_audit(whole if whole.is_dir() else Path(path)))


def moves_name(data: Path, layout: str = "move") -> Path:
    """The default path of the folder of links, or of the list of moved images."""
    return data.parent / f"{data.name}.{'fixed' if layout == 'links' else 'moves.csv'}"


def apply_corrections(
    data: str | Path,
    corrections: str | Path | Iterable[Correction],
    out: str | Path | None = None,
    *,
    label: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    text: str | None = None,
    force: bool = False,
    rematch: bool = False,
    layout: str = "file",
    label_kind: type[LabelKind] = Classes,
) -> Applied:
    """Writes the data with the decided labels.

    A corrected file differs from the original only in the changed labels. A folder of images gets a label file: its own with the changes, or
    a new one with the columns file and label.

    Args:
        data: the audited file or folder.
        corrections: the file exported by the review page, an export of Label Studio or Argilla, or `Correction` records.
        out: the file to write, or the folder for several Parquet files, masks and a saved data set; by default ``name.fixed.csv``.
        label, encoding, delimiter: of the file, if they were given for the audit; for pairs also text.
        force: overwrite an existing file.
        rematch: the file differs from the audited one: find each row by its content.
        layout: for images in class folders: a label "file", a folder of "links", or "move" them in place and write the list of moves.
        label_kind: the kind of the labels, where the corrections are empty.
    """
    data = Path(data)
    check(layout in LAYOUTS, f"one of {', '.join(LAYOUTS)}", layout=f'"{layout}"')
    decided = exchange.read_decisions(corrections)
    kinds = {kind_of(c.part) for c in decided} or {label_kind}
    if len(kinds) > 1:
        raise InputError("these corrections are about more than one form of labels; apply one audit at a time.")
    kind = kinds.pop()
    if text is not None and "text" not in kind.located:
        raise InputError(
            f'text is "{text}", which names the columns of preference pairs; leave it out for other labels.'
        )
    for c in decided if kind.form else ():
        kind.parse(c.part)  # refuses a malformed address before any file is read
    if rematch and kind.form:
        raise InputError(
            "parts of a sample cannot be found by content; apply the corrections to the file that was audited, without "
            "rematch (--rematch)."
        )
    if layout != "file":
        if kind.form or rematch or not data.is_dir() or writes_folder(data):
            raise InputError(f'layout is "{layout}", which is for images in class folders; leave it out for {data}.')
        out = moves_name(data, layout) if out is None else Path(out)
        check_place(data, out, force, layout == "links")
        checked, labels = check_source(decided, kind.digest(data), str(data)), open_labels(data, label)
        arrange_images(data, changes(labels.cells, decided, str(data)), out, layout)
        return replace(Applied.count(out, len(labels.cells), decided), checked=checked)
    out = kind.fixed_name(data) if out is None else Path(out)
    kind.check_output(data, out, force)
    checked = not rematch and check_source(decided, kind.digest(data), str(data))
    done = kind.write_back(data, decided, out, Reading(label, encoding, delimiter, text), rematch=rematch)
    return replace(done, checked=checked)


def build_audit(
    source: Source, findings: Findings, label_kind: type[LabelKind] = Classes, kind: str | None = None
) -> Audit:
    """Builds an audit from findings.

    If the labels are predicted no better than by chance, no probability of error exceeds 1/2 and a note says so. By default, the `kind`
    follows the labels and the samples.
    """
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
        "Features that tell the classes apart (--features), or a second opinion (--opinion), would help. "
        f"If another column holds the {labels}: --label NAME{f' ({over})' if over else ''}."
    )
