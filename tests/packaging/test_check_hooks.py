"""The commit hook and the action call `compensate check` with options that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from compensate.cli import app

ROOT = Path(__file__).parents[2]
yaml = pytest.importorskip("yaml", reason="PyYAML comes with the documentation's tools")
OPTIONS = {name for p in typer.main.get_command(app).commands["check"].params for name in p.opts}  # type: ignore[attr-defined]


def test_the_hook_is_a_command_that_takes_files() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"].split() == ["compensate", "check"]
    assert {"id", "name", "language", "files"} <= hook.keys()
    assert re.search(hook["files"], "data/reviews.csv")
    shown = re.search(r"```yaml\n(repos:.*?)```", (ROOT / "docs" / "audit.md").read_text(), re.DOTALL)
    assert shown
    used = yaml.safe_load(shown[1])["repos"][0]["hooks"][0]
    assert used["id"] == hook["id"]
    assert {word for word in used["args"] if word.startswith("--")} <= OPTIONS


def test_the_action_gives_each_input_to_an_option_and_none_to_a_script() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    last = action["runs"]["steps"][-1]
    assert set(re.findall(r"--[\w-]+", last["run"])) <= OPTIONS
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "an input in a script would be run"
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(action["inputs"])
