"""The folder of an audit: one audit in it, whole or not at all; damaged ones end in a clear error."""

from __future__ import annotations

import hashlib
import io
import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from compensate.auditing import store
from compensate.auditing.result import Audit
from compensate.auditing.store import check_run_folder, replaced_folder, run_name, write_run
from compensate.data.dataset import Estimate, Source
from compensate.errors import InputError
from compensate.training.checkpoint import load_weights
from processes import start


def made(size: int = 30, seed: int = 0, **more: Any) -> Audit:
    rng = np.random.default_rng(seed)
    p = rng.random(size)
    given = rng.integers(2, size=size)
    source = Source(title="pets.csv", path="pets.csv", label="label", digest="sha256:" + "0" * 16)
    return Audit(
        kind="table", source=source, classes=("cat", "dog"), index=np.arange(size), given=given, suggested=1 - given,
        log_odds=np.log(p / (1 - p)), p_error=p, evidence={"margin": rng.normal(size=size)}, noise_rate=Estimate(0.1, 0.0, 0.2),
        ids=tuple(f"k{i}" for i in range(size)),
        probabilities=rng.random((size, 2)).astype(np.float32), curves={"loss": [0.5, 0.25]},
        unlabeled={"index": np.array([size]), "suggested": np.array([1]), "probability": np.array([0.5])},
        row_digests=rng.integers(1, 1 << 62, size=size).astype(np.uint64), **more,
    )  # fmt: skip


def change(folder: Path, edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Edits texts and arrays of a saved audit, and makes the checksum fit, as somebody with bad intentions would."""
    texts = json.loads((folder / "audit.json").read_text())
    with np.load(folder / "audit.npz") as found:
        arrays = {name: found[name] for name in found.files}
    edit(texts, arrays)
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    (folder / "audit.npz").write_bytes(packed.getvalue())
    texts["arrays"] = hashlib.sha256(packed.getvalue()).hexdigest()
    (folder / "audit.json").write_text(json.dumps(texts))


def test_an_audit_survives_its_folder(tmp_path):
    audit = made()
    loaded = Audit.load(audit.save(tmp_path / "audit"))
    pd.testing.assert_frame_equal(loaded.suspects, audit.suspects)
    pd.testing.assert_frame_equal(loaded.predicted, audit.predicted)
    assert loaded.accepted(0.5) == audit.accepted(0.5)
    assert (loaded.source_digest, loaded.classes, loaded.config) == (audit.source_digest, audit.classes, audit.config)
    assert loaded.noise_rate == audit.noise_rate
    np.testing.assert_array_equal(loaded.row_digests, audit.row_digests)
    np.testing.assert_array_equal(loaded.probabilities, audit.probabilities)


def text(name: str, value: Any) -> Callable[..., object]:
    return lambda texts, arrays: texts.update({name: value})


def array(name: str, value: Any) -> Callable[..., object]:
    return lambda texts, arrays: arrays.update({name: np.asarray(value)})


DAMAGE: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "title-number": text("title", 3),
    "kind-unknown": text("kind", "cloud"),
    "classes-text": text("classes", "cat"),
    "classes-numbers": text("classes", [1, 2]),
    "classes-twice": text("classes", ["cat", "cat"]),
    "classes-fewer": text("classes", ["cat"]),
    "classes-gone": lambda texts, arrays: texts.pop("classes"),
    "ids-short": text("ids", ["a"]),
    "noise-short": text("noise_rate", [0.1]),
    "noise-nan": text("noise_rate", [0.1, float("nan"), 1]),
    "curves-list": text("curves", [1]),
    "config-list": text("config", []),
    "config-label": text("config", {"label": {"a": 1}}),
    "notes-null": text("notes", None),
    "digest-null": text("source_digest", None),
    "index-gone": lambda texts, arrays: arrays.pop("index"),
    "index-matrix": array("index", np.zeros((5, 6), int)),
    "index-negative": array("index", -np.arange(30)),
    "index-huge": array("index", np.arange(30).astype(np.uint64) + (1 << 63)),
    "index-twice": array("index", np.zeros(30, int)),
    "index-float": array("index", np.arange(30.0)),
    "given-beyond": array("given", np.full(30, 2)),
    "given-text": array("given", np.full(30, "a")),
    "suggested-short": array("suggested", np.zeros(29, int)),
    "score-nan": array("score", np.full(30, np.nan)),
    "p-beyond": array("p_error", np.full(30, 1.5)),
    "p-nan": array("p_error", np.full(30, np.nan)),
    "evidence-short": array("evidence.margin", np.zeros(3)),
    "probabilities-shape": array("probabilities", np.zeros((30, 3), np.float32)),
    "rows-text": array("row_digests", np.full(30, "a")),
    "unlabeled-part": lambda texts, arrays: arrays.pop("unlabeled.index"),
    "unlabeled-class": array("unlabeled.suggested", np.array([7])),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_audit_is_refused(tmp_path, name):
    made().save(tmp_path)
    change(tmp_path, DAMAGE[name])
    with pytest.raises(InputError, match="no audit that can be read"):
        Audit.load(tmp_path)


JSON, NPZ = "audit.json", "audit.npz"


@pytest.mark.parametrize(
    ("file", "content"),
    [(JSON, b""), (JSON, b"[" * 100_000), (JSON, b"null"), (JSON, b"\xff\xfe"), (JSON, None), (NPZ, b""), (NPZ, b"PK\3\4"), (NPZ, None)],
)  # fmt: skip
def test_a_damaged_file_of_a_run_is_refused(tmp_path, file, content):
    """An empty archive of numpy ended in the word Aborted, others in a stack trace."""
    made().save(tmp_path)
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    if file == NPZ and content is not None:  # past the checksum
        texts = {**json.loads((tmp_path / JSON).read_text()), "arrays": hashlib.sha256(content).hexdigest()}
        (tmp_path / JSON).write_text(json.dumps(texts))
    with pytest.raises(InputError, match=r"no audit that can be read|is damaged"):
        Audit.load(tmp_path)


def test_parts_of_two_audits_are_not_read_as_one(tmp_path):
    made(seed=1).save(tmp_path / "a")
    made(seed=2).save(tmp_path / "b")
    (tmp_path / "a" / "audit.npz").replace(tmp_path / "b" / "audit.npz")
    with pytest.raises(InputError, match=r"not the file that audit\.json was written with"):
        Audit.load(tmp_path / "b")


def test_the_name_of_a_run_depends_on_everything_that_was_asked_for():
    names = {run_name("d.csv", {"digest": a, "seed": b}) for a in ("x", "y") for b in (0, 1)}
    assert len(names) == 4
    assert run_name("../../\x1b[31m evil name.csv", {}).startswith("31m-evil-name-")


def test_a_model_with_shared_weights_is_stored(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    write_run(replace(made(), model=model), tmp_path / "run")
    found = load_weights(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def test_a_run_replaces_the_former_as_a_whole(tmp_path):
    folder = tmp_path / "run"
    write_run(made(seed=1), folder)
    folder.chmod(0o750)
    write_run(replace(made(seed=2), unlabeled={}), folder)
    assert Audit.load(folder / "audit").p_error[0] == made(seed=2).p_error[0]
    assert not (folder / "predictions.csv").exists(), "of the former audit"
    assert folder.stat().st_mode & 0o777 == 0o750
    assert [p.name for p in tmp_path.iterdir()] == ["run"], "nothing else is left"


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "run").mkdir()
    write_run(made(), tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes\.txt, which an audit does not write"):
        check_run_folder(tmp_path / "run")
    with pytest.raises(InputError, match=r"notes\.txt"):
        write_run(made(), tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_failure_while_writing_leaves_the_former_run(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    write_run(made(seed=1), folder)
    before = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("write_suspects", "report"):
        monkeypatch.setattr(Audit, name, fail)
        with pytest.raises(OSError, match="No space"):
            write_run(made(seed=2), folder)
        monkeypatch.undo()
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(InputError, match="No space"), replaced_folder(folder):
        pass
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def write_for_ever(folder: Path, ready: Path) -> None:
    runs = [made(seed=seed) for seed in range(2)]
    ready.touch()
    while True:
        for run in runs:
            write_run(run, folder)


@pytest.mark.slow
def test_a_killed_process_never_leaves_parts_of_two_runs(tmp_path):
    known = {float(made(seed=seed).p_error[0]) for seed in range(2)}
    folder = tmp_path / "run"
    write_run(made(seed=0), folder)
    for wait in (0.05, 0.11, 0.17, 0.23):
        ready = tmp_path.parent / f"ready-{wait}"
        process = start(write_for_ever, folder, ready)
        while process.is_alive() and not ready.exists():
            time.sleep(0.01)
        time.sleep(wait)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        if not folder.exists():  # killed between two renames: the former is beside it under a hidden name
            next(tmp_path.glob(".run.*.before")).rename(folder)
        found = Audit.load(folder / "audit")
        assert float(found.p_error[0]) in known
        listed = pd.read_csv(folder / "suspects.csv")
        np.testing.assert_allclose(
            listed.set_index("index")["p_error"].sort_index(), found.p_error, rtol=1e-5, err_msg="list and audit differ"
        )
        names = {
            p.name for p in folder.iterdir() if not p.name.startswith(".compensate-")
        }  # a kill leaves temporary files
        assert names <= store.FILES


def test_what_is_no_run_is_not_taken_for_a_damaged_one(tmp_path):
    (tmp_path / "reviews.csv").write_text("text,label\n")
    for place in (tmp_path, tmp_path / "reviews.csv"):
        with pytest.raises(InputError, match=r"there is no audit\.json\. Expected the folder of a run"):
            Audit.load(place)
