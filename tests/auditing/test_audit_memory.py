"""Large arrays are neither copied nor loaded as a whole."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from compensate import audit
from compensate.auditing import linear
from compensate.auditing.features import make_views
from compensate.auditing.learners import ByFold, Linear, assign_folds
from compensate.auditing.source import read
from compensate.data import arrays, from_arrays
from compensate.errors import InputError


def test_linear_models_of_embeddings_take_a_fraction_of_their_memory(monkeypatch):
    monkeypatch.setattr(linear, "BLOCK", 1 << 17)  # small as the data are, they are looked at in parts
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=8000)
    x = (rng.standard_normal((4, 512))[y] + rng.standard_normal((8000, 512))).astype(np.float32)
    tracemalloc.start()
    (view,) = make_views(read(x, y, None, {}), "none").views
    fitted = linear.LinearFolds(view.x, assign_folds(y), 5, 4)
    models = fitted.each(fitted.fit(linear.compensated(y, 0.5), 1e-2))
    found = ByFold([Linear(*one) for one in models]).log_p(view.x, None, fitted.folds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.shares_memory(view.x, x)
    assert (found.argmax(1) == y).mean() > 0.95
    assert peak < 0.8 * x.nbytes  # all that numpy took; each copy of the features would be 1


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
    found = audit(str(tmp_path / "x.npy"), labels=y)
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
