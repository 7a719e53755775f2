"""Three views of the same samples, one row in five of each view corrupted.

Run:  python examples/estimators/multiview.py [picture.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from compensate.estimators import MultiViewRobustClustering
from compensate.estimators.common import axes

PICTURE = Path(__file__).parents[2] / "docs" / "img" / "estimator-multiview.png"


def main(picture: Path = PICTURE) -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(240) % 4
    views, wrong = [], []
    for d in (20, 12, 30):
        view = 1.2 * rng.normal(size=(4, d))[truth] + rng.normal(size=(240, d))
        bad = rng.random(240) < 0.2
        view[bad] = 15 * rng.normal(size=(bad.sum(), d))
        views.append(view)
        wrong.append(bad)

    model = MultiViewRobustClustering(4, random_state=0).fit(views)
    joined = KMeans(4, n_init=10, random_state=0).fit_predict(np.hstack(views))
    ours, theirs = adjusted_rand_score(truth, model.labels_), adjusted_rand_score(truth, joined)

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), width_ratios=(3, 1), layout="constrained")
    model.plot(views, left)
    axes(right, "compensated (dark)")
    right.imshow(model.outliers_[:60], aspect="auto", cmap="Greys", interpolation="nearest")
    right.set(xlabel="view", ylabel="sample (first 60)", xticks=range(3))
    figure.savefig(picture, dpi=90)
    found = model.outliers_ & np.stack(wrong, axis=1)
    print(
        f"adjusted Rand index: k-means on joined views {theirs:.3f}, robust multi-view {ours:.3f}; "
        f"{found.sum()} of {np.sum(wrong)} corrupted rows found; saved {picture}"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
