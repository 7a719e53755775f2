"""suspects.csv: each flagged row beside what its sample says, as a plain loop over the rows would write it, but not as slowly."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compensate.auditing.content import MAX_CELL, sample_content
from compensate.auditing.noise_model import expected_errors
from compensate.auditing.result import Audit
from compensate.cli.audit import describe_workload
from compensate.data.dataset import Estimate, Source
from compensate.data.tables import from_frame
from compensate.errors import InputError


def found(frame: pd.DataFrame, p_error: np.ndarray, **options) -> Audit:
    data = from_frame(frame, "the table", label="label", **options).train
    score = np.log(p_error) - np.log1p(-p_error)
    return Audit(
        kind="table", source=Source(title="t"), classes=data.classes, index=data.index, given=data.target, suggested=1 - data.target,
        log_odds=score, p_error=p_error, evidence={"margin": -score}, noise_rate=Estimate(0.1, 0.0, 0.2),
        ids=tuple(str(i) for i in range(len(data))), data=data,
    )  # fmt: skip


def table(size: int, columns: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {f"n{j}": rng.normal(size=size).round(3).astype(str) for j in range(columns)}
        | {
            "given": rng.choice(["=1+1", "plain", "two  blanks", "y" * 300], size),
            "label": rng.choice(["a", "b"], size),
        }
    )


def test_flagged_rows_say_what_a_loop_over_rows_would(tmp_path):
    audit = found(table(40), np.linspace(0.9, 0.02, 40))
    rows = [*csv.DictReader(audit.write_suspects(tmp_path / "suspects.csv").read_text().splitlines())]
    flagged = int(audit.mask.sum())
    assert 0 < flagged < len(rows) == 40
    for place, row in enumerate(rows):
        assert row["index"] == str(audit.index[place])
        assert row["flagged"] == ("true" if place < flagged else "false")
        assert row["p_error"] == f"{audit.p_error[place]:.6g}"
        for name, value in sample_content(audit.data, place).fields or ():
            said = row[f"{name} (data)" if name == "given" else name]
            if place >= flagged:
                assert said == ""
            elif value == "=1+1":
                assert said == "'=1+1"
            else:
                assert said == " ".join(value[:MAX_CELL].split()) or (len(said) == MAX_CELL and said[-1] == "…")


def test_names_of_columns_hold_no_formulas(tmp_path):
    frame = table(40).rename(columns={"n0": "=1+1", "n1": "a;=2"})
    text = found(frame, np.linspace(0.9, 0.02, 40)).write_suspects(tmp_path / "suspects.csv").read_text()
    names = next(csv.reader(text.splitlines()))
    assert "'=1+1" in names
    assert "a;'=2" in names


# How much there is to find ------------------------------------------------------------------------------------


def drawn(share: float, size: int = 4000, seed: int = 0):
    """Log odds of errors, and errors that are drawn from them."""
    rng = np.random.default_rng(seed)
    odds = 2.5 * rng.normal(size=size) + np.log(share / (1 - share)) - 2
    return odds, rng.random(size) < 1 / (1 + np.exp(-odds))


@pytest.mark.parametrize("first", [50, 100, 500, 1000])
def test_the_expected_errors_are_those_that_are_found(first):
    """With right probabilities and a right share, the interval holds nine of ten times or more, and the value is close."""
    held, gaps = [], []
    for seed in range(40):
        odds, wrong = drawn(0.2, seed=seed)
        rate = float(wrong.mean())
        told = expected_errors(odds, 1 / (1 + np.exp(-odds)), Estimate(rate, rate, rate), first)
        count = wrong[np.argsort(-odds)[:first]].sum()
        held.append(told.low <= count <= told.high)
        gaps.append((told.value - count) / first)
    assert np.mean(held) >= 0.9
    assert abs(np.mean(gaps)) < 0.02


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    low=st.floats(0, 0.3),
    more=st.floats(0, 0.7),
    size=st.integers(1, 80),
    first=st.integers(1, 90),
)
def test_expected_errors_are_within_the_list_and_their_interval(seed, low, more, size, first):
    odds, _ = drawn(0.1, size, seed)
    p = 1 / (1 + np.exp(-odds))
    told = expected_errors(odds, p, Estimate(float(p.mean()), low, low + more), first)
    assert 0 <= told.low <= told.value <= told.high <= min(first, size)
    assert told.value == pytest.approx(np.sort(p)[::-1][:first].sum())


def test_a_share_that_may_be_zero_leaves_no_lower_bound():
    odds, _ = drawn(0.1)
    assert expected_errors(odds, 1 / (1 + np.exp(-odds)), Estimate(0.1, 0.0, 0.2), 100).low == 0


@pytest.mark.parametrize("budget", [1, 7, 40, 1000])
def test_a_budget_flags_the_first_of_the_list(budget):
    audit = found(table(40), np.tile([0.3, 0.9, 0.3, 0.1], 10))
    flagged = audit.flag(budget=budget)
    assert flagged.mask.sum() == min(budget, 40)
    assert flagged.suspects["flagged"].tolist() == [k < budget for k in range(40)]
    assert flagged.p_error[flagged.mask].min() == flagged.threshold
    assert flagged.flag().mask.sum() == 10, "neither budget nor precision: the default"


@pytest.mark.parametrize("precision", [0.35, 0.5, 0.8, 0.99])
def test_a_precision_flags_as_many_as_have_it(precision):
    audit = found(table(40), np.linspace(0.95, 0.02, 40))
    ordered = np.sort(audit.p_error)[::-1]
    number = max(k for k in range(41) if k == 0 or ordered[:k].mean() >= precision)
    flagged = audit.flag(precision=precision)
    assert flagged.mask.sum() == number
    assert flagged.expected_precision >= precision
    assert audit.flag(precision=precision, budget=3).mask.sum() == min(number, 3)


def test_flags_and_expected_errors_are_saved(tmp_path):
    audit = found(table(60), np.linspace(0.95, 0.02, 60)).flag(budget=9)
    again = Audit.load(audit.save(tmp_path / "saved"))
    np.testing.assert_array_equal(again.mask, audit.mask)
    pd.testing.assert_frame_equal(again.workload, audit.workload)
    assert audit.workload["first"].tolist() == [9, 50]
    first = audit.expected_errors(9)
    assert (
        describe_workload(again)
        == f"look at the first 9: about {first.value:.0f} errors ({first.low:.0f} to {first.high:.0f})"
    )
    assert audit.workload["errors"][1] == pytest.approx(np.linspace(0.95, 0.02, 60)[:50].sum(), abs=0.1)


@pytest.mark.parametrize("asked", [{"precision": 0.0}, {"precision": 1.5}, {"budget": 0}])
def test_impossible_flags_are_refused(asked):
    with pytest.raises(InputError, match=next(iter(asked))):
        found(table(40), np.linspace(0.9, 0.02, 40)).flag(**asked)
