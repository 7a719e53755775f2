"""Small forests, and a real browser to open pages in."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compensate.auditing import folds, learners
from compensate.auditing.page import Page, write_page


@pytest.fixture(autouse=True, scope="module")
def _small_learners() -> Iterator[None]:
    """Enough trees for a few hundred rows, and one division into folds; more take as many times as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learners, "TREES", 16)
        patch.setattr(folds, "REPEATS", 1)
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, or a skipped test that says what is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Writes a page and opens it from disk; anything fetched, any error and any dialog fails the test."""
    contexts: list[Any] = []
    problems: list[str] = []

    def opened(page: Page, view: str = "review", *, width: int = 1280, height: int = 800, **options: Any) -> Any:
        path = write_page(page, tmp_path / "report.html")
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda message: message.type == "error" and problems.append(message.text))
        tab.on("dialog", lambda dialog: (problems.append("dialog " + dialog.message), dialog.dismiss()))
        tab.on("request", lambda r: r.url.startswith(("file:", "data:", "blob:")) or problems.append(r.url))
        tab.goto(path.as_uri() + f"#{view}")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert problems == []
