"""Detection of edited copies and outliers, compared with cleanlab's Datalab on the same features.

    python -m benchmarks.duplicates --data-dir DATA     # all sets and three seeds; goes on where it was
    python -m benchmarks.duplicates --show              # the table of the stored results

Copies are planted: of texts with typing errors, words left out, added or exchanged, other case and punctuation, the end cut off; of
images cropped, compressed again, mirrored, brighter or darker, with noise, and cropped and compressed. Thresholds were chosen on other
rows: SST-2 seed 0 and CIFAR-10 (training part) seeds 1 and 2; here are rows of the test part of CIFAR-10, of other seeds of SST-2, and of IMDB, which
no threshold was chosen on. AG News has many copies of its own (one agency report in two papers), which count as false here.

Outliers: sentences of another source among reviews, rows that were stretched in tables. Recall is compared at equal precision: ours is that of our
flags, and Datalab's that of its ranking cut where its precision is ours.
"""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

import experiments.data  # noqa: F401  registers cifar10, sst2 and imdb
from benchmarks.measure import run_or_show
from compensate import __version__
from compensate.auditing.duplicates import SIMILAR_IMAGES, SIMILAR_TEXTS, image_pairs, shrunk, text_pairs
from compensate.auditing.issues import oddity, outliers
from compensate.data import load
from compensate.files import write_atomically

RESULTS = Path(__file__).parent / "results" / "duplicates.json"
SEEDS = (11, 12, 13)
ROWS, COPIES = 1500, 150
LETTERS = "abcdefghijklmnopqrstuvwxyz"

Planted = dict[int, int]
"""From the position of a copy to that of its original."""


# --- planting -------------------------------------------------------------------------------------------------


def typing_errors(text: str, luck: random.Random) -> str:
    for _ in range(max(1, len(text) // 40)):
        i = luck.randrange(len(text))
        text = text[:i] + luck.choice(LETTERS) + text[i + 1 :]
    return text


def words_left_out(text: str, luck: random.Random) -> str:
    words = text.split()
    for _ in range(max(1, len(words) // 10)):
        words.pop(luck.randrange(len(words)))
    return " ".join(words)


def words_added(text: str, luck: random.Random) -> str:
    words = text.split()
    for _ in range(max(1, len(words) // 10)):
        words.insert(luck.randrange(len(words) + 1), luck.choice(["really", "indeed", "the", "very", "maybe"]))
    return " ".join(words)


def words_exchanged(text: str, luck: random.Random) -> str:
    words = text.split()
    i = luck.randrange(max(1, len(words) - 1))
    words[i : i + 2] = words[i : i + 2][::-1]
    return " ".join(words)


def other_case(text: str, luck: random.Random) -> str:
    return text.upper().replace(".", "!").replace(",", "")


def end_cut_off(text: str, luck: random.Random) -> str:
    words = text.split()
    return " ".join(words[: max(1, int(0.8 * len(words)))])


TEXT_EDITS = (typing_errors, words_left_out, words_added, words_exchanged, other_case, end_cut_off)


def cropped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    width, height = image.size
    share = rng.uniform(0.75, 0.95)
    left, top = rng.uniform(0, (1 - share) * width), rng.uniform(0, (1 - share) * height)
    box = (left, top, left + share * width, top + share * height)
    return image.resize(image.size, Image.Resampling.BILINEAR, box=box)


def compressed(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=int(rng.integers(15, 60)))
    return Image.open(out).convert("RGB")


def mirrored(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def relit(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    return Image.fromarray(
        np.clip(np.asarray(image) * rng.uniform(0.6, 1.4) + rng.uniform(-20, 20), 0, 255).astype(np.uint8)
    )


def noisy(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image)
    return Image.fromarray(np.clip(pixels + rng.normal(0, 8, pixels.shape), 0, 255).astype(np.uint8))


def cropped_and_compressed(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    return compressed(cropped(image, rng), rng)


IMAGE_EDITS = (cropped, compressed, mirrored, relit, noisy, cropped_and_compressed)


def planted_texts(name: str, seed: int, data_dir: Path) -> tuple[list[str], Planted]:
    luck = random.Random(seed)
    if name == "sst2":
        texts = [str(t) for t in load("sst2", data_dir).train.x]
    elif name == "imdb":
        texts = pd.read_csv(data_dir / "imdb50k.tsv", sep="\t")["text"].astype(str).tolist()
    else:
        texts = pd.read_csv(data_dir / "noisy-agnews-train.csv")["text"].astype(str).tolist()
    texts = luck.sample(sorted({t for t in texts if len(t.split()) >= 5}), ROWS)
    planted: Planted = {}
    for k in range(COPIES):
        original = luck.randrange(ROWS)
        planted[len(texts)] = original
        texts.append(TEXT_EDITS[k % len(TEXT_EDITS)](texts[original], luck))
    return texts, planted


def planted_images(seed: int, data_dir: Path) -> tuple[NDArray[np.uint8], Planted]:
    rng = np.random.default_rng(seed)
    found = load("cifar10", data_dir)
    assert found.test is not None
    images = found.test.x[rng.choice(len(found.test), ROWS, replace=False)]
    originals = rng.choice(ROWS, COPIES, replace=False)
    copies = [
        np.asarray(IMAGE_EDITS[k % len(IMAGE_EDITS)](Image.fromarray(images[i].transpose(1, 2, 0)), rng)).transpose(
            2, 0, 1
        )
        for k, i in enumerate(originals.tolist())
    ]
    return np.concatenate([images, np.stack(copies)]), {ROWS + k: int(i) for k, i in enumerate(originals)}


# --- judging --------------------------------------------------------------------------------------------------


def judged(pairs: list[tuple[int, int]], planted: Planted) -> dict[str, float]:
    """Precision over pairs, and the share of copies that were found with their original or with another copy of it."""
    source = {**{i: i for i in range(ROWS)}, **planted}
    right = [source[i] == source[j] for i, j in pairs]
    found = {i for (i, j), fits in zip(pairs, right, strict=True) for i in (i, j) if fits and i in planted}
    return {
        "precision": float(np.mean(right)) if right else 1.0,
        "recall": len(found) / len(planted),
        "pairs": len(pairs),
    }


def datalab_pairs(vectors: NDArray[np.float32], planted: Planted, precision: float) -> dict[str, Any]:
    """Datalab's near duplicates with its default threshold, and by its ranking at our precision."""
    from cleanlab import Datalab

    lab = Datalab({"id": list(range(len(vectors)))})
    lab.find_issues(features=vectors, issue_types={"near_duplicate": {}})
    issues = lab.get_issues("near_duplicate")
    sets = issues["near_duplicate_sets"].tolist()
    pairs = sorted({(min(i, int(j)), max(i, int(j))) for i, found in enumerate(sets) for j in found})
    default = judged(pairs, planted)
    score = issues["near_duplicate_score"].to_numpy()
    from sklearn.neighbors import NearestNeighbors

    metric = "cosine" if vectors.shape[1] > 3 else "euclidean"
    nearest = NearestNeighbors(n_neighbors=2, metric=metric).fit(vectors).kneighbors(vectors, return_distance=False)
    partner = [int(row[0]) if row[0] != i else int(row[1]) for i, row in enumerate(nearest)]
    order = np.argsort(score, kind="stable")
    best = 0.0
    for top in range(10, 4 * len(planted), 10):
        chosen = sorted({(min(i, partner[i]), max(i, partner[i])) for i in order[:top].tolist()})
        there = judged(chosen, planted)
        if there["precision"] >= precision:
            best = max(best, there["recall"])
    return {"default": default, "recall at our precision": best}


def features(samples: Any, name: str) -> NDArray[np.float32]:
    """What Datalab and the search for candidates look at: sentences by MiniLM, longer texts by their words, images by their pixels."""
    if name == "cifar10":
        return np.asarray(samples, dtype=np.float32).reshape(len(samples), -1) / 255
    if name == "sst2":
        from compensate.encoders import encode

        encoded = encode(samples, "auto", "text")
        assert encoded is not None
        return encoded.values
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(samples)
    return TruncatedSVD(200, random_state=0).fit_transform(words).astype(np.float32)


def near_copies(name: str, seed: int, data_dir: Path) -> dict[str, Any]:
    samples: Any
    if name == "cifar10":
        samples, planted = planted_images(seed, data_dir)
    else:
        samples, planted = planted_texts(name, seed, data_dir)
    vectors = features(samples, name)
    begun = time.process_time()
    if name == "cifar10":
        pairs = [(i, j) for i, j, _ in image_pairs(shrunk(samples), vectors, SIMILAR_IMAGES)]
    else:
        pairs = [(i, j) for i, j, _ in text_pairs(samples, SIMILAR_TEXTS)]
    seconds = time.process_time() - begun
    ours = judged(pairs, planted)
    return {
        "compensate": {**ours, "seconds": round(seconds, 1)},
        "datalab": datalab_pairs(vectors, planted, ours["precision"]),
    }


def planted_outliers(name: str, seed: int, data_dir: Path) -> dict[str, Any]:
    """Average precision of either ranking, and of ours and Datalab's flags precision and recall."""
    from cleanlab import Datalab
    from sklearn import datasets
    from sklearn.metrics import average_precision_score

    rng = np.random.default_rng(seed)
    if name == "sst2":
        from compensate.encoders import encode

        texts, _ = planted_texts("sst2", seed, data_dir)
        others, _ = planted_texts("agnews", seed, data_dir)
        encoded = encode([*texts[:ROWS], *others[:15]], "auto", "text")
        assert encoded is not None
        vectors, odd = encoded.values, np.arange(ROWS + 15) >= ROWS
    else:
        table = getattr(datasets, f"load_{name}")().data
        table = ((table - table.mean(0)) / np.maximum(table.std(0), 1e-9)).astype(np.float32)
        far = table[rng.integers(0, len(table), 15)] * rng.choice([-3, 3], size=(15, table.shape[1]))
        vectors, odd = np.concatenate([table, far]).astype(np.float32), np.arange(len(table) + 15) >= len(table)
    score = oddity(vectors)[0]
    flags = np.isin(np.arange(len(vectors)), [i for _, i, _, _ in outliers(vectors)])
    lab = Datalab({"id": list(range(len(vectors)))})
    lab.find_issues(features=vectors, issue_types={"outlier": {}})
    theirs = lab.get_issues("outlier")

    def told(flagged: NDArray[np.bool_]) -> dict[str, float]:
        return {"precision": float(odd[flagged].mean()) if flagged.any() else 1.0, "recall": float(flagged[odd].mean())}

    return {
        "compensate": {"average precision": float(average_precision_score(odd, score)), **told(flags)},
        "datalab": {
            "average precision": float(average_precision_score(odd, -theirs["outlier_score"].to_numpy())),
            **told(theirs["is_outlier_issue"].to_numpy()),
        },
    }


CASES: dict[str, tuple[Callable[[str, int, Path], dict[str, Any]], tuple[str, ...]]] = {
    "near copies": (near_copies, ("sst2", "imdb", "agnews", "cifar10")),
    "outliers": (planted_outliers, ("sst2", "breast_cancer", "wine")),
}


def run(data_dir: Path) -> None:
    stored = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    stored = {
        "command": "python -m benchmarks.duplicates --data-dir DATA",
        "version": __version__,
        "runs": stored.get("runs", {}),
    }
    for kind, (judge, names) in CASES.items():
        for name in names:
            for seed in SEEDS:
                key = f"{kind}: {name} {seed}"
                if key in stored["runs"]:
                    continue
                stored["runs"][key] = judge(name, seed, data_dir)
                write_atomically(RESULTS, (json.dumps(stored, indent=1) + "\n").encode())
                print(key, stored["runs"][key], flush=True)


def table() -> str:
    """The stored results as Markdown: the mean over the seeds."""
    runs = json.loads(RESULTS.read_text())["runs"]

    def mean(kind: str, name: str, *path: str) -> float:
        found = []
        for seed in SEEDS:
            value: Any = runs.get(f"{kind}: {name} {seed}")
            for part in path:
                value = None if value is None else value[part]
            if value is not None:
                found.append(value)
        return float(np.mean(found)) if found else float("nan")

    lines = [
        "| near copies in | precision | recall | Datalab's recall at our precision | its default: precision, recall |",
        "|---|---|---|---|---|",
    ]
    for name in CASES["near copies"][1]:
        ours = [mean("near copies", name, "compensate", part) for part in ("precision", "recall")]
        theirs = mean("near copies", name, "datalab", "recall at our precision")
        default = [mean("near copies", name, "datalab", "default", part) for part in ("precision", "recall")]
        lines.append(f"| {name} | {ours[0]:.3f} | {ours[1]:.3f} | {theirs:.3f} | {default[0]:.3f}, {default[1]:.3f} |")
    lines += [
        "",
        "| outliers in | average precision | Datalab's | flags: precision, recall | Datalab's |",
        "|---|---|---|---|---|",
    ]
    for name in CASES["outliers"][1]:
        parts = ("average precision", "precision", "recall")
        a, b = ([mean("outliers", name, who, part) for part in parts] for who in ("compensate", "datalab"))
        lines.append(f"| {name} | {a[0]:.3f} | {b[0]:.3f} | {a[1]:.2f}, {a[2]:.2f} | {b[1]:.2f}, {b[2]:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_or_show(run, table)
