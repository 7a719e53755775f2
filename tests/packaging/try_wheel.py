"""The built package as a stranger installs it: the wheel by its name, with encoders, and the sdist, in new environments outside of this folder.

    python tests/packaging/try_wheel.py [RESULTS.json] [PYTHON ...]     # this Python has build and twine; it is the default of the environments

TMPDIR names the folder of the environments: one of them, with a build of PyTorch for GPUs, takes several gigabytes.

Each environment times its first minute: the installation, and an audit of a small table until its suspects.csv is there. Then texts are audited,
and the example of the README runs.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = {"wheel": "compensate", "wheel with encoders": "compensate[encoders]", "sdist": "compensate"}

DATA = """
import csv, random
import numpy as np
from sklearn.datasets import load_breast_cancer
frame = load_breast_cancer(as_frame=True).frame
flipped = np.random.default_rng(0).random(len(frame)) < 0.13
frame["target"] = np.where(frame["target"].to_numpy() ^ flipped, "benign", "malignant")
frame.to_csv("cells.csv", index=False)
random.seed(0)
words = {"good": ["lovely", "great", "fine", "warm"], "bad": ["dull", "poor", "weak", "cold"]}
with open("reviews.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["review", "sentiment"])
    for k in range(300):
        label = ("good", "bad")[k % 2]
        text = " ".join(random.choices(words[label], k=5) + ["film", str(k)])
        rows.writerow([text, label if k % 15 else ("bad", "good")[k % 2]])
"""
EXAMPLE = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
VERSIONS = "import platform, torch; print(platform.python_version(), torch.__version__)"
IMPORT = "import compensate, sys; assert 'torch' not in sys.modules; print(compensate.__file__)"


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def first_minute(python: str, form: str, dist: Path) -> dict[str, object]:
    """Installs one form of the package into a new environment and audits a table, in seconds."""
    home = Path.cwd() / "-".join((form.replace(" ", "-"), python.replace(os.sep, "_")))
    begin = time.perf_counter()
    run(python, "-m", "venv", home / "venv")
    here = home / "venv" / "bin"
    only = "--only-binary" if form.startswith("wheel") else "--no-binary"
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt")
    run(here / "python", *pip, only, "compensate", "--find-links", dist, REQUIREMENTS[form])
    installed = time.perf_counter()
    os.chdir(home)
    try:
        run(here / "python", "-c", DATA)
        ready = time.perf_counter()
        said = run(here / "compensate", "audit", "cells.csv", "--out", "found")
        audited = time.perf_counter()
        assert "look wrong" in said
        assert Path("found/suspects.csv").stat().st_size
        assert Path("found/report.html").stat().st_size
        assert run(here / "python", "-c", IMPORT).startswith(str(home)), "the package of the environment"
        again = time.perf_counter()
        said = run(here / "compensate", "audit", "reviews.csv", "--out", "texts")
        assert ("better features: pip install" in said) != ("encoders" in form), said
        texts = time.perf_counter() - again
        run(here / "python", "-W", "error", "-c", EXAMPLE)
        built = run(here / "compensate", "--version").split()[-1]
        assert (dist / f"compensate-{built}.tar.gz").is_file(), built
        if form == "wheel":
            run(here / "compensate", "demo", "--seeds", "1", "--epochs", "3", "--out", "demo")
            assert Path("demo/results.json").stat().st_size
            run(here / "compensate", "methods")
    finally:
        os.chdir(home.parent)
    versions = run(here / "python", "-c", VERSIONS).split()
    shutil.rmtree(home)
    seconds = {"install": installed - begin, "audit of a table": audited - ready, "audit of texts": texts}
    about = {"form": form, "python": versions[0], "torch": versions[1]}
    return about | {"seconds": {name: round(value, 1) for name, value in seconds.items()}}


def main(results: Path | None, pythons: list[str]) -> None:
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        run(sys.executable, "-m", "build", "--outdir", "dist", ROOT)
        print(run(sys.executable, "-m", "twine", "check", "--strict", *Path("dist").iterdir()).strip())
        found = []
        for python in pythons:
            for form in REQUIREMENTS:
                found.append(first_minute(python, form, Path(work) / "dist"))
                print(json.dumps(found[-1]), flush=True)
        os.chdir(ROOT)
    if results is not None:
        machine = f"{os.cpu_count()} cores, {platform.system()}"
        results.write_text(json.dumps({"machine": machine, "environments": found}, indent=1) + "\n")


if __name__ == "__main__":
    given = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None
    main(given, sys.argv[2:] or [sys.executable])
