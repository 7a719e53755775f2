"""How much of a training step is data: batches of 128 with crop and flip, against a step of ResNet-20.

    python -m benchmarks.loader

Both are timed side by side in one process with one thread, turn by turn, so that whatever else the machine does falls on
both. The images are random bytes in the shape of CIFAR-10: the time does not depend on what they show. The order and the
random numbers of the epoch are part of the data's time, shared out over the epoch's batches.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import compensate
from compensate.data import CropFlip, Data, draws, gather, order
from compensate.models import ResNet

BATCH, IMAGES, ROUNDS = 128, 50_000, 15


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    data = Data(
        rng.integers(256, size=(IMAGES, 3, 32, 32), dtype=np.uint8),
        rng.integers(10, size=IMAGES),
        tuple("0123456789"),
    )
    model = ResNet(20, 10)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    augment = CropFlip()

    start = time.perf_counter()
    drawn, rows = draws(data), order(data, BATCH)
    epoch = time.perf_counter() - start

    loads, steps = [], []
    for k in range(ROUNDS + 2):
        start = time.perf_counter()
        x, target, _ = gather(data, rows[k], augment=augment, drawn=drawn)
        middle = time.perf_counter()
        loss = F.cross_entropy(model(x), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        end = time.perf_counter()
        if k >= 2:  # the first steps warm up
            loads.append(middle - start + epoch / len(rows))
            steps.append(end - middle)
    share = statistics.median(loads) / statistics.median(steps)
    result = {
        "command": "python -m benchmarks.loader",
        "version": compensate.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "batch": BATCH,
        "images": IMAGES,
        "epoch_start_seconds": round(epoch, 4),
        "data_seconds": [round(t, 5) for t in loads],
        "step_seconds": [round(t, 4) for t in steps],
        "share": round(share, 4),
        "worst_share": round(max(a / b for a, b in zip(loads, steps, strict=True)), 4),
        "bar": 0.05,
    }
    path = Path(__file__).parent / "results" / "loader.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"data {1e3 * statistics.median(loads):.2f} ms, ResNet-20 step {1e3 * statistics.median(steps):.0f} ms: "
        f"{100 * share:.2f} % (bar: 5 %), worst round {100 * result['worst_share']:.2f} %"
    )
    sys.exit(share >= result["bar"])


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
