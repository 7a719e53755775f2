"""Trains with rows that are cut among as many processes as the environment says; `test_distribution` runs it and compares with one process."""

from __future__ import annotations

from pathlib import Path

import torch
from replicas import STOP, Stopped, config, small

from compensate.data.epochs import ranges_of
from compensate.errors import InputError
from compensate.methods import METHODS
from compensate.training import fit

CUT = "cut among processes by ranges"
"""What a refusal says."""


def train_part(method: str, folder: Path, *, stop: int | None = None, **changes):
    """A run, or the rest of it; with `stop` it ends after so many steps, the last of which is not in the checkpoint."""
    steps = []

    def count(s) -> None:
        steps.append(len(s.target))
        if stop is not None and len(steps) == stop:
            raise Stopped

    torch.manual_seed(0)
    try:
        return fit(
            config(method, order="ranges", **changes), data=small(), folder=folder, resume=True, every=STOP // 2, on_step=count
        )  # fmt: skip
    except Stopped:
        return None


def train_methods(out: Path, methods: list[str]) -> None:
    """All methods that can be cut, and what is said of the others."""
    for name in methods:
        try:
            result = train_part(name, out / name, **taught(name, out))
        except InputError as error:
            (out / f"{name}.refused.{torch.distributed.get_rank()}").write_text(str(error))
            continue
        assert_cut(result)


def taught(method: str, out: Path) -> dict[str, str]:
    """The teacher of a method that asks for one."""
    return {"teacher": str(out / "teacher.npy")} if "teacher" in METHODS[method].needs else {}


def assert_cut(result) -> None:
    """Raises unless each process holds the rows of its own samples alone, and all processes together hold those of all."""
    held = [len(table.dense()) for table in result.criterion.tables()]
    held += [len(result.criterion.record.visits)] if result.criterion.record is not None else []
    size, rows = torch.distributed.get_world_size(), result.prepared.train.rows
    for mine in held:
        total = torch.tensor(mine)
        torch.distributed.all_reduce(total)
        assert total == rows
        assert mine < rows * 2 / (size + 1)
    _, whole = ranges_of(len(result.prepared.train), 24)
    assert whole >= size


def train_some_steps(folder: Path, runs: dict[str, tuple[str, dict]], stop: int | None) -> None:
    """Some steps of several runs, from where they stand."""
    for name, (method, changes) in runs.items():
        train_part(method, folder / name, stop=stop, **changes)
