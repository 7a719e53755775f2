"""The wheel, its optional libraries, and the hooks of other tools."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
import torch
import typer.main

import compensate
from compensate import InputError
from compensate.cli import app
from compensate.training import Config

# Optional libraries
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


class Hidden(MetaPathFinder):
    """Some libraries are not there."""

    def __init__(self, *libraries):
        self.libraries = libraries

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.libraries:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def hide(monkeypatch):
    """A function that hides libraries for the length of a test."""

    def hidden(*libraries):
        for name in [name for name in sys.modules if name.split(".")[0] in libraries]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, "meta_path", [Hidden(*libraries), *sys.meta_path])

    return hidden


def name_of(requirement):
    return re.match(r"[\w-]+", requirement)[0].lower()


def run_without(hidden, code, folder):
    """Runs code in a new interpreter in which some libraries are not there."""
    hide = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(hidden)}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
"""
    done = subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("library", "extra", "function", "arguments"),
    [
        ("matplotlib", "plots", "experiments.figures.plots.plot_change_by_class", (torch.zeros(3),)),
        ("matplotlib", "plots", "compensate.estimators.common.axes", (None, "title")),
        ("matplotlib", "plots", "compensate.training.comparison.plot", ({"base": [[0.5, 0.6]]}, Path("never.png"))),
        ("optuna", "tune", "compensate.training.comparison.open_study", (Path("never"), "study", 0)),
        ("accelerate", "accelerate", "compensate.training.fitting.tracking", (["tensorboard"], None, Config())),
        ("pyarrow", "parquet", "compensate.data.parquet.read_arrow", (Path(__file__),)),
    ],
)
def test_a_missing_library_is_named_with_the_extra_that_installs_it(
    hide, monkeypatch, tmp_path, library, extra, function, arguments
):
    monkeypatch.chdir(tmp_path)
    module, _, name = function.rpartition(".")
    task = getattr(importlib.import_module(module), name)
    hide(library)
    message = rf'needs {library}, which is not installed: pip install "compensate\[{extra}\]"'
    with pytest.raises(InputError, match=message), ExitStack() as stack:
        stack.enter_context(task(*arguments))
    assert not list(tmp_path.iterdir()), "nothing was begun"
    assert library in {name_of(requirement) for requirement in EXTRAS[extra]}


def test_every_extra_that_a_message_names_exists():
    named = set()
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"):
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r"compensate\[(\w+)\]", text)) | set(re.findall(r'require\(.*, "(\w+)"\)', text))
    assert named >= {"plots", "tune", "parquet", "cluster", "encoders"}
    assert named <= set(EXTRAS)


def test_the_criterion_and_every_method_need_torch_and_numpy_alone(tmp_path):
    others = {"scikit-learn": "sklearn", "pillow": "PIL"}
    required = {name_of(requirement) for requirement in PROJECT["dependencies"]} - {"torch", "numpy"}
    hidden = {others.get(name, name) for name in required} | {"matplotlib", "accelerate", "joblib"}
    code = """
import torch, compensate, compensate.terms
assert len(compensate.METHODS) > 40 and callable(compensate.compose) and callable(compensate.meta_step)
criterion = compensate.methods.logcomp(num_samples=4, num_classes=3)
logits = torch.zeros(4, 3, requires_grad=True)
criterion(logits, torch.tensor([0, 1, 2, 0]), torch.arange(4)).backward()
assert logits.grad.abs().sum() > 0
"""
    run_without(hidden, code, tmp_path)


@pytest.mark.slow
def test_the_command_line_and_the_audit_need_no_extra(tmp_path):
    brought = {name_of(r) for name, rs in EXTRAS.items() for r in rs if name not in ("test", "lint", "docs", "bench")}
    hidden = brought - {name_of(r) for r in PROJECT["dependencies"]}
    code = """
from compensate import audit
from compensate.cli import apply, audit as _, check, compare, consensus, review, train
from compensate.data import digits
found = audit(digits().subset(range(100)), encoder="none")
assert len(found.index) == 100
found.report("report.html")
"""
    assert {"matplotlib", "optuna", "ray", "accelerate", "pyarrow"} <= hidden
    run_without(hidden, code, tmp_path)


# Wheel contents
pytest.importorskip("hatchling")


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> set[str]:
    """Files of the wheel, built without a network."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = out.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def tracked() -> set[str]:
    """Files of the package that belong to the project."""
    done = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode or not done.stdout:
        pytest.skip("not a git checkout")
    return {line.removeprefix("src/") for line in done.stdout.splitlines() if (ROOT / line).exists()}


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(names):
    assert tracked() - names == set()


@pytest.mark.slow
def test_page_data_types_and_license_are_in_the_wheel(names):
    assert "compensate/py.typed" in names
    assert sum(name.startswith("compensate/auditing/page/assets/") for name in names) >= 10
    assert any(name.endswith("LICENSE") for name in names)


# Check hooks
yaml = pytest.importorskip("yaml", reason="PyYAML comes with the documentation's tools")
OPTIONS = {name for p in typer.main.get_command(app).commands["check"].load().params for name in p.opts}  # type: ignore[attr-defined]


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


# Workflows


def test_the_version_is_in_one_place_and_cited() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    assert str(cited) == compensate.__version__
    assert PROJECT["dynamic"] == ["version"]
