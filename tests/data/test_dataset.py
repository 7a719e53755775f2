"""Data sets, batches, indices and label noise."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from compensate.data import CropFlip, Dataset, Indexed, Ragged, batches, draws, gather, noise, order
from compensate.data.arrays import as_images
from compensate.errors import InputError


# Dataset
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


# Batches
def texts(n: int = 500) -> Dataset:
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, 50, size=rng.integers(1, 60)) for _ in range(n)]
    return Dataset(Ragged.of(rows), rng.integers(2, size=n), ("a", "b"))


def pictures(n: int = 40) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(rng.integers(256, size=(n, 3, 8, 8), dtype=np.uint8), rng.integers(2, size=n), ("a", "b"))


@pytest.mark.parametrize("data", [texts(), pictures()], ids=["text", "images"])
def test_an_epoch_is_a_partition_and_a_function_of_seed_and_epoch(data):
    one = order(data, 16, seed=3, epoch=2)
    assert sorted(np.concatenate(one)) == list(range(len(data)))
    assert all(np.array_equal(a, b) for a, b in zip(one, order(data, 16, seed=3, epoch=2), strict=True))
    for other in (order(data, 16, seed=4, epoch=2), order(data, 16, seed=3, epoch=3)):
        assert not np.array_equal(np.concatenate(one), np.concatenate(other))
    assert np.array_equal(np.concatenate(order(data, 16, shuffle=False)), np.arange(len(data)))


def test_a_run_resumes_at_batch_k():
    data = pictures()
    whole = list(batches(data, 8, seed=1, epoch=4, augment=CropFlip(2)))
    rest = list(batches(data, 8, seed=1, epoch=4, augment=CropFlip(2), start=3))
    assert len(rest) == len(whole) - 3
    for a, b in zip(whole[3:], rest, strict=True):
        assert all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


def test_augmentation_of_a_sample_does_not_depend_on_its_batch():
    data = pictures()
    drawn = draws(data, seed=1, epoch=0)
    rows = order(data, 8, seed=1)[0]
    x, target, index = gather(data, rows, augment=CropFlip(2), drawn=drawn)
    halves = [gather(data, part, augment=CropFlip(2), drawn=drawn)[0] for part in (rows[:4], rows[4:])]
    assert torch.equal(x, torch.cat(halves))
    assert torch.equal(target, torch.from_numpy(data.target[rows]))
    assert torch.equal(index, torch.from_numpy(data.index[rows]))


def naive(images, drawn, pad, flip):
    out = []
    for image, (a, b, f) in zip(images, drawn, strict=True):
        c, h, w = image.shape
        big = torch.zeros(c, h + 2 * pad, w + 2 * pad, dtype=image.dtype)
        big[:, pad : pad + h, pad : pad + w] = image
        i, j = int(a * (2 * pad + 1)), int(b * (2 * pad + 1))
        part = big[:, i : i + h, j : j + w]
        out.append(part.flip(2) if flip and f < 0.5 else part)
    return torch.stack(out)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(16, 3, 8, 8), (5, 1, 6, 9), (1, 2, 1, 1)])
def test_crop_and_flip_equal_a_loop(flip, dtype, shape):
    torch.manual_seed(0)
    images = torch.randint(0, 255, shape).to(dtype)
    drawn = np.random.default_rng(1).random((shape[0], 3))
    got = CropFlip(4, flip)(images, drawn)
    assert torch.equal(got, naive(images, drawn, 4, flip))
    assert got.is_contiguous()
    assert torch.equal(CropFlip(0, False)(images, drawn), images)


def test_regression_targets_are_floats():
    data = Dataset(np.zeros((4, 2)), np.array([0.5, 1.5, 2.5, np.nan]), ())
    x, target, _ = next(batches(data, 4, shuffle=False))
    assert target.dtype == x.dtype == torch.float32
    assert data.labeled.tolist() == [True, True, True, False]


# Indexed
def test_index_names_the_sample_whatever_the_order():
    x, y = torch.randn(10, 3), torch.arange(10) % 4
    seen = 0
    for xb, yb, i in DataLoader(Indexed(TensorDataset(x, y)), batch_size=4, shuffle=True):
        assert torch.equal(xb, x[i])
        assert torch.equal(yb, y[i])
        seen += len(i)
    assert seen == 10
    assert list(Indexed([(1, 2)])) == [(1, 2, 0)], "an IndexError ends a loop"


def test_items_that_are_dictionaries_get_an_entry():
    """As data sets of Hugging Face give them, and as their collators read them."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["good", "bad", "fine"], "label": [1, 0, 1]})
    data = Indexed(rows)
    assert data[-1] == {"text": "fine", "label": 1, "index": 2}
    assert rows[2] == {"text": "fine", "label": 1}
    for batch in DataLoader(data, batch_size=2, shuffle=True):
        assert [rows[k]["text"] for k in batch["index"].tolist()] == batch["text"]
    assert Indexed([{"x": 1.0, "y": 0}])[0] == {"x": 1.0, "y": 0, "index": 0}
    with pytest.raises(InputError, match='item 0 of the list has an entry "index" already'):
        Indexed([{"x": 1.0, "index": 7}])[0]


# Noise
DRAWN = [noise.random, noise.symmetric, noise.pair]


def labels(n: int = 20_000, c: int = 10) -> np.ndarray:
    return np.random.default_rng(5).integers(c, size=n)


def empirical(y: np.ndarray, noisy: np.ndarray, c: int) -> np.ndarray:
    """The share of each new class within each old one, by a plain loop."""
    counts = np.zeros((c, c))
    for old, new in zip(y, noisy, strict=True):
        counts[old, new] += 1
    return counts / counts.sum(1, keepdims=True)


def expected(scheme: str, p: float, c: int) -> np.ndarray:
    eye = np.eye(c)
    return {
        "random": (1 - p) * eye + p / c,
        "symmetric": (1 - p) * eye + p / (c - 1) * (1 - eye),
        "pair": (1 - p) * eye + p * np.roll(eye, 1, axis=1),
    }[scheme]


@pytest.mark.parametrize("scheme", ["random", "symmetric", "pair"])
def test_shares_follow_the_formula(scheme):
    y = labels()
    flipped = noise.SCHEMES[scheme](y, 10, 0.3, seed=1)
    # 2,000 samples a class: the standard deviation of a share is at most 0.011.
    assert np.abs(empirical(y, flipped.labels, 10) - expected(scheme, 0.3, 10)).max() < 0.05
    assert np.array_equal(flipped.changed, flipped.labels != y)
    assert flipped.rate == np.mean(flipped.labels != y)


def test_transition_follows_its_matrix_and_reproduces_pair_noise():
    y = labels(30_000, 3)
    t = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.25, 0.0, 0.75]])
    shares = empirical(y, noise.transition(y, t, seed=2).labels, 3)
    assert np.abs(shares - t).max() < 0.02
    assert (shares[t == 0] == 0).all()


def test_errors_in_clusters_are_the_nearest_samples_of_a_few():
    rng = np.random.default_rng(0)
    y = labels(300, 3)
    x = rng.normal(size=(300, 2)) + 3 * np.eye(3, 2)[y]
    flipped = noise.parse("cluster:0.2")(y, 3, seed=1, features=x)
    assert flipped.rate == pytest.approx(0.2, abs=0.01)
    assert (noise.cluster(y, 3, 0.1, features=x, seed=1).changed <= flipped.changed).all()
    z = (x - x.mean(0)) / x.std(0)
    for c in range(3):
        groups = [np.flatnonzero(flipped.changed & (y == c) & (flipped.labels == j)) for j in range(3) if j != c]
        right = np.flatnonzero(~flipped.changed & (y == c))
        for group in (
            group for group in groups if len(group)
        ):  # the nearest sample of a wrong one is wrong more often than not
            others = np.flatnonzero(y == c)
            near = [min((np.linalg.norm(z[i] - z[j]), j) for j in others if j != i)[1] for i in group]
            assert np.mean(flipped.changed[near]) > 0.6 > len(group) / len(right)


def test_errors_of_an_instance_follow_the_sample():
    rng = np.random.default_rng(0)
    y = labels(6000, 4)
    x = np.repeat(rng.normal(size=(4, 64)), 1500, axis=0)  # four kinds of samples, alike within a kind
    flipped = noise.parse("instance:0.3")(y, 4, seed=1, features=x)
    assert abs(flipped.rate - 0.3) < 0.03
    assert (noise.instance(y, 4, 0.1, features=x, seed=1).changed <= flipped.changed).all()
    assert not noise.instance(y, 4, 0.0, features=x).changed.any()
    kinds, shares = np.repeat(np.arange(4), 1500), []
    for kind, c in itertools.product(range(4), range(4)):
        towards = np.bincount(flipped.labels[(kinds == kind) & (y == c) & flipped.changed], minlength=4)
        shares.append(towards.max() / towards.sum())
    assert np.mean(shares) > 0.8, "one class takes nearly all errors of a kind; other errors give each a third"
    with pytest.raises(InputError, match="needs numbers that describe"):
        noise.parse("instance:0.3")(y, 4)


@pytest.mark.parametrize("scheme", DRAWN)
@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 60), c=st.integers(2, 6), rate=st.floats(0, 1), seed=st.integers(0, 1000))
def test_laws(scheme, n, c, rate, seed):
    y = np.random.default_rng(seed).integers(c, size=n)
    kept = y.copy()
    one = scheme(y, c, rate, seed=seed)
    assert np.array_equal(y, kept), "the labels given are left alone"
    assert np.array_equal(one.labels, scheme(y, c, rate, seed=seed).labels)
    assert ((one.labels >= 0) & (one.labels < c)).all()
    fewer = scheme(y, c, rate / 2, seed=seed)
    assert (fewer.changed <= one.changed).all(), "a lower rate gives a subset of the errors"
    exact = scheme(y, c, rate, seed=seed, exact=True)
    if scheme is noise.random:
        assert exact.changed.sum() <= round(rate * n)
    else:
        assert exact.changed.sum() == round(rate * n)


def test_text_schemes_by_a_loop():
    y = labels(200, 2)
    flips = [1 - v if i < 20 else v for i, v in enumerate(y)]
    assert np.array_equal(noise.first(y, 2, 0.1).labels, flips)
    left = round(0.1 * sum(y))
    asymmetric = []
    for v in y:
        asymmetric.append(0 if v == 1 and left > 0 else v)
        left -= v == 1
    assert np.array_equal(noise.first_positive(y, 2, 0.1).labels, asymmetric)


@pytest.mark.parametrize(
    ("text", "name", "rate"),
    [("random:0.2", "random", 0.2), (" Pair:.3", "pair", 0.3), ("first_positive:0.1", "first-positive", 0.1)],
)
def test_parse(text, name, rate):
    spec = noise.parse(text)
    assert (spec.name, spec.rate) == (name, rate)
    assert noise.parse(str(spec)) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    y = labels(50, 3)
    assert np.array_equal(spec(y, 3, seed=4).labels, noise.SCHEMES[name](y, 3, rate, seed=4).labels)


# Errors
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
        (lambda: order(pictures(), 0), "at least 1"),
        (
            lambda: next(batches(Dataset(np.array(["a"], dtype=object), np.array([0]), ("x",)), 2)),
            "array of str.*encode",
        ),
        (lambda: gather(pictures(), np.arange(2), augment=CropFlip()), "drawn="),
        (lambda: CropFlip()(torch.zeros(3, 4), np.zeros((3, 3))), r"\(B, C, H, W\)"),
        (lambda: as_images(np.zeros((2, 3)), "x"), "shape"),
        (lambda: as_images(np.full((2, 3, 3), -1.0), "x"), "undo the normalization"),
        (lambda: noise.pair([0, 3], 3, 0.1), "num_classes=4"),
        (lambda: noise.pair([0, -1], 3, 0.1), "without a label"),
        (lambda: noise.pair([0.5, 1], 3, 0.1), "whole numbers"),
        (lambda: noise.pair([[0]], 3, 0.1), "one a sample"),
        (lambda: noise.random([0, 1], 2, 1.5), "share from 0 to 1"),
        (lambda: noise.symmetric([0, 0], 1, 0.5), "at least 2"),
        (lambda: noise.transition([0, 1], [[0.5, 0.4], [0, 1]]), "sum to 1"),
        (lambda: noise.transition([0, 1], [[0.5, np.nan], [0, 1]]), "sum to 1"),
        (lambda: noise.transition([0, 1], [[1, 0]]), "square"),
        (lambda: noise.pair([0, 1], 2, 0.1, seed=-1), "seed"),
        (lambda: noise.parse("par:0.2"), 'did you mean "pair"'),
        (lambda: noise.parse("pair"), "pair:0.2"),
        (lambda: noise.parse("pair:x"), "pair:0.2"),
        (lambda: noise.parse("pair:20"), "20 percent is 0.2"),
        (lambda: noise.class_sizes(10, 100, 0.1), "at least 1"),
        (lambda: noise.class_sizes(10, 100, 10, "linear"), "exponential or step"),
        (lambda: noise.long_tailed(Dataset(np.zeros((2, 1)), np.array([0, 0]), ("a", "b")), 10), "b have no samples"),
        (lambda: noise.long_tailed(Dataset(np.zeros((2, 1)), np.array([0.5, 1.0]), ()), 10), "quantity"),
        (lambda: Indexed(iter([(1, 2)])), "map-style"),
        (lambda: Indexed(Indexed([(1, 2)])), "once"),
        (lambda: Indexed([(1, 2, 3)])[0], "pairs"),
        (lambda: Indexed([7])[0], "a int"),
    ],
)
def test_bad_input(call, hint):
    with pytest.raises(InputError, match=hint):
        call()
