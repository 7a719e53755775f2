"""What two processes pay for keeping tables equal, as a share of a training step.

python -m benchmarks.processes [--quick]
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks.measure import Ratio, options, report
from benchmarks.steps import BATCH, setting, stepper
from compensate.methods import logcomp
from compensate.training import Exchange, together

SAMPLES, EPOCH = 50_000, 50_000 // BATCH
ABOUT = """Two processes of one thread each on one machine, gloo over loopback, ResNet-20 on slices of 64 of a batch
of 128. "Gathering" is the cost that `together` adds to each step: logits, classes and indices of all processes, and
the criterion on the whole batch instead of the slice. "Exchange once an epoch" merges the changed rows of a table of
50,000 x 10 and its record, spread over the epoch's steps. Processes synchronize before each measurement; the slower
one counts."""


def timed(call: Callable[[], object]) -> float:
    """Seconds until both processes are done."""
    dist.barrier()
    start = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - start


def worker(depth: int, repeats: int) -> None:
    """One of the two processes; the first prints the measurements."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, optimizer, x, y = setting(depth, batch=BATCH // 2)
    step = stepper(optimizer, lambda: F.cross_entropy(model(x), y))
    criterion = logcomp(num_samples=SAMPLES, num_classes=10)
    exchange = Exchange(criterion)
    u = torch.randn(BATCH // 2, 10, requires_grad=True)
    seconds: dict[str, list[float]] = {"step": [], "gathering": [], "own": [], "exchange": []}
    for repeat in range(repeats + 1):
        i = torch.arange(BATCH // 2) + BATCH * repeat + BATCH // 2 * rank
        found = {
            "step": timed(step),
            "gathering": timed(lambda i=i: criterion(*together(u, y, i)).backward()),
            "own": timed(lambda i=i: criterion(u, y, i).backward()),
        }
        for row in range(rank, SAMPLES // BATCH, 2):  # what an epoch of this process changes
            next(criterion.tables()).weight[row * BATCH : (row + 1) * BATCH] += 1.0
        found["exchange"] = timed(exchange)
        for name, value in found.items():
            if repeat:
                seconds[name].append(value)
    if rank == 0:
        print(json.dumps(seconds))
    dist.destroy_process_group()


def measure(depth: int, repeats: int) -> list[Ratio]:
    """Starts both processes and reads their measurements."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    call = [sys.executable, "-c", f"from benchmarks.processes import worker; worker({depth}, {repeats})"]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            call,
            cwd=Path(__file__).parent.parent,
            env=os.environ | shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    out = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("a process failed; its message is above.")
    seconds = json.loads(out[0].splitlines()[-1])
    added = [max(0.0, a - b) for a, b in zip(seconds["gathering"], seconds["own"], strict=True)]
    reference = f"a plain step of ResNet-{depth}"
    return [
        Ratio("gathering in each step", reference, added, seconds["step"], 0.03),
        Ratio("exchange once an epoch", reference, [t / EPOCH for t in seconds["exchange"]], seconds["step"], 0.03),
    ]


def main() -> None:
    """Measures, prints and stores."""
    quick = options(__doc__).quick
    report("processes", measure(*((8, 4) if quick else (20, 15))), about=ABOUT, quick=quick, threads=1)


if __name__ == "__main__":
    main()
