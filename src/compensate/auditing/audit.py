"""The audit: one training run that finds wrong labels and says how sure it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from compensate.auditing.evidence import best_other, over
from compensate.auditing.kinds import Inputs, Recipe, inputs
from compensate.auditing.page.model import Estimate
from compensate.auditing.planting import Plants, confident_joint, plant
from compensate.auditing.result import Audit
from compensate.auditing.run import Outcome, Phase, Progress, predict, train
from compensate.auditing.scaling import subset
from compensate.auditing.source import KINDS, labelled, read
from compensate.auditing.verdict import Verdict, judge, own_scores
from compensate.data.dataset import UNLABELLED, Data
from compensate.errors import InputError

FEWEST = 20
"""Rows without which there is nothing to learn from."""

__all__ = ["audit"]


def audit(
    data: Any,
    labels: ArrayLike | str | Path | None = None,
    model: torch.nn.Module | Callable[[], torch.nn.Module] | str | None = None,
    *,
    features: ArrayLike | str | Path | None = None,
    method: str | None = None,
    hyper: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Audit:
    r"""Finds the labels that look wrong, by one training run.

    A model is trained by a method that keeps wrong labels from being learned. Each visit of a sample tells how far the
    model contradicts its label,

    .. math:: m_i = u_{i,y_i} - \max_{c \ne y_i} u_{i,c}

    and the mean of :math:`-m_i` over the run is the evidence. A few labels are made wrong on purpose; how their evidence
    differs from that of the others gives the probability that a label is wrong, and the share of wrong labels. A short
    first look at the data decides which wrong labels to plant. Of planted rows, the audit knows their own labels by what
    the model predicts for them.

    Args:
        data: features (N, D) or images (N, C, H, W) as an array; texts, a list; a data frame; a file, folder or name; or a
            data set of `compensate.data`. Of parts, the training part is audited.
        labels: (N,) class names or numbers, or quantities; a file of labels; by default those of the data.
        model: a torch module, a function that makes one, a name in `compensate.models.MODELS`, or the default of the kind.
        features: embeddings (N, D), or an .npy file, to train on in place of the samples themselves.
        method, hyper: a row of `compensate.METHODS` and its hyper-parameters.
        epochs, batch_size, lr: of the training; the first look takes a part of the epochs.
        seed: of everything random.
        progress: called after each epoch with the epochs done, their number, accuracy, and the share of samples
            whose label holds only by compensation.
        options: of the reader: ``label`` and ``text``, the columns of a table, ``task``, ``size`` of images, and so on.

    Rows without a label are predicted: see `Audit.predicted`.

    >>> from compensate.data import digits, noise
    >>> data = digits()
    >>> wrong = noise.symmetric(data.target, 10, 0.2)
    >>> found = audit(data.relabel(wrong.labels), epochs=12)
    >>> rows = found.flagged["index"]
    >>> bool(wrong.changed[rows].mean() > 0.8)
    True

    Reference: Yao and Wu, Compensation Learning, 2021, for the methods; Pleiss et al., Identifying Mislabeled Data using
    the Area Under the Margin Ranking, 2020, for margins over a run.
    """
    if epochs is not None and epochs < 1:
        raise InputError(f"epochs is {epochs}; expected 1 or more, or nothing for as many as suit the data.")
    source = read(data, labels, features, options)
    known = labelled(source)
    if known.regression:
        from compensate.auditing.regression import audit_regression

        return audit_regression(
            source, known, model, epochs=epochs, batch_size=batch_size, lr=lr, seed=seed, progress=progress
        )
    found = inputs(source, model, seed=seed)
    changed: dict[str, Any] = {"method": method, "hyper": hyper, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    if method is not None and hyper is None:
        changed["hyper"] = {}
    recipe = replace(found.recipe, **{name: value for name, value in changed.items() if value is not None})
    given, notes = _audited(known)
    rows = np.flatnonzero(given != UNLABELLED)
    if len(rows) < FEWEST:
        raise InputError(f"{len(rows)} rows have a label that can be checked; an audit needs {FEWEST} or more.")
    classes = known.num_classes
    first = max(2, round(recipe.epochs * recipe.scout))
    plants, trust, scout = _scout(found, given, rows, classes, recipe, first, seed)
    # The first look counts: an audit costs as many epochs as one training run.
    epochs = max(2, recipe.epochs - first)
    sown = plants.sow(given)
    halves = [Phase(epochs // 2, sown), Phase(epochs - epochs // 2, sown)]
    run = train(found, halves, classes, recipe, seed=seed, progress=progress)
    verdict, suggested = _judge(run, scout, plants, trust, given, rows, classes)
    (look,) = scout.traces
    columns = {"margin": "margin", "loss": "loss", "size": "compensation", "agreement": "agreement"}
    evidence = {column: _own(over(run.traces, name), look.mean(name), plants)[rows] for name, column in columns.items()}
    probabilities = run.traces[-1].mean_probabilities
    return Audit(
        kind=KINDS.get(str(source.info.get("kind")), "embedding"),
        title=str(source.info.get("title", "the data")),
        classes=known.classes,
        index=known.index[rows],
        given=given[rows],
        suggested=suggested[rows],
        score=verdict.log_odds,
        p_error=verdict.p_error,
        evidence=evidence,
        noise_rate=Estimate(verdict.rate, verdict.low, verdict.high),
        ids=() if known.ids is None else tuple(str(i) for i in known.ids[rows]),
        probabilities=None if probabilities is None else probabilities[rows],
        unlabelled=_predicted(run, found, known, given),
        curves={"accuracy": run.accuracy, "loss": run.loss, "compensated": run.compensated},
        config=_config(source, found, recipe, seed, plants, run, scout),
        notes=notes,
        data=known if len(rows) == len(known) else known.subset(rows),
        model=run.model,
        vectors=subset(found.vectors, rows),
    )


def _audited(data: Data) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """(N,) the labels to audit; those of a class with a single sample are set aside, for nothing can contradict them."""
    given = data.target.astype(np.int64).copy()
    counts = data.class_counts
    if (counts > 0).sum() < 2:
        names = [data.classes[c] for c in np.flatnonzero(counts)]
        raise InputError(
            f"all labels say {names[0] if names else 'nothing'}: with one class there is nothing to mistake it for. Check "
            "which column holds the labels."
        )
    notes: list[str] = []
    lone = np.flatnonzero(np.isin(given, np.flatnonzero(counts == 1)))
    if len(lone):
        shown = ", ".join(f'row {data.index[i]} ("{data.classes[given[i]][:40]}")' for i in lone[:5])
        more = f" and {len(lone) - 5} more" if len(lone) > 5 else ""
        notes.append(f"The only sample of its class cannot be checked and is left out: {shown}{more}.")
        given[lone] = UNLABELLED
    if data.ids is not None:
        # As objects: an array of texts gives each as much room as the longest.
        ids, where, times = np.unique(
            np.array([str(i) for i in data.ids], dtype=object), return_index=True, return_counts=True
        )
        twice = np.flatnonzero(times > 1)
        if len(twice):
            shown = ", ".join(
                f'"{ids[k][:40]}" ({times[k]} times, first row {data.index[where[k]]})' for k in twice[:5]
            )
            more = f" and {len(twice) - 5} more" if len(twice) > 5 else ""
            notes.append(f"Ids that are not unique: {shown}{more}. Rows are told apart by their index.")
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return given, tuple(notes)


def _scout(
    found: Inputs,
    given: NDArray[np.int64],
    rows: NDArray[np.int64],
    classes: int,
    recipe: Recipe,
    epochs: int,
    seed: int,
) -> tuple[Plants, NDArray[np.float64], Outcome]:
    """A short first run on the labels as they are: which classes are mistaken for which, and where to plant."""
    look = replace(recipe, method=recipe.look, hyper={})
    outcome = train(found, [Phase(epochs, given)], classes, look, seed=seed + 1)
    p = predict(outcome.model, found, rows)
    trust = np.zeros(len(given))
    trust[rows] = p[np.arange(len(rows)), given[rows]] / p.max(1)
    return plant(given, confident_joint(p, given[rows]), trust, seed=seed), trust, outcome


def _judge(
    run: Outcome,
    scout: Outcome,
    plants: Plants,
    trust: NDArray[np.float64],
    given: NDArray[np.int64],
    rows: NDArray[np.int64],
    classes: int,
) -> tuple[Verdict, NDArray[np.int64]]:
    # Margins are worth most over the whole run, before anything is learned by heart; predictions once they are good.
    late, (look,) = run.traces[-1], scout.traces
    suggested = late.suggested(given)
    place = np.full(len(given), -1)
    place[rows] = np.arange(len(rows))
    here = Plants(place[plants.rows], plants.labels)
    score = -over(run.traces, "margin")[rows]
    contradicts = late.contradiction(given)
    other = -look.mean("margin") if contradicts is None else contradicts
    own = own_scores(score, [other[rows]], given[rows], here, trust[rows])
    verdict = judge(score, own, given[rows], suggested[rows], here, trust[rows], classes)
    return verdict, suggested


def _own(run: NDArray[np.float64], look: NDArray[np.float64], plants: Plants) -> NDArray[np.float64]:
    """What the run saw, and of planted rows what the first look saw: there they had their own labels."""
    values = run.copy()
    values[plants.rows] = look[plants.rows]
    return values


def _predicted(run: Outcome, found: Inputs, data: Data, given: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    rows = np.flatnonzero((given == UNLABELLED) & ~data.labelled)
    if not len(rows):
        return {}
    p = predict(run.model, found, rows)
    suggested = best_other(p, np.full(len(rows), -1))
    return {"index": data.index[rows], "suggested": suggested, "probability": p.max(1).astype(np.float64)}


def _config(
    source: Data, found: Inputs, recipe: Recipe, seed: int, plants: Plants, run: Outcome, scout: Outcome
) -> dict[str, Any]:
    chosen = {
        name: source.info.get(name) for name in ("source", "label", "text", "label_given") if source.info.get(name)
    }
    return {
        **chosen,
        "kind": found.kind,
        "method": recipe.method,
        "hyper": dict(recipe.hyper),
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "lr": recipe.lr,
        "seed": seed,
        "planted": len(plants.rows),
        "visits": run.visits + scout.visits,
    }
