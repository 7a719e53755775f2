"""Wrong values among quantities."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_friedman1, make_friedman2
from sklearn.metrics import average_precision_score

from compensate import audit
from compensate.errors import InputError

pytestmark = pytest.mark.slow

UNITS = (0.001, 0.01, 0.1, 10.0, 100.0, 1000.0)


def friedman(share: float, size: int = 600, seed: int = 0):
    """Values of which a share is that of another row."""
    x, y = make_friedman1(size, noise=1.0, random_state=seed)
    rng = np.random.default_rng(seed)
    wrong = rng.random(size) < share
    given = np.where(wrong, rng.permutation(y), y)
    return x.astype(np.float32), given, y, wrong


def test_values_of_other_rows_are_found():
    x, given, y, wrong = friedman(0.1)
    found = audit(x, given)
    assert found.regression
    assert average_precision_score(wrong, found.log_odds) > 0.5
    assert found.noise_rate.low <= wrong.mean() <= found.noise_rate.high
    most = np.argsort(-found.log_odds)[:30]
    assert wrong[most].mean() > 0.7
    assert np.abs(found.suggested - y)[most].mean() < np.abs(found.given - y)[most].mean() / 2
    assert list(found.evidence) == ["residual", "usual residual"]


def test_right_values_are_not_flagged():
    x, given, _, _ = friedman(0.0)
    found = audit(x, given)
    assert found.mask.mean() <= 0.01
    assert found.noise_rate.low == 0


def test_noise_that_depends_on_the_place_is_not_taken_for_errors():
    """Right values vary ten times as much on one side; planted ones stand out where the others vary little."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(800, 3)).astype(np.float32)
    usual = np.where(x[:, 0] > 0, 3.0, 0.3)
    y = 10 * x[:, 1] + usual * rng.normal(size=800)
    wrong = np.zeros(800, bool)
    wrong[np.flatnonzero(x[:, 0] < 0)[:20]] = True
    found = audit(x, np.where(wrong, y + 5, y))
    assert found.mask[~wrong].mean() <= 0.01
    assert average_precision_score(wrong, found.log_odds) > 0.9
    assert average_precision_score(wrong, found.evidence["residual"]) < 0.5
    place = found.evidence["usual residual"]
    assert np.median(place[x[:, 0] > 0]) > 2 * np.median(place[x[:, 0] < 0])


def prices(size: int = 600):
    """Values that differ in proportions."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, 4)).astype(np.float32)
    return x, np.exp(x[:, 0] + 0.5 * x[:, 1] + 3 + 0.3 * rng.normal(size=size)), rng.random(size) < 0.03


@pytest.mark.parametrize("slip", [lambda y: 1000 * y, np.zeros_like], ids=["unit", "zero"])
def test_wrong_units_and_zeros_among_prices_are_found(slip):
    x, y, wrong = prices()
    found = audit(x, np.where(wrong, slip(y), y))
    assert found.mask[wrong].mean() > 0.9
    assert found.mask[~wrong].mean() <= 0.01
    assert found.noise_rate.low <= wrong.mean() <= found.noise_rate.high
    ratio = found.suggested[wrong] / y[wrong]
    assert 0.5 < np.median(ratio) < 2


def leaning(seed: int):
    """Right values that lie far above what is usual more often than far below."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(800, 4)).astype(np.float32)
    return x, 4 * x[:, 0] + 2 * x[:, 1] + 20 + rng.gamma(1, 1.5, size=800)


def curved(seed: int):
    """Values of a curved function, whose neighbors wrong units spoil."""
    x, y = make_friedman2(800, noise=20.0, random_state=seed)
    return x.astype(np.float32), y + 100


def spoiled(y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A share of the values in another unit, of another row, or off by several deviations."""
    rng = np.random.default_rng(seed + 100)
    moved = y + y.std() * rng.choice([-1, 1], len(y)) * rng.uniform(1.5, 4, len(y))
    wrong = np.choose(rng.integers(0, 3, len(y)), [y * rng.choice(UNITS, len(y)), rng.permutation(y), moved])
    return np.where(rng.random(len(y)) < share, wrong, y)


@pytest.mark.parametrize("draw", [leaning, curved])
def test_stated_precision_and_share_hold(draw):
    flags, expected, right, stated, true = 0, 0.0, 0, [], []
    for seed in (11, 12, 13):
        x, y = draw(seed)
        given = spoiled(y, 0.03, seed)
        found = audit(x, given)
        flags, expected = flags + found.mask.sum(), expected + found.p_error[found.mask].sum()
        right += (found.mask & (given != y)).sum()
        stated.append(found.noise_rate.value)
        true.append((given != y).mean())
    assert right >= 0.5 * 800 * sum(true)
    assert expected / flags - right / flags < 0.05
    assert np.mean(stated) < 1.7 * np.mean(true)


@pytest.mark.parametrize("factor", UNITS)
def test_a_value_in_a_wrong_unit_gets_its_own_back(factor):
    x, y = curved(14)
    y = y.round(2)
    wrong = np.arange(800) % 40 == 0
    found = audit(x, np.where(wrong, y * factor, y))
    assert found.mask[wrong].mean() > 0.7
    at = wrong & found.mask
    np.testing.assert_allclose(np.median(found.suggested[at] / y[at]), 1, rtol=1e-9)
    assert (np.abs(found.suggested[at] / y[at] - 1) < 1e-9).mean() > 0.8
    names = found.names(found.suggested[at])
    assert sum(float(name) == value for name, value in zip(names, y[at], strict=True)) > 0.8 * at.sum()


def test_prices_are_written_as_plain_numbers(tmp_path):
    x, y, wrong = prices(200)
    y = (y * 50_000).round(2)
    found = audit(x, np.where(wrong, 1000 * y, y))
    path = found.write_suspects(tmp_path / "suspects.csv")
    assert "e+" not in path.read_text()
    assert set(found.names(found.given[~wrong])) == {f"{value:.2f}".rstrip("0").rstrip(".") for value in y[~wrong]}


def test_the_largest_number_there_is_among_prices_is_a_wrong_one():
    x, y, _ = prices(200)
    found = audit(x, np.where(np.arange(200) == 7, np.finfo(float).max, y))
    assert found.mask[7]
    assert np.isfinite(found.suggested).all()


def test_right_prices_are_not_flagged():
    x, y, _ = prices()
    found = audit(x, y)
    assert found.mask.mean() <= 0.01
    assert found.noise_rate.low == 0
    usual = found.evidence["usual residual"]
    assert np.corrcoef(np.log(usual), np.log(y))[0, 1] > 0.8  # as large as the price


@pytest.mark.parametrize("draw", ["uniform", "lognormal"])
def test_values_that_the_samples_do_not_explain_are_not_flagged(draw):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    found = audit(x, getattr(rng, draw)(size=300))
    assert not found.mask.any()
    assert "cannot be predicted" in found.notes[0]
    assert (found.noise_rate.low, found.noise_rate.high) == (0, 1)


def test_a_value_that_most_rows_share_is_not_an_error():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = np.where(np.arange(200) < 5, rng.uniform(1, 2, 200), 0.0)
    assert not audit(x, y).mask[5:].any()


def test_values_of_any_size_are_computed_with():
    x, given, _, _ = friedman(0.0, 200)
    given[3] = 1e300
    found = audit(x, given)
    assert found.mask[3]
    assert np.isfinite(found.p_error).all()
    scaled = audit(x, given * 1e-200)
    np.testing.assert_allclose(scaled.p_error, found.p_error, atol=0.03)


def test_rows_without_a_value_are_predicted():
    x, given, y, _ = friedman(0.0, 300)
    given[:20] = np.nan
    found = audit(x, given)
    assert len(found) == 280
    assert list(found.predicted["index"]) == list(range(20))
    assert np.corrcoef(found.predicted["suggested"].astype(float), y[:20])[0, 1] > 0.7


def test_texts_may_be_labeled_with_quantities():
    rng = np.random.default_rng(0)
    stars = rng.integers(0, 5, size=300)
    texts = [" ".join(["good"] * s + ["bad"] * (4 - s) + list(rng.choice(["film", "plot", "end"], 3))) for s in stars]
    values = stars + rng.normal(size=300) * 0.1
    values[:6] = (values[:6] + 2.5) % 5
    found = audit(texts, values, encoder="none")
    assert found.mask[:6].mean() > 0.6
    assert found.mask[6:].mean() <= 0.01


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.full(40, 1.5), "all values are 1.5"),
        (np.r_[np.inf, np.arange(39) + 0.5], "the value of row 0 is infinite"),
        (np.r_[np.full(25, np.nan), np.arange(15) + 0.5], "15 rows have a value; an audit needs 20"),
    ],
)
def test_values_that_cannot_be_judged_are_refused(values, said):
    with pytest.raises(InputError, match=said):
        audit(np.arange(80.0).reshape(40, 2), values)


def test_a_model_for_quantities_is_refused():
    x, given, _, _ = friedman(0.0, 60)
    with pytest.raises(InputError, match="without a model of your own"):
        audit(x, given, model="mlp")
