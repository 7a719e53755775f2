"""Images with masks.

A mask is a PNG with the number of a class in each pixel; 255 is void and not judged. Images are divided into square cells, described by their color,
its mean and deviation in two neighborhoods, and their place. A cell is judged by models that did not learn from its image. Neighboring cells with
the same suggestion form one suspect; the rest of a class in an image forms another.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from compensate.auditing.content import thumbnail
from compensate.auditing.decisions import Applied, Correction
from compensate.auditing.digests import digest_file, digest_text
from compensate.auditing.execution import LOCAL, Execution
from compensate.auditing.features import Progress, unused_encoder
from compensate.auditing.findings import Address, Findings
from compensate.auditing.labels.base import (
    Group,
    Judged,
    Judging,
    LabelKind,
    Reader,
    Reading,
    applied,
    check_given,
    cross_fit,
    group_findings,
    provenance_of,
    suggestions,
)
from compensate.auditing.learners import FOLDS, View, assign_folds
from compensate.auditing.noise_model import Verdict, judge, offset_of_mean
from compensate.data.dataset import UNLABELED, Dataset, Ints, Singles, Source
from compensate.data.folder import is_image, name_in
from compensate.errors import InputError
from compensate.files import replaced_folder

if TYPE_CHECKING:
    from compensate.auditing.content import Content
    from compensate.auditing.result import Audit

VOID = 255
"""Pixels with this number are not judged."""

MASKS = ("masks", "mask", "annotations", "labels")
IMAGES = ("images", "image", "imgs", "img")
"""Names of the two folders."""

MAX_CELLS = 100_000
"""The largest number of cells in all images together; cells grow to keep it."""

MIN_SIDE = 2
"""Pixels on a side of a cell."""

SCALES = (3, 9)
"""Cells on a side of the two neighborhoods."""

MAX_CLASSES = 100

NEIGHBOR_WEIGHT = 0.75
"""The weight of the log odds of a cell, and of the mean of its neighborhood. Chosen on five draws each of shapes and digit canvases (seeds 10 to 14 of
`benchmarks.kinds`): the sum detected errors better than the cell alone, and its flags were right more often, or more in number, than with weights of
0.5 or 1."""

Runs = tuple[tuple[int, int], ...]
"""Start and length of runs of pixels, in row-major order."""


class Region(NamedTuple):
    """Pixels of a mask: its file, and the runs. The part of an address."""

    file: str
    runs: Runs


@dataclass(frozen=True, eq=False)
class Masks(LabelKind):
    """Images (H, W, 3) from 0 to 1, their masks (H, W) and the masks' file names."""

    images: tuple[Singles, ...]
    masks: tuple[NDArray[np.uint8], ...]
    names: tuple[str, ...]

    form: ClassVar[str] = "region"
    pattern: ClassVar[re.Pattern[str]] = re.compile(r"((?:\d{1,12}\+\d{1,12},?)+) (.+)", re.DOTALL)
    noun: ClassVar[str] = "masks"

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        return f"{len(self.masks)} masks, {len(self._classes())} classes"

    @classmethod
    def read(cls, data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
        folders = mask_folders(data, labels)
        return other(data, labels, options) if folders is None else read_masks(*folders)

    def _classes(self) -> list[int]:
        classes = sorted({int(c) for mask in self.masks for c in np.unique(mask)} - {VOID})
        if not 2 <= len(classes) <= MAX_CLASSES:
            raise InputError(
                f"the masks hold {len(classes)} classes; expected 2 to {MAX_CLASSES}, each a number from 0 to 254 in the pixels of a PNG."
            )
        return classes

    def cells(self, side: int) -> Ints:
        """The class of each cell of this side, as a place among the classes."""
        classes = self._classes()
        place = np.full(256, UNLABELED, np.int64)
        place[classes] = np.arange(len(classes))
        return np.concatenate([_majority(place[mask], side, len(classes)).ravel() for mask in self.masks])

    def judge(self, seed: int = 0, progress: Progress | None = None, run: Execution = LOCAL) -> Judged:
        """Judges each cell."""
        classes = self._classes()
        side = MIN_SIDE
        while sum(np.prod(_grid(mask, side)) for mask in self.masks) > MAX_CELLS:
            side += 1
        given = self.cells(side)
        grids = tuple(_grid(mask, side) for mask in self.masks)
        x = np.concatenate(list(run.map(cell_features, self.images, side)))
        image = np.repeat(np.arange(len(grids)), [rows * columns for rows, columns in grids])
        folds = assign_folds(np.zeros(len(grids), np.int64), seed=seed)[image]
        log_q, weights = cross_fit(View("cells", x, x), given, folds, len(classes), seed, progress)
        kept = given != UNLABELED
        # Cells at the edge of an object look like errors in one direction. Directions that pass the Bayesian information criterion
        # estimate the number of errors; the cells are judged without them.
        directed = judge(log_q[kept], given[kept], simpler=0.5 * float(np.log(kept.sum())))
        plain = judge(log_q[kept], given[kept], simpler=np.inf)
        verdict = smooth_over_neighbors(replace(plain, share=directed.share), kept, grids)
        return Judged(kept, tuple(map(str, classes)), given, verdict, weights, (), side, grids)

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        judged = self.judge(judging.seed, judging.progress, judging.run)
        groups, sizes = self._groups(judged)
        given = judged.given[judged.kept]
        return group_findings(
            groups,
            index=np.arange(len(groups)),
            classes=judged.classes,
            evidence={"cells": np.array(sizes, float)},
            noise_rate=judged.verdict.share,
            provenance=provenance_of(judged.verdict, given, judging.seed, judged.weights),
            notes=unused_encoder(judging.encoder, "the cells of images"),
            data=data,
        )

    def _groups(self, judged: Judged) -> tuple[list[Group], list[int]]:
        """Connected cells of one class with the same suggestion, the other cells of the class, and the number of cells in each group."""
        from scipy.ndimage import label

        verdict, kept = judged.verdict, judged.kept
        changed, p, odds, suggested = (np.full(len(kept), value, float) for value in (-1, 0, -99, 0))
        changed[kept], suggested[kept] = suggestions(verdict), verdict.suggested
        p[kept], odds[kept] = verdict.p_error, verdict.log_odds
        groups: list[Group] = []
        sizes: list[int] = []
        start = 0
        for k, grid in enumerate(judged.grids):
            here = slice(start, start + grid[0] * grid[1])
            start = here.stop
            given, new = judged.given[here].reshape(grid), changed[here].reshape(grid).astype(int)
            for old in np.unique(given[given >= 0]).tolist():
                of_class = self.masks[k] == int(judged.classes[old])
                for other in np.unique(new[given == old]).tolist():
                    chosen = (given == old) & (new == other)
                    numbered, count = label(chosen) if other >= 0 else (chosen.astype(int), 1)
                    for n in range(1, count + 1):
                        cells = numbered == n
                        pixels = cells.repeat(judged.side, 0).repeat(judged.side, 1)
                        runs = runs_in(pixels[: of_class.shape[0], : of_class.shape[1]] & of_class)
                        if not runs:
                            continue
                        inside, size = cells.ravel(), int(cells.sum())
                        worst = int(np.where(inside, odds[here], -np.inf).argmax())
                        # Larger suspects come first among equally suspect ones.
                        score = odds[here][inside].mean() + np.log(size) * (other >= 0)
                        address = Address(k, Region(self.names[k], runs))
                        best = other if other >= 0 else int(suggested[here][worst])
                        groups.append(
                            Group(address, self.names[k], old, best, float(score), float(p[here][inside].mean()))
                        )
                        sizes.append(size)
        return groups, sizes

    def show(self, content: Content, audit: Audit, row: int) -> Content:
        """The image with the region outlined."""
        k, (_, runs) = audit.addresses[row]
        image = outlined(self.images[k], pixels_of(runs, self.masks[k].shape))
        return replace(content, image=thumbnail(image.transpose(2, 0, 1)), text=None, missing="")

    @classmethod
    def address_columns(cls, addresses: Sequence[Address]) -> dict[str, list[Any]]:
        regions = [address.part for address in addresses]
        return {"file": [r.file for r in regions], "pixels": [sum(length for _, length in r.runs) for r in regions]}

    @classmethod
    def format(cls, address: Address) -> str:
        runs = ",".join(f"{start}+{length}" for start, length in address.part.runs)
        return f"{cls.form} {runs} {address.part.file}"

    @classmethod
    def address(cls, match: re.Match[str], row: int) -> Address:
        pairs = (run.split("+") for run in match[1].strip(",").split(","))
        return Address(row, Region(match[2], tuple((int(start), int(length)) for start, length in pairs)))

    @classmethod
    def fixed_name(cls, data: Path) -> Path:
        return data.parent / f"{data.name}.fixed"

    @classmethod
    def check_output(cls, data: Path, out: Path, force: bool) -> None:
        top, _ = _mask_files(data)
        if out.exists() and not (force and out.is_dir()):
            raise InputError(f"{out} is there already; name another folder, or overwrite it with force=True (--force).")
        if out.absolute() in (top.absolute(), *top.absolute().parents):
            raise InputError(f"{out} holds the masks themselves; name another folder.")

    @classmethod
    def digest(cls, data: Path) -> str:
        return _digest(_mask_files(data)[1])

    @classmethod
    def write_back(
        cls, data: Path, decided: Sequence[Correction], out: Path, reading: Reading, *, rematch: bool = False
    ) -> Applied:
        """Writes a folder of masks with the decided regions changed; masks without a change are copied."""
        top, files = _mask_files(data)
        before = {path.relative_to(top).as_posix(): path for path in files}
        changed: dict[str, NDArray[np.uint8]] = {}
        for c in decided:
            name, runs = cls.parse(c.part).part
            if name not in before:
                raise InputError(f'a correction is about "{name[:60]}", which {top} has not.')
            mask = read_mask(before[name])
            inside = pixels_of(runs, mask.shape)
            check_given(top / name, c, " and ".join(map(str, np.unique(mask[inside]).tolist())))
            if c.changes:
                if not (c.label.strip().isascii() and c.label.strip().isdigit() and int(c.label) < VOID):
                    raise InputError(f'"{c.label[:40]}" is not a class of a mask; expected a number from 0 to 254.')
                changed.setdefault(name, mask.copy())[inside] = int(c.label)
        with replaced_folder(out) as folder:
            for name, path in before.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                if name in changed:
                    (folder / name).write_bytes(_png(path, changed[name]))
                else:
                    shutil.copyfile(path, folder / name)
        return applied(out, decided, len(files), sum(c.changes for c in decided))


def smooth_over_neighbors(verdict: Verdict, kept: NDArray[np.bool_], grids: Sequence[tuple[int, int]]) -> Verdict:
    r"""Adds the neighbors of each cell to its verdict.

    .. math:: s'_i = \lambda \Big( s_i + \frac{1}{|N_i|} \sum_{j \in N_i} s_j \Big) + a

    with the log odds :math:`s`, the cells :math:`N_i` of the 3 x 3 square around the cell, itself included, and :math:`a` such that the mean
    probability is the estimated share.

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
    for grid in grids:
        here = slice(start, start + grid[0] * grid[1])
        start = here.stop
        total, count = (uniform_filter(values[here].reshape(grid), 3, mode="constant") for values in (odds, known))
        around[here] = (total / np.maximum(count, 1e-9)).ravel()
    smoothed = NEIGHBOR_WEIGHT * (odds + around)[kept]
    smoothed += offset_of_mean(smoothed, verdict.share.value)
    return replace(verdict, log_odds=smoothed, p_error=expit(smoothed))


def _grid(image: NDArray[Any], side: int) -> tuple[int, int]:
    """Rows and columns of the cells of an image."""
    return -(-image.shape[0] // side), -(-image.shape[1] // side)


def _majority(mask: Ints, side: int, classes: int) -> Ints:
    """The most frequent class of each cell; `UNLABELED` where all is void."""
    h, w = _grid(mask, side)
    padded = np.full((h * side, w * side), UNLABELED, np.int64)
    padded[: mask.shape[0], : mask.shape[1]] = mask
    cells = padded.reshape(h, side, w, side).transpose(0, 2, 1, 3).reshape(h, w, -1)
    counts = np.stack([(cells == c).sum(2) for c in range(classes)], 2)
    return np.where(counts.any(2), counts.argmax(2), UNLABELED)


def cell_features(image: Singles, side: int) -> Singles:
    """(cells, D) color, its mean and deviation in two neighborhoods, and place."""
    from scipy.ndimage import uniform_filter

    h, w = _grid(image, side)
    padded = np.pad(image, ((0, h * side - image.shape[0]), (0, w * side - image.shape[1]), (0, 0)), mode="edge")
    cells = padded.reshape(h, side, w, side, -1).mean((1, 3))
    features = [cells]
    for size in SCALES:
        mean = uniform_filter(cells, (size, size, 0), mode="nearest")
        square = uniform_filter(cells**2, (size, size, 0), mode="nearest")
        features += [mean, np.sqrt(np.maximum(square - mean**2, 0))]
    down, right = np.meshgrid(np.linspace(0, 1, h), np.linspace(0, 1, w), indexing="ij")
    features.append(np.stack([down, right], 2))
    return np.concatenate(features, 2).reshape(h * w, -1).astype(np.float32)


def runs_in(pixels: NDArray[np.bool_]) -> Runs:
    """The runs of a region, in row-major order.

    >>> runs_in(np.array([[False, True], [True, False]]))
    ((1, 2),)
    """
    steps = np.diff(np.concatenate([[0], pixels.ravel().astype(np.int8), [0]]))
    starts, ends = np.flatnonzero(steps == 1).tolist(), np.flatnonzero(steps == -1).tolist()
    return tuple((start, end - start) for start, end in zip(starts, ends, strict=True))


def pixels_of(runs: Runs, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """The pixels of a region in a mask of this shape."""
    inside = np.zeros(shape[0] * shape[1], bool)
    for start, length in runs:
        if start + length > len(inside):
            raise InputError(
                f"a region ends at pixel {start + length}, and the mask has {len(inside)}; it is of another mask."
            )
        inside[start : start + length] = True
    return inside.reshape(shape[:2])


def outlined(image: Singles, inside: NDArray[np.bool_]) -> Singles:
    """An image with a region outlined, enlarged if it is small, and darkened around the region."""
    times = max(1, 256 // max(image.shape[:2]))
    large = image.repeat(times, 0).repeat(times, 1)
    region = inside.repeat(times, 0).repeat(times, 1)
    around = np.pad(region, 1)
    inner = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    drawn = np.where(region[..., None], large, 0.55 * large)
    drawn[region & ~inner] = (1.0, 0.2, 0.6)
    return drawn.astype(np.float32)


# --- files ----------------------------------------------------------------------------------------------------


def mask_folders(data: Any, labels: Any) -> tuple[Path, Path] | None:
    """The folders of images and of masks: ``labels`` is the second, or both lie in one folder under their usual names."""
    if not isinstance(data, (str, Path)) or not Path(data).is_dir():
        return None
    top = Path(data)
    if labels is not None:
        return (top, Path(labels)) if isinstance(labels, (str, Path)) and Path(labels).is_dir() else None
    images, masks = (next((top / name for name in names if (top / name).is_dir()), None) for names in (IMAGES, MASKS))
    return None if images is None or masks is None else (images, masks)


def _mask_files(data: Path) -> tuple[Path, list[Path]]:
    """The folder of masks in or at a path, and its files."""
    folders = mask_folders(data, None)
    top = folders[1] if folders else data
    files = sorted(p for p in top.rglob("*") if p.suffix.lower() == ".png") if top.is_dir() else []
    if not files:
        raise InputError(f"{data} is not a folder of masks; give the folder whose masks were audited.")
    return top, files


def _digest(files: Sequence[Path]) -> str:
    content = "\n".join(digest_file(path) for path in files)
    return digest_text(int(hashlib.sha256(content.encode()).hexdigest()[:16], 16))


def read_masks(images: str | Path, masks: str | Path) -> Dataset:
    """Images and masks of two folders; a mask has the name of its image."""
    images, masks = Path(images), Path(masks)
    files = {p.relative_to(images).with_suffix("").as_posix(): p for p in sorted(images.rglob("*")) if is_image(p)}
    paths = sorted(p for p in masks.rglob("*") if p.suffix.lower() == ".png")
    if not paths:
        raise InputError(
            f"{masks} holds no PNG; expected a mask for each image, with the number of a class in each pixel."
        )
    names = np.array([name_in(path, masks) for path in paths], dtype=object)
    pictures, numbers = [], []
    for path in paths:
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
    if len(paths) < FOLDS:
        raise InputError(
            f"{masks} holds {len(paths)} masks; an audit needs {FOLDS} or more, for it judges each by the others."
        )
    source = Source(kind="images", title=masks.parent.name, path=str(masks), digest=_digest(paths))
    parts = Masks(tuple(pictures), tuple(numbers), tuple(names))
    return Dataset(names, np.zeros(len(names), np.int64), ("masks",), ids=names, raw=names, source=source, parts=parts)


def read_picture(path: Path) -> Singles:
    """An image (H, W, 3) from 0 to 1."""
    return (_pixels(path, "an image", "RGB") / 255).astype(np.float32)


def read_mask(path: Path) -> NDArray[np.uint8]:
    """The class numbers (H, W) of a mask."""
    return _pixels(path, "a mask").astype(np.uint8)


def _pixels(path: Path, what: str, mode: str | None = None) -> NDArray[Any]:
    from PIL import Image

    try:
        with Image.open(path) as opened:
            if mode is None and opened.mode not in ("L", "P", "1"):
                raise InputError(
                    f"{path} is a PNG of mode {opened.mode}; a mask has one number a pixel (gray or palette), not colors. Turn colors into "
                    "class numbers first."
                )
            return np.asarray(opened if mode is None else opened.convert(mode))
    except InputError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as {what} ({error}).") from error


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
