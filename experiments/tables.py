"""The paper's tables as grids of runs: rows, columns and published figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from compensate.errors import InputError, nearest


@dataclass(frozen=True)
class Published:
    """A table of Yao and Wu, Compensation Learning, 2021.

    Attributes:
        id: its name, such as ``table-9-sst2``.
        caption: its description.
        fixed: settings of all runs: data set, model, noise.
        columns: the settings of each column.
        rows: mean and deviation in percent, a pair for each column, by the paper's name of the row; nothing for rows of
            tables that the paper does not have.
    """

    id: str
    caption: str
    fixed: Mapping[str, Any]
    columns: tuple[Mapping[str, Any], ...]
    rows: Mapping[str, tuple[tuple[float, float], ...]]

    @property
    def dataset(self) -> str:
        """The name of its data set."""
        return str(self.fixed["dataset"])

    @property
    def tuned_as(self) -> str:
        """The name of the choice of hyper-parameters: that of the data set, and of the augmentation if the table has one.

        >>> published()["table-1-cifar10"].tuned_as, BEYOND["beyond-augmented-cifar10"].tuned_as
        ('cifar10', 'cifar10-crop-flip')
        """
        return "-".join([self.dataset, *([self.fixed["augment"]] if "augment" in self.fixed else [])])

    def column_name(self, column: int) -> str:
        """The head of a column.

        >>> published()["table-1-cifar10"].column_name(1)
        'random 10 %'
        >>> BEYOND["beyond-augmented-cifar10"].column_name(2)
        'random 30 % for 64 epochs'
        """
        given = self.columns[column]
        if "model" in given or "eps2" in given:
            return str(given.get("model", f"eps2 = {given.get('eps2')}"))
        noise = "0 %" if given["noise"] == "none" else f"{given['noise']} {100 * given['rate']:g} %"
        return f"{noise} for {given['epochs']} epochs" if "epochs" in given else noise


@cache
def published() -> dict[str, Published]:
    """All ten tables by name.

    >>> list(published())[0], len(published())
    ('table-1-cifar10', 10)
    """
    stored = json.loads((files(__package__) / "paper.json").read_text(encoding="utf-8"))
    return {
        t["id"]: Published(
            t["id"],
            t["caption"],
            t["fixed"],
            tuple(t["columns"]),
            {row: tuple((mean, std) for mean, std in cells) for row, cells in t["rows"].items()},
        )
        for t in stored
    }


def _beyond(name: str, caption: str, dataset: str, columns: list[dict[str, Any]], rows: str, **fixed: Any) -> Published:
    return Published(name, caption, {"dataset": dataset, **fixed}, tuple(columns), dict.fromkeys(rows.split(), ()))


BEYOND = {
    t.id: t
    for t in (
        _beyond(
            "beyond-noise-cifar10", "CIFAR-10 under heavy noise.", "cifar10",
            [{"noise": "random", "rate": rate} for rate in (0.4, 0.5, 0.6)],
            "base label-smoothing logcomp mixcomp elr gce", model="resnet20",
        ),
        _beyond(
            "beyond-imbalance-cifar10", "CIFAR-10, long-tailed and noisy at the same time.", "cifar10",
            [{"noise": "none", "rate": 0}, {"noise": "random", "rate": 0.2}, {"noise": "random", "rate": 0.4}],
            "base logit-adjustment logcomp mixcomp elr gce", model="resnet20", imbalance="exponential:10",
        ),
        _beyond(
            "beyond-augmented-cifar10", "CIFAR-10 with augmented images (crops and flips).", "cifar10",
            [{"noise": "none", "rate": 0}, {"noise": "random", "rate": 0.3}, {"noise": "random", "rate": 0.3, "epochs": 64}],
            "base pgd-at logcomp mixcomp", model="resnet20", augment="crop-flip",
        ),
        _beyond(
            "beyond-depth-cifar10-pair20", "CIFAR-10, networks of four depths under pair noise: Table VII on available images.", "cifar10",
            [{"model": f"resnet{depth}"} for depth in (32, 44, 56, 110)],
            "base bootstrap-hard proselflc pgd-at logcomp mixcomp", noise="pair", rate=0.2,
        ),
        _beyond(
            "beyond-instance-cifar10", "CIFAR-10, errors that depend on the image.", "cifar10", [{"noise": "instance", "rate": 0.3}],
            "base label-smoothing bootstrap-hard gce elr sop logcomp mixcomp", model="resnet20",
        ),
    )
}  # fmt: skip
"""Tables the paper does not have."""


@cache
def every() -> dict[str, Published]:
    """The paper's tables and those beyond it."""
    return published() | BEYOND


def find_table(name: str) -> Published:
    """A table by its name, its number, or the beginning of its name.

    >>> find_table("9").id, find_table("table-8").id
    ('table-9-sst2', 'table-8-imdb')
    """
    known = every()
    key = name.lower().replace("_", "-")
    key = f"table-{key}" if key.isdigit() else key
    matches = [t for t in known if t == key or t.startswith(f"{key}-")]
    if len(matches) != 1:
        raise InputError(f'there is no table "{name}"; {nearest(key, known)}')
    return known[matches[0]]
