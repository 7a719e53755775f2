"""The demonstration: wrong labels found in real data, in about a minute.

Scikit-learn's digits get 20 % wrong labels. Plain cross entropy, LogComp and MixComp train on them for as long as it takes
cross entropy to learn the errors by heart; each run keeps a record of its samples, from which the errors are found.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from compensate.core.stages import seeded
from compensate.data import noise
from compensate.data.load import digits
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import write_atomically
from compensate.methods import find
from compensate.models.networks import CNN
from compensate.training.comparison import LOST, side_by_side
from compensate.training.evaluation import Samples
from compensate.training.step import Learner, make_optimizer, rate
from compensate.training.trainer import Trainer

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

DEMO_METHODS: dict[str, dict[str, Any]] = {
    "base": {},
    "logcomp": {"lam": 0.05, "lr": 2.0},
    "mixcomp": {"eta": 5.0, "pro": 45.0, "warmup": 0.0, "floor": 0.0},
}
"""The methods of the demonstration with the hyper-parameters that `search` found."""

GRID: dict[str, dict[str, tuple[Any, ...]]] = {
    "logcomp": {"lam": (0.03, 0.05, 0.1), "lr": (0.5, 1.0, 2.0)},
    "mixcomp": {"eta": (2.0, 5.0, 8.0), "pro": (25.0, 35.0, 45.0), "warmup": (0.0,), "floor": (0.0,)},
}
"""What `search` tries: nine settings each. Cross entropy has none; the optimizer is the same for all."""

SEARCH_SEEDS = (100, 101, 102)
"""Not those of the demonstration, which count from 0."""


class Job(NamedTuple):
    """One run: everything else is the setting, common to all."""

    method: str
    seed: int
    hyper: dict[str, float]


@dataclass(frozen=True)
class Setting:
    """How the demonstration trains. A share `held_out` of the noisy training set may be kept for validation."""

    rate: float = 0.2
    epochs: int = 60
    batch_size: int = 64
    lr: float = 2e-3
    held_out: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What one run gave. Indices are rows of the training set."""

    job: Job
    accuracy: list[float]
    """Test accuracy after each epoch."""
    validation: list[float]
    """Accuracy on the held-out noisy samples after each epoch; empty without any."""
    suspects: list[int]
    score: list[float]
    suggested: list[int]
    flagged: list[bool]
    changed: list[bool]
    """For each suspect, whether its label was made wrong."""
    true: list[int]
    """For each suspect, its class before the noise."""

    @property
    def figures(self) -> dict[str, float]:
        """The figures of the table."""
        from sklearn.metrics import average_precision_score

        changed, flagged = np.array(self.changed), np.array(self.flagged)
        right = np.array(self.suggested) == np.array(self.true)
        return {
            "last": self.accuracy[-1],
            "best": max(self.accuracy),
            "average_precision": float(average_precision_score(changed, self.score)),
            "precision": float((flagged & changed).sum() / max(flagged.sum(), 1)),
            "recall": float((flagged & changed).sum() / changed.sum()),
            "suggested": float(right[flagged & changed].mean()) if (flagged & changed).any() else 0.0,
        }


def run_job(job: Job, setting: Setting) -> Outcome:
    """One run, in which only the criterion differs from plain training. The seed fixes split, noise, weights and order."""
    method, seed, hyper = job
    given, test = digits().split((0.7, 0.3), seed=seed)
    flipped = noise.symmetric(given.target, 10, setting.rate, seed=seed)
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
            # The learning rate falls from epoch to epoch.
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


def run_all(jobs: list[Job], setting: Setting) -> Iterator[Outcome]:
    """Runs side by side in one process per core, each on one thread; yields them as they end."""
    yield from side_by_side(run_job, [(job, setting) for job in jobs], None, lost=_lost)


def _lost(job: Job, setting: Setting) -> Outcome:
    raise InputError(f"the run of {job.method} with seed {job.seed} was lost: {LOST}")


def jobs(seeds: int) -> list[Job]:
    """The runs of the demonstration."""
    return [Job(method, seed, hyper) for seed in range(seeds) for method, hyper in DEMO_METHODS.items()]


def figures_by_method(outcomes: list[Outcome]) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and standard deviation of each figure over the seeds, by method."""
    table = {}
    for method in DEMO_METHODS:
        figures = [o.figures for o in outcomes if o.job.method == method]
        if figures:
            values = {name: [f[name] for f in figures] for name in figures[0]}
            table[method] = {name: (float(np.mean(v)), float(np.std(v))) for name, v in values.items()}
    return table


def search_jobs() -> list[Job]:
    """The trials of the search: every point of the grid with every seed."""
    points = [
        (method, dict(zip(grid, values, strict=True)))
        for method, grid in GRID.items()
        for values in product(*grid.values())
    ]
    return [Job(method, seed, hyper) for method, hyper in points for seed in SEARCH_SEEDS]


def chosen(outcomes: list[Outcome], setting: Setting) -> dict[str, Any]:
    """The trials of a search, and the best setting of each method.

    Settings are judged by the accuracy on held-out *noisy* samples, the mean over the last five epochs and all seeds:
    nothing that a user with noisy data would not have. The seeds are not those of the demonstration.
    """
    scores: dict[str, list[float]] = {}
    for o in outcomes:
        scores.setdefault(json.dumps([o.job.method, o.job.hyper]), []).append(float(np.mean(o.validation[-5:])))
    trials = [
        {"method": method, "hyper": hyper, "validation": round(float(np.mean(scores[key])), 5)}
        for key in sorted(scores)
        for method, hyper in [json.loads(key)]
    ]
    best = {m: max((t for t in trials if t["method"] == m), key=lambda t: t["validation"])["hyper"] for m in GRID}
    return {"setting": asdict(setting), "seeds": SEARCH_SEEDS, "best": best, "trials": trials}


def audit_digits(path: Path, setting: Setting, *, seed: int = 0) -> Audit:
    """Audits the digits of one run, wrong labels included, and writes the page on which a person decides on them."""
    from compensate.auditing.api import audit

    given, _ = digits().split((0.7, 0.3), seed=seed)
    flipped = noise.symmetric(given.target, 10, setting.rate, seed=seed)
    noisy = replace(
        given.relabel(flipped.labels),
        source=replace(given.source, title=f"digits, {setting.rate:.0%} of them mislabeled"),
    )
    found = audit(noisy, encoder="none", seed=seed)
    found.report(path)
    return found


def picture(outcome: Outcome, path: Path, *, rows: int = 4, columns: int = 10) -> Path:
    """Draws the most suspect digits: the given label, the suggested one, and whether the label was really wrong."""
    made = require("matplotlib.figure", "the picture of the demonstration", "plots")
    train_set, _ = digits().split((0.7, 0.3), seed=outcome.job.seed)
    images: NDArray[np.float32] = train_set.x[outcome.suspects[: rows * columns], 0]
    given = noise.symmetric(train_set.target, 10, Setting().rate, seed=outcome.job.seed).labels[outcome.suspects]
    figure = made.Figure(figsize=(columns * 1.05, rows * 1.4))
    axes = figure.subplots(rows, columns)
    for place, (axis, image) in enumerate(zip(axes.flat, images, strict=True)):
        wrong = outcome.changed[place]
        axis.imshow(image, cmap="gray_r")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_title(
            f"{given[place]} → {outcome.suggested[place]} {'✓' if wrong else '✗'}",
            fontsize=10,
            color="#1a7f37" if wrong else "#cf222e",
        )
    figure.suptitle("given → suggested   ✓ the label was wrong   ✗ the label was right", fontsize=11)
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110, format="png")
    write_atomically(path, drawn.getvalue())
    return path
