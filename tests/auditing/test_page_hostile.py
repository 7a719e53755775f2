"""Data that try to be more than data: shown as text, never run, never evaluated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from review_pages import Example, Item, Page, class_count

from compensate.auditing.content import Content
from compensate.auditing.decisions import read_corrections
from compensate.auditing.result import apply_corrections
from compensate.data.dataset import Estimate

pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 2</script>",
    "--><img src=x onerror='window.ran = 3'>",
    "<svg onload=window.ran=4><style>*{display:none}</style>",
    "{{ 7 * 7 }}${window.ran = 5}{% raw %}",
    "javascript:window.ran=6",
    "' onmouseover='window.ran = 7' \" autofocus onfocus=\"window.ran = 8",
    '=HYPERLINK("http://x.example","click")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "-2+3",
    "plain \u202etxt.exe\u2066 end",
    "__proto__",
    "constructor",
)
HUGE = "w" * 1_000_000


def hostile_page(classes: tuple[str, ...]) -> Page:
    items = tuple(
        Item(
            i, text, classes[(i + 1) % len(classes)], 1.0, 0.99 - i / 100, True, Content(text=text + " text", fields=((text, text),)),
            id=text, like_given=(1000 + i,), like_suggested=(1000 + i,),
        )
        for i, text in enumerate(classes)
    )  # fmt: skip
    return Page(
        classes[1], "text", classes, 100, items, Estimate(0.1, 0.05, 0.2), command=classes[0], notes=classes,
        examples=tuple(Example(1000 + i, text, Content(text=text), id=text) for i, text in enumerate(classes)),
        per_class=tuple(class_count(text, 10, 1) for text in classes),
    )  # fmt: skip


def test_nothing_runs_and_everything_is_shown_as_text(open_page: Callable[..., Any], tmp_path: Path) -> None:
    tab = open_page(hostile_page(HOSTILE), "overview")
    assert tab.evaluate("() => document.scripts.length") == 2
    for text in HOSTILE[:10]:
        assert text in tab.inner_text(".notes")
        assert text[:40] in tab.inner_text(".bars")
    assert tab.locator("main img, main script, main style, main svg[onload]").count() == 0
    tab.goto(tab.url.partition("#")[0] + "#review")
    for row, text in enumerate(HOSTILE):
        seen = text.replace("\u202e", "U+202E").replace("\u2066", "U+2066")
        assert tab.inner_text(".choice.keep .choice-label") == seen
        assert tab.inner_text(".stage .text").startswith(seen)
        assert tab.inner_text(".stage dd") == seen
        tab.hover(".choice.keep")
        tab.keyboard.press("k" if row % 2 else "a")
    for key in ("Home", "o"):
        tab.keyboard.press(key)
    assert tab.locator("dialog .class-list button").count() == len(HOSTILE)
    tab.keyboard.press("Escape")
    tab.keyboard.press("b")
    tab.keyboard.press("Escape")
    tab.reload()
    assert tab.evaluate("() => window.ran") is None
    assert tab.evaluate("() => getComputedStyle(document.body).display") == "block"

    with tab.expect_download() as download:
        tab.click("button.export")
    download.value.save_as(tmp_path / "corrections.csv")
    written = (tmp_path / "corrections.csv").read_text(encoding="utf-8")
    assert "\n7,\"'=HYPERLINK" in written
    assert '\n9,"\'-2+3",' in written
    found = read_corrections(tmp_path / "corrections.csv")
    assert [c.given for c in found] == list(HOSTILE)
    suggested = [HOSTILE[(i + 1) % len(HOSTILE)] for i in range(len(HOSTILE))]
    assert [c.label for c in found] == [HOSTILE[i] if i % 2 else suggested[i] for i in range(len(HOSTILE))]

    lines = ['"' + text.replace('"', '""') + '"' for text in HOSTILE]
    (tmp_path / "data.csv").write_text("x,label\n" + "".join(f"{i},{line}\n" for i, line in enumerate(lines)))
    applied = apply_corrections(tmp_path / "data.csv", tmp_path / "corrections.csv", label="label")
    fixed = [line if i % 2 else lines[(i + 1) % len(lines)] for i, line in enumerate(lines)]
    assert applied.path.read_text() == "x,label\n" + "".join(f"{i},{line}\n" for i, line in enumerate(fixed))


def test_a_direction_override_turns_nothing_around_it(open_page: Callable[..., Any]) -> None:
    tab = open_page(hostile_page(("\u202eevil", "good")))
    assert tab.locator(".choice.keep .unseen").inner_text() == "U+202E"
    assert "\u202e" not in tab.inner_text("body")
    isolated = tab.eval_on_selector_all("bdi", "all => all.every(e => getComputedStyle(e).unicodeBidi === 'isolate')")
    assert isolated
    # The mark stands to the left of the word, as it does in the data, and the word is not mirrored.
    left = tab.evaluate(
        """() => {
          const name = document.querySelector('.choice.keep bdi');
          const word = document.createRange();
          word.selectNodeContents(name.lastChild);
          return [name.querySelector('.unseen').getBoundingClientRect().left, word.getBoundingClientRect().left];
        }"""
    )
    assert left[0] < left[1]


@pytest.mark.parametrize("what", ["label", "text", "field"])
def test_a_megabyte_is_folded(open_page: Callable[..., Any], what: str) -> None:
    given = HUGE if what == "label" else "x"
    content = Content(
        text=HUGE if what == "text" else None, fields=((HUGE, HUGE),) if what == "field" else (("a", "b"),)
    )
    items = tuple(Item(i, given, "y", 1.0, 0.9, True, content, id=HUGE) for i in range(3))
    tab = open_page(Page(HUGE, "text", (given, "y"), 9, items, Estimate(0.1, 0.0, 0.2), notes=(HUGE,)))
    assert len(tab.inner_text("body")) < 5_000
    if what != "label":
        tab.click(".more >> nth=0")
        assert 20_000 <= len(tab.inner_text(".stage")) < 30_000
    assert tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
