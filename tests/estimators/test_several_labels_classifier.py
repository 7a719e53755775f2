"""The classifier with an indicator matrix as its target, as scikit-learn has it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import make_multilabel_classification
from sklearn.model_selection import cross_val_score

from compensate.estimators import CompensatedClassifier

BINARY = [
    "base",
    "bootstrap_hard",
    "bootstrap_soft",
    "label_smoothing",
    "logcomp",
    "logit_adjustment",
    "lpl",
    "mixcomp",
]


@pytest.fixture(scope="module")
def data():
    X, y = make_multilabel_classification(200, 8, n_classes=4, n_labels=2, random_state=0)
    return X.astype(np.float32), y


@pytest.mark.parametrize("method", BINARY)
def test_answers_have_the_shape_of_scikit_learns(method, data):
    X, y = data
    model = CompensatedClassifier(method, epochs=15, random_state=0).fit(X, y)
    assert model.multilabel_
    assert model.predict(X).shape == model.predict_proba(X).shape == y.shape
    assert model.predict(X).dtype.kind == "i"
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X) > 0.5)
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert (model.predict(X) == y).mean() > 0.8
    assert 0 < model.score(X, y) <= 1
    found = model.suspects_
    assert [*found.columns] == ["index", "label", "given", "suggested", "score", "flagged"]
    assert len(found) == y.size
    np.testing.assert_array_equal(found["given"], y[found["index"], found["label"]])
    np.testing.assert_array_equal(found["suggested"], 1 - found["given"])


def test_sparse_targets_weights_validation_and_selection(data):
    X, y = data
    dense = CompensatedClassifier(epochs=5, random_state=0).fit(X, y)
    packed = CompensatedClassifier(epochs=5, random_state=0).fit(X, sparse.csr_matrix(y))
    np.testing.assert_array_equal(dense.predict_proba(X), packed.predict_proba(X))
    weight = np.ones(len(X))
    weight[:50] = 0
    part = CompensatedClassifier("logit_adjustment", epochs=5, validation=0.2, random_state=0).fit(X, y, 7.0 * weight)
    assert part.suspects_["index"].min() >= 50
    assert len(cross_val_score(CompensatedClassifier(epochs=3, random_state=0), X, y, cv=3)) == 3


def test_a_weight_of_two_is_two_samples():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 4)), rng.integers(2, size=(30, 3))
    weight = np.ones(30)
    weight[:10] = 2
    options = {
        "method": "label_smoothing",
        "epochs": 4,
        "batch_size": 100,
        "standardize": False,
        "random_state": 0,
        "lr": 0.05,
    }
    weighted = CompensatedClassifier(**options).fit(X, y, weight)
    twice = CompensatedClassifier(**options).fit(np.r_[X, X[:10]], np.r_[y, y[:10]])
    np.testing.assert_allclose(weighted.predict_proba(X), twice.predict_proba(X), atol=1e-5)


def test_a_stream_of_indicator_matrices(data):
    X, y = data
    model = CompensatedClassifier(hyper={"lam": 0.5}, random_state=0)
    for first in range(0, 200, 50):
        part = slice(first, first + 50)
        model.partial_fit(X[part], y[part], classes=np.arange(4), index=np.arange(first, first + 50))
    for _ in range(40):
        model.partial_fit(X, y, index=np.arange(200))
    assert (model.predict(X) == y).mean() > 0.75
    assert len(model.suspects_) == y.size
    with pytest.raises(ValueError, match="several labels a sample in some calls"):
        model.partial_fit(X, y[:, 0])
    with pytest.raises(ValueError, match="expected one column for each of 4 classes"):
        model.partial_fit(X, y[:, :3])
