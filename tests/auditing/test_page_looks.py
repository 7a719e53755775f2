"""Phone width, contrast, motion, speed, and the states at the edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from review_pages import CLASSES, Example, Item, Page, class_count, curve, histogram, png, texts_page

from compensate.auditing.content import Content
from compensate.data.dataset import Estimate

pytestmark = pytest.mark.slow


def full_page(kind: str, classes: tuple[str, ...] = CLASSES, n: int = 30) -> Page:
    """A page with every picture on it."""

    def content(seed: int) -> Content:
        if kind == "image":
            return Content(image=png(seed))
        if kind == "text":
            return Content(text="A sentence of some length, with a word or two to spare. " * (seed % 9 + 1))
        if kind == "pairs":
            return Content(
                text="A question?", sides=(("chosen", "An answer. " * 9), ("rejected", "Another answer. " * seed))
            )
        return Content(fields=tuple((f"column {k}", str(seed * k)) for k in range(12)))

    c = len(classes)
    items = tuple(
        Item(i, classes[i % c], classes[(i + 1 + i % 2) % c], 1.0, 0.99 - i / n, True, content(i), f"id {i}", (900,), (901,))
        for i in range(n)
    )  # fmt: skip
    values = (0.5, 0.7, 0.9, 0.95)
    title = "a-data-set-with-a-long-name-of-its-own.csv"
    return Page(
        title, kind, classes, 1000, items, Estimate(0.052, 0.046, 0.059), 0.93, 0.5,
        (Example(900, classes[0], content(3)), Example(901, classes[1], content(4))),
        per_class=tuple(class_count(name, 100, i) for i, name in enumerate(classes)),
        scores=histogram((0.0, 1.0, 2.0, 3.0), (9000, 20, 60), (0, 5, 60), 1.5),
        curves=(curve("accuracy", "robust", values), curve("accuracy", "plain", values[::-1])),
        command=f"compensate apply {title} corrections.csv -o fixed.csv",
        notes=("3 images cannot be read and are left out.",),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["image", "text", "table"])
def test_a_phone_needs_no_sideways_scrolling(open_page: Callable[..., Any], kind: str) -> None:
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


@pytest.mark.parametrize("size", [10, 15, 100, 300])
def test_many_classes_fit_on_a_phone(open_page: Callable[..., Any], size: int) -> None:
    names = tuple(f"a class of birds {i}" for i in range(size))
    pairs = tuple((names[i], names[(i + step) % size], 9 - step) for i in range(size) for step in range(1, 4))
    page = replace(full_page("table", names, 40), pairs=pairs)
    items = tuple(replace(item, likely=names[1:10]) for item in page.items)
    tab = open_page(replace(page, items=items), "overview", width=390, height=844, has_touch=True, is_mobile=True)
    # A grid while its cells can be touched, else the most frequent pairs; nothing to be scrolled sideways in either.
    assert (tab.locator(".heat").count(), tab.locator(".pair").count()) == ((1, 0) if size == 10 else (0, 20))
    for view in ("overview", "review"):
        tab.goto(tab.url.partition("#")[0] + "#" + view)
        assert tab.evaluate("() => document.documentElement.scrollWidth") == 390
        wide = tab.eval_on_selector_all(
            ".scroll-x, .chips, .card",
            "all => all.filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth).length",
        )
        assert wide == 0
    before = tab.evaluate("() => document.querySelector('.strip').getBoundingClientRect().top")
    tab.tap(".chip >> nth=5")
    assert tab.evaluate("() => document.querySelector('.strip').getBoundingClientRect().top") == before


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


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(247, 247, 245)"), ("dark", "rgb(19, 20, 23)")])
def test_text_stands_out_from_the_ground_of_the_preferred_scheme(
    open_page: Callable[..., Any], scheme: str, ground: str
) -> None:
    page = full_page("text", tuple("abcdef"), 60)
    tab = open_page(page, "overview", color_scheme=scheme)
    assert tab.evaluate("() => getComputedStyle(document.documentElement).backgroundColor") == ground
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


def test_nothing_moves_when_asked(open_page: Callable[..., Any]) -> None:
    tab = open_page(full_page("image"), reduced_motion="reduce")
    moving = tab.eval_on_selector_all(
        "body *", "all => all.filter(e => parseFloat(getComputedStyle(e).transitionDuration) > 0).length"
    )
    assert moving == 0


def test_five_thousand_images_stay_smooth(open_page: Callable[..., Any]) -> None:
    """From the key press to the next item on the screen, fifty times, in the page's own clock."""
    pictures = [png(seed, 32) for seed in range(50)]
    names = tuple(f"class {i}" for i in range(10))
    items = tuple(
        Item(i, names[i % 10], names[(i + 3) % 10], 1.0, 1 - i / 5000, True, Content(image=pictures[i % 50]))
        for i in range(5000)
    )
    tab = open_page(Page("many", "image", names, 50_000, items, Estimate(0.1, 0.09, 0.11)))
    assert tab.locator(".thumb").count() < 40
    took = tab.evaluate(
        """async () => {
          const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
          const took = [];
          for (let k = 0; k < 50; k++) {
            await frame();
            const start = performance.now();
            document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'aks'[k % 3], bubbles: true }));
            document.body.getBoundingClientRect();
            took.push(performance.now() - start);
          }
          return took.sort((a, b) => a - b);
        }"""
    )
    assert tab.inner_text(".position") == "label 51 of 5,000"
    # Other work on the machine makes steps slow; the quickest few show what the page itself takes.
    assert took[2] < 50, took
    tab.evaluate("() => { document.querySelector('.strip').scrollLeft = 84 * 4000 }")
    tab.wait_for_selector(".thumb[aria-label^='4001:']")
    assert tab.locator(".thumb").count() < 40
    accepted = tab.evaluate(
        """() => {
          document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'b', bubbles: true }));
          const slider = document.querySelector('dialog input[type=number]');
          slider.value = '0';
          slider.dispatchEvent(new Event('input'));
          const start = performance.now();
          document.querySelector('dialog .primary').click();
          return performance.now() - start;
        }"""
    )
    assert accepted < 500
    assert tab.inner_text(".progress-words") == "5,000 of 5,000 labels decided"


# The states at the edges


def test_five_hundred_classes_show_the_twenty_largest_pairs(open_page: Callable[..., Any]) -> None:
    names = tuple(f"class {i:03}" for i in range(500))
    pairs = tuple((names[i], names[(i + 1) % 500], 500 - i) for i in range(500))
    counts = tuple(class_count(name, 10, i % 7) for i, name in enumerate(names))
    page = replace(texts_page(list(names[:30]), classes=names), pairs=pairs, per_class=counts)
    tab = open_page(page, "overview")
    assert tab.locator(".pair").count() == 20
    assert "20 most frequent of 500 pairs" in tab.inner_text(".card >> nth=0")
    assert tab.locator(".bars li").count() == 10
    tab.click("text=Show all 500 classes")
    assert tab.locator(".bars li").count() == 500


@pytest.mark.parametrize("width", [1280, 360])
def test_class_names_of_eighty_characters(open_page: Callable[..., Any], width: int) -> None:
    names = tuple(f"{i} " + "very long class name without an end " * 2 + "end" for i in range(6))
    page = replace(full_page("text", tuple(name[:80] for name in names), 40))
    tab = open_page(page, "overview", width=width)
    assert tab.evaluate("() => document.documentElement.scrollWidth") == width
    tab.goto(tab.url.replace("#overview", "#review"))
    assert tab.evaluate("() => document.documentElement.scrollWidth") == width
    overflowing = tab.eval_on_selector_all(
        ".choice, .chip", "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).length"
    )
    assert overflowing == 0


def test_images_that_are_missing_or_broken(open_page: Callable[..., Any]) -> None:
    missing = Content(missing="the file cats/7.png cannot be read")
    contents = missing, Content(image=png(1)[:20]), Content(image=png(2)), Content()
    items = tuple(Item(i, "cat", "dog", 1.0, 0.9, True, content) for i, content in enumerate(contents))
    tab = open_page(Page("pets", "image", CLASSES, 9, items, Estimate(0.1, 0.0, 0.2)))
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
