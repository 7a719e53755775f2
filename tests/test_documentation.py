"""What the documentation shows runs, and what it claims is stored."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


# What Lightning says of loaders as small as those of an example, and of its own use of torch; and TRL of transformers.
@pytest.mark.filterwarnings(
    "ignore:.*gradient_checkpointing",
    "ignore:.*treespec.*",
    "ignore:.*does not have many workers",
    "ignore:.*number of training batches",
)
@pytest.mark.usefixtures("small_learners")
@pytest.mark.parametrize("block", BLOCKS)
def test_code_blocks_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if re.search(r"^import .*\btrl\b", block, re.MULTILINE):
        pytest.importorskip("trl", reason="TRL is not installed; the extra test has it")
    namespace: dict[str, object] = {}
    exec(compile(block, "block", "exec"), namespace)
    assert namespace


def test_the_page_of_methods_is_made_from_the_table(tmp_path):
    from compensate.cli.methods import write_pages

    write_pages(tmp_path / "methods.md")
    assert (tmp_path / "methods.md").read_text() == (ROOT / "docs" / "methods.md").read_text(), "run `make docs`"


def test_the_pages_of_results_are_made_from_the_stored_runs():
    from experiments.pages import DETAILS, details_page, results_page

    assert results_page(ROOT / "results") == (ROOT / "docs" / "results.md").read_text(), "run `make docs`"
    assert details_page(ROOT / "results") == (ROOT / "docs" / DETAILS).read_text(), "run `make docs`"


def test_integrations_are_imported_without_their_libraries():
    """And the first use of one says what to install."""
    code = """
import importlib, sys
for name in ("lightning", "transformers", "datasets", "skorch"):
    sys.modules[name] = None  # as if it were not installed
for module in ("lightning", "transformers", "skorch", "accelerate"):
    found = importlib.import_module(f"compensate.integrations.{module}")
    for name in ("CompensationCallback", "CompensatedTrainer", "CompensatedNet"):
        if hasattr(found, name):
            try:
                getattr(found, name)(None)
            except ValueError as error:
                print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.findall(r'pip install "compensate\[(.*)\]"', done.stdout) == ["lightning", "hf", "skorch"]
