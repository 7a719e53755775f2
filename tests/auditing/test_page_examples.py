"""Certain examples beside a suspect are certain: errors that were planted are not among them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from review_pages import planted_audit, planted_regression

from compensate.auditing.page import CERTAIN, EXAMPLES, certain_examples, page_of
from compensate.auditing.result import Audit


def shown_rows(audit: Audit) -> np.ndarray:
    sides = certain_examples(audit, np.flatnonzero(audit.mask))
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


def test_examples_carry_the_label_they_stand_for_and_were_predicted_so_by_models_that_did_not_see_it() -> None:
    audit, _ = planted_audit(5)
    top = audit.probabilities.argmax(1)
    for row, (given, suggested) in certain_examples(audit, np.flatnonzero(audit.mask)).items():
        for side, label in ((given, audit.given[row]), (suggested, audit.suggested[row])):
            assert len(side) <= EXAMPLES
            assert row not in side
            assert all(audit.given[j] == label == top[j] and audit.p_error[j] < CERTAIN for j in side)


def test_copies_of_the_suspect_are_not_shown_as_examples_of_another_class() -> None:
    audit, _ = planted_audit(2)
    suspect = int(np.argmax(audit.log_odds))
    certain = np.flatnonzero((audit.given == audit.suggested[suspect]) & (audit.p_error < CERTAIN))[::2]
    vectors = audit.vectors.copy()
    noise = np.random.default_rng(0).normal(size=(len(certain), vectors.shape[1]))
    vectors[certain] = vectors[suspect] + 1e-3 * noise
    audit = replace(audit, vectors=vectors)
    _, suggested = certain_examples(audit, np.array([suspect]))[suspect]
    assert len(suggested) == EXAMPLES
    assert not set(suggested) & set(certain.tolist())


def test_three_copies_of_one_row_are_shown_once() -> None:
    audit, _ = planted_audit(2)
    vectors = np.repeat(audit.vectors[::4], 4, axis=0)[: len(audit)]
    sides = certain_examples(replace(audit, vectors=vectors), np.flatnonzero(audit.mask))
    for pair in sides.values():
        for side in pair:
            assert len({vectors[j].tobytes() for j in side}) == len(side)


def test_sparse_and_dense_vectors_give_the_same_examples() -> None:
    audit, _ = planted_audit(3)
    rows = np.flatnonzero(audit.mask)
    assert certain_examples(replace(audit, vectors=sp.csr_matrix(audit.vectors)), rows) == certain_examples(audit, rows)
    assert certain_examples(replace(audit, vectors=None), rows) == {}


def test_where_nothing_is_certain_the_page_has_the_probabilities_to_say_so() -> None:
    audit, _ = planted_audit(2)
    unsure = page_of(replace(audit, p_error=np.maximum(audit.p_error, 0.05)))
    assert unsure["examples"]["p"]
    assert all(0.05 <= p < 0.1 for p in unsure["examples"]["p"])
    assert not page_of(replace(audit, p_error=np.maximum(audit.p_error, 0.15)))["examples"]["p"]


def test_values_are_compared_with_certain_rows_of_such_values() -> None:
    audit, changed = planted_regression()
    sides = certain_examples(audit, np.flatnonzero(audit.mask))
    rows = np.array([j for pair in sides.values() for side in pair for j in side])
    assert changed[rows].mean() <= 0.01
    nearer = [
        abs(audit.given[j] - audit.given[i]) < abs(audit.given[j] - audit.suggested[i])
        for i, (given, _) in sides.items()
        for j in given
    ]
    assert np.mean(nearer) > 0.9
