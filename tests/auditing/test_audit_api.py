"""The audit as a function: detection, the result's parts, files, and bad input."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score

from compensate.auditing.api import audit, audit_probabilities
from compensate.auditing.decisions import Correction, write_corrections
from compensate.data import Dataset, digits, noise
from compensate.errors import InputError


def blobs(size: int = 600, classes: int = 3, seed: int = 0):
    """Well separated features, a tenth of whose labels are wrong."""
    rng = np.random.default_rng(seed)
    true = rng.integers(classes, size=size)
    centers = rng.normal(size=(classes, 8)) * 3
    x = (centers[true] + rng.normal(size=(size, 8))).astype(np.float32)
    flipped = noise.symmetric(true, classes, 0.1, seed=seed)
    return x, flipped.labels, true, flipped.changed


@pytest.fixture(scope="module")
def found():
    x, given, _, _ = blobs()
    return audit(x, given)


def test_wrong_labels_are_found_and_corrected(found):
    _, given, true, wrong = blobs()
    assert wrong[found.mask].mean() > 0.9
    assert found.mask[wrong].mean() > 0.4
    assert average_precision_score(wrong, found.log_odds) > 0.95
    assert (found.suggested == true)[wrong].mean() > 0.95
    assert found.noise_rate.low <= wrong.mean() <= found.noise_rate.high
    np.testing.assert_array_equal(found.given, given)


def test_suspects_are_sorted_and_complete(found):
    frame = found.suspects
    assert list(frame.columns) == [
        "index", "given", "suggested", "score", "p_error", "flagged", "margin", "loss",
    ]  # fmt: skip
    assert sorted(frame["index"]) == list(range(600))
    assert (np.diff(frame["score"]) <= 0).all()
    assert (frame["given"] != frame["suggested"]).all()
    np.testing.assert_array_equal(frame["flagged"], frame["p_error"] >= found.threshold)
    assert len(found.flagged) == found.mask.sum()
    assert "flagged" in repr(found)


def test_the_confusion_sums_to_the_rows(found):
    np.testing.assert_allclose(found.confusion.to_numpy().sum(1), np.bincount(found.given))
    off = found.confusion.to_numpy()[~np.eye(3, dtype=bool)].sum()
    assert off == pytest.approx(found.noise_rate.value * 600, rel=1e-6)


def test_the_same_seed_gives_the_same_audit():
    x, given, _, _ = blobs(200)
    first, second = (audit(x, given, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.log_odds, second.log_odds)
    assert not np.array_equal(first.log_odds, audit(x, given, seed=6).log_odds)


def test_corrections_are_applied(found, tmp_path):
    _, _, true, wrong = blobs()
    fixed = found.apply(found.accepted())
    assert (fixed.astype(int) == true).mean() > 1 - wrong.mean() / 3
    path = tmp_path / "corrections.csv"
    row = int(found.index[0])
    other = "012".replace(found.names(found.given[:1])[0], "")[0]
    write_corrections(path, [Correction(row, found.names(found.given[:1])[0], "other", other)])
    assert found.apply(path)[0] == other
    with pytest.raises(InputError, match="differs from what was reviewed"):
        found.apply([Correction(row, "7", "accept", "1")])


def test_cleanlab_reads_it(found):
    form = found.to_cleanlab()
    assert form["pred_probs"].shape == (600, 3)
    np.testing.assert_allclose(form["pred_probs"].sum(1), 1, rtol=1e-4)
    assert list(form["issues"].columns) == ["is_label_issue", "label_score", "given_label", "predicted_label"]
    rank = pytest.importorskip("cleanlab.rank")
    score = rank.get_label_quality_scores(form["labels"], form["pred_probs"])
    _, _, _, wrong = blobs()
    assert score[wrong].mean() < 0.5 < score[~wrong].mean()


def test_images_are_audited():
    data = digits()
    flipped = noise.symmetric(data.target, 10, 0.2, seed=1)
    found = audit(data.relabel(flipped.labels), encoder="none", seed=1)
    assert found.kind == "image"
    assert flipped.changed[found.mask].mean() > 0.85
    assert found.mask[flipped.changed].mean() > 0.6


def test_probabilities_are_enough():
    rng = np.random.default_rng(0)
    true = rng.integers(4, size=2000)
    logits = rng.normal(size=(2000, 4)) + 4 * np.eye(4)[true]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    flipped = noise.symmetric(true, 4, 0.15, seed=0)
    found = audit_probabilities(p, flipped.labels)
    assert flipped.changed[found.mask].mean() > 0.9
    assert found.mask[flipped.changed].mean() > 0.8
    assert found.noise_rate.value == pytest.approx(flipped.rate, abs=0.04)
    with pytest.raises(InputError, match="sum to 1"):
        audit_probabilities(2 * p, true)
    with pytest.raises(InputError, match="no column"):
        audit_probabilities(p, np.full(2000, 7))


def test_probabilities_that_say_nothing_flag_nothing():
    rng = np.random.default_rng(0)
    found = audit_probabilities(rng.dirichlet(np.ones(3), size=400), rng.integers(3, size=400))
    assert not found.mask.any()
    assert "better than by chance" in found.notes[0]


def test_probabilities_that_are_too_sure_still_find_errors():
    true = np.random.default_rng(0).integers(3, size=600)
    flipped = noise.symmetric(true, 3, 0.15, seed=0)
    found = audit_probabilities(np.eye(3)[true], flipped.labels)
    assert not found.notes
    assert average_precision_score(flipped.changed, found.log_odds) > 0.99


def test_rows_without_a_label_are_predicted():
    x, given, true, _ = blobs()
    labels = np.array([str(y) for y in given], dtype=object)
    labels[:50] = ""
    found = audit(x, labels)
    assert len(found) == 550
    assert list(found.predicted["index"]) == list(range(50))
    assert (found.predicted["suggested"].astype(int) == true[:50]).mean() > 0.9


# --- bad input ------------------------------------------------------------------------------------------------


X, Y = np.zeros((60, 2), np.float32), np.arange(60) % 3


@pytest.mark.parametrize(
    ("data", "labels", "options", "said"),
    [
        (X, np.zeros(60, int), {}, "at least two classes"),
        (Dataset(X, np.full(60, -1), ("a", "b")), None, {}, "no row has a label"),
        (X, None, {}, "pass them too"),
        (X[:8], Y[:8], {}, "needs 20 or more"),
        (X, Y, {"features": np.zeros((59, 3))}, "59 rows"),
        (X, Y, {"text": "a"}, "text is an option for files and data frames; the data is a ndarray"),
        (pd.DataFrame({"x": Y, "sentiment": Y}), None, {"label": "sentimen"}, 'did you mean "sentiment"'),
        *((data, Y, {"epoch": 3}, 'no argument "epoch"; did you mean "epochs"') for data in (X, list(X), pd.DataFrame(X))),
    ],
)  # fmt: skip
def test_bad_input_is_named(data, labels, options, said):
    with pytest.raises(InputError, match=said):
        audit(data, labels, **options)


def test_labels_that_occur_once_do_not_count():
    with pytest.warns(UserWarning, match="occurs once"), pytest.raises(InputError, match="28 labels occur once"):
        audit(np.eye(30, dtype=np.float32), np.array([0, 0, *range(1, 29)]))


def test_a_lone_sample_is_named_and_not_flagged():
    x, given, _, wrong = blobs()
    names = np.array(["abc"[y] for y in given], dtype=object)
    names[17] = "lonely"
    with pytest.warns(UserWarning, match=r'row 17 \("lonely"\)'):
        found = audit(x, names)
    assert len(found) == 600
    assert not found.mask[17]
    assert (
        found.mask[wrong & (np.arange(600) != 17)].mean() > 0.3
    )  # the list has all of them first; a few hundred rows are not sure


def test_ids_that_repeat_are_named():
    x, given, _, _ = blobs(100)
    ids = np.array([f"k{i}" for i in range(100)], dtype=object)
    ids[9] = "k4"
    with pytest.warns(UserWarning, match='"k4" .2 times, first row 4'):
        audit(Dataset(x, given, ("a", "b", "c"), ids=ids))


def test_options_of_a_reader_reach_it(tmp_path):
    x, given, _, _ = blobs(60)
    frame = pd.DataFrame(x, columns=list("abcdefgh")).assign(label=given)
    frame.to_csv(tmp_path / "d.csv", index=False)
    found = audit(tmp_path / "d.csv", task="classification", ignore=["a", "b"])
    assert found.data.x.shape[1] == 6


def test_columns_of_a_data_frame_may_be_numbers():
    x, given, _, _ = blobs(60)
    frame = pd.DataFrame(np.column_stack([x, given]))
    found = audit(frame, label=8, task="classification")
    assert found.classes == ("0", "1", "2")
    assert list(found.data.raw.columns) == [str(k) for k in range(9)]
    with pytest.raises(InputError, match='more than one column named "1"'):
        audit(frame.rename(columns={0: "1"}), label=8)
