"""Detection of planted errors in labels of every kind, compared with cleanlab's function for that kind.

    python -m benchmarks.kinds --data-dir DATA [--sets digits-labels,...] [--seeds 0,1,2]

Average precision of the planted errors. Both sides see the same out-of-fold probabilities. For label sets, cleanlab is also given the
probabilities before the other labels of a row were looked at, as one classifier per label gives them. Results of sets that are not run again
are kept.
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
from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results" / "kinds.json"
Row = dict[str, float]

GROUPS = {"even": (0, 2, 4, 6, 8), "prime": (2, 3, 5, 7), "loop": (0, 6, 8, 9), "three": (0, 3, 6, 9), "seven": (7,)}
"""Labels that several digits have."""


def precision(wrong: NDArray[Any], score: NDArray[Any]) -> float:
    """Average precision."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(np.ravel(wrong), np.ravel(score)))


# --- label sets -----------------------------------------------------------------------------------------------


def digit_labels(seed: int, data_dir: Path, rows: int = 600) -> tuple[Any, NDArray[Any]]:
    """Digits under overlapping labels."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    kept = np.random.default_rng(seed).permutation(len(y))[:rows]
    return x[kept].astype(np.float32), np.stack([np.isin(y[kept], group) for group in GROUPS.values()], 1).astype(int)


def news_labels(seed: int, data_dir: Path, rows: int = 700) -> tuple[Any, NDArray[Any]]:
    """Two news texts joined, with the topics of both."""
    import pandas as pd

    frame = pd.read_csv(data_dir / "noisy-agnews-train.csv").drop_duplicates("text")
    kept = np.random.default_rng(seed).permutation(len(frame))[: 2 * rows]
    first, second = frame.iloc[kept[:rows]], frame.iloc[kept[rows:]]
    y = np.zeros((rows, 4), int)
    for part in (first, second):
        y[np.arange(rows), part["gt"]] = 1
    return [f"{a} {b}" for a, b in zip(first["text"], second["text"], strict=True)], y


def flipped(y: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """A tenth of all answers."""
    return rng.random(y.shape) < 0.1


def dropped(y: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """A tenth of the labels that are there."""
    return (rng.random(y.shape) < 0.1) & (y == 1)


def label_sets(
    make: Callable[..., tuple[Any, NDArray[Any]]], errors: Callable[..., NDArray[Any]]
) -> Callable[..., Row]:
    """Runs one draw of a set with planted errors."""

    def run(seed: int, data_dir: Path) -> Row:
        from cleanlab.internal.multilabel_scorer import ClassLabelScorer, MultilabelScorer
        from cleanlab.internal.multilabel_utils import onehot2int
        from cleanlab.multilabel_classification import get_label_quality_scores

        from compensate.auditing.api import audit

        x, y = make(seed, data_dir)
        wrong = errors(y, np.random.default_rng(1000 + seed))
        given = np.where(wrong, 1 - y, y)
        found = audit(x, given, encoder="none", seed=seed)
        assert found.probabilities is not None
        p = found.probabilities[:, 1].reshape(y.shape).astype(np.float64)
        p_error = found.p_error.reshape(y.shape)
        own = MultilabelScorer(base_scorer=ClassLabelScorer.SELF_CONFIDENCE).get_class_label_quality_scores(given, p)
        rows = get_label_quality_scores(onehot2int(given), p)
        return {
            "ours": precision(wrong, found.log_odds), "cleanlab": precision(wrong, 1 - own),
            "ours, rows": precision(wrong.any(1), 1 - np.prod(1 - p_error, 1)),
            "cleanlab, rows": precision(wrong.any(1), 1 - rows),
            "share": found.noise_rate.value, "true share": float(wrong.mean()),
            "flags": float(found.mask.sum()),
            "flags, precision": float(wrong.ravel()[found.mask].mean()) if found.mask.any() else 1.0,
        }  # fmt: skip

    return run


# --- tags of tokens --------------------------------------------------------------------------------------------


def spoiled(tags: list[list[str]], rng: np.random.Generator) -> list[list[str]]:
    """A tenth of the entities with another type, moved by a token, or without tags."""
    from compensate.auditing.labels.tags import OUTSIDE, split_tag

    types = sorted({split_tag(tag)[1] for sentence in tags for tag in sentence} - {OUTSIDE})
    found = []
    for sentence in tags:
        new = list(sentence)
        at = 0
        while at < len(sentence):
            end = at + 1
            if split_tag(sentence[at])[0] == "B":
                while end < len(sentence) and split_tag(sentence[end])[0] == "I":
                    end += 1
                if rng.random() < 0.1:
                    _spoil(new, at, end, types, rng)
            at = end
        found.append(new)
    return found


def _spoil(tags: list[str], at: int, end: int, types: list[str], rng: np.random.Generator) -> None:
    kind, old = rng.integers(3), tags[at][2:]
    if kind == 0:
        new = str(rng.choice([name for name in types if name != old]))
        tags[at:end] = [f"{tag[:2]}{new}" for tag in tags[at:end]]
    elif kind == 1 and end < len(tags) and tags[end] == "O":
        tags[at : end + 1] = ["O", *tags[at:end]]
    else:
        tags[at:end] = ["O"] * (end - at)


def tagged(seed: int, data_dir: Path, sentences: int = 450) -> Row:
    """Named entities of WNUT-17."""
    from cleanlab.token_classification.rank import get_label_quality_scores

    from compensate.auditing.labels.tags import split_tag
    from compensate.auditing.source import read

    tagged_sentences = read(data_dir / "wnut17-train.conll", None, None, {}).parts.sentences
    rng = np.random.default_rng(1000 + seed)
    chosen = [tagged_sentences[k] for k in np.random.default_rng(seed).permutation(len(tagged_sentences))[:sentences]]
    words = [[token.word for token in sentence] for sentence in chosen]
    true = [[token.tag for token in sentence] for sentence in chosen]
    given = spoiled(true, rng)
    judged = read(words, given, None, {}).parts.judge(seed)
    wrong = np.array(
        [
            split_tag(a)[1] != split_tag(b)[1]
            for x, y in zip(true, given, strict=True)
            for a, b in zip(x, y, strict=True)
        ]
    )
    cuts = np.cumsum([len(sentence) for sentence in given])[:-1]
    p = np.split(np.exp(judged.verdict.log_q), cuts)
    labels = [part.tolist() for part in np.split(judged.given, cuts)]
    by_sentence, by_token = get_label_quality_scores(labels, p)
    bad = np.array([part.any() for part in np.split(wrong, cuts)])
    worst = np.array([part.max() for part in np.split(judged.verdict.log_odds, cuts)])
    return {
        "ours": precision(wrong, judged.verdict.log_odds), "cleanlab": precision(wrong, 1 - np.concatenate([np.asarray(s) for s in by_token])),
        "ours, rows": precision(bad, worst), "cleanlab, rows": precision(bad, 1 - np.asarray(by_sentence)),
        "share": judged.verdict.share.value, "true share": float(wrong.mean()),
    }  # fmt: skip


# --- masks ----------------------------------------------------------------------------------------------------

SIDE, PICTURES = 40, 20


def shapes(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Disks and boxes of two colors on a ground, and their mask."""
    down, right = np.mgrid[:SIDE, :SIDE]
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for kind in (1, 2):
        y, x, r = rng.integers(8, SIDE - 8), rng.integers(8, SIDE - 8), rng.integers(5, 9)
        inside = (
            (down - y) ** 2 + (right - x) ** 2 < r**2 if kind == 1 else np.maximum(abs(down - y), abs(right - x)) < r
        )
        mask[inside] = kind
    colors = np.array([[0.35, 0.35, 0.4], [0.6, 0.4, 0.35], [0.4, 0.55, 0.6]])
    return colors[mask] + rng.normal(0, 0.12, (SIDE, SIDE, 3)), mask


def digit_canvas(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two digits on a canvas; 1, 4 and 7 are of one class, the others of another."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    picture, mask = rng.normal(0.2, 0.08, (SIDE, SIDE)), np.zeros((SIDE, SIDE), np.uint8)
    for k, left in zip(rng.integers(0, len(y), 2), (1, 21), strict=True):
        drawn = (x[k].reshape(8, 8) / 16).repeat(2, 0).repeat(2, 1)
        top = int(rng.integers(1, SIDE - 17))
        picture[top : top + 16, left : left + 16] += 0.8 * drawn
        mask[top : top + 16, left : left + 16][drawn > 0.3] = 1 if y[k] in (1, 4, 7) else 2
    return np.repeat(picture[..., None], 3, 2), mask


def spoil_mask(mask: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """One object eroded, shifted, or of the other class."""
    from scipy.ndimage import binary_erosion

    new, kind, how = mask.copy(), int(rng.choice([c for c in (1, 2) if (mask == c).any()])), rng.integers(3)
    inside = mask == kind
    if how == 0:
        new[inside & ~binary_erosion(inside, iterations=2)] = 0
    elif how == 1:
        new[inside] = 0
        new[np.roll(inside, (4, 4), (0, 1))] = kind
    else:
        new[inside] = 3 - kind
    return new


def segmented(draw: Callable[..., tuple[NDArray[Any], NDArray[Any]]]) -> Callable[..., Row]:
    """Runs one draw of pictures, a tenth of whose objects (a fifth of the masks) are spoiled."""

    def run(seed: int, data_dir: Path) -> Row:
        from cleanlab.segmentation.rank import get_label_quality_scores

        from compensate.auditing.labels.regions import Masks

        rng = np.random.default_rng(5000 + seed)
        pairs = [draw(rng) for _ in range(PICTURES)]
        bad = np.zeros(PICTURES, bool)
        bad[rng.choice(PICTURES, PICTURES // 5, replace=False)] = True
        masks = [spoil_mask(mask, rng) if b else mask for b, (_, mask) in zip(bad, pairs, strict=True)]
        pictures = tuple(np.clip(picture, 0, 1).astype(np.float32) for picture, _ in pairs)
        found = Masks(pictures, tuple(masks), tuple(f"{k}.png" for k in range(PICTURES))).judge(seed)
        grid = (PICTURES, *found.grids[0])
        p = np.exp(found.verdict.log_q).reshape(*grid, -1).transpose(0, 3, 1, 2)
        given = found.given.reshape(grid)
        true = Masks(pictures, tuple(mask for _, mask in pairs), ()).cells(found.side)
        wrong = true.reshape(grid) != given
        whole, pixels = get_label_quality_scores(given, p, verbose=False)
        ours = found.verdict.p_error.reshape(PICTURES, -1)
        return {
            "ours": precision(wrong, found.verdict.log_odds), "cleanlab": precision(wrong, 1 - np.asarray(pixels)),
            "ours, rows": precision(bad, ours.mean(1)), "cleanlab, rows": precision(bad, 1 - whole),
            "share": found.verdict.share.value, "true share": float(wrong.mean()),
        }  # fmt: skip

    return run


SETS: dict[str, Callable[[int, Path], Row]] = {
    "digits-labels, flipped": label_sets(digit_labels, flipped),
    "news-labels, flipped": label_sets(news_labels, flipped),
    "digits-labels, dropped": label_sets(digit_labels, dropped),
    "news-labels, dropped": label_sets(news_labels, dropped),
    "wnut17-tokens, flipped, shifted and dropped": tagged,
    "shapes-masks, eroded, shifted and swapped": segmented(shapes),
    "digits-masks, eroded, shifted and swapped": segmented(digit_canvas),
}


def table(results: dict[str, dict[str, Row]]) -> str:
    """The mean over seeds, a line a set."""
    lines = [
        "| labels, errors | ours | cleanlab | by sample: ours | cleanlab | stated share | true | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in results.items():
        mean = {key: statistics.mean(run[key] for run in runs.values()) for key in next(iter(runs.values()))}
        figures = [
            f"{mean[key]:.3f}" if key in mean else "" for key in ("ours", "cleanlab", "ours, rows", "cleanlab, rows")
        ]
        shares = [f"{mean[key]:.1%}" if key in mean else "" for key in ("share", "true share")]
        lines.append(f"| {name} | {' | '.join([*figures, *shares])} | {len(runs)} |")
    return "\n".join(lines)


def main() -> None:
    """Runs the sets and stores every draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--sets", help="parts of names of sets, all by default")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="one seed, nothing stored")
    asked = parser.parse_args()
    stored: dict[str, dict[str, Row]] = json.loads(asked.out.read_text())["results"] if asked.out.exists() else {}
    wanted = asked.sets.split(";") if asked.sets else [""]
    for name, run in SETS.items():
        if not any(part in name for part in wanted):
            continue
        for seed in [0] if asked.quick else map(int, asked.seeds.split(",")):
            start = time.process_time()
            row = {key: round(value, 4) for key, value in run(seed, asked.data_dir).items()}
            row["seconds"] = round(time.process_time() - start, 1)
            print(name, seed, row, flush=True)
            stored.setdefault(name, {})[str(seed)] = row
            if not asked.quick:
                command = "python -m benchmarks.kinds --data-dir DATA"
                asked.out.write_text(json.dumps({"command": command, "results": stored}, indent=1) + "\n")
    print(table(stored))


if __name__ == "__main__":
    main()
