from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compensate.data import noise
from compensate.errors import InputError

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
    assert (
        np.mean(shares) > 0.8
    )  # one class takes nearly all errors of a kind; errors that do not look at the sample give each a third
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


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("par:0.2", 'did you mean "pair"'),
        ("pair", "pair:0.2"),
        ("pair:x", "pair:0.2"),
        ("pair:20", "20 percent is 0.2"),
    ],
)
def test_parse_says_what_to_write(text, hint):
    with pytest.raises(InputError, match=hint):
        noise.parse(text)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
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
        (lambda: noise.first_positive([0, 1], 2, 0.1, positive=2), "positive"),
    ],
)
def test_bad_input(call, hint):
    with pytest.raises(InputError, match=hint):
        call()
