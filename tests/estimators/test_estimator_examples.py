"""Every gallery example runs, and the gallery page shows its picture."""

from __future__ import annotations

import runpy
from pathlib import Path

import matplotlib
import pytest

pytestmark = pytest.mark.slow

matplotlib.use("Agg")

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "estimators").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_saves_its_picture(path: Path, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    picture = tmp_path / "picture.png"
    module = runpy.run_path(str(path))
    module["main"](picture)
    plt.close("all")
    assert picture.read_bytes().startswith(b"\x89PNG")
    stored = module["PICTURE"]
    assert stored.stat().st_size < 80 * 1024
    page = "training.md" if path.stem == "classifier" else "research.md"
    assert f"img/{stored.name}" in (ROOT / "docs" / page).read_text(encoding="utf-8")
