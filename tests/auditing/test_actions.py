"""Findings are acted on: rows dropped or marked, names merged, values set back, images moved; counted, recorded and undone."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import run
from PIL import Image

import compensate
from compensate.auditing.actions import decide_rows
from compensate.auditing.decisions import Correction, Journal
from compensate.auditing.issues import KINDS, issue_rows
from compensate.auditing.page import page_of, payload
from compensate.auditing.result import Audit, apply_corrections
from compensate.auditing.write_back import undo_moves
from compensate.errors import InputError

GOOD, BAD = ["wonderful", "moving", "charming", "funny", "superb"], ["boring", "awful", "dull", "tedious", "weak"]
ROWS = 120


def reviews() -> pd.DataFrame:
    """Texts with two exact copies, one empty text and four labels in another spelling."""
    rng = np.random.default_rng(0)
    texts = [" ".join([f"w{i}", *rng.choice((GOOD, BAD)[i % 2], 4), f"v{i}"]) for i in range(ROWS)]
    labels = [("good", "bad")[i % 2] for i in range(ROWS)]
    for i in (2, 4, 6, 8):
        labels[i] = "Good"
    texts += [texts[1], texts[1], ""]
    return pd.DataFrame({"text": texts, "label": [*labels, labels[1], labels[1], "bad"]})


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    reviews().to_csv("reviews.csv", index=False)
    return run("audit", "reviews.csv", "--encoder", "none", "--out", "run")


def fixed() -> pd.DataFrame:
    return pd.read_csv("reviews.fixed.csv", keep_default_na=False)


def test_rows_are_dropped_and_names_merged_by_one_command_and_back_by_another(audited: str) -> None:
    assert (
        "act on that: the view Issues of the page; or compensate apply run --drop duplicate,empty_text --merge spellings"
        in audited
    )
    Path("corrections.csv").write_text("index,given,decision,label\n20,good,accept,bad\n")
    Path("corrections.csv").rename("run/corrections.csv")
    options = ("--drop", "duplicate,empty_text,20", "--unclear", "3,5", "--merge", "spellings")
    said = run("apply", "run", *options)
    assert f"4 of {ROWS + 3} labels changed, 4 rows dropped, 2 marked as unclear" in said
    kept = reviews().drop(index=[20, ROWS, ROWS + 1, ROWS + 2]).replace({"label": {"Good": "good"}})
    pd.testing.assert_frame_equal(fixed(), kept.reset_index(drop=True))
    made = [json.loads(line) for line in Path("run/decisions.jsonl").read_text().splitlines()]
    assert Counter(one["decision"] for one in made if one["tab"] == "apply") == {"drop": 4, "unclear": 2, "other": 4}
    assert "10 decisions of earlier commands taken back" in run("apply", "run", "--undo")
    assert [(c.index, c.decision) for c in Journal(Path("run")).decisions] == [(20, "accept")], "a person's decision"
    assert f"1 of {ROWS + 3} labels changed" in run("apply", "run", "--force")
    again = run("audit", "--with", "run", "--out", "again")
    assert "with 1 decided labels" in again


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--drop", "duplicates"), 'did you mean "duplicate"'),
        (("--drop", "9999"), "row 9999 was not audited"),
        (("--merge", "Goood=good"), 'no row is labeled "Goood"'),
        (("--merge", "spelings"), "expected OLD=NEW"),
        (("--units",), "is for quantities"),
        (("--as", "links", "--drop", "1"), "for images in class folders"),
        (("--as", "copy", "--drop", "1"), "one of file, links, move"),
    ],
)
def test_actions_that_cannot_be_taken_say_why(audited: str, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        run("apply", "run", *options)
    assert not Path("reviews.fixed.csv").exists()


def test_values_in_a_wrong_unit_are_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 3))
    true = np.exp(5 + x @ [0.4, 0.3, -0.2] + 0.05 * rng.normal(size=300)).round(2)
    given, slips = true.copy(), {7: 1000, 50: 100, 120: 10, 200: 0.01}
    for row, factor in slips.items():
        given[row] = round(given[row] * factor, 4)
    pd.DataFrame(x.round(4), columns=list("abc")).assign(price=given).to_csv("prices.csv", index=False)
    audited = run("audit", "prices.csv", "--out", "run")
    assert "4 values, by a factor of 10, 100 or 1,000: compensate apply run --units" in audited
    assert "4 of 300 labels changed" in run("apply", "run", "--units")
    np.testing.assert_allclose(pd.read_csv("prices.fixed.csv")["price"], true, rtol=1e-9)
    items = payload(page_of(Audit.load("run")))
    shown = [items["labels"][number] for number in items["items"]["suggested"]]
    assert all(any(float(text) == pytest.approx(true[row], rel=1e-9) for text in shown) for row in slips)


def test_images_are_linked_or_moved_and_moved_back(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/3.png"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), len(name) * ord(name[0]) % 255).save(tmp_path / "pets" / name)
    pets = tmp_path / "pets"
    decided = [
        Correction(0, "cat", "accept", "dog"),
        Correction(2, "dog", "accept", "cat"),
        Correction(3, "dog", "drop", ""),
    ]
    before = {path.relative_to(pets).as_posix(): path.read_bytes() for path in pets.rglob("*.png")}
    done = apply_corrections(pets, decided, layout="links")
    links = {path.relative_to(done.path).as_posix(): path.read_bytes() for path in done.path.rglob("*.png")}
    assert links == {
        "cat/2.png": before["cat/2.png"],
        "cat/dog-1.png": before["dog/1.png"],
        "dog/cat-1.png": before["cat/1.png"],
    }
    assert (done.changed, done.dropped) == (2, 1)
    moved = apply_corrections(pets, decided, layout="move")
    assert sorted(path.relative_to(pets).as_posix() for path in pets.rglob("*.png")) == sorted(links)
    assert (
        moved.path.read_text()
        == "from,to\ncat/1.png,dog/cat-1.png\ndog/1.png,cat/dog-1.png\ndog/3.png,../pets.dropped/dog/3.png\n"
    )
    assert undo_moves(pets, moved.path) == 3
    assert {path.relative_to(pets).as_posix(): path.read_bytes() for path in pets.rglob("*.png")} == before


def test_every_issue_on_the_page_can_be_acted_on(audited: str, open_page: Any) -> None:
    found = Audit.load("run")
    assert {"duplicate", "alike_classes", "empty_text"} <= set(found.found_issues["issue"])
    assert issue_rows(found, "duplicate") == [ROWS, ROWS + 1]
    listed = {"row": {"index": 3, "other": 5}, "column": {"column": "text"}, "class": {"column": "Good"}}
    more = [{"issue": kind, "score": 0.5, "detail": "", **listed[KINDS[kind].about]} for kind in KINDS]
    every = pd.concat([found.found_issues, pd.DataFrame(more)])
    tab = open_page(page_of(replace(found, found_issues=every)), "issues")
    assert tab.locator(".issue-group").count() == len(KINDS)
    for group in tab.locator(".issue-group").all():
        acts = group.locator("button.act, code").count()
        assert acts >= 1 or "Nothing has to be done" in group.inner_text(), group.inner_text()
    for kind in (kind for kind in KINDS if KINDS[kind].about == "row"):
        assert decide_rows(found, issue_rows(replace(found, found_issues=every), kind), "drop"), kind
    tab = open_page(page_of(found), "issues")
    copies = tab.get_by_role("button", name="Keep one of each, drop 2 equal rows")
    copies.click()
    tab.get_by_role("button", name="Merge into good").first.click()
    assert copies.get_attribute("aria-pressed") == "true"
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Export corrections").click()
    made = pd.read_csv(download.value.path(), keep_default_na=False)
    assert Counter(made["decision"]) == {"drop": 2, "other": 4}
    tab.keyboard.press("Escape")
    copies.click()
    assert copies.get_attribute("aria-pressed") == "false"


def test_keys_drop_a_row_and_mark_it_unclear(audited: str, open_page: Any) -> None:
    tab = open_page(page_of(Audit.load("run")), "review")
    tab.keyboard.press("x")
    tab.keyboard.press("n")
    tab.keyboard.press("ArrowLeft")
    assert "unclear" in tab.inner_text(".place")
    tab.keyboard.press("ArrowLeft")
    assert "dropped" in tab.inner_text(".place")
    tab.keyboard.press("u")
    tab.keyboard.press("u")
    assert "0 of" in tab.inner_text(".progress-words")


def test_corrections_without_a_decision_leave_a_file_of_pairs_as_it_is(tmp_path, small_learners):
    rows = [
        {"prompt": f"film {k}", "chosen": f"A {'superb' if k % 2 else 'fine'} film.", "rejected": "A dull film."}
        for k in range(40)
    ]
    data, out = tmp_path / "pairs.jsonl", tmp_path / "fixed.jsonl"
    pd.DataFrame(rows).to_json(data, orient="records", lines=True)
    assert compensate.audit(data, encoder="none").apply((), out).changed == 0
    assert out.read_bytes() == data.read_bytes()
