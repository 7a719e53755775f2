"""The wheel holds all that the package reads at run time, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


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


def test_every_file_of_the_package_is_in_the_wheel(names):
    assert tracked() - names == set()


def test_page_data_types_and_license_are_in_the_wheel(names):
    assert "compensate/py.typed" in names
    assert sum(name.startswith("compensate/auditing/page/assets/") for name in names) >= 10
    assert any(name.endswith("LICENSE") for name in names)
