"""Cost of compensating dense outputs relative to torch's loss: a batch of segmentation maps, forward and backward.

python -m benchmarks.dense [--quick]
"""

from __future__ import annotations

import time
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.criterion import both_ways
from benchmarks.measure import Ratio, options, report
from benchmarks.measure import alternate as in_turns
from compensate.methods import gated_category, logcomp, mixcomp

SHAPE = (8, 21, 256, 256)
SAMPLES = 1000
BAR = 3.0
alternate = partial(in_turns, clock=time.process_time)
ABOUT = """CPU seconds. Forward and backward pass of the drop-in call on logits (8, 21, 256, 256) with class numbers
(8, 256, 256), including the step of the rows, relative to torch's cross-entropy on the same input. A row belongs to a
sample, shared by all its positions, or to a class."""


def calls(shape: tuple[int, ...], *, repeats: int) -> list[Ratio]:
    """The ratios of methods to cross entropy."""
    torch.manual_seed(0)
    batch, classes, *places = shape
    u = torch.randn(shape, requires_grad=True)
    y, index = torch.randint(classes, (batch, *places)), torch.randperm(SAMPLES)[:batch]
    made = {
        "logcomp, no record": logcomp(num_samples=SAMPLES, num_classes=classes, record="none"),
        "logcomp, with record": logcomp(num_samples=SAMPLES, num_classes=classes),
        "mixcomp, no record": mixcomp(),
        "gated_category": gated_category(num_classes=classes - 1),
    }
    ratios = []
    for name, criterion in made.items():
        labels = y.clamp(max=classes - 2) if name == "gated_category" else y
        times = alternate(
            both_ways(criterion, u, labels, index),
            both_ways(F.cross_entropy, u, y),
            repeats=repeats,
        )
        bar = BAR if name == "logcomp, no record" else None
        ratios.append(Ratio(f"{name}, {'x'.join(map(str, shape))}", "cross entropy", *times, bar))
    return ratios


def main() -> None:
    """Measures, prints and stores."""
    quick = options(__doc__).quick
    torch.set_num_threads(1)
    shape = (4, 21, 64, 64) if quick else SHAPE
    report("dense", calls(shape, repeats=5 if quick else 9), about=ABOUT, quick=quick)


if __name__ == "__main__":
    main()
