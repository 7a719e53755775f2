"""Folds and cross-fitted learners: no row is judged by a model that has seen its label."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from compensate.auditing import learners
from compensate.auditing.features import make_views
from compensate.auditing.judge import FitOptions, Judge
from compensate.auditing.learners import (
    COPIES,
    View,
    _first_copies,
    assign_folds,
    content_keys,
    judge_view,
    transition_from,
)
from compensate.data import Dataset


def classified(size: int = 200, classes: int = 3, seed: int = 0, apart: float = 1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=size)
    x = apart * rng.normal(size=(classes, 5))[y] + rng.normal(size=(size, 5))
    return x.astype(np.float32), y


# --- folds ----------------------------------------------------------------------------------------------------


def test_folds_spread_each_class_and_unlabeled_rows_evenly():
    labels = np.random.default_rng(0).choice([-1, 0, 1, 2], p=[0.1, 0.5, 0.3, 0.1], size=503)
    folds = assign_folds(labels, seed=3)
    for label in (-1, 0, 1, 2):
        counts = np.bincount(folds[labels == label], minlength=5)
        assert counts.max() - counts.min() <= 1


def test_folds_depend_on_the_seed_alone():
    labels = np.arange(100) % 3
    np.testing.assert_array_equal(assign_folds(labels, seed=1), assign_folds(labels, seed=1))
    assert (assign_folds(labels, seed=1) != assign_folds(labels, seed=2)).any()


def test_copies_of_a_sample_share_a_fold():
    texts = [f"text number {i}" for i in range(60)]
    texts += ["Text  Number 7", " text number 8"]
    folds = assign_folds(np.arange(62) % 2, content_keys(texts))
    assert folds[60] == folds[7]
    assert folds[61] == folds[8]
    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    rows[13] = rows[31] = rows[2]
    folds = assign_folds(np.arange(50) % 2, content_keys(rows))
    assert folds[13] == folds[31] == folds[2]
    assert content_keys([1, 2, 3]) is None


def test_a_content_that_many_rows_share_is_dealt_out():
    """A table of one column with two values: each row is a sample of its own, and every fold sees both values."""
    values = np.repeat([0.0, 1.0], [COPIES + 30, COPIES])[:, None]
    folds = assign_folds(np.zeros(len(values), int), content_keys(values))
    assert set(folds[: COPIES + 30]) == set(range(5))
    assert len(set(folds[COPIES + 30 :])) == 1


# --- learners -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_no_row_is_judged_by_its_own_label(sparse):
    """A changed label leaves what neighbors, naive Bayes and trees say of its row as it was, bit for bit.

    Linear models of all folds take their steps together, so that those of the row's own fold end at another point within the
    precision of the fit.
    """
    x, y = classified()
    view = View("view", sp.csr_matrix(np.maximum(x, 0)) if sparse else x, None if sparse else x)
    folds = assign_folds(y)
    before = judge_view(view, y, folds, 5, 3)
    shifts = []
    for row in (0, 57, 123):
        changed = y.copy()
        changed[row] = (y[row] + 1) % 3
        after = judge_view(view, changed, folds, 5, 3)
        assert after.decay == before.decay
        for name in before.log_p:
            if name in ("logcomp", "transitions"):
                np.testing.assert_allclose(after.log_p[name][row], before.log_p[name][row], atol=0.1)
                shifts.append((after.log_p[name] - before.log_p[name])[row, [changed[row], y[row]]] @ [1, -1])
            else:
                np.testing.assert_array_equal(after.log_p[name][row], before.log_p[name][row])
    assert abs(np.mean(shifts)) < 0.02
    assert set(before.log_p) == {"logcomp", "transitions", *(["naive Bayes"] if sparse else ["neighbors", "trees"])}


def test_predictions_of_several_divisions_into_folds_are_averaged():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 80)
    view = View("features", (rng.normal(size=(80, 4)) + labels[:, None]).astype(np.float32))
    divisions = [assign_folds(labels, draw=k) for k in range(2)]
    assert (divisions[0] != divisions[1]).any()
    each = [judge_view(view, labels, folds, 5, 2).log_p["logcomp"] for folds in divisions]
    mean = np.exp(np.mean(each, 0))
    found = judge_view(view, labels, np.stack(divisions), 5, 2)
    np.testing.assert_allclose(np.exp(found.log_p["logcomp"]), mean / mean.sum(1, keepdims=True), atol=1e-5)


def test_labels_that_say_nothing_are_not_predicted():
    """Out of fold nothing can be better than chance; a model that has seen a label would be."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 30)).astype(np.float32)
    y = rng.integers(2, size=300)
    for log_p in judge_view(View("view", x, x), y, assign_folds(y), 5, 2).log_p.values():
        assert (log_p.argmax(1) == y).mean() < 0.58
        np.testing.assert_allclose(np.exp(log_p).sum(1), 1, atol=1e-4)


def test_rows_without_a_label_are_predicted_and_teach_nothing():
    x, y = classified(apart=2.0)
    given = y.copy()
    given[::7] = -1
    folds = assign_folds(given)
    found = judge_view(View("view", x, x), given, folds, 5, 3)
    for name, log_p in found.log_p.items():
        assert (log_p.argmax(1) == y)[::7].mean() > 0.85, name


def test_a_class_that_a_fold_does_not_see_has_a_small_probability_there():
    x, y = classified()
    y[y == 2] = 1
    y[:2] = 2
    folds = assign_folds(y)
    for name, log_p in judge_view(View("view", x, x), y, folds, 5, 3).log_p.items():
        assert np.isfinite(log_p).all(), name
        assert np.exp(log_p[2:, 2]).mean() < 0.1, name


def test_transitions_have_the_direction_of_the_errors():
    """A quarter of class 0 is written as 1, nothing the other way."""
    x, true = classified(600, apart=2.0)
    given = np.where((true == 0) & (np.random.default_rng(1).random(600) < 0.25), 1, true)
    a = judge_view(View("view", x), given, assign_folds(given), 5, 3).transition
    np.testing.assert_allclose(a.sum(1), 1, atol=1e-6)
    assert a[0, 1] > 0.1
    assert a[0, 1] > 4 * a[1, 0]
    assert a[0, 1] > 4 * a[0, 2]


def test_transitions_have_the_assumed_share_of_errors():
    counts = np.array([[80.0, 3.0, 0.0], [0.0, 100.0, 1.0], [0.0, 0.0, 116.0]])
    a = transition_from(counts, 0.1)
    assert (counts.sum(1) * (1 - np.diag(a))).sum() == pytest.approx(0.1 * 300, rel=0.02)
    more = counts + np.array([[0, 60, 0], [0, 0, 0], [0, 0, 0]])
    b = transition_from(more, 0.1)
    assert b[0, 1] == pytest.approx(63 / 143, abs=0.05), "more errors than assumed are believed"


def test_a_trusted_label_is_learned_from_in_full():
    """The gradient of a trusted label is that of cross entropy; that of another one is bounded by LogComp, or shared by transitions."""
    from compensate.auditing.linear import compensated, softmax, transferred

    labels, trusted = np.array([0, 0]), np.array([False, True])
    p, log_p = softmax(np.array([[[-4.0, 4.0]], [[-4.0, 4.0]]], np.float32))
    plain = p - np.eye(2, dtype=np.float32)[labels][:, None]
    rows = np.arange(2)
    a = np.array([[[0.8, 0.2], [0.2, 0.8]]], np.float32)
    for slope in (compensated(labels, 0.5, trusted), transferred(labels, a, trusted)):
        loss, r = slope(p, log_p, rows)
        np.testing.assert_allclose(r[1], plain[1], atol=1e-6)
        assert np.abs(r[0]).max() < 0.75 * np.abs(plain[0]).max()
        assert loss[1, 0] == pytest.approx(-float(log_p[1, 0, 0]), rel=1e-5)


def test_trees_of_many_rows_are_grown_on_samples_that_may_lack_a_rare_class(monkeypatch):
    monkeypatch.setattr(learners, "TREE_ROWS", 40)
    rng = np.random.default_rng(0)
    labels = np.append(rng.integers(2, size=198), [2, 2])
    x = (labels[:, None] + rng.normal(size=(200, 3))).astype(np.float32)
    folds = np.arange(200) % 5
    forests = learners.Forests(x, labels, folds, 5, 3, seed=0, trees=12)
    grown = forests[1]
    assert len(grown.trees) == 12
    assert {len(classes) for _, classes in grown.trees} == {2, 3}
    assert all(tree.tree_.n_node_samples[0] == 40 for tree, _ in grown.trees)
    p = np.zeros((200, 3))
    for tree, classes in grown.trees:
        for place, c in enumerate(classes):
            p[:, c] += tree.predict_proba(x)[:, place] / 12
    np.testing.assert_allclose(grown.log_p(x, x), np.log((50 * p + 1 / 3) / 51), atol=1e-5)
    # A changed label of the fold changes nothing: its trees do not learn from it.
    flipped = np.where(folds == 1, 1 - np.minimum(labels, 1), labels)
    again = learners.Forests(x, flipped, folds, 5, 3, seed=0, trees=12)[1]
    np.testing.assert_array_equal(again.log_p(x, x), grown.log_p(x, x))


def test_the_first_copy_of_a_row_is_that_of_a_loop():
    keys = np.random.default_rng(0).integers(300, size=900)
    keys[:20] = 7  # more than are copies of one sample
    seen: dict[int, int] = {}
    expected = [seen.setdefault(int(key), row) for row, key in enumerate(keys)]
    many = np.bincount(keys)[keys] > COPIES
    np.testing.assert_array_equal(_first_copies(keys), np.where(many, np.arange(900), expected))
    assert not _first_copies(np.array([], np.int64)).size


# --- the judge ------------------------------------------------------------------------------------------------


def test_a_judge_predicts_chunks_out_of_fold_as_the_whole_and_survives_the_disk(tmp_path):
    x, y = classified()
    data = Dataset(x, y, ("a", "b", "c"))
    features = make_views(data, "none")
    folds = np.stack([assign_folds(y, draw=k) for k in range(2)])
    kept = Judge.fit(features, y, folds, data.classes)
    judge = Judge.fit(features, y, folds, data.classes, FitOptions(keep=False))
    parts = [judge.predict(data.subset(rows), folds[:, rows]) for rows in np.array_split(np.arange(len(y)), 3)]
    np.testing.assert_allclose(np.concatenate(parts), kept.log_q, atol=1e-5)
    assert judge.shares == pytest.approx(kept.shares, abs=1e-6)
    judge.save(tmp_path)
    loaded = Judge.load(tmp_path)
    np.testing.assert_allclose(loaded.predict(data), judge.predict(data), atol=5e-3)
    for ours, theirs in zip(loaded.score(kept.log_q, y), judge.score(kept.log_q, y), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert Judge.load(tmp_path / "elsewhere") is None
