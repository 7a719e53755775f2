"""What the drop-in call costs beside plain cross entropy, forward and backward, in one process and alternating.

python -m benchmarks.criterion [--quick]
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.measure import Ratio, alternate, options, report
from compensate.methods import logcomp, mixcomp

SIZES = [(128, 10), (1024, 1000)]
SAMPLES = 50_000


def measure(batch: int, classes: int, repeats: int) -> list[Ratio]:
    """The ratios of both methods to cross entropy at one size, with and without checks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    u = torch.randn(batch, classes, requires_grad=True)
    y, i = torch.randint(classes, (batch,)), torch.randperm(SAMPLES)[:batch]
    table = {"num_samples": SAMPLES, "num_classes": classes}
    ratios = []
    for name, build in (("logcomp", logcomp(**table)), ("mixcomp", mixcomp())):
        for check in ("off", "sync"):
            criterion = build
            criterion.record, criterion.check = None, check
            ours, plain = alternate(
                lambda c=criterion: c(u, y, i).backward(), lambda: F.cross_entropy(u, y).backward(), repeats=repeats
            )
            ratios.append(Ratio(f"{name}, B={batch}, C={classes}, checks {check}", "cross entropy", ours, plain))
    return ratios


def main() -> None:
    """Measures, prints and stores."""
    quick = options(__doc__).quick
    ratios = [r for size in SIZES for r in measure(*size, repeats=20 if quick else 100)]
    report("criterion", ratios, about="The drop-in call, forward and backward.", quick=quick)


if __name__ == "__main__":
    main()
