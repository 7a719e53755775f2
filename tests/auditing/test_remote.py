"""Parquet files at an address are audited as those on a disk, and what is wrong with an address is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from commands import run
from test_pieces import PLACES, SAME, _small_pieces, audited, table  # noqa: F401

from compensate import audit
from compensate.auditing import chunks
from compensate.data import load, parquet
from compensate.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # of fsspec's threads


@pytest.fixture
def in_memory(table: Path) -> str:  # noqa: F811
    """The files of the table in fsspec's storage in memory, which is none of a disk's."""
    storage = fsspec.filesystem("memory")
    for file in table.iterdir():
        storage.pipe_file(f"/bucket/table/{file.name}", file.read_bytes())
    storage.pipe_file("/bucket/table/_SUCCESS", b"")
    return "memory://bucket/table"


def test_an_address_is_audited_as_the_files(table: Path, audited: Any, in_memory: str) -> None:  # noqa: F811
    rows = np.array([3, 99, 229, 230, 399])
    for address in (in_memory, f"{in_memory}/*.parquet", f"file://{table}/*.parquet"):
        source = chunks.open_chunks(address, None, {})
        assert [(piece.start, piece.rows) for piece in source.pieces] == PLACES
        assert source.subset(rows).raw.equals(chunks.open_chunks(table, None, {}).subset(rows).raw)
    found = audit(f"{in_memory}/*.parquet")
    np.testing.assert_allclose(found.log_odds, audited.log_odds, atol=SAME)
    np.testing.assert_array_equal(found.suggested, audited.suggested)
    assert found.config["source"] == f"{in_memory}/*.parquet"


def test_a_file_that_changes_is_another_source(in_memory: str) -> None:
    storage = fsspec.filesystem("memory")
    before = chunks.open_chunks(in_memory, None, {}).source.digest
    assert chunks.open_chunks(in_memory, None, {}).source.digest == before
    storage.pipe_file("/bucket/table/2.parquet", storage.cat_file("/bucket/table/1.parquet"))
    assert chunks.open_chunks(in_memory, None, {}).source.digest != before


def test_the_command_takes_an_address(table: Path, audited: Any, tmp_path: Path) -> None:  # noqa: F811
    out = tmp_path / "run"
    run("audit", f"file://{table}/*.parquet", "--out", out)
    kept = json.loads((out / "audit" / "audit.json").read_text())["config"]
    assert kept["rows"] == len(audited)
    assert kept["source"] == f"file://{table}/*.parquet"
    with pytest.raises(InputError, match="compensate apply COPY"):
        run("apply", out, "--accept", 0.9)
    run("apply", table, out, "--accept", 0.9, "--rematch", "--out", tmp_path / "fixed")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("memory://bucket/none/*.parquet", "names no Parquet file; expected a file, a folder or a pattern"),
        ("memory://bucket/table/_SUCCESS", "names no Parquet file"),
        ("nowhere://bucket/a.parquet", '"nowhere://" is not a known storage'),
        ("adl://bucket/a.parquet", "needs a library that is not installed"),
    ],
)
def test_an_address_that_leads_nowhere_is_explained(address: str, message: str, in_memory: str) -> None:
    with pytest.raises(InputError, match=message):
        audit(address)


class Storage:
    """Storage of Arrow's that answers as Amazon's does."""

    def __init__(self, answer: Exception | None) -> None:
        self.answer = answer

    def glob(self, path: str) -> list[str]:
        if self.answer is not None:
            raise self.answer
        return []

    def exists(self, path: str) -> bool:
        return False


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, 'there is no bucket "bucket".*AWS_ACCESS_KEY_ID'),
        (OSError("AWS Error ACCESS_DENIED during ListObjectsV2 operation"), "may not be read.*AWS_ACCESS_KEY_ID"),
        (OSError("AWS Error NETWORK_CONNECTION: could not resolve host"), "cannot be reached.*AWS_ENDPOINT_URL"),
    ],
)
def test_buckets_that_cannot_be_read_are_explained(
    answer: Exception | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_by_arrow", lambda scheme, bucket: Storage(answer))
    with pytest.raises(InputError, match=message):
        audit("s3://bucket/path/*.parquet")


def test_a_damaged_file_at_an_address_is_named(in_memory: str) -> None:
    fsspec.filesystem("memory").pipe_file("/bucket/damaged.parquet", b"PAR1 and no more")
    with pytest.raises(InputError, match=r"memory:///bucket/damaged.parquet is damaged"):
        audit("memory://bucket/damaged.parquet")


def test_other_tasks_say_that_they_read_files() -> None:
    with pytest.raises(InputError, match="copy them to a disk"):
        load("s3://bucket/a.parquet")
