"""The command line: messages, and the commands that train."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer.main
from typer.testing import CliRunner

from compensate.cli import COMMANDS, app, main
from compensate.cli.terminal import console
from compensate.errors import InputError
from compensate.training import Run
from processes import start


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "", "COLUMNS": "200", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    command = [sys.executable, "-m", "compensate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)


def output(*arguments: str, fails: bool = False) -> str:
    """What a command prints, in this process; of one that fails, its error."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    if isinstance(done.exception, InputError):
        assert fails, done.exception
        return str(done.exception)
    assert (done.exit_code != 0) == fails, (done.output, done.exception)
    return done.output


def test_output_in_another_encoding_has_marks_in_place_of_what_it_lacks():
    code = "from compensate.cli.terminal import console; from compensate.cli import run; run(lambda: console.print('neg \\u2192 pos'))"
    for encoding, expected in (("cp1252", "neg ? pos"), ("utf-8", "neg \u2192 pos")):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": encoding}
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


@pytest.mark.parametrize(("words", "expected"), [("aud", "audit"), ("audit --labels-c", "--labels-columns")])
def test_shells_complete_commands_and_their_options(words, expected):
    env = {
        "_COMPENSATE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"compensate {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = CliRunner(env=env).invoke(app, [], prog_name="compensate")
    assert done.stdout.split() == [expected]


@pytest.mark.usefixtures("small_learners")
def test_json_is_alone_on_standard_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def report(*arguments):
        done = CliRunner().invoke(app, [*arguments, "--json"])
        assert done.exit_code in (0, 1), done.output
        return json.loads(done.stdout), done.stderr

    messages(Path("m.csv"), topic=[*"bcabca", *"abc" * 18])
    found, said = report("audit", "m.csv", "--encoder", "none", "--out", "run")
    assert "look wrong" in said
    suspects = pd.read_csv("run/suspects.csv")
    assert found["run"] == "run"
    assert (found["labels"], found["flagged"]) == (len(suspects), suspects["flagged"].sum())
    assert sum(pair["labels"] for pair in found["pairs"]) == found["flagged"]
    assert found["noise_rate_low"] <= found["noise_rate"] <= found["noise_rate_high"]
    applied, said = report("apply", "run", "--accept", "0.0", "--out", "fixed.csv")
    assert applied["changed"] == len(suspects)
    assert "changed" in said
    assert report("export", "run", "--to", "cleanlab", "--out", "issues.csv")[0]["rows"] == len(suspects)
    assert report("card", "run")[0]["decisions"]["changed"] == 0
    assert report("check", "fixed.csv", "--against", "run")[0]["files"][0]["rows"] == len(pd.read_csv("fixed.csv"))
    assert [row["name"] for row in report("methods", "LogComp")[0]["methods"]] == ["logcomp"]
    options = ("--methods", "base", "--seeds", "1", *SMALL, "--workers", "1", "--out", "c")
    assert report("compare", "digits", *options)[0]["table"][0]["method"] == "base"
    assert report("train", "digits", *SMALL, "--out", "t")[0]["result"]["epochs"] == 2
    options = ("--method", "logcomp", *SMALL, "--trials", "1", "--workers", "1", "--out", "tuned")
    assert report("tune", "digits", *options)[0]["best"]["hyper"]
    assert "logcomp" in CliRunner().invoke(app, ["methods"]).stdout, "the next command writes to standard output again"


def test_a_terminal_gets_bars_and_a_pipe_none(tmp_path, monkeypatch):
    messages(tmp_path / "m.csv", topic=[*"bcabca", *"abc" * 18])
    command = ["audit", str(tmp_path / "m.csv"), "--encoder", "none", "--out", str(tmp_path / "run")]
    assert "0.9 to 1" not in output(*command)
    monkeypatch.setattr(console, "_force_terminal", True)
    said = output(*command)
    counts = [int(n) for n in re.findall(r"0\.\d to [\d.]+ +(\d+)", said)]
    p = pd.read_csv(tmp_path / "run" / "suspects.csv")["p_error"]
    assert counts == [int(n) for n in np.histogram(p, [0.1, 0.3, 0.5, 0.7, 0.9, 1.0])[0][::-1]]
    assert sum(counts) > 0


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
    assert "compensate.methods.robust(num_samples=len(train), num_classes=10)" in said, (
        "as `compensate methods` advises"
    )
    assert (tmp_path / "out" / "suspects.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {run["method"] for run in stored["runs"]} == {"base", "robust", "mixcomp"}
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


def test_the_list_of_commands_imports_no_library_and_has_their_first_sentences():
    code = "import sys; from compensate.cli import main; sys.argv = ['compensate', '--help']\ntry:\n    main()\n"
    code += "except SystemExit:\n    assert not {'torch', 'pandas', 'sklearn', 'numpy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    for name, command in typer.main.get_command(app).commands.items():
        assert command.load().help.startswith(COMMANDS[name])


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


SMALL = ["--limit", "150", "--epochs", "2", "--model", "mlp", "--set", "model_options.hidden=[8]"]


def test_train_stores_a_run_and_resumes_it(tmp_path):
    out = tmp_path / "run"
    command = ["train", "digits", "--method", "label-smoothing", "--noise", "pair:0.2", *SMALL, "--out", str(out)]
    said = output(*command)
    assert "label-smoothing on mlp, 2 epochs" in said
    assert "chosen on validation" in said
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
    assert json.loads((out / "config.json").read_text())["config"]["noise"] == "pair:0.2"
    assert "holds this run already" in output(*command, fails=True)
    assert "2 epochs" in output(*command, "--resume")


def interrupted(arguments: list[str], output: Path) -> None:
    """The command in a process of its own, which gets the signal of Ctrl-C when two epochs are logged."""
    log = Run.log

    def logged(self, history):
        log(self, history)
        if len(history) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    Run.log = logged
    sys.argv = ["compensate/__main__.py", *arguments]
    with open(output, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        main()


def test_ctrl_c_stores_a_checkpoint_and_prints_the_command_that_resumes_exactly(tmp_path):
    options = ["--limit", "150", "--epochs", "6", "--batch-size", "16", "--model", "mlp", "--quiet"]
    whole, broken = tmp_path / "whole", tmp_path / "my broken"
    output("train", "digits", *options, "--out", str(whole))
    printed = tmp_path / "output.txt"
    process = start(interrupted, ["train", "digits", *options, "--out", str(broken)], printed)
    process.join()
    said = printed.read_text()
    assert process.exitcode == 130, said
    *_, first, resume = said.strip().splitlines()
    assert re.match(r"stopped after step \d+; the checkpoint is in .*my broken. Resume with:", first)
    assert "Traceback" not in said
    begun = len((broken / "metrics.jsonl").read_text().splitlines())
    assert begun == 2
    python, module, name, *rest = shlex.split(resume)
    assert (python, module, name) == ("python", "-m", "compensate")
    output(*rest)
    assert (broken / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_options_of_a_file_give_way_to_the_command_line(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'data = "digits"\nmethod = "logcomp"\nepochs = 1\nlimit = 150\nmodel = "mlp"\nbatch-size = 50\n'
        "[hyper]\nlam = 0.2\nlr = 0.5\n[model_options]\nhidden = [8]\n"
    )
    output("train", "--config", str(file), "--hyper", "lam=0.3", "--seed", "4", "--out", str(tmp_path / "run"))
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["config"]["hyper"] == {"lam": 0.3, "lr": 0.5}
    assert (stored["config"]["seed"], stored["config"]["batch_size"], stored["config"]["epochs"]) == (4, 50, 1)
    assert stored["effective"]["optimizer"] == "adam"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train"], "no data set is given"),
        (["train", "digits", "--method", "logcmp"], 'did you mean "logcomp"'),
        (["train", "digits", "--hyper", "lam"], "equals sign"),
        (["train", "digits", "--set", "lam"], "such as --set weight_decay=1e-4"),
        (["train", "digits", "--method", "logcomp", "--set", "lam=0.1"], "lam belongs to the method: --hyper lam=0.1."),
        (["train", "digits", "--set", "epoch=3"], 'did you mean "epochs"'),
        (["train", "digits", "--config", "nowhere.toml"], "no file nowhere.toml"),
        (["train", "digitz"], "no data set has the name"),
        (["compare", "digits", "--methods", "base,gce", "--hyper", "lam=3"], "does not name a method"),
        (["compare", "digits", "--methods", "base,gce", "--baseline", "elr"], "not among the methods"),
        (["tune", "digits"], "nothing to tune"),
        (["tune", "digits", "--method", "gce", "--preset", "papr"], "choose default, paper"),
    ],
)
def test_mistakes_end_in_one_sentence(arguments, said):
    assert said in output(*arguments, fails=True)


def messages(path: Path, **more: list[str]) -> Path:
    """A table of 60 texts on three topics, of which two have no label."""

    words = ["the bill is wrong again", "the parcel came late again", "the screen stays black again"]
    rows = range(60)
    table = pd.DataFrame({"nr": rows, "message": [f"{words[k % 3]} {k}" for k in rows], "topic": list("abc") * 20})
    table.loc[[4, 9], "topic"] = ""
    table.assign(**more).to_csv(path, index=False)
    return path


def test_a_file_that_was_changed_is_trained_on_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = Path("table.csv")

    def write(flip):
        table.write_text("a,b,y\n" + "".join(f"{k % 7},{k % 5},{'nm'[(k % 7 > 3) ^ flip]}\n" for k in range(120)))

    command = shlex.split("compare table.csv --methods base --seeds 1 --epochs 1 --model mlp --workers 1")

    def folders():
        output(*command)
        return {path.name for path in Path("runs").glob("compare-*/runs/*")}

    write(False)
    first = folders()
    assert folders() == first, "a finished run is read"
    write(True)
    assert len(folders()) == len(first) + 1, "the runs of the former content are not taken for those of the present one"
    train = ["train", "table.csv", "--epochs", "1", "--model", "mlp", "--out", "run"]
    output(*train)
    write(False)
    assert "holds another run: it differs in content" in output(*train, "--resume", fails=True)


def test_a_training_lists_the_labels_that_look_wrong_by_their_row_of_the_file(tmp_path):

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    right = np.where(x[:, 0] > 0, "yes", "no")
    wrong = rng.random(300) < 0.1
    given = np.where(wrong, np.where(right == "yes", "no", "yes"), right).astype(object)
    given[:20] = ""  # rows without a label: positions among the others are no rows of the file
    pd.DataFrame(x, columns=["a", "b", "c"]).assign(kind=given).to_csv(tmp_path / "own.csv", index=False)
    out = tmp_path / "run"
    options = ["--label", "kind", "--method", "logcomp", "--epochs", "15", "--quiet", "--out", str(out)]
    *_, said, advice = output("train", str(tmp_path / "own.csv"), *options).splitlines()
    found = pd.read_csv(out / "suspects.csv")
    assert list(found.columns) == ["index", "given", "suggested", "score", "flagged"]
    assert found["index"].is_unique
    assert (found["given"] == given[found["index"]]).all()
    assert (found["suggested"] != found["given"]).all()
    assert found["score"].is_monotonic_decreasing
    assert wrong[found["index"][:15]].mean() > 0.8
    counts = f"{found['flagged'].sum()} of {len(found)} labels flagged"
    assert said == f"suspects: {out / 'suspects.csv'}: {counts} by the model that trained on them"
    assert advice.endswith(f"compensate audit {tmp_path / 'own.csv'}")


@pytest.mark.parametrize("rare", [0.5, 0.1])
def test_a_model_that_knows_nothing_lists_no_suspects(rare, tmp_path):
    """It contradicts half of the labels, or all of the rare class, and says so; the same data trained for longer have a list."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    kind = np.where(x[:, 0] > np.quantile(x[:, 0], 1 - rare), "yes", "no")
    pd.DataFrame(x, columns=["a", "b", "c"]).assign(kind=kind).to_csv(tmp_path / "own.csv", index=False)
    command = ["train", str(tmp_path / "own.csv"), "--label", "kind", "--method", "logcomp", "--quiet"]
    *_, said = output(*command, "--epochs", "1", "--lr", "1e-9", "--out", str(tmp_path / "begun")).splitlines()
    assert re.search(r"no list of suspects: .*contradicts \d+ of \d+ labels.*more epochs", said)
    assert not (tmp_path / "begun" / "suspects.csv").exists()
    output(*command, "--epochs", "20", "--out", str(tmp_path / "trained"))
    assert (tmp_path / "trained" / "suspects.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_compare_prints_a_table_and_reads_finished_runs(tmp_path, workers):
    out = tmp_path / "c"
    command = [
        "compare", "digits", "--methods", "base,gce,logcomp", "--hyper", "gce.q=0.5", "--seeds", "2", "--noise", "pair:0.3",
        *SMALL, "--workers", workers, "--out", str(out),
    ]  # fmt: skip
    said = output(*command)
    assert "minus base (95 %)" in said
    assert "gce" in said
    stored = json.loads((out / "comparison.json").read_text())
    assert len(stored["runs"]) == 6
    assert {r["hyper"].get("q") for r in stored["runs"] if r["method"] == "gce"} == {0.5}
    table = pd.read_csv(out / "comparison.csv")
    assert table["method"].tolist() == ["base", "gce", "logcomp"]
    rows = (out / "comparison.md").read_text().splitlines()
    assert [line.split(" | ")[2] for line in rows[2:]] == table["last epoch (%)"].tolist()
    rows = (out / "comparison.tex").read_text().splitlines()[4:7]
    assert [line.split(" & ")[2].replace(r"$\pm$", "±") for line in rows] == table["last epoch (%)"].tolist()
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    written = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/result.json")}
    # One run is lost before its end; asked again, only that one is trained, and the table is the same.
    lost = sorted(written)[0]
    lost.unlink()
    assert output(*command) == said
    assert {p for p in written if p.stat().st_mtime_ns != written[p]} == {lost}


def test_tune_prints_the_command_to_use(tmp_path):
    options = ["--method", "gce", "--noise", "pair:0.3", *SMALL, "--workers", "1", "--out", str(tmp_path)]
    command = ["tune", "digits", *options]
    said = output(*command, "--trials", "2")
    (line,) = [line.partition("compensate ")[2] for line in said.splitlines() if line.startswith("use it:")]
    assert "--method gce --noise pair:0.3 --model mlp --epochs 2 --limit 150" in line
    assert "--hyper q=" in line
    again = output(*shlex.split(line), "--out", str(tmp_path / "again"))
    assert "gce on mlp, 2 epochs" in again
    asked = json.loads((tmp_path / "again" / "config.json").read_text())["config"]
    assert asked["noise"] == "pair:0.3"
    assert asked["model_options"] == {"hidden": [8]}
    assert len(json.loads((tmp_path / "tuning.json").read_text())["trials"]) == 2
    output(*command, "--trials", "3")
    assert len(json.loads((tmp_path / "tuning.json").read_text())["trials"]) == 3
