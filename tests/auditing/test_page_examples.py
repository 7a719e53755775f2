"""Certain examples beside a suspect are certain: errors that were planted are not among them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from review_pages import planted_audit

from compensate.auditing.page.contents import BESIDE, CERTAIN, beside
from compensate.auditing.result import Audit


def shown_rows(audit: Audit) -> np.ndarray:
    sides = beside(audit, np.flatnonzero(audit.mask))
    return np.array([j for pair in sides.values() for side in pair for j in side])


@pytest.mark.parametrize(("classes", "spread", "rate"), [(2, 1.2, 0.1), (2, 1.2, 0.2), (5, 1.0, 0.2), (20, 0.8, 0.1)])
def test_at_most_one_in_a_hundred_shown_examples_is_a_planted_error(classes: int, spread: float, rate: float) -> None:
    wrong, shown = 0, 0
    for seed in range(3):
        audit, changed = planted_audit(classes, spread=spread, rate=rate, seed=seed)
        rows = shown_rows(audit)
        wrong, shown = wrong + int(changed[rows].sum()), shown + len(rows)
    assert shown > 300
    assert wrong <= 0.01 * shown


def test_copies_of_the_suspect_are_not_shown_as_examples_of_another_class() -> None:
    audit, _ = planted_audit(2)
    suspect = int(np.argmax(audit.log_odds))
    certain = np.flatnonzero((audit.given == audit.suggested[suspect]) & (audit.p_error < CERTAIN))[::2]
    vectors = audit.vectors.copy()
    noise = np.random.default_rng(0).normal(size=(len(certain), vectors.shape[1]))
    vectors[certain] = vectors[suspect] + 1e-3 * noise
    audit = replace(audit, vectors=vectors)
    _, suggested = beside(audit, np.array([suspect]))[suspect]
    assert len(suggested) == BESIDE
    assert not set(suggested) & set(certain.tolist())
