"""Errors that a training finds by itself: the suspects of several methods on CIFAR-10, against the audit on the same images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compensate._version import __version__
from compensate.auditing.api import audit
from compensate.data import gather
from compensate.files import make_folder, write_atomically
from compensate.models.networks import Network
from compensate.training.config import Config
from compensate.training.evaluation import BATCH, Samples
from compensate.training.fitting import Result, fit
from experiments.comparing import table_lines
from experiments.leading import interval
from experiments.protocols import PROTOCOLS

NOISE = "random:0.3"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "robust": ("robust", {}),
    "plain training (AUM)": ("base", {}),
    "logcomp": ("logcomp", {}),
    'logcomp, strength="auto"': ("logcomp", {"strength": "auto"}),
    'mixcomp, strength="auto"': ("mixcomp", {"strength": "auto"}),
}
"""Methods with their hyper-parameters. The mean margin of plain training over the epochs is the area under the margin (AUM)."""

AUDITS = ("audit of the pixels", "audit of the features of robust")


def config(method: str, hyper: dict[str, Any], seed: int) -> Config:
    """A run of the study."""
    options = PROTOCOLS["small"]["cifar10"].options
    return Config.of({"data": "cifar10", **options, "noise": NOISE, "method": method, "hyper": hyper, "seed": seed})


def average_precision(result: Result, score: NDArray[np.float64]) -> float:
    """Of the scores of the training samples, for their wrong labels."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(result.prepared.wrong, score))


def suspicion(result: Result) -> NDArray[np.float64]:
    """(N,) the scores of `criterion.suspects()`; samples that it does not judge come last."""
    found, train = result.criterion.suspects(), result.prepared.train
    score = torch.full((train.rows,), -torch.inf, dtype=torch.double)
    score[found.index] = found.score.double()
    return np.maximum(score.numpy()[train.index], float(found.score.min()) - 1)


def features(result: Result) -> NDArray[np.float32]:
    """(N, D) the input of the last layer of the trained model."""
    model, train = result.model.eval(), result.prepared.train
    assert isinstance(model, Network)
    with torch.no_grad():
        parts = [model.features(model.embed(gather(train, rows)[0])) for rows in Samples.of(train).portions(BATCH)]
    return torch.cat(parts).numpy()


def trial(seed: int, runs: Path, data_dir: Path | None) -> dict[str, dict[str, float]]:
    """Average precision and test accuracy of each method, and the average precision of the audits."""
    found = {}
    for name, (method, hyper) in METHODS.items():
        asked = config(method, hyper, seed)
        result = fit(asked, data_dir=data_dir, folder=runs / asked.name, resume=True)
        found[name] = {
            "ap": average_precision(result, suspicion(result)), "accuracy": 100 * result.last["test_accuracy"]
        }  # fmt: skip
        if name == "robust":
            train = result.prepared.train
            views = (np.asarray(train.x, dtype=np.float32).reshape(len(train), -1), features(result))
            for audited, view in zip(AUDITS, views, strict=True):
                found[audited] = {"ap": average_precision(result, audit(view, train.target).p_error)}
    return found


def run(path: Path, seeds: int, runs: Path, data_dir: Path | None, done: Callable[[], None]) -> dict[str, Any]:
    """All seeds, stored with every number; finished runs are read."""
    found = []
    make_folder(path.parent)
    for seed in range(seeds):
        found.append({"seed": seed, **trial(seed, runs, data_dir)})
        stored = {"version": __version__, "data": "cifar10", "noise": NOISE, "runs": found}
        write_atomically(path, (json.dumps(stored, indent=1) + "\n").encode())
        done()
    return stored


def section(path: Path) -> list[str]:
    """The stored trials as parts of a Markdown page."""
    if not path.is_file():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))["runs"]
    rows = [["score", "average precision", "robust minus it", "test accuracy"]]
    own = [100 * one["robust"]["ap"] for one in found]
    for name in (*METHODS, *AUDITS):
        ap = [100 * one[name]["ap"] for one in found]
        accuracy = [one[name]["accuracy"] for one in found if "accuracy" in one[name]]
        less = "" if name == "robust" else interval([a - b for a, b in zip(own, ap, strict=True)])
        rows.append([name, f"{np.mean(ap):.1f}", less, f"{np.mean(accuracy):.1f}" if accuracy else ""])
    said = (
        f"Small CIFAR-10 with 30 % random labels, no augmentation, {len(found)} seeds, defaults, last epoch, percent. `criterion.suspects()` of each "
        "training, and the audit on the same training images, by pixels and by what the network trained with `robust` computes before its last "
        "layer. Samples that a method withholds count as last; these runs are older than the record of withheld samples from strength 1 on, "
        "and than the present rule of strength and class counts."
    )
    return ["## Errors that a training finds by itself", said, table_lines(rows), "`python -m experiments suspects`"]
