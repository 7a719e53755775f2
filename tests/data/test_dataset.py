from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compensate.data import Dataset, digits, digits_splits
from compensate.errors import InputError


def toy(n: int = 100, c: int = 3) -> Dataset:
    rng = np.random.default_rng(0)
    names = np.array([f"row{i}" for i in range(n)], dtype=object)
    return Dataset(rng.normal(size=(n, 2)), rng.integers(c, size=n), tuple("abcdef"[:c]), ids=names, raw=names)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(4, 200), parts=st.lists(st.integers(1, 9), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_split_is_a_partition_with_the_sizes_asked_for(n, parts, seed):
    data = toy(n)
    shares = [p / sum(parts) for p in parts]
    pieces = data.split(shares, seed=seed)
    assert sorted(np.concatenate([p.index for p in pieces])) == list(range(n))
    for piece, share in zip(pieces, shares, strict=True):
        assert abs(len(piece) - share * n) <= len(parts)
        assert np.array_equal(piece.x, data.x[piece.index])
        assert np.array_equal(piece.target, data.target[piece.index])
        assert (piece.ids == data.ids[piece.index]).all()


def test_index_is_the_source_row_through_any_chain():
    data = toy()
    deep = data.split((0.5, 0.5), seed=1)[1].subset([4, 2, 9]).subset([True, False, True])
    assert np.array_equal(deep.x, data.x[deep.index])
    assert [deep[r][2] for r in range(2)] == list(deep.index)


def test_digits():
    data = digits()
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == np.float32
    assert (data.x.min(), data.x.max()) == (0, 1)
    one, two = digits_splits(seed=3), digits_splits(seed=3)
    assert np.array_equal(one.test.index, two.test.index)
    assert not np.array_equal(one.test.index, digits_splits(seed=4).test.index)
    assert set(one.train.index).isdisjoint(one.test.index)
    assert one.test.class_counts.min() >= 50


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: Dataset(np.zeros((3, 2)), np.zeros(2, int), ("a",)), "differ in length"),
        (lambda: Dataset(np.zeros((2, 2)), np.array([0, 1]), ("a",)), "row 1 is 1"),
        (lambda: toy().split((0.5, 0.4)), "sum to 1"),
        (lambda: toy().split((1.5, -0.5)), "positive"),
        (lambda: toy().subset([100]), "0 to 99"),
        (lambda: toy().subset([True]), "mask"),
        (lambda: toy().relabel([0]), "differ in length"),
    ],
)
def test_bad_input(call, hint):
    with pytest.raises(InputError, match=hint):
        call()
