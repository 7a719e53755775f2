"""What notebooks show: escaped, without anything fetched; and the example notebook runs."""

from __future__ import annotations

import ast
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import compensate
from compensate.auditing.api import audit
from compensate.extras import escape
from compensate.training.comparison import Comparison, Row

NOTEBOOKS = Path(__file__).parents[2] / "examples"


class Tags(HTMLParser):
    """The tags and the text of some HTML; every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.said = ""
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = ["awful dull boring slow bad", "lovely bright funny warm fine"]
    rows = [
        (
            f"a film so {' '.join(rng.permutation(words[k % 2].split()))} number {k} <script>alert(1)</script>\u202e",
            ("<i>a</i>", "b")[(k % 2) ^ (k in (2, 9, 30))],
        )
        for k in range(60)
    ]
    return pd.DataFrame(rows, columns=["text", "label"])


def test_an_audit_shows_share_suspects_and_matrix_and_obeys_nothing() -> None:
    found = audit(frame(), encoder="none")
    tags = Tags(found._repr_html_())
    assert set(tags.names) <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert "of labels look wrong" in tags.said
    assert "<script>alert(1)</script>\ufffd" in tags.said
    assert "<i>a</i>" in tags.said
    assert tags.names.count("table") == 2
    assert repr(found).startswith("Audit of the data: 60 labels")


def test_images_are_shown_small_and_embedded() -> None:
    x = np.random.default_rng(0).integers(0, 60, size=(40, 3, 8, 8)).astype(np.uint8)
    x[1::2] += 150
    tags = Tags(audit(x, np.arange(40) % 2, encoder="none")._repr_html_())
    sources = [value for name, value in tags.attributes if name == "src"]
    assert len(sources) == 10
    assert all(str(source).startswith("data:image/png;base64,") for source in sources)


def test_quantities_have_no_matrix() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    tags = Tags(audit(x, 2 * x[:, 0] + 0.1)._repr_html_())
    assert tags.names.count("table") == 1
    assert "of values look wrong" in tags.said


def test_a_criterion_shows_its_equation() -> None:
    criterion = compensate.methods.logcomp(num_samples=10, num_classes=3)
    tags = Tags(criterion._repr_html_())
    assert tags.said == repr(criterion)
    assert tags.names == ["pre", "b"]


def test_a_comparison_is_a_table() -> None:
    rows = Comparison(
        [
            Row("<base>", 2, (0.9, 0.01), (0.92, 0.01), None),
            Row("logcomp", 1, (0.95, math.nan), (0.95, math.nan), (0.05, math.nan, math.nan)),
        ]
    )
    tags = Tags(rows._repr_html_())
    assert "<base>" in tags.said
    assert "90.0% ± 1.0%" in tags.said
    assert "+5.0" in tags.said
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [('"><svg/onload=x>', "&quot;&gt;&lt;svg/onload=x&gt;"), ("\x1b[31m", "\ufffd[31m"), ("x" * 300, "x" * 199 + "…")],
)
def test_texts_are_escaped_cut_and_visible(text: str, said: str) -> None:
    assert escape(text) == said


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Runs a cell; the value of its last expression, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


@pytest.mark.slow
def test_the_example_notebook_runs_and_its_claims_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run_notebook("audit.ipynb")
    assert "of labels look wrong" in shown[1]._repr_html_()
    precision, recall = shown[2]
    assert precision > 0.9
    assert recall > 0.9
    assert shown[4] > 100
    assert "S(f(x_i) + du_i)" in shown[5]._repr_html_()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_notebook_on_fine_tuning_runs_and_its_claims_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl", reason="TRL is not installed; the extra test has it")
    monkeypatch.chdir(tmp_path)
    shown = run_notebook("fine_tuning.ipynb")
    assert "of labels look wrong" in shown[1]._repr_html_()
    precision, recall = shown[2]
    assert min(precision, recall) > 0.9
    assert sum(shown[3]) == 200
    assert shown[-1] > 0.6


def run_notebook(name: str) -> list[Any]:
    """What the cells of an example show."""
    book = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))
    assert (book["nbformat"], book["metadata"]["kernelspec"]["name"]) == (4, "python3")
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells), "outputs are not stored"
    namespace: dict[str, Any] = {}
    return [run_cell("".join(cell["source"]), namespace) for cell in cells]
