"""Commands are killed before each change that they make to files, and run under the limits of `ulimit`. `make faults` runs these tests.

FAULTS is the number of kills of each command; without it the tests are skipped, for each kill takes seconds.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import faults
import numpy as np
import pandas as pd
import pytest
from faults import command

from compensate.auditing.result import Audit

KILLS = int(os.environ.get("FAULTS", "0"))
pytestmark = pytest.mark.skipif(not KILLS, reason="`make faults` runs it")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a few wrong labels."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    frame = pd.DataFrame(rng.normal(size=(120, 4)) + 4 * y[:, None]).assign(label=np.array(["a", "b", "c"])[y])
    frame.loc[[5, 50, 100], "label"] = "a"
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit of it, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert command("audit", rows, "--out", folder).returncode == 0
    return folder


def listed(folder: Path) -> bytes:
    return (folder / "suspects.csv").read_bytes()


def test_an_audit_that_is_killed_leaves_a_whole_run_or_none_and_is_repeated_to_the_same_end(
    rows: Path, run: Path, tmp_path: Path
) -> None:
    for change in range(KILLS):
        folder = tmp_path / f"{change}" / "run"
        done = command(
            "audit", rows, "--out", folder, environment=faults.killed_at(change, folder.parent, tmp_path / "deadly")
        )
        if folder.exists():
            assert listed(folder) == listed(run)
            np.testing.assert_array_equal(Audit.load(folder / "audit").log_odds, Audit.load(run / "audit").log_odds)
        if done.returncode == 0:  # it makes fewer changes than that
            assert change > 5
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert command("audit", rows, "--out", folder).returncode == 0
        assert listed(folder) == listed(run)


def test_a_file_that_is_corrected_in_place_is_the_former_or_the_corrected_one(
    rows: Path, run: Path, tmp_path: Path
) -> None:
    former = rows.read_bytes()
    arguments = ("apply", run, "--accept", "0.5", "--out", rows, "--force")
    try:
        assert command(*arguments).returncode == 0
        corrected = rows.read_bytes()
        assert corrected != former
        for change in range(KILLS):
            rows.write_bytes(former)
            done = command(*arguments, environment=faults.killed_at(change, rows.parent, tmp_path / "deadly"))
            assert rows.read_bytes() in (former, corrected)
            if done.returncode == 0:
                assert change > 1
                assert rows.read_bytes() == corrected
                break
            assert done.returncode == -signal.SIGKILL, done.stderr
    finally:
        rows.write_bytes(former)


def test_a_limit_of_file_sizes_ends_an_audit_in_one_error(rows: Path, tmp_path: Path) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2000, 2000))
    done = command("audit", rows, "--out", tmp_path / "run", preexec_fn=limit)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert "File too large" in done.stderr
    assert not (tmp_path / "run").exists()


DRIVER = """
import time
from contextlib import closing
from compensate.auditing.execution import Cluster

with closing(Cluster()) as run:
    while run.workers == 1:
        time.sleep(0.1)
    print("ready", flush=True)
    time.sleep(600)
"""


def test_the_processes_of_ray_end_after_their_driver_is_killed() -> None:
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        started = descendants(driver.pid)
        driver.kill()
    assert len(started) > 4
    for pid in started:
        faults.wait_until_gone(pid, 180)


def descendants(pid: int) -> set[int]:
    """The processes that it started, and those that they started."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found |= new
    return found
