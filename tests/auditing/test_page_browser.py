"""The page in a real browser: decisions, looks, hostile data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from review_pages import png, texts_page

from compensate.auditing.decisions import apply_corrections, read_corrections
from compensate.auditing.page import (
    ClassCount,
    Content,
    Curve,
    Estimate,
    Example,
    Histogram,
    Item,
    Kind,
    Page,
)

# Page review
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


@pytest.mark.slow
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
            expected[row] = (("accept", after(given[row])), ("reject", given[row]), None, ("skip", ""))[row % 4] or (
                "",
                "",
            )
        tab.click(selector + " >> nth=0")
    skipped = sum(decision == "skip" for decision, _ in expected.values())
    assert progress(tab) == f"{20 - skipped} of 40 decided"

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
    assert progress(tab) == f"{20 - made.count('skip')} of 40 decided"
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


@pytest.mark.slow
def test_filters_and_orders(open_page: Callable[..., Any]) -> None:
    given = labels(40)
    tab = open_page(texts_page(given, classes=CLASSES))
    p = [0.99 - 0.9 * row / 40 for row in range(40)]
    tab.select_option("[aria-label='Class pair']", label="cat → dog (10)")
    assert tab.inner_text(".position") == "1 of 10"
    assert place(tab) == f"row {given.index('cat')}"
    tab.fill("[aria-label='Least probability of error']", "0.5")
    tab.press("[aria-label='Least probability of error']", "Tab")
    expected = [row for row in range(40) if given[row] == "cat" and p[row] >= 0.5]
    assert tab.inner_text(".position") == f"1 of {len(expected)}"
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


@pytest.mark.slow
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
    assert progress(tab) == "1 of 40 decided"  # a preview decides nothing
    tab.click(f"text=Accept {len(certain)} suggestions")
    assert progress(tab) == f"{len(certain) + 1} of 40 decided"
    found = {c.index: c.label for c in read_corrections(export(tab, tmp_path)) if c.decision == "accept"}
    assert found == {row: after(given[row]) for row in certain}
    tab.click("#toast button")
    assert progress(tab) == "1 of 40 decided"


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_value_is_typed_where_labels_are_numbers(open_page: Callable[..., Any], tmp_path: Path) -> None:
    items = tuple(Item(i, f"{i}.5", "-2.25", 1.0, 0.9, True, Content(fields=(("size", "3"),))) for i in range(3))
    tab = open_page(Page("houses.csv", "regression", (), 90, items, Estimate(0.03, 0.01, 0.05)))
    assert tab.locator(".chip").count() == 0
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


@pytest.mark.slow
def test_decisions_belong_to_one_audit(open_page: Callable[..., Any]) -> None:
    tab = open_page(texts_page(labels(8), classes=CLASSES))
    tab.keyboard.press("a")
    kept = tab.evaluate("() => Object.keys(localStorage)")
    assert len(kept) == 1
    other = open_page(texts_page(labels(9), classes=CLASSES))
    assert progress(other) == "0 of 9 decided"


@pytest.mark.slow
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
    assert progress(tab) == "0 of 8 decided"
    unnamed = tab.eval_on_selector_all(
        "button, a, input, select",
        "all => all.filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label'))).length",
    )
    assert unnamed == 0
    tab.keyboard.press("a")
    assert "Accepted" in tab.text_content("#live")
    assert "2 of 8" in tab.text_content("#live")


@pytest.mark.slow
def test_storage_that_fails_is_said(open_page: Callable[..., Any]) -> None:
    tab = open_page(texts_page(labels(3), classes=CLASSES))
    tab.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('full') } }")
    tab.keyboard.press("a")
    assert progress(tab) == "1 of 3 decided · not kept"


# Page looks
PAGE_LOOKS_CLASSES = ("bird", "cat", "dog")


def full_page(kind: Kind, classes: tuple[str, ...] = PAGE_LOOKS_CLASSES, n: int = 30) -> Page:
    """A page with every picture on it."""

    def content(seed: int) -> Content:
        if kind == "image":
            return Content(image=png(seed))
        if kind == "text":
            return Content(text="A sentence of some length, with a word or two to spare. " * (seed % 9 + 1))
        return Content(fields=tuple((f"column {k}", str(seed * k)) for k in range(12)))

    c = len(classes)
    items = tuple(
        Item(
            i,
            classes[i % c],
            classes[(i + 1 + i % 2) % c],
            1.0,
            0.99 - i / n,
            True,
            content(i),
            f"id {i}",
            (900,),
            (901,),
        )
        for i in range(n)
    )
    values = (0.5, 0.7, 0.9, 0.95)
    return Page(
        "a-data-set-with-a-long-name-of-its-own.csv",
        kind,
        classes,
        1000,
        items,
        Estimate(0.052, 0.046, 0.059),
        0.93,
        0.5,
        (Example(900, classes[0], content(3)), Example(901, classes[1], content(4))),
        per_class=tuple(ClassCount(name, 100, i) for i, name in enumerate(classes)),
        scores=Histogram((0.0, 1.0, 2.0, 3.0), (9000, 20, 60), (0, 5, 60), 1.5),
        compensations=Histogram((0.0, 1.0, 2.0), (12_000, 60)),
        curves=(Curve("accuracy", "robust", values), Curve("accuracy", "plain", values[::-1])),
        command="compensate apply a-data-set-with-a-long-name-of-its-own.csv corrections.csv -o fixed.csv",
        notes=("3 images cannot be read and are left out.",),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["image", "text", "table"])
def test_a_phone_needs_no_sideways_scrolling(open_page: Callable[..., Any], kind: Kind) -> None:
    tab = open_page(full_page(kind), "overview", width=360, height=740, has_touch=True, is_mobile=True)
    for _ in range(2):
        assert tab.evaluate("() => document.documentElement.scrollWidth") == 360
        small = tab.eval_on_selector_all(
            "button:not(.link), a:not(.jump), select",
            "all => all.filter(e => e.checkVisibility() && e.getBoundingClientRect().height < 24).length",
        )
        assert small == 0
        tab.tap("text=Review >> nth=0")
    tab.tap(".choice.accept")
    tab.tap("summary")
    tab.tap("text=Accept many")
    assert tab.evaluate("() => document.documentElement.scrollWidth") == 360
    assert tab.evaluate("() => { const d = document.querySelector('dialog'); return d.scrollWidth <= d.clientWidth }")


CONTRAST = """() => {
  const parse = (text) => {
    const numbers = text.match(/-?[0-9.]+(e-?[0-9]+)?/g).map(Number);
    const scale = text.startsWith('color(') ? 255 : 1;
    return [numbers[0] * scale, numbers[1] * scale, numbers[2] * scale, numbers[3] ?? 1];
  };
  const light = (c) => {
    const f = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]);
  };
  const over = (top, below) => [0, 1, 2].map((k) => top[k] * top[3] + below[k] * (1 - top[3])).concat(1);
  const ground = (e) => {
    if (!e) return [255, 255, 255, 1];
    const own = parse(getComputedStyle(e).backgroundColor);
    return own[3] === 1 ? own : over(own, ground(e.parentElement));
  };
  const poor = [];
  let seen = 0;
  for (const e of document.querySelectorAll('body *')) {
    const words = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!words || !e.checkVisibility({ opacityProperty: true }) || e.closest('.hidden-text, :disabled, script, .jump, noscript')) continue;
    const svg = e.closest('svg');
    if (e.tagName === 'title') continue;
    const below = ground(svg ? svg.parentElement : e);
    const color = over(parse(svg ? getComputedStyle(e).fill : getComputedStyle(e).color), below);
    const [a, b] = [light(color), light(below)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    seen++;
    if (ratio < 4.5) poor.push([e.className.baseVal ?? e.className, e.textContent.slice(0, 30), ratio.toFixed(2)].join(' | '));
  }
  return [seen, poor];
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(open_page: Callable[..., Any], scheme: str) -> None:
    page = full_page("text", tuple("abcdef"), 60)
    tab = open_page(page, "overview", color_scheme=scheme)
    seen, poor = tab.evaluate(CONTRAST)
    assert seen > 60
    assert poor == []
    tab.goto(tab.url.replace("#overview", "#review"))
    for key in "aks4":
        tab.keyboard.press(key)
    tab.keyboard.press("ArrowLeft")
    seen, poor = tab.evaluate(CONTRAST)
    assert seen > 40
    assert poor == []
    for key in ("b", "?"):
        tab.keyboard.press(key)
        seen, poor = tab.evaluate(CONTRAST)
        assert poor == []
        tab.keyboard.press("Escape")


# The states at the edges
@pytest.mark.slow
def test_images_that_are_missing_or_broken(open_page: Callable[..., Any]) -> None:
    contents = (
        Content(missing="the file cats/7.png cannot be read"),
        Content(image=png(1)[:20]),
        Content(image=png(2)),
        Content(),
    )
    items = tuple(Item(i, "cat", "dog", 1.0, 0.9, True, content) for i, content in enumerate(contents))
    tab = open_page(Page("pets", "image", PAGE_LOOKS_CLASSES, 9, items, Estimate(0.1, 0.0, 0.2)))
    assert "cats/7.png cannot be read" in tab.inner_text(".stage")
    tab.keyboard.press("a")
    tab.wait_for_selector(".stage >> text=This image cannot be read.")
    tab.keyboard.press("a")
    tab.wait_for_selector(".natural")
    shown = tab.evaluate("() => [...document.querySelectorAll('.stage img')].map(e => [e.naturalWidth, e.width > 100])")
    assert shown == [[16, True], [16, False]]
    assert tab.evaluate("() => getComputedStyle(document.querySelector('.stage img')).imageRendering") == "pixelated"
    tab.keyboard.press("a")
    assert "nothing to show" in tab.inner_text(".stage")


# Page overview
PAGE_OVERVIEW_CLASSES = ("bird", "cat", "dog")
SHARP, OPEN = Estimate(0.05, 0.04, 0.06), Estimate(0.05, 0.01, 0.25)


def small(**changes: Any) -> Page:
    return replace(texts_page(["cat", "dog", "bird"], classes=PAGE_OVERVIEW_CLASSES), **changes)


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


# Page parts
def tokens_page() -> Page:
    words = (("Ann", "B-person"), ("visits", "O"), ("New", "O"), ("York", "O"))
    item = Item(2, "O", "city", 3.0, 0.9, True, Content(tokens=words, marked=(2, 4)), id="New York", part="tokens 2 2")
    return Page("t.conll", "text", ("O", "city", "person"), 4, (item,), Estimate(0.1, 0.0, 0.2))


def exported(tab: Any, folder: Path) -> Path:
    with tab.expect_download() as download:
        tab.click("button.export")
    download.value.save_as(folder / "corrections.csv")
    return folder / "corrections.csv"


@pytest.mark.slow
def test_votes_stand_above_the_item(open_page: Callable[..., Any]) -> None:
    votes = (("ann", "x"), ("bob", "y"))
    item = Item(4, "x", "y", 1.0, 0.9, True, Content(text="a text", votes=votes))
    tab = open_page(Page("a.csv", "text", ("x", "y"), 9, (item,), Estimate(0.1, 0.0, 0.2)))
    assert tab.locator(".set-chips li").all_inner_texts() == ["ann\nx", "bob\ny"]


@pytest.mark.slow
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


# Page hostile
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


def hostile_page(classes: tuple[str, ...]) -> Page:
    items = tuple(
        Item(
            i,
            text,
            classes[(i + 1) % len(classes)],
            1.0,
            0.99 - i / 100,
            True,
            Content(text=text + " text", fields=((text, text),)),
            id=text,
            like_given=(1000 + i,),
            like_suggested=(1000 + i,),
        )
        for i, text in enumerate(classes)
    )
    return Page(
        classes[1],
        "text",
        classes,
        100,
        items,
        Estimate(0.1, 0.05, 0.2),
        examples=tuple(Example(1000 + i, text, Content(text=text), id=text) for i, text in enumerate(classes)),
        per_class=tuple(ClassCount(text, 10, 1) for text in classes),
        command=classes[0],
        notes=classes,
    )


@pytest.mark.slow
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


@pytest.mark.slow
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
