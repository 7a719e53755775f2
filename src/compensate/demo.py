"""The runs behind `compensate demo`: digits with 20 % wrong labels, three methods, and an audit."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from compensate.core.stages import seeded
from compensate.data import noise
from compensate.data.dataset import Dataset
from compensate.data.load import digits
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import write_atomically
from compensate.methods import find
from compensate.models.networks import CNN
from compensate.training.evaluation import Samples
from compensate.training.step import Learner, make_optimizer, rate
from compensate.training.trainer import Trainer
from compensate.training.workers import LOST

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

DEMO_METHODS: dict[str, dict[str, Any]] = {
    "base": {},
    "robust": {},
    "mixcomp": {"eta": 5.0, "pro": 45.0, "warmup": 0.0, "floor": 0.0},
}
"""The methods of the demonstration; `python -m experiments demo-search` found the hyper-parameters of mixcomp on other seeds."""


class Job(NamedTuple):
    """A method, a seed and the hyper-parameters of one run."""

    method: str
    seed: int
    hyper: dict[str, float]


@dataclass(frozen=True)
class Setting:
    """How all runs train. A share `held_out` of the noisy training set may be kept for validation."""

    rate: float = 0.2
    epochs: int = 60
    batch_size: int = 64
    lr: float = 2e-3
    held_out: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run, with its `Compensated.suspects`. Indices are rows of the training set."""

    job: Job
    accuracy: list[float]  # on the test part after each epoch
    validation: list[float]  # on the held-out noisy samples after each epoch; empty without any
    suspects: list[int]
    score: list[float]
    suggested: list[int]
    flagged: list[bool]
    changed: list[bool]  # whether the label of each suspect was made wrong
    true: list[int]  # the class of each suspect before the noise

    @property
    def figures(self) -> dict[str, float]:
        """The figures of the table."""
        from sklearn.metrics import average_precision_score

        changed, flagged = np.array(self.changed), np.array(self.flagged)
        right = np.array(self.suggested) == np.array(self.true)
        hits = flagged & changed
        return {
            "last": self.accuracy[-1],
            "best": max(self.accuracy),
            "average_precision": float(average_precision_score(changed, self.score)),
            "precision": float(hits.sum() / max(flagged.sum(), 1)),
            "recall": float(hits.sum() / changed.sum()),
            "suggested": float(right[hits].mean()) if hits.any() else 0.0,
        }


def noisy_digits(seed: int, rate: float) -> tuple[Dataset, Dataset, noise.Flipped]:
    """The training and the test part of the digits, and the wrong labels of the training part."""
    given, test = digits().split((0.7, 0.3), seed=seed)
    return given, test, noise.symmetric(given.target, 10, rate, seed=seed)


def run_job(job: Job, setting: Setting) -> Outcome:
    """Trains one run; only the criterion differs between methods. The seed fixes split, noise, weights and order."""
    method, seed, hyper = job
    given, test, flipped = noisy_digits(seed, setting.rate)
    samples = Samples.of_arrays(given.x, flipped.labels, num_classes=10)

    random = torch.Generator().manual_seed(seed)
    held, rows = torch.randperm(len(samples), generator=random).tensor_split([int(setting.held_out * len(samples))])
    order = [
        [i.numpy() for i in rows[torch.randperm(len(rows), generator=random)].split(setting.batch_size)]
        for _ in range(setting.epochs)
    ]
    with seeded(seed, torch.device("cpu")):
        model = CNN(10)
        criterion = find(method).make(num_samples=len(samples), num_classes=10, **hyper)
        parts = {"test": Samples.of_arrays(test.x, test.target, num_classes=10)}
        if len(held):
            parts["val"] = samples.subset(held.numpy())
        trainer = Trainer(
            Learner(model, criterion, partial(make_optimizer, "adam", lr=setting.lr)),
            samples,
            epochs=setting.epochs,
            order=order.__getitem__,
            # The learning rate is constant within an epoch.
            rate=lambda step, total: rate(setting.lr, step // len(order[0]), setting.epochs, schedule="cosine"),
            held_out=parts,
        )
        history = trainer.run()

    found = criterion.suspects()
    return Outcome(
        job,
        accuracy=[row["test_accuracy"] for row in history],
        validation=[row["val_accuracy"] for row in history if len(held)],
        suspects=found.index.tolist(), score=found.score.tolist(),
        suggested=found.suggested.tolist(), flagged=found.flagged.tolist(),
        changed=flipped.changed[found.index.numpy()].tolist(),
        true=given.target[found.index.numpy()].tolist(),
    )  # fmt: skip


def lost_job(job: Job, setting: Setting) -> Outcome:
    """Raises for a run whose process was killed repeatedly."""
    raise InputError(f"the run of {job.method} with seed {job.seed} was lost: {LOST}")


def figures_by_method(outcomes: list[Outcome]) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and standard deviation of each figure over the seeds, by method."""
    table = {}
    for method in DEMO_METHODS:
        figures = [o.figures for o in outcomes if o.job.method == method]
        if figures:
            values = {name: [f[name] for f in figures] for name in figures[0]}
            table[method] = {name: (float(np.mean(v)), float(np.std(v))) for name, v in values.items()}
    return table


def audit_digits(path: Path, setting: Setting, *, seed: int = 0) -> Audit:
    """Audits the digits of one run, wrong labels included, and writes the review page to `path`."""
    from compensate.auditing.api import audit

    given, _, flipped = noisy_digits(seed, setting.rate)
    source = replace(given.source, title=f"digits, {setting.rate:.0%} of them mislabeled")
    result = audit(replace(given.relabel(flipped.labels), source=source), encoder="none", seed=seed)
    result.report(path)
    return result


def picture(outcome: Outcome, path: Path, *, rows: int = 4, columns: int = 10) -> Path:
    """Draws the most suspect digits: the given label, the suggested one, and whether the label was really wrong."""
    made = require("matplotlib.figure", "the picture of the demonstration", "plots")
    train_set, _, flipped = noisy_digits(outcome.job.seed, Setting().rate)
    images = train_set.x[outcome.suspects[: rows * columns], 0]
    given = flipped.labels[outcome.suspects]
    figure = made.Figure(figsize=(columns * 1.05, rows * 1.4))
    for place, (axis, image) in enumerate(zip(figure.subplots(rows, columns).flat, images, strict=True)):
        wrong = outcome.changed[place]
        axis.imshow(image, cmap="gray_r")
        axis.set(xticks=[], yticks=[])
        title = f"{given[place]} → {outcome.suggested[place]} {'✓' if wrong else '✗'}"
        axis.set_title(title, fontsize=10, color="#1a7f37" if wrong else "#cf222e")
    figure.suptitle("given → suggested   ✓ the label was wrong   ✗ the label was right", fontsize=11)
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110, format="png")
    write_atomically(path, drawn.getvalue())
    return path
