"""Time of `import compensate` relative to `import torch`, each in a fresh process."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.measure import Ratio, alternate, options, report

ABOUT = (
    "A fresh interpreter that imports the package and exits, relative to one that imports torch. "
    "`python -m benchmarks.importing`."
)


def imports(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)


def main() -> None:
    """Measures and stores."""
    quick = options(__doc__).quick
    repeats = 2 if quick else 9
    ours, theirs = alternate(lambda: imports("compensate"), lambda: imports("torch"), repeats=repeats, warm_up=1)
    report("importing", [Ratio("import compensate", "import torch", ours, theirs, 1.15)], about=ABOUT, quick=quick)


if __name__ == "__main__":
    main()
