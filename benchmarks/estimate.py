"""The share of wrong labels from a sample that a person looks at: coverage and width of its interval, and the probabilities after it.

    python -m benchmarks.estimate --data-dir DATA --kept FOLDER   # all sets; predictions that FOLDER lacks are made first
    python -m benchmarks.estimate --show                          # the table of the stored results
    python -m benchmarks.estimate --again digits,cifar10h ...     # measures stored sets again
    python -m benchmarks.estimate --limits --kept FOLDER          # of stored predictions: all looks together, and the least width

A simulated person answers with the truth. Each of 200 draws takes a new sample from the same audit; after 50, 100 and 200 looks, the interval is
compared with the interval of a simple random sample of as many labels, made by the same likelihood ratio.

`STRATA` and `EVEN` of `compensate.auditing.sampling` were chosen on the sets of `CHOSEN_ON` with seed 100. These sets are measured with seed 0,
all others with seed 100.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from benchmarks.detect import CASES, RESTS, SKEWED, Case, _pooled, _predictions, calibration_error
from compensate import __version__
from compensate.auditing import noise_model, sampling
from compensate.auditing.sampling import draw, recalibrate, stratified_share
from compensate.files import write_atomically

RESULTS = Path(__file__).parent / "results" / "estimate.json"
PAGE = Path(__file__).parent.parent / "docs" / "detection.md"
MARKS = ("<!-- estimate -->", "<!-- end of estimate -->")
CHOSEN_ON = ("cancer-table", "digits-table", "rare-table", "many-classes", "sst2")
LOOKS, DRAWS = (50, 100, 200), 200
BAND = (0.93, 0.97)  # of the coverage


def measure(case: Case, data_dir: Path, kept: Path) -> dict[str, Any]:
    """Figures of a case, by number of looks."""
    seed = 0 if case.source in CHOSEN_ON else 100
    said = _predictions(case, seed, data_dir, kept)
    labels, wrong, found = said["labels"], said["wrong"].astype(bool), _judged(said)
    truth, rng = float(wrong.mean()), np.random.default_rng(0)
    row = {"case": case.key, "seed": seed, "labels": len(labels), "wrong": truth, "stated": found.share.value}
    row |= {"ece before": calibration_error(found.p_error, wrong), "loss before": log_loss(found.p_error, wrong)}
    looked: dict[str, list[float]] = {}
    for number in range(DRAWS):
        sample = draw(found.p_error, np.arange(len(labels)), seed=number)
        for most in LOOKS:
            looks = min(most, len(labels))
            answers = wrong[sample.index[:looks]].tolist()
            share = sample.estimate(answers).wrong
            assert share is not None
            simple = stratified_share(
                np.array([rng.hypergeometric(wrong.sum(), (~wrong).sum(), looks)], float), np.array([looks]), np.array([len(labels)])
            )  # fmt: skip
            p = expit(recalibrate(found.log_odds, sample.index[:looks], answers, share))
            figures = {
                "covers": share.low <= truth + 1e-12 and truth <= share.high + 1e-12, "width": share.high - share.low,
                "simple covers": simple.low <= truth + 1e-12 and truth <= simple.high + 1e-12, "simple width": simple.high - simple.low,
                "error": abs(share.value - truth), "ece": calibration_error(p, wrong), "loss": log_loss(p, wrong),
            }  # fmt: skip
            for name, value in figures.items():
                looked.setdefault(f"{name} {most}", []).append(float(value))
    return row | {name: float(np.mean(values)) for name, values in looked.items()}


def _file(case: Case) -> str:
    return case.key.replace(" ", "_").replace(":", "-")


def _judged(said: dict[str, Any]) -> Any:
    """The judgment of the noise model on stored predictions."""
    by_name = dict(zip(said["names"].tolist(), said["log_p"], strict=True))
    return noise_model.judge(_pooled(said), said["labels"], noise_model.best_linear(by_name, said["labels"]))


def limits(file: Path) -> str:
    """For stored predictions: the coverage at each number of `sampling.LOOKS` and at all together, in draws from seed 1000 on, and the least width.

    The least width, relative to a simple sample, is that of a normal approximation with unlimited strata and Neyman's allocation by the true
    rate of errors at each probability: E sqrt(r (1 - r)) / sqrt(R (1 - R)), with r fitted by isotonic regression and R its mean.
    """
    key, _, seed = file.stem.rpartition("_")
    cases = {_file(case): case for case in (*CASES, *RESTS, *SKEWED)}
    said = _predictions(cases[key], int(seed), Path(), file.parent)
    p, wrong = _judged(said).p_error, said["wrong"].astype(bool)
    truth, held = wrong.mean(), []
    for seed in range(1000, 1150):
        sample = draw(p, np.arange(len(p)), seed)
        shares = [sample.estimate(wrong[sample.index[:looks]].tolist()).wrong for looks in sampling.LOOKS]
        held.append([share is not None and share.low <= truth <= share.high for share in shares])
    rate = IsotonicRegression().fit(p, wrong).predict(p).clip(0, 1)
    least = np.sqrt(rate * (1 - rate)).mean() / np.sqrt(truth * (1 - truth))
    each = ", ".join(f"{value:.1%}" for value in np.mean(held, 0))
    return f"{file.stem}: {each}; together {np.all(held, 1).mean():.1%}; least width {least:.2f}"


def log_loss(p: Any, wrong: Any) -> float:
    """The mean log loss of the probabilities of error."""
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return float(-np.where(wrong, np.log(p), np.log1p(-p)).mean())


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table, and a summary of it."""
    frame = pd.DataFrame(rows).sort_values("case")
    some, none = frame[frame["wrong"] > 0], frame[frame["wrong"] == 0]
    heads = [
        "data, errors",
        "wrong",
        "stated",
        *(f"coverage, {n} looks" for n in LOOKS),
        *(f"width, {n}" for n in LOOKS),
    ]
    heads += [*(f"width of a simple sample, {n}" for n in LOOKS), "calibration error before", "after 100"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for _, row in some.iterrows():
        cells = [row["case"], f"{row['wrong']:.1%}", f"{row['stated']:.1%}"]
        cells += [f"{row[f'covers {n}']:.1%}" for n in LOOKS]
        cells += [f"{row[f'{what} {n}']:.3f}" for what in ("width", "simple width") for n in LOOKS]
        lines.append("| " + " | ".join([*cells, f"{row['ece before']:.3f}", f"{row['ece 100']:.3f}"]) + " |")

    def by_looks(value: Any) -> str:
        return ", ".join(f"{value(n)} after {n}" for n in LOOKS) + " looks"

    ratio = {n: some[f"width {n}"] / some[f"simple width {n}"] for n in LOOKS}
    better, worse = some["loss 100"] < some["loss before"] - 1e-4, some["loss 100"] > some["loss before"] + 1e-4
    covers = by_looks(lambda n: f"{some[f'covers {n}'].mean():.1%}")
    simple = by_looks(lambda n: f"{some[f'simple covers {n}'].mean():.1%}")
    inside = by_looks(lambda n: some[f"covers {n}"].between(*BAND).sum())
    empty = by_looks(lambda n: f"{none[f'width {n}'].mean():.1%}")
    lines += [
        "",
        f"Mean coverage over {len(some)} sets with errors: {covers} (a simple sample: {simple}). Sets between {BAND[0]:.0%} and {BAND[1]:.0%}: {inside};",
        f"{DRAWS} draws tell the coverage of a set to 1.5 points. The width relative to a simple sample is on average "
        + by_looks(lambda n: f"{ratio[n].mean():.2f} ({ratio[n].min():.2f} to {ratio[n].max():.2f})")
        + ".",
        f"On {len(none)} sets without errors, the intervals start at 0 and end at {empty} on average.",
        f"After 100 looks, the log loss of the probabilities of error is smaller on {better.sum()} of {len(some)} sets, larger on {worse.sum()}; its mean is "
        f"{some['loss before'].mean():.3f} before and {some['loss 100'].mean():.3f} after.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures, stores, and writes the table into its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--kept", type=Path, default=Path("runs/predictions"), help="folder of stored predictions")
    parser.add_argument("--stored", action="store_true", help="only cases whose predictions are stored")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--again", default="", help="data sets to measure again, separated by commas")
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one small set, stored nowhere")
    chosen = parser.parse_args()
    if chosen.quick:
        print(markdown([measure(Case("wine-table", "symmetric:0.1"), chosen.data_dir, chosen.kept)]))
        return
    if chosen.limits:
        for file in sorted(chosen.kept.glob("*.npz")):
            if np.load(file)["wrong"].any():
                print(limits(file), flush=True)
        return
    rows = {row["case"]: row for row in json.loads(RESULTS.read_bytes())["rows"]} if RESULTS.exists() else {}
    for case in () if chosen.show else [*CASES, *RESTS, *SKEWED]:
        seed = 0 if case.source in CHOSEN_ON else 100
        stored = (chosen.kept / f"{_file(case)}_{seed}.npz").exists()
        if (
            case.name == "diabetes"
            or (case.key in rows and case.source not in chosen.again.split(","))
            or (chosen.stored and not stored)
        ):
            continue
        rows[case.key] = measure(case, chosen.data_dir, chosen.kept)
        print(case.key, flush=True)
        write_atomically(RESULTS, json.dumps({"version": __version__, "rows": list(rows.values())}, indent=1).encode())
    shown = markdown(list(rows.values()))
    before, rest = PAGE.read_text("utf-8").split(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}\n{shown}\n{MARKS[1]}{rest.split(MARKS[1], 1)[1]}", "utf-8")
    print(shown)


if __name__ == "__main__":
    main()
