"""The results page and its details, generated from the stored runs: `python -m experiments.pages results docs/results.md`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compensate.files import write_atomically
from experiments import choices, defaults, details, explained, graph, human_report, leading, suspects
from experiments.archive import Archive
from experiments.comparing import table_lines, words
from experiments.report import sections, trained_tables
from experiments.summary import drawn, summary

DETAILS = "results-details.md"
"""The name of the second page."""

_TITLES = {
    "last": "accuracy, last epoch",
    "best": "accuracy, best epoch",
    "average_precision": "finding errors: average precision",
    "precision": "flagged: precision",
    "recall": "flagged: recall",
    "suggested": "suggested label right",
}


def percent(value: Sequence[float | None]) -> str:
    """A mean and its deviation in percent; one run has none.

    >>> percent((0.8801, 0.0163)), percent([0.8801, None])
    ('88.0 ± 1.6', '88.0')
    """
    mean, deviation = value
    assert mean is not None
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def results_page(results: Path) -> str:
    """The page of results, as Markdown."""
    tables = trained_tables(results / "reproduce")
    parts = [
        "# Results",
        "`make docs` generates this page from the files in `results/`, which store every figure with its seeds and settings. Accuracy is "
        "measured on clean test data, in percent: mean ± standard deviation over seeds. Best epochs, additional tables, all candidates "
        f"for the defaults, comparisons on digits and searches: [details]({DETAILS}).",
        *leading.section(results),
        *summary(
            tables,
            human_report.trained_on_people(results / "human"),
            [
                *human_report.in_a_line(results / "human"),
                *defaults.in_a_line(results / "defaults"),
                *explained.in_a_line(tables),
            ],
            cost(results),
        ),
        *sections(tables),
        *human_report.sections(results / "human"),
        *suspects.section(results / "suspects.json"),
        *defaults.sections(results / "defaults"),
    ]
    return "\n\n".join(parts) + "\n"


def details_page(results: Path) -> str:
    """The details page, as Markdown."""
    parts = [
        "# Results in detail",
        "Details of the [results](results.md), and further comparisons. `make docs` generates this page from the files in `results/`.",
        *leading.details(results),
        *_demo(results / "demo" / "results.json"),
        *(part for path in sorted((results / "compare").glob("*.json")) for part in _comparison(path)),
        *(part for path in sorted((results / "search").glob("*.json")) for part in _search(path)),
        *graph.section(results / "graph" / "digits.json"),
        *human_report.details(results / "human"),
        *defaults.details(results / "defaults"),
        *choices.sections(results / "defaults"),
        *details.sections(trained_tables(results / "reproduce"), results / "reproduce"),
        *_runs(sorted((results / "train").glob("*.json"))),
    ]
    return "\n\n".join(parts) + "\n"


def cost(results: Path) -> tuple[int, float]:
    """Stored runs, and the hours that they took."""
    records = [record for path in sorted(results.glob("*/*.jsonl")) for record in Archive(path)]
    return len(records), sum(float(record.get("seconds", 0.0)) for record in records) / 3600


def _demo(path: Path) -> list[str]:
    stored = json.loads(path.read_text())
    rows = [[method, *map(percent, row.values())] for method, row in stored["summary"].items()]
    names = [_TITLES[name] for name in next(iter(stored["summary"].values()))]
    return ["## Digits, 20 % wrong labels", "`compensate demo`", table_lines([["%", *names], *rows])]


def _comparison(path: Path) -> list[str]:
    stored = json.loads(path.read_text())
    common, runs = stored["common"], stored["runs"]
    rows = []
    for row in stored["table"]:
        difference = row.get("difference")
        cell = "" if difference is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * v for v in difference))
        hyper = next(run["hyper"] for run in runs if run["method"] == row["method"])
        name = row["method"] + (f" ({words(hyper)})" if hyper else "")
        rows.append([name, percent(row["last"]), percent(row["best"]), cell])
    seeds = len({run["seed"] for run in runs})
    what = _words(common["noise"], common["imbalance"])
    chosen = (
        "named ones were searched on other seeds at 20 % noise (`results/demo/search.json`)."
        if any(run["hyper"] for run in runs)
        else "none was tuned."
    )
    schedule = f" ({common['schedule']})" if common["schedule"] else ""
    setting = (
        f"{seeds} seeds, {common['epochs']} epochs, {common['optimizer']}, learning rate {common['lr']:g}{schedule}, "
        f"batch {common['batch_size']}. Hyper-parameters are the defaults unless named; {stored.get('note', chosen)} "
        "The best epoch has the highest accuracy on a held-out part of the training data, with its wrong labels and class frequencies."
    )
    table = table_lines([["%", "last epoch", "best epoch", f"last, minus {stored['baseline']} (95 %)"], *rows])
    picture = f"![Accuracy over the epochs, and the last epoch of each seed.](img/compare-{path.stem}.png)"
    title = stored.get("title", f"{common['data'].capitalize()}, {what}")
    return [f"## {title}", setting, table, picture]


def _search(path: Path) -> list[str]:
    """The results of a search over the taxonomy."""
    found = json.loads(path.read_text())
    common, budget, part = found["common"], found["budget"], found["part"]
    by_peer = {peer: {row["method"]: row for row in rows} for peer, rows in found["tables"].items()}
    numbers = {**found["peers"], **{row["cell"]: row["hyper"] for row in found["best"]}}
    lines = [["%", "last epoch", *(f"minus {peer} (95 %)" for peer in by_peer)]]
    for method, row in next(iter(by_peer.values())).items():
        name = method + (f" ({words(numbers[method], digits=3)})" if numbers[method] else "")
        lines.append(
            [name, percent(row["last"]), *(_interval(rows[method]["difference"]) for rows in by_peer.values())]
        )
    ended = sum(row["validation"] is not None for row in found["trials"])
    what = (
        f"`python -m experiments search`: {len(found['trials'])} trials in the {part['cells']} cells of this part of the taxonomy, {ended} of them complete, "
        "on one seed, judged on noisy validation labels; "
        f"then the {budget['finalists']} best cells and four other methods, each tuned with {budget['peer_trials']} trials, on {budget['seeds']} fresh "
        f"seed{'s' * (budget['seeds'] > 1)}. {common['model']}, {common['epochs']} epochs, {_words(common['noise'], common['imbalance'])}"
        f"{'' if common['limit'] is None else ', ' + str(common['limit']) + ' training samples'}. "
        f"{'An interval that includes 0 shows no difference.' if budget['seeds'] > 1 else 'One seed proves no difference.'}"
    )
    return [f"## Search over the taxonomy: {common['data']}", what, table_lines(lines)]


def _interval(difference: Sequence[float | None] | None) -> str:
    """A difference in percent with its interval; one seed has none.

    >>> _interval([0.01, -0.02, 0.04]), _interval([0.01, None, None]), _interval(None)
    ('+1.0 (-2.0 to +4.0)', '+1.0', '')
    """
    if difference is None:
        return ""
    mean, low, high = difference
    assert mean is not None
    return f"{100 * mean:+.1f}" + ("" if low is None or high is None else f" ({100 * low:+.1f} to {100 * high:+.1f})")


def _words(noise: str, imbalance: str) -> str:
    """The changes of the data.

    >>> _words("symmetric:0.4", "none"), _words("none", "exponential:50")
    ('40 % wrong labels (symmetric)', 'the largest class 50 times the smallest (exponential)')
    """
    kind, _, rate = noise.partition(":")
    shape, _, ratio = imbalance.partition(":")
    wrong = [] if kind == "none" else [f"{100 * float(rate):g} % wrong labels ({kind})"]
    skewed = [] if shape == "none" else [f"the largest class {ratio} times the smallest ({shape})"]
    return ", ".join(wrong + skewed)


def _runs(paths: list[Path]) -> list[str]:
    if not paths:
        return []
    rows = []
    for path in paths:
        stored = json.loads(path.read_text())
        last, best = stored["result"]["last"], stored["result"]["best"]
        key = "test_accuracy" if "test_accuracy" in last else "val_accuracy"
        rows.append(
            [
                f"`{stored['command']}`",
                str(len(stored["history"])),
                f"{100 * last[key]:.1f}",
                f"{100 * best[key]:.1f}",
                f"{stored['result']['seconds'] / 60:.1f}",
            ]
        )
    return ["## Single runs", table_lines([["command", "epochs", "last, %", "best, %", "minutes, one thread"], *rows])]


def main(arguments: list[str] | None = None) -> Any:
    """Writes both pages and their pictures."""
    results, page = map(Path, arguments or sys.argv[1:])
    drawn(trained_tables(results / "reproduce")).savefig(page.parent / "img" / "ranks.png", dpi=150)
    if found := leading.columns(results):
        leading.drawn(found).savefig(page.parent / "img" / leading.PICTURE, metadata={"Date": None})
    if (results / "human" / "labels.json").is_file():
        human_report.drawn(results / "human").savefig(page.parent / "img" / "human-errors.png", dpi=150)
    write_atomically(page, results_page(results).encode())
    write_atomically(page.parent / DETAILS, details_page(results).encode())


if __name__ == "__main__":
    main()
