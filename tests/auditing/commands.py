"""Commands that run in the process of a test."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from compensate.cli import app, main


def run(*arguments: Any) -> str:
    """Runs a command that succeeds, and returns its output on one line; its error is raised."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def exit_code(*arguments: Any) -> int:
    """Runs a command as the program does, with errors on the error stream, and returns its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["compensate", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0)
