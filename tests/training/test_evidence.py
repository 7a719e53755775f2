"""Training that keeps what the model said: against a naive loop, resumed, on any kind of input, in two processes."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compensate import InputError
from compensate.data import digits
from compensate.methods import logcomp
from compensate.training.evaluation import even_batches
from compensate.training.fitting import train_and_record
from compensate.training.step import rate
from processes import run_pair

N, C = 90, 3
MEANS = ("margin", "loss", "size", "agreement", "probabilities", "predictions")


def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Three groups of points, the first six labels wrong."""
    rng = np.random.default_rng(0)
    y = np.arange(N) % C
    x = rng.normal(size=(N, 5)).astype(np.float32) + 3 * np.eye(C, 5, dtype=np.float32)[y]
    y[:6] = (y[:6] + 1) % C
    return x, y


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, C))


OPTIONS = {"epochs": 4, "batch_size": 16, "lr": 0.02, "seed": 5}


def same(a, b) -> None:
    for name in MEANS:
        assert np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True), name
    assert all(map(torch.equal, a.model.state_dict().values(), b.model.state_dict().values()))


def test_means_are_those_of_a_naive_loop():
    x, y = blobs()
    torch.manual_seed(1)
    start = nn.Linear(5, C)
    rows = np.arange(10, N)
    found = train_and_record(x, y, C, model=start, hyper={"lam": 0.1}, rows=rows, **OPTIONS)

    model, criterion = copy.deepcopy(start), logcomp(num_samples=N, num_classes=C, lam=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    seen: dict[int, list[torch.Tensor]] = {}
    step, total = 0, 4 * 5
    for epoch in range(4):
        for part in even_batches(len(rows), 16, seed=5, epoch=epoch):
            i = torch.from_numpy(rows[part])
            u, target = model(torch.from_numpy(x)[i]), torch.from_numpy(y)[i]
            for k, row in enumerate(i.tolist()):
                seen.setdefault(row, []).append(u[k].detach())
            optimizer.param_groups[0]["lr"] = rate(0.02, step, total, schedule="cosine")
            optimizer.zero_grad()
            criterion(u, target, i).backward()
            optimizer.step()
            step += 1
        criterion.end_epoch()
    assert step == total
    for row, logits in seen.items():
        u, label = torch.stack(logits), int(y[row])
        others = u[:, [c for c in range(C) if c != label]].amax(1)
        assert found.margin[row] == pytest.approx(float((u[:, label] - others).mean()), abs=1e-4)
        assert found.agreement[row] == pytest.approx(float((u[:, label] > others).float().mean()))
        loss = F.cross_entropy(u, torch.full((len(u),), label))
        assert found.loss[row] == pytest.approx(float(loss), abs=1e-4)
        assert np.allclose(found.probabilities[row], u.softmax(1).mean(0), atol=1e-5)
    assert sorted(seen) == rows.tolist()
    assert np.isnan(found.margin[:10]).all()
    assert np.isnan(found.probabilities[:10]).all()
    assert found.held_out.tolist() == list(range(10))
    with torch.no_grad():
        assert np.allclose(found.predictions, model(torch.from_numpy(x[:10])).softmax(1), atol=1e-5)


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path):
    x, y = blobs()
    whole = train_and_record(x, y, C, model=network, rows=range(80), **OPTIONS)

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        train_and_record(x, y, C, model=network, rows=range(80), run_folder=tmp_path, every=2, progress=stop, **OPTIONS)
    with pytest.raises(InputError, match="holds this run already"):
        train_and_record(x, y, C, model=network, rows=range(80), run_folder=tmp_path, **OPTIONS)
    told = []
    again = train_and_record(
        x, y, C, model=network, rows=range(80), run_folder=tmp_path, resume=True,
        progress=lambda *said: told.append(said), **OPTIONS,
    )  # fmt: skip
    same(whole, again)
    steps = OPTIONS["epochs"] * 5
    assert told == [(done, steps) for done in range(3, steps + 1)]
    for change in ({"seed": 6}, {"rows": range(79)}, {"hyper": {"lam": 0.5}}):
        options = {**OPTIONS, "rows": range(80), **change}
        with pytest.raises(InputError, match=f"differs in .*{next(iter(change))}"):
            train_and_record(x, y, C, model=network, run_folder=tmp_path, resume=True, **options)
    with pytest.raises(InputError, match="differs in inputs"):
        train_and_record(x + 1, y, C, model=network, rows=range(80), run_folder=tmp_path, resume=True, **OPTIONS)


def test_a_part_of_the_model_can_have_a_learning_rate_of_its_own():
    x, y = blobs()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, C))
    options = {**OPTIONS, "batch_size": len(x), "epochs": 1, "optimizer": "adam", "lr": 1e-3, "schedule": "constant"}
    found = train_and_record(x, y, C, model=model, factors={"2": 10.0}, **options).model
    # The first step of Adam is as long as the learning rate, whatever the gradient.
    for part, step in ((0, 1e-3), (2, 1e-2)):
        change = (found[part].weight - model[part].weight).abs()
        assert change.max().item() == pytest.approx(step, rel=1e-3)
    slow = train_and_record(x, y, C, model=model, factors={"2": 10.0}, warmup=0.5, **{**options, "epochs": 4}).history
    assert [row["lr"] for row in slow] == pytest.approx([5e-4, 1e-3, 1e-3, 1e-3])


class Pair(nn.Linear):
    """Takes its input in a tuple, as models of sparse texts do."""

    def __init__(self) -> None:
        super().__init__(5, C)

    def forward(self, x):
        return super().forward(x[0])


def test_functions_tensors_arrays_and_data_sets_are_one():
    x, y = blobs()
    found = [
        train_and_record(inputs, y, C, model=network, **OPTIONS)
        for inputs in (x, torch.from_numpy(x), lambda rows, epoch: torch.from_numpy(x[rows]))
    ]
    same(found[0], found[1])
    same(found[0], found[2])
    data = digits().subset(range(120))
    bags = train_and_record(lambda rows, epoch: (torch.from_numpy(x[rows]), "words"), y, C, model=Pair, **OPTIONS)
    assert np.isfinite(bags.margin).all()
    images = train_and_record(
        data, data.target, 10, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), epochs=1
    )
    assert images.probabilities.shape == (120, 10)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "meta_weight"}, "needs more than samples and labels"),
        ({"rows": [0, 400]}, "expected positions from 0 to 89"),
        ({"rows": [3]}, "expected two or more"),
        ({"labels": np.r_[-1, np.zeros(N - 1, int)], "rows": [0, 1, 2]}, "row 0 has no label"),
        ({"labels": np.zeros(5, int)}, "one label a sample"),
    ],
)
def test_what_cannot_be_recorded_says_why(changes, said):
    x, y = blobs()
    options = {"model": network, **changes}
    with pytest.raises(InputError, match=said):
        train_and_record(x, options.pop("labels", y), C, **options)


def plain() -> nn.Module:
    """Without dropout, whose masks differ from process to process."""
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, C))


def one_of_two(out: Path) -> None:
    x, y = blobs()
    found = train_and_record(x, y, C, model=plain, rows=range(71), **OPTIONS)
    np.savez(out / f"rank{torch.distributed.get_rank()}", **{name: getattr(found, name) for name in MEANS})


def test_two_processes_are_one(tmp_path):
    run_pair(tmp_path, one_of_two, tmp_path)
    x, y = blobs()
    alone = train_and_record(x, y, C, model=plain, rows=range(71), **OPTIONS)
    for rank in range(2):
        with np.load(tmp_path / f"rank{rank}.npz") as found:
            for name in MEANS:
                assert np.allclose(found[name], getattr(alone, name), rtol=1e-4, atol=1e-4, equal_nan=True), name
