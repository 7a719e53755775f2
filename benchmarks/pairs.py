"""Detection of wrong preferences in pairs, compared with response length, the Bradley-Terry loss and cleanlab.

    python -m benchmarks.pairs --data-dir DATA [--sets pandalm-10,...] [--seeds 0,1,2] [--quick]

Average precision of planted flips (pairs of PandaLM without ties, and of IMDB reviews), and of single annotators of PandaLM against the
majority of three. Response length ranks pairs by how much longer the rejected response is. The Bradley-Terry loss is that of a logistic
regression without intercept on the difference of embeddings, out of fold, its strength chosen by held-out loss. cleanlab ranks the
out-of-fold probabilities of the audit. Results of sets that are not run again are kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results" / "pairs.json"
Drawn = tuple[pd.DataFrame, NDArray[np.bool_]]
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # inverse penalties of the Bradley-Terry model
NUMBERS = ("audit", "length", "loss", "cleanlab", "share", "low", "high", "true share")


def majority(votes: NDArray[Any]) -> NDArray[Any]:
    """(N,) the answer of two or more of three people; a tie if all differ."""
    counts = np.stack([(votes == answer).sum(1) for answer in (0, 1, 2)], 1)
    return np.where(counts.max(1) > 1, counts.argmax(1), 0)


def pandalm(data_dir: Path) -> pd.DataFrame:
    """Instruction, input, two responses, and the votes of three people: 1 or 2 for a response, 0 for a tie."""
    return pd.DataFrame(json.loads((data_dir / "pandalm-test.json").read_text()))


def planted(frame: pd.DataFrame, share: float, seed: int) -> Drawn:
    """Pairs of which a share has its responses exchanged."""
    wrong = np.random.default_rng(1000 + seed).random(len(frame)) < share
    chosen, rejected = frame["chosen"].to_numpy(object), frame["rejected"].to_numpy(object)
    return frame.assign(chosen=np.where(wrong, rejected, chosen), rejected=np.where(wrong, chosen, rejected)), wrong


def pandalm_flips(share: float) -> Callable[[int, Path], Drawn]:
    def draw(seed: int, data_dir: Path) -> Drawn:
        rows = pandalm(data_dir)
        better = majority(rows[["annotator1", "annotator2", "annotator3"]].to_numpy())
        rows, better = rows[better > 0], better[better > 0]
        one, two = rows["response1"].to_numpy(object), rows["response2"].to_numpy(object)
        prompt = (rows["instruction"] + "\n" + rows["input"]).str.strip()
        return planted(
            pd.DataFrame(
                {
                    "prompt": prompt,
                    "chosen": np.where(better == 1, one, two),
                    "rejected": np.where(better == 1, two, one),
                }
            ).reset_index(drop=True),
            share,
            seed,
        )

    return draw


def pandalm_annotator(seed: int, data_dir: Path) -> Drawn:
    """The votes of one of three people; wrong where they differ from the majority of all three."""
    rows = pandalm(data_dir)
    votes = rows[["annotator1", "annotator2", "annotator3"]].to_numpy()
    frame = rows[["instruction", "input", "response1", "response2"]].assign(preference=votes[:, seed % 3])
    return frame, votes[:, seed % 3] != majority(votes)


def imdb_flips(share: float, size: int = 600) -> Callable[[int, Path], Drawn]:
    def draw(seed: int, data_dir: Path) -> Drawn:
        """A positive and a negative review of similar length each; the positive one is chosen."""
        lines = (data_dir / "imdb50k.tsv").read_text(encoding="utf-8").split("\n")
        cells = [line.split("\t", 4) for line in lines[1:] if line]
        reviews = pd.DataFrame(cells, columns=lines[0].split("\t"))
        rng = np.random.default_rng(seed)
        sides = []
        for label in sorted(reviews["label"].unique(), reverse=True):
            texts = reviews["text"][reviews["label"] == label].to_numpy(object)
            sides.append(sorted(texts[rng.permutation(len(texts))[:size]], key=len))
        # Equal ranks would tell the classes apart by the sign of the difference in length: partners are drawn within 15 %.
        pairs, free = [], list(sides[1])
        for k in rng.permutation(size).tolist():
            near = [i for i, text in enumerate(free) if abs(len(text) / len(sides[0][k]) - 1) < 0.15]
            if near:
                pairs.append((sides[0][k], free.pop(int(rng.choice(near)))))
        frame = pd.DataFrame(pairs, columns=["chosen", "rejected"]).assign(prompt="a favorable review")
        return planted(frame, share, seed)

    return draw


SETS: dict[str, Callable[[int, Path], Drawn]] = {
    "pandalm-10": pandalm_flips(0.1), "pandalm-20": pandalm_flips(0.2), "pandalm-annotator": pandalm_annotator,
    "imdb-10": imdb_flips(0.1), "imdb-20": imdb_flips(0.2),
}  # fmt: skip


def bradley_terry(x: NDArray[Any], seed: int) -> NDArray[Any]:
    """(N,) out-of-fold losses of the first response, by models of differences (N, D) and their mirror images."""
    from sklearn.linear_model import LogisticRegression

    fold = np.random.default_rng(seed).permutation(len(x)) % 5
    best, found = np.inf, np.zeros(len(x))
    for strength in STRENGTHS:
        losses = np.zeros(len(x))
        for k in range(5):
            rest = x[fold != k]
            model = LogisticRegression(C=strength, fit_intercept=False, max_iter=1000)
            model.fit(np.concatenate([rest, -rest]), np.repeat([1, 0], len(rest)))
            losses[fold == k] = np.logaddexp(0, -model.decision_function(x[fold == k]))
        if losses.mean() < best:
            best, found = losses.mean(), losses
    return found


def measured(frame: pd.DataFrame, wrong: NDArray[np.bool_], seed: int) -> dict[str, float]:
    """The numbers of one draw."""
    from cleanlab.rank import get_label_quality_scores
    from sklearn.metrics import average_precision_score

    from compensate.auditing.api import audit
    from compensate.auditing.labels.pairs import unique_texts
    from compensate.encoders import encode_data

    start = time.perf_counter()
    found = audit(frame, seed=seed)
    seconds = time.perf_counter() - start
    assert found.data is not None
    assert found.probabilities is not None
    texts, (_, first, second) = unique_texts(found.data.x)
    encoded = encode_data(texts, "auto")
    assert encoded is not None
    given = found.given
    side = np.where(given == 1, -1.0, 1.0)  # of the preferred response
    difference = (encoded.values[first] - encoded.values[second]) * side[:, None]
    lengths = np.array([len(pair.first) - len(pair.second) for pair in found.data.x])
    rejected_longer = np.where(given == 2, np.abs(lengths), -lengths * side)
    losses = bradley_terry(difference / difference.std(), seed)
    if (given == 2).any():  # a tie is contradicted by a clear preference, whichever it is
        losses = np.where(
            given == 2, -np.log(np.maximum(2 * np.minimum(np.exp(-losses), 1 - np.exp(-losses)), 1e-9)), losses
        )
    classes = 3 if (given == 2).any() else 2
    p = found.probabilities[:, :classes].astype(np.float64)
    quality = get_label_quality_scores(given, p / p.sum(1, keepdims=True))
    scores = {"audit": found.log_odds, "length": rejected_longer, "loss": losses, "cleanlab": -quality}
    numbers = {name: float(average_precision_score(wrong, score)) for name, score in scores.items()}
    rate = found.noise_rate
    more = {
        "share": rate.value,
        "low": rate.low,
        "high": rate.high,
        "true share": float(wrong.mean()),
        "seconds": seconds,
    }
    form = sum(weight for name, weight in found.provenance.views.items() if name.startswith("length"))
    more |= {
        "pairs": float(len(frame)),
        "weight of length and overlap": form,
        "agreement": float(found.provenance.agreement or 0),
    }
    flags = float(wrong[found.mask].mean()) if found.mask.any() else 1.0
    return {**numbers, **more, "flags": float(found.mask.sum()), "flags, precision": flags}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="one set and seed, nothing stored")
    asked = parser.parse_args()
    if asked.quick:
        frame, wrong = SETS["pandalm-20"](0, asked.data_dir)
        print(measured(frame[:200], wrong[:200], 0))
        return
    stored = (
        json.loads(asked.out.read_text())
        if asked.out.is_file()
        else {"command": "python -m benchmarks.pairs --data-dir DATA", "sets": {}}
    )
    for name in asked.sets.split(","):
        for seed in asked.seeds.split(","):
            frame, wrong = SETS[name](int(seed), asked.data_dir)
            stored["sets"].setdefault(name, {})[seed] = {
                k: round(v, 4) for k, v in measured(frame, wrong, int(seed)).items()
            }
            asked.out.write_text(json.dumps(stored, indent=1) + "\n")
            print(name, seed, stored["sets"][name][seed], flush=True)
    print(table(stored))


def table(stored: dict[str, Any]) -> str:
    """The means over seeds as a table of Markdown, and how often the interval holds the true share."""
    lines = [
        "| pairs | audit | length | Bradley-Terry loss | cleanlab | stated share (interval) | true |",
        "|---|" + "---|" * 6,
    ]
    holds, runs = 0, 0
    for name, draws in stored["sets"].items():
        mean = {k: statistics.mean(one[k] for one in draws.values()) for k in NUMBERS}
        holds += sum(one["low"] <= one["true share"] <= one["high"] for one in draws.values())
        runs += len(draws)
        ap = " | ".join(f"{mean[k]:.3f}" for k in NUMBERS[:4])
        lines.append(
            f"| {name} | {ap} | {mean['share']:.3f} ({mean['low']:.3f} to {mean['high']:.3f}) | {mean['true share']:.3f} |"
        )
    return "\n".join([*lines, "", f"The interval holds the true share in {holds} of {runs} draws."])


if __name__ == "__main__":
    main()
