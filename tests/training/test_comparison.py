"""Tables of a comparison: against scipy, and fair by construction."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from compensate.training import Config, comparison, prepare_run


def run(method: str, seed: int, last: float, best: float = 0.9) -> dict:
    outcome = {"last": {"test_accuracy": last}, "best": {"test_accuracy": best}}
    return {
        "id": f"{method}{seed}",
        "config": {"method": method, "seed": seed, "hyper": {}},
        "versions": {},
        "result": outcome,
    }


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
