"""Images with masks.

A mask is a PNG with the number of a class in each pixel; 255 is void. Images are divided into square cells, each judged by models that did not
learn from its image. Neighboring cells with the same suggestion form one suspect; the rest of a class in an image forms another.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from scipy.special import expit

from compensate.auditing.content import Content, digest_file, digest_text, thumbnail
from compensate.auditing.decisions import Correction
from compensate.auditing.execution import LOCAL, Execution
from compensate.auditing.features import Progress
from compensate.auditing.findings import Address, Findings
from compensate.auditing.labels.base import Judged, NeighboringLabels, Reader, Reading, check_given
from compensate.auditing.learners import FOLDS, View, assign_folds
from compensate.auditing.noise_model import Verdict, judge, offset_of_mean
from compensate.data.dataset import UNLABELED, Dataset, Ints, Singles, Source
from compensate.data.folder import is_image, name_in
from compensate.errors import InputError
from compensate.files import replaced_folder

VOID = 255  # pixels with this number are not judged
MASKS = ("masks", "mask", "annotations", "labels")  # names of the folder of masks
IMAGES = ("images", "image", "imgs", "img")  # names of the folder of images
MAX_CELLS = 100_000  # cells in all images together; cells grow to keep it
MIN_SIDE = 2  # pixels on a side of a cell
SCALES = (3, 9)  # cells on a side of the two neighborhoods
MAX_CLASSES = 100
NEIGHBOR_WEIGHT = 0.75
"""The weight of the log odds of a cell, and of the mean of its neighborhood. On five draws each of shapes and digit canvases (seeds 10 to 14 of
`benchmarks.kinds`), the sum detected errors better than the cell alone, and flags were right more often, or more in number, than with 0.5 or 1."""

Runs = tuple[tuple[int, int], ...]  # start and length of runs of pixels, in row-major order


class Region(NamedTuple):
    """Pixels of a mask: its file, and the runs. The part of an address."""

    file: str
    runs: Runs


@dataclass(frozen=True, eq=False)
class Masks(NeighboringLabels):
    """Images (H, W, 3) from 0 to 1, their masks (H, W) and the masks' file names."""

    images: tuple[Singles, ...]
    masks: tuple[NDArray[np.uint8], ...]
    names: tuple[str, ...]

    form = "region"
    pattern = re.compile(r"((?:\d{1,12}\+\d{1,12},?)+) (.+)", re.DOTALL)
    noun = "masks"
    answer = ""
    units = "the cells of images"
    part_columns = (("file", attrgetter("file")), ("pixels", lambda part: sum(length for _, length in part.runs)))

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        return f"{len(self.masks)} masks, {len(self._classes())} classes"

    @classmethod
    def read(cls, data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
        folders = mask_folders(data, labels)
        if folders is None:
            return other(data, labels, options)
        images, masks = folders
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
            picture, mask = (read_pixels(files[name], "RGB") / 255).astype(np.float32), read_pixels(path)
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
        source = Source(kind="images", title=masks.parent.name, path=str(masks), digest=cls.digest(masks))
        parts, target = cls(tuple(pictures), tuple(numbers), tuple(names)), np.zeros(len(names), np.int64)
        return Dataset(names, target, ("masks",), ids=names, raw=names, source=source, parts=parts)

    def _classes(self) -> list[int]:
        classes = sorted({int(c) for mask in self.masks for c in np.unique(mask)} - {VOID})
        if not 2 <= len(classes) <= MAX_CLASSES:
            raise InputError(
                f"the masks hold {len(classes)} classes; expected 2 to {MAX_CLASSES}, each a number from 0 to 254 in the pixels of a PNG."
            )
        return classes

    def cells(self, side: int) -> Ints:
        """The most frequent class of each cell of this side, as a place among the classes; `UNLABELED` where all is void."""
        classes = self._classes()
        place = np.full(256, UNLABELED, np.int64)
        place[classes] = np.arange(len(classes))
        found = []
        for mask in self.masks:
            h, w = _grid(mask, side)
            border = ((0, h * side - mask.shape[0]), (0, w * side - mask.shape[1]))
            pixels = np.pad(place[mask], border, constant_values=UNLABELED).reshape(h, side, w, side)
            counts = np.stack([(pixels == c).sum((1, 3)) for c in range(len(classes))], 2)
            found.append(np.where(counts.any(2), counts.argmax(2), UNLABELED).ravel())
        return np.concatenate(found)

    def judge(self, seed: int = 0, progress: Progress | None = None, run: Execution = LOCAL) -> Judged:
        classes, side = self._classes(), MIN_SIDE
        while sum(np.prod(_grid(mask, side)) for mask in self.masks) > MAX_CELLS:
            side += 1
        given, grids = self.cells(side), tuple(_grid(mask, side) for mask in self.masks)
        x = np.concatenate(list(run.map(cell_features, self.images, side)))
        image = np.repeat(np.arange(len(grids)), np.prod(grids, 1))
        folds = assign_folds(np.zeros(len(grids), np.int64), seed=seed)[image]
        log_q, weights, _ = self.cross_fit(View("cells", x, x), given, folds, len(classes), seed, progress)
        kept = given != UNLABELED
        # Cells at the edge of an object look like errors in one direction. Directions serve to estimate the number of errors; the
        # cells are judged without them.
        directed = judge(log_q[kept], given[kept])
        plain = judge(log_q[kept], given[kept], directed=False)
        verdict = smooth_over_neighbors(replace(plain, share=directed.share), kept, grids)
        return Judged(kept, tuple(map(str, classes)), given, verdict, weights, (), None, side, grids)

    def group(self, judged: Judged, changed: Ints) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
        """Connected cells of one class with the same suggestion, and the other cells of the class."""
        verdict, kept = judged.verdict, judged.kept
        new, p, odds, suggested = (np.full(len(kept), value, float) for value in (-1, 0, -99, 0))
        new[kept], suggested[kept], p[kept], odds[kept] = changed, verdict.suggested, verdict.p_error, verdict.log_odds
        groups: list[tuple[Any, ...]] = []
        sizes: list[int] = []
        for k, (here, grid) in enumerate(_images(judged.grids)):
            given, wanted = judged.given[here].reshape(grid), new[here].reshape(grid).astype(int)
            for old in np.unique(given[given >= 0]).tolist():
                of_class = self.masks[k] == int(judged.classes[old])
                for other in np.unique(wanted[given == old]).tolist():
                    chosen = (given == old) & (wanted == other)
                    numbered, count = ndimage.label(chosen) if other >= 0 else (chosen.astype(int), 1)
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
                        p_error = float(p[here][inside].mean())
                        groups.append((address, self.names[k], old, best, float(score), p_error))
                        sizes.append(size)
        return groups, {"index": np.arange(len(groups)), "evidence": {"cells": np.array(sizes, float)}}

    def show(self, content: Content, audit: Findings, row: int) -> Content:
        """The image, enlarged if it is small, with the region outlined and the rest darkened."""
        k, (_, runs) = audit.addresses[row]
        inside = pixels_of(runs, self.masks[k].shape)
        times = max(1, 256 // max(inside.shape))
        image = self.images[k].repeat(times, 0).repeat(times, 1)
        region = inside.repeat(times, 0).repeat(times, 1)
        drawn = np.where(region[..., None], image, 0.55 * image)
        drawn[region & ~ndimage.binary_erosion(region)] = (1.0, 0.2, 0.6)
        shown = thumbnail(drawn.astype(np.float32).transpose(2, 0, 1))
        return replace(content, image=shown, text=None, missing="")

    @classmethod
    def format(cls, address: Address) -> str:
        runs = ",".join(f"{start}+{length}" for start, length in address.part.runs)
        return f"{cls.form} {runs} {address.part.file}"

    @classmethod
    def parse(cls, text: str, row: int = -1) -> Address:
        match = cls.match(text)
        pairs = (run.split("+") for run in match[1].strip(",").split(","))
        return Address(row, Region(match[2], tuple((int(start), int(length)) for start, length in pairs)))

    @staticmethod
    def fixed_name(data: Path) -> Path:
        return data.parent / f"{data.name}.fixed"

    @staticmethod
    def check_output(data: Path, out: Path, force: bool) -> None:
        top, _ = _mask_files(data)
        if out.exists() and not (force and out.is_dir()):
            raise InputError(f"{out} exists already; name another folder, or overwrite it with force=True (--force).")
        if out.absolute() in (top.absolute(), *top.absolute().parents):
            raise InputError(f"{out} holds the masks themselves; name another folder.")

    @staticmethod
    def digest(data: str | Path) -> str:
        content = "\n".join(digest_file(path) for path in _mask_files(Path(data))[1])
        return digest_text(int(hashlib.sha256(content.encode()).hexdigest()[:16], 16))

    @classmethod
    def write(cls, data: Path, decided: Sequence[tuple[Correction, Address]], out: Path, reading: Reading) -> int:
        """Writes a folder of masks; masks without a change are copied."""
        top, files = _mask_files(data)
        before = {path.relative_to(top).as_posix(): path for path in files}
        changed: dict[str, NDArray[np.uint8]] = {}
        for c, (_, (name, runs)) in decided:
            if name not in before:
                raise InputError(f'a correction is about "{name[:60]}", which {top} has not.')
            mask = read_pixels(before[name])
            inside = pixels_of(runs, mask.shape)
            check_given(top / name, c, " and ".join(map(str, np.unique(mask[inside]).tolist())))
            if c.changes:
                if not (c.label.strip().isascii() and c.label.strip().isdigit() and int(c.label) < VOID):
                    raise InputError(f'"{c.label[:40]}" is not a class of a mask; expected a number from 0 to 254.')
                changed.setdefault(name, mask.copy())[inside] = int(c.label)
        dropped = {name for c, (_, (name, _)) in decided if c.decision == "drop"}
        with replaced_folder(out) as folder:
            for name, path in before.items():
                if name in dropped:
                    continue
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                if name not in changed:
                    shutil.copyfile(path, folder / name)
                    continue
                new = Image.fromarray(changed[name])
                with Image.open(path) as old:  # the new file has its mode
                    if old.mode == "P":
                        new.putpalette(old.getpalette() or [])
                    elif old.mode == "1":
                        new = new.point(lambda value: 255 * bool(value)).convert("1")
                new.save(folder / name, "PNG")
        return len(files)


def smooth_over_neighbors(verdict: Verdict, kept: NDArray[np.bool_], grids: Sequence[tuple[int, int]]) -> Verdict:
    r"""Adds the neighbors of each cell to its verdict.

    .. math:: s'_i = \lambda \Big( s_i + \frac{1}{|N_i|} \sum_{j \in N_i} s_j \Big) + a

    with the log odds :math:`s` of the `kept` cells, the cells :math:`N_i` of the 3 x 3 square around a cell, itself included, and :math:`a` such
    that the mean probability is the estimated share.
    """
    odds, known, around = np.zeros(len(kept)), kept.astype(np.float64), np.empty(len(kept))
    odds[kept] = verdict.log_odds
    for here, grid in _images(grids):
        total, count = (ndimage.uniform_filter(v[here].reshape(grid), 3, mode="constant") for v in (odds, known))
        around[here] = (total / np.maximum(count, 1e-9)).ravel()
    smoothed = NEIGHBOR_WEIGHT * (odds + around)[kept]
    smoothed += offset_of_mean(smoothed, verdict.share.value)
    return replace(verdict, log_odds=smoothed, p_error=expit(smoothed))


def _grid(image: NDArray[Any], side: int) -> tuple[int, int]:
    """Rows and columns of the cells of an image."""
    return -(-image.shape[0] // side), -(-image.shape[1] // side)


def _images(grids: Sequence[tuple[int, int]]) -> Iterator[tuple[slice, tuple[int, int]]]:
    """The places of the cells of each image among all cells, and its grid."""
    start = 0
    for rows, columns in grids:
        yield slice(start, start + rows * columns), (rows, columns)
        start += rows * columns


def cell_features(image: Singles, side: int) -> Singles:
    """(cells, D) color, its mean and deviation in two neighborhoods, and place."""
    h, w = _grid(image, side)
    padded = np.pad(image, ((0, h * side - image.shape[0]), (0, w * side - image.shape[1]), (0, 0)), mode="edge")
    cells = padded.reshape(h, side, w, side, -1).mean((1, 3))
    features = [cells]
    for size in SCALES:
        mean, square = (ndimage.uniform_filter(c, (size, size, 0), mode="nearest") for c in (cells, cells**2))
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
        end, size = start + length, len(inside)
        if end > size:
            raise InputError(f"a region ends at pixel {end}, and the mask has {size}; it is of another mask.")
        inside[start:end] = True
    return inside.reshape(shape[:2])


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


def read_pixels(path: Path, mode: str | None = None) -> NDArray[np.uint8]:
    """The class numbers (H, W) of a mask, or the colors of an image in a mode of Pillow."""
    try:
        with Image.open(path) as opened:
            found, pixels = opened.mode, np.asarray(opened if mode is None else opened.convert(mode))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        what = "a mask" if mode is None else "an image"
        raise InputError(f"{path} cannot be read as {what} ({error}).") from error
    if mode is None and found not in ("L", "P", "1"):
        raise InputError(
            f"{path} is a PNG of mode {found}; a mask has one number a pixel (gray or palette), not colors. Turn colors into "
            "class numbers first."
        )
    return pixels.astype(np.uint8)
