"""Every option of every command with a value it cannot have: a message and an exit code, never a stack trace."""

from __future__ import annotations

import sys

import pytest
import typer.main

from compensate import cli
from experiments import __main__ as experiments

OURS, PAPER = (typer.main.get_command(m.app).commands for m in (cli, experiments))
COMMANDS = OURS | PAPER
NONSENSE = "no/such/\u202ething"


def cases() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [("nosuchcommand",), ("--nosuchoption",)]
    found += [("demo", option, value) for option in ("--seeds", "--epochs") for value in ("x", "-1", "0")]
    for name, command in COMMANDS.items():
        given = [NONSENSE for p in command.params if p.param_type_name == "argument"]
        if given and any("--workers" in p.opts for p in command.params):
            given += ["--workers", "1"]  # processes of their own would take seconds to start
        found.append((name, "--nosuchoption"))
        found.append((name, *given, "one", "argument", "too", "many"))
        if not given:
            continue  # with its own data it would start to work
        found.append((name, *given))
        for p in command.params:
            if p.param_type_name == "option" and p.name != "help":
                value = () if getattr(p, "is_flag", False) else ("-1",)
                found += [(name, *given, p.opts[0], *value), (name, *given, p.opts[0], *(NONSENSE for _ in value))]
    return found


CASES = [c for c in dict.fromkeys(cases()) if "--markdown" not in c]


def test_all_commands_are_tried():
    assert {c[0] for c in CASES} >= set(COMMANDS)
    assert len(CASES) > 100


@pytest.mark.parametrize("arguments", CASES, ids=lambda c: " ".join(c)[:60])
def test_wrong_arguments_end_in_a_message(arguments, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPENSATE_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["compensate", *arguments])
    with pytest.raises(SystemExit) as end:
        (experiments if arguments[0] in PAPER else cli).main()
    said = capsys.readouterr()
    assert end.value.code not in (0, None)
    assert said.err.strip()
    assert "Traceback" not in said.out + said.err
