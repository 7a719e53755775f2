"""A person's way through the page, in a real browser: decide, filter, undo, reload, export, apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from review_pages import Item, Page, texts_page

from compensate.auditing.content import Content
from compensate.auditing.decisions import read_corrections
from compensate.auditing.result import apply_corrections
from compensate.data.dataset import Estimate

pytestmark = pytest.mark.slow

CLASSES = ("bird", "cat", "dog", "fox")


def labels(n: int) -> list[str]:
    return [CLASSES[(row * 7) % 4] for row in range(n)]


def after(given: str, steps: int = 1) -> str:
    return CLASSES[(CLASSES.index(given) + steps) % 4]


def progress(tab: Any) -> str:
    return str(tab.inner_text(".progress-words"))


def place(tab: Any) -> str:
    return str(tab.inner_text(".place"))


def export(tab: Any, folder: Path) -> Path:
    with tab.expect_download() as download:
        tab.click("button.export")
    assert download.value.suggested_filename == "corrections.csv"
    path = folder / "corrections.csv"
    download.value.save_as(path)
    tab.keyboard.press("Escape")
    return path


def test_twenty_decisions_by_keyboard_and_mouse_reach_the_file(open_page: Callable[..., Any], tmp_path: Path) -> None:
    given = labels(40)
    lines = [f"text number {row},{label}\r\n" for row, label in enumerate(given)]
    (tmp_path / "pets.csv").write_bytes(("text,label\r\n" + "".join(lines)).encode())
    tab = open_page(texts_page(given, classes=CLASSES))
    expected: dict[int, tuple[str, str]] = {}

    for row, key in enumerate("aakaskA4aK"):  # by keyboard, in upper or lower case
        assert place(tab).startswith(f"row {row}")
        tab.keyboard.press(key)
        chosen = {"a": after(given[row]), "k": given[row], "s": "", "4": "fox"}[key.lower()]
        named = {after(given[row]): "accept", given[row]: "reject", "": "skip"}.get(chosen, "other")
        expected[row] = (named, chosen)
    for row in range(10, 20):  # by mouse
        selector = (".choice.accept", ".choice.keep", ".chip:not(.taken)", ".tool:has-text('Skip')")[row % 4]
        if row % 4 == 2:
            chosen = str(tab.inner_text(selector + " >> nth=0")).split()[-1]
            expected[row] = ("other", chosen)
        else:
            expected[row] = {0: ("accept", after(given[row])), 1: ("reject", given[row]), 3: ("skip", "")}[row % 4]
        tab.click(selector + " >> nth=0")
    skipped = sum(decision == "skip" for decision, _ in expected.values())
    assert progress(tab) == f"{20 - skipped} of 40 labels decided"

    tab.keyboard.press("u")  # the last one, and back again
    assert place(tab).startswith("row 19")
    tab.keyboard.press("ArrowLeft")
    assert place(tab).startswith("row 18")
    assert tab.is_visible(".made")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("a")
    expected[19] = ("accept", after(given[19]))

    tab.reload()
    assert place(tab).startswith("row 20")
    made = [decision for decision, _ in expected.values()]
    assert progress(tab) == f"{20 - made.count('skip')} of 40 labels decided"
    tab.keyboard.press("u")  # undo outlives the reload
    assert place(tab).startswith("row 19")
    tab.keyboard.press("a")

    path = export(tab, tmp_path)
    found = {c.index: (c.decision, c.label) for c in read_corrections(path)}
    assert found == expected
    applied = apply_corrections(tmp_path / "pets.csv", path)
    for row, (decision, chosen) in expected.items():
        if decision in ("accept", "other"):
            lines[row] = f"text number {row},{chosen}\r\n"
    assert applied.path.read_bytes() == ("text,label\r\n" + "".join(lines)).encode()
    assert applied.changed == made.count("accept") + made.count("other")
    assert (tmp_path / "pets.csv").read_bytes() != applied.path.read_bytes()


def test_filters_and_orders(open_page: Callable[..., Any]) -> None:
    given = labels(40)
    tab = open_page(texts_page(given, classes=CLASSES))
    p = [0.99 - 0.9 * row / 40 for row in range(40)]
    tab.select_option("[aria-label='Class pair']", label="cat → dog (10)")
    assert tab.inner_text(".position") == "label 1 of 10"
    assert place(tab) == f"row {given.index('cat')}"
    tab.fill("[aria-label='Least probability of error']", "0.5")
    tab.press("[aria-label='Least probability of error']", "Tab")
    expected = [row for row in range(40) if given[row] == "cat" and p[row] >= 0.5]
    assert tab.inner_text(".position") == f"label 1 of {len(expected)}"
    tab.click("text=Clear filters")
    tab.select_option("[aria-label='Order']", "useful")
    useful = sorted(range(40), key=lambda row: (abs(round(p[row], 6) - 0.5), row))
    tab.click(".stage")
    tab.keyboard.press("Home")
    for row in useful[:4]:
        assert place(tab) == f"row {row}"
        tab.keyboard.press("a")
    tab.select_option("[aria-label='Show']", "undecided")
    assert tab.inner_text(".position").endswith("of 36")
    tab.select_option("[aria-label='Show']", "decided")
    assert tab.inner_text(".position").endswith("of 4")
    tab.select_option("[aria-label='Show']", "skipped")
    assert tab.is_visible("text=No row fits these filters")
    tab.click(".end-state button:has-text('Clear filters')")
    assert tab.inner_text(".position").endswith("of 40")


def test_a_decision_under_a_filter_does_not_make_the_list_jump(open_page: Callable[..., Any]) -> None:
    tab = open_page(texts_page(labels(8), classes=CLASSES))
    tab.select_option("[aria-label='Show']", "undecided")
    tab.click(".stage")
    before = tab.eval_on_selector_all(
        ".choice, .stage, .strip, .tools", "all => all.map(e => e.getBoundingClientRect().top)"
    )
    tab.keyboard.press("a")
    assert tab.inner_text(".position") == "label 2 of 8"
    assert before == tab.eval_on_selector_all(
        ".choice, .stage, .strip, .tools", "all => all.map(e => e.getBoundingClientRect().top)"
    )


def test_many_are_accepted_at_once_with_a_preview_and_undone_at_once(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    given = labels(40)
    tab = open_page(texts_page(given, classes=CLASSES))
    tab.keyboard.press("k")
    tab.keyboard.press("b")
    tab.fill("dialog input[type=number]", "0.8")
    certain = [row for row in range(1, 40) if round(0.99 - 0.9 * row / 40, 6) >= 0.8]
    assert tab.inner_text("dialog .preview p >> nth=0").startswith(f"{len(certain)} rows of this list")
    assert tab.locator("dialog .preview-items li").count() == len(certain)
    assert progress(tab) == "1 of 40 labels decided"  # a preview decides nothing
    tab.click(f"text=Accept {len(certain)} suggestions")
    assert progress(tab) == f"{len(certain) + 1} of 40 labels decided"
    found = {c.index: c.label for c in read_corrections(export(tab, tmp_path)) if c.decision == "accept"}
    assert found == {row: after(given[row]) for row in certain}
    tab.click("#toast button")
    assert progress(tab) == "1 of 40 labels decided"


def test_a_cell_of_the_heat_map_opens_its_pair(open_page: Callable[..., Any]) -> None:
    tab = open_page(texts_page(labels(40), classes=CLASSES), "overview")
    tab.click(".heat button[aria-label^='dog looks like fox']")
    assert tab.url.endswith("#review")
    assert tab.inner_text(".position") == "label 1 of 10"
    assert tab.inner_text(".choice.keep .choice-label") == "dog"
    assert tab.inner_text(".choice.accept .choice-label") == "fox"
    tab.go_back()
    assert tab.is_visible(".hero")


@pytest.mark.parametrize("size", [10, 100, 300])
def test_keys_stand_for_the_likeliest_classes_of_the_item(
    open_page: Callable[..., Any], tmp_path: Path, size: int
) -> None:
    names = tuple(f"class {i:03}" for i in range(size))
    likely = [tuple(names[(7 * row + k + 2) % size] for k in range(8)) for row in range(3)]
    page = texts_page([names[7 * row % size] for row in range(3)], classes=names)
    items = tuple(replace(item, likely=likely[row]) for row, item in enumerate(page.items))
    tab = open_page(replace(page, items=items))
    for row, place in enumerate((0, 4, 7)):
        shown = tab.locator(".chip bdi").all_inner_texts()
        assert shown[:8] == list(likely[row])
        assert len(set(shown)) == (8 if size == 10 else 9)
        assert not {items[row].given, items[row].suggested} & set(shown)
        tab.keyboard.press(str(place + 1))
    assert tab.locator(".find").count() == (0 if size == 10 else 1)
    found = [c.label for c in read_corrections(export(tab, tmp_path))]
    assert found == [likely[0][0], likely[1][4], likely[2][7]]


def test_all_classes_are_found_by_name_the_likeliest_first(open_page: Callable[..., Any], tmp_path: Path) -> None:
    names = tuple(f"class {i:03}" for i in range(300))
    page = texts_page([names[7]], classes=names)
    tab = open_page(replace(page, items=(replace(page.items[0], likely=names[50:59]),)))
    assert tab.locator(".chip").count() == 9
    tab.click("text=all 300")
    listed = tab.locator("dialog .class-list bdi").all_inner_texts()
    assert listed[:9] == list(names[50:59])
    assert sorted(listed) == list(names)
    tab.keyboard.type("299")
    tab.keyboard.press("Enter")
    assert [c.label for c in read_corrections(export(tab, tmp_path))] == ["class 299"]


def test_a_value_is_typed_where_labels_are_numbers(open_page: Callable[..., Any], tmp_path: Path) -> None:
    items = tuple(Item(i, f"{i}.5", "-2.25", 1.0, 0.9, True, Content(fields=(("size", "3"),))) for i in range(3))
    tab = open_page(Page("houses.csv", "regression", (), 90, items, Estimate(0.03, 0.01, 0.05)))
    assert tab.locator(".chip").all_inner_texts()[:2] == ["÷ 1,000", "÷ 100"]
    tab.keyboard.press("1")  # no classes, so no keys for them
    assert place(tab) == "row 0"
    tab.keyboard.press("a")
    tab.keyboard.press("o")
    tab.fill("dialog input", "many")
    tab.keyboard.press("Enter")
    assert "Write a number" in tab.inner_text(".problem")
    tab.fill("dialog input", "-7e2")
    tab.keyboard.press("Enter")
    found = [(c.decision, c.given, c.label) for c in read_corrections(export(tab, tmp_path))]
    assert found == [("accept", "0.5", "-2.25"), ("other", "1.5", "-7e2")]


def test_digits_are_their_own_keys(open_page: Callable[..., Any], tmp_path: Path) -> None:
    names = tuple("0123456789")
    tab = open_page(texts_page(["3", "8"], classes=names))
    tab.keyboard.press("0")
    tab.keyboard.press("8")
    found = [(c.decision, c.label) for c in read_corrections(export(tab, tmp_path))]
    assert found == [("other", "0"), ("reject", "8")]


def test_decisions_belong_to_one_audit(open_page: Callable[..., Any]) -> None:
    tab = open_page(texts_page(labels(8), classes=CLASSES))
    tab.keyboard.press("a")
    kept = tab.evaluate("() => Object.keys(localStorage)")
    assert len(kept) == 1
    other = open_page(texts_page(labels(9), classes=CLASSES))
    assert progress(other) == "0 of 9 labels decided"


def test_the_keyboard_alone_is_enough_and_focus_is_seen(open_page: Callable[..., Any]) -> None:
    tab = open_page(texts_page(labels(8), classes=CLASSES), "overview")
    seen = []
    for _ in range(12):
        tab.keyboard.press("Tab")
        focused = tab.evaluate(
            "() => [document.activeElement.textContent.trim(), getComputedStyle(document.activeElement).outlineStyle]"
        )
        seen.append(focused[0])
        assert focused[1] != "none", focused[0]
        if focused[0] == "Review them":
            break
    assert seen[0] == "Skip to the content"
    assert "Review them" in seen
    tab.keyboard.press("Enter")
    assert place(tab) == "row 0"
    tab.keyboard.press("?")
    assert tab.is_visible("dialog >> text=undo the last step")
    tab.keyboard.press("a")  # a key belongs to the dialog while it is open
    tab.keyboard.press("Escape")
    assert progress(tab) == "0 of 8 labels decided"
    unnamed = tab.eval_on_selector_all(
        "button, a, input, select",
        "all => all.filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label'))).length",
    )
    assert unnamed == 0
    tab.keyboard.press("a")
    assert "Accepted" in tab.text_content("#live")
    assert "2 of 8" in tab.text_content("#live")


def test_storage_that_fails_is_said(open_page: Callable[..., Any]) -> None:
    tab = open_page(texts_page(labels(3), classes=CLASSES))
    tab.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('full') } }")
    tab.keyboard.press("a")
    assert progress(tab) == "1 of 3 labels decided · not kept"


@pytest.mark.parametrize("flagged", [2, None])
def test_only_flagged_rows_are_asked_for_first(open_page: Callable[..., Any], flagged: int | None) -> None:
    tab = open_page(texts_page(labels(8), classes=CLASSES, flagged=flagged))
    assert tab.inner_text(".position") == ("label 1 of 2" if flagged else "label 1 of 8")
    assert progress(tab).endswith("of 2 labels decided" if flagged else "of 8 labels decided")
    assert tab.locator("text=flagged only").count() == (1 if flagged else 0)
