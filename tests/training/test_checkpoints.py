"""Checkpoints come back as they were, and a killed run ends as if nothing had happened."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time
from pathlib import Path

import killed
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from compensate.errors import InputError
from compensate.training import checkpoint
from processes import start

# Checkpoint
LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5)
TREES = st.recursive(
    LEAVES | st.lists(st.floats(width=32, allow_nan=False), max_size=3).map(torch.tensor),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(tree=TREES)
def test_any_tree_comes_back_as_it_was(tree):
    tensors = {}
    packed = json.loads(json.dumps(checkpoint.pack(tree, tensors)))
    assert same(checkpoint.unpack(packed, tensors), tree)


def test_tied_weights_and_special_numbers_are_stored(tmp_path):
    shared = torch.arange(3.0)
    tree = {"a": shared, "b": shared, "view": shared[1:], "inf": math.inf, "flag": torch.tensor(True)}
    checkpoint.save_checkpoint(tmp_path, 3, tree)
    found = checkpoint.latest(tmp_path)
    assert same(found, tree)


def test_the_one_before_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    checkpoint.save_checkpoint(tmp_path, 1, {"x": torch.tensor(1.0)})
    write = checkpoint.write_atomically

    def dies_before_the_json(path, content):
        if path.suffix == ".json":
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_atomically", dies_before_the_json)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save_checkpoint(tmp_path, 2, {"x": torch.tensor(2.0)})
    assert checkpoint.latest(tmp_path)["x"] == 1
    monkeypatch.undo()
    checkpoint.save_checkpoint(tmp_path, 2, {"x": torch.tensor(2.0)})
    checkpoint.save_checkpoint(tmp_path, 3, {"x": torch.tensor(3.0)})
    kept = ["step-2.json", "step-2.safetensors", "step-3.json", "step-3.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == kept  # one to fall back on, and no more
    assert checkpoint.latest(tmp_path)["x"] == 3


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("harm", ["cut", "flip", "gone"])
def test_a_damaged_checkpoint_is_passed_over_and_if_it_is_the_only_one_refused(tmp_path, suffix, harm):
    checkpoint.save_checkpoint(tmp_path / "a", 1, {"x": torch.arange(4.0), "n": 17})
    checkpoint.save_checkpoint(tmp_path / "b", 2, {"x": torch.arange(4.0) + 1, "n": 18})
    for file in (tmp_path / "b").iterdir():
        file.rename(tmp_path / "a" / file.name)
    victim = tmp_path / "a" / f"step-2.{suffix}"
    content = victim.read_bytes()
    if harm == "gone":
        victim.unlink()
    else:
        victim.write_bytes(content[:-3] if harm == "cut" else content.replace(b"18", b"19").replace(b"\x40", b"\x41"))
    assert checkpoint.latest(tmp_path / "a")["n"] == 17
    (tmp_path / "a" / "step-1.json").unlink()
    if suffix == "json" and harm == "gone":
        assert checkpoint.latest(tmp_path / "a") is None
    else:
        with pytest.raises(InputError, match="damaged"):
            checkpoint.latest(tmp_path / "a")


@pytest.mark.parametrize("head", [b"[]", b"7", b"{}", b"[" * 100_000, b'{"check": [], "sha256": 1}'])
def test_a_head_that_is_json_and_no_checkpoint_is_passed_over(tmp_path, head):
    checkpoint.save_checkpoint(tmp_path, 1, {"n": 17})
    (tmp_path / "step-2.json").write_bytes(head)
    (tmp_path / "step-2.safetensors").write_bytes((tmp_path / "step-1.safetensors").read_bytes())
    assert checkpoint.latest(tmp_path) == {"n": 17}


# Resume after kill
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


@pytest.mark.slow
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
    held = [v for k, v in stored.items() if k.startswith("/criterion/") and v.is_floating_point()]
    assert any(v.abs().sum() > 0 for v in held), "nothing was stored by the criterion, so nothing was tested"
