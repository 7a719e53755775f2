"""Cost of one iteration of RobustKMeans relative to scikit-learn's KMeans: same data, same start, one thread each.

python -m benchmarks.kmeans [--quick]
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from benchmarks.measure import Ratio, options, report
from compensate.estimators import kmeans

ABOUT = (
    "CPU seconds. One iteration of RobustKMeans relative to one of scikit-learn's KMeans from the "
    "same start, on data with 10 % gross outliers."
)
BAR = 1.2
SHORT, LONG = 5, 30  # iterations of the two runs whose difference leaves out checks and start


def data(n: int, d: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping clusters with 10 % gross outliers, and a start drawn from the samples."""
    rng = np.random.default_rng(seed)
    X = 2 * rng.normal(size=(k, d))[rng.integers(k, size=n)] + rng.normal(size=(n, d))
    far = rng.choice(n, n // 10, replace=False)
    X[far] += 10 * rng.normal(size=(len(far), d))
    return X, X[rng.choice(n, k, replace=False)]


def seconds_sklearn(X: np.ndarray, start: np.ndarray, steps: int) -> float:
    model = KMeans(len(start), init=start, n_init=1, max_iter=steps, tol=0.0, algorithm="lloyd")
    began = time.process_time()
    model.fit(X)
    took = time.process_time() - began
    assert model.n_iter_ == steps, "converged early: the difference would not be iterations"
    return took


def seconds_ours(X: np.ndarray, start: np.ndarray, steps: int, lam: float | None, penalty: str) -> float:
    t = None if lam is None else lam / 2
    mean = X.mean(0)
    problem = kmeans._Problem(X - mean, np.ones(len(X)), penalty, t, 0.1)
    began = time.process_time()
    *_, done = problem.descend(start - mean, steps, -1.0)
    took = time.process_time() - began
    assert done == steps
    return took


def per_iteration(run: Any, *args: Any) -> float:
    return (run(*args[:2], LONG, *args[2:]) - run(*args[:2], SHORT, *args[2:])) / (LONG - SHORT)


def measure(n: int, d: int, k: int, repeats: int) -> list[Ratio]:
    """Median over interleaved repeats; a busy machine slows both sides alike."""
    X, start = data(n, d, k)
    cases = {"lam from contamination": (None, "l2"), "lam given": (8.0, "l2"), "plain (lam infinite)": (np.inf, "l2")}
    times: dict[str, list[float]] = {"sklearn KMeans": [], **{name: [] for name in cases}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(repeats):
            times["sklearn KMeans"].append(per_iteration(seconds_sklearn, X, start))
            for name, (lam, penalty) in cases.items():
                times[name].append(per_iteration(seconds_ours, X, start, lam, penalty))
    base = times["sklearn KMeans"]
    size = f"n={n:,}, d={d}, k={k}"
    return [Ratio(f"an iteration, {size}, {name}", "scikit-learn's KMeans", times[name], base, BAR) for name in cases]


def main() -> None:
    """Measures, prints and stores."""
    quick = options(__doc__).quick
    torch.set_num_threads(1)
    sizes, repeats = ([(20_000, 16, 20)], 2) if quick else ([(100_000, 16, 20), (50_000, 64, 50)], 7)
    with threadpool_limits(1):
        ratios = [ratio for size in sizes for ratio in measure(*size, repeats)]
    report("kmeans", ratios, about=ABOUT, quick=quick)


if __name__ == "__main__":
    main()
