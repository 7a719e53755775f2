"""Deviations from the paper's order of methods: attempts to explain and to correct them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from compensate.training.comparison import paired
from experiments.comparing import Comparison, table_lines

_ATTACKED = ("pgd-at", "mixcomp", "logcomp")
"""Rows shown with and without augmentation, relative to plain training."""

_DEFAULTS = ("mixcomp-default", "logcomp-default")
"""Untuned rows with augmentation."""


def explained(tables: Mapping[str, Comparison]) -> list[str]:
    """Markdown parts; empty if runs are missing."""
    return [*_adversarial(tables), *_slow_start(tables)]


def in_a_line(tables: Mapping[str, Comparison]) -> list[str]:
    """Gains on CIFAR-10 with augmentation, for the summary; empty if runs are missing."""
    augmented = tables.get("beyond-augmented-cifar10")
    if augmented is None:
        return []
    parts = []
    for c in augmented.columns:
        gains = {row: _gain(augmented, row, augmented.head(c)) for row in (*_ATTACKED, *_DEFAULTS)}
        said = [f"{row} {_shown(each)}" for row, each in gains.items() if len(each) > 1]
        parts += [f"{_named(augmented.head(c))} {', '.join(said)}"] if said else []
    if not parts:
        return []
    return [
        "- **CIFAR-10 with augmented images** (difference to plain training, tuned with augmentation; -default: untuned): "
        f"{'; '.join(parts)} ([explanation](#where-adversarial-training-comes-out-ahead))."
    ]


def _named(head: str) -> str:
    return "no noise" if head == "0 %" else head


def _adversarial(tables: Mapping[str, Comparison]) -> list[str]:
    """Adversarial training against plain training, without and with augmented images."""
    plain, augmented = tables.get("table-1-cifar10"), tables.get("beyond-augmented-cifar10")
    if plain is None or not any(_gain(plain, "pgd-at", plain.head(c)) for c in plain.columns):
        return []
    parts = ["### Where adversarial training comes out ahead", _ahead(plain)]
    if augmented is None:
        return [*parts, "Runs with augmentation were not made."]
    rows = [["minus plain training, points", "images", *_ATTACKED]]
    for c in augmented.columns:
        head = augmented.head(c)
        for found, images in ((plain, "as they are"), (augmented, "augmented")):
            if head in map(found.head, found.columns):
                rows.append([head, images, *(_shown(_gain(found, row, head)) for row in _ATTACKED)])
        if any(untuned := [_shown(_gain(augmented, row, head)) for row in _DEFAULTS]):
            rows.append([head, "augmented, defaults", "", *untuned])
    return [*parts, table_lines(rows), _guess(plain, augmented)]


def _ahead(plain: Comparison) -> str:
    """Adversarial training in the paper and here, with a hypothesis."""
    paper = [(plain.paper("pgd-at", c), plain.paper("base", c)) for c in plain.columns]
    lower = sum(a[0] < b[0] for a, b in paper if a is not None and b is not None)
    gains = [each for c in plain.columns if len(each := _gain(plain, "pgd-at", plain.head(c))) > 1]
    above = sum(paired(each)[1] > 0 for each in gains)
    eps = plain.hyper.get("pgd-at", {}).get("eps", 0.0)
    return (
        f"In the paper adversarial training lowers accuracy on CIFAR-10 in {lower} of {len(paper)} columns. Here, with the radius that the search chose "
        f"({255 * eps:.0f}/255), it is significantly above plain training in {above} of {len(gains)}. Hypothesis: without augmentation of the 5,000 images, "
        "any perturbation of the input helps. The same runs with augmentation (crops and flips, `python -m experiments reproduce "
        "beyond-augmented-cifar10 --extra mixcomp-default,logcomp-default`; hyper-parameters chosen again among the same candidates, with augmentation):"
    )


def _guess(plain: Comparison, augmented: Comparison) -> str:
    """The evidence for the hypothesis from runs with augmentation."""
    smaller: dict[str, list[str]] = {"smaller": [], "larger": [], "level": [], "not judged (too few seeds)": []}
    below = []
    for c in augmented.columns:
        head = augmented.head(c)
        if head in map(plain.head, plain.columns):
            smaller[_change(_gain(plain, "pgd-at", head), _gain(augmented, "pgd-at", head))].append(head)
        gains = {row: _gain(augmented, row, head) for row in (*_ATTACKED[1:], *_DEFAULTS)}
        below += [f"{row} ({head})" for row, each in gains.items() if len(each) > 1 and paired(each)[2] < 0]
    verdict = "; ".join(f"{word} at {', '.join(heads)}" for word, heads in smaller.items() if heads)
    said = [f"With augmentation the gain of adversarial training is {verdict}."]
    said += _learned(plain, augmented)
    if below:
        said.append(
            f"Compensation also loses significantly: {', '.join(below)}. If wrong labels are not memorized there is little to gain, and "
            "regularization costs accuracy."
        )
    return " ".join(said)


def _change(before: Sequence[float], after: Sequence[float]) -> str:
    """Whether a gain is smaller, larger or level afterwards, by the interval of the differences seed by seed.

    >>> _change([5.0, 5.2, 5.1], [1.0, 1.1, 0.9]), _change([5.0, 5.2, 5.1], [1.0])
    ('smaller', 'not judged (too few seeds)')
    """
    if min(len(before), len(after)) < 2:
        return "not judged (too few seeds)"
    _, low, high = paired([a - b for a, b in zip(after, before, strict=False)])
    return "smaller" if high < 0 else "larger" if low > 0 else "level"


def _learned(plain: Comparison, augmented: Comparison) -> list[str]:
    """The share of wrong training labels that plain training predicts, without and with augmentation."""
    said = []
    for found, images in ((plain, "without"), (augmented, "with")):
        shares = {found.head(c): found.fitted["base", c].mean for c in found.columns if ("base", c) in found.fitted}
        wanted = [head for head in map(augmented.head, augmented.columns) if head in shares]
        said += [f"{shares[head]:.0f} % at {head} {images} augmentation" for head in wanted]
    return [f"Plain training predicts the wrong label of its training samples for {', '.join(said)}."] if said else []


def _gain(found: Comparison, row: str, head: str) -> list[float]:
    """Differences of a row to plain training seed by seed in the column with this head; nothing if a run is missing."""
    for c in found.columns:
        a, b = found.ours.get((row, c)), found.ours.get(("base", c))
        if found.head(c) == head and a is not None and b is not None:
            return [x - y for x, y in zip(a.each, b.each, strict=False)]
    return []


def _shown(each: Sequence[float]) -> str:
    """A mean difference with its interval; one seed has none.

    >>> _shown([1.0]), _shown([])
    ('+1.0 (1 seed)', '')
    """
    if len(each) < 2:
        return f"{each[0]:+.1f} (1 seed)" if each else ""
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*paired(each))


def _slow_start(tables: Mapping[str, Comparison]) -> list[str]:
    """MixComp from the first step on, and with a bound that grows."""
    shown = side_by_side(tables.values(), ("base", "mixcomp", "mixcomp-warmup", "logcomp"))
    said = (
        "The paper's MixComp compensates the worst-fitting samples of a batch from the first step. This does not harm the ResNet. The small "
        "BiLSTM reaches 69 % after its first epoch (seed 0, no noise), compared with 82 % for cross-entropy, recovers slowly, and varies much "
        "between seeds. The search, on one seed at 20 % noise, did not show this. A bound that grows from zero (`mixcomp(warmup=(0.1, 0.4))`, "
        "other settings unchanged) corrects it on SST-2. It was designed after these runs and is shown on the same seeds. On clean IMDB the same "
        "warm-up cost 12.6 points on the one seed tried ([all candidates](results-details.md#how-the-defaults-were-chosen)), so the default differs."
    )
    return ["### Where MixComp falls behind, and a correction on SST-2", said, shown] if shown else []


def side_by_side(tables: Iterable[Comparison], rows: Sequence[str]) -> str:
    """Some rows side by side, a line for each column that has all of them."""
    lines = [["table", "column", *rows]]
    for found in tables:
        for c in found.columns:
            values = [found.ours.get((row, c)) for row in rows]
            if all(values):
                lines.append([found.table.id, found.head(c), *map(str, values)])
    return table_lines(lines) if len(lines) > 1 else ""
