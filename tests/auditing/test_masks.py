"""Images with masks: regions that look wrong, and masks written back with those regions changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_review_round_trip import write_masks

from compensate.auditing.api import audit
from compensate.auditing.decisions import Correction
from compensate.auditing.labels.regions import (
    NEIGHBOR_WEIGHT,
    cell_features,
    pixels_of,
    read_pixels,
    runs_in,
    smooth_over_neighbors,
)
from compensate.auditing.noise_model import judge
from compensate.auditing.result import apply_corrections
from compensate.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_masks(tmp_path_factory.mktemp("masks"))


def test_the_missing_half_is_found_and_put_back_and_other_masks_are_the_same_bytes(
    folder: Path, tmp_path: Path
) -> None:
    found = audit(folder, encoder="none")
    worst = found.suspects.iloc[0]
    assert worst["file"] in ("02.png", "05.png", "09.png")
    assert (worst["file"], worst["given"], worst["suggested"]) == (f"{worst['index']:02d}.png", "0", "1")
    assert 50 <= worst["pixels"] <= 90
    decided = [c for c in found.accepted(0.5) if c.part == found.part(int(found.log_odds.argmax()))]
    done = found.apply(decided, tmp_path / "fixed")
    assert (done.changed, done.checked) == (1, True)
    for path in sorted((folder / "masks").iterdir()):
        same = path.read_bytes() == (tmp_path / "fixed" / path.name).read_bytes()
        assert same == (path.name != worst["file"])
    after, before = (read_pixels(top / worst["file"]).sum() for top in (tmp_path / "fixed", folder / "masks"))
    assert after > 1.5 * before
    found.report(tmp_path / "page.html")
    assert "image" in (tmp_path / "page.html").read_text()


def test_runs_name_pixels_and_back() -> None:
    inside = np.random.default_rng(0).random((7, 9)) < 0.4
    assert (pixels_of(runs_in(inside), inside.shape) == inside).all()
    with pytest.raises(InputError, match="of another mask"):
        pixels_of(((60, 9),), (7, 9))


def test_features_of_a_cell_are_finite_for_any_size() -> None:
    assert np.isfinite(cell_features(np.zeros((5, 7, 3), np.float32), 2)).all()
    assert len(cell_features(np.zeros((5, 7, 3), np.float32), 2)) == 12


def test_a_palette_stays(folder: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    masks.mkdir()
    image = Image.fromarray(np.zeros((4, 4), np.uint8)).convert("P")
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.save(masks / "a.png")
    made = [Correction(0, "0", "accept", "1", part="region 0+3 a.png")]
    apply_corrections(masks, made, tmp_path / "out")
    with Image.open(tmp_path / "out" / "a.png") as fixed:
        assert fixed.mode == "P"
        assert (fixed.getpalette() or [])[:6] == [10, 20, 30, 200, 100, 50]
        assert np.asarray(fixed).ravel()[:4].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("part", "given", "label", "said"),
    [
        ("region 0+3 no.png", "0", "1", "has not"),
        ("region 0+3 00.png", "1", "0", "differs from the reviewed data"),
        ("region 0+3 00.png", "0", "cat", "not a class of a mask"),
        ("region 0-3 00.png", "0", "1", "names no part"),
    ],
)
def test_a_correction_that_fits_nothing_is_refused(
    folder: Path, tmp_path: Path, part: str, given: str, label: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        apply_corrections(folder / "masks", [Correction(0, given, "accept", label, part=part)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cell_is_judged_together_with_those_around_it() -> None:
    rng = np.random.default_rng(0)
    grids, kept = [(4, 5), (3, 3)], np.arange(29) % 7 != 0
    log_q = np.log(rng.dirichlet([1, 1], int(kept.sum())))
    before = judge(log_q, rng.integers(0, 2, int(kept.sum())))
    after = smooth_over_neighbors(before, kept, grids)
    odds = np.full(29, np.nan)
    odds[kept] = before.log_odds
    expected, start = [], 0
    for rows, columns in grids:
        grid = odds[start : start + rows * columns].reshape(rows, columns)
        start += rows * columns
        for y in range(rows):
            for x in range(columns):
                around = np.nanmean(grid[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2])
                expected.append(NEIGHBOR_WEIGHT * (grid[y, x] + around))
    shift = after.log_odds - np.array(expected)[kept]
    np.testing.assert_allclose(shift, shift[0], atol=1e-5)
    assert after.p_error.mean() == pytest.approx(before.share.value, abs=1e-4)


def test_malformed_masks_are_refused_with_the_file(tmp_path: Path) -> None:
    folder = write_masks(tmp_path)
    masks = folder / "masks"
    for pixels, said in (((5, 5), r"00\.png has 5 x 5 pixels"), ((24, 24, 3), "mode RGB")):
        Image.fromarray(np.zeros(pixels, np.uint8)).save(masks / "00.png")
        with pytest.raises(InputError, match=said):
            audit(folder)
    (masks / "00.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="cannot be read as a mask"):
        audit(folder)
    (masks / "00.png").rename(masks / "other.png")
    with pytest.raises(InputError, match="no image of that name"):
        audit(folder / "images", masks)
