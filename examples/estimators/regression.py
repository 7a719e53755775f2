"""Gross errors in the responses, and responses exchanged between rows.

Run:  python examples/estimators/regression.py [picture.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from compensate.estimators import ShiftRegressor
from compensate.estimators.common import axes, color, legend, outliers

PICTURE = Path(__file__).parents[2] / "docs" / "img" / "estimator-regression.png"


def main(picture: Path = PICTURE) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(250, 3))
    y = X @ [2.0, -1.0, 0.5] + 0.3 * rng.normal(size=250)
    far = rng.choice(250, 25, replace=False)
    y[far] += rng.uniform(3, 9, 25)

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    model = ShiftRegressor(penalty="l0").fit(X, y)
    model.plot(X, y, left)

    X = rng.normal(size=(400, 3))
    original = X @ [2.0, -1.0, 0.5] + 0.05 * rng.normal(size=400)
    rows, order = rng.choice(400, 24, replace=False), np.arange(400)
    order[rows] = rng.permutation(rows)
    moved = order != np.arange(400)
    given = original[order]
    model = ShiftRegressor(permuted=True).fit(X, given)
    axes(right, f"Shuffled responses: {(model.suspects_ & moved).sum()} of {moved.sum()} found and put back")
    predicted = model.predict(X)
    right.scatter(predicted[~model.suspects_], given[~model.suspects_], s=9, color=color(0), alpha=0.6)
    outliers(right, np.column_stack([predicted, given])[model.suspects_], "response of another row")
    back = given[model.permutation_]
    right.scatter(predicted[model.suspects_], back[model.suspects_], s=18, facecolors="none", edgecolors="#009E73",
                  label="put back")  # fmt: skip
    right.set(xlabel="prediction", ylabel="response")
    legend(right)
    figure.savefig(picture, dpi=90)
    print(
        f"shuffled responses found: {(model.suspects_ & moved).sum()} of {moved.sum()}, "
        f"false alarms {(model.suspects_ & ~moved).sum()}; saved {picture}"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
