"""The paper's figures: what is drawn is what was measured."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from compensate.core.taxonomy import TARGETS
from compensate.data import Dataset
from compensate.errors import InputError
from compensate.methods import METHODS, logit_adjustment
from experiments.__main__ import app
from experiments.figures import FIGURES, curves, trained, tree
from experiments.figures.pages import figures_page

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(*arguments: str, fails: bool = False) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    if isinstance(done.exception, InputError):
        assert fails, done.exception
        return str(done.exception)
    assert (done.exit_code != 0) == fails, (done.output, done.exception)
    return done.output


# --- the tree -------------------------------------------------------------------------------------------------


def leaves(branch, path=()):
    if branch.method is not None:
        yield branch.method, path
    for child in branch.children:
        yield from leaves(child, (*path, child.name))


def test_tree_has_all_targets_and_each_method_once_at_its_place():
    root = tree.grown()
    assert [branch.name for branch in root.children][: len(TARGETS)] == list(TARGETS)
    found = list(leaves(root))
    assert Counter(row.name for row, _ in found) == dict.fromkeys(METHODS, 1)
    for row, path in found:
        if row.kind != "compensation":
            assert path[:2] == (tree.OTHER, row.kind)
        else:
            target, _, inference, granularity = row.taxonomy
            assert path[:3] == (tree.MIXED if "+" in target else target, inference, granularity)


# --- trained ones ---------------------------------------------------------------------------------------------


def test_change_of_undecided_logits_is_that_of_the_class_sizes():
    counts = np.array([80, 15, 5])
    target = np.repeat(np.arange(3), counts)
    train = Dataset(np.zeros((100, 4), np.float32), target, ("a", "b", "c"))
    model = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(model.bias)
    result = SimpleNamespace(
        model=model, criterion=logit_adjustment(class_counts=counts), prepared=SimpleNamespace(train=train)
    )
    expected = [(-math.log(share) - math.log(3)) / math.log(3) for share in (0.8, 0.15, 0.05)]
    assert trained.changes(result).tolist() == pytest.approx(expected, abs=1e-5)
    assert expected[0] < 0 < expected[1] < expected[2]


# --- curves ---------------------------------------------------------------------------------------------------


def test_ratio_is_one_below_the_threshold_and_that_of_a_loop_above():
    torch.manual_seed(1)
    u, y = 3 * torch.randn(40, 4).double(), torch.randint(4, (40,))
    losses, left = curves._ratio(u, y, 1.2, 2.0)
    for i in range(40):
        p = torch.exp(u[i]) / torch.exp(u[i]).sum()
        loss = -math.log(p[y[i]])
        assert losses[i].item() == pytest.approx(loss)
        v = [2.0 * (float(c == y[i]) - p[c].item()) if loss >= 1.2 else 0.0 for c in range(4)]
        moved = [math.exp(u[i, c].item() + v[c]) for c in range(4)]
        assert left[i].item() == pytest.approx(-math.log(moved[y[i]] / sum(moved)) / loss, rel=1e-5)
    assert (left[losses >= 1.2] < 1).all()


# --- files, pages, the command --------------------------------------------------------------------------------


def test_command_lists_and_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = run("figure")
    assert all(f"{name} " in listed and row.summary in listed for name, row in FIGURES.items())
    assert "drawn:  figure-self-paced-weights.png" in run("figure", "self_paced_weights")
    asked = ["distribution", "--set", "limit=120", "--set", "epochs=2", "--seed", "3", "--noise", "none", "-o", "v.svg"]
    assert "v.svg" in run("figure", *asked)
    (folder,) = (tmp_path / "runs" / "figures").iterdir()
    config = json.loads((folder / "config.json").read_text())["config"]
    assert (config["seed"], config["limit"], config["noise"], config["method"]) == (3, 120, "none", "logcomp")


def test_stored_page_and_pictures_are_up_to_date():
    page = (ROOT / "docs" / "figures.md").read_text()
    assert figures_page(ROOT / "results", ROOT / "docs" / "img") == page, "run `make docs`"
    for picture in (ROOT / "docs" / "img").glob("figure-*.png"):
        assert f"(img/{picture.name})" in page
        assert picture.stat().st_size < 250_000
