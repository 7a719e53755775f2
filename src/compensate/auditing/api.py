"""The audit of labels: data of any kind and size, or given out-of-sample probabilities."""

from __future__ import annotations

import inspect
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from compensate.auditing import learners
from compensate.auditing.chunks import ChunkedDataset, FinishedStages, cut, open_chunks
from compensate.auditing.class_names import without_spellings
from compensate.auditing.content import digest_frame
from compensate.auditing.decisions import Correction, decided_labels
from compensate.auditing.exchange import read_decisions
from compensate.auditing.execution import LOCAL, Cluster, Execution
from compensate.auditing.features import FeatureViews, Progress, make_views, unused_encoder
from compensate.auditing.findings import Findings, Provenance
from compensate.auditing.judge import Judge, compute_features, judge_chunks
from compensate.auditing.labels import labels_of
from compensate.auditing.labels.base import Judging
from compensate.auditing.labels.votes import VOTES_ALONE, Consensus, Votes, find_consensus
from compensate.auditing.learners import FOLDS, TREE_ROWS, assign_folds
from compensate.auditing.noise_model import SMALLEST, after_decisions, judge, normalized, pool, shares
from compensate.auditing.opinions import described, opinion_of, second_opinion
from compensate.auditing.result import FLAGGED, Audit, build_audit, by_chance_note
from compensate.auditing.source import check_options, labeled, read
from compensate.data.dataset import UNLABELED, Dataset, Ints, Source
from compensate.data.labels import encode_labels
from compensate.errors import InputError, check
from compensate.files import is_address, make_folder

if TYPE_CHECKING:
    import torch

__all__ = ["audit"]

MIN_ROWS = 20  # labeled rows that an audit needs
MAX_RARE_CELLS = 50_000_000  # rows times classes above which most classes need as many rows as there are folds
MAX_KEPT = 8_000_000  # rows times classes up to which predictions of chunked data are kept, if memory= is not given
MAX_FEATURES = 1_000_000_000  # bytes of features that learners of chunked data are fitted on, if memory= is not given
FEATURE_SHARE, FOREST_SHARE = 0.1, 0.3  # shares of memory=: for features, which fitting copies, and for forests
ROW_BYTES, FIXED_BYTES = 60, 800_000_000  # memory that an audit needs: for each row; for libraries, trees and a chunk
MAX_LISTED, MAX_CERTAIN = 10_000, 150  # suspects of chunked data that are listed, and certain rows of each class
SMALLEST_PROBABILITY = 1e-6
CONSENSUS = "consensus"  # the column that models learn


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
    describe: Mapping[str, str] | str | Path | None = None,
    opinion: ArrayLike | str | Path | None = None,
    memory: int | str | None = None,
    backend: str = "local",
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Audit:
    r"""Finds the labels that look wrong.

    Every label is judged by models that did not learn from it. The samples are turned into one or more views (embeddings of a
    pretrained encoder, words, the columns of a table, pixels). On each view, linear models with LogComp and with transitions
    between classes, neighbors or naive Bayes, and for tables trees are cross-fitted. They are pooled by their log loss on
    held-out labels, and a noise model computes the probabilities of error. See `compensate.auditing.noise_model`.

    Args:
        data: features (N, D) or images (N, C, H, W) as an array; texts, a list; a data frame; a file, folder or name; or a
            data set of `compensate.data`. Only the training part is audited; `Audit.notes` says which rows are left out.
        labels: (N,) class names or numbers, or quantities; a file of labels; by default those of the data.
        model: a torch module, a function that makes one, or a name in `compensate.models.MODELS`, trained on the samples by
            the engine of `compensate train`. A sample is judged by the predictions before each step that learns from it.
        features: embeddings (N, D), or an .npy file, that replace the samples.
        encoder: for texts and images: "auto" (an installed one), "none", a name, or the folder of a saved model.
        finetune: train the encoder too, with a linear head on the labels, by the same engine, and pool it with the other
            learners.
        crossfit: train the model or the encoder once for each fold; the model is then pooled with the other learners.
        method, hyper: a row of `compensate.METHODS` and its hyper-parameters, for the training.
        epochs, batch_size, lr, precision: of the training. For an encoder, ``lr`` is 2e-5 (texts) or 5e-5 (images) by default, and its
            head has fifty times as much.
        device: for the encoder and the model; a graphics card if there is one.
        decisions: decisions about labels of an earlier audit: ``corrections.csv``, the run's folder, or `Correction`
            records. Decided labels are learned without compensation and never flagged; the decisions also calibrate the
            probabilities of the others.
        describe: a sentence about each class, by its name, or a file of them. Samples are compared with them by the text encoder: an
            opinion that never saw the labels.
        opinion: labels (N,) or probabilities (N, C) by another annotator or model that never saw these labels, or a file of them. A poor
            opinion gets no weight.
        run_folder, resume: the folder of training checkpoints, or of the finished stages of a chunked audit; and whether to resume from it.
        memory: the memory that the process may take, such as ``"2GB"``: Parquet files and .npy files are then read in chunks.
        backend: ``"local"``, or ``"ray"``: chunks are encoded, fitted and judged on a Ray cluster.
        seed: the random seed of folds and learners.
        progress: called with the stage ("encoding", "fitting", "training" or "judging", and the learner), the finished steps and the total.
        options: of the reader: ``label`` and ``text``, the columns of a table, ``task``, ``size`` of images, and so on; and ``merge_alike=True``,
            which merges labels that differ only in case, spacing or Unicode form.

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
    check_options(options, inspect.signature(audit).parameters)
    training = {
        "method": method, "hyper": hyper, "epochs": epochs, "batch_size": batch_size, "lr": lr, "precision": precision,
        "device": device, "seed": seed, "run_folder": run_folder, "resume": resume, "progress": progress,
    }  # fmt: skip
    if finetune and model is not None:
        raise InputError(
            "finetune=True and model= are both given, and each trains a network; choose one, or make two audits."
        )
    trains = finetune or model is not None
    given = [name for name in ("epochs", "batch_size", "lr", "hyper") if training[name] is not None]
    given += ["precision"] * (precision != "no") + ["crossfit"] * crossfit
    if given and not trains:
        raise InputError(
            f'{given[0]} is an option of training, and no model is trained; add model="mlp" or another, or finetune=True for texts '
            "and images (--model mlp or --finetune on the command line)."
        )
    check(epochs is None or epochs >= 1, "1 or more", epochs=epochs)
    check(batch_size is None or batch_size >= 1, "1 or more", batch_size=batch_size)
    check(lr is None or 0 < lr < np.inf, "a positive number", lr=lr)
    if trains:
        from compensate.training.distributed import Hardware

        Hardware(device, precision)
    how = _Settings(encoder, device, seed, progress, model, finetune, crossfit, training, decisions, describe, opinion)
    if memory is None and backend == "local" and not is_address(data) and not isinstance(data, ChunkedDataset):
        source = read(data, labels, features, options)
    else:
        refused = {"model": model, "finetune": finetune or None, "decisions": decisions, "features": features}
        odd = [name for name, value in refused.items() if value is not None]
        if odd:
            raise InputError(f"{odd[0]} is not supported with memory= or backend=; leave out one or the other.")
        check(backend in ("local", "ray"), "local or ray", backend=f'"{backend}"')
        how = replace(how, memory=None if memory is None else bytes_of(memory), chunked=True)
        if run_folder is not None and not resume:
            shutil.rmtree(run_folder, ignore_errors=True)
        source = data if isinstance(data, ChunkedDataset) else open_chunks(data, labels, options)
    for note in source.source.notes:
        warnings.warn(note, stacklevel=2)
    labeled(source)
    kind = labels_of(source)
    for name, value in {"decisions": decisions, "model": model, "finetune": finetune or None}.items():
        if value is not None and name in kind.refused:
            raise InputError(kind.refused[name])
    if (describe is not None or opinion is not None) and (source.parts is not None or source.regression):
        raise InputError("describe and opinion are for labels of one class a row; leave them out.")
    place: Any = nullcontext(LOCAL) if backend == "local" else closing(Cluster())
    with place as run:
        how = replace(how, run=run)
        judging = Judging(partial(_audit_classes, how=how), how.features, Judge, encoder, seed, progress, run)
        return build_audit(source.source, kind.audit(source, judging), type(kind))


@dataclass(frozen=True, eq=False)
class _Settings:
    """Options of an audit: ``training`` is for a network, ``memory`` in bytes for data in chunks."""

    encoder: str | Path
    device: str | None
    seed: int
    progress: Progress | None
    model: Any
    finetune: bool
    crossfit: bool
    training: dict[str, Any]
    decisions: str | Path | Iterable[Correction] | None
    describe: Mapping[str, str] | str | Path | None = None
    opinion: ArrayLike | str | Path | None = None
    memory: int | None = None
    chunked: bool = False
    run: Execution = LOCAL

    def features(self, data: Dataset) -> FeatureViews:
        """The features of data in memory, computed in chunks if the data are to be."""
        data = cut(data) if self.chunked else data
        return compute_features(data, self.encoder, device=self.device, progress=self.progress, run=self.run)[0]


def _audit_classes(data: Dataset, how: _Settings) -> Findings:
    """The audit of one class a row, for data in memory and in chunks."""
    decided = None if how.decisions is None else decided_labels(data, read_decisions(how.decisions))
    present = np.asarray(data.target, np.int64) if decided is None else decided.labels
    given, notes = _labels_to_learn(data.relabel(present))
    rows = np.flatnonzero(given != UNLABELED)
    tunable = None
    if how.model is not None or how.finetune:
        from compensate.auditing.network import find_tunable, judge_by_network

        tunable = find_tunable(data, how.encoder) if how.finetune else None
    chunked = isinstance(data, ChunkedDataset)
    feature_bytes, needed = MAX_FEATURES if chunked else np.inf, FIXED_BYTES + ROW_BYTES * len(data)
    if chunked and how.memory is not None:
        feature_bytes = int(FEATURE_SHARE * how.memory)
        if how.memory < needed:
            raise InputError(
                f"memory is {how.memory / 1e9:.2f} GB; an audit of {len(data):,} rows needs {needed / 1e9:.2f} GB or more. Raise "
                "memory, or audit a part of the rows."
            )
    with ExitStack() as stack:
        stages: Any = None
        if chunked:
            folder = how.training["run_folder"] or stack.enter_context(
                tempfile.TemporaryDirectory(prefix="compensate-")
            )
            stages = FinishedStages(make_folder(Path(folder)))
        features, part = None, np.arange(len(data))
        shared: dict[str, Any] = {"stages": stages, "run": how.run, "progress": how.progress}
        if how.model is None or how.crossfit:
            features, part = compute_features(data, how.encoder, device=how.device, room=feature_bytes, **shared)
            notes += features.notes
        else:
            notes += unused_encoder(how.encoder, "the samples of a model without crossfit")
        times = learners.REPEATS if len(rows) <= learners.MAX_REPEATED else 1
        keys = None if features is None else features.keys
        folds = np.stack([assign_folds(given, keys, seed=how.seed, draw=k).astype(np.int8) for k in range(times)])
        made: dict[str, Any] = {"seed": how.seed, "folds": FOLDS, **({} if features is None else features.about)}
        trained, networks = None, {}
        if how.model is not None or tunable is not None:
            held = folds[0].astype(np.int64) if how.crossfit else None
            trained = judge_by_network(data, given, tunable or how.model, held, **how.training)
            networks["model" if tunable is None else f"{tunable.name}, fine-tuned"] = trained.log_p
            made |= {"folds": FOLDS if how.crossfit else 1} if tunable is None else {"finetuned": tunable.name}
            made |= {"method": how.training["method"], "hyper": dict(how.training["hyper"] or {})}
            made |= {"epochs": trained.epochs, "crossfit": how.crossfit}
        opinions = {}
        if how.opinion is not None:
            opinions["opinion"] = opinion_of(how.opinion, data)
        if how.describe is not None:
            if features is None:
                raise InputError("descriptions of classes need features; leave describe out, or add crossfit=True.")
            every: Any = [features.views]
            if isinstance(data, ChunkedDataset) and len(part) < len(data):
                known = stages.embedded if features.encoder else lambda k: None
                every = (features.of(chunk.read(), known(k)) for k, chunk in enumerate(data.pieces))
            opinions["descriptions"] = described(how.describe, data.classes, features, every, how.device)
        former = given[part]
        if decided is not None:
            former = np.where(decided.rows & (given != UNLABELED), decided.before, given)
        fits = how.memory is None and len(part) == len(data) and len(data) * data.num_classes <= MAX_KEPT
        fitted = Judge.fit(
            features, given[part], folds[:, part].astype(np.int64), data.classes,
            seed=how.seed, trees=_forest_trees(how.memory, len(part), data.num_classes, times), rows=len(data),
            keep=fits or not chunked, trusted=None if decided is None else decided.rows, former=former,
            networks=networks, opinions={n: o[part] for n, o in opinions.items()}, run=how.run, progress=how.progress,
        )  # fmt: skip
        opinion: Any = sum(fitted.opinions[n] * normalized(o) for n, o in opinions.items()) if opinions else None
        learned = np.unique(given[rows])
        log_q: Any = fitted.log_q
        if isinstance(data, ChunkedDataset):
            assert features is not None
            features = replace(features, views=())
            columns = judge_chunks(data, fitted, folds, learned, opinion, flagged=FLAGGED, **shared)
            note = f"Learners were fitted on {len(part):,} of {len(data):,} rows, evenly spaced; every row was judged. "
            searched = "The rows were read in chunks: duplicates and outliers were not searched."
            notes += (note * (len(part) < len(data)) + searched,)
            made["fitted_rows"] = len(part)
        else:
            columns = fitted.judge_rows(log_q, present, data.classes, learned)
        often = given != UNLABELED
        p = expit(columns["score"]) if fitted.noise.by_chance else columns["p_error"]
        share = fitted.noise.estimate(float(p.mean(dtype=np.float64, where=often)))
        made |= {"views": fitted.shares, "by_chance": fitted.noise.by_chance}
        made["agreement"] = float((columns["margin"] > 0).mean(where=often))
        if decided is not None:
            verdict = fitted.noise.verdict(log_q[rows], former[rows])
            verdict = after_decisions(verdict, given[rows], former[rows], decided.rows[rows])
            columns["score"][rows], columns["p_error"][rows] = verdict.log_odds, verdict.p_error
            columns["suggested"][rows], share = verdict.suggested, verdict.share
            single = np.flatnonzero(decided.rows & (present != UNLABELED) & (given == UNLABELED))
            columns["score"][single], columns["p_error"][single] = logit(SMALLEST), expit(logit(SMALLEST))
            fitted = replace(fitted, noise=verdict.model)
            made["decided"] = decided.summary
        labeled_rows = np.flatnonzero(present != UNLABELED)
        missing = np.flatnonzero(present == UNLABELED)
        here: Any = slice(None) if not len(missing) else labeled_rows  # a copy of all rows can take gigabytes
        found: dict[str, Any] = {}
        if not chunked:
            found = {
                "data": data if not len(missing) else data.subset(labeled_rows),
                "ids": () if data.ids is None else tuple(map(str, data.ids[labeled_rows])),
                "probabilities": np.exp(log_q[here]).astype(np.float32),
                "vectors": None if features is None else features.shown[here],
            }
        if len(missing):
            predicted = {name: columns[name][missing] for name in ("suggested", "probability")}
            found["unlabeled"] = {"index": data.index[missing], **predicted}
        if trained is not None:
            found |= {"curves": trained.curves, "model": trained.model}
        findings = Findings(
            classes=data.classes,
            index=data.index[here],
            given=present[here],
            log_odds=columns["score"][here],
            **{name: columns[name][here] for name in ("suggested", "p_error")},
            evidence={name: columns[name][here] for name in ("margin", "loss")},
            noise_rate=share,
            provenance=Provenance(**made),
            notes=notes,
            fitted=None if features is None or trained is not None else replace(fitted, by_fold=(), log_q=None),
            **found,
        )
        if isinstance(data, ChunkedDataset):
            findings = replace(
                findings, listed=_listed_rows(findings, data, labeled_rows, folds, fitted, stages, opinion)
            )
        return findings


def _labels_to_learn(data: Dataset) -> tuple[Ints, tuple[str, ...]]:
    """(N,) the labels to learn from, and notes. Labels that occur once become missing: no other row could confirm them."""
    given = data.target.astype(np.int64).copy()
    counts = data.class_counts
    if (counts > 0).sum() < 2:
        names = [data.classes[c] for c in np.flatnonzero(counts)]
        raise InputError(
            f"all labels are {names[0] if names else 'missing'}; an audit needs at least two classes. Check which column holds "
            "the labels."
        )
    notes: list[str] = []
    lone = np.flatnonzero(np.isin(given, np.flatnonzero(counts == 1)))
    if len(lone):
        shown = _first_five([f'row {data.index[i]} ("{data.classes[given[i]][:40]}")' for i in lone])
        notes.append(
            "A label that occurs once cannot be contradicted by others. Such rows are listed with the likeliest other class, and flagged "
            f"only if that has nearly the same name: {shown}."
        )
        given[lone] = UNLABELED
    if data.ids is not None:
        # An object array: in an array of strings, each takes the memory of the longest.
        texts = np.array([str(i) for i in data.ids], dtype=object)
        ids, where, times = np.unique(texts, return_index=True, return_counts=True)
        twice = np.flatnonzero(times > 1)
        if len(twice):
            some = [f'"{ids[k][:40]}" ({times[k]} times, first row {data.index[where[k]]})' for k in twice]
            notes.append(f"Ids that are not unique: {_first_five(some)}. Rows are told apart by their index.")
    for note in notes:
        warnings.warn(note, stacklevel=3)
    rows = int((given != UNLABELED).sum())
    if rows < MIN_ROWS:
        why = f" {len(lone):,} labels occur once and cannot be checked." if len(lone) else ""
        raise InputError(
            f"{rows} rows have a label that can be checked; an audit needs {MIN_ROWS} or more.{why} Check which column holds the "
            "labels, or give more rows."
        )
    counts = counts[counts > 1]
    usual = int(np.median(counts))
    if rows * len(counts) > MAX_RARE_CELLS and usual < FOLDS:  # takes hours, and learns nothing
        column = f' of "{data.source.label}"' if data.source.label else ""
        raise InputError(
            f"the {rows:,} rows have {len(counts):,} classes{column}, and most classes have {usual} rows or fewer: too few to learn a class "
            f"from, and {rows * len(counts):,} comparisons of rows with classes. Expected {FOLDS} rows or more for most classes. "
            "If the labels are in another column, name it (--label); otherwise merge rare classes, or audit the rows of frequent ones."
        )
    return given, tuple(notes)


def _first_five(texts: list[str]) -> str:
    """The first five texts, and the number of the others."""
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "")


def _listed_rows(
    whole: Findings,
    data: ChunkedDataset,
    rows: Ints,
    folds: NDArray[np.int8],
    judge: Judge,
    stages: FinishedStages,
    opinion: Any,
) -> dict[str, Any]:
    """The fields of an audit of the listed rows, with their samples: the most suspect ones, and the most certain ones of each class."""
    suspects = np.argpartition(-whole.log_odds, min(MAX_LISTED, len(rows) - 1))[:MAX_LISTED]
    certain = [
        of_class[np.argpartition(whole.p_error[of_class], min(MAX_CERTAIN, len(of_class) - 1))[:MAX_CERTAIN]]
        for of_class in (np.flatnonzero(whole.given == c) for c in range(len(whole.classes)))
        if len(of_class)
    ]
    chosen = np.unique(np.concatenate([suspects, *certain]))
    places = rows[chosen]
    samples = data.subset(places)
    made = FeatureViews(judge.makers)
    embedded = None
    if made.encoder is not None:
        embedded = np.concatenate([stages.embedded(k)[here] for k, _, here in data.chunks(places) if len(here)])
    if judge.log_q is None:
        said = None if opinion is None else opinion[places]
        log_q = judge.predict(samples, folds[:, places].astype(np.int64), embedded=embedded, opinion=said)
    else:
        log_q = judge.log_q[places]
    digests = data.source.row_digests
    if digests is not None:
        digests = digests[whole.index[chosen]]
    elif samples.table is not None:
        digests = digest_frame(samples.table, str(data.source.label))
    return {
        **{name: getattr(whole, name)[chosen] for name in ("index", "given", "suggested", "log_odds", "p_error")},
        "evidence": {name: values[chosen] for name, values in whole.evidence.items()},
        "data": samples,
        "probabilities": np.exp(log_q).astype(np.float32),
        "vectors": made.of(samples, embedded)[0].x,
        "row_digests": digests,
        "ids": () if samples.ids is None else tuple(map(str, samples.ids)),
    }


def bytes_of(memory: int | str) -> int:
    """A size in bytes.

    >>> bytes_of("2GB"), bytes_of("500 MB"), bytes_of(10)
    (2000000000, 500000000, 10)
    """
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)i?b?\s*", str(memory).lower())
    if match is None:
        raise InputError(f'memory is "{memory}"; expected a size such as 2GB or 500MB.')
    return int(float(match[1]) * 1000 ** " kmgt".index(match[2] or " "))


def _forest_trees(memory: int | None, rows: int, classes: int, divisions: int = 1) -> int:
    """The number of trees of each forest, limited by memory: the forests of all folds are kept until every chunk is judged.

    >>> _forest_trees(None, 10**6, 5), _forest_trees(2 * 10**9, 10**6, 5), _forest_trees(10**12, 10**6, 5)
    (200, 34, 200)
    """
    most = learners.TREES
    if memory is not None:  # a leaf holds three rows; a node takes 64 bytes, and 8 for each class
        most = min(most, int(FOREST_SHARE * memory / (FOLDS * 2 / 3 * min(rows, TREE_ROWS) * (64 + 8 * classes))))
    return max(1, most // divisions)


def audit_probabilities(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    classes: list[str] | None = None,
    title: str = "the labels",
    data: Dataset | None = None,
    encoder: str | Path = "auto",
    describe: Mapping[str, str] | str | Path | None = None,
    opinion: ArrayLike | str | Path | None = None,
) -> Audit:
    """Finds the labels that look wrong, given out-of-sample probabilities.

    The probabilities take the place of the learners of an audit: they go through the same noise model, and opinions are multiplied in.

    Args:
        probabilities: (N, C), rows that sum to one, each by a model that has not seen the sample.
        labels: (N,) class numbers 0 to C - 1, or names; -1 or empty for missing labels.
        classes: names of the columns, needed if labels are names.
        title: the name of the data.
        data: the samples, for the review page and for descriptions.
        encoder, describe, opinion: as for `audit`.

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
        raise InputError(
            f"row {row} of the probabilities is {p[row][:5]}; expected numbers of at least 0 that sum to 1."
        )
    cells = np.asarray(labels)
    if cells.shape != p.shape[:1]:
        raise InputError(f"there are {len(p)} rows of probabilities, and the labels have shape {cells.shape}.")
    if cells.dtype.kind in "iu":
        if cells.size and not -1 <= cells.min() <= cells.max() < p.shape[1]:
            row = int(np.flatnonzero((cells < -1) | (cells >= p.shape[1]))[0])
            raise InputError(f"label {cells[row]} of row {row} has no column: there are {p.shape[1]}, counted from 0.")
        given, names = cells.astype(np.int64), tuple(classes or map(str, range(p.shape[1])))
    else:
        given, names = encode_labels(cells, classes)
        if len(names) != p.shape[1]:
            raise InputError(f"the labels name {len(names)} classes, and the probabilities have {p.shape[1]} columns.")
    rows = np.flatnonzero(given != UNLABELED)
    if len(rows) < MIN_ROWS:
        raise InputError(f"{len(rows)} rows have a label; an audit needs {MIN_ROWS} or more.")
    q, y = np.log(np.maximum(p[rows], SMALLEST_PROBABILITY)), given[rows]
    # Pooling a single learner tempers overconfident probabilities.
    log_q, views = pool({"probabilities": normalized(q)}, y)
    opinions = {}
    if opinion is not None:
        opinions["opinion"] = opinion_of(opinion, data or Dataset(p.astype(np.float32), given, names))
    if describe is not None:
        if data is None:
            raise InputError(
                "descriptions of classes are compared with the samples; give the data and the probabilities."
            )
        features = make_views(data, encoder)
        opinions["descriptions"] = described(describe, names, features, [features.views])
    for name, said in opinions.items():
        own, _ = pool({name: normalized(said[rows])}, y)
        log_q, views[name] = second_opinion(log_q, own, y)
    verdict = judge(without_spellings(log_q, y, names), y)
    lost = np.flatnonzero(given == UNLABELED)
    findings = Findings(
        data=data,
        classes=names,
        index=rows,
        given=y,
        **{name: getattr(verdict, name) for name in ("suggested", "log_odds", "p_error")},
        evidence=verdict.evidence(y),
        noise_rate=verdict.share,
        probabilities=p[rows].astype(np.float32),
        unlabeled={"index": lost, "suggested": p[lost].argmax(1), "probability": p[lost].max(1)} if len(lost) else {},
        provenance=Provenance(
            views=shares(views), agreement=float((q.argmax(1) == y).mean()), by_chance=verdict.model.by_chance
        ),
    )
    source = Source(title=title) if data is None else replace(data.source, title=title)
    return build_audit(source, findings, kind="embedding" if data is None else "table")


def audit_votes(items: Any, votes: Votes, *, rounds: int = 2, **options: Any) -> tuple[Audit, Consensus]:
    """An `Audit` of the majority's labels, and the consensus of annotators and models.

    Models learn the consensus of the votes. Their out-of-fold predictions improve the consensus, which is then learned again.
    Items without a vote are decided by the models. If the samples predict the consensus no better than by chance, the votes decide alone.

    Args:
        items: samples in any form that `compensate.audit` takes: a data frame, texts, images, embeddings.
        votes: of the annotators.
        rounds, options: the number of times that models are fitted, and options of `compensate.audit`.
    """
    if "memory" in options or "backend" in options:
        raise InputError("memory and backend are not supported with votes; leave them out.")
    found, consensus = None, find_consensus(votes)
    for _ in range(rounds):
        labels = votes.names[consensus.label]
        labels[votes.counts.sum(1) == 0] = None
        if isinstance(items, pd.DataFrame):
            found = audit(items.assign(**{CONSENSUS: labels}), label=CONSENSUS, **options)
        else:
            found = audit(items, labels, **options)
        if found.provenance.by_chance:
            consensus = find_consensus(votes)
            break
        q = np.ones((votes.items, len(votes.classes)))
        order = np.array([votes.classes.index(c) for c in found.classes])
        assert found.probabilities is not None
        q[np.ix_(found.index, order)] = found.probabilities
        if len(found.unlabeled):  # only the probability of their likeliest class is kept; the others share the rest
            rows, p = found.unlabeled["index"], np.asarray(found.unlabeled["probability"], np.float64)
            q[rows] = ((1 - p) / (len(order) - 1))[:, None]
            q[rows, order[found.unlabeled["suggested"]]] = p
        consensus = find_consensus(votes, np.log(np.maximum(q, 1e-12)))
    assert found is not None
    # The majority's labels are the given ones, judged by the consensus.
    numbers = np.array([found.classes.index(c) for c in votes.classes])
    given, rows = votes.majority()[found.index], np.arange(len(found))
    p = consensus.probabilities[found.index]
    others = p.copy()
    others[rows, given] = -1
    provenance, notes = replace(found.provenance, annotators=votes.annotators), found.notes
    assert found.data is not None
    if provenance.by_chance:  # the votes decided alone
        provenance = replace(provenance, views={}, agreement=None, by_chance=False)
        notes = (*(note for note in notes if note != by_chance_note("labels", found.data.source)), VOTES_ALONE)
    return replace(
        found, data=replace(found.data, parts=votes), given=numbers[given],
        suggested=numbers[others.argmax(1)], probabilities=p[:, np.argsort(numbers)].astype(np.float32), provenance=provenance,
        notes=notes, **consensus.judged(found.index, given),
    ), consensus  # fmt: skip
