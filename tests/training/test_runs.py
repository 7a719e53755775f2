"""Configurations, search spaces and comparisons of runs."""

from __future__ import annotations

import hashlib
import inspect
import json

import numpy as np
import pytest
import torch
from scipy import stats

from compensate import METHODS, InputError
from compensate.methods.registry import Choice
from compensate.training import PROTOCOL, Config, comparison, prepare_run, read_toml
from compensate.training.comparison import open_study, search_space
from compensate.training.step import rate


# Run config
def test_the_id_is_the_hash_of_canonical_json_and_protocol():
    config = Config(data="digits", noise="pair:0.2", method="logcomp", hyper={"lr": 1.0, "lam": 0.1})
    plain = {name: value for name, value in config.json.items() if value is not None}
    text = json.dumps([PROTOCOL, plain], sort_keys=True, separators=(",", ":"))
    assert config.id == hashlib.sha256(text.encode()).hexdigest()
    assert config.id != config.replace(limit_test=10).id
    assert config.id == config.replace(hyper={"lam": 0.1, "lr": 1.0}).id  # the order of names says nothing
    assert config.id == Config.of(json.loads(json.dumps(config.json))).id  # as stored, so read
    assert Config(method="label-smoothing", noise="first_positive:0.1", clip=1, order="random").id == (
        Config(method="label_smoothing", noise="first-positive:0.1", clip=1.0).id
    )
    assert Config(order="ranges").id != Config().id
    with pytest.raises(InputError, match="numbers, texts and lists"):
        _ = Config(hyper={"lam": object()}).id


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": "five"}, "expected a whole number or nothing"),
        ({"noise": "pear:0.2"}, 'did you mean "pair"'),
        ({"schedule": "cosin"}, 'did you mean "cosine"'),
        ({"methd": "base"}, 'did you mean "method"'),
        ({"validation": 1.5}, "from 0 to 0.9"),
        ({"hyper": 3}, "a table of names and values"),
        ({"seed": True}, "a whole number"),
    ],
)
def test_mistakes_are_named(given, said):
    with pytest.raises(InputError, match=said):
        Config.of(given)


def test_toml_files_are_read_and_mistakes_in_them_named(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('method = "logcomp"\nepochs = 3\n[hyper]\nlam = 0.1\n')
    assert Config.of(read_toml(file)) == Config(method="logcomp", epochs=3, hyper={"lam": 0.1})
    file.write_text("method = logcomp")
    with pytest.raises(InputError, match="not TOML"):
        read_toml(file)
    with pytest.raises(InputError, match="no file"):
        read_toml(tmp_path / "other.toml")


def test_schedules_meet_torch():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    for step in range(50):
        assert rate(0.3, step, 50, schedule="cosine") == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


# Spaces
SPACES = [(m, "default", row.search) for m, row in METHODS.items() if row.search is not None]
SPACES += [(m, k, s) for m, row in METHODS.items() for k, s in row.paper_search.items()]
SIZES = {"num_samples": 9, "num_classes": 3, "class_counts": [5, 3, 1], "feature_dim": 4, "feature_shape": (4,)}


@pytest.mark.parametrize("name", [m for m, row in METHODS.items() if row.candidates])
def test_candidates_are_five_settings_that_build(name):
    row = METHODS[name]
    for kind in ("image", "text"):
        assert len(row.candidates[kind]) == 5
        for hyper in row.candidates[kind]:
            row.make(**SIZES, **hyper)


@pytest.mark.parametrize(("method", "kind", "space"), SPACES, ids=[f"{m}-{k}" for m, k, _ in SPACES])
def test_every_name_is_a_hyper_parameter_and_every_corner_builds(method, kind, space):
    row = METHODS[method]
    known = inspect.signature(row.build).parameters
    assert set(space.ranges) | set(space.fixed) <= set(known)
    for end in (0, -1):
        values = {
            name: span.values[end] if isinstance(span, Choice) else (span.low, span.high)[end]
            for name, span in space.ranges.items()
        }
        assert row.make(**SIZES, **space.hyper(values, "paper", 128)) is not None


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
    ranges = {"lam": (0.01, 0.5), "lr": (0.02, 5.0)}
    setting = {name: lost.suggest_float(name, *span, log=True) for name, span in ranges.items()}
    done = []
    second = search_space(CONFIG, tmp_path, trials=4, workers=1, done=done.append)
    assert done == [3, 4]
    hypers = [trial["hyper"] for trial in second["trials"]]
    assert setting in hypers
    assert all(trial["hyper"] in hypers for trial in first["trials"])
    assert len({tuple(h.values()) for h in hypers}) == 4
    assert second["best"]["validation"] == max(trial["validation"] for trial in second["trials"])
    with pytest.raises(InputError, match="validation"):
        search_space(CONFIG.replace(validation=0.0), tmp_path, trials=1)


# Comparison
def run(method: str, seed: int, last: float, best: float = 0.9) -> dict:
    outcome = {"last": {"test_accuracy": last}, "best": {"test_accuracy": best}}
    return {"config": {"method": method, "seed": seed}, "result": outcome}


def test_the_interval_is_that_of_the_paired_t_test():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.8, 0.02, 6), rng.normal(0.83, 0.03, 6)
    mean, low, high = comparison.paired((b - a).tolist())
    theirs = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert mean == pytest.approx((b - a).mean())
    assert (low, high) == pytest.approx((theirs.low, theirs.high))


def test_means_deviations_and_differences_pair_the_seeds():
    a, b = [0.80, 0.90, 0.70], [0.85, 0.93, 0.78]
    runs = [run("base", s, v) for s, v in enumerate(a)] + [run("logcomp", s, v) for s, v in enumerate(b)][::-1]
    base, ours = comparison.comparison_table(runs, ["base", "logcomp"], "base")
    assert base.difference is None
    assert ours.last == pytest.approx((np.mean(b), np.std(b, ddof=1)))
    assert ours.difference[0] == pytest.approx(np.mean(np.subtract(b, a)))
    assert ours.difference[1] < ours.difference[0] < ours.difference[2]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ([0.85], "+5.00 (1 seed: no interval)"),
        ([0.85, 0.95], "+5.00 (2 seeds: no interval)"),
        ([0.85, 0.97], "+6.00 (2 seeds: no interval)"),
        ([0.85, 0.95, 0.75], "+5.00 (equal in 3 seeds: no interval)"),
        ([0.85, 0.95, 0.78], "+6.00 (+1.70 to +10.30)"),
    ],
)
def test_two_seeds_or_equal_differences_give_no_interval(ours, said):
    runs = [run("base", s, v) for s, v in enumerate([0.80, 0.90, 0.70])]
    rows = comparison.comparison_table(
        [*runs, *(run("elr", s, v) for s, v in enumerate(ours))], ["base", "elr"], "base"
    )
    assert [cells[-1] for cells in rows.cells] == ["", said]


def test_all_methods_train_on_the_same_samples_even_if_one_needs_clean_ones():
    configs = comparison.plan(Config(noise="pair:0.3", limit=400), {"base": {}, "meta_weight": {}}, 2)
    assert [(c.method, c.seed) for c in configs] == [("base", 0), ("meta_weight", 0), ("base", 1), ("meta_weight", 1)]
    base, meta = prepare_run(configs[0]), prepare_run(configs[1])
    assert np.array_equal(base.train.index, meta.train.index)
    assert np.array_equal(base.train.target, meta.train.target)
    assert len(base.clean) == len(meta.clean) > 0


def test_a_run_at_fault_does_not_take_the_others_with_it(tmp_path):
    config = Config(limit=100, epochs=1, method="logcomp", hyper={"nonsense": 1})
    _, said = comparison.attempt(config, tmp_path, None)
    assert "no hyper-parameter" in said
