"""What audits cost: time and memory that grow with the data, threads by the size of the work, and steps that are told."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from compensate import InputError, audit
from compensate.auditing import linear
from compensate.auditing.features import make_views
from compensate.auditing.learners import Linear, View, assign_folds, judge_view, predict_rows
from compensate.auditing.linear import LinearFolds
from compensate.auditing.source import read
from compensate.data import arrays, from_arrays


def test_few_rows_of_many_columns_have_the_axes_of_their_rows():
    x = np.random.default_rng(0).normal(size=(30, 200)) * np.linspace(1, 3, 200)
    fitted = LinearFolds(x.astype(np.float32), np.arange(30) % 5, 5, 3)
    assert fitted.axes.shape == (200, 29)
    np.testing.assert_allclose(fitted.axes.T @ fitted.axes, np.eye(29), atol=1e-4)
    z = (x - fitted.center) / fitted.scale
    np.testing.assert_allclose(z @ fitted.axes @ fitted.axes.T, z, atol=1e-5)
    np.testing.assert_allclose((z @ fitted.axes).var(0), fitted.spread, rtol=1e-3)


def test_axes_are_bounded_however_many_rows_and_columns_there_are(monkeypatch):
    monkeypatch.setattr(linear, "MAX_AXES", 20)
    x = np.random.default_rng(0).normal(size=(100, 50)).astype(np.float32)
    x[:, 0] += 3 * (np.arange(100) % 2)
    fitted = LinearFolds(x, np.arange(100) // 2 % 5, 5, 2)
    assert fitted.axes.shape[1] <= 20
    w = fitted.fit(linear.compensated(np.arange(100) % 2, 0.5), 1e-2)
    assert fitted.held_out_loss(w, np.arange(100) % 2) < np.log(2)


def test_classes_like_identifiers_are_refused_with_the_reason():
    x = np.random.default_rng(0).normal(size=(20_000, 2))
    begun = time.process_time()
    with pytest.raises(
        InputError, match=r"20,000 rows have 10,000 classes.*most classes have 2 rows.*merge rare classes"
    ):
        audit(x, np.arange(20_000) % 10_000)
    assert time.process_time() - begun < 20


def test_small_work_takes_one_thread_and_large_work_those_that_are_set(monkeypatch):
    seen = []
    monkeypatch.setattr(
        linear, "minimize", lambda f, z, **_: seen.append(threadpool_info()) or type("Found", (), {"x": z})
    )
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = np.arange(60) % 3
    for work, most in ((1e9, 1), (0, 2)):
        monkeypatch.setattr("compensate.auditing.execution.LARGE", work)
        seen.clear()
        with threadpool_limits(2):
            judge_view(View("features", x), y, assign_folds(y), 5, 3)
        assert {pool["num_threads"] for pool in seen[0]} == {most}


def test_every_learner_tells_its_steps():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    told = []
    audit(rng.normal(size=(60, 4)) + y[:, None], y, progress=lambda *step: told.append(step))
    fitting = [step for step in told if step[0].startswith("fitting")]
    assert {stage for stage, *_ in fitting} == {
        f"fitting {name}" for name in ("logcomp", "transitions", "neighbors", "trees")
    }
    done, totals = [step[1] for step in fitting], {step[2] for step in fitting}
    assert done == sorted(done)
    assert len(totals) == 1
    assert done[-1] == totals.pop() >= 30
    assert told[-1][0] == "judging"


# --- memory ---------------------------------------------------------------------------------------------------


def test_linear_models_of_embeddings_take_a_fraction_of_their_memory(monkeypatch):
    monkeypatch.setattr(linear, "BLOCK", 1 << 17)  # small as the data are, they are looked at in parts
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=8000)
    x = (rng.standard_normal((4, 512))[y] + rng.standard_normal((8000, 512))).astype(np.float32)
    tracemalloc.start()
    (view,) = make_views(read(x, y, None, {}), "none").views
    fitted = linear.LinearFolds(view.x, assign_folds(y), 5, 4)
    models = [Linear(*one) for one in fitted.each(fitted.fit(linear.compensated(y, 0.5), 1e-2))]
    found = predict_rows(View("view", view.x), {"linear": [models]}, fitted.folds[None])["linear"]
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
