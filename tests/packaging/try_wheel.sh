#!/bin/sh
# Builds the wheel, installs it alone, and runs commands of it far from this folder. The first argument is a Python with hatchling.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
case "$1" in /*) python=$1 ;; *) python=$root/$1 ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$root" && "$python" -m hatchling build -t wheel -d "$work")
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" "$work"/*.whl
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
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
"$work/venv/bin/compensate" demo --seeds 1 --epochs 3 --out demo >/dev/null
test -s demo/results.json
"$work/venv/bin/compensate" methods >/dev/null
"$work/venv/bin/compensate" audit reviews.csv --out found
test -s found/*/report.html
test -s found/*/suspects.csv
"$work/venv/bin/python" -c "import compensate, sys; assert compensate.__file__.startswith('$work'); assert 'transformers' not in sys.modules"
echo "the wheel works"
