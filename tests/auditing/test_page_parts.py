"""The review page of samples with several labels: what is judged is marked, and decisions say which part they are about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compensate.auditing.decisions import read_corrections
from compensate.auditing.page.model import Content, Estimate, Item, Page

pytestmark = pytest.mark.slow


def tokens_page() -> Page:
    words = (("Ann", "B-person"), ("visits", "O"), ("New", "O"), ("York", "O"))
    item = Item(2, "O", "city", 3.0, 0.9, True, Content(tokens=words, marked=(2, 4)), id="New York", part="tokens 2 2")
    return Page("t.conll", "text", ("O", "city", "person"), 4, (item,), Estimate(0.1, 0.0, 0.2))


def exported(tab: Any, folder: Path) -> Path:
    with tab.expect_download() as download:
        tab.click("button.export")
    download.value.save_as(folder / "corrections.csv")
    return folder / "corrections.csv"


def test_votes_stand_above_the_item(open_page: Callable[..., Any]) -> None:
    votes = (("ann", "x"), ("bob", "y"))
    item = Item(4, "x", "y", 1.0, 0.9, True, Content(text="a text", votes=votes))
    tab = open_page(Page("a.csv", "text", ("x", "y"), 9, (item,), Estimate(0.1, 0.0, 0.2)))
    assert tab.locator(".set-chips li").all_inner_texts() == ["ann\nx", "bob\ny"]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_judged_words_are_marked_and_a_tag_is_chosen(
    open_page: Callable[..., Any], tmp_path: Path, width: int
) -> None:
    tab = open_page(tokens_page(), width=width)
    assert [word.split()[0] for word in tab.locator("mark").all_inner_texts()] == ["New", "York"]
    assert "token 2 · New York" in tab.locator(".place").inner_text()
    wide = tab.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    tab.keyboard.press("3")
    decided = read_corrections(exported(tab, tmp_path))
    assert [(c.part, c.decision, c.label) for c in decided] == [("tokens 2 2", "other", "person")]
