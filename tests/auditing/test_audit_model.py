"""A model of the user's: trained once or for each fold, resumed exactly."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import nn

from compensate import audit
from compensate.data import digits, noise
from compensate.errors import InputError
from compensate.models import MLP

pytestmark = pytest.mark.slow


def blobs(size: int = 300, seed: int = 0):
    rng = np.random.default_rng(seed)
    true = rng.integers(3, size=size)
    x = (3 * rng.normal(size=(3, 6))[true] + rng.normal(size=(size, 6))).astype(np.float32)
    flipped = noise.symmetric(true, 3, 0.1, seed=seed)
    return x, flipped.labels, true, flipped.changed


@pytest.mark.parametrize("crossfit", [False, True])
@pytest.mark.parametrize("kind", ["name", "module", "function"])
def test_a_model_finds_wrong_labels(kind, crossfit):
    x, given, true, wrong = blobs()
    torch.manual_seed(0)
    module = MLP(6, 3, hidden=(32,))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = {"name": "mlp", "module": module, "function": lambda: MLP(6, 3, hidden=(32,))}[kind]
    found = audit(x, given, model, crossfit=crossfit, epochs=12, lr=0.01)
    assert average_precision_score(wrong, found.log_odds) > 0.9
    assert found.mask[wrong].mean() > 0.4
    assert wrong[found.mask].mean() > 0.9
    assert (found.suggested == true)[wrong].mean() > 0.9
    assert ("features: logcomp" in found.config["views"]) == crossfit
    assert found.config["epochs"] == 12
    assert [len(values) for values in found.curves.values()] == [12, 12]
    assert found.model is not None
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_a_cross_fitted_model_judges_rows_it_has_not_seen():
    """By a model that learns its rows by heart, labels without any pattern are predicted by chance alone."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 40)).astype(np.float32), rng.integers(2, size=120)
    found = audit(x, y, lambda: nn.Linear(40, 2), crossfit=True, method="base", epochs=30, lr=0.1)
    assert not found.mask.any()
    assert found.config["agreement"] < 0.65


def test_a_model_predicts_rows_without_a_label():
    x, given, true, _ = blobs()
    labels = np.array([str(y) for y in given], dtype=object)
    labels[::10] = ""
    for crossfit in (False, True):
        found = audit(x, labels, "mlp", crossfit=crossfit, epochs=10, lr=0.01)
        assert (found.predicted["suggested"].astype(int) == true[::10]).mean() > 0.9


def test_images_go_through_a_model_as_they_are():
    data = digits()
    part = data.relabel(noise.symmetric(data.target, 10, 0.2, seed=0).labels).subset(np.arange(300))
    found = audit(part, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), epochs=8, lr=0.02)
    assert found.kind == "image"
    assert (data.target[:300] != part.target)[found.mask].mean() > 0.8


@pytest.mark.parametrize("crossfit", [False, True])
def test_a_training_that_was_ended_goes_on_where_it_was(tmp_path, crossfit):
    x, given, _, _ = blobs(150)
    chosen = {"model": "mlp", "epochs": 4, "crossfit": crossfit, "seed": 3}
    whole = audit(x, given, **chosen)
    seen = []

    def ended(stage: str, done: int, total: int) -> None:
        if stage == "training":
            seen.append((done, total))
            if done == (20 if crossfit else 6):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        audit(x, given, run_folder=tmp_path / "run", progress=ended, **chosen)
    assert {total for _, total in seen} == {40 if crossfit else 12}
    resumed: list[int] = []
    found = audit(
        x, given, run_folder=tmp_path / "run", resume=True, **chosen,
        progress=lambda stage, done, total: resumed.append(done) if stage == "training" else None,
    )  # fmt: skip
    assert min(resumed) == (21 if crossfit else 7), "what was done is not done again"
    np.testing.assert_array_equal(found.log_odds, whole.log_odds)
    np.testing.assert_array_equal(found.probabilities, whole.probabilities)
    assert found.curves == whole.curves


# --- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argument",
    [{"epochs": 3}, {"batch_size": 8}, {"lr": 0.1}, {"hyper": {}}, {"precision": "bf16"}, {"crossfit": True}],
)
def test_settings_of_a_training_need_a_model(argument):
    x, given, _, _ = blobs(40)
    with pytest.raises(InputError, match=f"{next(iter(argument))} is for the training of a model"):
        audit(x, given, **argument)


def test_a_model_cannot_read_texts():
    with pytest.raises(InputError, match="takes numbers, and these samples are texts"):
        audit([f"text {i}" for i in range(40)], np.arange(40) % 2, "mlp")


def test_no_epochs_is_an_error():
    x, given, _, _ = blobs(40)
    with pytest.raises(InputError, match="epochs is 0; expected 1 or more"):
        audit(x, given, "mlp", epochs=0)


@pytest.mark.parametrize(
    ("model", "said"), [("mpl", 'did you mean "mlp"'), (7, "model is a int; expected a torch module")]
)
def test_a_model_that_is_none_is_named(model, said):
    x, given, _, _ = blobs(40)
    with pytest.raises(InputError, match=said):
        audit(x, given, model)
