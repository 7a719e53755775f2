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
    assert claims.judged([sure, unsure], alone=True).answer == "level"
    assert claims.judged([sure, sure], alone=True).answer == "holds"
