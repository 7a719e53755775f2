"""The examples run, and what they print is true."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"
NEEDS = {"lightning_module": "lightning", "transformers_trainer": "transformers", "skorch_classifier": "skorch"}


@pytest.mark.filterwarnings(
    "ignore:.*treespec.*", "ignore:.*does not have many workers", "ignore:.*number of training batches"
)
@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_finds_wrong_labels(script, capsys):
    pytest.importorskip(NEEDS.get(script.stem, "torch"))
    runpy.run_path(str(script), run_name="__main__")
    share = re.search(r"most suspect labels (\d+)% are wrong", capsys.readouterr().out)
    assert share is not None
    assert int(share[1]) >= 85  # 20 to 30 would be chance
