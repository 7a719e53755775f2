"""A model of the user's: trained once or for each fold."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(
            ({name: value}, f"{name} is an option of training")
            for name, value in {
                "epochs": 3, "batch_size": 8, "lr": 0.1, "hyper": {}, "precision": "bf16", "crossfit": True,
            }.items()
        ),
        ({"model": "mlp", "epochs": 0}, "epochs is 0; expected 1 or more"),
        ({"model": "mpl"}, 'did you mean "mlp"'),
        ({"model": 7}, "model is a int; expected a torch module"),
        ({"model": "mlp", "data": [f"text {i}" for i in range(40)]}, "takes numbers, and these samples are texts"),
    ],
)  # fmt: skip
def test_a_training_that_cannot_be_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        audit(**{"data": blobs(40)[0], "labels": np.arange(40) % 2, **options})
