"""Every cell of the taxonomy that claims to run does, in the direction it claims; swapping moves one axis."""

from __future__ import annotations

import pytest
import torch

from compensate import METHODS, InputError, compose, meta_step, methods, swap
from compensate.core.criterion import change, measured
from compensate.methods.composition import why_not
from compensate.models import GCN
from experiments.taxonomy import cells

SIZES = {
    "num_samples": 20, "num_classes": 3, "class_counts": [9, 6, 5], "feature_shape": (4,), "num_groups": 2, "num_edges": 14,
}  # fmt: skip
RUNNING = [cell for cell in cells() if why_not(cell) is None]
AXES = [list(dict.fromkeys(values)) for values in zip(*cells(), strict=True)]
TRAINED = [
    cell
    for cell in RUNNING
    if cell.target == "structure" or sum(axis.index(value) for axis, value in zip(AXES, cell, strict=True)) % 3 == 0
]
"""A third of the grid in which each three values of different axes meet, wherever they can; and all few cells of edges."""


def test_the_grid_is_whole_and_most_of_it_runs():
    grid = list(cells())
    assert len(grid) == 8 * 3 * 6 * 4
    of_gradients = [c for c in grid if c.target == "gradient"]
    of_edges = [c for c in grid if c.target == "structure"]
    assert len([c for c in grid if c in RUNNING and c.target not in ("gradient", "structure")]) == 432 - 12
    # Nothing to descend for a third of the gradients.
    assert len([c for c in of_gradients if c in RUNNING]) == 72 - 24
    # Edges have no classes, and a direction of their own except by clean data.
    assert len([c for c in of_edges if c in RUNNING]) == 2 * 6 * 2 + 2
    assert all(why_not(cell).endswith(".") for cell in cells() if cell not in RUNNING)


def trained(criterion, inference, steps=4):
    """A few steps on one batch; returns the last state."""
    torch.manual_seed(3)
    # Without batch normalization, which takes a shift common to all samples away again.
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    criterion = criterion.double()
    x, y, i = torch.randn(10, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 0, 0]), torch.arange(10)
    clean = torch.randn(8, 4).double(), torch.randint(3, (8,))
    if "structure" in criterion.terms:
        edges = torch.combinations(torch.arange(18))[torch.randperm(153)[:14]].T
        weight = torch.full((14,), 0.7).double()  # with room to rise and to fall
        model = GCN(torch.cat([x, clean[0]]), edges, 3, hidden=8, weight=weight).double()
        x, clean = torch.arange(10), (torch.arange(10, 18), clean[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        if inference == "meta":
            meta_step(criterion, model, (x, y, i), clean, lr=0.1)
        s = criterion.evaluate(model, x, y, i)
        _ = change(s)  # before the model moves on
        optimizer.zero_grad()
        s.loss.backward()
        optimizer.step()
    assert s.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    return s


@pytest.mark.parametrize("cell", TRAINED, ids=[" ".join(cell) for cell in TRAINED])
def test_every_running_cell_trains_in_its_direction(cell):
    step = (10.0 if cell.target == "structure" else 0.01) if cell.inference == "meta" else None
    criterion = compose(**cell._asdict(), **SIZES, lr=step)
    assert criterion.taxonomy.target == cell.target
    assert criterion.taxonomy.direction == cell.direction
    s = trained(criterion, cell.inference)
    signs = measured(s)
    assert (signs != 0).any(), "it compensates somebody"
    total = change(s).sum().item()
    shared = cell.granularity != "sample" and cell.inference in ("regularized", "adversarial", "mixed")
    shared |= cell.target == "structure"  # an edge serves many samples
    if cell.direction == "positive":
        # A row that many samples share lowers their sum; a row of one's own lowers one's own.
        assert total < 0
        assert shared or (signs <= 0).all()
    elif cell.direction == "negative":
        assert total > 0
        assert shared or (signs >= 0).all()
    elif cell.inference != "meta" or cell.target == "loss":
        assert shared or ((signs > 0).any() and (signs < 0).any())


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ({"target": "loss", "inference": "adversarial"}, "constant has no gradient"),
        ({"target": "logits"}, 'did you mean "logit"'),
        ({"granularty": "category"}, 'did you mean "granularity"'),
        ({"granularity": "sample+klass"}, "granularity"),
        ({"target": "gradient"}, "nothing to descend"),
        ({"target": "structure", "granularity": "category"}, "whose classes may differ"),
        ({"target": "structure", "direction": "mixed"}, "choose one direction"),
        ({"target": "structure", "num_edges": None}, "needs num_edges"),
        ({"inference": "regularized", "num_samples": None}, "needs num_samples"),
    ],
)
def test_cells_that_make_no_sense_say_why(cell, reason):
    with pytest.raises(InputError, match=reason):
        compose(**{**SIZES, **cell})


@pytest.mark.parametrize("c", [0.2, 0.5])
def test_a_tuned_threshold_on_gradients_is_gradient_clip(c, monkeypatch):
    monkeypatch.setattr("compensate.methods.composition.THRESHOLD", c)
    u, y = 2 * torch.randn(20, 3, dtype=torch.float64), torch.randint(3, (20,))
    cell = {"target": "gradient", "inference": "tuning", "granularity": "sample", "strength": 1.0}
    found, expected = u.clone().requires_grad_(), u.clone().requires_grad_()
    compose(**cell, num_samples=20).double()(found, y, torch.arange(20)).backward()
    methods.gradient_clip(c=c)(expected, y).backward()
    torch.testing.assert_close(found.grad, expected.grad)


PAIRS = {
    "logcomp": "inference=adversarial inference=meta granularity=category granularity=sample+category "
    "target=label target=prediction target=feature direction=negative",
    "label_smoothing": "inference=adversarial granularity=category",
    "bootstrap_hard": "inference=meta",
    "logit_adjustment": "inference=meta",
    "isda": "inference=adversarial",
    "universal_at": "granularity=category",
    "pgd_at": "inference=regularized",
    "mixcomp": "inference=regularized inference=prior granularity=corpus target=label",
}


@pytest.mark.parametrize(("name", "moved"), [(name, moved) for name in PAIRS for moved in PAIRS[name].split()])
def test_swapping_moves_one_axis_and_leaves_the_others(name, moved):
    change = dict([moved.split("=")])
    criterion = swap(name, **change, **SIZES)
    assert criterion.taxonomy == METHODS[name].taxonomy._replace(**change)
    trained(criterion, criterion.taxonomy.inference)
