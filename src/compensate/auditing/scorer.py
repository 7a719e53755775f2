"""The fitted model of an audit: what it would say of labels that were not there, without training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from compensate.auditing.arrays import Floats, Ints
from compensate.auditing.fitted import LEARNERS, StoredLearner
from compensate.auditing.learners import View
from compensate.auditing.noise_model import NoiseModel, pooled
from compensate.auditing.packed import read_packed, write_packed
from compensate.auditing.view_makers import MAKERS, Maker
from compensate.data.dataset import Data
from compensate.errors import InputError

FORMAT = 1
"""Of the files that `save` writes."""

NAME = "scorer"
"""Of these files."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """Views, learners, their weights and the noise model.

    Attributes:
        makers: of the views.
        learners: for each view, by name.
        weights: for each view, of its learners; their sum is how sharp the pooled prediction is.
        noise: the noise model.
        by_chance: whether labels cannot be predicted from the samples, so that none is judged wrong.
    """

    makers: tuple[Maker, ...]
    learners: tuple[Mapping[str, StoredLearner], ...]
    weights: tuple[Mapping[str, float], ...]
    noise: NoiseModel
    by_chance: bool = False

    def log_q(self, data: Data, *, device: Any = None, progress: Any = None) -> Floats:
        """(N, C) the pooled log probabilities of some samples.

        Args:
            data: samples of the kind that was audited.
            device: for the encoder.
            progress: called with "encoding", the items that are done and the number of all.
        """

        def told(done: int, total: int) -> None:
            if progress is not None:
                progress("encoding", done, total)

        found, weights = [], []
        for maker, learners, weight in zip(self.makers, self.learners, self.weights, strict=True):
            view: View = maker.view(data, device, told)
            for name, learner in learners.items():
                if weight[name] > 0:
                    found.append(learner.log_p(view.x, view.trees))
                    weights.append(weight[name])
        return pooled(np.array(weights), found)

    def score(self, log_q: Floats, labels: Ints) -> tuple[Floats, Floats, Ints]:
        """(N,) each: the probability that a label is wrong, its log odds, and the likeliest other class.

        Args:
            log_q: (N, C) as `log_q` gives them.
            labels: (N,) class numbers, none missing.
        """
        odds, suggested = self.noise.score(log_q, labels)
        p = expit(odds)
        return np.minimum(p, 0.5) if self.by_chance else p, odds, suggested

    def save(self, folder: Path) -> None:
        """Writes ``scorer.json`` and ``scorer.safetensors``."""
        noise = self.noise
        write_packed(
            {
                "format": FORMAT,
                "views": [
                    {
                        "kind": type(maker).__name__,
                        "state": maker.state(),
                        "learners": [
                            {"name": name, "kind": type(one).__name__, "arrays": one.arrays(), "weight": weight[name]}
                            for name, one in learners.items()
                        ],
                    }
                    for maker, learners, weight in zip(self.makers, self.learners, self.weights, strict=True)
                ],
                "noise": {
                    "numbers": np.array([noise.share, noise.sharpness, noise.offset, noise.shift]),
                    "directions": noise.directions,
                    "ratios": noise.ratios,
                },
                "by_chance": self.by_chance,
            },
            folder / NAME,
        )

    @staticmethod
    def load(folder: Path) -> Scorer | None:
        """What `save` wrote; none if there is nothing."""
        if not (folder / f"{NAME}.json").is_file():
            return None
        try:
            return _of(read_packed(folder / NAME))
        except Exception as error:  # of JSON, safetensors, numpy or scikit-learn: what is there may say anything
            raise InputError(
                f"{folder} holds no fitted model that can be read ({error or type(error).__name__}). Audit the data again."
            ) from error


def _of(tree: Any) -> Scorer:
    if tree["format"] != FORMAT:
        raise InputError(f"it has the format {tree['format']!r:.20}, of another version")
    share, sharpness, offset, shift = tree["noise"]["numbers"].tolist()
    directions, ratios = tree["noise"]["directions"], tree["noise"]["ratios"]
    classes = len(directions)
    if directions.shape != (classes, classes) or ratios.shape != (classes, classes):
        raise InputError("the noise model does not fit")
    makers, learners, weights = [], [], []
    for view in tree["views"]:
        makers.append(MAKERS[view["kind"]](view["state"]))
        found = view["learners"]
        learners.append({str(one["name"]): LEARNERS[one["kind"]](one["arrays"], classes) for one in found})
        weights.append({str(one["name"]): float(one["weight"]) for one in found})
    noise = NoiseModel(share, sharpness, directions, ratios, offset, shift)
    return Scorer(tuple(makers), tuple(learners), tuple(weights), noise, bool(tree["by_chance"]))
