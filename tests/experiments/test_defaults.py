"""The choice of defaults: the rule, what it leaves out, and that the library has what the page says."""

from __future__ import annotations

import inspect

from compensate.methods import logcomp, mixcomp
from experiments import defaults


def test_the_defaults_of_the_study_are_those_of_the_library():
    rows = next(logcomp(num_samples=4, num_classes=3).tables())
    assert {"lam": rows.penalty.lam, "lr": rows.lr} == defaults.DEFAULTS["logcomp"]
    given = inspect.signature(mixcomp).parameters
    assert {name: given[name].default for name in defaults.DEFAULTS["mixcomp"]} == defaults.DEFAULTS["mixcomp"]
    for method, setting in defaults.DEFAULTS.items():
        assert setting in defaults.CANDIDATES[method]
