"""An encoder that is trained on the given labels: texts and images, once or for each fold, resumed exactly."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from saved_models import save_bert, save_vit
from sklearn.metrics import average_precision_score
from torch.nn import functional as F
from typer.testing import CliRunner

from compensate import audit
from compensate.auditing.network import find_tunable, prepare_finetuning
from compensate.cli import app
from compensate.data import load, noise
from compensate.data.dataset import Dataset
from compensate.encoders import catalog, encode, encode_data
from compensate.errors import InputError
from compensate.training import trainer
from processes import run_pair

pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("small_learners")

FAST = {"epochs": 6, "lr": 2e-3, "batch_size": 8}
"""The tiny models know nothing yet and need larger steps than a pretrained one."""


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return save_vit(tmp_path_factory.mktemp("vit"))


def texts(size: int = 120, seed: int = 0):
    """Texts of two classes, each with words of its own among common ones; every tenth label is wrong."""
    rng = np.random.default_rng(seed)
    true = rng.integers(2, size=size)
    said = [
        " ".join(f"w{w}" for w in rng.permutation([*rng.integers(10 * y, 10 * y + 10, 3), *rng.integers(20, 40, 2)]))
        for y in true
    ]
    flipped = noise.symmetric(true, 2, 0.1, seed=seed)
    return said, flipped.labels, flipped.changed


@pytest.mark.parametrize("crossfit", [False, True])
def test_texts_are_judged_by_an_encoder_that_learned_from_them(bert, crossfit):
    said, given, wrong = texts()
    found = audit(said, given, encoder=bert, finetune=True, crossfit=crossfit, **FAST)
    name = f"{bert.name}, fine-tuned"
    assert name in found.config["views"]
    assert "words: logcomp" in found.config["views"], "the other learners are there too"
    assert (found.config["finetuned"], found.config["encoder"], found.config["epochs"]) == (bert.name, bert.name, 6)
    assert average_precision_score(wrong, found.log_odds) > 0.8
    assert [len(values) for values in found.curves.values()] == [6, 6]
    assert found.curves["accuracy"][-1] > max(found.curves["accuracy"][0], 0.7)


@pytest.mark.skipif(catalog.PACKAGES["efficientnet-lite0"].find() is None, reason="not installed")
def test_the_default_image_encoder_can_be_trained():
    rng = np.random.default_rng(0)
    x, given = rng.integers(0, 228, size=(24, 3, 16, 16)).astype(np.uint8), rng.integers(2, size=24)
    found = audit(x, given, encoder="efficientnet-lite0", finetune=True, epochs=1, batch_size=24)
    assert found.config["finetuned"] == "efficientnet-lite0"
    assert np.isfinite(found.log_odds).all()


# what the encoder sees
def test_the_network_starts_as_the_encoder_is(bert):
    said = ["w1", "w2 w3 w4 w5", "", " ".join(f"w{i % 40}" for i in range(30))]
    data = Dataset(np.array(said, dtype=object), np.array([0, 1, 0, 1]), ("a", "b"))
    model, samples, _ = prepare_finetuning(data, find_tunable(data, bert), 2)
    with torch.no_grad():
        embedded = F.normalize(model.network(samples.batch(np.arange(4), None)), dim=1)
        first = model(samples.batch(np.arange(4), None))
    np.testing.assert_allclose(embedded, encode(said, bert, cache=False).values, atol=1e-6)
    assert not first.any(), "a head of zeros prefers no class"


def test_files_of_unlike_sizes_go_through_the_network_as_through_the_encoder(vit, tmp_path):
    rng = np.random.default_rng(0)
    for k, shape in enumerate([(16, 16, 3), (16, 16, 3), (9, 30, 3), (40, 20, 3)]):
        folder = tmp_path / "pets" / ("cat" if k % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, size=shape, dtype=np.uint8)).save(folder / f"{k}.png")
    data = load(str(tmp_path / "pets"), size=16).train
    model, samples, _ = prepare_finetuning(data, find_tunable(data, vit), 2)
    with torch.no_grad():
        embedded = model.network(samples.batch(np.arange(4), None))
    np.testing.assert_allclose(embedded, encode_data(data, vit, cache=False).values, atol=1e-5)


# interruptions
@pytest.mark.parametrize("crossfit", [False, True])
@pytest.mark.parametrize("end", ["asked", "killed"])
def test_a_training_that_was_ended_goes_on_where_it_was(bert, tmp_path, monkeypatch, end, crossfit):
    """Asked to end it stores a checkpoint; killed it is left with one of some steps before."""
    said, given, _ = texts(60)
    chosen = {"encoder": bert, "finetune": True, "crossfit": crossfit, "epochs": 2, "batch_size": 8, "seed": 3}
    whole = audit(said, given, **chosen)
    at = 26 if crossfit else 11

    class Killed(Exception):
        pass

    def ended(stage: str, done: int, total: int) -> None:
        if stage == "training" and done == at:
            if end == "killed":
                raise Killed
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "SECONDS", 0.0)
        with pytest.raises(Killed if end == "killed" else KeyboardInterrupt):
            audit(said, given, run_folder=tmp_path / "run", progress=ended, **chosen)
    resumed: list[int] = []
    found = audit(
        said, given, run_folder=tmp_path / "run", resume=True, **chosen,
        progress=lambda stage, done, total: resumed.append(done) if stage == "training" else None,
    )  # fmt: skip
    assert min(resumed) == at + (end == "asked"), "what was stored is not done again"
    np.testing.assert_array_equal(found.log_odds, whole.log_odds)
    np.testing.assert_array_equal(found.probabilities, whole.probabilities)
    assert found.curves == whole.curves


def one_of_two(encoder: Path, out: Path) -> None:
    said, given, _ = texts(60)
    found = audit(said, given, encoder=encoder, finetune=True, epochs=2, batch_size=8)
    np.save(out / f"rank{torch.distributed.get_rank()}", found.probabilities)


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    folder = tmp_path / "bert"
    folder.mkdir()
    save_bert(folder, dropout=0.0)  # masks of dropout differ from process to process
    run_pair(tmp_path, one_of_two, folder, tmp_path)
    sentences, given, _ = texts(60)
    alone = audit(sentences, given, encoder=folder, finetune=True, epochs=2, batch_size=8)
    for rank in range(2):
        np.testing.assert_allclose(np.load(tmp_path / f"rank{rank}.npy"), alone.probabilities, atol=1e-3)


# bad input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "mlp"}, "finetune=True and model= are both given, and each trains a network; choose one"),
        ({"encoder": "none"}, 'the encoder is "none". Choose one'),
        ({"features": np.eye(40, dtype=np.float32)}, "of texts or images, and these samples are embeddings"),
        ({"epochs": 0}, "epochs is 0; expected 1 or more"),
        ({"batch_size": 0}, "batch_size is 0; expected 1 or more"),
        ({"lr": 0.0}, "lr is 0.0; expected a positive number"),
        ({"precision": "half"}, 'precision is "half"; known: no, bf16, fp16'),
    ],
)
def test_what_cannot_be_fine_tuned_is_said_with_the_way_out(bert, options, message):
    with pytest.raises(InputError, match=message):
        audit([f"w{i}" for i in range(40)], np.arange(40) % 2, finetune=True, **{"encoder": bert, **options})


def test_tables_and_quantities_have_no_encoder_to_train(bert):
    with pytest.raises(InputError, match=r"these samples are a table or features.*--model mlp"):
        audit(np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2, finetune=True)
    with pytest.raises(InputError, match="these labels are quantities; leave it out"):
        audit([f"w{i}" for i in range(40)], np.linspace(0.1, 0.9, 40), encoder=bert, finetune=True)


def test_a_missing_encoder_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(catalog, "installed", lambda library: False)
    with pytest.raises(InputError, match=r'none is installed. pip install "compensate\[encoders\]"'):
        audit([f"w{i}" for i in range(40)], np.arange(40) % 2, finetune=True)


def test_probabilities_leave_nothing_to_train():
    done = CliRunner().invoke(app, ["audit", "--probs", "p.npy", "--labels", "y.npy", "--finetune"])
    assert isinstance(done.exception, InputError)
    assert "leave out --finetune" in str(done.exception)
