"""Issues of single images, rows, classes and columns, compared with cleanlab's Datalab on the same planted cases.

    python -m benchmarks.issues --data-dir DATA     # three seeds
    python -m benchmarks.issues --show              # the table of the stored results

Planted are: of 300 test images of CIFAR-10, twelve each made dark, bright and blank; of the breast cancer table, ten rows without a value; of the
digits, a class of five rows; and to the breast cancer table, three columns that number or name the rows: in order, shuffled, and by a code. The rules that tell
blank from dark images and that name empty rows were written after seeing the first of the three seeds; other
thresholds were not chosen here. Datalab sees its images through CleanVision.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import experiments.data  # noqa: F401  registers cifar10, sst2 and imdb
from benchmarks.measure import run_or_show
from compensate import __version__
from compensate.auditing.api import audit
from compensate.auditing.issues import odd_images
from compensate.data import load
from compensate.files import write_atomically

RESULTS = Path(__file__).parent / "results" / "issues.json"
SEEDS = (11, 12, 13)
IMAGES, ODD = 300, 12
Told = dict[str, float]


def told(found: NDArray[np.bool_], planted: NDArray[np.bool_]) -> Told:
    """Precision and recall of the findings."""
    precision = float(planted[found].mean()) if found.any() else 1.0
    return {"precision": precision, "recall": float(found[planted].mean())}


def image_cases(seed: int, data_dir: Path) -> dict[str, dict[str, Told]]:
    """Dark, bright and blank images."""
    from cleanlab import Datalab
    from datasets import Dataset, Image
    from PIL import Image as Picture

    rng = np.random.default_rng(seed)
    test = load("cifar10", data_dir).test
    assert test is not None
    images = test.x[rng.choice(len(test), IMAGES, replace=False)].astype(np.float64)
    images[:ODD] *= rng.uniform(0.03, 0.12, (ODD, 1, 1, 1))
    images[ODD : 2 * ODD] = 255 - (255 - images[ODD : 2 * ODD]) * rng.uniform(0.02, 0.06, (ODD, 1, 1, 1))
    blank = rng.uniform(40, 215, (ODD, 3, 1, 1)) + rng.normal(0, 1, (ODD, 3, 32, 32))
    images[2 * ODD : 3 * ODD] = blank
    images = images.round().clip(0, 255).astype(np.uint8)
    ours = {kind: np.zeros(IMAGES, bool) for kind in ("dark_image", "bright_image", "blank_image")}
    for kind, row, _, _ in odd_images(images):
        ours[kind][row] = True
    pictures = [Picture.fromarray(image.transpose(1, 2, 0)) for image in images]
    lab = Datalab(Dataset.from_dict({"image": pictures}).cast_column("image", Image()), image_key="image")
    lab.find_issues()
    cases = {}
    for k, (kind, theirs) in enumerate(zip(ours, ("dark", "light", "low_information"), strict=True)):
        planted = np.arange(IMAGES) // ODD == k
        flags = lab.get_issues(theirs)[f"is_{theirs}_issue"].to_numpy()
        cases[kind] = {"compensate": told(ours[kind], planted), "datalab": told(flags, planted)}
    return cases


def row_cases(seed: int, data_dir: Path) -> dict[str, dict[str, Told]]:
    """Rows without a value, and a rare class."""
    from cleanlab import Datalab
    from sklearn.datasets import load_breast_cancer, load_digits

    rng = np.random.default_rng(seed)
    x, y = load_breast_cancer(return_X_y=True)
    table = pd.DataFrame(x, columns=[f"c{k}" for k in range(x.shape[1])]).assign(label=y)
    planted = np.zeros(len(table), bool)
    planted[rng.choice(len(table), 10, replace=False)] = True
    table.iloc[planted, :-1] = np.nan
    found = audit(table, label="label").issues
    ours = np.isin(np.arange(len(table)), found[found["issue"] == "empty_row"]["index"])
    lab = Datalab({"label": y.tolist()}, label_name="label")
    lab.find_issues(features=table.drop(columns="label").to_numpy(), issue_types={"null": {}})
    theirs = lab.get_issues("null")["is_null_issue"].to_numpy()
    x, y = load_digits(return_X_y=True)
    rare = int(rng.integers(10))
    kept = np.concatenate([np.flatnonzero(y != rare), np.flatnonzero(y == rare)[:5]])
    named = audit(x[kept].astype(np.float32), y[kept]).issues
    by_us = named[named["issue"] == "rare_class"]["column"].astype(int).tolist()
    lab = Datalab({"label": y[kept].tolist()}, label_name="label")
    lab.find_issues(issue_types={"class_imbalance": {}})
    flagged = lab.get_issues("class_imbalance")["is_class_imbalance_issue"].to_numpy()
    classes = np.arange(10)
    return {
        "empty_row": {"compensate": told(ours, planted), "datalab": told(theirs, planted)},
        "rare_class": {
            "compensate": told(np.isin(classes, by_us), classes == rare),
            "datalab": told(np.isin(classes, y[kept][flagged]), classes == rare),
        },
    }


def column_cases(seed: int, data_dir: Path) -> dict[str, dict[str, Told]]:
    """Columns that number or name the rows."""
    from cleanlab import Datalab
    from cleanlab.datalab.internal.issue_manager.identifier_column import IdentifierColumnIssueManager
    from sklearn.datasets import load_breast_cancer

    rng = np.random.default_rng(seed)
    x, y = load_breast_cancer(return_X_y=True)
    n = len(y)
    names = {f"c{k}": x[:, k] for k in range(x.shape[1])}
    keys = {
        "number": np.arange(1000, 1000 + n),
        "shuffled": rng.permutation(n),
        "code": [f"{rng.integers(1 << 40):010x}" for _ in range(n)],
    }
    table = pd.DataFrame({**names, **keys})
    planted = np.arange(table.shape[1]) >= len(names)
    found = audit(table.assign(label=y), label="label").issues
    ours = np.isin(list(table.columns), found[found["issue"] == "identifier_column"]["column"])
    lab = Datalab({"label": y.tolist()}, label_name="label")
    manager = IdentifierColumnIssueManager(lab)  # Datalab does not run it by its name
    manager.find_issues(features=table)
    theirs = np.isin(np.arange(table.shape[1]), manager.info["identifier_columns"])
    return {"identifier_column": {"compensate": told(ours, planted), "datalab": told(theirs, planted)}}


def run(data_dir: Path) -> None:
    """All cases and seeds, stored after each."""
    runs: dict[str, Any] = {}
    for seed in SEEDS:
        for cases in (image_cases, row_cases, column_cases):
            for kind, row in cases(seed, data_dir).items():
                runs.setdefault(kind, {})[str(seed)] = row
                print(kind, seed, row, flush=True)
        stored = {"command": "python -m benchmarks.issues --data-dir DATA", "version": __version__, "runs": runs}
        write_atomically(RESULTS, (json.dumps(stored, indent=1) + "\n").encode())


def table() -> str:
    """The stored results as Markdown: the mean over the seeds."""
    lines = ["| planted | precision, recall | Datalab's |", "|---|---|---|"]
    for kind, runs in json.loads(RESULTS.read_text())["runs"].items():
        cells = []
        for who in ("compensate", "datalab"):
            mean = [float(np.mean([run[who][part] for run in runs.values()])) for part in ("precision", "recall")]
            cells.append(f"{mean[0]:.2f}, {mean[1]:.2f}")
        lines.append(f"| `{kind}` | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_or_show(run, table)
