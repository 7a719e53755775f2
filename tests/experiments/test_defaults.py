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
