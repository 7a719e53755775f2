"""How large the package is, and how far a call goes: `python -m benchmarks.size`.

Prints files and lines of each package, functions and files that a LogComp call and an audit enter, public names, hard dependencies,
and the seconds of `import compensate`, alone and with the modules of a criterion, relative to `import torch`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "compensate"


def sizes() -> dict[str, tuple[int, int]]:
    """Files and lines by package; files outside of packages are "root"."""
    files, lines = Counter[str](), Counter[str]()
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).parts
        room = parts[0] if len(parts) > 1 else "root"
        files[room] += 1
        lines[room] += len(path.read_text("utf-8").splitlines())
    return {room: (files[room], lines[room]) for room in sorted(files)}


def hops(call: Callable[[], Any]) -> tuple[int, int, int, int]:
    """Calls of functions of the package, different functions, their files, and changes of file, in the second run of a call."""
    call()
    entered: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            entered.append((frame.f_code.co_filename, f"{frame.f_code.co_name} {frame.f_code.co_firstlineno}"))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    files = [file for file, _ in entered]
    changes = sum(a != b for a, b in pairwise(files))
    return len(entered), len(set(entered)), len({*files}), changes


def logcomp_call() -> Callable[[], Any]:
    """The drop-in call on a batch, forward and backward."""
    import torch

    from compensate.methods import logcomp

    criterion = logcomp(num_samples=1000, num_classes=10)
    u, y, i = torch.randn(64, 10, requires_grad=True), torch.arange(64) % 10, torch.arange(64)
    return lambda: criterion(u, y, i).backward()


def audit_call() -> Callable[[], Any]:
    """An audit of 600 embeddings."""
    from compensate import audit

    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=600)
    x = (3 * rng.normal(size=(3, 8))[labels] + rng.normal(size=(600, 8))).astype(np.float32)
    return lambda: audit(x, labels)


def seconds(statement: str, times: int = 5) -> float:
    """The least time of an import in a new process, without the start of Python."""
    code = f"import time; begun = time.perf_counter(); {statement}; print(time.perf_counter() - begun)"
    command = [sys.executable, "-c", code]
    return min(float(subprocess.run(command, capture_output=True, check=True, text=True).stdout) for _ in range(times))


def main() -> None:
    import compensate
    from compensate import terms

    warnings.simplefilter("ignore")
    found = sizes()
    for room, (files, lines) in found.items():
        print(f"{room:14}{files:5}{lines:8,}")
    print(f"{'all':14}{sum(f for f, _ in found.values()):5}{sum(n for _, n in found.values()):8,}")
    for name, make in (("LogComp call", logcomp_call), ("audit", audit_call)):
        calls, functions, files, changes = hops(make())
        print(f"{name}: {functions} functions of {files} files, {calls} calls, {changes} changes of file")
    wanted = re.search(
        r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert wanted is not None
    print(f"public names: {len(compensate.__all__)} at the top, {len(terms.__all__)} in terms")
    print(f"hard dependencies: {wanted[1].count('>=')}")
    for statement in ("import compensate", "import compensate; compensate.methods.logcomp", "import torch"):
        print(f"{statement}: {seconds(statement):.2f} s")


if __name__ == "__main__":
    main()
