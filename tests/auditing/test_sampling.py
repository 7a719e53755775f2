"""The share of wrong labels from a sample that a person looks at."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom, chi2

from compensate.auditing.decisions import BLIND, Correction, Event, Journal
from compensate.auditing.request import reopen, rewrite_with_looks
from compensate.auditing.result import Audit
from compensate.auditing.sampling import Sample, draw, recalibrate, stratified_share
from compensate.auditing.server import Review
from compensate.cli.card import count_decisions
from compensate.cli.review import open_sample
from compensate.data.dataset import Estimate
from compensate.errors import InputError


def test_the_interval_of_one_stratum_inverts_a_likelihood_ratio_test() -> None:
    for found, seen in ((0, 60), (7, 100), (150, 200), (200, 200)):
        share = stratified_share(np.array([float(found)]), np.array([seen]), np.array([10**9]))
        limit = chi2.ppf(0.95, 1)

        def excess(p: float, found: int = found, seen: int = seen, limit: float = limit) -> float:
            return float(2 * (binom.logpmf(found, seen, found / seen) - binom.logpmf(found, seen, p)) - limit)

        low = brentq(excess, 1e-9, found / seen) if found else 0.0
        high = brentq(excess, found / seen, 1 - 1e-9) if found < seen else 1.0
        assert share.value == pytest.approx(found / seen)
        assert (share.low, share.high) == pytest.approx((low, high), abs=0.004)


@pytest.mark.parametrize("model", ["right", "unrelated", "reversed"])
def test_the_interval_holds_whatever_the_model_believes(model: str) -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(0.2, 1.8, 2000)
    wrong = rng.random(2000) < p
    believed = {"right": p, "unrelated": rng.permutation(p), "reversed": np.sort(p)[np.argsort(np.argsort(-p))]}[model]
    held, width, draws = [], [], 400
    for seed in range(draws):
        sample = draw(believed, np.arange(2000), seed)
        share = sample.estimate(wrong[sample.index[:100]].tolist()).wrong
        assert share is not None
        held.append(share.low <= wrong.mean() <= share.high)
        width.append(share.high - share.low)
    low, high = binom.ppf((0.0005, 0.9995), draws, (0.93, 0.97))
    assert low <= sum(held) <= high, "a coverage of 93 % to 97 %, up to the chance of these draws"
    simple = stratified_share(np.array([100 * wrong.mean()]), np.array([100]), np.array([2000]))
    ratio = np.mean(width) / (simple.high - simple.low)
    assert ratio < 0.75 if model == "right" else ratio < 1.5


def test_few_answers_give_no_share_and_unclear_ones_do_not_count_as_wrong() -> None:
    sample = draw(np.linspace(0, 1, 500) ** 3, np.arange(500) + 7)
    assert sample.estimate([True] * 10).wrong is None
    answers: list[bool | None] = [None, False] * 40
    looks = sample.estimate(answers)
    assert looks.wrong is not None
    assert looks.unclear is not None
    assert looks.wrong.value == 0 < looks.unclear.low < 0.5 < looks.unclear.high
    with pytest.raises(InputError, match="201 answers, and 200"):
        sample.estimate([True] * 201)
    decisions = ("other", "reject", "wrong", "unclear")
    first = [Correction(int(i), "a", d, "b") for i, d in zip(sample.index, decisions, strict=False)]
    assert sample.looked([*first, Correction(int(sample.index[5]), "a", "wrong", "")]).answers == (
        True,
        False,
        True,
        None,
    )


def test_a_sample_is_stored_and_a_broken_one_is_named(tmp_path: Path) -> None:
    sample = draw(np.linspace(0, 0.5, 300), np.arange(300))
    sample.save(tmp_path)
    again = Sample.load(tmp_path)
    assert again is not None
    for name, values in vars(sample).items():
        np.testing.assert_array_equal(getattr(again, name), values)
    for text in (
        "",
        "[]",
        '{"index": [1], "stratum": [9], "sizes": [3]}',
        '{"index": [1], "stratum": [-1], "sizes": [3]}',
    ):
        (tmp_path / "sample.json").write_text(text)
        with pytest.raises(InputError, match=r"sample\.json is not a sample"):
            Sample.load(tmp_path)


def test_answers_move_the_probabilities_and_keep_the_order() -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(-2, 2, 5000)
    wrong = rng.random(5000) < expit(truth)
    stated, looked = truth - 2, rng.permutation(5000)[:200]
    share = Estimate(*(float(wrong.mean() + d) for d in (0, -0.03, 0.03)))
    after = recalibrate(stated, looked, wrong[looked].tolist(), share)
    assert (np.diff(after[np.argsort(stated)]) >= 0).all()
    assert share.low - 1e-6 <= expit(after).mean() <= share.high + 1e-6
    assert np.abs(expit(after) - expit(truth)).mean() < 0.3 * np.abs(expit(stated) - expit(truth)).mean()
    kept = recalibrate(truth, looked, wrong[looked].tolist(), share)
    assert np.abs(expit(kept) - expit(truth)).mean() < 0.02


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run on two classes of points, of whose labels every tenth is wrong."""
    rng = np.random.default_rng(0)
    kind = np.arange(200) % 2
    given = np.where(np.arange(200) % 10 == 3, 1 - kind, kind)
    points = rng.normal(size=(200, 2)) + 4 * kind[:, None]
    frame = pd.DataFrame(points.round(3), columns=["a", "b"]).assign(kind=np.array(["cat", "dog"])[given])
    frame["id"] = [f"{kind}-{number}" for number, kind in enumerate(frame["kind"])]
    frame.to_csv(tmp_path / "points.csv", index=False)
    commands.run("audit", tmp_path / "points.csv", "--label", "kind", "--out", tmp_path / "run")
    return tmp_path / "run"


def test_the_run_takes_over_the_share_and_the_next_audit_keeps_it(run: Path) -> None:
    found, review = open_sample(run, 100)
    assert review.sample is not None
    before = Audit.load(run)
    rows = review.sample.index[:80].tolist()
    Journal(run).record(
        Event(
            Correction(i, str(before.names(before.given)[i]), "wrong" if i % 10 == 3 else "reject", ""), 0, "t", BLIND
        )
        for i in rows
    )
    after = rewrite_with_looks(found, run)
    stored = Audit.load(run)
    assert stored.provenance.looks is not None
    assert stored.provenance.looks["looks"] == 60, "the share is stated after 60, 100 and 200 answers"
    assert stored.noise_rate == after.noise_rate
    assert stored.noise_rate.low <= 0.1 <= stored.noise_rate.high
    assert "60 labels looked at" in repr(stored)
    assert {path.name for path in run.iterdir()} >= {"sample.json", "decisions.jsonl", "report.html", "config.json"}
    np.testing.assert_array_equal(
        np.argsort(-stored.log_odds, kind="stable"), np.argsort(-before.log_odds, kind="stable")
    )
    twice = rewrite_with_looks(reopen(run), run)
    np.testing.assert_allclose(twice.p_error, after.p_error)


def test_only_answers_of_the_blind_page_count(run: Path) -> None:
    _, blind = open_sample(run, 100)
    assert blind.sample is not None
    rows, right = blind.sample.index[:100].tolist(), "reject"
    plain = Review(run)
    plain.journal.record(plain.events({"tab": "t", "made": [[row, "accept", None, 1, True] for row in plain.rows]}))
    plain.journal.record(
        plain.events({"tab": "t", "made": [[row, "accept", None, 2] for row in rows if row in plain.rows]})
    )
    _, blind = open_sample(run, 100)
    assert blind.since(0)["made"] == [], "the blind page shows no answer of the open one"
    assert (blind.looked() or {})["looks"] == 0
    made = [[row, "wrong" if row % 10 == 3 else right, None, 3] for row in rows]
    blind.journal.record(blind.events({"tab": "b", "made": made[:99]}))
    looked = blind.looked() or {}
    assert (looked["looks"], looked["found"]) == (60, sum(row % 10 == 3 for row in rows[:60]))
    blind.journal.record(blind.events({"tab": "b", "made": [[rows[0], "", None, 4]]}))
    assert (blind.looked() or {})["looks"] == 0, "an answer that is taken back leaves a gap"
    blind.journal.record(blind.events({"tab": "b", "made": [[*made[0][:3], 5], made[99]]}))
    plain, seen = Review(run), next(row for row in rows if row in plain.rows)
    plain.journal.record(plain.events({"tab": "t", "made": [[seen, "drop", None, 6]]}))
    _, blind = open_sample(run, 100)
    looked = blind.looked() or {}
    assert (looked["looks"], looked["found"]) == (100, sum(row % 10 == 3 for row in rows))
    ways = [*count_decisions(Journal(run))[0].values()]
    assert ways == [100, len(set(plain.rows) - set(rows)), 0]


@pytest.mark.slow
def test_the_page_of_a_sample_hides_the_label_and_states_the_share(
    run: Path, serve: Callable[..., Any], browser: Any
) -> None:
    _, review = open_sample(run, 100)
    server = serve(review)
    tab = browser.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.goto(server.address)
    tab.wait_for_selector(".look .stage > *")
    assert tab.inner_text("h1") == "Which label is right?"
    assert "looks wrong" not in tab.inner_text("body")
    assert re.fullmatch(r"row \d+", tab.inner_text(".place")), (
        "an id, such as a path in a class folder, may name the label"
    )
    assert review.sample is not None
    for i in review.sample.index[:60].tolist():
        tab.keyboard.press("12"[i % 2])
    words = tab.locator(".progress-words")
    words.filter(has_text=re.compile(r"60 of 100 looked at; .* to .*saved")).wait_for()
    tab.close()
    looked = review.looked()
    assert looked is not None
    assert looked["looks"] == 60
    assert looked["found"] == sum(i % 10 == 3 for i in review.sample.index[:60].tolist())
    assert problems == []
