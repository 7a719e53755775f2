"""Large arrays are neither copied nor loaded as a whole."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from compensate.auditing.kinds import inputs
from compensate.auditing.scaling import Scaled, subset

from compensate import audit
from compensate.auditing import scaling
from compensate.auditing.source import read
from compensate.data import arrays, from_arrays
from compensate.errors import InputError


@pytest.mark.parametrize("block", [64, 1 << 24])
def test_scaled_rows_are_those_of_a_scaled_array(monkeypatch, block):
    monkeypatch.setattr(scaling, "BLOCK", block)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((300, 7)) * np.array([1, 5, 0.1, 0, 100, 2, 3]) + 40).astype(np.float32)
    x[5, 0] = 1e6
    exact = x.astype(np.float64)
    spread = exact.std(0)
    expected = np.clip((exact - exact.mean(0)) / np.where(spread > 1e-8, spread, 1), -10, 10)
    scaled = Scaled.of(x)
    rows = rng.permutation(300)[:50]
    np.testing.assert_allclose(scaled[rows], expected[rows], atol=2e-3)
    np.testing.assert_allclose(
        scaled.subset(np.arange(100, 200))[rows[rows < 100]], expected[100 + rows[rows < 100]], atol=2e-3
    )
    assert scaled[rows].dtype == np.float32
    assert scaled.x is x


def test_all_rows_of_anything_are_no_copy():
    x = np.ones((9, 2), np.float32)
    scaled = Scaled.of(x)
    every, some = np.arange(9), np.array([1, 4])
    assert subset(x, every) is x
    assert subset(scaled, every) is scaled
    assert subset(None, every) is None
    assert len(subset(scaled, some)) == len(subset(x, some)) == 2


def test_features_are_made_ready_in_a_fraction_of_their_memory(monkeypatch):
    monkeypatch.setattr(scaling, "BLOCK", 1 << 18)  # small as the data are, they are looked at in parts
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=8000)
    x = (rng.standard_normal((4, 512))[y] + rng.standard_normal((8000, 512))).astype(np.float32)
    tracemalloc.start()
    data = read(x, y, None, {})
    found = inputs(data)
    batch = found.batch(np.arange(0, 8000, 100), 0)
    vectors = subset(found.vectors, np.arange(8000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(batch, ((x - x.mean(0)) / x.std(0))[::100], atol=1e-4)
    np.testing.assert_array_equal(vectors[np.arange(0, 8000, 100)], batch)
    assert peak < 0.4 * x.nbytes  # all that numpy took; each copy of the features would be 1


def test_a_large_file_is_mapped(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=200)
    x = (3 * rng.standard_normal((3, 6))[y] + rng.standard_normal((200, 6))).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr(arrays, "MAPPED", 0)
    for data in (str(tmp_path / "x.npy"), np.load(tmp_path / "x.npy", mmap_mode="r")):
        found = read(data, y, None, {})
        assert not found.x.flags.owndata
        assert not found.x.flags.writeable
        np.testing.assert_array_equal(found.x, x)
    found = audit(str(tmp_path / "x.npy"), labels=y, epochs=2)
    assert len(found) == 200
    assert not found.data.x.flags.owndata
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-40])
    with pytest.raises(InputError, match="damaged"):
        arrays.read_npz(tmp_path / "x.npy")


def test_numbers_that_are_not_finite_are_found_in_any_block():
    x = np.zeros((50, 3), np.float32)
    assert len(arrays.not_finite(x, block=7)) == 0
    x[[0, 33, 49], 1] = np.nan, np.inf, -np.inf
    assert arrays.not_finite(x, block=7).tolist() == [0, 33, 49]
    with pytest.raises(InputError, match="in 3 rows, the first 0"):
        from_arrays(x, np.zeros(50))
