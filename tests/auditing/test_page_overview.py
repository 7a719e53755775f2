"""What the overview says, in a real browser: each sentence where its condition holds, another where it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from review_pages import texts_page

from compensate.auditing.page import ClassCount, Estimate, Page

CLASSES = ("bird", "cat", "dog")
SHARP, OPEN = Estimate(0.05, 0.04, 0.06), Estimate(0.05, 0.01, 0.25)


def said(tab: Any, title: str) -> str:
    return str(tab.inner_text(f".card:has-text('{title}') .conclusion")).replace("\xa0", " ")


def small(**changes: Any) -> Page:
    return replace(texts_page(["cat", "dog", "bird"], classes=CLASSES), **changes)


def counts(*flagged: int, rows: int = 500) -> tuple[ClassCount, ...]:
    return tuple(ClassCount(name, rows, n) for name, n in zip(CLASSES, flagged, strict=True))


@pytest.mark.parametrize(
    ("per_class", "noise", "expected"),
    [
        (counts(60, 20, 22), SHARP, "bird is the least reliable: 12 % of its 500 rows are flagged, against 4.2 % of the others."),
        (counts(60, 20, 22), OPEN, "bird stands out: 12 % of its 500 rows are flagged, against 4.2 % of the others. It may only be"),
        (counts(26, 20, 22), SHARP, "4.5 % of all rows are flagged. The classes differ by no more than chance makes them differ."),
        (counts(3, 1, 0, rows=9), SHARP, "15 % of all rows are flagged. The classes differ by no more than chance"),
        (counts(60, 58, 5), SHARP, "bird and cat are less reliable than the others: 12 % of their 1,000 rows are flagged, against 1.0 %"),
    ],
)  # fmt: skip
def test_a_class_is_called_unreliable_only_if_it_is(open_page, per_class, noise, expected) -> None:
    tab = open_page(small(per_class=per_class, noise_rate=noise), "overview")
    assert said(tab, "Flagged share").startswith(expected)


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


def test_the_bar_counts_all_flags_also_those_that_are_not_on_the_page(open_page: Callable[..., Any]) -> None:
    tab = open_page(small(rows=90_000, all_flagged=7_312), "overview")
    assert tab.inner_text(".flag-count") == "7,312 flagged"
    assert tab.inner_text(".fact") == "7,312 labels are flagged"
