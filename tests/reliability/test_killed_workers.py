"""The real commands lose a worker while it trains: the rest goes on, the run is tried again, and in the end it is reported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import pytest

from compensate.training import tuning, workers
from compensate.training.workers import LOST, RETRIES

pytestmark = pytest.mark.slow

TUNE = ["tune", "digits", "--method", "logcomp", "--trials", "3", "--epochs", "1", "--limit", "150", "--workers", "2",
        "--set", "model=mlp"]  # fmt: skip


def command(arguments: list[str], environment: dict[str, str], module: str = "compensate") -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=Path(__file__).parents[2],
        capture_output=True, text=True, timeout=540, check=False, env={**environment, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


def deaths(place: Path) -> int:
    return len(list((place / "pids").iterdir()))


def test_tune_goes_on_with_the_setting_of_a_killed_worker(tmp_path):
    code, said = command([*TUNE, "--out", str(tmp_path / "out")], faults.deadly(tmp_path / "deadly", 1))
    assert code == 0, said
    assert deaths(tmp_path / "deadly") == 1
    assert "lost" not in said
    stored = json.loads((tmp_path / "out" / "tuning.json").read_text())
    assert len(stored["trials"]) == 3
    assert stored["lost"] == 0
    # The setting that was under way is not lost either: its run came to its end, in the same folder.
    victim = tmp_path / "out" / "runs" / (tmp_path / "deadly" / "victim").read_text()
    assert (victim / "result.json").is_file()


def test_a_search_says_how_many_trials_were_lost_and_fails(tmp_path, monkeypatch, capsys):
    from compensate.cli import main

    def but_the_last(work, jobs, count, *, lost):
        *rest, last = jobs
        yield from (work(*job) for job in rest)
        yield lost(*last)

    monkeypatch.setattr(tuning, "side_by_side", but_the_last)
    monkeypatch.setattr(sys, "argv", ["compensate", *TUNE, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert "1 trials were lost" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out" / "tuning.json").read_text())["trials"]) == 2


@pytest.fixture
def sentences(tmp_path):
    """SST-2 in small."""
    folder = tmp_path / "data" / "sst2"
    folder.mkdir(parents=True)
    for name, n in (("train", 60), ("dev", 20), ("test", 30)):
        rows = [f"a plot that is {('dull', 'fine')[i % 2]}\t{i % 2}" for i in range(n)]
        (folder / f"{name}.tsv").write_text("\n".join(rows))
    return folder.parent


def test_reproduce_gives_up_a_run_that_always_dies_and_finishes_the_others(tmp_path, sentences):
    arguments = ["reproduce", "table-9-sst2", "--scale", "tiny", "--seeds", "1", "--workers", "2", "--defaults"]
    arguments += ["--only", "base,label-smoothing", "--data-dir", str(sentences)]
    arguments += ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    code, said = command(arguments, faults.deadly(tmp_path / "deadly", 99), "experiments")
    assert code == 1, said
    assert deaths(tmp_path / "deadly") == RETRIES + 1
    assert LOST in said
    (archive,) = (tmp_path / "results").glob("*.jsonl")
    kept = archive.read_text().splitlines()
    assert len(kept) == 3  # two rows, two columns, less one
    # Started again, nothing that is finished is trained again, and the lost run is.
    code, said = command(arguments, faults.deadly(tmp_path / "healthy", 0), "experiments")
    assert code == 0, said
    again = archive.read_text().splitlines()
    assert again[:3] == kept
    assert len(again) == 4
    assert (tmp_path / "healthy" / "victim").read_text() == (tmp_path / "deadly" / "victim").read_text()


def test_a_worker_that_dies_while_idle_costs_no_job(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "RETRIES", 0)
    jobs = [(number,) for number in range(2)]
    answers = workers._in_processes(faults.who, jobs, 1, faults.lost)
    number, pid = next(answers)
    os.kill(pid, signal.SIGKILL)
    faults.wait_until_gone(pid)
    (rest,) = answers
    assert {number, rest[0]} == {0, 1}
    assert rest[1] not in (pid, -1)


def test_workers_end_when_their_parent_is_killed_and_leave_a_checkpoint(tmp_path):
    out = tmp_path / "out"
    arguments = ["compare", "digits", "--methods", "base,logcomp", "--seeds", "1", "--epochs", "500", "--workers", "2"]
    parent = subprocess.Popen(
        [sys.executable, "-m", "compensate", *arguments, "--set", "model=mlp", "--out", str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while len(list(out.glob("runs/*/metrics.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        pids = [json.loads(owner.read_text())["pid"] for owner in out.glob("runs/*/process.json")]
    finally:
        parent.kill()
        parent.wait()
    assert len(pids) == 2
    assert parent.pid not in pids
    for pid in pids:
        faults.wait_until_gone(pid)
    assert len(list(out.glob("runs/*/checkpoint/step-*.json"))) == 2


def test_on_a_cluster_too(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    # Ray's own processes are no matter of ours, but they must find the module of the work.
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(faults.__file__).parent), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setattr(workers, "RETRIES", 1)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    jobs = [(number, str(tmp_path), times) for number, times in enumerate([0, 1, 9])]
    try:
        answers = dict(workers.side_by_side(faults.dies, jobs, 2, backend="ray", lost=faults.lost))
        assert answers == {0: 1, 1: 2, 2: -1}
        assert (tmp_path / "2").read_text() == "xx"
        with pytest.raises(TypeError):  # a mistake in the work itself is no loss
            list(workers.side_by_side(faults.dies, [(1,)], 1, backend="ray", lost=faults.lost))
    finally:
        ray.shutdown()
