"""Audits of data in pieces equal audits of the whole, in this process and on a cluster."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import test_review_round_trip as round_trip
from commands import run
from scipy.stats import spearmanr

from compensate import audit
from compensate.auditing import api, chunks, execution, judge
from compensate.auditing.api import audit_votes
from compensate.auditing.execution import Cluster, Execution
from compensate.auditing.labels.votes import wide_votes
from compensate.auditing.learners import View, judge_view
from compensate.auditing.result import Audit
from compensate.data.dataset import Dataset
from compensate.errors import InputError

SAME = 1e-5
"""Log odds of both differ by rounding: sums over rows are added up in another order, and kept in 32 bits."""


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 120)
    monkeypatch.setattr(chunks, "MEMORY_CHUNK_ROWS", 120)


def made(rows: int = 400, columns: int = 5, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    true = rng.integers(3, size=rows)
    x = (1.5 * rng.normal(size=(3, columns))[true] + rng.normal(size=(rows, columns))).astype(np.float32)
    return x, np.where(rng.random(rows) < 0.1, (true + 1) % 3, true)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of several row groups, with a category, a missing label and two equal rows across files."""
    x, y = made()
    frame = pd.DataFrame(x, columns=[f"number {j}" for j in range(x.shape[1])])
    frame["town"] = np.random.default_rng(1).choice(["rome", "oslo", "bern"], size=len(frame))
    frame["label"] = np.array(["a", "b", "c"])[y]
    frame.loc[7, "label"] = None
    frame.loc[300, frame.columns[:-1]] = frame.loc[20, frame.columns[:-1]]
    folder = tmp_path_factory.mktemp("table")
    frame[:230].to_parquet(folder / "1.parquet", row_group_size=50)
    frame[230:].to_parquet(folder / "2.parquet", row_group_size=90)
    return folder


@pytest.fixture(scope="module")
def audited(table: Path) -> Audit:
    """The audit of the whole table."""
    return audit(str(table))


def assert_same(found: Audit, whole: Audit) -> None:
    np.testing.assert_array_equal(found.index, whole.index)
    np.testing.assert_array_equal(found.given, whole.given)
    np.testing.assert_array_equal(found.suggested, whole.suggested)
    np.testing.assert_allclose(found.log_odds, whole.log_odds, atol=SAME)
    np.testing.assert_allclose(found.p_error, whole.p_error, atol=SAME)
    assert found.noise_rate.value == pytest.approx(whole.noise_rate.value, abs=SAME)
    assert found.config["views"] == pytest.approx(whole.config["views"], abs=1e-4)
    assert found.source_digest == whole.source_digest
    np.testing.assert_array_equal(found.predicted["index"], whole.predicted["index"])
    np.testing.assert_allclose(found.predicted["probability"], whole.predicted["probability"], atol=SAME)
    listed = found.shown
    place = np.searchsorted(whole.index, listed.index)
    if whole.probabilities is not None:
        np.testing.assert_allclose(listed.probabilities, whole.probabilities[place], atol=SAME)
    assert listed.ids == tuple(whole.ids[i] for i in place if whole.ids)
    if whole.row_digests is not None and whole.row_digests.any():
        np.testing.assert_array_equal(listed.row_digests, whole.row_digests[place])


@dataclass(frozen=True)
class Kind:
    """A kind of label in a format, which `write` makes in a folder; ``{folder}`` in options stands for it. `refused` is the error in pieces."""

    name: str
    write: Callable[[Path], Path]
    options: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""

    def __str__(self) -> str:
        return self.name

    def audit(self, data: Path, **more: Any) -> Audit:
        options = {name: value.format(folder=data.parent) for name, value in self.options.items()}
        if "annotators" in options:
            items, votes = wide_votes(pd.read_csv(data), [options["annotators"]])
            return audit_votes(items, votes, encoder="none", **more)[0]
        return audit(data, encoder="none", **options, **more)


def words(rows: int = 200) -> pd.DataFrame:
    """Texts of two classes, a few of them with the label of the other."""
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 2
    texts = [" ".join(rng.choice([f"w{c}{k}" for k in range(8)] + [f"v{k}" for k in range(9)], size=6)) for c in y]
    return pd.DataFrame({"text": texts, "label": np.array(["no", "yes"])[y ^ (rng.random(rows) < 0.05)]})


def broken_images(folder: Path) -> Path:
    """A folder of images, the first of which cannot be read and is left out."""
    data = round_trip.write_images(folder)
    next(iter(sorted(data.rglob("*.png")))).write_bytes(b"broken")
    return data


COLUMNS = {"labels_columns": ",".join(round_trip.TOPICS)}

KINDS = [
    *(
        Kind(f"classes, {name}", round_trip.table(round_trip.classes, name))
        for name in ("t.csv", "t.jsonl", "t.xlsx", "t.parquet", "parts")
    ),
    Kind("classes of texts, t.csv", round_trip.table(words, "t.csv")),
    Kind("classes of texts, t.parquet", round_trip.table(words, "t.parquet")),
    Kind("classes, x.npy", lambda folder: round_trip.write_arrays(folder, "x.npy"), {"labels": "{folder}/y.npy"}),
    Kind("classes, t.npz", lambda folder: round_trip.write_arrays(folder, "t.npz")),
    Kind("classes, image folder", round_trip.write_images),
    Kind("classes, image folder with a broken file", broken_images),
    *(
        Kind(f"quantity, {name}", round_trip.table(round_trip.quantities, name), {"label": "price"})
        for name in ("t.csv", "t.parquet")
    ),
    *(
        Kind(f"label sets as {form}, {name}", round_trip.table(partial(round_trip.label_sets, form), name), more)
        for form, name, more in (
            ("joined", "t.csv", {}), ("joined", "t.parquet", {}), ("lists", "t.jsonl", {}), ("columns", "t.csv", COLUMNS),
        )
    ),
    *(Kind(f"pairs, {name}", round_trip.table(round_trip.pairs, name)) for name in ("t.csv", "t.parquet", "parts")),
    Kind("tags, t.conll", round_trip.write_conll),
    Kind("tags, t.jsonl", round_trip.write_token_lists),
    Kind("regions, masks", round_trip.write_masks),
    Kind("annotators, t.csv", round_trip.table(round_trip.votes, "t.csv"), {"annotators": "rater*"}, "memory and backend are not supported with votes"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own
@pytest.mark.filterwarnings("ignore:1 images cannot be read")
@pytest.mark.parametrize("how", [{"memory": "4GB"}, {"backend": "ray"}], ids=["memory", "ray"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_label_in_pieces_is_audited_as_the_whole_or_refused(
    kind: Kind, how: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data = kind.write(tmp_path)
    if kind.refused:
        with pytest.raises(InputError, match=kind.refused):
            kind.audit(data, **how)
        return
    if "backend" in how:
        request.getfixturevalue("ray")
    whole = kind.audit(data)
    assert whole.mask.any()
    assert_same(kind.audit(data, **how), whole)


PLACES = [(0, 100), (100, 100), (200, 30), (230, 90), (320, 80)]
"""First row and number of rows of each piece of the table."""


def test_rows_are_numbered_through_the_footers(table: Path) -> None:
    source = chunks.open_chunks(table, None, {})
    assert [(piece.start, piece.rows) for piece in source.pieces] == PLACES
    read = pd.concat([pd.read_parquet(file) for file in sorted(table.iterdir())], ignore_index=True)
    rows = np.array([3, 99, 100, 229, 230, 399])
    pd.testing.assert_frame_equal(source.subset(rows).raw, read.iloc[rows].reset_index(drop=True))


def test_a_table_in_pieces_is_audited_as_the_whole_table(table: Path, audited: Audit, tmp_path: Path) -> None:
    found = audit(str(table), memory="4GB")
    assert_same(found, audited)
    assert "in chunks" in found.notes[-1]
    assert Audit.load(found.save(tmp_path / "saved")).config["rows"] == len(audited)


def test_a_piece_of_data_in_memory_that_is_sent_has_its_own_rows_and_its_place() -> None:
    x, y = made()
    source = chunks.open_chunks(x, y, {})
    assert [piece.start for piece in source.pieces] == [0, 120, 240, 360]
    for piece in source.pieces:
        sent = pickle.loads(pickle.dumps(piece))
        assert (sent.start, sent.rows, len(sent.data)) == (piece.start, piece.rows, piece.rows)
        np.testing.assert_array_equal(sent.read().x, x[piece.start : piece.start + piece.rows])


def test_how_a_file_was_read_is_kept_as_of_the_whole(tmp_path: Path) -> None:
    x, y = made(200)
    path = tmp_path / "a.csv"
    pd.DataFrame(x).assign(label=np.array(["früh", "spät", "nie"])[y]).to_csv(path, index=False, encoding="latin-1")
    found = audit(path, encoding="latin-1", memory="4GB")
    assert found.reading["encoding"] == audit(path, encoding="latin-1").reading["encoding"] == "latin-1"


def test_learners_fitted_on_a_part_rank_the_rows_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = made(3000)
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr(api, "FEATURE_SHARE", 0)
    found = audit(str(tmp_path / "x.npy"), labels=y, memory="4GB")
    assert found.config["fitted_rows"] == 1000
    assert "1,000 of 3,000 rows" in found.notes[-1]
    assert spearmanr(found.log_odds, audit(x, y).log_odds)[0] > 0.95


def test_an_interrupted_audit_goes_on_with_the_next_piece(table: Path, audited: Audit, tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if stage == "judging" and done == 2:
            raise KeyboardInterrupt

    kept = tmp_path / "stages"
    with pytest.raises(KeyboardInterrupt):
        audit(str(table), memory="4GB", run_folder=kept, progress=stop)
    parts = sorted((kept / "suspects").iterdir())
    assert len(parts) == 2
    before = {part: part.stat().st_mtime_ns for part in parts}
    told: list[tuple[str, int, int]] = []
    found = audit(str(table), memory="4GB", run_folder=kept, resume=True, progress=lambda *args: told.append(args))
    assert {part: part.stat().st_mtime_ns for part in parts} == before
    assert [done for stage, done, _ in told if stage == "judging"] == [3, 4, 5]
    assert_same(found, audited)


def test_the_command_writes_all_rows_as_partitions(table: Path, audited: Audit, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "suspects/*.parquet" in run("audit", table, "--memory", "4GB", "--out", out)
    rows = pd.read_parquet(out / "suspects")
    assert rows["index"].tolist() == list(range(400))
    np.testing.assert_allclose(rows["score"][audited.index], audited.log_odds, atol=SAME)
    assert rows["given"][audited.index].tolist() == audited.names(audited.given)
    assert int(rows["flagged"].sum()) == int(audited.mask.sum())
    assert "rome" in (out / "report.html").read_text()
    assert json.loads((out / "audit" / "audit.json").read_text())["config"]["rows"] == 399
    assert not list(tmp_path.glob(".run*"))


def test_opinions_in_pieces_weigh_as_in_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = made()
    opinion = np.where(np.arange(len(y)) % 3 == 0, -1, audit(x, y).probabilities.argmax(1))
    assert_same(audit(x, y, opinion=opinion, memory="4GB"), audit(x, y, opinion=opinion))
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr(api, "FEATURE_SHARE", 0)
    monkeypatch.setattr(judge, "MIN_FITTED", 200)
    part = audit(str(tmp_path / "x.npy"), labels=y, opinion=opinion, memory="4GB")
    assert part.config["fitted_rows"] == 200
    assert part.config["views"]["opinion"] > 0
    assert spearmanr(part.log_odds, audit(x, y, opinion=opinion).log_odds)[0] > 0.9


@pytest.mark.parametrize("asked", [("--budget", 7), ("--precision", 0.5, "--budget", 30)])
def test_flags_in_pieces_follow_a_budget_and_a_precision(
    table: Path, audited: Audit, tmp_path: Path, asked: Any
) -> None:
    run("audit", table, "--memory", "4GB", "--out", tmp_path / "run", *asked)
    options = dict(zip((name.strip("-") for name in asked[::2]), asked[1::2], strict=True))
    wanted = audited.flag(**options)
    rows = pd.read_parquet(tmp_path / "run" / "suspects")
    np.testing.assert_array_equal(rows["index"][rows["flagged"]], wanted.index[wanted.mask])
    assert int(Audit.load(tmp_path / "run" / "audit").mask.sum()) == int(wanted.mask.sum())


def test_what_an_interrupted_audit_finished_is_not_taken_for_another(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = chunks.FinishedStages.write_judged

    def stop(self: Any, piece: int, *args: Any) -> None:
        if piece == 2:
            raise RuntimeError("stopped")
        write(self, piece, *args)

    asked = ["audit", str(table), "--memory", "4GB", "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(chunks.FinishedStages, "write_judged", stop)
        with pytest.raises(RuntimeError, match="stopped"):
            run(*asked)
    assert len(list(tmp_path.glob(".run.*.training/suspects/*.parquet"))) == 2
    run(*asked, "--seed", 1)
    rows, other = pd.read_parquet(tmp_path / "run" / "suspects"), audit(str(table), seed=1)
    np.testing.assert_allclose(rows["score"][other.index], other.log_odds, atol=SAME)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "much"}, "expected a size such as 2GB"),
        ({"memory": "10MB"}, "needs 0.80 GB or more"),
        ({"backend": "spark"}, "expected local or ray"),
        ({"memory": "4GB", "model": "mlp"}, "model is not supported with memory"),
    ],
)
def test_what_cannot_be_had_in_pieces_is_refused(table: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        audit(str(table), **options)


@dataclass(frozen=True)
class Fatal:
    """A piece that kills the process that reads it, once."""

    piece: Any
    mark: Path

    @property
    def start(self) -> int:
        return self.piece.start

    @property
    def rows(self) -> int:
        return self.piece.rows

    def read(self) -> Dataset:
        if os.environ.get("RAY_RAYLET_PID") and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.piece.read()


READY = Cluster._ready


def wait_for_workers() -> None:
    """Calls are made by workers from the first one on; otherwise this process would have done all of the little work before they are ready."""
    Cluster._ready = property(lambda self: None if self._finished.is_set() else self._connected.result())


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of two workers on this machine."""
    ray = pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    # The workers must find this module.
    places = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(places))
        patch.setenv("COMPENSATE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setattr(Cluster, "_ready", Cluster._ready)
        wait_for_workers()
        try:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            yield ray
        finally:
            ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own
def test_a_cluster_finds_the_same_though_a_worker_is_killed(
    ray: Any, table: Path, audited: Audit, tmp_path: Path
) -> None:
    from encoders.saved_models import WORDS, save_bert

    encoder = save_bert(tmp_path / "bert")
    rng = np.random.default_rng(0)
    _, y = made(300)
    texts = [" ".join(rng.choice(WORDS[4 + 10 * c : 20 + 10 * c], size=5)) for c in y]
    source = chunks.open_chunks(table, None, {})
    mark = tmp_path / "killed"
    source = replace(source, pieces=(*source.pieces[:2], Fatal(source.pieces[2], mark), *source.pieces[3:]))
    assert_same(audit(source, backend="ray"), audited)
    assert mark.exists()
    assert_same(audit(texts, y, encoder=encoder, backend="ray"), audit(texts, y, encoder=encoder))


@pytest.mark.slow
def test_this_process_computes_until_workers_are_ready_and_once_they_are_not_needed(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = threading.Event()
    monkeypatch.setattr(Cluster, "_ready", READY)
    monkeypatch.setattr(execution, "connect_ray", lambda what: ready.wait())
    with closing(Cluster()) as run:
        found = run.map(process_of, range(20))
        assert run.workers == 1
        assert [next(found) for _ in range(5)] == [(k, os.getpid()) for k in range(5)]
        ready.set()
        while run.workers == 1:
            time.sleep(0.01)
        numbers, processes = zip(*found, strict=True)
        assert numbers == tuple(range(5, 20))
        assert os.getpid() not in processes
        run.finish()
        assert list(run.map(process_of, [1])) == [(1, os.getpid())]
    assert ray.is_initialized()  # it was there before


class ReadOnly(Execution):
    """Shared arrays are not changed, for workers keep them as they were."""

    def map(self, function: Any, items: Any, *shared: Any) -> Iterator[Any]:
        """As `Execution.map`."""
        for one in shared:
            if isinstance(one, np.ndarray):
                one.flags.writeable = False
        return super().map(function, items, *shared)


def test_what_was_shared_is_not_changed() -> None:
    x, y = made()
    folds = np.arange(len(y)) % 5
    found = judge_view(View("features", x, x), y, folds, 5, 3, run=ReadOnly())
    same = judge_view(View("features", x, x), y, folds, 5, 3)
    np.testing.assert_array_equal(found.log_p["transitions"], same.log_p["transitions"])


@pytest.mark.slow
def test_a_cluster_that_cannot_be_reached_is_an_error(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(what: str) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(execution, "connect_ray", refused)
    with pytest.raises(ConnectionError, match="nobody there"), closing(Cluster()):
        pass


def process_of(number: int) -> tuple[int, int]:
    """The number, and the process that was asked."""
    return number, os.getpid()


FATAL_COMMAND = """
import os, signal, sys
import compensate.auditing.api as room
from compensate.auditing import chunks, learners
chunks.CHUNK_ROWS, learners.TREES, learners.REPEATS, whole = 120, 16, 1, room.audit  # as in the process of the tests
from test_pieces import wait_for_workers
wait_for_workers()

def audit(source, *, progress, **more):
    def told(stage, done, total):
        if stage == "judging" and done == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return whole(source, progress=told, **more)

room.audit = audit
from compensate.cli import app
app(sys.argv[1:])
"""
"""The command whose process is killed in the middle of its last stage."""


@pytest.mark.slow
def test_the_same_command_goes_on_after_its_process_was_killed(
    ray: Any, table: Path, audited: Audit, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    asked = ["audit", str(table), "--backend", "ray", "--out", str(out)]
    address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    killed = subprocess.run(
        [sys.executable, "-c", FATAL_COMMAND, *asked], env={**os.environ, **address}, capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not out.exists()
    before = {part.name: part.stat().st_mtime_ns for part in tmp_path.glob(".run.*.training/suspects/*.parquet")}
    assert len(before) >= 2
    run(*asked)
    after = {name: (out / "suspects" / name).stat().st_mtime_ns for name in before}
    assert after == before  # what was judged is not judged again
    rows = pd.read_parquet(out / "suspects")
    np.testing.assert_allclose(rows["score"][audited.index], audited.log_odds, atol=SAME)
    assert int(rows["flagged"].sum()) == int(audited.mask.sum())
    listed = Audit.load(out / "audit")
    assert listed.noise_rate.value == pytest.approx(audited.noise_rate.value, abs=SAME)
    assert listed.source_digest == audited.source_digest
    assert not list(tmp_path.glob(".run*"))
