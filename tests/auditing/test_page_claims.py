"""What the page says of classes and pairs is said only if it is more than chance."""

from __future__ import annotations

import numpy as np
import pytest
from review_pages import class_count
from scipy.stats import fisher_exact

from compensate.auditing.page import exceeds, lopsided, unreliable

SHARP, OPEN = (0.04, 0.06), (0.01, 0.25)


def drawn(rng: np.random.Generator, classes: int, rows: int, rates: np.ndarray) -> list[tuple[str, int, int, float]]:
    flagged = rng.binomial(rows, rates)
    return [class_count(f"class {c}", rows, int(flagged[c])) for c in range(classes)]


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
        bool(unreliable(drawn(rng, classes, rows, np.full(classes, 0.05)), *SHARP)["classes"]) for _ in range(300)
    ]  # fmt: skip
    assert np.mean(claims) <= 0.05


def test_claims_follow_the_counts_and_the_interval() -> None:
    few = [class_count("rare", 3, 1), *(class_count(f"class {c}", 400, 16) for c in range(9))]
    hard = [class_count("hard", 1000, 200, 55.0), class_count("easy", 1000, 60, 50.0)]
    two = [class_count("a", 500, 80), class_count("b", 500, 78), *(class_count(f"{c}", 500, 15) for c in range(8))]
    for counts in ([], few, [class_count("a", 0, 0), class_count("b", 9, 9)]):
        assert unreliable(counts, *SHARP) == {"classes": [], "worst": False, "wrong": False}
    assert unreliable(hard, *SHARP) == {"classes": ["hard"], "worst": True, "wrong": False}
    assert unreliable(two, *SHARP) == {"classes": ["a", "b"], "worst": False, "wrong": True}
    one = drawn(np.random.default_rng(0), 10, 500, np.where(np.arange(10) == 3, 0.15, 0.04))
    assert unreliable(one, *SHARP) == {"classes": ["class 3"], "worst": True, "wrong": True}
    first = drawn(np.random.default_rng(0), 2, 2000, np.array([0.4, 0.2]))
    assert unreliable(first, *SHARP)["wrong"]
    assert unreliable(first, *OPEN) == {"classes": ["class 0"], "worst": True, "wrong": False}


def test_one_direction_is_more_frequent_only_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    forward = rng.binomial(60, 0.5, 1000)
    assert np.mean([lopsided(int(n), 60 - int(n)) for n in forward]) <= 0.08
    assert lopsided(45, 15)
    assert lopsided(15, 45)
    assert not lopsided(0, 0)
