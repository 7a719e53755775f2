"""Findings about labels and their provenance: a kind of label returns them, and an audit is built from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from compensate.data.dataset import Dataset, Estimate, Floats, Ints, Singles

if TYPE_CHECKING:
    from torch import nn

    from compensate.auditing.judge import Judge


SAMPLE_KINDS = {"images": "image", "text": "text", "table": "table", "features": "embedding"}
"""The kind of an audit by the kind of its samples."""


class Address(NamedTuple):
    """The place of a label: the 0-based row of the source, and which part of the row, where it has several labels."""

    row: int
    part: Any


@dataclass(frozen=True, eq=False, kw_only=True)
class Provenance:
    """How an audit was made."""

    seed: int | None = None  # of folds and everything random
    folds: int = 1
    views: Mapping[str, float] = field(default_factory=dict)  # the share of each learner in the pooled prediction
    agreement: float | None = None  # the share of labels that the prediction agrees with, or the explained variance
    by_chance: bool | None = None  # whether the labels cannot be predicted from the samples better than by chance
    encoder: str = ""
    license: str = ""  # of the encoder
    encoder_source: str = ""
    hint: str = ""  # which extra would bring better features
    finetuned: str = ""  # the encoder that was trained on the labels
    method: str = ""  # of the training of a model, as the next three
    hyper: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    crossfit: bool = False
    fitted_rows: int | None = None  # rows that learners were fitted on, if not all
    labels: tuple[str, ...] = ()  # the names of the labels in label sets
    annotators: tuple[str, ...] = ()  # whose votes were audited
    shown: str = ""  # the kind of the samples, where labels are quantities
    decided: Mapping[str, Any] | None = None  # decisions that were used
    since: Mapping[str, Any] | None = None  # changes since an earlier audit
    looks: Mapping[str, Any] | None = (
        None  # labels that a person looked at; see `compensate.auditing.sampling.Looks.stored`
    )
    asked: Mapping[str, Any] | None = None  # arguments of the command line
    rows: int | None = None  # of all data, where only a part is listed
    flagged: int | None = None  # of all data, where only a part is listed
    first: int | None = (
        None  # the first labels of the list are flagged, as a budget or a precision asks; else by probability
    )
    expected: tuple[tuple[float, ...], ...] = ()  # see `Audit.workload`, where only a part is listed

    def stored(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        empty = Provenance()
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != getattr(empty, f.name)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Findings:
    """Judged labels. Arrays have an entry for each of N labels, in the order of the data."""

    classes: tuple[str, ...]  # their names, in the order of their numbers; () for quantities
    index: Ints  # the 0-based row of the source; where rows have several labels, the number of the label
    given: NDArray[Any]  # the label as a class number, or a quantity
    suggested: NDArray[Any]
    log_odds: Floats  # that the given label is wrong; the score of the list of suspects
    p_error: Floats  # the probability that the given label is wrong
    evidence: Mapping[str, Floats]  # observations of the run, by name
    noise_rate: Estimate  # the estimated share of wrong labels, with a 90 % interval (95 % from looks)
    ids: tuple[str, ...] = ()  # names of the rows, if the source has any
    probabilities: Singles | None = None  # (N, C) the pooled out-of-fold prediction, if there is one
    unlabeled: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # index, suggested and its probability
    addresses: tuple[Address, ...] = ()  # the place of each label, where a row has several
    provenance: Provenance = field(default_factory=Provenance)
    notes: tuple[str, ...] = ()  # remarks for the reader, such as rows that were left out
    data: Dataset | None = None  # the judged samples; they are not saved
    vectors: Any = None  # (N, D) features by which samples are compared
    curves: Mapping[str, list[float]] = field(default_factory=dict)  # accuracy and loss after each epoch
    model: nn.Module | None = None  # the trained model, if there is one; it is not saved with the audit
    fitted: Judge | Path | None = None  # the fitted model that scores new rows, or the folder to read it from
    listed: Mapping[str, Any] | None = None  # of data in chunks, the fields of the saved rows; see `Audit.shown`
