"""The table of methods, and what every row must do."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from compensate import METHODS, InputError
from compensate.methods import find
from compensate.methods.trial import measured_change

SIZES = {"num_samples": 40, "num_classes": 3, "class_counts": [20, 12, 8], "feature_dim": 6, "feature_shape": (4,)}


def test_names_may_be_written_with_hyphens_and_misspelling_gets_a_hint():
    assert find("LogComp").name == "logcomp"
    with pytest.raises(InputError, match='did you mean "logcomp"'):
        find("logcmp")


@pytest.mark.parametrize("name", METHODS)
def test_taxonomy_row_is_what_the_composition_says(name):
    row = METHODS[name]
    assert row.make(**SIZES).taxonomy == row.taxonomy


@pytest.mark.parametrize("name", METHODS)
def test_rows_are_documented(name):
    row = METHODS[name]
    assert row.summary.endswith((".", ":"))
    assert row.reference
    assert row.limits
    assert row.equation


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("how", ["state_dict", "deepcopy", "pickle"])
def test_state_survives(name, how):
    from tiny import TinyNet

    torch.manual_seed(1)
    criterion, model = METHODS[name].make(**SIZES), TinyNet(classes=3 + METHODS[name].extra_outputs)
    x, y, i = torch.randn(8, 4), torch.randint(3, (8,)), torch.randperm(40)[:8]
    criterion.start(10)
    for _ in range(3):
        criterion.evaluate(model, x, y, i).loss.backward()
    criterion.end_epoch()
    if how == "state_dict":
        other = METHODS[name].make(**SIZES)
        other.load_state_dict(criterion.state_dict())
    else:
        other = copy.deepcopy(criterion) if how == "deepcopy" else pickle.loads(pickle.dumps(criterion))
    losses = []
    for c in (criterion, other):
        torch.manual_seed(2)
        losses.append(c.evaluate(copy.deepcopy(model), x, y, i).loss)
    assert torch.equal(*losses)
    for (key, a), b in zip(criterion.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), key


@pytest.mark.parametrize("name", METHODS)
def test_measured_direction_agrees_with_the_taxonomy(name):
    row = METHODS[name]
    change = measured_change(row)
    assert change.agrees(row), str(change)
    # D2L waits for the dimensionality of its features to turn, which it does not in a short training.
    assert (change.direction == "none") == (name in ("base", "d2l"))
