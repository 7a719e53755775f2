#!/bin/sh
# Builds the sdist and the wheel, installs the wheel by name into new environments outside of this folder, and times the first minute of each.
# usage: try_wheel.sh PYTHON [PYTHON_OF_THE_ENVIRONMENTS ...]; the first Python has build and twine.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
case "$1" in /*) python=$1 ;; *) python=$root/$1 ;; esac
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m build --outdir "$work/dist" "$root" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$python" -m twine check --strict "$work"/dist/*
cd "$work"

try_install() { # PYTHON REQUIREMENT
    rm -rf venv found
    start=$(date +%s)
    "$1" -m venv venv
    venv/bin/python -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" --find-links dist "$2"
    installed=$(date +%s)
    venv/bin/python - <<'PYTHON'
import numpy as np
from sklearn.datasets import load_breast_cancer
frame = load_breast_cancer(as_frame=True).frame
flipped = np.random.default_rng(0).random(len(frame)) < 0.13
frame["target"] = np.where(frame["target"].to_numpy() ^ flipped, "benign", "malignant")
frame.to_csv("cells.csv", index=False)
PYTHON
    ready=$(date +%s)
    venv/bin/compensate audit cells.csv --out found >audit.log
    audited=$(date +%s)
    test -s found/*report.html && test -s found/*suspects.csv
    grep "look wrong" audit.log
    venv/bin/python -c "import compensate, sys; assert compensate.__file__.startswith('$work'); assert 'torch' not in sys.modules"
    echo "$2, $("$1" --version): installed in $((installed - start)) s, first audit in $((audited - ready)) s"
}

for each in "${@:-$python}"; do
    try_install "$each" compensate
    try_install "$each" "compensate[encoders]"
done
venv/bin/python - <<'PYTHON'
import csv, random
random.seed(0)
words = {"good": ["lovely", "great", "fine", "warm"], "bad": ["dull", "poor", "weak", "cold"]}
with open("reviews.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["review", "sentiment"])
    for k in range(300):
        label = ("good", "bad")[k % 2]
        text = " ".join(random.choices(words[label], k=5) + ["film", str(k)])
        rows.writerow([text, label if k % 15 else ("bad", "good")[k % 2]])
PYTHON
venv/bin/compensate audit reviews.csv --out texts | grep "all-MiniLM-L6-v2"
venv/bin/compensate demo --seeds 1 --epochs 3 --out demo >/dev/null
test -s demo/results.json
venv/bin/compensate methods >/dev/null
rm -rf venv && "$python" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" dist/*.tar.gz
venv/bin/compensate --version
echo "the wheel and the sdist work"
