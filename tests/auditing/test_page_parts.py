"""The review page of samples with several labels: what is judged is marked, and decisions say which part they are about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from review_pages import Item, Page

from compensate.auditing.content import Content
from compensate.auditing.decisions import read_corrections
from compensate.auditing.result import apply_corrections
from compensate.data.dataset import Estimate

pytestmark = pytest.mark.slow


def labels_page() -> Page:
    content = Content(text="a court", chips=(("food", True), ("law", False)), marked=1)
    items = tuple(
        Item(2 * k + 1, "absent", "present", 3.0, 0.9, True, content, part=f"label {k} law") for k in range(20)
    )
    return Page("t.csv", "text", ("absent", "present"), 40, items, Estimate(0.1, 0.0, 0.2))


def tokens_page() -> Page:
    words = (("Ann", "B-person"), ("visits", "O"), ("New", "O"), ("York", "O"))
    item = Item(2, "O", "city", 3.0, 0.9, True, Content(tokens=words, marked=(2, 4)), id="New York", part="tokens 2 2")
    return Page("t.conll", "text", ("O", "city", "person"), 4, (item,), Estimate(0.1, 0.0, 0.2))


def exported(tab: Any, folder: Path) -> Path:
    with tab.expect_download() as download:
        tab.click("button.export")
    download.value.save_as(folder / "corrections.csv")
    return folder / "corrections.csv"


def test_twenty_decisions_by_keyboard_come_back_with_their_labels(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(
        "text,labels\n" + "".join(f"a court {k},{('x;food', 'food;x', 'food', 'food;x')[k % 4]}\n" for k in range(20))
    )
    tab = open_page(labels_page())
    assert tab.locator(".set-chip.judged").inner_text().split()[-2:] == ["(absent,", "judged)"]
    assert "row 0 · law" in tab.locator(".place").inner_text()
    for k in range(20):
        tab.keyboard.press("a" if k % 2 else "k")
    decided = read_corrections(exported(tab, tmp_path))
    assert [c.part for c in decided] == [f"label {k} law" for k in range(20)]
    assert [c.decision for c in decided] == ["reject", "accept"] * 10
    done = apply_corrections(tmp_path / "t.csv", decided, tmp_path / "out.csv", label="labels")
    assert done.changed == 10
    assert (tmp_path / "out.csv").read_text().count("food;x;law") == 10


def test_either_choice_names_its_label_and_the_judged_chip_switches_it(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    tab = open_page(labels_page())
    assert [box.split()[-1] for box in tab.locator("button.choice").all_inner_texts()] == ["law", "law"]
    tab.click(".set-chip.judged")
    assert [c.decision for c in read_corrections(exported(tab, tmp_path))] == ["accept"]


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


def test_a_page_of_whole_rows_exports_no_parts(open_page: Callable[..., Any], tmp_path: Path) -> None:
    item = Item(4, "x", "y", 1.0, 0.9, True, Content(text="a text"))
    tab = open_page(Page("a.csv", "text", ("x", "y"), 9, (item,), Estimate(0.1, 0.0, 0.2)))
    tab.keyboard.press("a")
    assert exported(tab, tmp_path).read_text().startswith("index,given,decision,label,row,source\n")
    assert len(read_corrections(tmp_path / "corrections.csv")) == 1
