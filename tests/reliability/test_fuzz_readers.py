"""Damaged files of every format: a result or a clear error; never another exception, a hang, or a silent NaN."""

from __future__ import annotations

import os

import pytest
from fuzzing import FORMATS, HOSTILE, SECONDS, fuzz, withstand

from compensate.files import SMALL_FILE

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("FUZZ", "100"))


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(name):
    outcomes = fuzz(name, COUNT)
    assert sum(outcomes.values()) == COUNT
    # The damage is real; an image that cannot be read is left out with a warning instead.
    assert outcomes["refused"] or name == "images"


def test_undamaged_files_are_read(tmp_path):
    for name, (files, read) in FORMATS.items():
        for file, content in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_bytes(content)
        assert read(tmp_path / name) is not None, name


@pytest.mark.parametrize("name", HOSTILE)
def test_what_was_made_to_fill_the_memory_is_refused(name):
    """More than a packed file may unpack to, and little enough to be made here."""
    took = withstand(name, SMALL_FILE + (1 << 26))
    assert took["outcome"] == "refused"
    assert took["seconds"] < SECONDS
    assert took["megabytes"] < 1024
