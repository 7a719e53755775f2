"""The grid: it fits a terminal, its page holds every cell, and the lines that it shows build what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import compensate
from compensate import compose
from compensate.core.taxonomy import Taxonomy
from compensate.methods.composition import cells, why_not
from experiments.taxonomy import TRIAL_SIZES, grid_cells, write_grid_page

ROOT = Path(compensate.__file__).parents[2]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "grid.html"
    assert write_grid_page(path) == sum(why_not(cell) is None for cell in cells())
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def content(page):
    return json.loads(re.search(r"const content = (\{.*\});\n", page).group(1).replace("<\\/", "</"))


def test_the_page_holds_every_cell_once_in_every_direction(content):
    places = {(c["target"], way, c["inference"], c["level"]) for c in content["cells"] for way in c["ways"]}
    assert places == {tuple(cell) for cell in cells()}
    assert len(content["cells"]) * 3 == len(places)
    for cell in content["cells"]:
        for way, what in cell["ways"].items():
            assert what["reason"] == why_not(Taxonomy(cell["target"], way, cell["inference"], cell["level"]))
            assert ("line" in what) == (what["reason"] is None)


def test_no_cell_with_a_published_method_is_refused():
    refused = [
        (row.name, cell.reasons[row.taxonomy.direction])
        for cell in grid_cells()
        for row in cell.methods
        if cell.reasons[row.taxonomy.direction] is not None
    ]
    assert refused == []


def test_lines_build_the_criterion_that_is_shown(content):
    known = {"compose": compose, "counts": TRIAL_SIZES["class_counts"]}
    for cell in content["cells"][::5]:
        for way, what in cell["ways"].items():
            if what["reason"] is None:
                made = eval(what["line"], dict(known))
                assert made.taxonomy.target == cell["target"]
                assert made.taxonomy.direction == way
                assert str(made).split("\n")[0] == what["is"].split("\n")[0]


def test_the_page_of_the_documentation_is_made_from_the_table(page):
    assert (ROOT / "docs" / "taxonomy-grid.html").read_text("utf-8") == page, "run `make docs`"
