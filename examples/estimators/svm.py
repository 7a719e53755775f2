"""Wrong labels in one corner turn an ordinary machine; label compensation flips them back.

Run:  python examples/estimators/svm.py [picture.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from compensate.estimators import SlackSVC

PICTURE = Path(__file__).parents[2] / "docs" / "img" / "estimator-svm.png"


def main(picture: Path = PICTURE) -> None:
    rng = np.random.default_rng(2)
    clean = rng.integers(0, 2, 200)
    X = rng.normal(size=(200, 2)) * [0.6, 2.0] + np.where(clean, 1.5, -1.5)[:, None] * [1, 0]
    wrong = (clean == 1) & (X[:, 1] > 1.5) & (X[:, 0] > 1) & (rng.random(200) < 0.7)
    y = np.where(wrong, 0, clean)

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), sharex=True, sharey=True, layout="constrained")
    loss = SlackSVC(C=1.0).fit(X, y)
    loss.plot(X, y, left)
    label = SlackSVC(C=1.0, compensate="label").fit(X, y)
    label.plot(X, y, right)
    figure.savefig(picture, dpi=90)
    found = label.compensations_ != 0
    print(
        f"accuracy on the true labels: slack {loss.score(X, clean):.3f}, label {label.score(X, clean):.3f}; "
        f"{(found & wrong).sum()} of {wrong.sum()} wrong labels found, {(found & ~wrong).sum()} others; saved {picture}"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
