"""An audit without training, for people who have out-of-sample probabilities already."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.auditing.evidence import best_other
from compensate.auditing.page.model import Estimate
from compensate.auditing.planting import confident_joint, plant
from compensate.auditing.result import Audit
from compensate.auditing.verdict import judge
from compensate.data.dataset import UNLABELLED, Data
from compensate.data.labels import encode_labels
from compensate.errors import InputError

SMALLEST = 1e-6


def audit_probabilities(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    classes: list[str] | None = None,
    title: str = "the labels",
    seed: int = 0,
    data: Data | None = None,
) -> Audit:
    r"""Finds the labels that look wrong, given what a model says of samples it was not trained on.

    .. math:: s_i = \max_{c \ne y_i} \ln p_{ic} - \ln p_{i y_i}

    What a wrong label looks like is known without training: give a row another label, and read off its score.

    Args:
        probabilities: (N, C), rows that sum to one, each by a model that has not seen the sample.
        labels: (N,) class numbers 0 to C - 1, or names; -1 or empty where there is none.
        classes: names of the columns, needed if labels are names.
        title: what to call it.
        seed: of the planted labels.
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
    rows = np.flatnonzero(given != UNLABELLED)
    if len(rows) < 20:
        raise InputError(f"{len(rows)} rows have a label; an audit needs 20 or more.")
    q, y = np.log(np.maximum(p[rows], SMALLEST)), given[rows]
    trust = p[rows, y] / p[rows].max(1)
    plants = plant(y, confident_joint(p[rows], y), trust, seed=seed)
    sown = plants.sow(y)
    score, own = _score(q, sown), _score(q, y)
    # A planted row's own score is known exactly; nothing was trained with the planted label.
    verdict = judge(score, own, y, best_other(q, y), plants, trust, p.shape[1])
    lost = np.flatnonzero(given == UNLABELLED)
    unlabelled: dict[str, NDArray[Any]] = {}
    if len(lost):
        unlabelled = {"index": lost, "suggested": p[lost].argmax(1), "probability": p[lost].max(1)}
    return Audit(
        kind="embedding" if data is None else "table",
        title=title,
        classes=names,
        index=rows,
        given=y,
        suggested=best_other(p[rows], y),
        score=verdict.log_odds,
        p_error=verdict.p_error,
        evidence={"margin": -own, "loss": -q[np.arange(len(y)), y]},
        noise_rate=Estimate(verdict.rate, verdict.low, verdict.high),
        probabilities=p[rows].astype(np.float32),
        unlabelled=unlabelled,
        config={"kind": "probabilities", "seed": seed, "planted": len(plants.rows)},
        data=data,
    )


def _score(q: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    rows = np.arange(len(labels))
    others = q.copy()
    others[rows, labels] = -np.inf
    return others.max(1) - q[rows, labels]


def _labels(
    labels: NDArray[Any], shape: tuple[int, ...], classes: list[str] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
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
