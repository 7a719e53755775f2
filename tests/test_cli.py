"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from compensate.cli import app, main


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "compensate", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PATH": "", "COLUMNS": "200", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"},
    )


def output(*arguments: str) -> str:
    """What a command prints, in this process."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_output_in_another_encoding_has_marks_in_place_of_what_it_lacks():
    code = "from compensate.cli.options import console; from compensate.cli import run; run(lambda: console.print('neg \\u2192 pos'))"
    for encoding, expected in (("cp1252", "neg ? pos"), ("utf-8", "neg \u2192 pos")):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=False, env={"PATH": "", "PYTHONIOENCODING": encoding}
        )  # fmt: skip
        assert (done.returncode, done.stdout.decode(encoding).strip()) == (0, expected), done.stderr.decode()


def test_methods_are_listed_and_each_has_a_page():
    listed = output("methods")
    assert "logcomp" in listed
    assert "regularized" in listed
    assert "Cross entropy without" in listed
    page = output("methods", "LogComp")
    assert "logit · positive · regularized · sample" in page
    assert "equation   43" in page
    assert "Algorithm 1" in page


def assert_told(code: object, stderr: str, said: str) -> None:
    assert code == 2
    assert said in stderr
    assert "Traceback" not in stderr


def test_a_mistake_ends_in_a_message_and_not_in_a_stack_trace():
    done = run("methods", "logcmp")
    assert_told(done.returncode, done.stderr, 'did you mean "logcomp"?')


@pytest.mark.slow
def test_demo_runs_end_to_end(tmp_path):
    said = output("demo", "--seeds", "1", "--epochs", "2", "--out", str(tmp_path / "out"))
    assert "suspects.png" in said
    assert (tmp_path / "out" / "suspects.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {run["method"] for run in stored["runs"]} == {"base", "logcomp", "mixcomp"}
    assert all(len(run["accuracy"]) == 2 for run in stored["runs"])
    page = tmp_path / "out" / "report.html"
    assert str(page) in "".join(said.split("\n"))
    assert page.read_text("utf-8").startswith("<!doctype html>")


ESCAPE = "\x1b[31mred\x1b]0 title\x07\u202e"


@pytest.mark.usefixtures("small_learners")
def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path, monkeypatch, capsys):
    """Columns, classes and files may be called anything; colors of the command itself are still written."""
    rows = [f"{i},{'ab'[i % 2]}{ESCAPE}" for i in range(40)]
    path = tmp_path / f"d{ESCAPE}.csv"
    path.write_text("\n".join([f"n{ESCAPE},y{ESCAPE}", *rows]))
    for arguments in (
        ["audit", str(path), "--label", f"y{ESCAPE}", "--out", str(tmp_path / "run")],
        ["audit", str(path), "--label", "none"],
        ["audit", str(tmp_path / f"{ESCAPE}.csv")],
    ):
        monkeypatch.setattr(sys, "argv", ["compensate", *arguments])
        with pytest.raises(SystemExit):
            main()
        said = "".join(capsys.readouterr()).replace("\n", "")  # long lines are broken, and no letter is lost
        assert "red" in said
        assert not set(said) & {"\x1b", "\x07", "\u202e"}, said


def test_a_plain_error_does_not_import_pytorch(tmp_path):
    """The import takes two seconds; a slip of the pen should cost less."""
    (tmp_path / "table.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    slips = [
        ["audit", "missing.csv"],
        ["apply", "missing.csv", "corrections.csv"],
        ["train", "missing.csv"],
        ["train"],
        ["audit", "table.csv", "--label", "none"],
        ["audit", "table.csv", "--label", "y", "--out", "table.csv/run"],
    ]
    code = (
        "import sys\nfrom compensate.cli import main\n"
        f"for arguments in {slips!r}:\n"
        "    sys.argv = ['compensate', *arguments]\n"
        "    try:\n        main()\n    except SystemExit as end:\n        print(end.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 False"] * len(slips), done.stderr
    assert done.stderr.count("error:") == len(slips)


LONG = {
    "audit": ["rows.csv"],
    "train": ["digits", "--method", "base", "--epochs", "500", "--out", "run"],
    "compare": ["digits", "--methods", "base,logcomp", "--epochs", "500", "--workers", "2", "--out", "comparison"],
    "tune": ["digits", "--method", "logcomp", "--epochs", "500", "--trials", "3", "--out", "search"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", LONG)
def test_ctrl_c_ends_with_one_line_and_130(command, tmp_path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(3000, 40))).assign(label=rng.integers(300, size=3000))
    rows.to_csv(tmp_path / "rows.csv", index=False)
    process = subprocess.Popen(
        [sys.executable, "-c", "from compensate.cli import main; print('begun', flush=True); main()", command, *LONG[command]],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "begun\n"
        time.sleep(4)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers are told too
        said, wrong = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, said + wrong
    assert "Traceback" not in wrong
    assert re.search("stopped", said + wrong)


def test_too_little_memory_is_said_in_one_line():
    code = "import numpy as np; from compensate.cli import run; run(lambda: np.empty(1 << 48))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert_told(done.returncode, done.stderr, "error: there is not enough memory")
