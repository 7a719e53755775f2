"""Small forests, and a real browser to open pages in."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from review_pages import Page, made_run

from compensate.auditing.page import write_page
from compensate.auditing.server import Review, ReviewServer


@pytest.fixture(autouse=True, scope="module")
def _small_audits(small_learners: None) -> None:
    """All tests of audits are content with small learners."""


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


@pytest.fixture(scope="session")
def idle_tabs() -> dict[str, list[Any]]:
    """Tabs that a test has done with, by the options of their context: a new one takes longer than most of the tests."""
    return {}


@pytest.fixture
def open_page(browser: Any, idle_tabs: dict[str, list[Any]], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Writes a page and opens it from disk; anything fetched, any error and any dialog fails the test."""
    used: list[tuple[Any, list[Any]]] = []
    problems: list[str] = []
    listeners: dict[str, Callable[..., Any]] = {
        "pageerror": lambda error: problems.append(str(error)),
        "console": lambda message: message.type == "error" and problems.append(message.text),
        "dialog": lambda dialog: (problems.append("dialog " + dialog.message), dialog.dismiss()),
        "request": lambda r: r.url.startswith(("file:", "data:", "blob:")) or problems.append(r.url),
    }

    def opened(
        page: Page | dict[str, Any], view: str = "review", *, width: int = 1280, height: int = 800, **options: Any
    ) -> Any:
        path = write_page(page.data() if isinstance(page, Page) else page, tmp_path / "report.html")
        size = {"width": width, "height": height}
        idle = idle_tabs.setdefault(str(sorted(options.items())), [])
        tab = idle.pop() if idle else browser.new_context(viewport=size, accept_downloads=True, **options).new_page()
        used.append((tab, idle))
        tab.set_viewport_size(size)
        for event, listener in listeners.items():
            tab.on(event, listener)
        tab.goto(path.as_uri() + f"#{view}")
        return tab

    yield opened
    for tab, idle in used:
        tab.evaluate("localStorage.clear()")
        for event, listener in listeners.items():
            tab.remove_listener(event, listener)
        tab.goto("about:blank")
        tab.mouse.move(0, 0)
        idle.append(tab)
    assert problems == []


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ReviewServer]]:
    """Servers that run in a thread and end with the test."""
    started: list[tuple[ReviewServer, threading.Thread]] = []

    def start(shown: Path | Review | None = None, **options: Any) -> ReviewServer:
        if not isinstance(shown, Review):
            folder = shown or tmp_path / "run"
            shown = Review(folder if folder.exists() else made_run(folder))
        server = ReviewServer(shown, **{"port": 0, **options})
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join(10)
        server.server_close()
