"""Search spaces: every name is one of its method, and the paper's are the paper's."""

from __future__ import annotations

import inspect

import pytest

from compensate import METHODS, InputError
from compensate.methods.registry import Choice
from compensate.training import Config
from compensate.training.tuning import open_study, search_space

SPACES = [(m, "default", row.search) for m, row in METHODS.items() if row.search is not None]
SPACES += [(m, k, s) for m, row in METHODS.items() for k, s in row.paper_search.items()]


@pytest.mark.parametrize("name", [m for m, row in METHODS.items() if row.candidates])
def test_candidates_are_five_settings_that_build(name):
    row = METHODS[name]
    sizes = {"num_samples": 9, "num_classes": 3, "class_counts": [5, 3, 1], "feature_dim": 4, "feature_shape": (4,)}
    for kind in ("image", "text"):
        assert len(row.candidates[kind]) == 5
        for hyper in row.candidates[kind]:
            row.make(**sizes, **hyper)


@pytest.mark.parametrize(("method", "kind", "space"), SPACES, ids=[f"{m}-{k}" for m, k, _ in SPACES])
def test_every_name_is_a_hyper_parameter_and_every_corner_builds(method, kind, space):
    row = METHODS[method]
    known = inspect.signature(row.build).parameters
    assert set(space.ranges) | set(space.fixed) <= set(known)
    sizes = {"num_samples": 9, "num_classes": 3, "class_counts": [5, 3, 1], "feature_dim": 4, "feature_shape": (4,)}
    for end in (0, -1):
        values = {
            name: span.values[end] if isinstance(span, Choice) else (span.low, span.high)[end]
            for name, span in space.ranges.items()
        }
        assert row.make(**sizes, **space.hyper(values, "paper", 128)) is not None


@pytest.mark.parametrize(
    ("method", "preset", "said"),
    [("base", "default", "no hyper-parameter"), ("elr", "paper", "no search space for elr"), ("elr", "best", "choose")],
)
def test_what_has_no_space_says_so(method, preset, said):
    with pytest.raises(InputError, match=said):
        METHODS[method].space(preset, "image")


CONFIG = Config(method="logcomp", noise="pair:0.3", limit=120, epochs=1, model="mlp", model_options={"hidden": [8]})


def test_a_search_goes_on_and_takes_up_what_was_abandoned(tmp_path):
    first = search_space(CONFIG, tmp_path, trials=2, workers=1)
    assert len(first["trials"]) == 2
    study = open_study(tmp_path, f"logcomp-default-{CONFIG.id[:8]}-1", 0)
    lost = study.ask()
    setting = {
        "lam": lost.suggest_float("lam", 0.01, 0.5, log=True),
        "lr": lost.suggest_float("lr", 0.02, 5.0, log=True),
    }
    done = []
    second = search_space(CONFIG, tmp_path, trials=4, workers=1, done=done.append)
    assert done == [3, 4]
    hypers = [trial["hyper"] for trial in second["trials"]]
    assert setting in hypers
    assert all(trial["hyper"] in hypers for trial in first["trials"])
    assert len({tuple(h.values()) for h in hypers}) == 4
    assert second["best"]["validation"] == max(trial["validation"] for trial in second["trials"])


def test_a_search_without_validation_is_refused(tmp_path):
    with pytest.raises(InputError, match="validation"):
        search_space(CONFIG.but(validation=0.0), tmp_path, trials=1)
