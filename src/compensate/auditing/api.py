"""An audit without training, for people who have out-of-sample probabilities already."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, logsumexp

from compensate.auditing.chunks import PiecedSource, open_pieces
from compensate.auditing.class_names import without_spellings
from compensate.auditing.decisions import Correction, decided_labels
from compensate.auditing.features import FeatureViews, make_views, unused_encoder
from compensate.auditing.findings import Findings, Provenance
from compensate.auditing.judge import Scorer
from compensate.auditing.labels import labels_of
from compensate.auditing.labels.base import Judging
from compensate.auditing.learners import (
    FOLDS,
    Steps,
    StoredLearner,
    assign_folds,
    judge_divisions,
    num_divisions,
    steps_of,
)
from compensate.auditing.noise_model import (
    NOTE,
    SMALLEST,
    Verdict,
    after_decisions,
    judge,
    judge_lone,
    pool,
    shares,
)
from compensate.auditing.result import Audit, build_audit
from compensate.auditing.source import labeled, read
from compensate.data.dataset import UNLABELED, Dataset, Floats, Ints, Source
from compensate.data.labels import encode_labels
from compensate.errors import InputError
from compensate.files import is_address

if TYPE_CHECKING:
    import torch

__all__ = [
    "audit",
]

SMALLEST_PROBABILITY = 1e-6


def audit_probabilities(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    classes: list[str] | None = None,
    title: str = "the labels",
    data: Dataset | None = None,
) -> Audit:
    """Finds the labels that look wrong, given what a model says of samples it was not trained on.

    The probabilities go through the same noise model as those of an audit's own learners.

    Args:
        probabilities: (N, C), rows that sum to one, each by a model that has not seen the sample.
        labels: (N,) class numbers 0 to C - 1, or names; -1 or empty where there is none.
        classes: names of the columns, needed if labels are names.
        title: what to call it.
        data: the samples, for the review page.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet([0.1, 0.1, 0.1], size=500)
    >>> y = np.array([rng.choice(3, p=row) for row in p])
    >>> y[:25] = (p[:25].argmax(1) + 1) % 3
    >>> found = audit_probabilities(p, y)
    >>> bool(np.mean(found.flagged["index"] < 25) > 0.4)
    True
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or p.shape[1] < 2:
        raise InputError(
            f"the probabilities have shape {p.shape}; expected (N, C), a row a sample and a column a class."
        )
    if not np.isfinite(p).all() or p.min() < -1e-6 or np.abs(p.sum(1) - 1).max() > 1e-3:
        sums = np.where(np.isfinite(p).all(1), np.abs(p.sum(1) - 1) + np.maximum(-p.min(1), 0), np.inf)
        row = int(sums.argmax())
        raise InputError(f"row {row} of the probabilities is {p[row][:5]}; each must be at least 0 and sum to 1.")
    given, names = _labels(np.asarray(labels), p.shape, classes)
    rows = np.flatnonzero(given != UNLABELED)
    if len(rows) < 20:
        raise InputError(f"{len(rows)} rows have a label; an audit needs 20 or more.")
    q, y = np.log(np.maximum(p[rows], SMALLEST_PROBABILITY)), given[rows]
    # Probabilities that are too sure are tempered as those of a single learner are.
    log_q, _ = pool({"probabilities": q - logsumexp(q, axis=1, keepdims=True)}, y)
    verdict = judge(without_spellings(log_q, y, names), y)
    lost = np.flatnonzero(given == UNLABELED)
    unlabeled: dict[str, NDArray[Any]] = {}
    if len(lost):
        unlabeled = {"index": lost, "suggested": p[lost].argmax(1), "probability": p[lost].max(1)}
    findings = Findings(
        classes=names,
        index=rows,
        given=y,
        suggested=verdict.suggested,
        log_odds=verdict.log_odds,
        p_error=verdict.p_error,
        evidence=verdict.evidence(y),
        noise_rate=verdict.share,
        probabilities=p[rows].astype(np.float32),
        unlabeled=unlabeled,
        provenance=Provenance(
            views={"probabilities": 1.0}, agreement=float((q.argmax(1) == y).mean()), by_chance=verdict.by_chance
        ),
        data=data,
    )
    source = Source(title=title) if data is None else replace(data.source, title=title)
    return build_audit(source, findings, kind="embedding" if data is None else "table")


def _labels(labels: NDArray[Any], shape: tuple[int, ...], classes: list[str] | None) -> tuple[Ints, tuple[str, ...]]:
    if labels.shape != (shape[0],):
        raise InputError(f"there are {shape[0]} rows of probabilities, and the labels have shape {labels.shape}.")
    if labels.dtype.kind in "iu":
        if labels.size and not -1 <= labels.min() <= labels.max() < shape[1]:
            row = int(np.flatnonzero((labels < -1) | (labels >= shape[1]))[0])
            raise InputError(f"label {labels[row]} of row {row} has no column: there are {shape[1]}, counted from 0.")
        names = tuple(classes) if classes else tuple(str(c) for c in range(shape[1]))
        return labels.astype(np.int64), names
    target, names = encode_labels(labels, classes)
    if len(names) != shape[1]:
        raise InputError(f"the labels name {len(names)} classes, and the probabilities have {shape[1]} columns.")
    return target, names


Progress = Callable[[str, int, int], None]
"""Called with the stage ("encoding", "fitting", "training" or "judging", then perhaps the learner that is at work), the steps that are done and
the number of all."""

FEWEST = 20
"""Rows without which there is nothing to learn from."""

MOST_CELLS = 50_000_000
"""Rows times classes up to which classes of a row or two are audited: each row is compared with each class."""


def audit(
    data: Any,
    labels: ArrayLike | str | Path | None = None,
    model: torch.nn.Module | Callable[[], torch.nn.Module] | str | None = None,
    *,
    features: ArrayLike | str | Path | None = None,
    encoder: str | Path = "auto",
    finetune: bool = False,
    crossfit: bool = False,
    method: str = "logcomp",
    hyper: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    device: str | None = None,
    precision: str = "no",
    run_folder: str | Path | None = None,
    resume: bool = False,
    decisions: str | Path | Iterable[Correction] | None = None,
    memory: int | str | None = None,
    backend: str = "local",
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Audit:
    r"""Finds the labels that look wrong.

    Every label is judged by models that did not learn from it. The samples are brought to one or more views (embeddings of a
    pretrained encoder, words, the columns of a table, pixels); on each view linear models with LogComp and with transitions
    between classes, neighbors or naive Bayes, and for tables trees are cross-fitted; they are pooled by their log loss on
    held-out labels; and a noise model turns what they say into probabilities. See `compensate.auditing.noise_model`.

    Args:
        data: features (N, D) or images (N, C, H, W) as an array; texts, a list; a data frame; a file, folder or name; or a
            data set of `compensate.data`. Of parts, the training part is audited; `Audit.notes` says which rows are left out.
        labels: (N,) class names or numbers, or quantities; a file of labels; by default those of the data.
        model: a torch module, a function that makes one, or a name in `compensate.models.MODELS`, trained on the samples by
            the engine of `compensate train`. What it said of each sample before it learned from it is the evidence.
        features: embeddings (N, D), or an .npy file, in place of the samples themselves.
        encoder: for texts and images: "auto" (what is installed), "none", a name, or the folder of a saved model.
        finetune: train the encoder too, with a linear head on the labels, by the same engine, and pool it with the other
            learners.
        crossfit: train the model or the encoder once for each fold; the model is then pooled with the other learners.
        method, hyper: a row of `compensate.METHODS` and its hyper-parameters, for the training.
        epochs, batch_size, lr, precision: of the training. Of an encoder, ``lr`` is 2e-5 for texts and 5e-5 for images, and its
            head has fifty times as much.
        device: for the encoder and the model; a graphics card if there is one.
        decisions: what people have decided about labels of an earlier audit: ``corrections.csv``, the run's folder, or `Correction`
            records. Those labels are taken as decided, learned from without compensation, and never flagged; what was decided also
            calibrates the probabilities of the others.
        run_folder, resume: where the training keeps checkpoints, or an audit in pieces its finished stages, and whether to go on from them.
        memory: what the process may take, such as ``"2GB"``: Parquet files and .npy files are then read in pieces; see
            `compensate.auditing.judge`.
        backend: ``"local"``, or ``"ray"``: the pieces are encoded, fitted and judged on a Ray cluster.
        seed: of folds and everything random.
        progress: told about the stages.
        options: of the reader: ``label`` and ``text``, the columns of a table, ``task``, ``size`` of images, and so on; and ``merge_alike=True``,
            which takes labels that differ only in case, spacing or Unicode form for one class.

    Rows without a label are predicted: see `Audit.predicted`.

    >>> from compensate.data import digits, noise
    >>> data = digits()
    >>> wrong = noise.symmetric(data.target, 10, 0.2)
    >>> found = audit(data.relabel(wrong.labels), encoder="none")
    >>> rows = found.flagged["index"]
    >>> bool(wrong.changed[rows].mean() > 0.9)
    True

    Reference: Yao and Wu, Compensation Learning, 2021, for LogComp; Northcutt, Jiang and Chuang, Confident Learning, 2021, for
    out-of-fold evidence.
    """
    training: dict[str, Any] = {
        "method": method, "hyper": hyper, "epochs": epochs, "batch_size": batch_size, "lr": lr, "precision": precision,
    }  # fmt: skip
    if finetune and model is not None:
        raise InputError(
            "finetune trains the encoder, and a model of your own is given too; choose one. Both can be had one after the other: "
            "two audits."
        )
    if model is None and not finetune:
        given = [name for name in ("epochs", "batch_size", "lr", "hyper") if training[name] is not None]
        given += ["precision"] if precision != "no" else []
        if given or crossfit:
            name = given[0] if given else "crossfit"
            raise InputError(
                f'{name} is for the training of a model, and none is given; add model="mlp" or another, or finetune=True for texts and '
                "images (--model mlp or --finetune on the command line)."
            )
    _check_training(**training, device=device, deep=model is not None or finetune)
    if memory is not None or backend != "local" or is_address(data) or isinstance(data, PiecedSource):
        given = [
            n
            for n, v in {"model": model, "finetune": finetune, "decisions": decisions, "features": features}.items()
            if v
        ]
        return _in_pieces(
            data, labels, options, given, memory, backend,
            encoder=encoder, device=device, seed=seed, folder=run_folder, resume=resume, progress=progress,
        )  # fmt: skip
    source = read(data, labels, features, options)
    for note in source.source.notes:
        warnings.warn(note, stacklevel=2)
    kind = labels_of(source)
    for name, value in {"decisions": decisions, "model": model, "finetune": finetune or None}.items():
        if value is not None and name in kind.refused:
            raise InputError(kind.refused[name])
    training |= {"device": device, "seed": seed, "run_folder": run_folder, "resume": resume, "progress": progress}

    def judge_classes(samples: Dataset) -> Findings:
        return _judge_classes(
            samples,
            model,
            finetune,
            crossfit,
            decisions,
            encoder,
            training,
            device=device,
            seed=seed,
            progress=progress,
        )

    judging = Judging(judge_classes, encoder, device, seed, progress)
    return build_audit(source.source, kind.audit(source, judging), type(kind))


def _judge_classes(
    data: Dataset,
    model: Any,
    finetune: bool,
    crossfit: bool,
    decisions: str | Path | Iterable[Correction] | None,
    encoder: str | Path,
    training: dict[str, Any],
    *,
    device: str | None,
    seed: int,
    progress: Progress | None,
) -> Findings:
    """Judges one class for each sample."""
    known = labeled(data)
    decided = None if decisions is None else decided_labels(known, decisions)
    present = known.target.astype(np.int64) if decided is None else decided.labels
    given_labels, notes = audited_labels(known.relabel(present))
    trusted = None if decided is None else decided.rows
    rows = np.flatnonzero(given_labels != UNLABELED)
    if len(rows) < FEWEST:
        alone = int(known.labeled.sum()) - len(rows)
        why = f" {alone:,} labels occur once, and nothing can contradict them." if alone else ""
        raise InputError(
            f"{len(rows)} rows have a label that can be checked; an audit needs {FEWEST} or more.{why} Check which column holds the "
            "labels, or give more rows."
        )
    _check_classes(given_labels[rows], known.source.label)
    tunable = None
    if finetune:
        from compensate.auditing.network import find_tunable

        tunable = find_tunable(known, encoder)
    if model is None or crossfit:
        views = make_views(known, encoder, device=device, progress=progress)
        notes = (*notes, *views.notes)
    else:
        views = None
        notes = (*notes, *unused_encoder(encoder, "the samples of a model without crossfit"))
    keys = None if views is None else views.keys
    divisions = [assign_folds(given_labels, keys, seed=seed, draw=k) for k in range(num_divisions(len(rows)))]
    log_p, transition, fitted = _judged(views, given_labels, divisions, known.num_classes, trusted, seed, progress)
    config: dict[str, Any] = {"seed": seed, "folds": FOLDS, **({} if views is None else views.about)}
    trained = None
    if model is not None or tunable is not None:
        from compensate.auditing.network import judge_by_finetuning, judge_by_model

        parts = divisions[0] if crossfit else None
        if tunable is not None:
            trained = judge_by_finetuning(known, given_labels, tunable, parts, **training)
            log_p[f"{tunable.name}, fine-tuned"] = trained.log_p
            config["finetuned"] = tunable.name
        else:
            trained = judge_by_model(known, given_labels, model, parts, **training)
            log_p["model"] = trained.log_p
            config["folds"] = FOLDS if crossfit else 1
        config |= {
            "method": training["method"],
            "hyper": dict(training["hyper"] or {}),
            "epochs": trained.epochs,
            "crossfit": crossfit,
        }
    if progress is not None:
        progress("judging", 0, 1)
    log_q, weights = pool(log_p, given_labels)
    log_q = without_spellings(log_q, given_labels, known.classes)
    config["views"] = shares(weights)
    if decided is None:
        verdict = judge(log_q[rows], given_labels[rows], transition)
    else:
        before = np.where(decided.rows, decided.before, given_labels)[rows]
        verdict = judge(log_q[rows], before, transition)
        verdict = after_decisions(verdict, given_labels[rows], before, decided.rows[rows])
        config["decided"] = decided.described(known.index)
    scorer = None if views is None or trained is not None else _scorer(views, fitted, weights, verdict)
    unlabeled = _predicted(known, given_labels, log_q)
    lone = np.flatnonzero((present != UNLABELED) & (given_labels == UNLABELED))
    config |= {
        "agreement": float((verdict.log_q.argmax(1) == given_labels[rows]).mean()),
        "by_chance": verdict.by_chance,
    }
    if len(lone):
        verdict = _with_lone(verdict, present, known.classes, rows, lone, log_q, trusted)
        rows = np.sort(np.concatenate([rows, lone]))
    return _result(known, rows, present, verdict, config, notes, views, trained, scorer, unlabeled)


def _in_pieces(
    data: Any,
    labels: Any,
    options: Mapping[str, Any],
    given: list[str],
    memory: int | str | None,
    backend: str,
    *,
    folder: str | Path | None,
    resume: bool,
    **how: Any,
) -> Audit:
    """The audit of data that is larger than memory, or on a cluster: see `compensate.auditing.judge`."""
    from compensate.auditing.judge import audit_pieces, bytes_of

    if given:
        raise InputError(
            f"{given[0]} cannot be had where data are read in pieces; leave it out, or leave out memory and backend."
        )
    if backend not in ("local", "ray"):
        raise InputError(f'backend is "{backend}"; expected local or ray.')
    room = None if memory is None else bytes_of(memory)
    if folder is not None and not resume:
        shutil.rmtree(folder, ignore_errors=True)
    source = data if isinstance(data, PiecedSource) else open_pieces(data, labels, options)
    if backend == "ray":
        from compensate.auditing.ray import cluster

        with cluster() as run:
            return audit_pieces(source, memory=room, run=run, folder=folder, **how)
    return audit_pieces(source, memory=room, folder=folder, **how)


def _scorer(
    views: FeatureViews, fitted: list[dict[str, StoredLearner]], weights: Mapping[str, float], verdict: Verdict
) -> Scorer:
    """What judges new samples as these were judged."""
    by_view = tuple(
        {name: weights[f"{view.name}: {name}"] for name in learners}
        for view, learners in zip(views.views, fitted, strict=True)
    )
    return Scorer(views.makers, tuple(fitted), by_view, verdict.model, verdict.by_chance)


def _check_training(
    *,
    epochs: int | None,
    batch_size: int | None,
    lr: float | None,
    precision: str,
    device: str | None,
    deep: bool,
    **_: Any,
) -> None:
    """Refuses what no training can have, before hours of encoding and not after."""
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; expected 1 or more.")
    if lr is not None and not 0 < lr < np.inf:
        raise InputError(f"lr is {lr}; expected a positive number.")
    if deep:
        from compensate.training.hardware import Hardware, found_device

        Hardware(found_device(device), precision)


def _check_classes(given: Ints, label: Any) -> None:
    """Refuses classes that are as many as an identifier has: hours of work, from which no class could be learned."""
    counts = np.unique(given, return_counts=True)[1]
    usual = int(np.median(counts))
    if len(given) * len(counts) > MOST_CELLS and usual < FOLDS:
        column = f' of "{label}"' if label else ""
        raise InputError(
            f"the {len(given):,} rows have {len(counts):,} classes{column}, and most classes have {usual} rows or fewer: too few to learn a class "
            f"from, and {len(given) * len(counts):,} comparisons of rows with classes. Expected {FOLDS} rows or more for most of so many classes. "
            "If the labels are in another column, name it (--label); otherwise merge rare classes, or audit the rows of frequent ones."
        )


def _judged(
    views: FeatureViews | None,
    labels: Ints,
    divisions: list[Ints],
    classes: int,
    trusted: NDArray[np.bool_] | None,
    seed: int,
    progress: Progress | None,
) -> tuple[dict[str, Any], Floats | None, list[dict[str, StoredLearner]]]:
    """What the learners of all views say, out of fold, the mean of their transitions, and for each view what judges new rows."""
    if views is None:
        return {}, None, []
    log_p: dict[str, Any] = {}
    models = []
    transitions = []
    steps = Steps(progress, sum(len(divisions) * steps_of(view, FOLDS) for view in views.views))
    for view in views.views:
        found = judge_divisions(view, labels, divisions, FOLDS, classes, trusted=trusted, seed=seed, steps=steps)
        models.append(found.models)
        log_p |= {f"{view.name}: {name}": values for name, values in found.log_p.items()}
        transitions.append(found.transition)
    return log_p, np.mean(transitions, axis=0), models


def _result(
    data: Dataset,
    rows: Ints,
    given: Ints,
    verdict: Verdict,
    config: dict[str, Any],
    notes: tuple[str, ...],
    views: FeatureViews | None,
    trained: Any,
    scorer: Scorer | None,
    unlabeled: dict[str, NDArray[Any]],
) -> Findings:
    whole, shown = len(rows) == len(data), None if views is None else views.shown
    return Findings(
        index=data.index[rows],
        ids=() if data.ids is None else tuple(str(i) for i in data.ids[rows]),
        provenance=Provenance(**config),
        notes=notes,
        data=data if whole else data.subset(rows),
        vectors=shown if whole or shown is None else shown[rows],
        classes=data.classes,
        given=given[rows],
        suggested=verdict.suggested,
        log_odds=verdict.log_odds,
        p_error=verdict.p_error,
        evidence=verdict.evidence(given[rows]),
        noise_rate=verdict.share,
        probabilities=np.exp(verdict.log_q).astype(np.float32),
        unlabeled=unlabeled,
        curves={} if trained is None else trained.curves,
        model=None if trained is None else trained.model,
        fitted=scorer,
    )


def _with_lone(
    verdict: Verdict,
    labels: Ints,
    classes: tuple[str, ...],
    rows: Ints,
    lone: Ints,
    log_q: Floats,
    trusted: NDArray[np.bool_] | None,
) -> Verdict:
    """The verdict with that on labels that occur once, in the order of the data; the estimated share stays that of the others."""
    odds, suggested = judge_lone(log_q[lone], labels[lone], classes, np.unique(labels[rows]), verdict.model.sharpness)
    if trusted is not None:
        odds[trusted[lone]] = logit(SMALLEST)
    more: dict[str, Any] = {"p_error": expit(odds), "log_odds": odds, "suggested": suggested, "log_q": log_q[lone]}
    order = np.argsort(np.concatenate([rows, lone]))
    more = {name: np.concatenate([getattr(verdict, name), values])[order] for name, values in more.items()}
    return replace(verdict, **more)


def _predicted(data: Dataset, given: Ints, log_q: Floats) -> dict[str, NDArray[Any]]:
    rows = np.flatnonzero((given == UNLABELED) & ~data.labeled)
    if not len(rows):
        return {}
    p = np.exp(log_q[rows])
    return {"index": data.index[rows], "suggested": p.argmax(1), "probability": p.max(1)}


def audited_labels(data: Dataset) -> tuple[Ints, tuple[str, ...]]:
    """(N,) the labels to audit; those of a class with a single sample are set aside: see `compensate.auditing.noise_model`."""
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
        notes.append(NOTE.format(f"{shown}{more}"))
        given[lone] = UNLABELED
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
