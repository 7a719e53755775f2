"""Full disks, read-only folders, killed processes, damaged files, odd clocks: what is finished is never lost."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import faults
import filelock
import numpy as np
import pytest
import torch

from compensate import InputError, files
from compensate.auditing.page import page_of, write_page
from compensate.auditing.result import Audit
from compensate.cli import main
from compensate.data.dataset import Estimate, Source
from compensate.data.load import digits
from compensate.training import Config, Run, checkpoint, comparison, fit, workers
from compensate.training.run import locked
from processes import start

pytestmark = pytest.mark.slow


def metrics(folder: Path) -> str:
    return (folder / "metrics.jsonl").read_text()


# --- disks ----------------------------------------------------------------------------------------------------


def page() -> dict[str, Any]:
    rows, p = np.arange(9), np.full(9, 0.1)
    audit = Audit(
        kind="text", source=Source(title="a.csv"), classes=("x", "y"), index=rows, given=rows % 2, suggested=1 - rows % 2,
        log_odds=p, p_error=p, evidence={}, noise_rate=Estimate(0.0, 0.0, 0.1),
    )  # fmt: skip
    return page_of(audit)


WRITES = {
    "checkpoint": lambda folder: checkpoint.save_checkpoint(folder / "checkpoint", 2, {"x": torch.zeros(300_000)}),
    "weights": lambda folder: checkpoint.save_weights(folder / "best.safetensors", {"x": torch.zeros(300_000)}),
    "result": lambda folder: Run(folder).write("result.json", {"x": "y" * 2_000_000}),
    "report": lambda folder: write_page(page(), folder / "report.html"),
}


def before(folder: Path) -> dict[str, bytes]:
    (folder / "checkpoint").mkdir()
    checkpoint.save_checkpoint(folder / "checkpoint", 1, {"x": torch.ones(3)})
    for name in ("best.safetensors", "result.json", "report.html"):
        (folder / name).write_bytes(b"as it was")
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(what, call, tmp_path, monkeypatch):
    there = before(tmp_path)
    monkeypatch.setattr(files.os, call, faults.full)
    with pytest.raises(InputError, match=r"No space left on device\. Free some space"):
        WRITES[what](tmp_path)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == there
    assert checkpoint.latest(tmp_path / "checkpoint")["x"].tolist() == [1, 1, 1]


def test_a_run_stopped_by_a_full_disk_goes_on_to_the_same_end(tmp_path, monkeypatch):
    fit(faults.TINY, folder=tmp_path / "whole", every=1)
    writes, write = [], os.replace

    def third_is_too_much(*args):
        writes.append(args)
        if len(writes) == 6:
            faults.full()
        write(*args)

    monkeypatch.setattr(files.os, "replace", third_is_too_much)
    with pytest.raises(InputError, match="No space left"):
        fit(faults.TINY, folder=tmp_path / "cut", every=1)
    monkeypatch.undo()
    assert checkpoint.latest(tmp_path / "cut" / "checkpoint") is not None
    fit(faults.TINY, folder=tmp_path / "cut", every=1, resume=True)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_a_folder_that_may_not_be_written_to_is_named(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match=r"Permission denied\. Choose a folder that may be written to"):
        fit(faults.TINY, folder=tmp_path / "mine")
    monkeypatch.setattr(
        sys, "argv", ["compensate", "train", "digits", "--epochs", "1", "--out", str(tmp_path / "mine")]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "Permission denied" in re.sub(r"\s+", " ", capsys.readouterr().err)


# killed workers
@pytest.mark.parametrize("backend", ["local", "ray"])
def test_a_killed_worker_is_replaced_and_one_that_always_dies_is_given_up(tmp_path, monkeypatch, backend):
    assert workers.RETRIES == 2
    monkeypatch.setattr(workers, "RETRIES", 1)  # each start of a process takes seconds
    if backend == "ray":
        pytest.importorskip("ray", reason="the extra `cluster` is not installed")
        # The processes of Ray must find the module of the work.
        path = os.pathsep.join([str(Path(faults.__file__).parent), os.environ.get("PYTHONPATH", "")])
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    jobs = [(number, str(tmp_path), deaths) for number, deaths in enumerate([0, 1, 9])]
    try:
        answers = dict(workers.side_by_side(faults.dies, jobs, 2, backend=backend, lost=faults.lost))
        assert answers == {0: 1, 1: 2, 2: -1}
        assert (tmp_path / "2").read_text() == "xx"  # once, and one retry
        with pytest.raises(TypeError):  # a mistake in the work itself is no loss
            list(workers.side_by_side(faults.dies, [(1,), (2,)], 2, backend=backend, lost=faults.lost))
    finally:
        if backend == "ray":
            sys.modules["ray"].shutdown()


def test_compare_survives_the_loss_of_a_worker(tmp_path):
    """One of the workers of the real command is killed from outside while it trains."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "compensate", "compare", "digits", "--methods", "base,logcomp", "--seeds", "1"]
    command += ["--epochs", "4", "--limit", "600", "--workers", "2", "--out", str(out), "--set", "model=mlp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline, victim = time.monotonic() + 120, None
        while victim is None and time.monotonic() < deadline and process.poll() is None:
            for owner in out.glob("runs/*/process.json"):
                text = owner.read_text()
                victim = json.loads(text)["pid"] if text else None
            time.sleep(0.01)
        assert victim is not None, "no run ever began"
        assert victim != process.pid
        os.kill(victim, signal.SIGKILL)
        said, wrong = process.communicate(timeout=240)
    assert process.returncode == 0, said + wrong
    stored = json.loads((out / "comparison.json").read_text())
    assert {r["method"] for r in stored["runs"]} == {"base", "logcomp"}
    assert not list(out.glob("runs/*/process.json"))


LOST_JOBS = {
    "comparison runs": (["compare", "digits", "--methods", "base,logcomp", "--seeds", "1"], "was killed"),
    "tuning trials": (["tune", "digits", "--method", "logcomp", "--trials", "2"], "1 trials were lost"),
}


@pytest.mark.parametrize("name", LOST_JOBS)
def test_what_is_lost_is_reported_and_what_is_finished_is_kept(tmp_path, monkeypatch, capsys, name):
    command, said = LOST_JOBS[name]
    stored, kept = name.split()

    def but_the_last(work, jobs, count, *, lost, backend="local"):
        *rest, last = jobs
        yield from (work(*job) for job in rest)
        yield lost(*last)

    for module in (workers, comparison):
        monkeypatch.setattr(module, "side_by_side", but_the_last)
    options = ["--epochs", "1", "--limit", "150", "--set", "model=mlp", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["compensate", *command, *options])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert said in capsys.readouterr().out
    assert len(json.loads((tmp_path / f"{stored}.json").read_text())[kept]) == 1


def command(arguments: list[str], environment: dict[str, str], module: str = "compensate") -> tuple[int, str]:
    done = faults.command(*arguments, environment=environment, module=module)
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


def deaths(place: Path) -> int:
    return len(list((place / "pids").iterdir()))


def test_tune_goes_on_with_the_setting_of_a_killed_worker(tmp_path):
    tune = ["tune", "digits", "--method", "logcomp", "--trials", "3", "--epochs", "1", "--limit", "150"]
    tune += ["--workers", "2", "--set", "model=mlp", "--out", str(tmp_path / "out")]
    code, said = command(tune, faults.deadly(tmp_path / "deadly", 1))
    assert code == 0, said
    assert deaths(tmp_path / "deadly") == 1
    assert "lost" not in said
    stored = json.loads((tmp_path / "out" / "tuning.json").read_text())
    assert len(stored["trials"]) == 3
    assert stored["lost"] == 0
    # The setting that was under way is not lost either: its run came to its end, in the same folder.
    victim = tmp_path / "out" / "runs" / (tmp_path / "deadly" / "victim").read_text()
    assert (victim / "result.json").is_file()


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


# two at once
def test_the_second_process_in_a_folder_is_refused_and_the_lock_of_a_dead_one_is_taken_over(tmp_path):
    folder, ready = tmp_path / "run", tmp_path / "ready"
    process = start(faults.hold, str(folder), str(ready), 600.0)
    try:
        deadline = time.monotonic() + 120
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(InputError, match=rf"is in use: process {process.pid} on"):
            fit(faults.TINY, folder=folder, resume=True)
        assert (folder / "process.json").exists()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert json.loads((folder / "process.json").read_text())["pid"] == process.pid  # it left its file behind
    fit(faults.TINY, folder=folder, resume=True)
    assert Run(folder).result is not None
    assert not (folder / "process.json").exists()


def test_a_lock_is_of_one_at_a_time_and_ends_with_an_error(tmp_path):
    with locked(tmp_path), pytest.raises(InputError, match=f"process {os.getpid()}"), locked(tmp_path):
        pass
    with pytest.raises(RuntimeError, match="on purpose"), locked(tmp_path):
        raise RuntimeError("on purpose")
    (tmp_path / "process.json").write_text("not json")  # of a process that is gone
    with locked(tmp_path):
        assert json.loads((tmp_path / "process.json").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "process.json").exists()


def test_a_disk_without_locks_is_trained_on(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("no locks")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with locked(tmp_path), locked(tmp_path):  # nothing is locked, so a second process is not refused
        (tmp_path / "trained").touch()
    assert (tmp_path / "trained").exists()


# damaged checkpoints
@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("harm", ["cut", "flip", "gone", "empty"])
def test_a_damaged_checkpoint_costs_its_steps_and_nothing_else(suffix, harm, tmp_path, whole_run):
    class Stop(Exception):
        pass

    def stop(s):
        if int(s.step) == 4:
            raise Stop

    with pytest.raises(Stop):
        fit(faults.TINY, folder=tmp_path, every=1, on_step=stop)
    steps = sorted(int(p.stem[5:]) for p in (tmp_path / "checkpoint").glob("*.json"))
    assert steps == [2, 3]
    victim = tmp_path / "checkpoint" / f"step-3.{suffix}"
    content = bytearray(victim.read_bytes())
    if harm == "gone":
        victim.unlink()
    else:
        content[len(content) // 2] ^= 1
        victim.write_bytes({"cut": content[: len(content) // 2], "flip": content, "empty": b""}[harm])
    assert checkpoint.latest(tmp_path / "checkpoint")["at"]["step"] == 2
    result = fit(faults.TINY, folder=tmp_path, every=1, resume=True)
    assert result.history == whole_run.history
    assert all(torch.equal(a, b) for a, b in zip(result.model.parameters(), whole_run.model.parameters(), strict=True))


@pytest.fixture(scope="module")
def whole_run():
    torch.set_num_threads(1)
    return fit(faults.TINY)


# clocks


# divergence
def test_a_training_that_diverges_says_where_and_why_and_leaves_the_last_good_checkpoint(tmp_path):
    config = faults.TINY.replace(lr=1e9, optimizer="sgd", schedule="constant", weight_decay=1.0, epochs=3)
    with pytest.raises(
        InputError, match=r"diverged at step \d+ \(epoch \d, batch \d of \d, learning rate 1e\+09\).*lower"
    ) as said:
        fit(config, folder=tmp_path, every=1)
    found = checkpoint.latest(tmp_path / "checkpoint")
    if found is None:
        assert "no checkpoint yet" in str(said.value)
    else:
        assert f"checkpoint of step {found['at']['step']}, the last good one" in str(said.value)
        assert all(v.isfinite().all() for v in found["model"].values())
    assert Run(tmp_path).result is None


def test_input_that_is_not_finite_is_named():
    data = digits().subset(range(40))
    data.x[7] = float("nan")
    with pytest.raises(InputError, match=r"The input of the samples \[7\] is not finite: correct"):
        fit(Config(data="odd", epochs=1, batch_size=40, validation=0.0, model="mlp", clean=0.0), data=data)
