"""Three in ten labels of handwritten digits are wrong; the classifier learns the digits anyway and says which they are.

Run:  python examples/estimators/classifier.py [picture.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score
from sklearn.model_selection import train_test_split

from compensate.estimators import CompensatedClassifier

PICTURE = Path(__file__).parents[2] / "docs" / "img" / "estimator-classifier.png"
NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])


def main(picture: Path = PICTURE) -> None:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    rng = np.random.default_rng(0)
    wrong = rng.random(len(y)) < 0.3
    given = NAMES[np.where(wrong, (y + rng.integers(1, 10, len(y))) % 10, y)]

    plain = CompensatedClassifier("base", random_state=0).fit(X, given)
    robust = CompensatedClassifier("logcomp", random_state=0).fit(X, given)
    suspects = robust.suspects_

    figure = plt.figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.2, 1])
    robust.plot(left.subplots())
    right.suptitle("The most suspect: given → suggested", fontsize=10)
    for ax, row in zip(right.subplots(3, 4).flat, suspects.itertuples(), strict=False):
        ax.imshow(X[row.index].reshape(8, 8), cmap="gray_r")
        ax.set_title(f"{row.given} → {row.suggested}", fontsize=7)
        ax.axis("off")
    figure.savefig(picture, dpi=90)
    found = average_precision_score(wrong[suspects["index"]], suspects["score"])
    print(
        f"accuracy on true labels: base {plain.score(X_test, NAMES[y_test]):.3f}, "
        f"logcomp {robust.score(X_test, NAMES[y_test]):.3f}; wrong labels found with average precision {found:.3f}; "
        f"{suspects['flagged'].sum()} flagged, {wrong.sum()} wrong; saved {picture}"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
