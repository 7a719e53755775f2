"""The words and columns that speak against a label: exact contributions of the linear models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import compensate
from compensate.auditing.page import page_of
from compensate.auditing.result import REASONS, Audit

WORDS = {"good": ["wonderful", "moving", "charming"], "bad": ["boring", "awful", "dull"]}
ROWS, WRONG = 160, (4, 31, 77)


def films() -> pd.DataFrame:
    """Texts, a number and a category that all tell the label; three labels are wrong."""
    rng = np.random.default_rng(0)
    true = np.array(["good", "bad"] * (ROWS // 2))
    texts = [" ".join(["the film", *rng.choice(WORDS[name], 3), f"actor{rng.integers(30)}"]) for name in true]
    stars = np.where(true == "good", 4.0, 2.0) + rng.normal(size=ROWS) * 0.3
    shop = np.where(rng.random(ROWS) < 0.8, np.where(true == "good", "rome", "oslo"), "bern")
    given = true.copy()
    given[list(WRONG)] = np.where(true[list(WRONG)] == "good", "bad", "good")
    return pd.DataFrame({"review": texts, "stars": stars.round(2), "shop": shop, "label": given})


@pytest.mark.parametrize("used", [["review"], ["stars", "shop"], ["review", "stars", "shop"]])
def test_contributions_add_up_to_the_difference_of_the_logits(used: list[str]) -> None:
    found = compensate.audit(films()[[*used, "label"]], label="label", encoder="none")
    assert found.scorer is not None
    assert found.data is not None
    every = np.arange(len(found))
    reasons = found.scorer.reasons(found.data, found.given, found.suggested)
    expected = np.zeros(ROWS)
    for maker, learners in zip(found.scorer.makers, found.scorer.learners, strict=True):
        linear, view = learners["logcomp"], maker.view(found.data)
        log_p = linear.log_p(view.x, None).astype(np.float64)  # the intercept is not a reason
        intercept = linear.arrays()["intercept"].astype(np.float64)
        for sign, label in ((1, found.suggested), (-1, found.given)):
            expected += sign * (log_p[every, label] - intercept[label])
    np.testing.assert_allclose([sum(value for _, value in parts) for parts in reasons], expected, atol=1e-4)
    for row in WRONG:
        assert found.mask[row]
        shown = found.reasons(np.array([row]))[0]
        assert 1 <= len(shown) <= REASONS
        assert all(value > 0 for _, value in shown)
        assert [value for _, value in shown] == sorted((value for _, value in shown), reverse=True)
        planted = [*WORDS[found.classes[found.suggested[row]]], "stars", "shop"]
        assert any(word in shown[0][0].split() for word in planted), shown


def test_reasons_are_in_the_list_and_on_the_page(tmp_path: Path, open_page: Any) -> None:
    films().to_csv(tmp_path / "films.csv", index=False)
    found = compensate.audit(tmp_path / "films.csv", label="label", encoder="none")
    listed = pd.read_csv(found.write_suspects(tmp_path / "suspects.csv"), keep_default_na=False)
    assert set(WRONG) <= set(listed["index"][listed["why"] != ""]), "flagged rows"
    tab = open_page(page_of(found))
    name, value = found.reasons(np.argsort(-found.log_odds)[:1])[0][0]
    given, suggested = listed["given"][0], listed["suggested"][0]
    assert tab.inner_text(".why").startswith(f"for {suggested}, against {given}: {name} {value:.2f}")
    assert listed["why"][0].startswith(f"{name} {value:.2f}")
    found.save(tmp_path / "run")
    assert Audit.load(tmp_path / "run").reasons(np.array([0])) == [[]], "without the data"
