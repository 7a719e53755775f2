"""What is public is listed, explained and shown by an example; the site of the documentation builds."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compensate.methods import METHODS

ROOT = Path(__file__).parent.parent
PACKAGES = ("compensate", "compensate.data", "compensate.models", "compensate.training", "compensate.estimators",
            "compensate.integrations", "compensate.encoders")  # fmt: skip
NAMES = [
    pytest.param(package, name, id=f"{package}.{name}")
    for package in PACKAGES
    for name in importlib.import_module(package).__all__
]


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_a_public_name_has_a_docstring_with_an_example(package, name):
    thing = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return
    text = inspect.getdoc(thing) or ""
    assert len(text.splitlines()[0]) >= 12, "says what it is"
    assert ">>>" in text, "shows how it is used"


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda row: row.name)
def test_a_method_has_an_equation_and_an_example(row):
    text = inspect.getdoc(row.build) or ""
    assert ".. math::" in text
    assert ">>>" in text


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
    assert "<math" in (tmp_path / "concepts.html").read_text(encoding="utf-8"), "formulas are drawn by the browser"
    reference = (tmp_path / "reference" / "core.html").read_text(encoding="utf-8")
    assert all(f'id="compensate.{name}"' in reference for name in ("Compensated", "Sample", "swap", "meta_step"))
