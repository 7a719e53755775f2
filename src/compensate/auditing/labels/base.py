"""The interface of a kind of label, and code that several kinds share.

A kind is one file with a subclass of `LabelKind`, listed in `compensate.auditing.labels.KINDS`. It states which questions it poses to the judge
(`LabelKind.read`, `LabelKind.audit`), how a finding is shown (`LabelKind.show`, `LabelKind.address_columns`) and how decisions are written back
(`LabelKind.write_back`). Where a sample has several labels, each has an `Address`; ``corrections.csv`` and the review page carry it as a text:

- ``label ROW NAME``: whether the row has this label, in a cell of joined labels or a list;
- ``column ROW NAME``: the same, in a column of 0 and 1;
- ``tokens FIRST COUNT``: the tags of COUNT tokens, the first of them number FIRST of the file;
- ``region START+LENGTH,... FILE``: pixels of a mask, as runs in row-major order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compensate.auditing.decisions import Applied, Correction, Matched
from compensate.auditing.digests import digest_source
from compensate.auditing.execution import LOCAL, Execution
from compensate.auditing.features import FeatureViews, Progress
from compensate.auditing.findings import Address, Findings, Provenance
from compensate.auditing.learners import FOLDS, Steps, View, judge_view, steps_of
from compensate.auditing.noise_model import Verdict, pool, shares
from compensate.auditing.write_back import check_output, fixed_name
from compensate.data.dataset import Dataset, Floats, Ints
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.auditing.content import Content
    from compensate.auditing.result import Audit

Reader = Callable[[Any, Any, Mapping[str, Any]], Dataset]
"""Reads data, labels and options."""

SUSPECT = 0.5
"""Neighboring labels with at least this probability of error and the same suggestion form one suspect."""

SEVERAL = "{} learns one class a sample, and these have several labels each; leave it out."


@dataclass(frozen=True, eq=False)
class Judging:
    """The options of an audit, and its judge of classes.

    Attributes:
        judge_classes: the judge of data with one class a sample.
        features: computes the features of samples.
        encoder, seed, progress: as in `compensate.audit`.
        run: maps functions over chunks, here or on a cluster.
    """

    judge_classes: Callable[[Dataset], Findings]
    features: Callable[[Dataset], FeatureViews]
    encoder: str | Path = "auto"
    seed: int = 0
    progress: Progress | None = None
    run: Execution = LOCAL


class Reading(NamedTuple):
    """How a file is read: the label's column, its encoding and its delimiter."""

    label: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None


class LabelKind:
    """A kind of label; instances hold the labels of some data, and class methods work without data."""

    form: ClassVar[str] = ""
    """The first word of an address as text; empty where a row has one label."""
    pattern: ClassVar[re.Pattern[str]] = re.compile("")
    """The rest of an address as text."""
    noun: ClassVar[str] = "labels"
    """The plural that notes use."""
    page: ClassVar[str | None] = None
    """The kind of the review page; by default it follows the samples."""
    options: ClassVar[tuple[str, ...]] = ()
    """Options of its reader that no other reader has."""
    refused: ClassVar[Mapping[str, str]] = {name: SEVERAL.format(name) for name in ("model", "finetune")}
    """Arguments of an audit that it cannot use, with the error."""

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

    def show(self, content: Content, audit: Audit, row: int) -> Content:
        """The content of the page for an audited label, made from that of its sample."""
        return content

    @classmethod
    def address_columns(cls, addresses: Sequence[Address]) -> dict[str, list[Any]]:
        """Columns of the list of suspects that name the labels."""
        return {}

    @classmethod
    def groups(cls, audit: Audit) -> tuple[tuple[str, ...], Ints]:
        """Names, and (N,) numbers, of the groups that the page counts: by default the classes."""
        return audit.classes, audit.given

    @classmethod
    def format(cls, address: Address) -> str:
        """An address as text."""
        raise NotImplementedError

    @classmethod
    def parse(cls, text: str, row: int = -1) -> Address:
        """An address from its text; `row` is used where the text does not name it."""
        form, _, rest = text.partition(" ")
        match = cls.pattern.fullmatch(rest) if form == cls.form else None
        if match is None:
            raise no_address(text)
        return cls.address(match, row)

    @classmethod
    def address(cls, match: re.Match[str], row: int) -> Address:
        """An address from a match of `pattern`."""
        raise NotImplementedError

    @classmethod
    def fixed_name(cls, data: Path) -> Path:
        """The default path of the corrected data."""
        return fixed_name(data)

    @classmethod
    def check_output(cls, data: Path, out: Path, force: bool) -> None:
        """Refuses a path that cannot be written to."""
        check_output(data, out, force)

    @classmethod
    def digest(cls, data: Path) -> str:
        """The digest of the source."""
        return digest_source(data)

    @classmethod
    def write_back(
        cls, data: Path, decided: Sequence[Correction], out: Path, reading: Reading, *, rematch: bool = False
    ) -> Applied:
        """Writes the data with the decided labels; with `rematch`, rows are found by their content."""
        raise NotImplementedError


def no_address(text: str) -> InputError:
    """The error for a text that is not an address."""
    return InputError(
        f'"{text[:60]}" names no part of a sample; expected for example "label 17 sports" or "tokens 120 3", as an audit writes it.'
    )


# --- judging --------------------------------------------------------------------------------------------------


def cross_fit(
    view: View, given: Ints, folds: Ints, classes: int, seed: int, progress: Progress | None
) -> tuple[Floats, dict[str, float]]:
    """(N, C) pooled out-of-fold log probabilities by the learners of one view, and the learners' weights."""
    steps = Steps(progress, steps_of(view, FOLDS))
    learned = judge_view(view, given, folds, FOLDS, classes, seed=seed, steps=steps)
    log_q, weights = pool(learned.log_p, given)
    return log_q, {f"{view.name}: {name}": weight for name, weight in shares(weights).items()}


def provenance_of(verdict: Verdict, given: Ints, seed: int, views: Mapping[str, float], **more: Any) -> Provenance:
    """The provenance of a verdict on given labels."""
    agreement = float((verdict.log_q.argmax(1) == given).mean())
    return Provenance(
        seed=seed, folds=FOLDS, views=views, agreement=agreement, by_chance=verdict.by_chance, **more
    )  # fmt: skip


class Judged(NamedTuple):
    """The verdict on tokens or cells.

    Attributes:
        kept: (N,) the judged ones; the verdict is on them alone.
        classes: names.
        given: (N,) the class of each.
        verdict, weights: of the noise model and of the learners.
        notes: on tokens that are left out.
        side, grids: of cells, the pixels on a side, and rows and columns of the cells of each image.
    """

    kept: NDArray[np.bool_]
    classes: tuple[str, ...]
    given: Ints
    verdict: Verdict
    weights: dict[str, float]
    notes: tuple[str, ...] = ()
    side: int = 1
    grids: tuple[tuple[int, int], ...] = ()


class Group(NamedTuple):
    """Neighboring labels of one sample that are judged together."""

    address: Address
    id: str
    given: int
    suggested: int
    log_odds: float
    p_error: float


def group_findings(groups: Sequence[Group], **more: Any) -> Findings:
    """Findings with one entry for each group."""
    addresses, ids, given, suggested, log_odds, p_error = zip(*groups, strict=True)
    return Findings(
        addresses=addresses, ids=ids, given=np.array(given, np.int64), suggested=np.array(suggested, np.int64),
        log_odds=np.array(log_odds), p_error=np.array(p_error), **more,
    )  # fmt: skip


def suggestions(verdict: Verdict) -> NDArray[np.int64]:
    """(N,) the suggested class of each suspect label; -1 for labels that look right."""
    return np.where(verdict.p_error >= SUSPECT, verdict.suggested, -1)


# --- writing --------------------------------------------------------------------------------------------------


def check_given(where: str | Path, correction: Correction, label: str) -> None:
    """Refuses a decision about another label than the data hold."""
    if correction.given.strip() != label:
        raise InputError(
            f'{where} differs from the reviewed data: "{correction.part[:60]}" is "{label[:60]}" there, not '
            f'"{correction.given[:60]}". Nothing is written. Apply the corrections to the file that was audited, or audit this one.'
        )


def applied(
    out: Path, decided: Sequence[Correction], rows: int, changed: int, matched: Matched | None = None
) -> Applied:
    """The result of `LabelKind.write_back`."""
    skipped = sum(c.decision == "skip" for c in decided)
    return Applied(out, rows, changed, len(decided) - changed - skipped, skipped, matched=matched)


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
