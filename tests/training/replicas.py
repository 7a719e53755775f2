"""Trains in as many processes as the environment says; the tests run it in two and compare with one process."""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from compensate.core.stores import PARTS, Packed
from compensate.data import Dataset, Splits, digits
from compensate.methods import METHODS
from compensate.training import Config, Exchange, fit, together

STOP = 4
"""The step, in the middle of the first epoch, that the interrupted run stops after."""


INTERRUPTED = ("logcomp", "mixcomp", "online_label_smoothing", "isda", "universal_at", "metasaug", "category_logit")
"""Methods whose run in two processes is also stopped and resumed."""


class Stopped(Exception):
    """Stands for a killed process."""


def small() -> Splits:
    """133 digits for training: six batches of 24, the last with an odd 13 samples."""
    train, rest = digits().split((0.1, 0.9), seed=3)
    return Splits(_first(train, 133), _first(rest, 40))


def _first(data: Dataset, n: int) -> Dataset:
    return data.subset(range(n))


def config(method: str, **changes) -> Config:
    """A short run with a network that has neither batch normalization nor dropout."""
    base = {
        "noise": "pair:0.3", "epochs": 2, "batch_size": 24, "model": "mlp", "optimizer": "sgd", "lr": 0.1,
        "model_options": {"hidden": [16]}, "validation": 0.0, "clean": 0.15 if "clean" in METHODS[method].needs else 0.0,
    }  # fmt: skip
    return Config(**{**base, "method": method, **changes})


def train(method: str, folder: Path | None = None, *, stop: bool = False, resume: bool = False, **changes):
    """A run, and the loss of each of its steps; with `stop` it ends after a checkpoint in the middle of an epoch."""
    losses: list[float] = []

    def keep(s) -> None:
        losses.append(float(s.loss.detach()))
        if stop and len(losses) == STOP + 1:
            raise Stopped

    criterion = teacher(method) if "teacher" in METHODS[method].needs else None
    torch.manual_seed(0)
    try:
        result = fit(
            config(method, **changes), data=small(), folder=folder, resume=resume, every=STOP, on_step=keep,
            criterion=criterion,
        )  # fmt: skip
    except Stopped:
        return losses, None
    return losses, result


def teacher(method: str):
    """The criterion of a method that asks for a teacher, with one that it makes up."""
    train = small().train
    return METHODS[method].make(num_samples=train.rows, num_classes=10, class_counts=train.class_counts.tolist())


def tensors(losses: list[float], result) -> dict[str, torch.Tensor]:
    """All that two runs are compared by: losses, metrics, tables, statistics and weights."""
    metrics = [[row[key] for key in sorted(row)] for row in result.history]
    return {
        "losses": torch.tensor(losses, dtype=torch.float64),
        "metrics": torch.tensor(metrics, dtype=torch.float64),
        **{f"criterion.{k}": v.clone() for k, v in result.criterion.state_dict().items()},
        **{f"model.{k}": v.clone() for k, v in result.model.state_dict().items()},
    }


def train_texts() -> dict[str, torch.Tensor]:
    """Attacked word vectors: the embedding learns, so that its gradient crosses the processes, too."""
    rng = np.random.default_rng(0)
    words = np.array(["good", "fine", "nice", "bad", "poor", "dull"])
    y = rng.integers(2, size=50)
    x = [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in y]
    data = Dataset(np.array(x, dtype=object), y, ("up", "down"))
    losses: list[float] = []
    config = Config(
        data="texts", method="pgd_at", hyper={"eps": 0.1, "steps": 2}, epochs=2, batch_size=12, lr=0.1,
        model_options={"hidden": 4, "size": 6, "dropout": 0.0}, optimizer="sgd", validation=0.0,
    )  # fmt: skip
    return tensors(
        losses, fit(config, data=Splits(data, data), on_step=lambda s: losses.append(float(s.loss.detach())))
    )


def own_loop() -> dict[str, torch.Tensor]:
    """A loop of the user's own with plain DDP, in which `together` is all that is added."""
    torch.manual_seed(5)
    data = small().train
    x, y = torch.from_numpy(data.x).flatten(1), torch.from_numpy(data.target)
    model = torch.nn.Linear(64, 10)
    criterion = METHODS["logcomp"].make(num_samples=data.rows, num_classes=10)
    several = torch.distributed.is_initialized()
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if several else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(8):
        rows = torch.arange(16 * step, 16 * step + 16)
        mine = rows.chunk(2)[torch.distributed.get_rank()] if several else rows
        index = torch.from_numpy(data.index)[mine]
        loss = criterion(*together(wrapped(x[mine]), y[mine], index))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"weight": model.weight.detach().clone(), "table": next(criterion.tables()).weight.clone()}


def exchanging_loop(method: str = "online_label_smoothing", **hyper) -> dict[str, torch.Tensor]:
    """Plain DDP in which each process evaluates its own slice, and the copies are made equal once an epoch."""
    torch.manual_seed(5)
    data = small().train
    x, y, index = torch.from_numpy(data.x).flatten(1), torch.from_numpy(data.target), torch.from_numpy(data.index)
    model = torch.nn.Linear(64, 10)
    criterion = METHODS[method].make(num_samples=data.rows, num_classes=10, **hyper)
    several = torch.distributed.is_initialized()
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if several else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    exchange = Exchange(criterion)
    for _ in range(2):
        for step in range(8):
            rows = torch.arange(16 * step, 16 * step + 16)
            mine = rows.chunk(2)[torch.distributed.get_rank()] if several else rows
            loss = criterion(wrapped(x[mine]), y[mine], index[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 3:
                exchange()  # as before a checkpoint
        exchange.end_epoch()
    return {"weight": model.weight.detach().clone(), **{k: v.clone() for k, v in criterion.state_dict().items()}}


def sparse_run() -> dict[str, torch.Tensor]:
    """A run whose table keeps only what is not zero."""
    losses, result = train("logcomp", hyper={"table": "sparse"})
    table = next(result.criterion.tables())
    weights = {f"model.{k}": v.clone() for k, v in result.model.state_dict().items()}
    return {"losses": torch.tensor(losses, dtype=torch.float64), "table": table.dense(), **weights}


def exchanging_sparse_loop() -> dict[str, torch.Tensor]:
    """As `exchanging_loop`, and the rows that travel are without zeros."""
    found = exchanging_loop("logcomp", table="sparse", record="lean")
    packed = Packed.from_tensors({name: found.pop(f"terms.logit.0.{name}") for name in PARTS})
    table = torch.zeros(small().train.rows, 10)
    for rows, block in packed.blocks(10):
        table[rows] = torch.from_numpy(block)
    return {**found, "table": table}


def many_labels_loop(kind: str) -> dict[str, torch.Tensor]:
    """As `own_loop`, for samples with a label at each place, or with several labels."""
    torch.manual_seed(5)
    x = torch.randn(32, 6, 2, 3) if kind == "dense" else torch.randn(32, 6)
    y = torch.randint(4, (32, 2, 3)) if kind == "dense" else torch.randint(2, (32, 4))
    model = torch.nn.Conv2d(6, 4, 1) if kind == "dense" else torch.nn.Linear(6, 4)
    sizes = {"num_samples": 32, "num_classes": 4}
    criterion = METHODS["logcomp"].make(**sizes, base=None if kind == "dense" else "bce")
    criterion = criterion + METHODS["mixcomp"].make(base=None if kind == "dense" else "bce", pro=30.0, eta=1.0)
    several = torch.distributed.is_initialized()
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if several else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(8):
        rows = torch.arange(16) + 16 * (step % 2)
        mine = rows.chunk(2)[torch.distributed.get_rank()] if several else rows
        loss = criterion(*together(wrapped(x[mine]), y[mine], mine))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    state = {name: value.clone() for name, value in criterion.state_dict().items()}
    return {"losses": torch.stack(losses), "weight": model.weight.detach().clone(), **state}


LOOPS = {
    "accumulated": lambda: tensors(*train("logcomp", accumulate=2)),
    "texts": train_texts,
    "loop": own_loop,
    "dense": partial(many_labels_loop, "dense"),
    "several-labels": partial(many_labels_loop, "several"),
    "exchanged-ols": exchanging_loop,
    "exchanged-logcomp": partial(exchanging_loop, "logcomp"),
    "sparse": sparse_run,
    "exchanged-sparse": exchanging_sparse_loop,
}


def agree(found: dict[str, torch.Tensor]) -> None:
    """Raises unless all processes hold the same, bit for bit."""
    digest = hashlib.sha256(b"".join(v.contiguous().numpy().tobytes() for v in found.values())).hexdigest()
    digests = [""] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(digests, digest)
    assert set(digests) == {digest}


def train_all(out: Path, methods: Sequence[str]) -> None:
    """Every loop and method, as one of two processes; the first writes what they agree on."""
    warnings.simplefilter("error")
    for name, run in LOOPS.items():
        found = run()
        agree(found)
        if torch.distributed.get_rank() == 0:
            save_file(found, out / f"{name}.safetensors")
    for name in methods:
        found = tensors(*train(name))
        agree(found)
        if torch.distributed.get_rank() == 0:
            save_file(found, out / f"{name}.safetensors")
        if name in INTERRUPTED:
            train(name, out / name, stop=True)
            torch.distributed.barrier()
            if torch.distributed.get_rank() == 0:
                shutil.copytree(out / name, out / f"{name}-begun")
            torch.distributed.barrier()
            resumed = tensors(*train(name, out / name, resume=True))
            if torch.distributed.get_rank() == 0:
                save_file(resumed, out / f"{name}.resumed.safetensors")
    dropped = tensors(*train("logcomp", model_options={"hidden": [16], "dropout": 0.5}))
    agree(dropped)  # masks differ from slice to slice, and yet tables and weights stay equal
