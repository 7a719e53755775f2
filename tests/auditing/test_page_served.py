"""The served page in a real browser: what is decided is on disk, tabs see each other, and the same file still works from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from review_pages import CLASSES, made_run, texts_page

from compensate.auditing.decisions import run_decisions
from compensate.auditing.server import ReviewServer

pytestmark = pytest.mark.slow


@pytest.fixture
def open_tab(browser: Any) -> Iterator[Callable[..., Any]]:
    """A tab of a served page; any error, and anything asked of another host, fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    problems: list[str] = []

    def opened(server: ReviewServer, view: str = "review") -> Any:
        tab = context.new_page()
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda r: r.url.startswith((server.address, "data:", "blob:")) or problems.append(r.url))
        tab.goto(server.address + f"#{view}")
        tab.wait_for_function("document.querySelector('.progress-words').textContent.includes('saved')")
        return tab

    yield opened
    context.close()
    assert problems == []


def progress(tab: Any) -> str:
    return str(tab.inner_text(".progress-words"))


def until(tab: Any, words: str) -> None:
    tab.wait_for_function("words => document.querySelector('.progress-words').textContent.includes(words)", arg=words)


def decisions(server: ReviewServer) -> dict[int, str]:
    return {c.index: c.decision for c in run_decisions(server.reviews[server.newest].folder)}


def test_what_is_decided_in_one_tab_is_on_disk_and_seen_in_another(
    serve: Callable[..., ReviewServer], open_tab: Callable[..., Any]
) -> None:
    server = serve()
    one, two = open_tab(server), open_tab(server)
    for key in "aks":
        one.keyboard.press(key)
    until(one, "2 of 30 labels decided · saved")
    assert decisions(server) == {0: "accept", 1: "reject", 2: "skip"}
    until(two, "2 of 30 labels decided")
    assert "accepted" in two.inner_text(".place"), "the item that is open says what the other tab decided"
    two.keyboard.press("k")  # the later decision holds
    until(two, "· saved")
    assert decisions(server)[0] == "reject"
    one.keyboard.press("u")
    until(one, "2 of 30 labels decided · saved")
    assert 2 not in decisions(server)
    one.reload()
    until(one, "2 of 30 labels decided · saved")


def test_decisions_without_a_server_are_kept_and_sent_when_it_is_back(
    serve: Callable[..., ReviewServer], open_tab: Callable[..., Any]
) -> None:
    server = serve()
    tab = open_tab(server)
    tab.keyboard.press("a")
    until(tab, "1 of 30 labels decided · saved")
    server.shutdown()
    server.server_close()
    tab.keyboard.press("k")
    until(tab, "2 of 30 labels decided · not saved")
    assert "Not saved yet: 1 decision" in tab.inner_text(".notice")
    assert "compensate review" in tab.inner_text(".notice")
    back = serve(port=server.port, token=server.token)
    until(tab, "2 of 30 labels decided · saved")
    assert decisions(back) == {0: "accept", 1: "reject"}
    assert not tab.is_visible(".notice")


def test_bulk_acceptance_is_saved_in_a_few_requests(
    serve: Callable[..., ReviewServer], open_tab: Callable[..., Any]
) -> None:
    server = serve()
    tab = open_tab(server)
    tab.keyboard.press("b")
    tab.fill("dialog input[type=number]", "0.5")
    tab.click("dialog .primary")
    until(tab, "· saved")
    assert len(decisions(server)) == int(progress(tab).split()[0]) > 10


def test_finishing_names_the_command_and_audits_again(
    serve: Callable[..., ReviewServer], open_tab: Callable[..., Any], tmp_path: Path
) -> None:
    asked: list[Path] = []

    def again(run: Path, told: Callable[[str], None]) -> Path:
        told("fitting 1 of 2")
        asked.append(run)
        page = texts_page([CLASSES[row % 3] for row in range(9)], classes=CLASSES)
        items = tuple(replace(item, new=item.index < 4) for item in page.items)
        since = {"corrected": 3, "confirmed": 1, "new": 4, "gone": [11, 12], "allGone": 2}
        return made_run(tmp_path / "second", 9, items=items, since=since)

    server = serve(again=again)
    tab = open_tab(server)
    tab.keyboard.press("a")
    until(tab, "· saved")
    tab.click("button.export")
    assert "Your decisions are saved" in tab.inner_text("dialog")
    assert f"compensate apply {tmp_path / 'run'}" in tab.inner_text("dialog .command")
    tab.click("dialog >> text=Audit again with these decisions")
    tab.click(".notice >> text=Open it")
    tab.wait_for_selector(".since")
    said = tab.inner_text(".since")
    assert asked == [tmp_path / "run"]
    assert "4 labels decided: 3 corrected, 1 confirmed" in said
    assert "4 suspects are new" in said
    assert "rows 11, 12" in said
    tab.click(".since button")
    assert "new" in tab.inner_text(".place")
    assert tab.inner_text(".position") == "label 1 of 4"


def test_the_same_file_from_disk_asks_nobody(open_page: Callable[..., Any]) -> None:
    tab = open_page(texts_page(["cat", "dog"] * 3, classes=CLASSES))
    tab.keyboard.press("a")
    assert progress(tab) == "1 of 6 labels decided"
    assert tab.inner_text("button.export").startswith("Export")
