"""A pretrained text encoder that is fine-tuned with cross entropy and with the method to try first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data import noise as noises
from compensate.data.dataset import Dataset, Source
from compensate.errors import InputError
from compensate.training.workers import side_by_side
from experiments import grid
from experiments.archive import Archive

ENCODER = "all-MiniLM-L6-v2"
TEXTS, TEST = 600, 800
EPOCHS, LR = 6, 1e-4
"""With cross entropy, most wrong labels are learned by heart."""

COLUMNS = ("sst2 none", "sst2 symmetric:0.2", "agnews none", "agnews human")
METHODS = ("base", "robust")


def texts(name: str, part: str, count: int, seed: int, data_dir: Path) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """Some texts of a data set, with the labels that people gave, and true ones."""
    if name == "sst2":
        path = data_dir / "sst2" / f"{part}.tsv"
        columns: dict[str, Any] = {"sep": "\t", "names": ["text", "gt"], "quoting": 3}
    else:
        path, columns = data_dir / f"noisy-agnews-{part}.csv", {}
    found = next((p for p in (path, path.with_name(path.name + ".xz")) if p.is_file()), None)
    if found is None:
        raise InputError(f"{path.name} is missing in {path.parent}; see --data-dir.")
    frame = pd.read_csv(found, **columns).sample(count, random_state=seed)
    labels = [frame[k].to_numpy(np.int64) for k in ("label" if "label" in frame else "gt", "gt")]
    return frame["text"].tolist(), labels[0], labels[1]


def train_one(column: str, method: str, seed: int, data_dir: Path) -> dict[str, Any] | str:
    """The record of one training."""
    from compensate.auditing.network import find_tunable, prepare_finetuning
    from compensate.training import evaluate
    from compensate.training.fitting import train_and_record

    name, noise = column.split()
    x, given, true = texts(name, "train", TEXTS, seed, data_dir)
    x_test, _, test = texts(name, "test", TEST, 0, data_dir)
    classes = int(true.max()) + 1
    if noise != "human":
        given = noises.parse(noise)(true, classes, seed=seed).labels
    names = tuple(map(str, range(classes)))
    data, other = (
        Dataset(np.array(some, object), labels, names, source=Source(kind="text"))
        for some, labels in ((x, given), (x_test, test))
    )
    encoder = find_tunable(data, ENCODER)
    model, samples, recipe = prepare_finetuning(data, encoder, classes)
    settings = {**recipe, "epochs": EPOCHS, "lr": LR}
    record = train_and_record(samples, given, classes, model=model, method=method, seed=seed, **settings)
    held = prepare_finetuning(other, encoder, classes)[1]
    held.labels[:] = test
    return {
        "id": f"{column} {method} {seed}", "column": column, "method": method, "seed": seed, "settings": {"texts": TEXTS, "epochs": EPOCHS, "lr": LR},
        "wrong_labels": float((given != true).mean()), "train_accuracy": record.history[-1]["train_accuracy"],
        "last": {"test_accuracy": evaluate(record.model, held)["accuracy"]},
    }  # fmt: skip


def train(archive: Archive, data_dir: Path, workers: int | None, seeds: int, done: Callable[[], None]) -> None:
    """Trains the missing runs."""
    jobs = [(column, method, seed, data_dir) for column in COLUMNS for seed in range(seeds) for method in METHODS]
    missing = [job for job in jobs if archive.get(f"{job[0]} {job[1]} {job[2]}") is None]
    for record in side_by_side(train_one, missing, workers, lost=grid.lost_run):
        if isinstance(record, str):
            raise InputError(record)
        archive.add(record)
        done()


def records(path: Path) -> Iterator[tuple[str, bool, str, int, dict[str, Any]]]:
    """The name of the column of each run, whether its labels are noisy, its method and seed, and the record."""
    for record in Archive(path):
        name, noise = record["column"].split()
        yield f"MiniLM fine-tuned on {name}, {noise}", noise != "none", record["method"], record["seed"], record
