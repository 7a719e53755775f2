"""What a new user does first, from beginning to end, with nothing but what README and documentation say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import compensate
from compensate.cli import app

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


def compensate_(*arguments: str) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_csv_with_15_percent_of_its_labels_flipped(tmp_path, monkeypatch):
    """The first example of the audit page, then the decisions a person would export from the review page."""
    from sklearn.datasets import load_breast_cancer

    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.*?)```", (DOCS / "audit.md").read_text(), re.DOTALL)[0], {})
    said = compensate_("audit", "cells.csv")
    assert "target" in said, "says which column it took for the label"
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").stat().st_size > 10_000

    table = pd.read_csv(tmp_path / "cells.csv")
    true = np.where(load_breast_cancer().target == 1, "benign", "malignant")
    suspects = pd.read_csv(folder / "suspects.csv")
    accepted = suspects[suspects["p_error"] >= 0.5]
    rows = accepted["index"].to_numpy()
    corrections = pd.DataFrame(
        {"index": rows, "given": table["target"][rows], "decision": "accept", "label": accepted["suggested"].to_numpy()}
    )
    corrections.to_csv(tmp_path / "corrections.csv", index=False)
    compensate_("apply", "cells.csv", "corrections.csv", "-o", "cells.fixed.csv")
    fixed = pd.read_csv(tmp_path / "cells.fixed.csv")
    before, after = (table["target"] != true).mean(), (fixed["target"] != true).mean()
    assert before == pytest.approx(0.15, abs=0.03)
    assert after < before / 2, "most of the wrong labels are right now"
    assert fixed.drop(columns="target").equals(table.drop(columns="target"))


def train(criterion, loader, x, y):
    """The loop someone has, with the one place in which the criterion stands."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(80):
        for batch in loader:
            inputs, *rest = batch
            loss = criterion(model(inputs), *rest)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if hasattr(criterion, "end_epoch"):
            criterion.end_epoch()
    return float((model(x).argmax(1) == y).float().mean())


def test_logcomp_in_a_given_loop():
    from sklearn.datasets import load_digits

    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    x = x.float() / 16
    given = torch.as_tensor(compensate.data.noise.symmetric(y.numpy(), 10, 0.4, seed=0).labels)
    data = TensorDataset(x[:1200], given[:1200])

    def loader(data):
        return DataLoader(data, batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(0))

    plain = train(nn.CrossEntropyLoss(), loader(data), x[1200:], y[1200:])
    criterion = compensate.methods.logcomp(num_samples=len(data), num_classes=10)
    robust = train(criterion, loader(compensate.data.Indexed(data)), x[1200:], y[1200:])
    assert robust > plain + 0.05, (plain, robust)
    found = criterion.suspects(top=200).index
    assert (given != y)[found].float().mean() > 0.85
    with pytest.raises(compensate.InputError, match="Indexed"):
        criterion(torch.randn(2, 10), torch.tensor([0, 1]))  # forgetting the number says what to do


def test_a_new_method_by_swapping_one_axis():
    cousin = compensate.swap("logcomp", inference="adversarial", num_classes=3)
    original = compensate.methods.logcomp(num_samples=8, num_classes=3)
    before, after = str(original.taxonomy).split(" · "), str(cousin.taxonomy).split(" · ")
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True]
    u = torch.randn(8, 3, requires_grad=True)
    y = torch.randint(3, (8,))
    loss = cousin(u, y)
    loss.backward()
    assert loss < nn.functional.cross_entropy(u, y), "positive compensation lowers losses"
    assert torch.isfinite(u.grad).all()
    said = compensate_("methods")
    assert "adversarial" in said
