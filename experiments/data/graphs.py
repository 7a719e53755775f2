"""Graphs of data sets: nearest neighbors as edges, and wrong edges among them, made on purpose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import generator
from compensate.errors import InputError

EdgeList = NDArray[np.int64]


def neighbor_graph(x: NDArray[np.floating], k: int = 5) -> EdgeList:
    """(2, E) the undirected graph in which each sample is joined to its `k` nearest by Euclidean distance, each edge once.

    >>> neighbor_graph(np.array([[0.0], [1.0], [5.0]]), 1).tolist()
    [[0, 1], [1, 2]]
    """
    from sklearn.neighbors import NearestNeighbors

    flat = np.asarray(x).reshape(len(x), -1)
    if not 1 <= k < len(flat):
        raise InputError(f"k is {k}; expected from 1 to {len(flat) - 1}, one less than there are samples.")
    near = NearestNeighbors(n_neighbors=k).fit(flat).kneighbors(return_distance=False)
    pairs = np.stack([np.repeat(np.arange(len(flat)), k), near.ravel()])
    return np.unique(np.sort(pairs, 0), axis=1).astype(np.int64)


def with_wrong_edges(
    edges: EdgeList, labels: NDArray[np.integer], rate: float, seed: int = 0
) -> tuple[EdgeList, NDArray[np.bool_]]:
    """The graph with edges added between samples of different classes, and which edges those are, (E,).

    Args:
        edges: (2, E) the graph.
        labels: (N,) the classes of the nodes.
        rate: the share of wrong edges among all of the result.
        seed: of the choice.

    >>> edges, wrong = with_wrong_edges(np.array([[0, 1], [1, 2]]), np.array([0, 0, 0, 1]), 0.34)
    >>> edges.shape, int(wrong.sum())
    ((2, 3), 1)
    """
    if not 0 <= rate < 1:
        raise InputError(f"rate is {rate}; expected a share of the edges, in [0, 1).")
    rng, count = generator(seed, "edges"), round(rate / (1 - rate) * edges.shape[1])
    known = set(map(tuple, edges.T.tolist()))
    added: list[tuple[int, int]] = []
    possible = len(labels) * (len(labels) - 1) // 2 - len(known)
    for _ in range(100 * max(count, 1)):
        if len(added) == count:
            break
        a, b = sorted(rng.integers(len(labels), size=2).tolist())
        if labels[a] != labels[b] and (a, b) not in known:
            known.add((a, b))
            added.append((a, b))
    if len(added) < count:
        raise InputError(
            f"{count} wrong edges were asked for and {len(added)} found among {possible} pairs; lower the rate."
        )
    whole = np.concatenate([edges, np.array(added, dtype=np.int64).reshape(-1, 2).T], 1)
    order = rng.permutation(whole.shape[1])
    return whole[:, order], (np.arange(whole.shape[1]) >= edges.shape[1])[order]
