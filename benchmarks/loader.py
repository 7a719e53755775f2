"""Cost of data loading relative to a training step: batches of 128 with crop and flip, a step of ResNet-20.

    python -m benchmarks.loader [--quick]

Both are timed in turn in one process with one thread, so other load on the machine affects both. The images are random bytes in
the shape of CIFAR-10. The time of the data includes a share of the order and the random numbers of the epoch.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.measure import Ratio, options, report
from compensate.data import CropFlip, Dataset, draws, gather, order
from compensate.models import ResNet

BATCH, IMAGES, ROUNDS = 128, 50_000, 15
ABOUT = """Gathering a batch of 128 images of 32 x 32 pixels with random crops and flips, including its share of the
epoch's random numbers, relative to a plain training step on it."""


def main() -> None:
    """Measures, prints and stores."""
    quick = options(__doc__).quick
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    data = Dataset(
        rng.integers(256, size=(IMAGES, 3, 32, 32), dtype=np.uint8),
        rng.integers(10, size=IMAGES),
        tuple("0123456789"),
    )
    model = ResNet(20, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    augment = CropFlip()

    start = time.perf_counter()
    drawn, rows = draws(data), order(data, BATCH)
    epoch = time.perf_counter() - start

    loads, steps = [], []
    for k in range((3 if quick else ROUNDS) + 2):
        start = time.perf_counter()
        x, target, _ = gather(data, rows[k], augment=augment, drawn=drawn)
        middle = time.perf_counter()
        loss = F.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.perf_counter()
        if k >= 2:  # the first steps warm up
            loads.append(middle - start + epoch / len(rows))
            steps.append(end - middle)
    share = Ratio("a batch with crop and flip", "a plain step of ResNet-20", loads, steps, 0.05)
    report("loader", [share], about=ABOUT, quick=quick)


if __name__ == "__main__":
    main()
