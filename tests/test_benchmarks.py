"""The machinery of the benchmarks at a small size, and equality with the peers that they are measured beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score

from benchmarks import fine_tuning, pairs, steps
from compensate import Compensated
from compensate.terms import Adversarial

pytestmark = pytest.mark.slow


def test_adversarial_steps_are_measured_and_foolbox_finds_the_same_perturbation() -> None:
    pytest.importorskip("foolbox", reason="the peer is in the extra `bench`", exc_type=ImportError)
    assert all(len(ratio.ours) == len(ratio.theirs) >= 1 for ratio in steps.adversarial(8, 1, batch=2))
    model, _, x, y = steps.setting(8, batch=4)
    ours = Compensated(feature=Adversarial(steps.EPS, steps=3, random_start=False, bounds=(0, 1)))
    theirs = steps.foolbox_attack(model, x, y, steps=3, random_start=False)
    torch.testing.assert_close(x + ours.evaluate(model, x, y).dx, theirs)
    assert (theirs - x).abs().max() == pytest.approx(steps.EPS, rel=1e-3)


def test_arcface_is_that_of_pytorch_metric_learning() -> None:
    pytest.importorskip("pytorch_metric_learning", reason="the peer is in the extra `bench`")
    assert all(len(ratio.ours) == len(ratio.theirs) >= 1 for ratio in steps.margins(1, batch=4, classes=5, features=3))
    for seed in range(5):
        torch.manual_seed(seed)
        ours, peer = steps.arcface_pair(7, 5, scale=16.0)
        z, y = torch.randn(9, 5, requires_grad=True), torch.randint(7, (9,))
        found = [(loss, *torch.autograd.grad(loss, z)) for loss in (ours(z, y), peer(z, y))]
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_planted_flips_of_pairs_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cleanlab", reason="the peer is in the extra `bench`")
    rng = np.random.default_rng(0)
    good, bad = ([f"{word} {' x' * int(n)} {n}" for n in rng.integers(1, 99, 120)] for word in ("superb", "dull"))

    class Encoded:
        name, license, source = "toy", "", ""

        def __init__(self, texts: Any) -> None:
            self.values = np.array([[text.startswith("superb"), len(text)] for text in texts], np.float32)

    monkeypatch.setattr("compensate.encoders.encode_data", lambda data, *_, **__: Encoded(data.x))
    frame, wrong = pairs.planted(pd.DataFrame({"prompt": "say", "chosen": good, "rejected": bad}), 0.2, 0)
    assert (frame["chosen"].str.startswith("dull") == wrong).all()
    found = pairs.measured(frame, wrong, 0)
    assert found["audit"] > 0.9
    assert found["cleanlab"] == pytest.approx(found["audit"])  # with two answers both order by the same probability
    longer = frame["rejected"].str.len() - frame["chosen"].str.len()
    assert found["length"] == pytest.approx(average_precision_score(wrong, longer))
    assert found["low"] <= found["true share"] == wrong.mean() <= found["high"]


@pytest.mark.filterwarnings("ignore")
def test_a_small_fine_tuning_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is not installed; the extra test has it")
    for part in ("train", "test"):
        frame = pd.DataFrame({"text": [f"news of day {k}" for k in range(40)], "label": np.arange(40) % 4})
        frame.to_csv(tmp_path / f"noisy-agnews-{part}.csv", index=False)
    rows, (texts, truth), wrong = fine_tuning.news(tmp_path, 0, 0.2, 40, 12)
    days = [int(row["prompt"].split()[3]) for row in rows]
    given = [fine_tuning.TOPICS.index(row["completion"].split()[-1]) for row in rows]
    assert [day % 4 != c for day, c in zip(days, given, strict=True)] == wrong.tolist()
    run = fine_tuning.trained(rows, 0, None, {}, True, 1, 16)
    found = fine_tuning.detection(run, wrong)
    assert found["AP mean loss, last epoch"] == found["AP mean loss, all epochs"]  # of one epoch
    assert found["AP watch"] >= wrong.mean() / 2
    assert fine_tuning.accuracy(run["trainer"], texts, truth) * 12 == pytest.approx(
        round(fine_tuning.accuracy(run["trainer"], texts, truth) * 12)
    )
