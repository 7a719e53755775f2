"""Cost of one iteration of RobustKMeans beside scikit-learn's KMeans: same data, same start, one thread each.

Run:  python -m benchmarks.kmeans
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from compensate.estimators import kmeans

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
    began = time.perf_counter()
    model.fit(X)
    took = time.perf_counter() - began
    assert model.n_iter_ == steps, "converged early: the difference would not be iterations"
    return took


def seconds_ours(X: np.ndarray, start: np.ndarray, steps: int, lam: float | None, penalty: str) -> float:
    t = None if lam is None else lam / 2
    mean = X.mean(0)
    problem = kmeans._Problem(X - mean, None, penalty, t, 0.1)
    began = time.perf_counter()
    *_, done = kmeans._descend(problem, start - mean, steps, -1.0)
    took = time.perf_counter() - began
    assert done == steps
    return took


def per_iteration(run: Any, *args: Any) -> float:
    return (run(*args[:2], LONG, *args[2:]) - run(*args[:2], SHORT, *args[2:])) / (LONG - SHORT)


def measure(n: int, d: int, k: int, repeats: int) -> dict[str, Any]:
    """Median over interleaved repeats, so that a busy machine slows both sides alike."""
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
    return {
        "n": n,
        "d": d,
        "k": k,
        "repeats": repeats,
        "milliseconds per iteration": {name: round(1e3 * median(each), 3) for name, each in times.items()},
        "ratio": {name: round(median(a / b for a, b in zip(times[name], base, strict=True)), 3) for name in cases},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "kmeans.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        sizes = [measure(100_000, 16, 20, args.repeats), measure(50_000, 64, 50, args.repeats)]
    result = {
        "command": f"python -m benchmarks.kmeans --repeats {args.repeats}",
        "threads": 1,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
        "sizes": sizes,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    for size in sizes:
        print(f"n={size['n']:,} d={size['d']} k={size['k']}")
        for name, value in size["milliseconds per iteration"].items():
            print(f"  {name:24} {value:8.3f} ms   x{size['ratio'].get(name, 1.0):.2f}")


if __name__ == "__main__":
    main()
