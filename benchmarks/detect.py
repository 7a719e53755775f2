"""Detection of wrong labels: the audit compared with cleanlab, the plain loss, the margin of a training, and scikit-learn.

    python -m benchmarks.detect --data-dir DATA            # all sets and three seeds; hours on one core, goes on where it was
    python -m benchmarks.detect --sets agnews,cifar10h     # some of them
    python -m benchmarks.detect --show                     # the table of the stored results, and the bars
    python -m benchmarks.detect --choose --seeds 100       # constants chosen on all sets but one, in turn
    python -m benchmarks.detect --cost                     # seconds relative to five fits of scikit-learn's logistic regression

Data sets that are not part of scikit-learn are read from DATA: noisy-agnews-train.csv, cifar10h-counts.npy, CIFAR-10, SST-2, IMDB.

- **compensate**: `compensate.audit` with its defaults, on the data as a user has them (tables with an id, a date and a column of 40
  values added; texts as texts; images as images).
- **cleanlab**: its usual ranking and flags on *the audit's own* out-of-fold probabilities; the difference is due to the noise model.
- **loss**: the plain log loss of the same probabilities.
- **margin**: the mean margin over a training of a small network on the same features (area under the margin).
- **single**: the best single scikit-learn model, cross-fitted: logistic regression (its strength by held-out log loss), and for tables (the
  clean numeric columns) random forest, extra trees and gradient boosting. The best is picked *knowing the truth*, so it is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import experiments.data  # noqa: F401  registers cifar10, sst2 and imdb
from compensate import __version__
from compensate.auditing import noise_model
from compensate.auditing.api import audit
from compensate.auditing.features import make_views
from compensate.auditing.learners import FOLDS, MAX_REPEATED, REPEATS, View, assign_folds, judge_view
from compensate.auditing.result import FLAGGED, WORKLOADS, Audit
from compensate.data import Dataset, from_frame, load, noise
from compensate.files import write_atomically

RESULTS = Path(__file__).parent / "results" / "detect.json"
COST = Path(__file__).parent / "results" / "detect-cost.json"
CHOICES = Path(__file__).parent / "results" / "detect-choices.json"
LARGE, SMALL, RARE = 10_000, 5_000, 4_000

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A data set with its errors. ``errors`` is human, none, or kind:rate; ``describe`` is a key of `DESCRIPTIONS`."""

    name: str
    errors: str
    encoder: str = "auto"
    describe: str = ""

    @property
    def key(self) -> str:
        return (
            f"{self.name} {self.errors}"
            + (" words" if self.encoder == "none" else "")
            + f" {self.describe}" * bool(self.describe)
        )

    @property
    def source(self) -> str:
        """The data set, without the class that is set against the rest (``:``) or thinned (``@``)."""
        return self.name.split(":")[0].split("@")[0]


CASES = [
    Case("agnews", "human"),
    Case("cifar10h", "human"),
    *(Case("sst2", e) for e in ("symmetric:0.1", "symmetric:0.2", "oneway:0.1", "instance:0.1", "none")),
    *(Case("sst2", e, "none") for e in ("symmetric:0.1", "symmetric:0.2")),
    *(Case("imdb", e) for e in ("symmetric:0.1", "none")),
    *(Case("cifar10", e) for e in ("symmetric:0.2", "pair:0.2", "instance:0.1", "none")),
    *(Case("digits", e) for e in ("symmetric:0.2", "pair:0.2", "none")),
    *(Case(name, e) for name in ("cancer-table", "wine-table", "digits-table") for e in ("symmetric:0.1", "none")),
    *(Case(name, e) for name in ("rare-table", "many-classes") for e in ("symmetric:0.1", "none")),
    *(Case("diabetes", e) for e in ("swap:0.1", "none")),
]

NEWS = ("world", "sports", "business", "science")
RESTS = [Case(f"agnews:{c}", "human") for c in NEWS] + [
    Case(f"cifar10h:{c}", "human") for c in ("cat", "dog", "deer", "ship")
]
"""One class against the rest, with human errors."""

SENTENCES = (
    "world news: international politics, governments, elections, diplomacy, wars, terrorism, conflicts and disasters around the globe",
    "sports news: games, matches, teams, players, coaches, championships, leagues, the Olympics and results",
    "business news: companies, markets, stocks, oil prices, earnings, mergers, banks, the economy and trade",
    "science and technology news: computers, software, the internet, space, research, medicine, gadgets and telecommunications",
)
DESCRIPTIONS: dict[str, tuple[str, ...]] = {
    "described": SENTENCES, "named": ("World", "Sports", "Business", "Sci/Tech"), "rotated": SENTENCES[1:] + SENTENCES[:1],
    "swapped": (SENTENCES[3], *SENTENCES[1:3], SENTENCES[0]),
}  # fmt: skip
OPINIONS = [Case("agnews", "human", describe=how) for how in DESCRIPTIONS]
"""NoisyAG-News with a second opinion: descriptions of its four classes, bare names, and descriptions of other classes."""

WAYS = ("from", "into", "both")
THINNED = {
    "agnews": ("world", "science"), "cifar10h": ("cat", "deer"), "sst2": ("positive",), "imdb": ("negative",), "cifar10": ("cat",),
    "digits-table": ("8",), "cancer-table": ("0",),
}  # fmt: skip
"""Classes that are thinned to a share of the rows."""

SKEWED = [
    Case(f"{name}@{c}@{share}", errors)
    for share in (10, 5, 30)
    for name, classes in THINNED.items()
    for c in classes
    for errors in (
        ("human", "none")
        if name in ("agnews", "cifar10h")
        else (*(f"{way}:{d}" for way in WAYS for d in ("random", "instance")), "none")
    )
]
"""Skewed classes. Errors go from the other classes into the thinned one, from it into the others, or both ways, and hit random rows or those
that a weak model mistakes; their number is `ERRORS` of the rows of the thinned class."""

ERRORS, THIN_ROWS = 0.4, 3_000


# --- data -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Errors:
    """The data with its labels as given, the true labels, and the numeric columns alone (of tables)."""

    data: Dataset
    true: NDArray[Any]
    clean: NDArray[np.float32] | None = None

    @property
    def wrong(self) -> NDArray[np.bool_]:
        return np.asarray(self.data.target != self.true)


def make(case: Case, seed: int, data_dir: Path) -> Errors:
    """The data of a case with errors drawn by the seed."""
    if ":" in case.name:
        return _against_rest(make(replace(case, name=case.source), seed, data_dir), case.name.split(":")[1])
    if "@" in case.name:
        name, kept, share = case.name.split("@")
        human = name in ("agnews", "cifar10h")
        found = make(Case(name, "human" if human else "none"), seed, data_dir)
        return _thinned(found, case.errors, kept, int(share) / 100, seed)
    if case.name == "agnews":
        frame = pd.read_csv(data_dir / "noisy-agnews-train.csv")
        data = from_frame(frame[["text", "label"]], "agnews").train
        return Errors(data, np.array([data.classes.index(str(c)) for c in frame["gt"]]))
    if case.name == "cifar10h":
        counts = np.load(data_dir / "cifar10h-counts.npy")
        found = load("cifar10", data_dir)
        assert found.test is not None
        draw = np.random.default_rng(seed).random((len(counts), 1)) * counts.sum(1, keepdims=True)
        return Errors(found.test.relabel((counts.cumsum(1) <= draw).sum(1)), found.test.target)
    data, clean = _source(case.name, data_dir, seed)
    labels = _errors(case.errors, data, seed)
    return Errors(data.relabel(labels) if not data.regression else replace(data, target=labels), data.target, clean)


def _number(data: Dataset, name: str) -> int:
    return NEWS.index(name) if name in NEWS else data.classes.index(name)


def _against_rest(found: Errors, name: str) -> Errors:
    """Two classes: one of the classes, and all others."""
    c = _number(found.data, name)
    data = replace(found.data, target=(found.data.target == c).astype(np.int64), classes=("rest", name))
    return Errors(data, (found.true == c).astype(np.int64), found.clean)


def _thinned(found: Errors, errors: str, name: str, share: float, seed: int) -> Errors:
    """At most `THIN_ROWS` rows, of which the share has a true label of this class."""
    c, rng = _number(found.data, name), np.random.default_rng(seed + 30)
    order = rng.permutation(len(found.true))
    few, others = order[found.true[order] == c], order[found.true[order] != c]
    size = int(min(THIN_ROWS, len(others) / (1 - share), len(few) / share))
    rows = np.sort(np.concatenate([few[: round(share * size)], others[: size - round(share * size)]]))
    data, true = found.data.subset(rows), found.true[rows]
    data = replace(data, index=np.arange(len(rows)), rows=len(rows))
    if errors == "none":
        data = data.relabel(true)
    elif errors != "human":
        way, kind = errors.split(":")
        doubt = _doubt(data, rng) if kind == "instance" else np.ones((len(true), data.num_classes))
        number, labels = ERRORS * (true == c).sum() / (2 if way == "both" else 1), true.copy()
        if way != "into":
            there = np.flatnonzero(true != c)
            labels[rng.choice(there, round(number), False, doubt[there, c] / doubt[there, c].sum())] = c
        if way != "from":
            doubt[:, c] = 0
            there = np.flatnonzero(true == c)
            left = rng.choice(there, round(number), False, doubt[there].sum(1) / doubt[there].sum())
            labels[left] = [rng.choice(data.num_classes, p=row / row.sum()) for row in doubt[left]]
        data = data.relabel(labels)
    return Errors(data, true, None if found.clean is None else found.clean[rows])


def _source(name: str, data_dir: Path, seed: int) -> tuple[Dataset, NDArray[np.float32] | None]:
    if name == "many-classes":
        return _many(seed), None
    if name.startswith("blobs"):
        return _blobs(int(name.removeprefix("blobs")), seed), None
    if name.endswith("-table") or name == "diabetes":
        return _table(name.removesuffix("-table"), seed)
    data = load(name, data_dir).train if name != "digits" else load("digits", test=0.3).train
    limit = LARGE if name.startswith("cifar") else SMALL
    if len(data) > limit:
        data = data.split((limit / len(data), 1 - limit / len(data)), seed=0)[0]
    return replace(data, index=np.arange(len(data)), rows=len(data)), None


def _table(name: str, seed: int) -> tuple[Dataset, NDArray[np.float32]]:
    """A table of scikit-learn with an id, a date and a column of many values added."""
    from sklearn import datasets

    readers = {"cancer": "breast_cancer", "wine": "wine", "digits": "digits", "diabetes": "diabetes"}
    found = _rare(seed) if name == "rare" else getattr(datasets, f"load_{readers[name]}")(as_frame=True)
    rng = np.random.default_rng(seed + 50)
    frame = found.data.copy()
    frame["id"] = rng.permutation(len(frame)) + 10_000
    frame["day"] = (pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, len(frame)), "D")).strftime(
        "%Y-%m-%d"
    )
    frame["town"] = [f"town {k}" for k in rng.integers(0, 40, len(frame))]
    frame["target"] = found.target.to_numpy()
    return from_frame(frame, name, label="target").train, found.data.to_numpy(np.float32)


def _rare(seed: int) -> SimpleNamespace:
    """A table of which one row in twenty is of a class that the numbers say little about, as of customers who leave."""
    rng = np.random.default_rng(seed + 70)
    rare = rng.random(RARE) < 0.05
    x = rng.normal(size=(RARE, 12)) + 0.5 * rare[:, None] * (np.arange(12) < 4)
    columns = [f"number {k}" for k in range(12)]
    return SimpleNamespace(
        data=pd.DataFrame(x.astype(np.float32), columns=columns), target=pd.Series(np.where(rare, "leaves", "stays"))
    )


def _many(seed: int) -> Dataset:
    """Embeddings of 50 classes of 20 rows each, of which a model tells one in three right: few examples of many classes, as of intents."""
    rng = np.random.default_rng(seed + 90)
    y = np.repeat(np.arange(50), 20)
    x = 0.4 * rng.normal(size=(50, 32))[y] + rng.normal(size=(len(y), 32))
    return Dataset(x.astype(np.float32), y, tuple(f"class {k}" for k in range(50)))


def _blobs(classes: int, seed: int) -> Dataset:
    """Normal classes that overlap: a model tells three in four of ten classes right."""
    rng = np.random.default_rng(seed + 110)
    y = rng.integers(classes, size=RARE)
    x = 0.6 * rng.normal(size=(classes, 16))[y] + rng.normal(size=(RARE, 16))
    return Dataset(x.astype(np.float32), y, tuple(f"class {k}" for k in range(classes)))


def _errors(kind: str, data: Dataset, seed: int) -> NDArray[Any]:
    kind, _, rate_text = kind.partition(":")
    rate, y = float(rate_text or 0), data.target
    rng = np.random.default_rng(seed + 10)
    if kind == "none":
        return y.copy()
    if kind == "swap":  # the value of another row
        return np.where(rng.random(len(y)) < rate, rng.permutation(y), y)
    if kind == "symmetric":
        return noise.symmetric(y, data.num_classes, rate, seed=seed).labels
    if kind == "pair":
        return noise.pair(y, data.num_classes, rate, seed=seed).labels
    if kind == "cluster":
        x = make_views(data).views[0].x
        return noise.cluster(y, data.num_classes, rate, features=x, seed=seed).labels
    if kind == "oneway":  # positives that are called negative
        return np.where((rng.random(len(y)) < 2 * rate) & (y == 1), 0, y)
    return _by_weak_model(data, rate, rng)


def _doubt(data: Dataset, rng: np.random.Generator) -> NDArray[np.float64]:
    """(N, C) the probabilities of a weak model: on a few directions of the features, learned from a few rows."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.linear_model import LogisticRegression

    x = make_views(data).views[0].x
    z = TruncatedSVD(12, random_state=int(rng.integers(2**31))).fit_transform(x)
    some = rng.choice(len(data), min(600, len(data)), replace=False)
    model = LogisticRegression(max_iter=500).fit((z / z.std(0))[some], data.target[some])
    p = np.full((len(data), data.num_classes), 1e-6)
    p[:, model.classes_] += model.predict_proba(z / z.std(0))
    return p


def _by_weak_model(data: Dataset, rate: float, rng: np.random.Generator) -> Labels:
    """Labels that a weak model would give."""
    y, rows = data.target, np.arange(len(data))
    p = _doubt(data, rng)
    p[rows, y] = 0
    doubt = p.sum(1)
    chosen = rng.random(len(y)) < np.minimum(doubt * rate / doubt.mean(), 0.9)
    drawn = (p.cumsum(1) < rng.random((len(y), 1)) * p.sum(1, keepdims=True)).sum(1)
    return np.where(chosen, np.minimum(drawn, data.num_classes - 1), y)


# --- figures --------------------------------------------------------------------------------------------------


def average_precision(score: NDArray[Any], wrong: NDArray[np.bool_]) -> dict[str, float]:
    from sklearn.metrics import average_precision_score

    return {"ap": float(average_precision_score(wrong, score))} if wrong.any() else {}


def calibration_error(p: NDArray[np.float64], wrong: NDArray[np.bool_], bins: int = 10) -> float:
    """The expected calibration error over bins of equal width."""
    which = np.minimum((p * bins).astype(int), bins - 1)
    return float(sum(abs(p[which == k].sum() - wrong[which == k].sum()) for k in range(bins)) / len(p))


def flags(mask: NDArray[np.bool_], wrong: NDArray[np.bool_]) -> dict[str, float]:
    found = {"flagged": float(mask.mean())}
    if wrong.any():
        found |= {"precision": float(wrong[mask].mean()) if mask.any() else 1.0, "recall": float(mask[wrong].mean())}
    return found


def run(case: Case, seed: int, data_dir: Path, rivals: bool) -> list[dict[str, Any]]:
    """All methods on a case."""
    made = make(case, seed, data_dir)
    start = time.process_time()
    describe = dict(zip(made.data.classes, DESCRIPTIONS[case.describe], strict=True)) if case.describe else None
    found = audit(made.data, encoder=case.encoder, describe=describe, seed=seed)
    took = time.process_time() - start
    wrong, share = made.wrong, found.noise_rate
    listed = wrong[np.argsort(-found.log_odds, kind="stable")]
    told = {n: found.expected_errors(n) for n in WORKLOADS if n <= len(wrong) / 2}
    row = average_precision(found.log_odds, wrong) | flags(found.mask, wrong) | {
        "ece": calibration_error(found.p_error, wrong), "share": share.value, "low": share.low, "high": share.high,
        "holds": float(share.low <= wrong.mean() <= share.high), "agreement": found.config["agreement"], "seconds": took,
    } | {f"first {n}": float(e.low <= listed[:n].sum() <= e.high) for n, e in told.items()}  # fmt: skip
    if wrong.any() and not found.regression:
        row["suggested"] = float((found.suggested == made.true)[wrong].mean())
    rows = {"compensate": row}
    if wrong.any() and not found.regression:
        rows["loss"] = average_precision(found.evidence["loss"], wrong)
    if wrong.any() and rivals and case in CASES:
        rows |= _on_values(made, seed) if found.regression else _rivals(made, found, case, seed)
    return [
        {"case": case.key, "seed": seed, "method": name, "wrong": float(wrong.mean())} | {k: round(v, 4) for k, v in values.items()}
        for name, values in rows.items()
    ]  # fmt: skip


def _rivals(made: Errors, found: Audit, case: Case, seed: int) -> dict[str, dict[str, float]]:
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    assert found.probabilities is not None
    p = found.probabilities.astype(np.float64)
    p /= p.sum(1, keepdims=True)
    wrong, given = made.wrong, found.given
    ranked = max(
        average_precision(1 - get_label_quality_scores(given, p, method=m), wrong)["ap"]
        for m in ("self_confidence", "normalized_margin")
    )
    rows: dict[str, dict[str, float]] = {
        "cleanlab": {"ap": ranked} | flags(find_label_issues(given, p, n_jobs=1), wrong),
    }
    views = make_views(made.data, case.encoder).views
    rows["margin"] = _margin(views[0].x, given, wrong, seed)
    start = time.process_time()
    x = views[0].x if made.clean is None else made.clean
    best = {name: _crossfit(maker, x, given, wrong, seed) for name, maker in _singles(made.clean is not None).items()}
    if len(views) > 1:  # texts: words and embedding
        best |= {f"words {n}": _crossfit(m, views[1].x, given, wrong, seed) for n, m in _singles(False).items()}
    rows["single"] = {"ap": max(best.values()), "seconds": time.process_time() - start}
    return rows


def _singles(table: bool) -> dict[str, Callable[[int], Any]]:
    from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def logistic(c: float) -> Callable[[int], Any]:
        return lambda seed: make_pipeline(
            StandardScaler(with_mean=False), LogisticRegression(C=c, max_iter=200, tol=1e-3)
        )

    found = {f"logistic {c:g}": logistic(c) for c in ((0.01, 0.1, 1.0) if table else (0.001, 0.01))}
    if table:
        found |= {
            "random forest": lambda seed: RandomForestClassifier(200, random_state=seed),
            "extra trees": lambda seed: ExtraTreesClassifier(200, min_samples_leaf=3, random_state=seed),
            "boosting": lambda seed: HistGradientBoostingClassifier(max_iter=60, random_state=seed),
        }
    return found


def _crossfit(maker: Callable[[int], Any], x: Any, given: Labels, wrong: NDArray[np.bool_], seed: int) -> float:
    folds, own = assign_folds(given, seed=seed + 1), np.zeros(len(given))
    for k in range(FOLDS):
        held = np.flatnonzero(folds == k)
        model = maker(seed).fit(x[folds != k], given[folds != k])
        own[held] = model.predict_proba(x[held])[np.arange(len(held)), np.searchsorted(model.classes_, given[held])]
    return average_precision(-own, wrong)["ap"]


def _margin(x: Any, given: Labels, wrong: NDArray[np.bool_], seed: int) -> dict[str, float]:
    """The mean margin over the training of a network with 256 hidden units; words are brought to 200 directions first."""
    from scipy.sparse import issparse
    from sklearn.decomposition import TruncatedSVD
    from sklearn.preprocessing import StandardScaler

    from compensate.models.networks import MLP
    from compensate.training.fitting import train_and_record

    dense = TruncatedSVD(200, random_state=seed).fit_transform(x) if issparse(x) else x
    z = StandardScaler().fit_transform(dense).astype(np.float32)
    classes = int(given.max()) + 1
    made = train_and_record(
        z, given, classes, model=lambda: MLP(z.shape[1], classes, hidden=(256,)), method="base", epochs=15, seed=seed
    )
    return average_precision(-made.margin, wrong)


def _on_values(made: Errors, seed: int) -> dict[str, dict[str, float]]:
    """The residuals of single scikit-learn models, on the clean columns."""
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    y, x = made.data.target, made.clean
    folds = assign_folds(np.zeros(len(y), np.int64), seed=seed + 1)
    best = []
    for maker in (
        lambda: RidgeCV(),
        lambda: ExtraTreesRegressor(200, min_samples_leaf=3, random_state=seed),
        lambda: HistGradientBoostingRegressor(max_iter=60),
    ):
        guess = np.zeros(len(y))
        for k in range(FOLDS):
            assert x is not None
            guess[folds == k] = maker().fit(x[folds != k], y[folds != k]).predict(x[folds == k])
        best.append(average_precision(np.abs(y - guess), made.wrong)["ap"])
    return {"single": {"ap": max(best)}}


# --- choosing constants on other data ---------------------------------------------------------------------------

GRID: dict[str, tuple[float, ...]] = {
    "RIDGE": (0.0003, 0.001, 0.003, 0.01, 0.03),
    "DIRECTION_SPREAD": (0.01, 0.7, 1.0, 1.25, 1.5, 2.0),
    "LEARNED": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    "MAX_DOUBT": (0.15, 0.25, 0.4, 1.0),
    "MAX_LOG_LIKELIHOOD_GAP": (0.0, 0.5, 1.0, 1.92),
    "MAX_LEARNED": (0.8, 1.0, 1.1, 1.2, 1.4),
    "MIN_SEEN": (0.5, 0.75, 1.0),
    "MARGIN": (0.0, 0.01, 0.02, 0.04),
}
"""Constants of the noise model, each varied with the others at their values. DIRECTION_SPREAD of 0.01 disables directions."""

MEASURES = {
    "RIDGE": "ap",
    "DIRECTION_SPREAD": "ap",
    "LEARNED": "ece",
    "MAX_DOUBT": "ece",
    "MAX_LOG_LIKELIHOOD_GAP": "ece",
    "MAX_LEARNED": "interval",
    "MIN_SEEN": "interval",
    "MARGIN": "interval",
}
"""The criterion for each constant: average precision, calibration error, or the interval score at 90 % (width plus 20 times a miss)."""

WORDS = {"ap": "average precision", "ece": "calibration error", "interval": "interval score"}

ALLOWED = {"flagged": 0.025, "holds": 0.9, "gap": -0.01}
"""Limits: the share flagged in any set without errors, the share of cases in which the interval covers the truth, and the average precision
minus that of the pool on any set."""

TRIED = 10_000
"""Rows per case for trying values; larger cases are thinned evenly."""

MORE = [Case("imdb", "instance:0.1"), Case("digits", "instance:0.1"), Case("cifar10", "symmetric:0.05")]
MORE += [Case(name, "cluster:0.1") for name in ("sst2", "digits", "cifar10", "cancer-table")]
MORE += [Case(f"blobs{c}", e) for c in (10, 20) for e in ("symmetric:0.15", "pair:0.15", "none")]
"""Cases used only for choosing."""


def choose(seeds: list[int], data_dir: Path, kept: Path, wanted: set[str] | None) -> None:
    """Chooses each constant on all sets but one. Predictions of the learners are stored, so more values take seconds."""
    rows: list[dict[str, Any]] = []
    for case in (case for case in CASES + MORE + RESTS + SKEWED if case.name != "diabetes"):
        if wanted is not None and not {case.name, case.source} & wanted:
            continue
        for seed in seeds:
            predictions = _predictions(case, seed, data_dir, kept)
            pooled = _pooled(predictions)
            for constant, values in GRID.items():
                usual = getattr(noise_model, constant)
                for value in values:
                    setattr(noise_model, constant, value)
                    figures = _figures(predictions, _pooled(predictions) if constant == "RIDGE" else pooled)
                    rows.append(
                        {"case": case.key, "set": case.source, "seed": seed, "constant": constant, "value": value}
                        | {k: round(v, 4) for k, v in figures.items()}
                    )
                setattr(noise_model, constant, usual)
            print(case.key, seed, flush=True)
    command = "python -m benchmarks.detect --choose --seeds " + ",".join(map(str, seeds))
    write_choices(command, rows)
    print(choices(rows))


def _predictions(case: Case, seed: int, data_dir: Path, kept: Path) -> dict[str, NDArray[Any]]:
    """Out-of-fold predictions of the learners on a case, read from the folder if stored."""
    file = kept / (case.key.replace(" ", "_").replace(":", "-") + f"_{seed}.npz")
    if not file.exists():
        made = make(case, seed, data_dir)
        data = made.data
        views = make_views(data, case.encoder)
        times = REPEATS if len(data) <= MAX_REPEATED else 1
        folds = np.stack([assign_folds(data.target, views.keys, seed=seed, draw=k) for k in range(times)])
        log_p = {}
        for view in views.views:
            judged = judge_view(view, data.target, folds, FOLDS, data.num_classes, seed=seed)
            log_p |= {f"{view.name}: {name}": values for name, values in judged.log_p.items()}
        kept.mkdir(parents=True, exist_ok=True)
        content = BytesIO()
        np.savez(
            content, labels=data.target, true=made.true, wrong=made.wrong,
            names=np.array(list(log_p)), log_p=np.stack(list(log_p.values())),
        )  # fmt: skip
        write_atomically(file, content.getvalue())
    found = dict(np.load(file))
    part = slice(None, None, 1 + (len(found["labels"]) - 1) // TRIED)
    return found | {"labels": found["labels"][part], "wrong": found["wrong"][part], "log_p": found["log_p"][:, part]}


def _pooled(said: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    return noise_model.pool(dict(zip(said["names"].tolist(), said["log_p"], strict=True)), said["labels"])[0]


def _figures(said: dict[str, NDArray[Any]], log_q: NDArray[np.float64]) -> dict[str, float]:
    """Figures of the noise model with its present constants."""
    labels, wrong = said["labels"], said["wrong"]
    log_p = dict(zip(said["names"].tolist(), said["log_p"], strict=True))
    verdict = noise_model.judge(log_q, labels, noise_model.best_linear(log_p, labels))
    share, truth = verdict.share, float(wrong.mean())
    missed = max(share.low - truth, truth - share.high, 0.0)
    ap = average_precision(verdict.log_odds, wrong)
    gap = {"gap": ap["ap"] - average_precision(verdict.evidence(labels)["loss"], wrong)["ap"]} if ap else {}
    return (
        ap
        | gap
        | {
            "ece": calibration_error(verdict.p_error, wrong),
            "flagged": float((verdict.p_error >= FLAGGED).mean()),
            "interval": share.high - share.low + 20 * missed,
            "holds": float(missed == 0),
        }
    )


def write_choices(command: str, rows: list[dict[str, Any]]) -> None:
    """Writes a line for each case, seed and constant, with the figures by value; the names of the columns are written once."""
    columns = [name for name in rows[0] if name not in ("case", "set", "seed", "constant")]
    columns = list(dict.fromkeys(columns + [name for row in rows for name in row if name in ("ap", "gap")]))
    parts: dict[tuple[Any, ...], list[list[Any]]] = {}
    for row in rows:
        parts.setdefault((row["case"], row["seed"], row["constant"]), []).append([row.get(name) for name in columns])
    lines = ",\n".join(json.dumps([*key, part], separators=(",", ":")) for key, part in parts.items())
    head = f'"command": {json.dumps(command)}, "columns": {json.dumps(columns)}'
    write_atomically(CHOICES, f'{{{head}, "rows": [\n{lines}\n]}}\n'.encode())


def read_choices() -> list[dict[str, Any]]:
    """The rows that `write_choices` wrote."""
    stored, rows = json.loads(CHOICES.read_text()), []
    for case, seed, constant, part in stored["rows"]:
        about = {"case": case, "set": re.split("[ :@]", case)[0], "seed": seed, "constant": constant}
        rows += [about | dict(zip(stored["columns"], figures, strict=True)) for figures in part]
    return rows


def choices(rows: list[dict[str, Any]]) -> str:
    """For each constant its value, the mean of its measure by value tried, and the value that the others choose for each set left out."""
    frame = pd.DataFrame(rows)
    lines = [
        "| constant | value | chosen by | mean over the sets, by value | chosen without one of the sets |",
        "|---|---|---|---|---|",
    ]
    for constant, measure in MEASURES.items():
        part = frame[frame["constant"] == constant]
        by_choice: dict[float, list[str]] = {}
        for left in part["set"].unique():
            by_choice.setdefault(_best(part[part["set"] != left], measure), []).append(left)
        often, *others = sorted(by_choice, key=lambda value: -len(by_choice[value]))
        picked = f"{often:g}" + "".join(f"; {value:g} without {', '.join(by_choice[value])}" for value in others)
        means = part.groupby(["set", "value"])[measure].mean().groupby("value").mean()
        shown = ", ".join(f"{value:g}: {mean:.4f}" for value, mean in means.items())
        lines.append(f"| `{constant}` | {getattr(noise_model, constant):g} | {WORDS[measure]} | {shown} | {picked} |")
    return "\n".join(lines)


def _best(part: pd.DataFrame, measure: str) -> float:
    """The allowed value of a constant with the best mean over these sets."""
    clean = part[part["case"].str.endswith(" none")].groupby(["case", "value"])["flagged"].mean()
    allowed = (clean.groupby("value").max() <= ALLOWED["flagged"]) & (
        part.groupby("value")["holds"].mean() >= ALLOWED["holds"]
    )
    allowed &= part.groupby("value")["gap"].min() >= ALLOWED["gap"]
    means = part.groupby(["set", "value"])[measure].mean().groupby("value").mean()
    return float(means[allowed].idxmax() if measure == "ap" else means[allowed].idxmin())


# --- cost -------------------------------------------------------------------------------------------------------


def cost(data_dir: Path) -> dict[str, float]:
    """Seconds of the audit relative to five fits of scikit-learn's logistic regression at the strength the audit chose.

    On embeddings of CIFAR-10's test images; encoding is not counted.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    test = load("cifar10", data_dir).test
    assert test is not None
    y = test.target
    x = make_views(test).views[0].x
    start = time.perf_counter()
    audit(x, y)
    ours = time.perf_counter() - start
    folds = assign_folds(y)
    decay = judge_view(View("embeddings", x), y, folds, FOLDS, test.num_classes).decay
    start = time.perf_counter()
    for k in range(FOLDS):
        z = StandardScaler().fit_transform(x[folds != k])
        # The audit's decay is of the mean loss, on columns of variance 1 / D.
        LogisticRegression(C=1 / (decay * len(z) * x.shape[1]), max_iter=1000).fit(z, y[folds != k])
    theirs = time.perf_counter() - start
    found = {
        "rows": len(x),
        "columns": x.shape[1],
        "audit": ours,
        "five fits": theirs,
        "ratio": ours / theirs,
        "bar": 3.0,
    }
    packed = {"command": "python -m benchmarks.detect --cost", "version": __version__, "figures": found}
    write_atomically(COST, json.dumps(packed, indent=0).encode())
    return found


# --- the table ----------------------------------------------------------------------------------------------------

BARS = {
    "agnews human": ("ap", 0.74), "agnews human described": ("ap", 0.77), "agnews human named": ("ap", 0.735),
    "agnews human rotated": ("ap", 0.735), "agnews human swapped": ("ap", 0.735),
    "agnews:world human": ("ap", 0.69), "agnews:science human": ("ap", 0.60), "cifar10h human": ("ap", 0.588),
    "sst2 symmetric:0.1": ("ap", 0.598), "sst2 symmetric:0.2": ("ap", 0.693), "sst2 symmetric:0.1 words": ("ap", 0.41),
    "sst2 symmetric:0.2 words": ("ap", 0.51), "imdb symmetric:0.1": ("ap", 0.741), "digits symmetric:0.2": ("ap", 0.99),
    "digits pair:0.2": ("ap", 0.99),
}  # fmt: skip
"""Average precision that each case should reach."""


def table(rows: list[dict[str, Any]]) -> str:
    """Means over the seeds, a line for each case, and the bars."""
    frame = pd.DataFrame(rows)
    lines = [
        f"{'case':34} {'wrong':>6} | {'ours':>5} {'cleanl':>6} {'pool':>5} {'margin':>6} {'single':>6} {'-pool':>6} | "
        f"{'flagged':>7} {'prec':>5} {'recall':>6} {'ece':>5} {'share':>6} {'interval':>13} {'holds':>5} {'agree':>5} {'sec':>5} seeds"
    ]

    def mean(part: pd.DataFrame, name: str) -> float:
        return float(part[name].mean()) if name in part and len(part) else float("nan")

    def cell(value: float, width: int) -> str:
        return " " * width if value != value else f"{value:{width}.3f}"

    for case in [case.key for case in CASES + OPINIONS + RESTS + SKEWED if case.key in set(frame["case"])]:
        here = frame[frame["case"] == case]
        by = {m: here[here["method"] == m] for m in ("compensate", "cleanlab", "loss", "margin", "single")}
        own = by["compensate"]
        ap = [cell(mean(by[m], "ap"), w) for m, w in zip(by, (5, 6, 5, 6, 6), strict=True)]
        figures = [
            cell(mean(own, n), w)
            for n, w in (("flagged", 7), ("precision", 5), ("recall", 6), ("ece", 5), ("share", 6))
        ]
        lines.append(
            f"{case:34} {mean(own, 'wrong'):6.3f} | {' '.join(ap)} {cell(mean(own, 'ap') - mean(by['loss'], 'ap'), 6)} | "
            f"{' '.join(figures)} {mean(own, 'low'):6.3f}-{mean(own, 'high'):.3f}"
            f" {own['holds'].sum():3.0f}/{len(own)} {mean(own, 'agreement'):5.2f} {mean(own, 'seconds'):5.0f} {len(own)}"
        )
    return "\n".join([*lines, "", *_bars(frame)])


NAMES = {
    "agnews human": "NoisyAG-News, 10,000 texts, **human errors**", "cifar10h human": "CIFAR-10H, one annotator, **human errors**",
    "sst2 symmetric:0.1": "SST-2, 5,000 sentences, 10 % flipped", "sst2 symmetric:0.2": "SST-2, 20 % flipped",
    "sst2 oneway:0.1": "SST-2, positives called negative", "sst2 instance:0.1": "SST-2, errors of a weak model",
    "sst2 symmetric:0.1 words": "SST-2, 10 % flipped, no encoder", "sst2 symmetric:0.2 words": "SST-2, 20 % flipped, no encoder",
    "imdb symmetric:0.1": "IMDB, 5,000 reviews, 10 % flipped", "cifar10 symmetric:0.2": "CIFAR-10, 10,000 images, 20 % random",
    "cifar10 pair:0.2": "CIFAR-10, 20 % toward the next class", "cifar10 instance:0.1": "CIFAR-10, errors of a weak model",
    "digits symmetric:0.2": "digits as images, 20 % random", "digits pair:0.2": "digits as images, 20 % toward the next class",
    "cancer-table symmetric:0.1": "breast cancer table, 10 % flipped", "wine-table symmetric:0.1": "wine table, 10 % flipped",
    "digits-table symmetric:0.1": "digits table, 10 % flipped", "diabetes swap:0.1": "diabetes table (a quantity), 10 % swapped",
    "rare-table symmetric:0.1": "drawn table, 5 % of a class that is hard to tell, 10 % flipped",
    "many-classes symmetric:0.1": "drawn embeddings, 50 classes of 20 rows, 10 % random",
}  # fmt: skip
NAMES |= {f"agnews:{c} human": f"NoisyAG-News, {c} against the rest, **human errors**" for c in NEWS}
NAMES |= {
    f"cifar10h:{c} human": f"CIFAR-10H, {c} against the rest, **human errors**" for c in ("cat", "dog", "deer", "ship")
}
NAMES |= {
    "agnews human described": "NoisyAG-News with descriptions of the classes",
    "agnews human named": "NoisyAG-News with bare class names",
}
NAMES |= {
    f"agnews human {how}": f"NoisyAG-News with descriptions of other classes ({how})" for how in ("rotated", "swapped")
}
"""What readers call the cases."""

CHOSEN = ("<!-- choices: made by python -m benchmarks.detect --write -->", "<!-- /choices -->")
MARKS = ("<!-- detect: made by python -m benchmarks.detect --write -->", "<!-- /detect -->")


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table: means over the seeds, and under it the data without errors."""
    frame = pd.DataFrame(rows)
    lines = [
        "| data, errors | average precision: ours | pooled predictions | cleanlab, same predictions | best single scikit-learn model "
        "| flags: precision, recall | stated share (interval) | true | calibration error | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    means = frame.groupby(["case", "method"]).mean(numeric_only=True)
    for case, name in NAMES.items():
        if (case, "compensate") not in means.index:
            continue
        own = means.loc[(case, "compensate")]
        others = [
            means.loc[(case, m), "ap"] if (case, m) in means.index else float("nan")
            for m in ("loss", "cleanlab", "single")
        ]
        best = max([own["ap"], *[value for value in others if value == value]])
        cells = ["" if v != v else f"**{v:.3f}**" if v >= best else f"{v:.3f}" for v in (own["ap"], *others)]
        count = len(frame[(frame["case"] == case) & (frame["method"] == "compensate")])
        lines.append(
            f"| {name} | {' | '.join(cells)} | {own['precision']:.2f}, {own['recall']:.2f} | {own['share']:.1%} ({own['low']:.1%} to {own['high']:.1%}) | "
            f"{own['wrong']:.1%} | {own['ece']:.3f} | {count} |"
        )
    clean = [case for case in means.index.get_level_values(0).unique() if " none" in case]
    said = ", ".join(f"{case.split()[0]} {means.loc[(case, 'compensate'), 'flagged']:.1%}" for case in clean)
    ours = frame[frame["method"] == "compensate"]
    lines += [
        "",
        f"Flagged where no error was made: {said}. The interval held the truth in {ours['holds'].sum():.0f} of {len(ours)} runs.",
    ]
    gaps = (ours.groupby("case")["ap"].mean() - frame[frame["method"] == "loss"].groupby("case")["ap"].mean()).dropna()
    lines[-1] += (
        f" On {len(gaps)} sets, skewed ones included, the audit minus the pooled predictions is {gaps.min():+.3f} to {gaps.max():+.3f}, "
        f"{gaps.mean():+.3f} on average."
    )
    held = ", ".join(f"{ours[f'first {n}'].mean():.0%} of runs for {n:,}" for n in WORKLOADS)
    lines[-1] += f" The interval of the errors to expect in the first rows held in {held}."
    return "\n".join(lines)


def write(rows: list[dict[str, Any]]) -> None:
    """Write the table and the chosen constants between their marks in docs/detection.md."""
    page = Path(__file__).parent.parent / "docs" / "detection.md"
    parts = [(MARKS, markdown(rows))]
    if CHOICES.exists():
        parts.append((CHOSEN, choices(read_choices())))
    for (begin, end), shown in parts:
        before, rest = page.read_text("utf-8").split(begin)
        after = rest.split(end, 1)[1]
        page.write_text(f"{before}{begin}\n{shown}\n{end}{after}", "utf-8")


def _bars(frame: pd.DataFrame) -> list[str]:
    ours = frame[frame["method"] == "compensate"]
    means = ours.groupby("case").mean(numeric_only=True)
    lines = []
    for case, (name, bar) in BARS.items():
        if case in means.index:
            value = means.loc[case, name]
            lines.append(f"{'met' if value >= bar else 'NOT met':8} {case}: {name} {value:.3f}, bar {bar}")
    for case in means.index[means.index.str.contains("none")]:
        flagged = means.loc[case, "flagged"]
        lines.append(f"{'met' if flagged <= 0.01 else 'NOT met':8} {case}: flagged {flagged:.4f}, bar 0.01")
    lines.append(
        f"{'met' if ours['holds'].mean() >= 0.9 else 'NOT met':8} interval holds in {ours['holds'].mean():.2f} of runs, bar 0.9"
    )
    for n in WORKLOADS:
        held = ours[f"first {n}"].mean() if f"first {n}" in ours else float("nan")
        lines.append(
            f"{'met' if held >= 0.9 else 'NOT met':8} errors expected in the first {n} hold in {held:.2f} of runs, bar 0.9"
        )
    pool = frame[frame["method"] == "loss"].groupby("case")["ap"].mean()
    for case, gap in (means["ap"] - pool).dropna().items():
        if gap < -0.01:
            lines.append(f"NOT met  {case}: {-gap:.3f} behind the pool")
    lines.append(f"{((means['ap'] - pool) >= -0.01).sum()} of {len(pool)} cases at most 0.01 behind the pool")
    single = frame[frame["method"] == "single"].groupby("case")["ap"].mean()
    behind = [(case, means.loc[case, "ap"] - single[case]) for case in single.index if case in means.index]
    for case, gap in behind:
        if gap < -0.01:
            lines.append(f"NOT met  {case}: {-gap:.3f} behind the best single model")
    lines.append(
        f"{sum(gap >= -0.01 for _, gap in behind)} of {len(behind)} cases at most 0.01 behind the best single model"
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--sets", help="names of data sets, all by default")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--ours", action="store_true", help="the audit alone")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the table into docs/detection.md")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--kept", type=Path, default=Path("runs/detect"), help="folder of predictions, for --choose")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--quick", action="store_true", help="tables and digits, one seed")
    options = parser.parse_args()
    seeds = [int(s) for s in options.seeds.split(",")]
    if options.cost:
        print(cost(options.data_dir))
        return
    if options.choose:
        choose(seeds, options.data_dir, options.kept, None if options.sets is None else set(options.sets.split(",")))
        return
    stored = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    if options.write:
        write(stored)
    if options.show or options.write:
        print(table(stored))
        return
    if options.quick:
        options.sets, seeds = "wine-table,cancer-table,diabetes", seeds[:1]
    wanted = None if options.sets is None else set(options.sets.split(","))
    done = {(row["case"], row["seed"]) for row in stored}
    for seed in seeds:
        for case in CASES + OPINIONS + RESTS + SKEWED:
            if (wanted is not None and not {case.name, case.source} & wanted) or (case.key, seed) in done:
                continue
            rows = run(case, seed, options.data_dir, not options.ours)
            for row in rows:
                print(row, flush=True)
            # Another process may have stored its sets meanwhile.
            stored = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
            stored += rows
            options.out.parent.mkdir(parents=True, exist_ok=True)
            packed = {"command": "python -m benchmarks.detect", "version": __version__, "rows": stored}
            write_atomically(options.out, json.dumps(packed, indent=0).encode())
    print(table(stored))


if __name__ == "__main__":
    main()
