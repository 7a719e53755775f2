"""The choice of defaults: the rule, what it leaves out, and that the library has what the page says."""

from __future__ import annotations

import inspect

from compensate.methods import logcomp, mixcomp
from experiments import claims, defaults

COLUMNS = [("digits", "none"), ("digits", "symmetric:0.3"), ("sst2", "none")]


def found(**settings: tuple[float, float, float]) -> defaults.Gains:
    """Gains of mixcomp by setting; two seeds that differ by 0.2 points."""
    return {
        ("mixcomp", name): {c: [mean - 0.1, mean + 0.1] for c, mean in zip(COLUMNS, means, strict=True)}
        for name, means in settings.items()
    }


def test_the_defaults_of_the_study_are_those_of_the_library():
    rows = next(logcomp(num_samples=4, num_classes=3).tables())
    assert {"lam": rows.penalty.lam, "lr": rows.lr} == defaults.DEFAULTS["logcomp"]
    given = inspect.signature(mixcomp).parameters
    assert {name: given[name].default for name in defaults.DEFAULTS["mixcomp"]} == defaults.DEFAULTS["mixcomp"]
    for method, setting in defaults.DEFAULTS.items():
        assert setting in defaults.CANDIDATES[method]


def test_a_setting_behind_cross_entropy_anywhere_loses_to_one_that_is_not():
    gains = found(bold=(-1.0, 5.0, 5.0), careful=(0.0, 1.0, 1.0), careful_too=(0.0, 2.0, 1.0))
    assert defaults.best("mixcomp", gains) == "careful_too"
    assert defaults.best("mixcomp", gains, without="digits") == "bold"


def test_what_is_reported_of_a_set_was_chosen_without_it():
    first, second = defaults.CANDIDATES["mixcomp"][:2]
    gains = {
        ("mixcomp", defaults.key(first)): {c: [-2.0 if c[0] == "digits" else 3.0] * 2 for c in COLUMNS},
        ("mixcomp", defaults.key(second)): {c: [1.0, 1.0] for c in COLUMNS},
    }
    assert defaults.chosen_without("mixcomp", gains, "sst2") == second
    assert defaults.chosen_without("mixcomp", gains, "digits") == first, (
        "that it loses on digits must not be known there"
    )
    assert defaults.chosen_without("logcomp", gains, "digits") is None


def test_behind_by_less_than_the_seeds_explain_is_not_behind():
    assert defaults.best("mixcomp", found(bold=(-0.05, 5.0, 5.0), careful=(0.0, 1.0, 1.0))) == "bold"


def test_a_setting_that_was_not_tried_everywhere_is_not_chosen():
    gains = found(whole=(0.0, 1.0, 1.0), part=(0.0, 9.0, 9.0))
    del gains["mixcomp", "part"]["sst2", "none"]
    assert defaults.best("mixcomp", gains) == "whole"


def test_columns_with_one_seed_are_shown_and_not_judged():
    verdict = claims.judged([("0 %", (1.0, 1.2, 1.1)), ("30 %", (-3.0,))])
    assert verdict.answer == "holds"
    assert "30 %: -3.0 (1 seed)" in verdict.figures


def test_differences_without_a_common_mean_hold_only_each_by_itself():
    sure, unsure = ("a", (1.0, 1.2, 1.1)), ("b", (9.0, -3.0, 5.0))
    assert claims.judged([sure, unsure], every=True, pooled=False).answer == "open"
    assert claims.judged([sure, sure], every=True, pooled=False).answer == "holds"


def test_a_claim_about_every_column_has_to_hold_in_each():
    sure, unsure, against, one = (1.0, 1.2, 1.1), (0.9, -0.5, 0.4), (-1.0, -1.2, -1.1), (2.0,)
    for second, answer in ((sure, "holds"), (unsure, "open"), (against, "does not hold"), (one, "not judged")):
        assert claims.judged([("a", sure), ("b", second)], every=True).answer == answer
    strong = (9.0, 9.1, 9.2)
    assert claims.judged([("a", strong), ("b", unsure)]).answer == "holds", "a claim about the mean"
    assert (
        claims.judged([("a", strong), ("b", one)]).short
        == "+9.1 (+8.9 to +9.3), 1 column of 2 (one seed in the others)"
    )


def test_the_summary_says_what_defaults_do_on_fresh_seeds():
    own = {
        ("digits", "none"): [-1.0, -1.1, -0.9],
        ("digits", "symmetric:0.3"): [2.0, 2.2, 2.4],
        ("imdb", "none"): [0.5, 0.7],
    }
    said = defaults._gained(own)
    assert said.startswith("+2.2 and -0.2, lowest -1.0 (-1.2 to -0.8) on digits without noise")
    assert "below zero in 1 of 2 columns: digits without noise (-1.0 (-1.2 to -0.8))" in said
    assert "below zero in none of 1 columns" in defaults._gained(
        {c: each for c, each in own.items() if c != ("digits", "none")}
    )


def test_seeds_are_counted_not_promised():
    fresh = {**{kind: {} for kind in defaults.KINDS}, "default": found(any_setting=(0.0, 1.0, 1.0))}
    told, table = defaults._on_fresh_seeds(defaults.Stored(4, fresh["default"], fresh))
    assert "(digits 2, sst2 2)" in told, "two seeds are stored, though three are planned"
    assert "| mixcomp, default | +0.0 | +1.0 | +1.0 |" in table
