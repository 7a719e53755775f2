"""SIGKILL at random moments, then resume: the end is that of the run nobody disturbed, bit for bit.

COMPENSATE_KILLS=20 pytest tests/training/test_resume_after_kill.py     # more moments than the default
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))
import killed

from processes import start

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("COMPENSATE_KILLS", "6"))


def final(folder: Path) -> dict[str, bytes]:
    """Every file that must not differ; of the checkpoint's JSON all but the time it took."""
    head = folder / "checkpoint" / f"step-{saved(folder)}.json"
    state = json.loads(head.read_text())["state"]
    state["at"].pop("seconds")
    files = ["metrics.jsonl", "model.safetensors", "best.safetensors", f"checkpoint/{head.stem}.safetensors"]
    return {name: (folder / name).read_bytes() for name in files} | {"state": json.dumps(state).encode()}


def saved(folder: Path) -> int:
    """The step of the newest checkpoint."""
    return max((int(p.stem[5:]) for p in (folder / "checkpoint").glob("step-*.json")), default=0)


def finish(method: str, folder: Path) -> None:
    child = start(killed.train, method, KILLS, str(folder))
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("method", ["logcomp", "online_label_smoothing"])
def test_a_killed_run_ends_as_if_nothing_had_happened(method, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(method, whole)
    total = saved(whole)
    rng, places = random.Random(7), []
    for _ in range(KILLS):
        moment = saved(broken) + rng.randint(0, int(1.2 * total / KILLS))
        child = start(killed.train, method, KILLS, str(broken))
        while child.is_alive() and saved(broken) < moment:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.03))  # so that it is hit while it steps, while it writes, or between
        child.kill()
        child.join()
        if child.exitcode == 0:  # it was faster, as can happen at the very end
            break
        assert child.exitcode == -signal.SIGKILL
        places.append(saved(broken))
    finish(method, broken)
    assert len(places) >= 3 * KILLS // 4, f"the run of {total} steps was over after kills at {places}"
    assert len(set(places)) >= KILLS // 2, f"too many kills at the same place: {places}"
    expected, found = final(whole), final(broken)
    assert [name for name in expected if expected[name] != found[name]] == []
    stored = load_file(whole / f"checkpoint/step-{total}.safetensors")
    moved = [
        k for k, v in stored.items() if k.startswith("/criterion/") and v.is_floating_point() and v.abs().sum() > 0
    ]
    assert moved, "nothing was stored by the criterion, so nothing was tested"
