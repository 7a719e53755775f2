"""The interface of a kind of label, and code that several kinds share.

A kind states which questions it poses to the judge (`LabelKind.read`, `LabelKind.audit`), how a finding is shown (`LabelKind.show`,
`LabelKind.address_columns`), how an annotation tool asks about it (`LabelKind.ask`) and how decisions are written back (`LabelKind.write`).
Where a sample has several labels, each has an `Address`;
``corrections.csv`` and the review page carry it as a text:

- ``label ROW NAME``: whether the row has this label, in a cell of joined labels or a list;
- ``column ROW NAME``: the same, in a column of 0 and 1;
- ``tokens FIRST COUNT``: the tags of COUNT tokens, the first of them number FIRST of the file;
- ``region START+LENGTH,... FILE``: pixels of a mask, as runs in row-major order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.class_names import without_spellings
from compensate.auditing.content import Content, digest_source
from compensate.auditing.decisions import Applied, Correction, changes, rematch_rows
from compensate.auditing.execution import LOCAL, Execution
from compensate.auditing.features import FeatureViews, Progress, unused_encoder
from compensate.auditing.findings import Address, Findings, Provenance
from compensate.auditing.learners import FOLDS, Steps, View, judge_view
from compensate.auditing.noise_model import Verdict, pool, shares
from compensate.auditing.write_back import check_output, fixed_name, open_labels
from compensate.data.dataset import UNLABELED, Dataset, Floats, Ints
from compensate.errors import InputError

Reader = Callable[[Any, Any, Mapping[str, Any]], Dataset]  # reads data, labels and options
SUSPECT = 0.5  # the probability of error from which on neighboring labels with the same suggestion form one suspect
SEVERAL = "{} learns one class a sample, and these have several labels each; leave it out."


@dataclass(frozen=True, eq=False)
class Judging:
    """The options of an audit, and its judge of classes."""

    judge_classes: Callable[[Dataset], Findings]  # judges data with one class a sample
    features: Callable[[Dataset], FeatureViews]
    judge: Callable[..., Any]  # makes the judge of new samples from makers, learners, weights and noise model
    encoder: str | Path = "auto"
    seed: int = 0
    progress: Progress | None = None
    run: Execution = LOCAL  # maps functions over chunks, here or on a cluster


class Reading(NamedTuple):
    """How a file is read: the label's column, its encoding, its delimiter, and the columns of texts of pairs."""

    label: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    text: str | None = None


class NewRows(NamedTuple):
    """New samples to judge."""

    data: Dataset
    cells: list[str]  # (N,) the labels as written, empty if missing; of kinds with one class a row
    digests: NDArray[np.uint64]  # (N,) of the rows, zero if unknown
    places: Ints | None = None  # (N,) an audited label of a row with equal content, or -1


class Scored(NamedTuple):
    """Labels of new samples, judged by the fitted model of an audit; (M,) each."""

    rows: Ints  # positions of the samples
    parts: Sequence[str]  # what names the label of a sample with several
    given: Sequence[str]  # empty if missing
    suggested: Sequence[str]
    log_odds: Floats  # infinite for a label that is not a class of the audit
    p_error: Floats  # NaN for a missing label


class LabelKind:
    """A kind of label; instances hold the labels of some data, and class methods work without data."""

    form: ClassVar[str] = ""  # the first word of an address as text; empty where a row has one label
    pattern: ClassVar[re.Pattern[str]] = re.compile(r"(\d{1,15})")  # the rest of an address as text; by default a row
    # Columns of the list of suspects, each a function of the part of an address.
    part_columns: ClassVar[tuple[tuple[str, Callable[[Any], Any]], ...]] = ()
    drops: ClassVar[str | None] = None  # the label that drops a row
    noun: ClassVar[str] = "labels"  # the plural that notes use
    page: ClassVar[str | None] = None  # the kind of the review page; by default it follows the samples
    located: ClassVar[tuple[str, ...]] = ()  # options, besides the label, by which a decision finds its label in a file
    options: ClassVar[tuple[str, ...]] = ()  # options of its reader that no other reader has
    # How an annotation tool asks for the labels of a sample: a form of `compensate.auditing.exchange.FORMS`, or empty.
    answer: ClassVar[str] = "choice"
    digests_labels: ClassVar[bool] = False  # whether the digest of a row covers its labels
    sides: ClassVar[tuple[str, ...]] = ()  # names of texts that such a tool shows side by side
    # Arguments of an audit that it cannot use, with the error.
    refused: ClassVar[Mapping[str, str]] = {name: SEVERAL.format(name) for name in ("model", "finetune")}

    @classmethod
    def read(cls, data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
        """Reads data whose labels are of this kind (``Dataset.parts`` holds them); all else goes to the `other` reader."""
        return other(data, labels, options)

    @classmethod
    def recognize(cls, data: Dataset) -> LabelKind | None:
        """The labels of data, if they are of this kind."""
        return data.parts if isinstance(data.parts, cls) else None

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        """A summary in a few words; `name` shortens names."""
        raise NotImplementedError

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        """Judges all labels of the data."""
        raise NotImplementedError

    def score(self, new: NewRows, audit: Any, judge: Any) -> Scored:
        """Judges the labels of new samples, one class each, by the fitted model; rows that were audited by their out-of-fold predictions."""
        data, places = new.data, new.places
        classes = len(judge.noise.directions)  # classes of the models; a label can say more, such as to drop a pair
        log_q, rest = np.full((len(data), classes), -np.log(classes)), np.ones(len(data), bool)
        if places is not None:  # of a check, which passes over rows without a label
            again = (places >= 0) & (audit.probabilities is not None)
            rest = ~again & np.array([bool(cell) for cell in new.cells])
            p = audit.probabilities[places[again], :classes] if again.any() else log_q[:0]
            log_q[again] = np.log(np.maximum(p.astype(np.float64), 1e-12))
        if rest.any():
            log_q[rest] = judge.predict(data.subset(np.flatnonzero(rest)))
        missing = data.target == UNLABELED
        labels = np.where(missing, log_q.argmax(1), data.target)
        p, odds, suggested = judge.score(without_spellings(log_q, labels, data.classes), labels)
        unknown = missing & np.array([bool(cell) for cell in new.cells], bool)
        p, odds = (np.where(unknown, most, np.where(missing, np.nan, one)) for one, most in ((p, 1.0), (odds, np.inf)))
        names = audit.names(np.where(missing, labels, suggested))
        return Scored(np.arange(len(data)), [""] * len(data), new.cells, names, odds, p)

    def show(self, content: Content, audit: Findings, row: int) -> Content:
        """The content of the page for an audited label, made from that of its sample."""
        return content

    def issues(self, data: Dataset) -> list[tuple[str, int, float, str, int | None]] | None:
        """Issues of this kind of label: kind, position, score, description and other row; None for the search in whole samples."""
        return None

    def files(self, audit: Any, folder: Path) -> tuple[Any, Callable[[Path], None] | None]:
        """The audit as its run folder stores it, and a function that writes further files into the folder."""
        return audit, None

    @classmethod
    def reading_options(cls, audit: Any) -> dict[str, Any]:
        """Options by which new data are read as the audited ones were."""
        return {}

    def row_digests(self, digests: NDArray[np.uint64] | None) -> NDArray[np.uint64] | None:
        """The digests of the rows, by default as the source has them."""
        return digests

    @classmethod
    def address_columns(cls, addresses: Sequence[Address]) -> dict[str, list[Any]]:
        """Columns of the list of suspects that name the labels."""
        return {name: [value(address.part) for address in addresses] for name, value in cls.part_columns}

    @classmethod
    def summary(cls, audit: Any) -> str:
        """A sentence about the findings of rules, which estimate no probability; empty for labels that are judged."""
        return ""

    @classmethod
    def groups(cls, audit: Findings) -> tuple[tuple[str, ...], Ints]:
        """Names, and (N,) numbers, of the groups that the page counts: by default the classes."""
        return audit.classes, audit.given

    @classmethod
    def choices(cls, audit: Findings) -> Sequence[str]:
        """The names that an annotation tool offers: by default the classes."""
        return audit.classes

    def ask(self, audit: Any, labels: Sequence[int], flagged: Sequence[int]) -> tuple[Any, Any, dict[str, Any]]:
        """The given and the suggested answer about a sample for an annotation tool, and the fields of a record by which `decide` finds its labels.

        `labels` are those of the sample, the most suspect first, and `flagged` the flagged ones among them.
        """
        one = labels[:1]
        (given,), (suggested,) = audit.written(audit.given[one]), audit.names(audit.suggested[one])
        return given, suggested, {"row": int(audit.index[one[0]]), "given": given}

    @classmethod
    def decide(cls, about: Mapping[str, Any], answer: Any, suggested: Any) -> Iterable[tuple[Any, str, str, str, str]]:
        """The decisions in an answer, empty if it was skipped: the number, given, new and suggested label, and the address of each."""
        yield about["row"], str(about["given"]), answer, suggested or "", str(about.get("part") or "")

    @classmethod
    def format(cls, address: Address) -> str:
        """An address as text."""
        return f"{cls.form} {address.row}"

    @classmethod
    def parse(cls, text: str, row: int = -1) -> Address:
        """An address from its text; `row` is used where the text does not name it."""
        return Address(int(cls.match(text)[1]), None)

    @classmethod
    def match(cls, text: str) -> re.Match[str]:
        """The match of `pattern` in an address as text."""
        form, _, rest = text.partition(" ")
        match = cls.pattern.fullmatch(rest) if form == cls.form else None
        if match is None:
            raise no_address(text)
        return match

    fixed_name = staticmethod(fixed_name)  # the default path of the corrected data
    check_output = staticmethod(check_output)  # refuses a path that cannot be written to
    digest = staticmethod(digest_source)  # of the source

    @classmethod
    def write_back(
        cls, data: Path, decided: Sequence[Correction], out: Path, reading: Reading, *, rematch: bool = False
    ) -> Applied:
        """Writes the data with the decided labels; with `rematch`, rows are found by their content."""
        rows = cls.write(data, [(c, cls.parse(c.part)) for c in decided], out, reading)
        done = Applied.count(out, rows, decided)
        dropped = sum(c.changes and c.label.strip() == cls.drops for c in decided)
        return replace(done, changed=done.changed - dropped, dropped=done.dropped + dropped)

    @classmethod
    def write(cls, data: Path, decided: Sequence[tuple[Correction, Address]], out: Path, reading: Reading) -> int:
        """Writes the data with the decided labels, each checked by `check_given`; returns the number of rows."""
        raise NotImplementedError


class Classes(LabelKind):
    """The classes of samples, which are ``Dataset.target``."""

    refused: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def recognize(cls, data: Dataset) -> LabelKind | None:
        return cls() if data.parts is None else super().recognize(data)

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        counts = data.class_counts
        largest = counts.argsort()[::-1][:4]
        listed = " · ".join(f"{name(data.classes[c])} {counts[c]:,}" for c in largest)
        return f"{data.num_classes} classes: {listed}{' · …' if data.num_classes > 4 else ''}"

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        return judging.judge_classes(data)

    @classmethod
    def write_back(
        cls, data: Path, decided: Sequence[Correction], out: Path, reading: Reading, *, rematch: bool = False
    ) -> Applied:
        labels = open_labels(data, *reading[:3])
        matched = None
        if rematch:
            decided, matched = rematch_rows(decided, labels.cells, labels.digests(), str(data))
        labels.write(out, changes(labels.cells, decided, str(data)))
        return Applied.count(out, len(labels.cells), decided, matched)


class Judged(NamedTuple):
    """The verdict on labels that have neighbors."""

    kept: NDArray[np.bool_]  # (N,) the judged labels; the verdict is on them alone
    classes: tuple[str, ...]
    given: Ints  # (N,) class numbers
    verdict: Verdict
    weights: dict[str, float]  # of the learners
    notes: tuple[str, ...] = ()
    fitted: Any = None  # the judge of new samples
    side: int = 1  # pixels on a side of a cell
    grids: tuple[tuple[int, int], ...] = ()  # rows and columns of the cells of each image


class NeighboringLabels(LabelKind):
    """Labels of words or pixels: each is judged by models that did not learn from its sample, and neighbors are listed in groups."""

    units: ClassVar[str]  # the plural of the judged units in the note about an unused encoder

    def judge(self, seed: int = 0, progress: Progress | None = None, run: Execution = LOCAL) -> Judged:
        """Judges each label."""
        raise NotImplementedError

    def group(self, judged: Judged, changed: Ints) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
        """Groups of neighboring labels of a sample, and their index, evidence and probabilities.

        A group is its address, id, given class, suggested class, log odds and probability of error. `changed` is the suggestion for a
        suspect label, else -1.
        """
        raise NotImplementedError

    @staticmethod
    def cross_fit(
        view: View, given: Ints, folds: Ints, classes: int, seed: int, progress: Progress | None
    ) -> tuple[Floats, dict[str, float], Any]:
        """(N, C) pooled out-of-fold log probabilities by the learners of one view, their shares, and the learners with their weights."""
        learned = judge_view(view, given, folds, FOLDS, classes, seed=seed, steps=Steps(progress, [view]))
        log_q, weights = pool(learned.log_p, given)
        share = {f"{view.name}: {name}": weight for name, weight in shares(weights).items()}
        return log_q, share, ((learned.models,), (weights,))

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        judged = self.judge(judging.seed, judging.progress, judging.run)
        verdict = judged.verdict
        groups, more = self.group(judged, np.where(verdict.p_error >= SUSPECT, verdict.suggested, -1))
        addresses, ids, given, suggested, log_odds, p_error = zip(*groups, strict=True)
        return Findings(
            classes=judged.classes, addresses=addresses, ids=ids, given=np.array(given, np.int64), suggested=np.array(suggested, np.int64),
            log_odds=np.array(log_odds), p_error=np.array(p_error), noise_rate=verdict.share, data=data,
            provenance=provenance_of(verdict, judged.given[judged.kept], judging.seed, judged.weights),
            notes=(*judged.notes, *unused_encoder(judging.encoder, self.units)), **more,
            fitted=None if judged.fitted is None else judging.judge(*judged.fitted, verdict.model),
        )  # fmt: skip


def no_address(text: str) -> InputError:
    """The error for a text that is not an address."""
    return InputError(
        f'"{text[:60]}" names no part of a sample; expected for example "label 17 sports" or "tokens 120 3", as an audit writes it.'
    )


def provenance_of(verdict: Verdict, given: Ints, seed: int, views: Mapping[str, float], **more: Any) -> Provenance:
    """The provenance of a verdict on given labels."""
    more["agreement"] = float((verdict.log_q.argmax(1) == given).mean())
    return Provenance(seed=seed, folds=FOLDS, views=views, by_chance=verdict.model.by_chance, **more)


def check_given(where: str | Path, correction: Correction, label: str) -> None:
    """Refuses a decision about another label than the data hold."""
    if correction.given.strip() != label:
        raise InputError(
            f'{where} differs from the reviewed data: "{correction.part[:60]}" is "{label[:60]}" there, not '
            f'"{correction.given[:60]}". Nothing is written. Apply the corrections to the file that was audited, or audit this one.'
        )


def list_items(text: str) -> list[tuple[int, int]]:
    """The spans of the items of a JSON list.

    >>> text = '["a", "b, c"]'
    >>> [text[a:b] for a, b in list_items(text)]
    ['"a"', '"b, c"']
    """
    decoder, at = json.JSONDecoder(), 1
    spans: list[tuple[int, int]] = []
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text) or text[at] == "]":
            return spans
        _, end = decoder.raw_decode(text, at)
        spans.append((at, end))
        at = end
