"""What is public is listed, explained and shown by an example; the site of the documentation builds."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import compensate

ROOT = Path(__file__).parent.parent
PACKAGES = ("compensate", "compensate.terms", "compensate.data", "compensate.models", "compensate.training",
            "compensate.estimators", "compensate.integrations", "compensate.encoders")  # fmt: skip
AT_THE_TOP = {"METHODS", "Audit", "Compensated", "InputError", "__version__", "audit", "compose", "meta_step", "methods",
              "swap", "terms"}  # fmt: skip
PAGES = {"compensate": "core", "compensate.models": "data", "compensate.encoders": "data"}
"""Pages of the reference that are not named after their package."""


def public(package):
    """The classes and functions of a package, by name."""
    module = importlib.import_module(package)
    things = {name: getattr(module, name) for name in module.__all__}
    return {name: thing for name, thing in things.items() if inspect.isclass(thing) or inspect.isfunction(thing)}


def test_the_names_at_the_top_are_few_and_typed():
    assert set(compensate.__all__) == AT_THE_TOP, (
        "a new name belongs to compensate.terms or to a package, or is added here"
    )
    tree = ast.parse(Path(compensate.__file__).read_text(encoding="utf-8"))
    typed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed >= AT_THE_TOP, "a type checker sees the imports alone"
    assert set(dir(compensate)) >= AT_THE_TOP


def test_the_function_audit_and_the_package_auditing_are_two_things_in_any_order_of_import():
    code = "import compensate.auditing.api, compensate; assert callable(compensate.audit); from compensate import audit; assert callable(audit)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert inspect.isfunction(compensate.audit)
    assert inspect.ismodule(compensate.auditing)


def test_importing_the_package_or_the_audit_imports_neither_pytorch_nor_other_heavy_libraries():
    heavy = {
        *[
            "torch",
            "numpy",
            "scipy",
            "pandas",
            "sklearn",
            "matplotlib",
            "PIL",
            "accelerate",
            "optuna",
            "typer",
            "rich",
            "jinja2",
            "lightning",
        ]
    }
    heavy |= {*["pytorch_lightning", "transformers", "datasets", "skorch", "ray"]}
    code = f"import sys, compensate; assert not {heavy} & {{*sys.modules}}; compensate.audit, compensate.Audit; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_have_a_docstring_with_an_example(package):
    found = public(package)
    assert found
    for name, thing in found.items():
        text = inspect.getdoc(thing) or ""
        assert len(text.splitlines()[0]) >= 12, f"{name} says what it is"
        assert ">>>" in text or name == "Audit", f"{name} shows how it is used"  # the example of audit shows an Audit


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed")
def test_the_site_builds_strictly_and_needs_no_network(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "WARN" in line)
    pages = [path for path in tmp_path.rglob("*.html") if path.name != "404.html"]
    assert len(pages) >= 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img)[^>]* src="https?:', text), f"{page.name} loads something from elsewhere"
        assert not re.search(r'<link[^>]* rel="stylesheet"[^>]* href="https?:', text)
    assert "<math" in (tmp_path / "research.html").read_text(encoding="utf-8"), "formulas are drawn by the browser"
    for package in PACKAGES:
        page = tmp_path / "reference" / f"{PAGES.get(package, package.split('.')[-1])}.html"
        reference = page.read_text(encoding="utf-8") + (tmp_path / "reference" / "audit.html").read_text(
            encoding="utf-8"
        )
        missing = [name for name in public(package) if not re.search(rf'id="{package}[\w.]*\.{name}"', reference)]
        assert not missing, f"{page.name} leaves out {missing}"
