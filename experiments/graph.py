"""Wrong edges of a real graph: their detection by structure compensation, and its effect on unseen nodes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compensate import Compensated
from compensate._version import __version__
from compensate.data import load
from compensate.data.dataset import generator
from compensate.files import make_folder, write_atomically
from compensate.models import GCN
from compensate.terms import L1, Between, EdgeRecord, Edges
from experiments.comparing import table_lines
from experiments.data import neighbor_graph, with_wrong_edges


@dataclass(frozen=True)
class Setting:
    """How the graph is made and trained on.

    Attributes:
        neighbors: that each digit is joined to.
        wrong: the share of planted edges, which join different classes.
        pixels: number of random noisy pixels that a node shows; None for all 64, without noise.
        noise: standard deviation of that noise.
        labeled: the share of nodes with a label.
        epochs, lr, weight_decay: of the training with Adam.
        lam, step: penalty and step of the edges, for the sum of the losses.
    """

    neighbors: int = 5
    wrong: float = 0.1
    pixels: int | None = 12
    noise: float = 0.3
    labeled: float = 0.5
    epochs: int = 60
    lr: float = 0.01
    weight_decay: float = 5e-4
    lam: float = 0.03
    step: float = 0.5


SETTINGS = {"12 noisy pixels a node": Setting(), "all 64 pixels": Setting(pixels=None)}
"""With all pixels, features alone tell which edges are wrong: the graph was made from them."""


def trial(setting: Setting, seed: int) -> dict[str, float]:
    """Average precision of three scores of edges, and accuracy on unseen nodes with and without compensation."""
    from sklearn.metrics import average_precision_score

    data, rng = load("digits").train, generator(seed, "graph")
    order = rng.permutation(len(data))
    x, y = data.x[order].reshape(len(order), -1), data.target[order]
    edges, wrong = with_wrong_edges(neighbor_graph(x, setting.neighbors), y, setting.wrong, seed)
    if setting.pixels is not None:
        seen = x[:, rng.permutation(x.shape[1])[: setting.pixels]]
        x = np.abs(seen + setting.noise * rng.normal(size=seen.shape)).astype(np.float32)
    shown, joined, labels = torch.from_numpy(x), torch.from_numpy(edges), torch.from_numpy(y)
    train, test = torch.arange(len(y)).split(
        [round(setting.labeled * len(y)), len(y) - round(setting.labeled * len(y))]
    )
    plain, _ = _fitted(setting, seed, shown, joined, labels, train, None)
    lam, step = setting.lam / len(train), setting.step * len(train)  # a table moves by the mean
    table = Edges(len(wrong), penalty=L1(lam), bound=Between(-1, 0), lr=step)
    record = EdgeRecord(table, len(wrong))
    net, changed = _fitted(setting, seed, shown, joined, labels, train, record)
    suspects = record.suspects()
    flagged = suspects.index[suspects.flagged].numpy()
    score = torch.zeros(len(wrong))
    score[suspects.index] = suspects.score
    with torch.no_grad():
        p = plain(torch.arange(len(y))).softmax(-1)
        disagreement = 1 - (p[joined[0]] * p[joined[1]]).sum(-1)
        return {
            "wrong": float(wrong.mean()),
            "ap_compensation": float(average_precision_score(wrong, score.numpy())),
            "ap_unlikeness": float(average_precision_score(wrong, plain.dissimilarity.numpy())),
            "ap_disagreement": float(average_precision_score(wrong, disagreement.numpy())),
            "flagged": float(suspects.flagged.float().mean()),
            # As in an audit, 1 where nothing is flagged.
            "flagged_precision": float(wrong[flagged].mean()) if len(flagged) else 1.0,
            "accuracy_plain": _accuracy(plain(test), labels[test]),
            "accuracy_compensated": _accuracy(net(test, changed), labels[test]),
        }


def _fitted(
    setting: Setting, seed: int, x: Tensor, edges: Tensor, y: Tensor, train: Tensor, record: EdgeRecord | None
) -> tuple[GCN, Tensor | None]:
    torch.manual_seed(seed)
    net = GCN(x, edges, 10)
    criterion = Compensated() if record is None else Compensated(structure=record)
    optimizer = torch.optim.Adam(net.parameters(), setting.lr, weight_decay=setting.weight_decay)
    for _ in range(setting.epochs):
        optimizer.zero_grad()
        criterion.evaluate(net, train, y[train]).loss.backward()
        optimizer.step()
    return net, None if record is None else record.term.dense()


def _accuracy(u: Tensor, y: Tensor) -> float:
    return float((u.argmax(-1) == y).float().mean())


def run(path: Path, seeds: int) -> dict[str, Any]:
    """All settings over the seeds, stored with every number."""
    found = {
        name: {"setting": asdict(setting), "runs": [{"seed": k, **trial(setting, k)} for k in range(seeds)]}
        for name, setting in SETTINGS.items()
    }
    stored = {"version": __version__, "data": "digits", "settings": found}
    make_folder(path.parent)
    write_atomically(path, (json.dumps(stored, indent=1) + "\n").encode())
    return stored


def section(path: Path) -> list[str]:
    """The stored runs as parts of a Markdown page."""
    if not path.is_file():
        return []
    stored = json.loads(path.read_text(encoding="utf-8"))["settings"]
    names = {
        "ap_compensation": "average precision: change of the edge",
        "ap_unlikeness": "dissimilarity of the ends",
        "ap_disagreement": "disagreement of predictions",
        "flagged_precision": "precision of flagged edges",
        "accuracy_plain": "accuracy, plain",
        "accuracy_compensated": "accuracy, compensated",
    }
    rows = []
    for name, found in stored.items():
        values = {key: np.array([run[key] for run in found["runs"]]) for key in names}
        rows.append([name, *(f"{v.mean():.3f} ± {v.std(ddof=1):.3f}" for v in values.values())])
    first = next(iter(stored.values()))
    setting, count = first["setting"], len(first["runs"])
    text = (
        f"`python -m experiments graph`: the {setting['neighbors']} nearest neighbors of each digit as edges, {setting['wrong']:.0%} wrong edges "
        f"planted between classes, half of the nodes labeled, {count} seeds. Structure compensation takes weight from edges under an l1 penalty; "
        "the mean removed weight over the training is the evidence against an edge. Accuracy is on unlabeled nodes."
    )
    return ["## Wrong edges of a graph", text, table_lines([["", *names.values()], *rows])]
