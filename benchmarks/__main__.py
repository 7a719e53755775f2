"""Runs every benchmark: `python -m benchmarks [--quick]`, or `make bench [QUICK=1]`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SKIPPED = {
    "__init__",
    "__main__",
    "measure",
    "pages",
    "planted",
    "soak",
    "pieces",
    "stages",
}  # the last three take hours


def names() -> list[str]:
    """Every module of this folder that is a benchmark."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in SKIPPED and p.stem[0] != "_")


def main() -> None:
    """Runs each in its own process, with its own memory and threads."""
    for name in names():
        print(f"--- {name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
