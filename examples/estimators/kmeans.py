"""Four clusters and one sample in ten far off: k-means follows the outliers, robust k-means moves them.

Run:  python examples/estimators/kmeans.py [picture.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from compensate.estimators import RobustKMeans
from compensate.estimators.common import axes, color, legend

PICTURE = Path(__file__).parents[2] / "docs" / "img" / "estimator-kmeans.png"


def main(picture: Path = PICTURE) -> None:
    rng = np.random.default_rng(3)
    truth = np.repeat(np.arange(4), 60)
    corners = 3 * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
    X = np.vstack([corners[truth] + 0.6 * rng.normal(size=(240, 2)), rng.uniform(-16, 16, size=(26, 2))])

    plain = KMeans(4, n_init=10, random_state=0).fit(X)
    robust = RobustKMeans(4, contamination=0.12, random_state=0).fit(X)

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), sharex=True, sharey=True, layout="constrained")
    scores = [adjusted_rand_score(truth, model.labels_[:240]) for model in (plain, robust)]
    axes(left, f"k-means: adjusted Rand index {scores[0]:.2f} on the inliers")
    for k in range(4):
        left.scatter(*X[plain.labels_ == k].T, s=9, color=color(k), alpha=0.7)
    left.scatter(
        *plain.cluster_centers_.T, marker="P", s=90, color="black", edgecolor="white", label="centre", zorder=4
    )
    legend(left)
    robust.plot(X, right)
    right.set_title(f"robust k-means: {scores[1]:.2f}", fontsize=10, loc="left")
    figure.savefig(picture, dpi=90)
    print(f"adjusted Rand index on inliers: k-means {scores[0]:.3f}, robust k-means {scores[1]:.3f}; saved {picture}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
