"""The function audit: arrays, models, memory and the list of suspects."""

from __future__ import annotations

import csv
import os
import signal
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import nn

from compensate import audit
from compensate.auditing import linear
from compensate.auditing.api import audit_probabilities
from compensate.auditing.features import make_views
from compensate.auditing.learners import assign_folds
from compensate.auditing.page.contents import LONGEST, content
from compensate.auditing.page.model import Estimate
from compensate.auditing.result import WRITTEN, Audit
from compensate.auditing.source import read
from compensate.data import Dataset, arrays, digits, from_arrays, noise
from compensate.data.dataset import Source
from compensate.data.tables import from_frame
from compensate.errors import InputError
from compensate.models import MLP


# Audit api
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


def test_the_confusion_sums_to_the_rows(found):
    np.testing.assert_allclose(found.confusion.to_numpy().sum(1), np.bincount(found.given))
    off = found.confusion.to_numpy()[~np.eye(3, dtype=bool)].sum()
    assert off == pytest.approx(found.noise_rate.value * 600, rel=1e-6)


def test_cleanlab_reads_it(found):
    form = found.to_cleanlab()
    assert form["pred_probs"].shape == (600, 3)
    np.testing.assert_allclose(form["pred_probs"].sum(1), 1, rtol=1e-4)
    assert list(form["issues"].columns) == ["is_label_issue", "label_score", "given_label", "predicted_label"]
    rank = pytest.importorskip("cleanlab.rank")
    score = rank.get_label_quality_scores(form["labels"], form["pred_probs"])
    _, _, _, wrong = blobs()
    assert score[wrong].mean() < 0.5 < score[~wrong].mean()


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


# bad input
def test_one_class_is_an_error():
    with pytest.raises(InputError, match="one class"):
        audit(np.zeros((50, 2), np.float32), np.zeros(50, int))


def test_no_labels_is_an_error():
    data = Dataset(np.zeros((50, 2), np.float32), np.full(50, -1), ("a", "b"))
    with pytest.raises(InputError, match="no row has a label"):
        audit(data)
    with pytest.raises(InputError, match="pass them too"):
        audit(np.zeros((50, 2)))


def test_ids_that_repeat_are_named():
    x, given, _, _ = blobs(100)
    ids = np.array([f"k{i}" for i in range(100)], dtype=object)
    ids[9] = "k4"
    with pytest.warns(UserWarning, match='"k4" .2 times, first row 4'):
        audit(Dataset(x, given, ("a", "b", "c"), ids=ids))


def test_too_few_rows_is_an_error():
    with pytest.raises(InputError, match="needs 20 or more"):
        audit(np.eye(8, dtype=np.float32), np.arange(8) % 2)
    with pytest.warns(UserWarning, match="occurs once"), pytest.raises(InputError, match="28 labels occur once"):
        audit(np.eye(30, dtype=np.float32), np.array([0, 0, *range(1, 29)]))


def test_features_of_the_wrong_length_are_an_error():
    x, given, _, _ = blobs(60)
    with pytest.raises(InputError, match="59 rows"):
        audit(x, given, features=np.zeros((59, 3)))


def test_a_misspelt_argument_is_named():
    x, given, _, _ = blobs(60)
    for data in (x, list(x), Dataset(x, given, ("a", "b", "c")), pd.DataFrame(x)):
        with pytest.raises(InputError, match='no argument "epoch"; did you mean "epochs"'):
            audit(data, given, epoch=3)
    with pytest.raises(InputError, match="text is an option for files and data frames; the data is a ndarray"):
        audit(x, given, text="a")


def test_columns_of_a_data_frame_may_be_numbers():
    x, given, _, _ = blobs(60)
    frame = pd.DataFrame(np.column_stack([x, given]))
    found = audit(frame, label=8, task="classification")
    assert found.classes == ("0", "1", "2")
    assert list(found.data.raw.columns) == [str(k) for k in range(9)]
    with pytest.raises(InputError, match='more than one column named "1"'):
        audit(frame.rename(columns={0: "1"}), label=8)


# Audit model
def audit_model_blobs(size: int = 300, seed: int = 0):
    rng = np.random.default_rng(seed)
    true = rng.integers(3, size=size)
    x = (3 * rng.normal(size=(3, 6))[true] + rng.normal(size=(size, 6))).astype(np.float32)
    flipped = noise.symmetric(true, 3, 0.1, seed=seed)
    return x, flipped.labels, true, flipped.changed


@pytest.mark.slow
@pytest.mark.parametrize("crossfit", [False, True])
@pytest.mark.parametrize("kind", ["name", "module", "function"])
def test_a_model_finds_wrong_labels(kind, crossfit):
    x, given, true, wrong = audit_model_blobs()
    torch.manual_seed(0)
    module = MLP(6, 3, hidden=(32,))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = {"name": "mlp", "module": module, "function": lambda: MLP(6, 3, hidden=(32,))}[kind]
    found = audit(x, given, model, crossfit=crossfit, epochs=12, lr=0.01)
    assert average_precision_score(wrong, found.log_odds) > 0.9
    assert found.mask[wrong].mean() > 0.4
    assert wrong[found.mask].mean() > 0.9
    assert (found.suggested == true)[wrong].mean() > 0.9
    assert ("features: logcomp" in found.config["views"]) == crossfit
    assert found.config["epochs"] == 12
    assert [len(values) for values in found.curves.values()] == [12, 12]
    assert found.model is not None
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.slow
def test_a_model_predicts_rows_without_a_label():
    x, given, true, _ = audit_model_blobs()
    labels = np.array([str(y) for y in given], dtype=object)
    labels[::10] = ""
    for crossfit in (False, True):
        found = audit(x, labels, "mlp", crossfit=crossfit, epochs=10, lr=0.01)
        assert (found.predicted["suggested"].astype(int) == true[::10]).mean() > 0.9


@pytest.mark.slow
def test_images_go_through_a_model_as_they_are():
    data = digits()
    part = data.relabel(noise.symmetric(data.target, 10, 0.2, seed=0).labels).subset(np.arange(300))
    found = audit(part, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), epochs=8, lr=0.02)
    assert found.kind == "image"
    assert (data.target[:300] != part.target)[found.mask].mean() > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("crossfit", [False, True])
def test_a_training_that_was_ended_goes_on_where_it_was(tmp_path, crossfit):
    x, given, _, _ = audit_model_blobs(150)
    chosen = {"model": "mlp", "epochs": 4, "crossfit": crossfit, "seed": 3}
    whole = audit(x, given, **chosen)
    seen = []

    def ended(stage: str, done: int, total: int) -> None:
        if stage == "training":
            seen.append((done, total))
            if done == (20 if crossfit else 6):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        audit(x, given, run_folder=tmp_path / "run", progress=ended, **chosen)
    assert {total for _, total in seen} == {40 if crossfit else 12}
    resumed: list[int] = []
    found = audit(
        x, given, run_folder=tmp_path / "run", resume=True, **chosen,
        progress=lambda stage, done, total: resumed.append(done) if stage == "training" else None,
    )  # fmt: skip
    assert min(resumed) == (21 if crossfit else 7), "what was done is not done again"
    np.testing.assert_array_equal(found.log_odds, whole.log_odds)
    np.testing.assert_array_equal(found.probabilities, whole.probabilities)
    assert found.curves == whole.curves


# bad input
@pytest.mark.slow
@pytest.mark.parametrize(
    "argument",
    [{"epochs": 3}, {"batch_size": 8}, {"lr": 0.1}, {"hyper": {}}, {"precision": "bf16"}, {"crossfit": True}],
)
def test_settings_of_a_training_need_a_model(argument):
    x, given, _, _ = audit_model_blobs(40)
    with pytest.raises(InputError, match=f"{next(iter(argument))} is for the training of a model"):
        audit(x, given, **argument)


@pytest.mark.slow
def test_a_model_cannot_read_texts():
    with pytest.raises(InputError, match="takes numbers, and these samples are texts"):
        audit([f"text {i}" for i in range(40)], np.arange(40) % 2, "mlp")


@pytest.mark.slow
def test_no_epochs_is_an_error():
    x, given, _, _ = audit_model_blobs(40)
    with pytest.raises(InputError, match="epochs is 0; expected 1 or more"):
        audit(x, given, "mlp", epochs=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "said"), [("mpl", 'did you mean "mlp"'), (7, "model is a int; expected a torch module")]
)
def test_a_model_that_is_none_is_named(model, said):
    x, given, _, _ = audit_model_blobs(40)
    with pytest.raises(InputError, match=said):
        audit(x, given, model)


# Audit memory
def test_linear_models_of_embeddings_take_a_fraction_of_their_memory(monkeypatch):
    monkeypatch.setattr(linear, "BLOCK", 1 << 17)  # small as the data are, they are looked at in parts
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=8000)
    x = (rng.standard_normal((4, 512))[y] + rng.standard_normal((8000, 512))).astype(np.float32)
    tracemalloc.start()
    (view,) = make_views(read(x, y, None, {}), "none").views
    fitted = linear.LinearFolds(view.x, assign_folds(y), 5, 4)
    found = fitted.held_out(fitted.fit(linear.compensated(y, 0.5), 1e-2))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.shares_memory(view.x, x)
    assert (found.argmax(1) == y).mean() > 0.95
    assert peak < 0.8 * x.nbytes  # all that numpy took; each copy of the features would be 1


def test_a_large_file_is_mapped(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=200)
    x = (3 * rng.standard_normal((3, 6))[y] + rng.standard_normal((200, 6))).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr(arrays, "MAPPED", 0)
    for data in (str(tmp_path / "x.npy"), np.load(tmp_path / "x.npy", mmap_mode="r")):
        found = read(data, y, None, {})
        assert not found.x.flags.owndata
        assert not found.x.flags.writeable
        np.testing.assert_array_equal(found.x, x)
    found = audit(str(tmp_path / "x.npy"), labels=y)
    assert len(found) == 200
    assert not found.data.x.flags.owndata
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-40])
    with pytest.raises(InputError, match="damaged"):
        arrays.read_npz(tmp_path / "x.npy")


def test_numbers_that_are_not_finite_are_found_in_any_block():
    x = np.zeros((50, 3), np.float32)
    assert len(arrays.not_finite(x, block=7)) == 0
    x[[0, 33, 49], 1] = np.nan, np.inf, -np.inf
    assert arrays.not_finite(x, block=7).tolist() == [0, 33, 49]
    with pytest.raises(InputError, match="in 3 rows, the first 0"):
        from_arrays(x, np.zeros(50))


# List of suspects
def list_of_suspects_found(frame: pd.DataFrame, p_error: np.ndarray, **options) -> Audit:
    data = from_frame(frame, "the table", label="label", **options).train
    score = np.log(p_error) - np.log1p(-p_error)
    return Audit(
        "table", Source(title="t"), data.classes, data.index, data.target, 1 - data.target, score, p_error,
        {"margin": -score}, Estimate(0.1, 0.0, 0.2), ids=tuple(str(i) for i in range(len(data))), data=data,
    )  # fmt: skip


def table(size: int, columns: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {f"n{j}": rng.normal(size=size).round(3).astype(str) for j in range(columns)}
        | {
            "given": rng.choice(["=1+1", "plain", "two  blanks", "y" * 300], size),
            "label": rng.choice(["a", "b"], size),
        }
    )


def test_flagged_rows_say_what_a_loop_over_rows_would(tmp_path):
    audit = list_of_suspects_found(table(40), np.linspace(0.9, 0.02, 40))
    rows = [*csv.DictReader(audit.write_suspects(tmp_path / "suspects.csv").read_text().splitlines())]
    flagged = int(audit.mask.sum())
    assert 0 < flagged < len(rows) == 40
    for place, row in enumerate(rows):
        assert row["index"] == str(audit.index[place])
        assert row["flagged"] == ("true" if place < flagged else "false")
        assert row["p_error"] == f"{audit.p_error[place]:.6g}"
        for name, value in content(audit.data, place).fields or ():
            said = row[f"{name} (data)" if name == "given" else name]
            if place >= flagged:
                assert said == ""
            elif value == "=1+1":
                assert said == "'=1+1"
            else:
                assert said == " ".join(value[:LONGEST].split()) or (len(said) == LONGEST and said[-1] == "…")


def test_a_list_longer_than_what_is_written_at_once_is_whole(tmp_path):
    audit = list_of_suspects_found(table(WRITTEN + 7), np.linspace(0.9, 0.02, WRITTEN + 7))
    read = pd.read_csv(audit.write_suspects(tmp_path / "suspects.csv"))
    assert read["index"].tolist() == list(range(WRITTEN + 7))
    np.testing.assert_allclose(read["p_error"], audit.p_error, rtol=1e-5)


def test_names_of_columns_hold_no_formulas(tmp_path):
    frame = table(40).rename(columns={"n0": "=1+1", "n1": "a;=2"})
    text = (
        list_of_suspects_found(frame, np.linspace(0.9, 0.02, 40)).write_suspects(tmp_path / "suspects.csv").read_text()
    )
    names = next(csv.reader(text.splitlines()))
    assert "'=1+1" in names
    assert "a;'=2" in names
