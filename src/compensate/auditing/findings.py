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


@dataclass(frozen=True, eq=False, kw_only=True)
class Findings:
    """Judged labels. Arrays have an entry for each label, in the order of the data.

    Attributes:
        classes: their names, in the order of their numbers; ``()`` for quantities.
        index: (N,) the 0-based row of the source; where rows have several labels, the number of the label.
        given: (N,) the label as a class number, or a quantity.
        suggested: (N,) the suggested label.
        log_odds: (N,) that the given label is wrong; the score of the list of suspects.
        p_error: (N,) the probability that the given label is wrong.
        evidence: (N,) each: observations of the run, by name.
        noise_rate: the estimated share of wrong labels, with a 90 % interval.
        ids: (N,) names of the rows, if the source has any.
        probabilities: (N, C) the pooled out-of-fold prediction, if there is one.
        unlabeled: rows without a label: ``index``, ``suggested`` and its ``probability``.
        addresses: (N,) the place of each label, where a row has several.
        provenance: how the labels were judged.
        notes: remarks for the reader, such as rows that were left out.
        data: the judged samples; they are not saved.
        vectors: (N, D) features by which samples are compared.
        curves: accuracy and loss after each epoch.
        model: the trained model, if there is one; it is not saved with the audit.
        fitted: the fitted model that scores new rows, or the folder to read it from.
    """

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
    addresses: tuple[Address, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    notes: tuple[str, ...] = ()
    data: Dataset | None = None
    vectors: Any = None
    curves: Mapping[str, list[float]] = field(default_factory=dict)
    model: nn.Module | None = None
    fitted: Judge | Path | None = None
