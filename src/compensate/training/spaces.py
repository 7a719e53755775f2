"""What is worth trying: the search space of each method, and those of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from compensate.errors import InputError, nearest

Preset = Literal["default", "paper", "paper-per-sample"]
Kind = Literal["image", "imdb", "sst2"]


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Real:
    """A number between two others; `log` spreads the trials evenly over orders of magnitude."""

    low: float
    high: float
    log: bool = False


Range = Choice | Real


@dataclass(frozen=True)
class Space:
    """The hyper-parameters of a method that are searched, and those that are fixed meanwhile.

    Attributes:
        ranges: by name.
        fixed: other hyper-parameters.
        per_batch: names of those that the preset "paper" divides by the size of a batch.
    """

    ranges: Mapping[str, Range]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    per_batch: tuple[str, ...] = ()

    def hyper(self, values: Mapping[str, float], preset: Preset, batch_size: int) -> dict[str, Any]:
        """The hyper-parameters to train with, from values in the ranges.

        >>> PAPER["logcomp"]["image"].hyper({"lam": 0.25, "lr": 3.0}, "paper", 128)
        {'update': 'subgradient', 'lam': 0.25, 'lr': 0.0234375}
        """
        divided = {k: v / batch_size for k, v in values.items() if preset == "paper" and k in self.per_batch}
        return {**self.fixed, **values, **divided}


_PRO = Choice((0, 5, 7.5, 15, 25, 35, 45, 50))
_SUBGRADIENT = {"update": "subgradient"}

DEFAULT: dict[str, Space] = {
    "logcomp": Space({"lam": Real(0.01, 0.5, log=True), "lr": Real(0.02, 5.0, log=True)}),
    "mixcomp": Space({"eta": Real(0.5, 10.0, log=True), "pro": Real(0.0, 60.0)}),
    "mixcomp_adaptive": Space({"eps1": Real(0.5, 10.0, log=True), "pro": Real(0.0, 60.0)}),
    "elr": Space({"lam": Real(0.5, 10.0, log=True), "beta": Real(0.3, 0.99)}),
    "gce": Space({"q": Real(0.1, 1.0)}),
    "sop": Space({"lr_u": Real(0.01, 10.0, log=True), "lr_v": Real(0.01, 100.0, log=True)}),
    "label_smoothing": Space({"lam": Real(0.01, 0.6)}),
    "adversarial_label_smoothing": Space({"lam": Real(0.01, 0.6)}),
    "online_label_smoothing": Space({"alpha": Real(0.05, 0.95)}),
    "bootstrap_soft": Space({"beta": Real(0.3, 1.0)}),
    "bootstrap_hard": Space({"beta": Real(0.3, 1.0)}),
    "mix_bootstrap": Space({"alpha": Real(0.05, 0.8), "beta": Real(0.0, 1.0)}),
    "mix_level_label": Space({"lam": Real(0.01, 0.5), "head": Real(0.0, 0.5), "tail": Real(0.0, 0.5)}),
    "proselflc": Space({"sharpness": Real(4.0, 32.0), "middle": Real(0.2, 0.8)}),
    "category_logit": Space({"lam": Real(0.01, 1.0, log=True), "lr": Real(0.01, 1.0, log=True)}),
    "logit_adjustment": Space({"tau": Real(0.0, 2.0)}),
    "ldam": Space({"max_margin": Real(0.05, 2.0, log=True)}),
    "focal": Space({"gamma": Real(0.0, 5.0)}),
    "isda": Space({"lam": Real(0.05, 5.0, log=True)}),
    "pgd_at": Space({"eps": Real(0.001, 0.1, log=True)}),
    "adversarial_feature": Space({"eps": Real(0.001, 0.1, log=True)}),
    "adversarial_logit": Space({"eps": Real(0.05, 2.0, log=True)}),
    "universal_at": Space({"eps": Real(0.001, 0.1, log=True)}),
    "classwise_universal_at": Space({"eps": Real(0.001, 0.1, log=True)}),
    "center_feature": Space({"lam": Real(0.0, 0.6)}),
    "slack_hinge": Space({"lam": Real(0.05, 1.0), "lr": Real(0.01, 1.0, log=True)}),
    "guess_label": Space({"lam": Real(0.05, 0.95)}),
    "distillation": Space({"lam": Real(0.1, 4.0, log=True), "temperature": Real(1.0, 10.0)}),
    "meta_logit": Space({"lr": Real(0.5, 100.0, log=True)}),
    "meta_label": Space({"lr": Real(5.0, 1000.0, log=True)}),
    "meta_logit_adjustment": Space({"lr": Real(0.01, 1.0, log=True)}),
}
"""Ours, wide enough to hold good values for small and large data sets."""

_TEXT_MIXCOMP = Space(
    {"eta": Choice((0, 0.075, 0.15, 0.25, 0.5, 0.75, 1)), "eps2": Choice((0, 0.005, 0.01, 0.015)), "pro": _PRO}
)
_TEXT_PGD = Space({"eps": Choice((0.005, 0.01, 0.015))})

PAPER: dict[str, dict[Kind, Space]] = {
    "logcomp": {
        "image": Space({"lam": Choice((0.25, 0.35)), "lr": Choice((1.5, 3, 4.5, 6))}, _SUBGRADIENT, ("lr",)),
        "imdb": Space({"lam": Choice((0.75, 1)), "lr": Choice((0.6, 0.7, 0.8, 0.9, 1))}, _SUBGRADIENT, ("lr",)),
        "sst2": Space(
            {"lam": Choice((0.75, 1)), "lr": Choice((0.02, 0.025, 0.03, 0.035, 0.04))}, _SUBGRADIENT, ("lr",)
        ),
    },
    "mixcomp": {
        "image": Space(
            {"eta": Choice((0.5, 1.5, 2, 3, 4, 5)), "eps2": Choice((0, 8 / 255, 10 / 255, 12 / 255)), "pro": _PRO}
        ),
        "imdb": _TEXT_MIXCOMP,
        "sst2": _TEXT_MIXCOMP,
    },
    "pgd_at": {
        "image": Space({"eps": Choice((8 / 255, 10 / 255, 12 / 255))}),
        "imdb": _TEXT_PGD,
        "sst2": _TEXT_PGD,
    },
}
"""Appendices B (images) and C (texts) of Yao and Wu, Compensation Learning, 2021.

The paper does not say whether the learning rate of the compensation acts on the mean over a batch or on each sample. The
preset "paper" takes it for the former and divides it by the size of a batch, "paper-per-sample" for the latter.
"""


def space_of(method: str, preset: Preset, kind: Kind) -> Space:
    """The space of a method under a preset, for a kind of data."""
    if preset == "default":
        if method not in DEFAULT:
            raise InputError(f"{method} has no hyper-parameter that is searched; {nearest(method, DEFAULT)}")
        return DEFAULT[method]
    if preset not in ("paper", "paper-per-sample"):
        raise InputError(f'preset is "{preset}"; choose default, paper or paper-per-sample.')
    if method not in PAPER:
        raise InputError(f"the paper gives no search space for {method}; it does for {', '.join(PAPER)}.")
    return PAPER[method][kind]
