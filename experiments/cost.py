"""The cost of a table at the paper's scale, from measured steps: `python -m experiments.cost results/reproduce`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.nn import functional as F

from compensate.files import write_atomically
from compensate.models.networks import BiLSTM, ResNet
from compensate.training.config import Config
from experiments.protocols import cells, method_of, trials
from experiments.tables import Published, published

SAMPLES = {"cifar10": 50_000, "cifar100": 50_000, "imdb": 20_000, "sst2": 6_920}
WORDS = {"imdb": 230, "sst2": 20}
SUSTAINED = 5e12
"""Operations per second that a GPU sustains on such small networks; an assumption."""

NOTE = (
    "`python -m experiments reproduce TABLE --scale paper` runs a table on a machine with GPUs; `--backend ray` distributes its runs. "
    "Hours on one core are the number of steps (three seeds, every cell, and every combination of the paper's search sets once) times the "
    "measured seconds per step here; hours on a GPU assume the same operations at "
    f"{SUSTAINED / 1e12:g} tera-operations per second, which was not measured."
)

MEASURED: dict[tuple[str, str, int, int], tuple[float, float]] = {}
"""Seconds and operations of a step, by model, data set, batch size and width."""


def step(model: str, dataset: str, batch_size: int, hidden: int = 0) -> tuple[float, float]:
    """Seconds of a training step on one thread of this machine, and its floating-point operations; measured once."""
    key = (model, dataset, batch_size, hidden)
    if key not in MEASURED:
        MEASURED[key] = _measure(*key)
    return MEASURED[key]


def _measure(model: str, dataset: str, batch_size: int, hidden: int) -> tuple[float, float]:
    from torch.utils.flop_counter import FlopCounterMode

    net: nn.Module
    if model == "bilstm":
        net = BiLSTM(5000, 2, size=300, hidden=hidden)
        x = torch.randint(1, 5000, (batch_size, WORDS[dataset]))
        # Four gates, two directions, forward and twice as much backward; a multiplication and an addition are two.
        operations = 2.0 * 3 * 2 * 4 * hidden * (hidden + 300) * x.numel()
    else:
        net = ResNet(int(model.removeprefix("resnet")), 100 if dataset == "cifar100" else 10)
        x = torch.rand(batch_size, 3, 32, 32)
    y = torch.zeros(batch_size, dtype=torch.long)

    def once() -> None:
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()

    if model != "bilstm":
        with FlopCounterMode(display=False) as counter:
            once()
        operations = float(counter.get_total_flops())
    taken = []
    for _ in range(4):
        begun = time.process_time()  # whatever else the machine does
        once()
        taken.append(time.process_time() - begun)
    return median(taken[1:]), operations


def price(config: Config, dataset: str) -> tuple[float, float]:
    """Seconds on one thread and operations of a whole run; an inner loop of k steps makes a step k + 1 steps."""
    assert config.epochs is not None
    assert config.batch_size is not None
    seconds, operations = step(config.model, dataset, config.batch_size, int(config.model_options.get("hidden", 0)))
    inner = config.hyper.get("steps", 7) if config.method == "pgd_at" or config.hyper.get("eps2") else 0
    steps = config.epochs * -(-SAMPLES[dataset] // config.batch_size) * (1 + inner)
    return seconds * steps, operations * steps


def estimate(table: Published) -> dict[str, object]:
    """Runs, search trials and hours of one table."""
    grid = cells(table, "paper", {}, 3)
    methods = dict.fromkeys(method_of(cell.row) for cell in grid)
    search = [t for m in methods for t in trials(table, "paper", m)]
    prices = [price(c, table.dataset) for c in [*(cell.config for cell in grid), *search]]
    seconds, operations = (sum(column) for column in zip(*prices, strict=True))
    return {
        "table": table.id,
        "runs": len(grid),
        "trials": len(search),
        "core_hours": seconds / 3600,
        "gpu_hours": operations / SUSTAINED / 3600,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measures, and stores the estimate of every table."""
    folder = Path((arguments or sys.argv[1:])[0])
    torch.set_num_threads(1)
    rows = [estimate(table) for table in published().values()]
    used = {f"{k[0]}, {k[1]}, batch {k[2]}": v for k, v in MEASURED.items()}
    content = {"steps": used, "tables": rows}
    write_atomically(folder / "cost.json", (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
