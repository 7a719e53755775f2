"""Images with masks: which regions of a mask look wrong.

A mask is a PNG with the number of a class in each pixel; 255 is void and not judged. Images are looked at in square cells: their color, its mean
and deviation in two neighborhoods, and their place. A cell is judged by models that did not learn from its image. Neighboring cells that
look wrong in the same way are one suspect; what is left of a class in an image is another.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from compensate.auditing.execution import LOCAL, Execution
from compensate.auditing.labels.base import check_given, part_of, runs_of
from compensate.auditing.learners import FOLDS, Steps, View, assign_folds, judge_view, steps_of
from compensate.auditing.noise_model import Verdict, judge, offset_of_mean, pool, shares
from compensate.auditing.result import Provenance, build_audit
from compensate.data.dataset import UNLABELED, Dataset, Ints, Singles, Source
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.auditing.decisions import Applied, Correction
    from compensate.auditing.page.model import Content
    from compensate.auditing.result import Audit

VOID = 255
"""Pixels with this number are not judged."""

MASKS = ("masks", "mask", "annotations", "labels")
IMAGES = ("images", "image", "imgs", "img")
"""Names of the two folders."""

CELLS = 100_000
"""In all images together; cells are made larger until there are no more."""

SMALLEST = 2
"""Pixels on a side of a cell at least: single pixels say little of themselves."""

SCALES = (3, 9)
"""Cells on a side of the two neighborhoods."""

CHANGED = 0.5
"""Neighbors that are wrong with at least this probability, and all in the same way, are one suspect."""

MOST_CLASSES = 100

JOINED = 0.75
"""What the log odds of a cell count, and what the mean of those around it counts: errors of masks are regions. Chosen on five draws each of shapes
and digit canvases (seeds 10 to 14 of `benchmarks.kinds`), where the sum found errors better than the first alone, and flags were right more often, or
more in number, than by weights of 0.5 or 1."""


@dataclass(frozen=True, eq=False)
class Masks:
    """Images (H, W, 3) from 0 to 1, their masks (H, W) and the masks' file names."""

    images: tuple[Singles, ...]
    masks: tuple[NDArray[np.uint8], ...]
    names: tuple[str, ...]

    def described(self) -> str:
        """What was read, in a few words."""
        return f"{len(self.masks)} masks, {len(self._classes())} classes"

    def _classes(self) -> list[int]:
        found = sorted({int(c) for mask in self.masks for c in np.unique(mask)} - {VOID})
        if not 2 <= len(found) <= MOST_CLASSES:
            raise InputError(
                f"the masks hold {len(found)} classes; expected 2 to {MOST_CLASSES}, each a number from 0 to 254 in the pixels of a PNG."
            )
        return found

    def cells(self, side: int) -> Ints:
        """The class of each cell of this side, as a place among the classes."""
        classes = self._classes()
        place = np.full(256, UNLABELED, np.int64)
        place[classes] = np.arange(len(classes))
        return np.concatenate([_majority(place[mask], side, len(classes)).ravel() for mask in self.masks])

    def judged(self, seed: int = 0, progress: Any = None, run: Execution = LOCAL) -> JudgedCells:
        """The verdict on each cell."""
        classes = self._classes()
        side = SMALLEST
        while sum(-(-m.shape[0] // side) * -(-m.shape[1] // side) for m in self.masks) > CELLS:
            side += 1
        given = self.cells(side)
        grids = [(-(-m.shape[0] // side), -(-m.shape[1] // side)) for m in self.masks]
        x = np.concatenate(list(run.map(cell_features, self.images, side)))
        image = np.repeat(np.arange(len(grids)), [rows * columns for rows, columns in grids])
        folds = assign_folds(np.zeros(len(grids), np.int64), seed=seed)[image]
        view = View("cells", x, x)
        steps = Steps(progress, steps_of(view, FOLDS))
        found = judge_view(view, given, folds, FOLDS, len(classes), seed=seed, steps=steps)
        log_q, weights = pool(found.log_p, given)
        kept = given != UNLABELED
        # Cells at the edge of an object look like errors in one direction. Directions that earn their numbers (Bayesian information criterion)
        # say how many errors there are; where they are is judged without them.
        directed = judge(log_q[kept], given[kept], simpler=0.5 * float(np.log(kept.sum())))
        plain = judge(log_q[kept], given[kept], simpler=np.inf)
        verdict = joined_with_neighbors(replace(plain, share=directed.share), kept, grids)
        return JudgedCells(
            side, tuple(map(str, classes)), tuple(grids), given, kept, verdict,
            {f"cells: {name}": weight for name, weight in shares(weights).items()},
        )  # fmt: skip

    def audit(self, data: Dataset, encoder: str | Path, *, seed: int, progress: Any, run: Any, **_: Any) -> Audit:
        """The audit of all regions."""
        from compensate.auditing.features import unused_encoder

        found = self.judged(seed, progress, run)
        verdict = found.verdict
        notes = unused_encoder(encoder, "the cells of images")
        regions = self._regions(found)
        return build_audit(
            data,
            data.source,
            labels="masks",
            classes=found.classes,
            index=np.arange(len(regions)),
            given=np.array([r.given for r in regions], np.int64),
            suggested=np.array([r.suggested for r in regions], np.int64),
            log_odds=np.array([r.score for r in regions]),
            p_error=np.array([r.p_error for r in regions]),
            evidence={"cells": np.array([float(r.cells) for r in regions])},
            noise_rate=verdict.share,
            ids=tuple(self.names[r.image] for r in regions),
            provenance=Provenance(
                seed=seed, folds=FOLDS, views=found.weights, by_chance=verdict.by_chance, masks=data.source.path,
                agreement=float((verdict.log_q.argmax(1) == found.given[found.kept]).mean()),
            ),
            notes=notes,
            parts=tuple(f"region {r.runs} {self.names[r.image]}" for r in regions),
            sample=np.array([r.image for r in regions], np.int64),
        )  # fmt: skip

    def _regions(self, found: JudgedCells) -> list[Region]:
        from scipy.ndimage import label

        changed, p, odds, suggested = (np.full(len(found.given), value, float) for value in (-1, 0, -99, 0))
        verdict = found.verdict
        changed[found.kept] = np.where(verdict.p_error >= CHANGED, verdict.suggested, -1)
        p[found.kept], odds[found.kept], suggested[found.kept] = verdict.p_error, verdict.log_odds, verdict.suggested
        regions: list[Region] = []
        start = 0
        for k, grid in enumerate(found.grids):
            here = slice(start, start + grid[0] * grid[1])
            start = here.stop
            given, new = found.given[here].reshape(grid), changed[here].reshape(grid).astype(int)
            for was in np.unique(given[given >= 0]).tolist():
                for becomes in np.unique(new[given == was]).tolist():
                    chosen = (given == was) & (new == becomes)
                    numbered, count = label(chosen) if becomes >= 0 else (chosen.astype(int), 1)
                    for n in range(1, count + 1):
                        cells = (numbered == n).ravel()
                        worst = int(np.where(cells, odds[here], -np.inf).argmax())
                        pixels = _pixels(cells.reshape(grid), found.side, self.masks[k]) & (
                            self.masks[k] == int(found.classes[was])
                        )
                        if pixels.any():
                            other = becomes if becomes >= 0 else int(suggested[here][worst])
                            # Of suspects that look alike, the larger one comes first.
                            score = odds[here][cells].mean() + np.log(cells.sum()) * (becomes >= 0)
                            error = float(p[here][cells].mean())
                            size, runs = int(cells.sum()), runs_in(pixels)
                            regions.append(Region(k, was, other, size, float(score), error, runs))
        return regions

    def shown(self, content: Content, audit: Audit, row: int) -> Content:
        """The image with the region outlined."""
        from compensate.auditing.page.model import thumbnail

        assert audit.sample is not None
        k = int(audit.sample[row])
        inside = pixels_of(part_of(audit.parts[row])[1], self.masks[k].shape)
        return replace(
            content, image=thumbnail(outlined(self.images[k], inside).transpose(2, 0, 1)), text=None, missing=""
        )


def joined_with_neighbors(verdict: Verdict, kept: NDArray[np.bool_], grids: Sequence[tuple[int, int]]) -> Verdict:
    r"""The verdict on cells that hold together with those around them.

    .. math:: s'_i = \lambda \Big( s_i + \frac{1}{|N_i|} \sum_{j \in N_i} s_j \Big) + a

    with the log odds :math:`s`, the cells :math:`N_i` of a square of three around the cell, itself among them, and :math:`a` such that the
    probabilities have the stated share for their mean.

    Args:
        verdict: on the cells that are kept.
        kept: (N,) which cells are judged.
        grids: rows and columns of the cells of each image.
    """
    from scipy.ndimage import uniform_filter

    odds, known = np.zeros(len(kept)), kept.astype(np.float64)
    odds[kept] = verdict.log_odds
    around = np.empty(len(kept))
    start = 0
    for rows, columns in grids:
        part = slice(start, start + rows * columns)
        total, count = (
            uniform_filter(values[part].reshape(rows, columns), 3, mode="constant").ravel() for values in (odds, known)
        )
        around[part] = total / np.maximum(count, 1e-9)
        start += rows * columns
    joined = JOINED * (odds + around)[kept]
    joined += offset_of_mean(joined, verdict.share.value)
    return replace(verdict, log_odds=joined, p_error=expit(joined))


@dataclass(frozen=True, eq=False)
class JudgedCells:
    """What is known of each cell: its side, the classes, rows and columns of each image, the given classes, which are judged, and how."""

    side: int
    classes: tuple[str, ...]
    grids: tuple[tuple[int, int], ...]
    given: Ints
    kept: NDArray[np.bool_]
    verdict: Verdict
    weights: dict[str, float]


@dataclass(frozen=True)
class Region:
    """Pixels of one class in one image that are judged together."""

    image: int
    given: int
    suggested: int
    cells: int
    score: float
    p_error: float
    runs: str


def _majority(mask: Ints, side: int, classes: int) -> Ints:
    """The most frequent class of each cell; none where all is void."""
    h, w = -(-mask.shape[0] // side), -(-mask.shape[1] // side)
    padded = np.full((h * side, w * side), UNLABELED, np.int64)
    padded[: mask.shape[0], : mask.shape[1]] = mask
    cells = padded.reshape(h, side, w, side).transpose(0, 2, 1, 3).reshape(h, w, -1)
    counts = np.stack([(cells == c).sum(2) for c in range(classes)], 2)
    return np.where(counts.any(2), counts.argmax(2), UNLABELED)


def cell_features(image: Singles, side: int) -> Singles:
    """(cells, D) color, its mean and deviation in two neighborhoods, and place."""
    from scipy.ndimage import uniform_filter

    h, w = -(-image.shape[0] // side), -(-image.shape[1] // side)
    padded = np.pad(image, ((0, h * side - image.shape[0]), (0, w * side - image.shape[1]), (0, 0)), mode="edge")
    cells = padded.reshape(h, side, w, side, -1).mean((1, 3))
    found = [cells]
    for size in SCALES:
        mean = uniform_filter(cells, (size, size, 0), mode="nearest")
        square = uniform_filter(cells**2, (size, size, 0), mode="nearest")
        found += [mean, np.sqrt(np.maximum(square - mean**2, 0))]
    down, right = np.meshgrid(np.linspace(0, 1, h), np.linspace(0, 1, w), indexing="ij")
    found.append(np.stack([down, right], 2))
    return np.concatenate(found, 2).reshape(h * w, -1).astype(np.float32)


def _pixels(cells: NDArray[np.bool_], side: int, mask: NDArray[Any]) -> NDArray[np.bool_]:
    return cells.repeat(side, 0).repeat(side, 1)[: mask.shape[0], : mask.shape[1]]


def runs_in(pixels: NDArray[np.bool_]) -> str:
    """The runs of a region, row by row.

    >>> runs_in(np.array([[False, True], [True, False]]))
    '1+2'
    """
    steps = np.diff(np.concatenate([[0], pixels.ravel().astype(np.int8), [0]]))
    starts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return ",".join(f"{a}+{b - a}" for a, b in zip(starts.tolist(), ends.tolist(), strict=True))


def pixels_of(runs: str, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """The pixels of a region in a mask of this shape."""
    found = np.zeros(shape[0] * shape[1], bool)
    for start, length in runs_of(runs):
        if start + length > len(found):
            raise InputError(
                f"a region ends at pixel {start + length}, and the mask has {len(found)}; it is of another mask."
            )
        found[start : start + length] = True
    return found.reshape(shape[:2])


def outlined(image: Singles, inside: NDArray[np.bool_]) -> Singles:
    """An image with a region outlined, enlarged if it is small, and darkened around it."""
    times = max(1, 256 // max(image.shape[:2]))
    big = image.repeat(times, 0).repeat(times, 1)
    region = inside.repeat(times, 0).repeat(times, 1)
    around = np.pad(region, 1)
    inner = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    shown = np.where(region[..., None], big, 0.55 * big)
    shown[region & ~inner] = (1.0, 0.2, 0.6)
    return shown.astype(np.float32)


# --- reading --------------------------------------------------------------------------------------------------


def mask_folders(data: Any, labels: Any) -> tuple[Path, Path] | None:
    """The folders of images and of masks: ``labels`` is the second, or both lie in one folder under their usual names."""
    if not isinstance(data, (str, Path)) or not Path(data).is_dir():
        return None
    top = Path(data)
    if isinstance(labels, (str, Path)):
        return (top, Path(labels)) if Path(labels).is_dir() else None
    if labels is not None:
        return None
    images, masks = (next((top / name for name in names if (top / name).is_dir()), None) for names in (IMAGES, MASKS))
    return None if images is None or masks is None else (images, masks)


def read_masks(images: str | Path, masks: str | Path) -> Dataset:
    """Images and masks of two folders; a mask has the name of its image."""
    from compensate.auditing.digests import digest_file, digest_text
    from compensate.data.folder import is_image, name_in

    images, masks = Path(images), Path(masks)
    files = {p.relative_to(images).with_suffix("").as_posix(): p for p in sorted(images.rglob("*")) if is_image(p)}
    found = sorted(p for p in masks.rglob("*") if p.suffix.lower() == ".png")
    if not found:
        raise InputError(
            f"{masks} holds no PNG; expected a mask for each image, with the number of a class in each pixel."
        )
    pictures, numbers, names = [], [], [name_in(path, masks) for path in found]
    for path in found:
        name = path.relative_to(masks).with_suffix("").as_posix()
        if name not in files:
            raise InputError(f"{path} has no image of that name in {images}; expected one for each mask.")
        picture, mask = read_picture(files[name]), read_mask(path)
        if picture.shape[:2] != mask.shape:
            raise InputError(
                f"{path} has {mask.shape[1]} x {mask.shape[0]} pixels, and its image {picture.shape[1]} x {picture.shape[0]}; they must be alike."
            )
        pictures.append(picture)
        numbers.append(mask)
    if len(names) < FOLDS:
        raise InputError(
            f"{masks} holds {len(names)} masks; an audit needs {FOLDS} or more, for it judges each by the others."
        )
    digest = digest_text(int(_digest([digest_file(path) for path in found])[:16], 16))
    parts = Masks(tuple(pictures), tuple(numbers), tuple(names))
    rows = np.array(names, dtype=object)
    source = Source(kind="images", title=masks.parent.name, path=str(masks), digest=digest)
    return Dataset(rows, np.zeros(len(rows), np.int64), ("masks",), ids=rows, raw=rows, source=source, parts=parts)


def _digest(digests: Sequence[str]) -> str:
    import hashlib

    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def read_picture(path: Path) -> Singles:
    """An image (H, W, 3) from 0 to 1."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            return (np.asarray(opened.convert("RGB")) / 255).astype(np.float32)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as an image ({error}).") from error


def read_mask(path: Path) -> NDArray[np.uint8]:
    """The class numbers (H, W) of a mask."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            if opened.mode not in ("L", "P", "1"):
                raise InputError(
                    f"{path} is a PNG of mode {opened.mode}; a mask has one number a pixel (gray or palette), not colors. Turn colors into "
                    "class numbers first."
                )
            return np.asarray(opened).astype(np.uint8)
    except InputError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as a mask ({error}).") from error


# --- writing --------------------------------------------------------------------------------------------------


def apply_regions(data: Path, decided: Sequence[Correction], out: Path | None, *, force: bool) -> Applied:
    """Writes a folder of masks with the decided regions changed; masks without a change are copied byte for byte."""
    from compensate.auditing.decisions import Applied, check_source
    from compensate.auditing.digests import digest_file, digest_text
    from compensate.files import replaced_folder

    found = mask_folders(data, None)
    top = found[1] if found else data
    out = data.parent / f"{data.name}.fixed" if out is None else out
    files = sorted(p for p in top.rglob("*") if p.suffix.lower() == ".png") if top.is_dir() else []
    if not files:
        raise InputError(f"{data} is no folder of masks; give the folder whose masks were audited.")
    if out.exists() and not (force and out.is_dir()):
        raise InputError(f"{out} is there already; name another folder, or overwrite it with force=True (--force).")
    if out.absolute() in (top.absolute(), *top.absolute().parents):
        raise InputError(f"{out} holds the masks themselves; name another folder.")
    digest = digest_text(int(_digest([digest_file(path) for path in files])[:16], 16))
    checked = check_source(decided, digest, str(top))
    changed: dict[str, NDArray[np.uint8]] = {}
    before = {path.relative_to(top).as_posix(): path for path in files}
    for c in decided:
        _, runs, name = part_of(c.part)
        if name not in before:
            raise InputError(f'a correction is about "{name[:60]}", which {top} has not.')
        held = read_mask(before[name])
        inside = pixels_of(runs, held.shape)
        check_given(top / name, c, " and ".join(map(str, np.unique(held[inside]).tolist())))
        if c.changes:
            if not (c.label.strip().isascii() and c.label.strip().isdigit() and int(c.label) < VOID):
                raise InputError(f'"{c.label[:40]}" is no class of a mask; expected a number from 0 to 254.')
            changed.setdefault(name, held.copy())[inside] = int(c.label)
    with replaced_folder(out) as folder:
        for name, path in before.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name in changed:
                (folder / name).write_bytes(_png(path, changed[name]))
            else:
                shutil.copyfile(path, folder / name)
    skipped = sum(c.decision == "skip" for c in decided)
    number = sum(c.changes for c in decided)
    return Applied(out, len(files), number, len(decided) - number - skipped, skipped, checked)


def _png(path: Path, mask: NDArray[np.uint8]) -> bytes:
    """A PNG like the one at a path, with other numbers."""
    from PIL import Image

    with Image.open(path) as old:
        new = Image.fromarray(mask)
        if old.mode == "P":
            new.putpalette(old.getpalette() or [])
        elif old.mode == "1":
            new = new.point(lambda value: 255 * bool(value)).convert("1")
    packed = io.BytesIO()
    new.save(packed, "PNG")
    return packed.getvalue()
