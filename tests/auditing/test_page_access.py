"""Zoom and screen readers: the review page at 200 % and 400 %, and the rules of axe on it and on the landing page."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
from test_page_looks import full_page

from compensate.cli.review import open_sample

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CUT = """() => [...document.querySelectorAll("button, a, select, input, summary, h1, h2, h3, label, p, td, th")].filter(e => {
  const box = e.getBoundingClientRect(), hidden = e.closest(".jump, .sr, .visually-hidden, details:not([open]) > :not(summary)")
  const scrolls = (p => { while ((p = p.parentElement)) if (["auto", "scroll"].includes(getComputedStyle(p).overflowX)) return true })(e)
  return e.checkVisibility({visibilityProperty: true}) && box.width && !hidden && !scrolls && (box.right > innerWidth + 1 || box.left < -1)
}).map(e => e.outerHTML.slice(0, 120))"""


KINDS = ["image", "text", "table", "pairs"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_reads_at_200_and_400_percent(open_page: Callable[..., Any], kind: str) -> None:
    for width, height, factor in ((640, 400, 2), (320, 200, 4)):
        for view in ("overview", "review"):
            tab = open_page(full_page(kind), view, width=width, height=height, device_scale_factor=factor)
            assert tab.evaluate("() => document.documentElement.scrollWidth") == width, (width, view)
            assert tab.evaluate(CUT) == [], (width, view)
            assert tab.evaluate("() => getComputedStyle(document.querySelector('.bar')).position") == "static"


@pytest.fixture
def made_run_of_points(tmp_path: Path) -> Path:
    rows = [f"{k % 2 * 5 + k % 7 / 10},{'ab'[(k % 2) ^ (k in (3, 8))]}" for k in range(80)]
    (tmp_path / "points.csv").write_text("\n".join(("size,kind", *rows)) + "\n")
    commands.run("audit", tmp_path / "points.csv", "--label", "kind", "--out", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def axe() -> str:
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("axe-playwright-python is not installed; the extra test has it")
    return Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site on disk."""
    mkdocs = pytest.importorskip("mkdocs.config", reason="mkdocs is not installed; the extra docs has it")
    from mkdocs.commands.build import build

    built = tmp_path_factory.mktemp("site")
    build(mkdocs.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(built)))
    return built


def grave_findings(tab: Any, axe: str) -> list[tuple[str, str]]:
    tab.evaluate(axe + "; 0")
    found = tab.evaluate("() => axe.run({preload: false})")["violations"]
    return [(f["id"], n["html"]) for f in found if f["impact"] in ("serious", "critical") for n in f["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_sample_reads_at_200_percent_and_by_axe(
    made_run_of_points: Path, serve: Callable[..., Any], browser: Any, axe: str, scheme: str
) -> None:
    view: Any = {"width": 640, "height": 400}
    with browser.new_context(viewport=view, device_scale_factor=2, color_scheme=scheme, bypass_csp=True) as context:
        tab = context.new_page()
        tab.goto(serve(open_sample(made_run_of_points, 60)[1]).address)
        tab.wait_for_selector(".look .stage > *")
        assert tab.evaluate("() => document.documentElement.scrollWidth") == 640
        assert tab.evaluate(CUT) == []
        assert grave_findings(tab, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_has_no_serious_finding(open_page: Callable[..., Any], axe: str, kind: str, scheme: str) -> None:
    for view in ("overview", "review"):
        assert grave_findings(open_page(full_page(kind), view, color_scheme=scheme), axe) == [], view


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_site_is_accessible_and_searched_from_disk(open_page: Callable[..., Any], axe: str, site: Path) -> None:
    for scheme in ("light", "dark"):
        for name in ("notebooks/table.html", "index.html"):
            tab = open_page(full_page("text"), color_scheme=scheme)
            tab.goto((site / name).as_uri())
            assert grave_findings(tab, axe) == [], (name, scheme)
    tab.locator("input.md-search__input").press_sequentially("annotators")
    tab.wait_for_selector(".md-search-result__item", state="attached")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_review_pages_of_the_site_show_their_suspects(open_page: Callable[..., Any], site: Path) -> None:
    pages = list((site / "gallery").glob("*.html"))
    assert len(pages) == 3
    for page in pages:
        tab = open_page(full_page("text"))
        tab.goto(page.as_uri() + "#review")
        assert "label 1 of 12" in tab.inner_text(".position"), page.name
