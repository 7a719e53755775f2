"""CompensatedClassifier against oracles and scikit-learn's checks; the examples of all estimators."""

from __future__ import annotations

import copy
import pickle
import runpy
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_classification, make_multilabel_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from compensate import METHODS
from compensate.estimators import CompensatedClassifier, RobustKMeans, ShiftRegressor, SlackSVC
from compensate.models import MLP, probe
from tiny import BINARY

CLASSES = np.array(["ape", "bee", "cat"])


def without_stages(n_features: int, n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(n_features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n_outputs))


DEFAULTS = [RobustKMeans(), SlackSVC(), ShiftRegressor()]
VARIANTS = [
    CompensatedClassifier(epochs=30),
    RobustKMeans(n_clusters=3, penalty="l1", n_init=2),
    RobustKMeans(n_clusters=3, soft=True, n_init=2),
    RobustKMeans(n_clusters=3, kernel="rbf", n_init=2),
    RobustKMeans(n_clusters=3, lam=1.0, n_init=2),
    SlackSVC(compensate="label"),
    SlackSVC(kernel="rbf"),
    ShiftRegressor(penalty="l0"),
    ShiftRegressor(permuted=True),
    ShiftRegressor(lam=1.0, fit_intercept=False),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(DEFAULTS)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(VARIANTS)
def test_scikit_learn_checks_of_variants(estimator, check):
    check(estimator)


def blobs(n: int = 120, centers: int = 3) -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(n, centers=centers, n_features=5, random_state=0)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize(("method", "optimizer"), [("logcomp", "adam"), ("meta_weight", "sgd"), ("dac", "adam")])
def test_a_copy_predicts_and_goes_on_training_alike(how, method, optimizer):
    X, y = blobs()
    hyper = {"clean": (X[:20], y[:20])} if method == "meta_weight" else None
    options = {
        "hyper": hyper,
        "module": partial(MLP, hidden=(8,), dropout=0.5),
        "epochs": 3,
        "optimizer": optimizer,
        "random_state": 0,
    }
    model = CompensatedClassifier(method, **options).fit(X, y)
    other = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict_proba(X), other.predict_proba(X))
    for _ in range(2):
        model.partial_fit(X, y)
    assert not np.array_equal(model.predict_proba(X), other.predict_proba(X))
    for _ in range(2):
        other.partial_fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), other.predict_proba(X))
    pd.testing.assert_frame_equal(model.suspects_, other.suspects_)


# oracles
@pytest.mark.slow
def test_base_on_a_linear_module_is_logistic_regression():
    X, y = make_classification(400, 6, n_informative=4, n_classes=3, class_sep=0.7, random_state=0)
    w = np.random.default_rng(0).integers(0, 4, 400).astype(float)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X, y, w)
    model = CompensatedClassifier("base", module=probe, epochs=300, batch_size=400, lr=0.1, random_state=0)
    model.fit(X * 1000 + 5, y, w)  # any unit
    np.testing.assert_allclose(model.predict_proba(X * 1000 + 5), oracle.predict_proba(X), atol=2e-3)


def test_a_weighted_step_is_that_of_a_plain_loop():
    X, y = blobs(30)
    w = np.random.default_rng(0).random(30)
    model = CompensatedClassifier("base", module=probe, optimizer="sgd", lr=0.3, standardize=False, random_state=0)
    model.partial_fit(X, y, classes=[0, 1, 2], sample_weight=np.full(30, 1e-300))  # first weights, as good as unmoved
    net = copy.deepcopy(model.module_)
    model.partial_fit(X, y, sample_weight=w)
    x, t = torch.from_numpy(X), torch.from_numpy(y)
    loss = sum(w[i] * F.cross_entropy(net(x[i : i + 1]), t[i : i + 1]) for i in range(30)) / 30
    loss.backward()
    for ours, theirs in zip(model.module_.parameters(), net.parameters(), strict=True):
        # Nesterov's momentum looks ahead by 0.9 of the first real step.
        torch.testing.assert_close(ours, theirs - 0.3 * 1.9 * theirs.grad)
    assert model.loss_curve_[-1] == pytest.approx(loss.item())


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_fits(name):
    X, y = blobs(90)
    row, hyper = METHODS[name], {}
    if "clean" in row.needs:
        hyper["clean"] = (X[:30], CLASSES[y[:30]])
    if name == "balanced_arcface":
        hyper["class_groups"] = [0, 1, 0]
    if "teacher" in row.needs:
        hyper["teacher" if name == "distillation" else "guess"] = LogisticRegression().fit(X, CLASSES[y])
    model = CompensatedClassifier(name, hyper=hyper, module=partial(MLP, hidden=(16,)), epochs=10, random_state=0)
    if name in ("arcface", "balanced_arcface"):
        model.set_params(module=None)  # the default brings the cosine head along
    model.fit(X, CLASSES[y])
    p = model.predict_proba(X)
    assert p.shape == (90, 3)
    np.testing.assert_allclose(p.sum(1), 1)
    assert model.score(X, CLASSES[y]) > 0.6
    assert sorted(model.suspects_["index"]) == list(range(90))
    assert (model.suspects_["suggested"] != model.suspects_["given"]).all()
    assert model.suspects_["score"].is_monotonic_decreasing


# input
def test_sparse_input_gives_what_dense_gives_and_is_made_dense_a_batch_at_a_time(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 20)) * (rng.random((300, 20)) < 0.2)
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    model = CompensatedClassifier(epochs=3, batch_size=50, random_state=0)
    dense = model.fit(X, y).predict_proba(X)
    made, plain = [], sparse.csr_array.toarray
    monkeypatch.setattr(sparse.csr_array, "toarray", lambda self, *a, **k: (made.append(self.shape[0]), plain(self))[1])
    model.fit(sparse.csr_array(X), y)
    assert len(made) >= 18
    assert max(made) <= 50
    np.testing.assert_allclose(model.predict_proba(sparse.csr_array(X)), dense, rtol=1e-6)


def test_held_out_samples_choose_the_epoch_and_are_no_suspects(capsys):
    X, y = blobs(200)
    model = CompensatedClassifier(validation=0.25, patience=3, epochs=40, verbose=True, random_state=0).fit(X, y)
    assert model.n_iter_ == len(model.loss_curve_) == capsys.readouterr().out.count("validation")
    assert model.n_iter_ < 40
    assert len(model.suspects_) == 150
    assert model.score(X, y) > 0.95


# streams
def test_a_stream_grows_its_table_and_samples_that_return_find_their_rows():
    X, y = blobs(120)
    given = y.copy()
    given[:12] = (given[:12] + 1) % 3
    given, chunks = CLASSES[given], np.split(np.arange(120), 4)
    model = CompensatedClassifier(random_state=0, epochs=12, lr=0.1)
    model.partial_fit(X[chunks[0]], given[chunks[0]], classes=CLASSES[:3])
    before = model.criterion_.terms_of("logit")[0].weight[:30].clone()
    assert len(model.suspects_) == 30
    for turn in range(12):
        for chunk in chunks[1:] if turn == 0 else chunks:
            model.partial_fit(X[chunk], given[chunk], index=chunk)
            if turn == 0:
                assert torch.equal(model.criterion_.terms_of("logit")[0].weight[:30], before)
    assert model.n_iter_ == 48
    found = model.suspects_
    assert sorted(found["index"]) == list(range(120))
    assert average_precision_score(found["index"] < 12, found["score"]) > 0.9
    assert (model.criterion_.terms_of("logit")[0].weight[:12].abs().sum(1) > 0).all()
    assert model.score(X, CLASSES[y]) > 0.95


# errors
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "logcmp"}, 'did you mean "logcomp"'),
        ({"method": None}, "name of a method"),
        ({"hyper": [1]}, "dict of hyper-parameters"),
        ({"hyper": {"lamb": 1}}, 'did you mean "lam"'),
        ({"method": "meta_label"}, "clean data: give trusted samples as hyper"),
        ({"method": "distillation"}, "learns from a teacher"),
        ({"method": "guess_label", "hyper": {"guess": np.zeros((3, 3))}}, "3 rows; expected one for each of 120"),
        ({"method": "isda", "module": without_stages}, "features before the last layer"),
        ({"module": nn.Linear(5, 3)}, "callable that makes a module"),
        ({"epochs": 0}, "epochs == 0"),
        ({"lr": -1.0}, "lr == -1.0"),
        ({"optimizer": "rprop"}, "'optimizer' parameter must be one of"),
        ({"validation": 1.0}, "validation == 1.0"),
    ],
)
def test_bad_settings_are_told(settings, message):
    X, y = blobs()
    with pytest.raises(ValueError, match=message):
        CompensatedClassifier(**settings).fit(X, y)


def test_bad_data_is_told():
    X, y = blobs()
    model = CompensatedClassifier(epochs=1)
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert not hasattr(model, "suspects_")
    taught = CompensatedClassifier("distillation", hyper={"teacher": LogisticRegression().fit(X, y)})
    for call, message in [
        (lambda: model.fit(X, np.zeros(120)), "1 class"),
        (lambda: model.fit(X, y, sample_weight=(y == 1).astype(float)), "1 class"),
        (lambda: clone(model).partial_fit(X, y), "classes must be passed"),
        (lambda: clone(model).partial_fit(X, y, classes=[0, 1]), "not among the classes"),
        (lambda: clone(model).partial_fit(X, y, classes=[0, 1, 2], index=[-1] * 120), "index must hold"),
        (lambda: taught.partial_fit(X, y, classes=[0, 1, 2]), "must be a torch module"),
        (lambda: taught.fit(X, CLASSES[y]), "knows the classes"),
        (lambda: CompensatedClassifier("meta_label", hyper={"clean": (X[:, :3], y)}).fit(X, y), "5 features"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_teacher_module_is_left_as_it_was():
    X, y = blobs()
    teacher = probe(5, 3)
    model = CompensatedClassifier("distillation", hyper={"teacher": teacher}, epochs=2, module=without_stages)
    model.fit(X, y).partial_fit(X, y)
    assert all(p.requires_grad and p.dtype == torch.float32 for p in teacher.parameters())


# several labels per sample


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
    assert len(found) == (y.size - round(0.1 * y.size) if method == "robust" else y.size)  # others are withheld
    np.testing.assert_array_equal(found["given"], y[found["index"], found["label"]])
    np.testing.assert_array_equal(found["suggested"], 1 - found["given"])


def test_sparse_targets_weights_validation_and_selection(data):
    X, y = data
    dense = CompensatedClassifier(epochs=5, random_state=0).fit(X, y)
    packed = CompensatedClassifier(epochs=5, random_state=0).fit(X, sparse.csr_matrix(y))
    np.testing.assert_array_equal(dense.predict_proba(X), packed.predict_proba(X))
    weight = np.where(np.arange(len(X)) < 50, 0.0, 7.0)
    part = CompensatedClassifier("logit_adjustment", epochs=5, validation=0.2, random_state=0).fit(X, y, weight)
    assert part.suspects_["index"].min() >= 50
    assert len(cross_val_score(CompensatedClassifier(epochs=3, random_state=0), X, y, cv=3)) == 3


def test_a_weight_of_two_is_two_samples(data):
    X, y = data[0][:30], data[1][:30]
    options = {"epochs": 4, "batch_size": 100, "standardize": False, "random_state": 0, "lr": 0.05}
    weighted = CompensatedClassifier("label_smoothing", **options).fit(X, y, np.where(np.arange(30) < 10, 2, 1))
    twice = CompensatedClassifier("label_smoothing", **options).fit(np.r_[X, X[:10]], np.r_[y, y[:10]])
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
    with pytest.raises(ValueError, match="several labels per sample in some calls"):
        model.partial_fit(X, y[:, 0])
    with pytest.raises(ValueError, match="expected one column for each of 4 classes"):
        model.partial_fit(X, y[:, :3])


# examples
matplotlib.use("Agg")
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "estimators").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_saves_its_picture(path: Path, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    picture = tmp_path / "picture.png"
    module = runpy.run_path(str(path))
    module["main"](picture)
    plt.close("all")
    assert picture.read_bytes().startswith(b"\x89PNG")
    stored = module["PICTURE"]
    assert stored.stat().st_size < 80 * 1024
    page = "training.md" if path.stem == "classifier" else "research.md"
    assert f"img/{stored.name}" in (ROOT / "docs" / page).read_text(encoding="utf-8")
