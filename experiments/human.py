"""Errors that people made: what robust training gains on them, and what cleaning with the audit gains.

NoisyAG-News has 10,000 news texts with one person's label each, a fifth of them wrong, and 7,600 test texts with true labels. All
methods train the same small network on the same features, with the same number of trials on held-out labels that are as noisy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.errors import InputError
from compensate.files import make_folder, write_atomically
from compensate.methods import METHODS
from compensate.training.comparison import paired
from compensate.training.config import Config
from experiments.archive import Archive
from experiments.grid import Place, best_of, run
from experiments.protocols import Cell

TRAIN, TEST = "noisy-agnews-train.csv", "noisy-agnews-test.csv"
FEATURES = ("encoder", "words")
COMPONENTS = 300
"""Of the words (TF-IDF): as many numbers as an encoder gives, for the same network."""

ROBUST = ("base", "label_smoothing", "bootstrap_soft", "bootstrap_hard", "gce", "elr", "sop", "logcomp", "mixcomp")
CLEANED = ("base", "logcomp")
"""Methods that also train on the labels that are left after cleaning."""

REVIEWED = (250, 500, 1000, 2000)
OPTIONS: dict[str, Any] = {"model": "mlp", "epochs": 12, "batch_size": 128, "validation": 0.1}
SEARCH_SEED = 100


@dataclass(frozen=True, eq=False)
class Labels:
    """A set of training labels.

    Attributes:
        name: as in the file's name.
        says: in words.
        rows: the training rows.
        target: their labels.
    """

    name: str
    says: str
    rows: NDArray[np.int64]
    target: NDArray[np.int64]


def cleaned(given: NDArray[np.int64], true: NDArray[np.int64], audit: Any, seed: int = 0) -> list[Labels]:
    """The given labels, and what an audit makes of them: alone, and with the first labels of its list corrected.

    A corrected label is the true one, as from a reader who makes no errors.
    """
    everything = np.arange(len(given))
    order = np.argsort(-audit.p_error, kind="stable")
    chance = np.random.default_rng(seed).permutation(len(given))
    flagged, likely = audit.p_error >= 2 / 3, audit.p_error >= 0.5

    def reviewed(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        target = given.copy()
        target[rows] = true[rows]
        return target

    found = [
        Labels("given", "labels as given", everything, given),
        Labels("accepted", "suggestions accepted where flagged (2 : 1)", everything, np.where(flagged, audit.suggested, given)),
        Labels("likely", "suggestions accepted where an error is more likely than not", everything, np.where(likely, audit.suggested, given)),
        Labels("left-out", "rows left out where an error is more likely than not", everything[~likely], given[~likely]),
    ]  # fmt: skip
    for count in REVIEWED:
        found.append(Labels(f"reviewed-{count}", f"the first {count:,} of the audit's list corrected", everything, reviewed(order[:count])))  # fmt: skip
        found.append(Labels(f"chance-{count}", f"{count:,} at random corrected", everything, reviewed(chance[:count])))  # fmt: skip
    return [*found, Labels("true", "true labels", everything, true)]


def write_sets(data_dir: Path, folder: Path) -> dict[str, str]:
    """One .npz for each kind of features and set of labels, unless it exists; returns a description of each set of labels."""
    about = folder / "labels.json"
    if about.is_file():
        return dict(json.loads(about.read_text(encoding="utf-8"))["says"])
    from compensate.auditing.api import audit

    for name in (TRAIN, TEST):
        if not (data_dir / name).is_file():
            raise InputError(f"{name} is missing in {data_dir}; see --data-dir.")
    train, test = pd.read_csv(data_dir / TRAIN), pd.read_csv(data_dir / TEST)
    given, true = train["label"].to_numpy(np.int64), train["gt"].to_numpy(np.int64)
    found = audit(train["text"].tolist(), given)
    made = cleaned(given, true, found)
    make_folder(folder)
    for kind in FEATURES:
        x, x_test = features(kind, train["text"].tolist(), test["text"].tolist())
        for labels in made:
            np.savez(
                folder / f"agnews-{kind}-{labels.name}.npz",
                x_train=x[labels.rows], y_train=labels.target, x_test=x_test, y_test=test["gt"].to_numpy(np.int64),
            )  # fmt: skip
    wrong = given != true
    facts = {
        labels.name: {"rows": len(labels.rows), "wrong": round(float((labels.target != true[labels.rows]).mean()), 4)}
        for labels in made
    }
    stored: dict[str, dict[str, Any]] = {
        "says": {labels.name: labels.says for labels in made},
        "labels": facts,
        "audit": {
            "share": round(float(found.noise_rate.value), 4), "true": round(float(wrong.mean()), 4),
            "flagged": int((found.p_error >= 2 / 3).sum()), "likely": int((found.p_error >= 0.5).sum()),
        },
    }  # fmt: skip
    write_atomically(about, (json.dumps(stored, indent=1) + "\n").encode())
    return dict(stored["says"])


def features(kind: str, train: list[str], test: list[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(N, D) of the training and of the test texts, standardized by the former; neither sees labels."""
    if kind == "encoder":
        from compensate.encoders import encode

        found = encode(train + test)
        if found is None:
            raise InputError('no encoder of texts is installed: pip install "compensate[encoders]".')
        both = np.asarray(found.values)
    else:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        words = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2)).fit(train)
        reduce = TruncatedSVD(COMPONENTS, random_state=0).fit(words.transform(train))
        both = reduce.transform(words.transform(train + test))
    x = both[: len(train)]
    scaled = (both - x.mean(0)) / (x.std(0) + 1e-6)
    return scaled[: len(train)].astype(np.float32), scaled[len(train) :].astype(np.float32)


def config(kind: str, labels: str, method: str, hyper: Mapping[str, Any], seed: int, runs: Path) -> Config:
    """One training."""
    path = runs / f"agnews-{kind}-{labels}.npz"
    return Config.of({"data": path.as_posix(), **OPTIONS, "method": method, "hyper": dict(hyper), "seed": seed})


def choose(
    kind: str, place: Place, done: Callable[[], None], methods: Sequence[str] = ROBUST
) -> dict[str, dict[str, Any]]:
    """The hyper-parameters of each method, by its candidates' accuracy on held-out labels as they were given."""
    trials = {
        m: [config(kind, "given", m, hyper, SEARCH_SEED, place.runs) for hyper in METHODS[m].candidates["image"]]
        for m in methods
        if METHODS[m].candidates
    }
    archive = Archive(place.results / f"agnews-{kind}-search.jsonl")
    return best_of(trials, archive, place.results / f"agnews-{kind}-chosen.json", place, done)


def cells(kind: str, chosen: Mapping[str, Mapping[str, Any]], labels: Sequence[str], seeds: int, runs: Path) -> list[Cell]:  # fmt: skip
    """Every method on the labels as given, some on all others."""
    others = [name for name in labels if name != "given"]
    pairs = [(m, "given") for m in ROBUST]
    pairs += [(m, name) for m in CLEANED for name in others if m == "base" or not name.startswith("chance")]
    return [
        Cell(f"{m} {name}", 0, config(kind, name, m, chosen.get(m, {}), seed, runs))
        for m, name in pairs
        for seed in range(seeds)
    ]


def train(place: Place, data_dir: Path, seeds: int, done: Callable[[], None] = lambda: None) -> list[tuple[Config, str]]:  # fmt: skip
    """Everything that is missing; returns the runs that failed."""
    says = write_sets(data_dir, place.runs)
    make_folder(place.results)
    write_atomically(place.results / "labels.json", (place.runs / "labels.json").read_bytes())
    failed = []
    for kind in FEATURES:
        chosen = choose(kind, place, done)
        failed += run(cells(kind, chosen, [*says], seeds, place.runs), Archive(place.results / f"agnews-{kind}.jsonl"), place, done)  # fmt: skip
    return failed


def accuracies(
    results: Path, kind: str, epoch: Literal["last", "best"] = "last"
) -> dict[tuple[str, str], dict[int, float]]:
    """Test accuracy after the last epoch, or the best one on held-out labels as they were given, by method, labels and seed."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for record in Archive(results / f"agnews-{kind}.jsonl"):
        given = record["config"]
        name = Path(given["data"]).stem.split("-", 2)[2]
        of = found.setdefault((given.get("method", "base"), name), {})
        of[int(given.get("seed", 0))] = 100 * float(record[epoch]["test_accuracy"])
    return found


def gain(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[float, float, float]:
    """Mean of the differences seed by seed, and its interval."""
    return paired([a[s] - b[s] for s in sorted(a.keys() & b.keys())])
