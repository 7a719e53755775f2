"""What the page says of classes and pairs is said only if it is more than chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import fisher_exact

from compensate.auditing.page import ClassCount, Estimate
from compensate.auditing.page.payload import Unreliable, exceeds, lopsided, unreliable

SHARP, OPEN = Estimate(0.05, 0.04, 0.06), Estimate(0.05, 0.01, 0.25)


def drawn(rng: np.random.Generator, classes: int, rows: int, rates: np.ndarray) -> list[ClassCount]:
    flagged = rng.binomial(rows, rates)
    return [ClassCount(f"class {c}", rows, int(flagged[c])) for c in range(classes)]


@pytest.mark.parametrize("counts", [(0, 10, 0, 10), (3, 10, 1, 40), (10, 10, 9, 10), (47, 1200, 20, 900)])
def test_shares_are_compared_as_fishers_exact_test_does(counts: tuple[int, int, int, int]) -> None:
    k, n, other, m = counts
    p = fisher_exact([[k, n - k], [other, m - other]], alternative="greater").pvalue
    arrays = [np.array([number]) for number in counts]
    assert exceeds(*arrays, level=p * 1.001).tolist() == [True]
    assert exceeds(*arrays, level=p * 0.999).tolist() == [False]


@pytest.mark.parametrize(("classes", "rows"), [(2, 500), (10, 200), (100, 60), (300, 30)])
def test_classes_that_are_equally_reliable_are_rarely_called_unreliable(classes: int, rows: int) -> None:
    rng = np.random.default_rng(classes)
    claims = [
        bool(unreliable(drawn(rng, classes, rows, np.full(classes, 0.05)), SHARP).classes) for _ in range(300)
    ]  # fmt: skip
    assert np.mean(claims) <= 0.05


def test_a_class_that_is_unreliable_is_named() -> None:
    rates = np.full(10, 0.04)
    rates[3] = 0.15
    found = unreliable(drawn(np.random.default_rng(0), 10, 500, rates), SHARP)
    assert found == Unreliable(("class 3",), worst=True, wrong=True)


def test_one_direction_is_more_frequent_only_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    forward = rng.binomial(60, 0.5, 1000)
    assert np.mean([lopsided(int(n), 60 - int(n)) for n in forward]) <= 0.08
    assert lopsided(45, 15)
    assert lopsided(15, 45)
    assert not lopsided(0, 0)
