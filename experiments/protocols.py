"""How the runs of a table are trained: the paper's protocol, one for a small machine, and one for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

from compensate.methods import METHODS, find
from compensate.methods.registry import Choice, PaperData, Settings
from compensate.training.config import Config
from experiments.tables import Published, published

Scale = Literal["paper", "small", "tiny"]
SCALES: tuple[Scale, ...] = ("paper", "small", "tiny")

NOISE = {
    "none": "none",
    "random": "random",
    "pair": "pair",
    "symmetric": "first",
    "asymmetric": "first-positive",
    "instance": "instance",
}
"""The paper's names of noise, and ours: for texts it flips "the former" samples of the corpus."""

WARMUP = [0.1, 0.4]
"""The part of the training in which the bound of mixcomp-warmup goes from zero to its value."""

ATTACKS = (2 / 255, 8 / 255)
"""Radii of the attack (PGD, 20 steps) by which adversarial accuracy is measured; the paper does not name its own."""


@dataclass(frozen=True)
class Protocol:
    """How the tables of one data set are trained.

    Attributes:
        options: of `Config`, for every run.
        columns: noise of the columns that are run; all if empty.
        models: models that replace the paper's, for the tables of depths.
        steps: of every inner loop on features.
        eps2: the radius of the ablation's feature compensation.
        tuned_at: the noise under which hyper-parameters are chosen.
        tuned_on: changes of `options` for that choice.
        candidates: hyper-parameters to choose from, by method; the default is always one of them.
        chosen_on: the data set whose choice is used instead of a search.
    """

    options: Mapping[str, Any]
    columns: tuple[tuple[str, float], ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    steps: int = 3
    eps2: float = 2 / 255
    tuned_at: str = "random:0.2"
    tuned_on: Mapping[str, Any] = field(default_factory=dict)
    candidates: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    chosen_on: str = ""


def _candidates(kind: Literal["image", "text"]) -> dict[str, Settings]:
    """The settings that each method names."""
    return {name: row.candidates[kind] for name, row in METHODS.items() if row.candidates}


def _spaces(kind: PaperData) -> dict[str, list[dict[str, Any]]]:
    """Every combination of the paper's search sets."""
    found = {}
    for name, row in METHODS.items():
        if kind not in row.paper_search:
            continue
        space = row.paper_search[kind]
        ranges = {k: r.values for k, r in space.ranges.items() if isinstance(r, Choice)}
        found[name] = [space.hyper(dict(zip(ranges, v, strict=True)), "paper", 128) for v in product(*ranges.values())]
    return found


_RESNET = {"epochs": 300, "batch_size": 128, "optimizer": "sgd", "lr": 0.1, "schedule": "step", "augment": "crop-flip"}
_IMAGES = {"size": 16}
_SMALL_CIFAR = Protocol(
    {
        "data_options": _IMAGES, "limit": 5000, "limit_test": 4000, "model": "resnet8", "augment": "none", "epochs": 16,
        "batch_size": 64, "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "schedule": "cosine", "validation": 0.1,
    },
    # ResNet-20 and ResNet-32 are the same net here: the first column of the tables of depth is the net of all other tables.
    models={"resnet20": "resnet8", "resnet32": "resnet8", "resnet44": "resnet14", "resnet56": "resnet20", "resnet110": "resnet32"},
    tuned_on={"validation": 0.2, "seed": 100},
    candidates=_candidates("image"),
)  # fmt: skip

PROTOCOLS: dict[Scale, dict[str, Protocol]] = {
    "paper": {
        "cifar10": Protocol(_RESNET, steps=7, eps2=8 / 255, candidates=_spaces("image")),
        "cifar100": Protocol(_RESNET, steps=7, eps2=8 / 255, candidates=_spaces("image")),
        "imdb": Protocol(
            {
                "model": "bilstm", "vectors": "glove.6B.300d", "epochs": 6, "batch_size": 64, "optimizer": "adam", "lr": 1e-3,
                "validation": 0.2, "model_options": {"hidden": 100, "dropout": 0.5},
            },
            eps2=0.01, tuned_at="first:0.2", candidates=_spaces("imdb"),
        ),
        "sst2": Protocol(
            {
                "model": "bilstm", "vectors": "glove.6B.300d", "epochs": 50, "batch_size": 32, "optimizer": "adam", "lr": 1e-4,
                "model_options": {"hidden": 256, "dropout": 0.7},
            },
            eps2=0.01, tuned_at="first:0.2", candidates=_spaces("sst2"),
        ),
    },
    "small": {
        "cifar10": _SMALL_CIFAR,
        # A few hundred held-out labels of 100 classes cannot tell candidates apart.
        "cifar100": replace(_SMALL_CIFAR, candidates={}, chosen_on="cifar10"),
        "imdb": Protocol(
            {
                "limit": 2000, "limit_test": 2000, "max_length": 200, "model": "bilstm", "vectors": "glove.6B.100d", "epochs": 6,
                "batch_size": 64, "optimizer": "adam", "lr": 5e-3, "validation": 0.2,
                "model_options": {"hidden": 32, "dropout": 0.2},
            },
            # The radius that was chosen for adversarial training; with ten times as much nothing is learned.
            eps2=0.005, tuned_at="first:0.2", tuned_on={"seed": 100}, candidates=_candidates("text"),
        ),
        "sst2": Protocol(
            {
                "model": "bilstm", "vectors": "glove.6B.100d", "epochs": 8, "batch_size": 128, "optimizer": "adam", "lr": 5e-3,
                "model_options": {"hidden": 50, "dropout": 0.3},
            },
            eps2=0.05, tuned_at="first:0.2", tuned_on={"seed": 100}, candidates=_candidates("text"),
        ),
    },
}  # fmt: skip
"""With the sizes and epochs of "small", plain training memorizes nearly all wrong labels, as the test requires."""

_TINY_IMAGES = {
    "data_options": {"size": 8}, "limit": 240, "limit_test": 30, "epochs": 1, "batch_size": 64, "augment": "none",
    "model": "resnet8", "model_options": {"width": 4},
}  # fmt: skip
_TINY_TEXTS = {
    "limit": 40, "limit_test": 20, "epochs": 1, "batch_size": 16, "model": "bilstm", "model_options": {"hidden": 4, "size": 8},
}  # fmt: skip
_ONE = {name: rows[:1] for name, rows in _candidates("image").items() if name != "pgd_at"}
PROTOCOLS["tiny"] = {
    **dict.fromkeys(
        ("cifar10", "cifar100"),
        Protocol(
            _TINY_IMAGES, (("none", 0), ("random", 0.1), ("pair", 0.3)), steps=1,
            models=dict.fromkeys(_SMALL_CIFAR.models, "resnet8"), candidates=_ONE,
        ),
    ),
    **dict.fromkeys(
        ("imdb", "sst2"),
        Protocol(_TINY_TEXTS, (("none", 0), ("symmetric", 0.2)), steps=1, tuned_at="first:0.2", candidates=_ONE),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run of a table: its row, its column and its configuration.

    Attributes:
        row, column, seed: its place.
        config: the run.
        attacked: whether adversarial accuracy is measured too.
    """

    row: str
    column: int
    config: Config
    attacked: bool = False

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.config.seed


def method_of(row: str) -> str:
    """The method behind a row of a table.

    >>> method_of("bootstrap-soft"), method_of("mixcomp-negative"), method_of("mixcomp-adversarial")
    ('bootstrap_soft', 'mixcomp', 'mixcomp')
    """
    return "mixcomp" if row.startswith("mixcomp") else find(row.removesuffix("-default")).name


def cells(
    table: Published, scale: Scale, chosen: Mapping[str, Mapping[str, Any]], seeds: int = 3, extra: Sequence[str] = ()
) -> list[Cell]:
    """The runs of a table.

    Args:
        table: the table.
        scale: the protocol.
        chosen: hyper-parameters by method; the defaults for missing methods.
        seeds: runs of each cell.
        extra: methods beyond the paper's rows; NAME-default is a method with its own defaults, mixcomp-warmup the chosen
            MixComp whose bound grows from zero.
    """
    protocol = PROTOCOLS[scale][table.dataset]
    rows = list(table.rows)
    if "eps2" in table.columns[0]:
        rows = ["mixcomp-clean"]  # one run gives both rows
    theirs = table.id in published()  # tables of our own have the columns that can be run
    ablation = any(r == "mixcomp-positive" for r in table.rows)
    found = []
    for row, column, seed in product([*rows, *extra], range(len(table.columns)), range(seeds)):
        given = {**table.fixed, **table.columns[column]}
        noise, rate = given["noise"], given["rate"]
        if theirs and protocol.columns and "noise" in table.columns[column] and (noise, rate) not in protocol.columns:
            continue
        method = method_of(row)
        hyper = {} if row.endswith("-default") else dict(chosen.get(method, {}))
        if method == "mixcomp" and not row.endswith("-default"):  # as in the paper, but where a row says otherwise
            hyper |= {"warmup": WARMUP if row.endswith("-warmup") else 0.0, "floor": 0.0}
        if "eps2" in given:
            hyper = {k: v for k, v in hyper.items() if k not in ("eps2", "steps")}
            top, _, bottom = str(given["eps2"]).partition("/")
            hyper |= _radius(float(top) / float(bottom or 1), protocol)
        elif ablation and row.startswith("mixcomp"):
            radius = _radius(hyper.pop("eps2", protocol.eps2), protocol)
            hyper.pop("steps", None)
            hyper |= {} if row == "mixcomp-positive" else radius
            hyper |= {"eta": 0.0} if row == "mixcomp-negative" else {}
        config = _config(table.dataset, protocol, scale, method, hyper, given).replace(
            noise="none" if noise == "none" else f"{NOISE[noise]}:{rate}",
            imbalance=given.get("imbalance", "none"),
            seed=seed,
        )
        found.append(Cell(row, column, config, "eps2" in given))
    return found


def choice_name(table: Published, scale: Scale) -> str:
    """The name of the stored choice of hyper-parameters.

    >>> choice_name(published()["table-2-cifar100"], "small")
    'cifar10-small'
    """
    return f"{PROTOCOLS[scale][table.dataset].chosen_on or table.tuned_as}-{scale}"


def trials(table: Published, scale: Scale, method: str) -> list[Config]:
    """The runs among which a method's hyper-parameters are chosen, for all columns of a table."""
    protocol = PROTOCOLS[scale][table.dataset]
    given = {**table.fixed, "model": protocol.options.get("model", "resnet20")}
    return [
        _config(table.dataset, protocol, scale, method, hyper, given).replace(
            noise=protocol.tuned_at, **protocol.tuned_on
        )
        for hyper in protocol.candidates.get(method, ())
    ]


def _radius(eps2: float, protocol: Protocol) -> dict[str, Any]:
    return {"eps2": eps2, "steps": protocol.steps} if eps2 else {}


def _config(
    dataset: str, protocol: Protocol, scale: Scale, method: str, hyper: Mapping[str, Any], given: Mapping[str, Any]
) -> Config:
    options = {**protocol.options, **{name: given[name] for name in ("augment", "epochs") if name in given}}
    if str(given["model"]).startswith("resnet"):
        options["model"] = protocol.models.get(given["model"], given["model"])
    steps = {"steps": protocol.steps} if method == "pgd_at" else {}
    return Config(**{"data": dataset, **options, "method": method, "hyper": {**steps, **hyper}})
