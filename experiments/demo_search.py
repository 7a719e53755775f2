"""The search for the hyper-parameters of `compensate demo`."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from compensate.cli.compare import train_jobs
from compensate.cli.terminal import console
from compensate.demo import Job, Outcome, Setting
from compensate.files import make_folder, write_atomically

GRID: dict[str, dict[str, tuple[Any, ...]]] = {
    "logcomp": {"lam": (0.03, 0.05, 0.1), "lr": (0.5, 1.0, 2.0)},
    "mixcomp": {"eta": (2.0, 5.0, 8.0), "pro": (25.0, 35.0, 45.0), "warmup": (0.0,), "floor": (0.0,)},
}
"""Nine settings for each method. Cross-entropy has none; the optimizer is the same for all."""

SEARCH_SEEDS = (100, 101, 102)
"""The demonstration uses seeds from 0."""


def demo_search(
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(help="Training epochs.", min=1)] = 60,
) -> None:
    """Search the hyper-parameters of `compensate demo` on held-out noisy labels.

    **Example:** `python -m experiments demo-search`
    """
    setting = Setting(epochs=epochs, held_out=0.2)
    jobs = [
        Job(method, seed, dict(zip(grid, values, strict=True)))
        for method, grid in GRID.items()
        for values in product(*grid.values())
        for seed in SEARCH_SEEDS
    ]
    result = best_settings(train_jobs("searching", jobs, setting), setting)
    make_folder(out)
    write_atomically(out / "search.json", json.dumps(result, indent=1).encode())
    for method, hyper in result["best"].items():
        console.print(f"{method}: {', '.join(f'{name}={value:g}' for name, value in hyper.items())}")
    console.print(f"all trials: {out / 'search.json'}", soft_wrap=True, markup=False)


def best_settings(outcomes: list[Outcome], setting: Setting) -> dict[str, Any]:
    """The trials, and the best setting of each method: the highest mean accuracy on held-out *noisy* samples.

    The mean is over the last five epochs and all seeds, which a user with noisy data can compute too.
    """
    scores: dict[str, list[float]] = {}
    for o in outcomes:
        scores.setdefault(json.dumps([o.job.method, o.job.hyper]), []).append(float(np.mean(o.validation[-5:])))
    trials = [
        {"method": method, "hyper": hyper, "validation": round(float(np.mean(scores[key])), 5)}
        for key in sorted(scores)
        for method, hyper in [json.loads(key)]
    ]
    best = {m: max((t for t in trials if t["method"] == m), key=lambda t: t["validation"])["hyper"] for m in GRID}
    return {"setting": asdict(setting), "seeds": SEARCH_SEEDS, "best": best, "trials": trials}
