"""What the overview says, in a real browser: each sentence where its condition holds, another where it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from review_pages import CLASSES, Page, class_count, histogram, planted_regression, texts_page

from compensate.auditing.findings import Provenance
from compensate.auditing.page import page_of
from compensate.data.dataset import Estimate

SHARP, OPEN = Estimate(0.05, 0.04, 0.06), Estimate(0.05, 0.01, 0.25)


def said(tab: Any, title: str) -> str:
    return str(tab.inner_text(f".card:has-text('{title}') .conclusion")).replace("\xa0", " ")


def small(**changes: Any) -> Page:
    return replace(texts_page(["cat", "dog", "bird"], classes=CLASSES), **changes)


def counts(*flagged: int, rows: int = 500) -> tuple[tuple[str, int, int, float], ...]:
    return tuple(class_count(name, rows, n) for name, n in zip(CLASSES, flagged, strict=True))


@pytest.mark.parametrize(
    ("per_class", "noise", "expected"),
    [
        (counts(60, 20, 22), SHARP, "bird is the least reliable: 12 % of its 500 rows are flagged, against 4.2 % of the others."),
        (counts(60, 20, 22), OPEN, "bird stands out: 12 % of its 500 rows are flagged, against 4.2 % of the others. This does not show"),
        (counts(26, 20, 22), SHARP, "4.5 % of all rows are flagged. The differences between the classes are not significant."),
        (counts(3, 1, 0, rows=9), SHARP, "15 % of all rows are flagged. The differences between the classes are"),
        (counts(60, 58, 5), SHARP, "bird and cat are less reliable than the others: 12 % of their 1,000 rows are flagged, against 1.0 %"),
    ],
)  # fmt: skip
def test_a_class_is_called_unreliable_only_if_it_is(open_page, per_class, noise, expected) -> None:
    tab = open_page(small(per_class=per_class, noise=noise), "overview")
    assert said(tab, "Flagged share").startswith(expected)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([("cat", "dog", 1)], "The flagged row is cat that looks like dog."),
        ([("cat", "dog", 9)], "Every flagged row is cat that looks like dog."),
        ([("cat", "dog", 12), ("dog", "cat", 8)], "cat and dog are flagged in both directions, 12 and 8 times; the difference"),
        ([("cat", "dog", 80), ("dog", "cat", 20)], "cat that looks like dog is flagged more often than the other way round: 80"),
        ([("cat", "dog", 4), ("dog", "bird", 4)], "The flags are spread over 2 pairs, of which the most frequent have 4 rows each."),
        ([("cat", "dog", 9), ("dog", "bird", 4)], "Begin with cat that looks like dog: 69 % of all flags."),
    ],
)  # fmt: skip
def test_pairs_are_compared_only_where_they_differ(open_page, pairs, expected) -> None:
    tab = open_page(small(pairs=tuple(pair for pair in pairs)), "overview")
    assert said(tab, "Which labels").startswith(expected)


@pytest.mark.parametrize(
    ("rows", "flagged", "expected"),
    [
        ((900, 0, 0, 90), (0, 0, 0, 90), "No row lies near the threshold"),
        ((900, 0, 5, 90), (0, 0, 5, 90), "Few rows lie near the threshold (5, and 95 are flagged)"),
        # Few beside all rows, many beside the flags.
        ((900, 6, 5, 5), (0, 0, 5, 5), "11 rows lie near the threshold, and 10 are flagged: a slightly different one would flag more"),
        ((900, 6, 0, 0), (0, 0, 0, 0), "No row reaches 0.5, from which on labels are flagged."),
    ],
)  # fmt: skip
def test_flags_are_called_stable_only_if_few_of_them_lie_near_the_threshold(open_page, rows, flagged, expected) -> None:
    scores = histogram((0.0, 0.25, 0.5, 0.75, 1.0), rows, flagged, 0.5)
    tab = open_page(small(scores=scores), "overview")
    assert said(tab, "How suspect").startswith(expected)


# States at the edges


def test_labels_that_cannot_be_predicted_are_not_judged(open_page: Callable[..., Any]) -> None:
    tab = open_page(small(predictable=False, all_flagged=10), "overview")
    assert "cannot be predicted from the samples better than by chance" in tab.inner_text("h1.finding")
    assert "flagged" not in tab.inner_text("header")
    assert tab.locator(".card, .big").count() == 0
    tab.click("text=Look at some rows")
    assert tab.inner_text(".verdict") == "cannot be judged"
    tab.keyboard.press("b")
    assert tab.locator("dialog, button:has-text('Accept many')").count() == 0


def test_quantities_have_words_of_their_own(open_page: Callable[..., Any]) -> None:
    audit, _ = planted_regression()
    page = page_of(replace(audit, provenance=Provenance(views={"table: trees": 1.0}, agreement=0.9)))
    tab = open_page(page, "overview")
    text = tab.inner_text("main").replace("\xa0", " ")
    assert "3.0 %" in tab.inner_text("h1").replace("\xa0", " ")
    assert "of values look wrong" in text
    assert "values are flagged" in text
    assert "Each value was judged by models that had not seen it: table with extra trees (100 %)." in text
    assert "Their usual error is 90 % smaller than that of the median of all values." in text
    assert tab.locator(".heat, .pair, .bars").count() == 0
    assert tab.locator(".dot-hot").count() == sum(page["items"]["flagged"])
    tab.click("text=Review them")
    assert tab.inner_text(".choice.accept .choice-note").startswith("usual error ± ")
    assert tab.inner_text(".choice.keep .choice-note").endswith("× the usual error")
    assert tab.inner_text(".like-name >> nth=0").startswith("similar rows with values near")
    assert "label" not in tab.inner_text("main") + text
    tab.keyboard.press("b")
    assert "would take the suggested value" in tab.inner_text("dialog")
