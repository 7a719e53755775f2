"""Checkpoints: whole, checked, without pickle, and the one before as a fallback."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compensate.errors import InputError
from compensate.training import checkpoint

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


def test_an_optimizer_comes_back_and_steps_alike(tmp_path):
    def made():
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()

    model, optimizer = made()
    step(model, optimizer)
    checkpoint.save_checkpoint(tmp_path, 1, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    found = checkpoint.latest(tmp_path)
    other, other_optimizer = made()
    other.load_state_dict(found["model"])
    other_optimizer.load_state_dict(found["optimizer"])
    step(model, optimizer)
    step(other, other_optimizer)
    assert torch.equal(model.weight, other.weight)


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


def test_what_is_no_value_is_refused_by_its_place(tmp_path):
    with pytest.raises(InputError, match="cannot hold a set"):
        checkpoint.save_checkpoint(tmp_path, 1, {"a": [{1, 2}]})
