"""The audit as a function: detection, the result's parts, files, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from compensate.auditing.evidence import Trace, over
from compensate.auditing.kinds import RECIPES, inputs
from compensate.auditing.run import Phase, train

from compensate.auditing.audit import audit
from compensate.auditing.corrections import Correction, write_corrections
from compensate.auditing.probabilities import audit_probabilities
from compensate.auditing.result import Audit
from compensate.data import Data, digits, noise
from compensate.equation import Compensated
from compensate.errors import InputError
from compensate.models import MLP


def blobs(size: int = 600, classes: int = 3, seed: int = 0):
    """Well separated features, a tenth of whose labels are wrong."""
    rng = np.random.default_rng(seed)
    true = rng.integers(classes, size=size)
    centres = rng.normal(size=(classes, 8)) * 3
    x = (centres[true] + rng.normal(size=(size, 8))).astype(np.float32)
    flipped = noise.symmetric(true, classes, 0.1, seed=seed)
    return x, flipped.labels, true, flipped.changed


@pytest.fixture(scope="module")
def found():
    x, given, _, _ = blobs()
    return audit(x, given, epochs=25)


def test_wrong_labels_are_found_and_corrected(found):
    _, given, true, wrong = blobs()
    assert wrong[found.mask].mean() > 0.9
    assert found.mask[wrong].mean() > 0.9
    assert (found.suggested == true)[wrong].mean() > 0.95
    assert found.noise_rate.low <= wrong.mean() <= found.noise_rate.high
    np.testing.assert_array_equal(found.given, given)


def test_suspects_are_sorted_and_complete(found):
    frame = found.suspects
    assert list(frame.columns) == [
        "index", "given", "suggested", "score", "p_error", "flagged", "margin", "loss", "compensation", "agreement",
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
    first, second = (audit(x, given, epochs=4, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.score, second.score)
    assert not np.array_equal(first.score, audit(x, given, epochs=4, seed=6).score)


def test_it_survives_the_disk(found, tmp_path):
    loaded = Audit.load(found.save(tmp_path / "audit"))
    pd.testing.assert_frame_equal(loaded.suspects, found.suspects)
    assert loaded.noise_rate == found.noise_rate
    assert loaded.config == json.loads(json.dumps(dict(found.config)))
    np.testing.assert_array_equal(loaded.probabilities, found.probabilities)
    (tmp_path / "audit" / "audit.npz").write_bytes(b"broken")
    with pytest.raises(InputError, match="no audit that can be read"):
        Audit.load(tmp_path / "audit")


def test_corrections_are_applied(found, tmp_path):
    _, _, true, wrong = blobs()
    fixed = found.apply(found.accepted())
    assert (fixed.astype(int) == true).mean() > 1 - wrong.mean() / 4
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


def test_the_page_is_written(found, tmp_path):
    text = found.report(tmp_path / "report.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")


def test_a_model_of_ones_own_keeps_its_weights():
    x, given, _, wrong = blobs()
    torch.manual_seed(0)
    model = MLP(8, 3, hidden=(32,))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = audit(x, given, model, epochs=20, lr=0.01)
    assert found.mask[wrong].mean() > 0.8
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_images_are_audited():
    data = digits()
    flipped = noise.symmetric(data.target, 10, 0.2, seed=1)
    found = audit(data.relabel(flipped.labels), epochs=15, seed=1)
    assert found.kind == "image"
    assert flipped.changed[found.mask].mean() > 0.85
    assert found.mask[flipped.changed].mean() > 0.6


def test_texts_are_audited():
    rng = np.random.default_rng(0)
    words = {0: ["good", "great", "fine", "lovely"], 1: ["bad", "awful", "poor", "dull"]}
    true = rng.integers(2, size=400)
    texts = [" ".join(rng.choice(words[t] + ["film", "a", "the", "plot"], size=8)) for t in true]
    wrong = rng.random(400) < 0.1
    found = audit(texts, np.where(wrong, 1 - true, true), epochs=10)
    assert found.kind == "text"
    assert wrong[found.mask].mean() > 0.8
    assert found.mask[wrong].mean() > 0.8


def test_quantities_are_audited():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 5)).astype(np.float32)
    y = 20 + 4 * (x @ [1.0, -2.0, 0.5, 0, 1]) + rng.normal(size=500) * 0.5
    wrong = rng.random(500) < 0.05
    given = np.where(wrong, y + rng.choice([-1, 1], 500) * 20, y)
    given[3] = np.nan
    found = audit(x, given, epochs=40)
    wrong = np.delete(wrong, 3)
    assert found.regression
    assert found.mask[wrong].mean() > 0.8
    assert wrong[found.mask].mean() > 0.6
    assert np.abs(found.suggested - np.delete(y, 3))[wrong].mean() < 5
    assert list(found.predicted["index"]) == [3]
    assert found.report is not None


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


def test_rows_without_a_label_are_predicted():
    x, given, true, _ = blobs()
    labels = np.array([str(y) for y in given], dtype=object)
    labels[:50] = ""
    found = audit(x, labels, epochs=15)
    assert len(found) == 550
    assert list(found.predicted["index"]) == list(range(50))
    assert (found.predicted["suggested"].astype(int) == true[:50]).mean() > 0.9


def test_a_trace_is_the_mean_over_visits():
    """Margin, loss, agreement and mean prediction by a loop over two visits."""
    torch.manual_seed(0)
    trace = Trace(4, 3)
    y = torch.tensor([0, 2])
    rows = torch.tensor([1, 3])
    criterion = Compensated()
    margins, losses, predictions = [], [], []
    for _ in range(2):
        u = torch.randn(2, 3)
        trace.observe(criterion.evaluate(torch.nn.Identity(), u, y), rows)
        for k in range(2):
            others = [float(u[k, c]) for c in range(3) if c != y[k]]
            margins.append(float(u[k, y[k]]) - max(others))
            losses.append(-float(u[k].log_softmax(0)[y[k]]))
            predictions.append(u[k].softmax(0).numpy())
    np.testing.assert_allclose(trace.mean("margin")[[1, 3]], np.reshape(margins, (2, 2)).mean(0), rtol=1e-5)
    np.testing.assert_allclose(trace.mean("loss")[[1, 3]], np.reshape(losses, (2, 2)).mean(0), rtol=1e-5)
    np.testing.assert_allclose(trace.mean_probabilities[1], (predictions[0] + predictions[2]) / 2, rtol=1e-5)
    assert np.isnan(trace.mean("margin")[0])
    mean = (predictions[0] + predictions[2]) / 2
    expected = max(np.log(mean[0]), np.log(mean[1])) - np.log(mean[2])
    assert trace.contradiction(np.array([2, 2, 0, 0]))[1] == pytest.approx(expected, rel=1e-4), "for any label"
    later = Trace(4, 3)
    u = torch.randn(2, 3)
    later.observe(criterion.evaluate(torch.nn.Identity(), u, y), rows)
    margins.append(float(u[0, 0] - u[0, 1:].max()))
    np.testing.assert_allclose(
        over([trace, later], "margin")[1], np.mean([margins[0], margins[2], margins[4]]), rtol=1e-5
    )


def test_compensation_grows_once_the_classes_are_known():
    """From the start, whole classes would be explained away where errors go from each class to the next."""
    data = digits()
    flipped = noise.pair(data.target, 10, 0.2, seed=4)
    recipe = replace(RECIPES["grey"], epochs=20)
    run = train(inputs(data.relabel(flipped.labels)), [Phase(20, flipped.labels)], 10, recipe, seed=4)
    assert max(run.compensated[:2]) == 0 < run.compensated[-1]
    right = run.traces[0].mean_probabilities.argmax(1) == data.target
    assert min(right[data.target == c].mean() for c in range(10)) > 0.8


def test_many_classes_take_no_more_memory_than_votes():
    trace = Trace(5, 1000, room=4999)
    assert trace.probabilities is None
    y = torch.tensor([4])
    for best in (7, 7, 9):
        u = torch.zeros(1, 1000)
        u[0, best] = 8
        trace.observe(Compensated().evaluate(torch.nn.Identity(), u, y), torch.tensor([2]))
    assert trace.suggested(np.full(5, 4))[2] == 7


# --- bad input ------------------------------------------------------------------------------------------------


def test_one_class_is_an_error():
    with pytest.raises(InputError, match="one class"):
        audit(np.zeros((50, 2), np.float32), np.zeros(50, int))


def test_no_epochs_is_an_error():
    with pytest.raises(InputError, match="epochs is 0"):
        audit(np.eye(40, dtype=np.float32), np.arange(40) % 2, epochs=0)


def test_no_labels_is_an_error():
    data = Data(np.zeros((50, 2), np.float32), np.full(50, -1), ("a", "b"))
    with pytest.raises(InputError, match="no row has a label"):
        audit(data)
    with pytest.raises(InputError, match="pass them too"):
        audit(np.zeros((50, 2)))


def test_a_missing_label_column_names_the_nearest(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,sentiment\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(40)))
    with pytest.raises(InputError, match='did you mean "sentiment"'):
        audit(path, label="sentimen")


def test_a_lone_sample_is_named_and_the_rest_audited():
    x, given, _, wrong = blobs()
    names = np.array(["abc"[y] for y in given], dtype=object)
    names[17] = "lonely"
    with pytest.warns(UserWarning, match=r'row 17 \("lonely"\)'):
        found = audit(x, names, epochs=12)
    assert 17 not in found.index
    assert len(found) == 599
    assert found.mask[np.delete(wrong, 17)].mean() > 0.6


def test_ids_that_repeat_are_named():
    x, given, _, _ = blobs(100)
    ids = np.array([f"k{i}" for i in range(100)], dtype=object)
    ids[9] = "k4"
    with pytest.warns(UserWarning, match='"k4" .2 times, first row 4'):
        audit(Data(x, given, ("a", "b", "c"), ids=ids), epochs=2)


def test_too_few_rows_is_an_error():
    with pytest.raises(InputError, match="needs 20 or more"):
        audit(np.eye(8, dtype=np.float32), np.arange(8) % 2)


def test_features_of_the_wrong_length_are_an_error():
    x, given, _, _ = blobs(60)
    with pytest.raises(InputError, match="59 rows"):
        audit(x, given, features=np.zeros((59, 3)))


def test_a_misspelt_argument_is_named():
    x, given, _, _ = blobs(60)
    for data in (x, list(x), Data(x, given, ("a", "b", "c")), pd.DataFrame(x)):
        with pytest.raises(InputError, match='no argument "epoch"; did you mean "epochs"'):
            audit(data, given, epoch=3)
    with pytest.raises(InputError, match="text is an option for files and data frames; the data is a ndarray"):
        audit(x, given, text="a")


def test_options_of_a_reader_reach_it(tmp_path):
    x, given, _, _ = blobs(60)
    frame = pd.DataFrame(x, columns=list("abcdefgh")).assign(label=given)
    frame.to_csv(tmp_path / "d.csv", index=False)
    found = audit(tmp_path / "d.csv", task="classification", ignore=["a", "b"], epochs=1)
    assert found.data.x.shape[1] == 6


def test_columns_of_a_data_frame_may_be_numbers():
    x, given, _, _ = blobs(60)
    frame = pd.DataFrame(np.column_stack([x, given]))
    found = audit(frame, label=8, task="classification", epochs=1)
    assert found.classes == ("0", "1", "2")
    assert list(found.data.raw.columns) == [str(k) for k in range(9)]
    with pytest.raises(InputError, match='more than one column named "1"'):
        audit(frame.rename(columns={0: "1"}), label=8, epochs=1)
