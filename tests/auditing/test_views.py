"""From samples of any kind to the features that learners see."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import average_precision_score

from compensate import audit, encoders
from compensate.auditing.features import Features, make_views
from compensate.auditing.source import read
from compensate.data import digits, noise
from compensate.errors import InputError


def views_of(data, labels=None, features=None, **options):
    return make_views(read(data, labels, features, options), "none")


def reviews(size: int = 300, seed: int = 0):
    rng = np.random.default_rng(seed)
    words = (["good", "great", "fine"], ["bad", "awful", "poor"])
    true = rng.integers(2, size=size)
    texts = [" ".join(rng.choice(words[t] + ["film", "plot", "the"], size=9)) for t in true]
    return texts, true


def test_texts_are_words():
    texts, true = reviews()
    found = views_of(texts, true)
    (view,) = found.views
    assert view.name == "words"
    assert sp.issparse(view.x)
    assert view.x.dtype == np.float32
    np.testing.assert_allclose(sp.linalg.norm(view.x, axis=1), 1, rtol=1e-5)
    assert found.keys is not None
    with pytest.raises(InputError, match="no word in common"):
        views_of([""] * 30, np.arange(30) % 2)


def test_empty_texts_among_others_are_audited():
    texts, true = reviews()
    flipped = noise.symmetric(true, 2, 0.1, seed=0)
    for row in range(0, 300, 20):
        texts[row] = ""
    found = audit(texts, flipped.labels, encoder="none")
    said = np.array([bool(text) for text in texts])
    assert found.mask[flipped.changed & said].mean() > 0.8
    assert flipped.changed[found.mask].mean() > 0.8
    assert np.isfinite(found.log_odds).all()


def test_an_encoder_and_words_are_looked_at_together(monkeypatch):
    """With an encoder, by two views; where it is said to be absent, by words and a hint how to get one."""
    texts, true = reviews(60)
    values = np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32)
    made = encoders.Encoded(values, "an encoder", "MIT", "somewhere")
    monkeypatch.setattr(encoders, "encode_data", lambda *_, **__: made)
    found = make_views(read(texts, true, None, {}))
    assert [view.name for view in found.views] == ["an encoder", "words"]
    assert found.shown is values
    assert found.about["license"] == "MIT"
    monkeypatch.setattr(encoders, "encode_data", lambda *_, **__: None)
    found = make_views(read(texts, true, None, {}))
    assert [view.name for view in found.views] == ["words"]
    assert "hint" in found.about
    assert "hint" not in make_views(read(texts, true, None, {}), "none").about


def test_a_table_with_an_id_a_date_and_a_column_of_many_values_is_audited_as_well_as_without():
    cancer = load_breast_cancer(as_frame=True)
    frame = cancer.data.iloc[:, :10].copy()
    flipped = noise.symmetric(cancer.target.to_numpy(), 2, 0.1, seed=0)
    frame["diagnosis"] = np.array(["malignant", "benign"])[flipped.labels]
    rng = np.random.default_rng(0)
    size = len(frame)
    more = frame.assign(
        patient=[f"P{i:05d}" for i in range(size)],
        seen=pd.date_range("2021-03-01", periods=size, freq="D").astype(str),
        clinic=[f"clinic {k}" for k in rng.integers(40, size=size)],
    )
    plain, added = (audit(table, label="diagnosis") for table in (frame, more))
    for found in (plain, added):
        assert found.kind == "table"
        assert flipped.changed[found.mask].mean() > 0.8
        assert found.mask[flipped.changed].mean() > 0.6
    assert np.mean(plain.mask == added.mask) > 0.97


def test_images_are_pixels_and_large_ones_are_averaged_over_squares():
    rng = np.random.default_rng(0)
    (view,) = views_of(digits()).views
    assert (view.name, view.x.shape) == ("pixels", (1797, 64))
    assert view.trees is view.x
    images = rng.integers(0, 256, size=(24, 3, 70, 65)).astype(np.uint8)
    (view,) = views_of(images, np.arange(24) % 2).views
    side = 3  # 70 x 65 pixels are more than four and less than nine times as many as wanted
    assert view.x.shape == (24, 3 * 23 * 21)
    np.testing.assert_allclose(view.x[5, 0], images[5, 0, :side, :side].mean() / 255, rtol=1e-5)
    np.testing.assert_allclose(view.x[5, 22], images[5, 0, side : 2 * side, side : 2 * side].mean() / 255, rtol=1e-5)


def test_embeddings_of_the_users_take_the_place_of_the_samples():
    texts, true = reviews(60)
    mine = np.random.default_rng(0).normal(size=(60, 300)).astype(np.float32)
    found = views_of(texts, true, mine)
    (view,) = found.views
    assert view.name == "features"
    np.testing.assert_array_equal(view.x, mine)
    assert view.trees is None, "of many columns, which are hardly a table"


# --- numbers of any size --------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [4, 240])
@pytest.mark.parametrize("odd", ["one", "rare", "all", "tiny"])
def test_numbers_of_any_size_leave_the_others_their_weight(columns, odd):
    rng = np.random.default_rng(0)
    true = rng.integers(2, size=200)
    x = rng.normal(size=(200, columns)).astype(np.float32)
    x += np.where(true == 1, 2, 0)[:, None]
    if odd == "one":
        x[3, 1] = 1e30
    elif odd == "rare":
        x[:, 1] = np.where(np.arange(200) == 7, 1e30, 0)
    else:
        x *= np.float32(1e30 if odd == "all" else 1e-30)
    flipped = noise.symmetric(true, 2, 0.1, seed=0)
    found = audit(x, flipped.labels)
    assert average_precision_score(flipped.changed, found.log_odds) > 0.9
    assert found.mask[~flipped.changed].mean() < 0.02


def test_usual_numbers_stay_as_they_are():
    x = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    assert Features.fit(x).bounded(x) is x
    x[5, 1] = -1e6
    cut = Features.fit(x).bounded(x)
    low, middle, high = np.quantile(x[:, 1], [0.05, 0.5, 0.95])
    assert cut[5, 1] == pytest.approx(middle - 10 * min(high - middle, middle - low), rel=1e-4)
    np.testing.assert_array_equal(np.delete(cut, 5, 0), np.delete(x, 5, 0))


def test_a_table_of_few_distinct_rows_is_audited():
    """Two columns of two values: rows agree by chance, and are no copies of each other."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(2, size=(2, 400))
    flipped = noise.symmetric(a, 2, 0.1, seed=0)
    frame = pd.DataFrame(
        {"color": np.array(["red", "blue"])[a], "size": np.array(["s", "l"])[b], "label": flipped.labels}
    )
    found = audit(frame, label="label", task="classification")
    assert found.config["agreement"] > 0.85
    assert average_precision_score(flipped.changed, found.log_odds) > 0.9


@pytest.mark.parametrize("x", [np.ones((60, 4)), np.zeros((60, 1, 8, 8), np.uint8), ["a text"] * 60])
def test_samples_that_are_all_equal_say_nothing(x):
    found = audit(x, np.arange(60) % 2, encoder="none")
    assert not found.mask.any()
    assert "better than by chance" in found.notes[0]
