"""What notebooks show: escaped, without anything fetched; and the example notebooks run."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import pprint
import sys
import tempfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import compensate
from compensate.auditing.api import audit
from compensate.extras import escape

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


def test_a_criterion_shows_its_equation() -> None:
    criterion = compensate.methods.logcomp(num_samples=10, num_classes=3)
    tags = Tags(criterion._repr_html_())
    assert tags.said == repr(criterion)
    assert tags.names == ["pre", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [('"><svg/onload=x>', "&quot;&gt;&lt;svg/onload=x&gt;"), ("\x1b[31m", "\ufffd[31m"), ("x" * 300, "x" * 199 + "…")],
)
def test_texts_are_escaped_cut_and_visible(text: str, said: str) -> None:
    assert escape(text) == said


CLAIMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "texts_csv": lambda found: found["after"] <= 2 and Path("report.html").is_file(),
    "table": lambda found: (
        np.isin(found["flagged"], found["wrong"]).mean() > 0.85 and found["judged"]["flagged"][[10, 40]].all()
    ),
    "image_folder": lambda found: (~found["right"]).sum() <= 3 and Path("report.html").is_file(),
    "embeddings_api": lambda found: np.isin(found["wrong"], found["flagged"]).mean() > 0.85,
    "training_loop": lambda found: (
        found["robust"] > found["plain"] + 0.03 and found["wrong"][found["suspects"].index].mean() > 0.85
    ),
    "huggingface_trainer": lambda found: found["wrong"][found["suspects"].index].mean() > 0.85,
    "annotators": lambda found: found["agreed"] > found["majority"] + 0.05,
    "preference_pairs": lambda found: found["left"] == 0 and len(found["clean"]) >= 175,
    "fine_tuning": lambda found: found["share"] > 0.6,
}
"""What each example shows, by the names that its cells define."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", CLAIMS)
def test_an_example_runs_and_its_claims_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = {"fine_tuning": "trl", "huggingface_trainer": "transformers"}
    if name in libraries:
        pytest.importorskip(libraries[name], reason=f"{libraries[name]} is not installed; the extra test has it")
    monkeypatch.chdir(tmp_path)
    book = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    stored = [cell["outputs"] for cell in code_cells(book)]
    found = run_notebook(book)
    assert CLAIMS[name](found)
    assert [[sorted(o) for o in outputs] for outputs in stored] == [
        [sorted(o) for o in cell["outputs"]] for cell in code_cells(book)
    ]
    assert not any(path in json.dumps(stored) for path in (*["/home/", "/root/", "/tmp/", "/work/"], str(tmp_path)))
    assert "At the end you have" in "".join(book["cells"][0]["source"])


def test_every_example_makes_a_claim_and_is_in_the_site() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(CLAIMS)
    listed = (NOTEBOOKS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f"- notebooks/{name}.md\n" in listed for name in CLAIMS)


def code_cells(book: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def run_notebook(book: dict[str, Any]) -> dict[str, Any]:
    """Runs the cells, with their outputs stored as a notebook has them; the names they define."""
    namespace: dict[str, Any] = {}
    for number, cell in enumerate(code_cells(book), 1):
        source, printed = "".join(cell["source"]), io.StringIO()
        tree = ast.parse(source)
        shows = isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";")
        last = tree.body.pop() if shows else None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, "cell", "exec"), namespace)
            value = (
                eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
                if isinstance(last, ast.Expr)
                else None
            )
        outputs: list[dict[str, Any]] = []
        if printed.getvalue():
            outputs.append(
                {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
            )
        if value is not None:
            shown = {"text/plain": pprint.pformat(value, width=100).splitlines(keepends=True)}
            if hasattr(value, "_repr_html_"):
                shown["text/html"] = value._repr_html_().splitlines(keepends=True)
            outputs.append({"data": shown, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
        cell |= {"execution_count": number, "outputs": outputs}
    return namespace


if (
    __name__ == "__main__"
):  # runs the examples and stores their outputs: python tests/auditing/test_notebook.py [NAME ...]
    for chosen in sys.argv[1:] or CLAIMS:
        written = json.loads((NOTEBOOKS / f"{chosen}.ipynb").read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            run_notebook(written)
        (NOTEBOOKS / f"{chosen}.ipynb").write_text(
            json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
