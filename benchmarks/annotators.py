"""Several annotators: accuracy of the consensus and detection of wrong majorities, compared with majority vote and CROWDLAB.

    python -m benchmarks.annotators --data-dir DATA      # CIFAR-10H, 3 and 5 people an image; digits with made-up annotators
    python -m benchmarks.annotators --show

CROWDLAB gets the same out-of-fold predictions. Each ranks the labels of the majority, so all look for the same errors.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import experiments.data  # noqa: F401  registers cifar10, sst2 and imdb
from compensate.auditing.api import audit_votes
from compensate.auditing.labels.votes import Votes, find_consensus
from compensate.data import load
from compensate.files import write_atomically

RESULTS = Path(__file__).parent / "results" / "annotators.json"
PAGE = Path(__file__).parent.parent / "docs" / "detection.md"
IMAGES = 4000


def cifar10h(data_dir: Path, people: int, seed: int) -> tuple[Any, Votes, Any]:
    """CIFAR-10 test images, some human labels of each, and the true labels."""
    counts = np.load(data_dir / "cifar10h-counts.npy").astype(int)
    test = load("cifar10", data_dir).test
    assert test is not None
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(counts))[:IMAGES])
    drawn = np.array([rng.permutation(np.repeat(np.arange(10), counts[i]))[:people] for i in rows])
    item, who = np.repeat(np.arange(len(rows)), people), np.tile(np.arange(people), len(rows))
    names = tuple(f"person {k + 1}" for k in range(people))
    votes = Votes(item, who, drawn.ravel(), len(rows), names, tuple(map(str, range(10))))
    return np.asarray(test.x)[rows], votes, np.asarray(test.target)[rows]


def digits(people: int, seed: int) -> tuple[Any, Votes, Any]:
    """Digits, labeled by eight annotators who are right in 45 to 95 % of cases and err toward the next digit in half of the others."""
    data = load("digits").train
    rng = np.random.default_rng(seed)
    accuracy = np.linspace(0.45, 0.95, 8)
    who = np.array([rng.permutation(8)[:people] for _ in range(len(data))])
    true = np.repeat(data.target[:, None], people, 1)
    other = np.where(rng.random(true.shape) < 0.5, (true + 1) % 10, (true + rng.integers(1, 10, true.shape)) % 10)
    given = np.where(rng.random(true.shape) < accuracy[who], true, other)
    item = np.repeat(np.arange(len(data)), people)
    names = tuple(f"annotator {k + 1}" for k in range(8))
    return np.asarray(data.x), Votes(item, who.ravel(), given.ravel(), len(data), names, tuple(map(str, range(10)))), data.target  # fmt: skip


def measured(x: Any, votes: Votes, true: Any, seed: int) -> dict[str, float]:
    """All figures of one draw."""
    from cleanlab.multiannotator import get_label_quality_multiannotator
    from sklearn.metrics import average_precision_score

    found, consensus = audit_votes(x, votes, seed=seed)
    alone = find_consensus(votes)
    # CROWDLAB with the predictions of models that learned the votes' own consensus: what its authors do.
    table = np.full((votes.items, len(votes.annotators)), np.nan)
    table[votes.item, votes.annotator] = votes.label
    predicted = consensus_predictions(x, votes, seed)
    crowd = get_label_quality_multiannotator(pd.DataFrame(table), predicted, verbose=False)["label_quality"]
    majority = votes.majority()
    wrong = majority != true
    label = crowd["consensus_label"].to_numpy(int)
    doubt = np.where(
        label == majority,
        1 - crowd["consensus_quality_score"].to_numpy(),
        1 + crowd["consensus_quality_score"].to_numpy(),
    )
    return {
        "accuracy majority": float((~wrong).mean()),
        "accuracy Dawid-Skene": float((alone.label == true).mean()),
        "accuracy CROWDLAB": float((label == true).mean()),
        "accuracy ours": float((consensus.label == true).mean()),
        "ap Dawid-Skene": float(average_precision_score(wrong, alone.p_error(majority))),
        "ap CROWDLAB": float(average_precision_score(wrong, doubt)),
        "ap ours": float(average_precision_score(wrong, consensus.p_error(majority))),
        "wrong": float(wrong.mean()),
        "stated": float(found.noise_rate.value),
    }


def consensus_predictions(x: Any, votes: Votes, seed: int) -> Any:
    """(N, C) out-of-fold predictions of models that learned the majority's labels."""
    from compensate.auditing.api import audit

    found = audit(x, votes.majority(), seed=seed)
    p = np.full((votes.items, len(votes.classes)), 1e-9)
    p[:, [int(c) for c in found.classes]] = found.probabilities
    return p / p.sum(1, keepdims=True)


def write_page(stored: dict[str, dict[str, dict[str, float]]]) -> None:
    """The table between its marks on the page."""
    kinds = ("majority", "Dawid-Skene", "CROWDLAB", "ours")
    lines = [
        "| data | accuracy: majority | Dawid-Skene | CROWDLAB | ours | average precision: Dawid-Skene | CROWDLAB | ours | stated share wrong | true | seeds |",
        "|---|" + "---|" * 10,
    ]
    for case, runs in stored.items():
        mean = {k: float(np.mean([run[k] for run in runs.values()])) for k in next(iter(runs.values()))}
        cells = [f"{mean[f'accuracy {k}']:.3f}" for k in kinds] + [f"{mean[f'ap {k}']:.3f}" for k in kinds[1:]]
        lines.append(f"| {case} | {' | '.join(cells)} | {mean['stated']:.1%} | {mean['wrong']:.1%} | {len(runs)} |")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- annotators -->")
    _, _, after = rest.partition("<!-- /annotators -->")
    text = f"{before}<!-- annotators -->\n{chr(10).join(lines)}\n<!-- /annotators -->{after}"
    write_atomically(PAGE, text.encode())


def main() -> None:
    """Measures missing cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the table into docs/detection.md")
    given = parser.parse_args()
    stored: dict[str, dict[str, dict[str, float]]] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    cases = [("digits, 8 annotators", 3), ("CIFAR-10H", 3), ("CIFAR-10H", 5)]
    for name, people in cases if not given.show else ():
        for seed in range(given.seeds):
            row = stored.setdefault(f"{name}, {people} votes", {})
            if str(seed) not in row:
                made = digits(people, seed) if name.startswith("digits") else cifar10h(given.data_dir, people, seed)
                row[str(seed)] = {k: round(v, 4) for k, v in measured(*made, seed).items()}
                write_atomically(RESULTS, (json.dumps(stored, indent=1) + "\n").encode())
    if given.write:
        write_page(stored)
    for case, runs in stored.items():
        means = {k: np.mean([run[k] for run in runs.values()]) for k in next(iter(runs.values()))}
        print(f"{case} ({len(runs)} seeds):", ", ".join(f"{k} {v:.3f}" for k, v in means.items()))


if __name__ == "__main__":
    main()
