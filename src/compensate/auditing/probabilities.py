"""An audit without training, for people who have out-of-sample probabilities already."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from compensate.auditing.arrays import Ints
from compensate.auditing.class_names import without_spellings
from compensate.auditing.noise_model import by_chance_note, judge, pool
from compensate.auditing.result import Audit
from compensate.data.dataset import UNLABELED, Data
from compensate.data.labels import encode_labels
from compensate.errors import InputError

SMALLEST = 1e-6


def audit_probabilities(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    classes: list[str] | None = None,
    title: str = "the labels",
    data: Data | None = None,
) -> Audit:
    """Finds the labels that look wrong, given what a model says of samples it was not trained on.

    The probabilities go through the same noise model as those of an audit's own learners.

    Args:
        probabilities: (N, C), rows that sum to one, each by a model that has not seen the sample.
        labels: (N,) class numbers 0 to C - 1, or names; -1 or empty where there is none.
        classes: names of the columns, needed if labels are names.
        title: what to call it.
        data: the samples, for the review page.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet([0.1, 0.1, 0.1], size=500)
    >>> y = np.array([rng.choice(3, p=row) for row in p])
    >>> y[:25] = (p[:25].argmax(1) + 1) % 3
    >>> found = audit_probabilities(p, y)
    >>> bool(np.mean(found.flagged["index"] < 25) > 0.4)
    True
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or p.shape[1] < 2:
        raise InputError(
            f"the probabilities have shape {p.shape}; expected (N, C), a row a sample and a column a class."
        )
    if not np.isfinite(p).all() or p.min() < -1e-6 or np.abs(p.sum(1) - 1).max() > 1e-3:
        sums = np.where(np.isfinite(p).all(1), np.abs(p.sum(1) - 1) + np.maximum(-p.min(1), 0), np.inf)
        row = int(sums.argmax())
        raise InputError(f"row {row} of the probabilities is {p[row][:5]}; each must be at least 0 and sum to 1.")
    given, names = _labels(np.asarray(labels), p.shape, classes)
    rows = np.flatnonzero(given != UNLABELED)
    if len(rows) < 20:
        raise InputError(f"{len(rows)} rows have a label; an audit needs 20 or more.")
    q, y = np.log(np.maximum(p[rows], SMALLEST)), given[rows]
    # Probabilities that are too sure are tempered as those of a single learner are.
    log_q, _ = pool({"probabilities": q - logsumexp(q, axis=1, keepdims=True)}, y)
    verdict = judge(without_spellings(log_q, y, names), y)
    lost = np.flatnonzero(given == UNLABELED)
    unlabeled: dict[str, NDArray[Any]] = {}
    if len(lost):
        unlabeled = {"index": lost, "suggested": p[lost].argmax(1), "probability": p[lost].max(1)}
    return Audit(
        kind="embedding" if data is None else "table",
        title=title,
        classes=names,
        index=rows,
        given=y,
        suggested=verdict.suggested,
        log_odds=verdict.log_odds,
        p_error=np.minimum(verdict.p_error, 0.5) if verdict.by_chance else verdict.p_error,
        evidence=verdict.evidence(y),
        noise_rate=verdict.share,
        probabilities=p[rows].astype(np.float32),
        unlabeled=unlabeled,
        config={"views": {"probabilities": 1.0}, "agreement": float((q.argmax(1) == y).mean())},
        notes=(by_chance_note("labels", {}),) if verdict.by_chance else (),
        data=data,
    )


def _labels(labels: NDArray[Any], shape: tuple[int, ...], classes: list[str] | None) -> tuple[Ints, tuple[str, ...]]:
    if labels.shape != (shape[0],):
        raise InputError(f"there are {shape[0]} rows of probabilities, and the labels have shape {labels.shape}.")
    if labels.dtype.kind in "iu":
        if labels.size and not -1 <= labels.min() <= labels.max() < shape[1]:
            row = int(np.flatnonzero((labels < -1) | (labels >= shape[1]))[0])
            raise InputError(f"label {labels[row]} of row {row} has no column: there are {shape[1]}, counted from 0.")
        names = tuple(classes) if classes else tuple(str(c) for c in range(shape[1]))
        return labels.astype(np.int64), names
    target, names = encode_labels(labels, classes)
    if len(names) != shape[1]:
        raise InputError(f"the labels name {len(names)} classes, and the probabilities have {shape[1]} columns.")
    return target, names
