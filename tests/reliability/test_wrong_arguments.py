"""Every option of every command with a value it cannot have: the message says what was given and what to do instead."""

from __future__ import annotations

import re
import sys

import pytest
import typer.main

from compensate import cli
from experiments import __main__ as experiments

OURS = {name: command.load() for name, command in typer.main.get_command(cli.app).commands.items()}
PAPER = typer.main.get_command(experiments.app).commands
COMMANDS = OURS | PAPER
HOSTILE = "no/such/\u202ething"
"""A path with a sign that turns the rest of a line around."""

GOOD = {
    "audit": ("table.csv",),
    "review": ("table.csv",),
    "apply": ("table.csv", "corrections.csv"),
    "check": ("table.csv", "--against", "table.csv"),
    "export": ("table.csv", "--to", "cleanlab", "--out", "out.csv"),
    "consensus": ("table.csv", "--annotators", "a,b"),
    "train": ("table.csv", "--label", "label", "--epochs", "1"),
    "compare": ("table.csv", "--label", "label", "--epochs", "1", "--workers", "1"),
    "tune": ("table.csv", "--label", "label", "--epochs", "1", "--workers", "1", "--method", "logcomp"),
    "demo": (),
}
"""Arguments that a command can work with; one wrong option is added."""

ANY_VALUE = {"--missing", "--out", "--data-dir", "--markdown", "--images"}
"""Folders and files that are made, or looked for where data are named."""

FOR_OTHER_DATA = {"--vectors", "--labels-key", "--teacher"}
"""Not read for a table of numbers, a file without keys or a method without a teacher."""

ADVICE = (
    r"(?i)check the path|known:|choose|expected|must be|should be|such as|for example|add model=|leave |did you mean"
)


def options(command):
    """Options of a command that take a value: name and whether it is a number."""
    found = {}
    for p in command.params:
        if p.param_type_name == "option" and not p.is_flag and p.name != "help":
            found[p.opts[0]] = any(kind in str(p.type_descriptor.annotation) for kind in ("int", "float"))
    return found


def cases():
    shared = options(OURS["train"])
    for name, arguments in GOOD.items():
        for option, number in options(OURS[name]).items():
            tried_by_train = name in ("compare", "tune") and option in shared
            if option not in ANY_VALUE | FOR_OTHER_DATA and not tried_by_train:
                yield pytest.param((name, *arguments, option, "-1" if number else "nosuch"), id=f"{name} {option}")


CASES = list(cases())


def run(arguments, monkeypatch, tmp_path, capsys):
    """What a command that fails says to the error stream, on one line and without frames."""
    rows = "".join(f"{k % 7 + 5 * (k % 2)},{k % 5},{'xy'[k % 2]}\n" for k in range(40))
    (tmp_path / "table.csv").write_text("a,b,label\n" + rows)
    (tmp_path / "corrections.csv").write_text("index,given,decision,label\n0,x,other,y\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPENSATE_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["compensate", *arguments])
    with pytest.raises(SystemExit) as end:
        (experiments if arguments[0] in PAPER else cli).main()
    said = capsys.readouterr()
    assert end.value.code == 2
    assert "Traceback" not in said.out + said.err
    assert "\u202e" not in said.out + said.err, "a terminal would turn the line around"
    return " ".join(re.sub("[│╭╮╰╯─]", " ", said.err).split())


@pytest.mark.usefixtures("small_learners")
@pytest.mark.parametrize("arguments", CASES)
def test_a_wrong_value_is_named_with_what_to_do(arguments, monkeypatch, tmp_path, capsys):
    said = run(arguments, monkeypatch, tmp_path, capsys)
    option, value = arguments[-2:]
    assert value in said or option.strip("-").replace("-", "_") in said.replace("-", "_"), f"what was given: {said}"
    assert re.search(ADVICE, said), f"what to do: {said}"
    assert not (tmp_path / "runs").exists(), "nothing was begun"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_named(name, monkeypatch, tmp_path, capsys):
    said = run((name, "--nosuchoption"), monkeypatch, tmp_path, capsys)
    assert "No such option: --nosuchoption" in said
    assert f"{name} --help" in said


@pytest.mark.parametrize(
    "name", [name for name, command in COMMANDS.items() if any(p.param_type_name == "argument" for p in command.params)]
)
def test_a_path_that_is_not_there_is_named_without_signs_that_turn_the_line(name, monkeypatch, tmp_path, capsys):
    given = [HOSTILE for p in COMMANDS[name].params if p.param_type_name == "argument"]
    given += ["--to", "cleanlab", "--out", "out.csv"] if name == "export" else []
    assert "no/such/" in run((name, *given), monkeypatch, tmp_path, capsys)


def test_an_unknown_command_is_named(monkeypatch, tmp_path, capsys):
    assert "No such command 'nosuchcommand'" in run(("nosuchcommand",), monkeypatch, tmp_path, capsys)


def test_an_argument_too_many_is_named(monkeypatch, tmp_path, capsys):
    assert "(two three)" in run(("audit", "one", "two", "three"), monkeypatch, tmp_path, capsys)
