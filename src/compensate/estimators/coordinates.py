r"""Kernels as coordinates: a linear method on `Z` is the kernel method on `X`.

With the eigenvectors of the kernel matrix, :math:`K = U \Lambda U^T`, the rows of :math:`Z = U \Lambda^{1/2}` have the
inner products of the feature space, :math:`Z Z^T = K`, so clustering or a linear SVM on `Z` is exact. This costs
:math:`O(n^3)` once; for many samples random Fourier features stand in (Rahimi and Recht, 2007).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.kernel_approximation import RBFSampler
from sklearn.metrics.pairwise import pairwise_kernels

from compensate.estimators.checks import count, one_of, positive

Kernel = Literal["linear", "rbf", "poly"]


@dataclass(frozen=True)
class KernelMap:
    """The map of a fitted kernel from features to coordinates. `extra` is the squared length it cannot show."""

    kernel: str
    params: dict[str, Any]
    anchors: np.ndarray
    axes: np.ndarray

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return pairwise_kernels(X, self.anchors, metric=self.kernel, **self.params) @ self.axes

    def extra(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """What of each sample lies outside the span of the fitted ones, as a squared length, (n,)."""
        square = np.einsum("ij,ij->i", X, X)
        if self.kernel == "rbf":
            square = np.ones(len(X))
        elif self.kernel == "poly":
            square = (self.params["gamma"] * square + self.params["coef0"]) ** self.params["degree"]
        return np.maximum(square - np.einsum("ij,ij->i", Z, Z), 0)


@dataclass(frozen=True)
class RandomMap:
    """Random Fourier features of the rbf kernel."""

    sampler: RBFSampler

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return self.sampler.transform(X)

    def extra(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return np.zeros(len(X))


def kernel_params(
    kernel: str, gamma: float | Literal["scale"], degree: int, coef0: float, X: np.ndarray, weights: np.ndarray
) -> dict[str, Any]:
    """The numbers of a kernel. `gamma="scale"` is 1 / (features * variance), as in `sklearn.svm.SVC`."""
    one_of(kernel, "kernel", ["linear", "rbf", "poly"])
    if kernel == "linear":
        return {}
    if gamma == "scale":
        mean = np.average(X, weights=np.broadcast_to(weights[:, None], X.shape))
        variance = np.average((X - mean) ** 2, weights=np.broadcast_to(weights[:, None], X.shape))
        gamma = 1.0 / (X.shape[1] * variance) if variance > 0 else 1.0
    positive(gamma, "gamma")
    if kernel == "rbf":
        return {"gamma": gamma}
    count(degree, "degree")
    positive(coef0, "coef0", zero=True)
    return {"gamma": gamma, "degree": degree, "coef0": coef0}


def fit_kernel_map(X: np.ndarray, kernel: str, params: dict[str, Any]) -> KernelMap:
    """Exact coordinates of a kernel, from the samples `X`, (n, d).

    >>> X = np.array([[0.0, 1.0], [1.0, 1.0], [3.0, 0.0]])
    >>> Z = fit_kernel_map(X, "poly", {"gamma": 1.0, "degree": 2, "coef0": 1.0})(X)
    >>> bool(np.allclose(Z @ Z.T, (X @ X.T + 1) ** 2))
    True
    """
    values, vectors = np.linalg.eigh(pairwise_kernels(X, metric=kernel, **params))
    # Directions below this level are rounding noise, and dividing by their root would blow them up.
    kept = values > 1e-10 * max(values[-1], np.finfo(float).tiny)
    return KernelMap(kernel, params, X, vectors[:, kept] / np.sqrt(values[kept]))


def fit_random_map(X: np.ndarray, params: dict[str, Any], size: int, random_state: Any) -> RandomMap:
    """Random Fourier features of the rbf kernel, `size` of them."""
    return RandomMap(RBFSampler(gamma=params["gamma"], n_components=size, random_state=random_state).fit(X))
