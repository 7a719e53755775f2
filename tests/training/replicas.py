"""Trains in as many processes as the environment says; the tests run it in two and compare with one process."""

from __future__ import annotations

import hashlib
import os
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
from compensate.errors import InputError
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
    return Splits(train.subset(range(133)), rest.subset(range(40)))


def config(method: str, **changes) -> Config:
    """A short run with a network that has neither batch normalization nor dropout."""
    base = {
        "noise": "pair:0.3", "epochs": 2, "batch_size": 24, "model": "mlp", "optimizer": "sgd", "lr": 0.1,
        "model_options": {"hidden": [16]}, "validation": 0.0, "clean": 0.15 if "clean" in METHODS[method].needs else 0.0,
    }  # fmt: skip
    return Config(**{**base, "method": method, **changes})


def train(method: str, folder: Path | None = None, *, stop: int | None = None, every: int = STOP, **changes):
    """A run and the loss of each of its steps, from where it stands; with `stop` it ends after this many steps."""
    losses: list[float] = []

    def keep(s) -> None:
        losses.append(float(s.loss.detach()))
        if len(losses) == stop:
            raise Stopped

    criterion = None
    if "teacher" in METHODS[method].needs and "order" not in changes:  # with a teacher that it makes up
        data = small().train
        sizes = {"num_samples": data.rows, "num_classes": 10, "class_counts": data.class_counts.tolist()}
        criterion = METHODS[method].make(**sizes)
    torch.manual_seed(0)
    try:
        result = fit(
            config(method, **changes), data=small(), folder=folder, resume=folder is not None, every=every, on_step=keep,
            criterion=criterion,
        )  # fmt: skip
    except Stopped:
        return losses, None
    return losses, result


def tensors(losses: list[float], result) -> dict[str, torch.Tensor]:
    """All that two runs are compared by: losses, metrics, tables, statistics and weights."""
    metrics = [[row[key] for key in sorted(row)] for row in result.history]
    return {
        "losses": torch.tensor(losses, dtype=torch.float64),
        "metrics": torch.tensor(metrics, dtype=torch.float64),
        **{f"criterion.{k}": v.clone() for k, v in result.criterion.state_dict().items()},
        **{f"model.{k}": v.clone() for k, v in result.model.state_dict().items()},
    }


def texts() -> Splits:
    """80 short texts for training and 40 for testing, with other words in each class."""
    rng = np.random.default_rng(0)
    words = np.array(["good", "fine", "nice", "bad", "poor", "dull"])
    y = rng.integers(2, size=120)
    x = [" ".join(rng.choice(words[3:] if label else words[:3], rng.integers(1, 9))) for label in y]
    data = Dataset(np.array(x, dtype=object), y, ("up", "down"))
    return Splits(data.subset(np.arange(80)), data.subset(np.arange(80, 120)))


def train_texts() -> dict[str, torch.Tensor]:
    """Attacked word vectors: the embedding learns, so that its gradient crosses the processes, too."""
    losses: list[float] = []
    config = Config(
        data="texts", method="pgd_at", hyper={"eps": 0.1, "steps": 2}, epochs=2, batch_size=12, lr=0.1,
        model_options={"hidden": 4, "size": 6, "dropout": 0.0}, optimizer="sgd", validation=0.0,
    )  # fmt: skip
    result = fit(config, data=texts(), on_step=lambda s: losses.append(float(s.loss.detach())))
    return tensors(losses, result)


def own_loop(model, criterion, x, y, index, *, epochs: int = 1, exchanged: bool = False) -> dict[str, torch.Tensor]:
    """A loop of the user's own with plain DDP and batches of 16; `together` is all that is added.

    If `exchanged`, each process evaluates its own slice, and the copies are made equal in the middle and at the end of an epoch.
    """
    several = torch.distributed.is_initialized()
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if several else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    exchange, losses = Exchange(criterion) if exchanged else None, []
    for _ in range(epochs):
        for step, rows in enumerate(torch.arange(len(x) // 16 * 16).split(16)):
            mine = rows.chunk(2)[torch.distributed.get_rank()] if several else rows
            given = wrapped(x[mine]), y[mine], index[mine]
            loss = criterion(*(given if exchanged else together(*given)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if exchange is not None and step == 3:
                exchange()  # as before a checkpoint
        (exchange or criterion).end_epoch()
    found = {} if exchanged else {"losses": torch.stack(losses)}
    return {
        **found,
        "weight": model.weight.detach().clone(),
        **{k: v.clone() for k, v in criterion.state_dict().items()},
    }


def digits_loop(method: str, *, exchanged: bool = False, **hyper) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    data = small().train
    x, y, index = torch.from_numpy(data.x).flatten(1), torch.from_numpy(data.target), torch.from_numpy(data.index)
    criterion = METHODS[method].make(num_samples=data.rows, num_classes=10, **hyper)
    return own_loop(torch.nn.Linear(64, 10), criterion, x, y, index, epochs=2, exchanged=exchanged)


def sparse_run() -> dict[str, torch.Tensor]:
    """A run whose table keeps only what is not zero."""
    losses, result = train("logcomp", hyper={"table": "sparse"})
    table = next(result.criterion.tables())
    weights = {f"model.{k}": v.clone() for k, v in result.model.state_dict().items()}
    return {"losses": torch.tensor(losses, dtype=torch.float64), "table": table.dense(), **weights}


def exchanging_sparse_loop() -> dict[str, torch.Tensor]:
    """The rows that travel are without zeros."""
    found = digits_loop("logcomp", exchanged=True, table="sparse", record="lean")
    packed = Packed.from_tensors({name: found.pop(f"terms.logit.0.{name}") for name in PARTS})
    table = torch.zeros(small().train.rows, 10)
    for rows, block in packed.blocks(10):
        table[rows] = torch.from_numpy(block)
    return {**found, "table": table}


def many_labels_loop(kind: str) -> dict[str, torch.Tensor]:
    """Samples with a label at each place, or with several labels."""
    torch.manual_seed(5)
    dense = kind == "dense"
    x = torch.randn(32, 6, 2, 3) if dense else torch.randn(32, 6)
    y = torch.randint(4, (32, 2, 3)) if dense else torch.randint(2, (32, 4))
    model = torch.nn.Conv2d(6, 4, 1) if dense else torch.nn.Linear(6, 4)
    base = None if dense else "bce"
    criterion = METHODS["logcomp"].make(num_samples=32, num_classes=4, base=base)
    criterion = criterion + METHODS["mixcomp"].make(base=base, pro=30.0, eta=1.0)
    return own_loop(model, criterion, x, y, torch.arange(32), epochs=4)


LOOPS = {
    "accumulated": lambda: tensors(*train("logcomp", accumulate=2)),
    "texts": train_texts,
    "loop": partial(digits_loop, "logcomp"),
    "dense": partial(many_labels_loop, "dense"),
    "several-labels": partial(many_labels_loop, "several"),
    "exchanged-ols": partial(digits_loop, "online_label_smoothing", exchanged=True),
    "exchanged-logcomp": partial(digits_loop, "logcomp", exchanged=True),
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
    main = int(os.environ["RANK"]) == 0
    for name, run in {**LOOPS, **{name: lambda name=name: tensors(*train(name)) for name in methods}}.items():
        found = run()
        agree(found)
        if main:
            save_file(found, out / f"{name}.safetensors")
        if name in INTERRUPTED:
            train(name, out / name, stop=STOP + 1)
            torch.distributed.barrier()
            if main:
                shutil.copytree(out / name, out / f"{name}-begun")
            torch.distributed.barrier()
            resumed = tensors(*train(name, out / name))
            if main:
                save_file(resumed, out / f"{name}.resumed.safetensors")
    dropped = tensors(*train("logcomp", model_options={"hidden": [16], "dropout": 0.5}))
    agree(dropped)  # masks differ from slice to slice, and yet tables and weights stay equal


def train_part(method: str, folder: Path, *, stop: int | None = None, **changes):
    """As `train`, with rows that are cut among processes."""
    return train(method, folder, stop=stop, every=STOP // 2, order="ranges", **changes)[1]


def train_parts(out: Path, methods: Sequence[str]) -> None:
    """All methods that can be cut, and what is said of the others."""
    for name in methods:
        try:
            result = train_part(name, out / name, **taught(name, out))
        except InputError as error:
            (out / f"{name}.refused.{torch.distributed.get_rank()}").write_text(str(error))
            continue
        # Each process holds the rows of its own samples alone, and all processes together hold those of all.
        held = [len(table.dense()) for table in result.criterion.tables()]
        held += [len(result.criterion.record.visits)] if result.criterion.record is not None else []
        size, rows = torch.distributed.get_world_size(), result.prepared.train.rows
        for mine in held:
            total = torch.tensor(mine)
            torch.distributed.all_reduce(total)
            assert total == rows
            assert mine < rows * 2 / (size + 1)


def taught(method: str, out: Path) -> dict[str, str]:
    """The teacher of a method that asks for one."""
    return {"teacher": str(out / "teacher.npy")} if "teacher" in METHODS[method].needs else {}


def train_some_steps(folder: Path, runs: dict[str, tuple[str, dict]], stop: int | None) -> None:
    """Some steps of several runs, from where they stand."""
    for name, (method, changes) in runs.items():
        train_part(method, folder / name, stop=stop, **changes)
