"""Nested tables of numbers, texts and arrays as two files: JSON, and safetensors for the arrays. Nothing is pickled.

The JSON holds the checksum of the other file, so that they belong together.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

from compensate.auditing import learners
from compensate.auditing.chunks import FinishedStages, Piece, PiecedSource
from compensate.auditing.class_names import without_spellings
from compensate.auditing.content import MAX_ITEMS, POOL
from compensate.auditing.digests import digest_frame
from compensate.auditing.execution import HERE, Execution
from compensate.auditing.features import MAKERS, Embeddings, Maker, Makers, fit_makers, keys_of
from compensate.auditing.findings import Findings, Provenance
from compensate.auditing.learners import (
    FOLDS,
    GROWN_ON,
    LEARNERS,
    ByFold,
    Forest,
    Forests,
    Grown,
    StoredLearner,
    Tree,
    View,
    assign_folds,
    fit_view,
    grow,
    num_divisions,
    smoothed,
    stored_trees,
)
from compensate.auditing.linear import softmax
from compensate.auditing.noise_model import (
    CHANCE,
    FittedNoise,
    NoiseModel,
    evidence,
    fit_noise,
    judge_lone,
    pool_weights,
    pooled,
    shares,
    some_rows,
)
from compensate.auditing.result import Audit, build_audit
from compensate.data.dataset import UNLABELED, Dataset, Floats, Ints, Singles
from compensate.errors import InputError
from compensate.files import make_folder, write_atomically

MARK = "array"
"""The key under which a place in the JSON names its array."""


def write_packed(tree: Any, path: Path) -> None:
    """Writes ``path.json`` and ``path.safetensors``.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> write_packed({"x": np.arange(2), "names": ["a", "b"]}, path)
    >>> read_packed(path)
    {'x': array([0, 1]), 'names': ['a', 'b']}
    """
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {}
    plain = _taken_out(tree, arrays)
    content = save({name: np.ascontiguousarray(value) for name, value in arrays.items()})
    texts = {"arrays": hashlib.sha256(content).hexdigest(), "tree": plain}
    write_atomically(path.with_name(f"{path.name}.safetensors"), content)
    text = json.dumps(texts, ensure_ascii=False)
    write_atomically(path.with_name(f"{path.name}.json"), text.encode("utf-8", "surrogatepass"))


def read_packed(path: Path) -> Any:
    """What was written."""
    from safetensors.numpy import load

    content = path.with_name(f"{path.name}.safetensors").read_bytes()
    texts = json.loads(path.with_name(f"{path.name}.json").read_bytes().decode("utf-8", "surrogatepass"))
    if not isinstance(texts, dict) or texts.get("arrays") != hashlib.sha256(content).hexdigest():
        raise InputError(f"{path}.safetensors is not the file that {path.name}.json was written with")
    return _put_back(texts["tree"], load(content))


def _taken_out(tree: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(tree, np.ndarray):
        name = str(len(arrays))
        arrays[name] = tree
        return {MARK: name}
    if isinstance(tree, dict):
        return {key: _taken_out(value, arrays) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_taken_out(value, arrays) for value in tree]
    return tree


def _put_back(tree: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {MARK}:
            return arrays[tree[MARK]]
        return {key: _put_back(value, arrays) for key, value in tree.items()}
    return [_put_back(value, arrays) for value in tree] if isinstance(tree, list) else tree


@dataclass(frozen=True, eq=False)
class Divided:
    """A learner that was fitted for several divisions into folds.

    Attributes:
        divisions: (R) one for each.
    """

    divisions: tuple[ByFold, ...]

    def log_p(self, x: Any, trees: Singles | None, folds: Ints) -> Singles:
        """(N, C) log probabilities, the mean over divisions, of rows in these folds (R, N)."""
        return mean_log_p([one.log_p(x, trees, held) for one, held in zip(self.divisions, folds, strict=True)])


def mean_log_p(log_p: Sequence[Singles]) -> Singles:
    """(N, C) of several divisions."""
    return log_p[0] if len(log_p) == 1 else softmax(np.mean(log_p, axis=0))[1]


@dataclass(frozen=True, eq=False)
class Asked:
    """The learners of a view, and the rows that they are asked about.

    Attributes:
        by_name: learners.
        folds: (R, N) of each division.
        forests: of each division, if trees are grown to judge all rows once; they are not among the learners then.
    """

    view: View
    by_name: dict[str, Divided]
    folds: Ints
    forests: tuple[Forests, ...]


def answer(task: tuple[Callable[..., Any], Any], asked: Asked) -> Any:
    """Asks one of the functions below."""
    function, what = task
    return function(what, asked)


def said_of(rows: Ints, asked: Asked) -> dict[str, Singles]:
    """By learner, (B, C) log probabilities of some rows."""
    part = some_of(asked.view, rows)
    return {name: one.log_p(part.x, part.trees, asked.folds[:, rows]) for name, one in asked.by_name.items()}


def votes_of(what: tuple[int, tuple[int, slice]], asked: Asked) -> Singles:
    """(rows of the fold, C) the part that some trees of a fold have in the mean of all of them."""
    draw, (fold, trees) = what
    forests = asked.forests[draw]
    return (forests.votes((fold, trees)) / forests.size(fold)).astype(np.float32)


def stored_of(draw: int, asked: Asked) -> Forest:
    """The trees that are stored."""
    return stored_trees(asked.forests[draw])


def some_of(view: View, rows: Ints) -> View:
    """Some rows of a view."""
    x = view.x[rows]
    return View(view.name, x, x if view.trees is view.x else None if view.trees is None else view.trees[rows])


FORMAT = 1
"""Of the files that `save` writes."""

NAME = "scorer"
"""Of these files."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """Views, learners, their weights and the noise model.

    Attributes:
        makers: of the views.
        learners: for each view, by name.
        weights: for each view, of its learners; their sum is how sharp the pooled prediction is.
        noise: the noise model.
        by_chance: whether labels cannot be predicted from the samples, so that none is judged wrong.
    """

    makers: tuple[Maker, ...]
    learners: tuple[Mapping[str, StoredLearner], ...]
    weights: tuple[Mapping[str, float], ...]
    noise: NoiseModel
    by_chance: bool = False

    def log_q(self, data: Dataset, *, device: Any = None, progress: Any = None) -> Floats:
        """(N, C) the pooled log probabilities of some samples.

        Args:
            data: samples of the kind that was audited.
            device: for the encoder.
            progress: called with "encoding", the items that are done and the number of all.
        """

        def told(done: int, total: int) -> None:
            if progress is not None:
                progress("encoding", done, total)

        found, weights = [], []
        for maker, fitted, weight in zip(self.makers, self.learners, self.weights, strict=True):
            view: View = maker.view(data, device, told)
            for name, learner in fitted.items():
                if weight[name] > 0:
                    found.append(learner.log_p(view.x, view.trees))
                    weights.append(weight[name])
        return pooled(np.array(weights), found)

    def score(self, log_q: Floats, labels: Ints) -> tuple[Floats, Floats, Ints]:
        """(N,) each: the probability that a label is wrong, its log odds, and the likeliest other class.

        Args:
            log_q: (N, C) as `log_q` gives them.
            labels: (N,) class numbers, none missing.
        """
        odds, suggested = self.noise.score(log_q, labels)
        p = expit(odds)
        return np.minimum(p, 0.5) if self.by_chance else p, odds, suggested

    def save(self, folder: Path) -> None:
        """Writes ``scorer.json`` and ``scorer.safetensors``."""
        noise = self.noise
        write_packed(
            {
                "format": FORMAT,
                "views": [
                    {
                        "kind": type(maker).__name__,
                        "state": maker.state(),
                        "learners": [
                            {"name": name, "kind": type(one).__name__, "arrays": one.arrays(), "weight": weight[name]}
                            for name, one in fitted.items()
                        ],
                    }
                    for maker, fitted, weight in zip(self.makers, self.learners, self.weights, strict=True)
                ],
                "noise": {
                    "numbers": np.array([noise.share, noise.sharpness, noise.offset, noise.shift]),
                    "directions": noise.directions,
                    "ratios": noise.ratios,
                },
                "by_chance": self.by_chance,
            },
            folder / NAME,
        )

    @staticmethod
    def load(folder: Path) -> Scorer | None:
        """What `save` wrote; none if there is nothing."""
        if not (folder / f"{NAME}.json").is_file():
            return None
        try:
            return _of(read_packed(folder / NAME))
        except Exception as error:  # of JSON, safetensors, numpy or scikit-learn: what is there may say anything
            raise InputError(
                f"{folder} holds no fitted model that can be read ({error or type(error).__name__}). Audit the data again."
            ) from error


def _of(tree: Any) -> Scorer:
    if tree["format"] != FORMAT:
        raise InputError(f"it has the format {tree['format']!r:.20}, of another version")
    share, sharpness, offset, shift = tree["noise"]["numbers"].tolist()
    directions, ratios = tree["noise"]["directions"], tree["noise"]["ratios"]
    classes = len(directions)
    if directions.shape != (classes, classes) or ratios.shape != (classes, classes):
        raise InputError("the noise model does not fit")
    makers, fitted, weights = [], [], []
    for view in tree["views"]:
        makers.append(MAKERS[view["kind"]](view["state"]))
        found = view["learners"]
        fitted.append({str(one["name"]): LEARNERS[one["kind"]](one["arrays"], classes) for one in found})
        weights.append({str(one["name"]): float(one["weight"]) for one in found})
    noise = NoiseModel(share, sharpness, directions, ratios, offset, shift)
    return Scorer(tuple(makers), tuple(fitted), tuple(weights), noise, bool(tree["by_chance"]))


FitProgress = Callable[[str, int, int], None]

POOLED = 8_000_000
"""Entries of log probabilities, for each learner, that are kept of all rows where memory is not bounded."""

TOGETHER, TASKS = 10, 4
"""The most trees of a task that also judges rows, which it copies first; and the fewest such tasks for each worker."""


@dataclass(frozen=True, eq=False)
class Judge:
    """What judges the rows of a piece.

    Attributes:
        names: of the views.
        by_fold: for each view, its learners by name; nothing where all rows are judged already.
        weights: for each view, of its learners.
        noise: the noise model, and how it was estimated.
        models: for each view, what judges rows that are not among these.
    """

    names: tuple[str, ...]
    by_fold: tuple[dict[str, Divided], ...]
    weights: tuple[dict[str, float], ...]
    noise: FittedNoise
    models: tuple[dict[str, StoredLearner], ...] = ()

    @property
    def by_chance(self) -> bool:
        """Whether labels are predicted no better than by chance."""
        return self.noise.gain < CHANCE

    def log_q(self, views: tuple[View, ...], folds: Ints) -> Floats:
        """(N, C) the pooled log probabilities by models that did not learn from the row; folds are (R, N)."""
        log_p, weights = [], []
        for view, by_name, weight in zip(views, self.by_fold, self.weights, strict=True):
            for name, learner in by_name.items():
                if weight[name] > 0:
                    log_p.append(learner.log_p(view.x, view.trees, folds))
                    weights.append(weight[name])
        return pooled(np.array(weights), log_p)


def fit_part(
    views: tuple[View, ...],
    labels: Ints,
    folds: Ints,
    names: Sequence[str],
    size: Mapping[str, int],
    seed: int,
    run: Execution,
    told: FitProgress,
    *,
    whole: bool,
) -> tuple[Judge, Floats | None]:
    """Learners of all views, fitted on the part; weights and the noise model, from rows of it.

    Where the part is the whole and there is room, also the pooled log probabilities (N, C), so that no row is judged twice. What is left then takes a
    second, and workers are not needed for it.

    Args:
        views, labels: of the part.
        folds: (R, N) of each division.
        names: (C,) of the classes.
        size: the number of ``rows`` of the source, and of ``trees`` of a forest.
        seed: of everything random.
        run: where to compute.
        told: of the progress.
        whole: whether the part is the whole.
    """
    classes = len(names)
    known = some_rows(np.flatnonzero(labels >= 0), classes)
    whole = whole and len(labels) * classes <= POOLED
    rows = np.arange(len(labels)) if whole else known
    by_fold, models, transitions, log_p = [], [], [], []
    for k, view in enumerate(views):
        told("fitting", k, len(views))
        fits = [
            fit_view(view, labels, held, FOLDS, classes, seed=seed + draw, run=run, rows=size["rows"], trees=0)
            for draw, held in enumerate(folds)
        ]
        found = {name: Divided(tuple(one.by_fold[name] for one in fits)) for name in fits[0].by_fold}
        forests = _forests(view, labels, folds, classes, seed, size["trees"])
        stored = None
        if forests and not whole:
            stored = stored_trees(forests[0], run)
            found["trees"] = Divided(tuple(_grown(one, run) for one in forests))
        said, stored = _ask(Asked(view, found, folds, forests if whole else ()), rows, run, stored)
        if stored is not None:
            fits[0].models["trees"] = stored
        log_p.append(said)
        by_fold.append(found)
        models.append(fits[0].models)
        transitions.append(np.mean([one.transition for one in fits], axis=0))
    told("fitting", len(views), len(views))
    learned = [values for one in log_p for values in one.values()]
    estimated = known if whole else np.arange(len(known))
    found_weights = pool_weights([one[estimated] for one in learned], labels[known])
    log_q = without_spellings(pooled(found_weights, learned), labels if whole else labels[known], names)
    noise = fit_noise(log_q[estimated], labels[known], np.mean(transitions, axis=0), run=run, last=whole)
    values = iter(found_weights.tolist())
    weights = tuple({name: next(values) for name in one} for one in log_p)
    judge = Judge(tuple(view.name for view in views), () if whole else tuple(by_fold), weights, noise, tuple(models))
    return judge, log_q if whole else None


def _forests(view: View, labels: Ints, folds: Ints, classes: int, seed: int, trees: int) -> tuple[Forests, ...]:
    """The trees of each division, none of them grown."""
    if view.trees is None:
        return ()
    return tuple(
        Forests(view.trees, labels, held, FOLDS, classes, seed + draw, trees) for draw, held in enumerate(folds)
    )


def _grown(forests: Forests, run: Execution) -> ByFold:
    """All trees at once: they are asked for again and again."""
    parts = forests.parts(range(FOLDS))
    trees: list[list[Tree]] = [[] for _ in range(FOLDS)]
    for (fold, _), grown in zip(parts, run.map(grow, parts, forests), strict=True):
        trees[fold] += grown
    return ByFold([Grown(one, forests.num_classes) for one in trees])


# --- what learners say ----------------------------------------------------------------------------------------


def _ask(asked: Asked, rows: Ints, run: Execution, stored: Forest | None) -> tuple[dict[str, Singles], Forest | None]:
    """By learner, (N, C) log probabilities of some rows; and the trees to store, which are grown along with the forests.

    All of it is one list of tasks, the longest first, so that no worker waits for another in between.
    """
    growing = [(draw, part) for draw, forests in enumerate(asked.forests) for part in _tree_tasks(forests, run)]
    portions = np.array_split(rows, max(1, min(8 * run.workers, len(rows) // 1000)))
    ends = np.cumsum([len(one) for one in portions]).tolist()
    tasks: list[tuple[Callable[..., Any], Any]] = [(stored_of, draw) for draw in range(min(1, len(asked.forests)))]
    tasks += [(votes_of, one) for one in growing] + [(said_of, one) for one in portions]
    answers = run.map(answer, tasks, asked)
    if asked.forests:
        stored = next(answers)
    voted = _counted(asked, growing, answers)
    found: dict[str, Singles] = {}
    for end, one in zip(ends, answers, strict=True):
        for name, values in one.items():
            if name not in found:
                found[name] = np.empty((len(rows), values.shape[1]), np.float32)
            found[name][end - len(values) : end] = values
    return found | voted, stored


def _counted(asked: Asked, growing: list[tuple[int, tuple[int, slice]]], answers: Iterator[Any]) -> dict[str, Singles]:
    """What the forests say, if there are some, as the answers come; the learners are busy meanwhile."""
    if not asked.forests:
        return {}
    votes = [np.zeros((asked.folds.shape[1], forests.num_classes)) for forests in asked.forests]
    for (draw, (fold, _)), one in zip(growing, answers, strict=False):
        votes[draw][asked.folds[draw] == fold] += one
    return {"trees": mean_log_p([smoothed(one) for one in votes])}


def _tree_tasks(forests: Forests, run: Execution) -> list[tuple[int, slice]]:
    number = FOLDS * forests.size(0)
    return forests.parts(range(FOLDS), together=max(1, min(TOGETHER, number // (TASKS * run.workers))))


Progress = Callable[[str, int, int], None]

ROOM = 1_000_000_000
"""Bytes of features that learners are fitted on, where nothing else is asked for."""

SHARE = 0.1
"""The part of the memory that may be used which these features take: fitting copies them, and holds the trees beside them."""

FORESTS = 0.3
"""The part of it that trees may take."""

PER_ROW, REST = 60, 800_000_000
"""Bytes for each row of the source, and for libraries, trees and a piece: without them there is no audit."""

LISTED = 2 * MAX_ITEMS
"""Suspects that are listed with their samples; all rows are in the partitions."""


def bytes_of(memory: int | str) -> int:
    """A size in bytes.

    >>> bytes_of("2GB"), bytes_of("500 MB"), bytes_of(10)
    (2000000000, 500000000, 10)
    """
    found = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?)i?b?\s*", str(memory).lower())
    try:
        assert found is not None
        size = float(found[1]) * 1000 ** " kmgt".index(found[2] or " ")
    except (AssertionError, ValueError) as error:
        raise InputError(f'memory is "{memory}"; expected a size such as 2GB or 500MB.') from error
    return int(size)


def room_for_part(memory: int | None, rows: int) -> int:
    """Bytes of features to fit on if the whole audit may take so many.

    >>> room_for_part(None, 10) == ROOM
    True
    """
    if memory is None:
        return ROOM
    least = REST + PER_ROW * rows
    if memory < least:
        raise InputError(
            f"memory is {memory / 1e9:.2f} GB; an audit of {rows:,} rows takes {least / 1e9:.2f} GB or more. Give as much, or "
            "audit a part of the rows."
        )
    return int(SHARE * memory)


def trees_for(memory: int | None, rows: int, classes: int, divisions: int = 1) -> int:
    """How many trees a forest may have: those of all folds are kept until every piece is judged.

    >>> trees_for(None, 10**6, 5), trees_for(2 * 10**9, 10**6, 5), trees_for(10**12, 10**6, 5)
    (200, 34, 200)
    """
    tree = (
        2 / 3 * min(rows, GROWN_ON) * (64 + 8 * classes)
    )  # nodes of a tree whose leaves hold three rows, and bytes of a node
    most = learners.TREES if memory is None else min(learners.TREES, int(FORESTS * memory / (FOLDS * tree)))
    return max(1, most // divisions)


def audit_pieces(
    source: PiecedSource,
    encoder: str | Path = "auto",
    *,
    device: str | None = None,
    seed: int = 0,
    memory: int | None = None,
    run: Execution = HERE,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Audit:
    """The audit of data in pieces.

    Args:
        source: the pieces and the labels.
        encoder, device, seed, progress: as for `audit`.
        memory: bytes that this process may take.
        run: where to compute.
        folder: of finished stages; those that are there are not computed again.
    """
    from compensate.auditing.api import audited_labels

    room = room_for_part(memory, len(source))
    told = progress or (lambda stage, done, total: None)
    given, notes = audited_labels(source.outline)
    makers = fit_makers(source.sample, encoder, device=device)
    with _kept(folder) as stages:
        _encode(source, makers, stages, run, device, told)
        part = _part(len(source), source.sample, makers, room)
        keys, views = _scan(source, part, makers, stages, run, told)
        times = num_divisions(int((given != UNLABELED).sum()))
        folds = np.stack([assign_folds(given, keys, seed=seed, draw=k).astype(np.int8) for k in range(times)])
        del keys
        size = {"rows": len(source), "trees": trees_for(memory, len(part), len(source.classes), times)}
        held = folds[:, part].astype(np.int64)
        whole = memory is None and len(part) == len(source)
        judge, log_q = fit_part(views, given[part], held, source.classes, size, seed, run, told, whole=whole)
        del views
        judged = _judge(source, given, folds, judge, log_q, makers, stages, run, told)
        notes = (*notes, *makers.notes, _how(len(part), len(source)))
        found = _result(source, given, judge, judged, makers, notes, {"seed": seed, "fitted_rows": len(part)})
        del judged
        return replace(found, listed=_listed(found, source, folds, judge, log_q, makers, stages))


def _how(part: int, rows: int) -> str:
    fitted = (
        f"Learners were fitted on {part:,} of {rows:,} rows, evenly drawn; every row was judged. "
        if part < rows
        else ""
    )
    return f"{fitted}The rows were read in pieces: duplicates and outliers were not looked for."


@contextmanager
def _kept(folder: str | Path | None) -> Iterator[FinishedStages]:
    if folder is not None:
        yield FinishedStages(make_folder(Path(folder)))
        return
    with tempfile.TemporaryDirectory(prefix="compensate-") as name:
        yield FinishedStages(Path(name), temporary=True)


# --- features -------------------------------------------------------------------------------------------------


def _encode(
    source: PiecedSource, makers: Makers, stages: FinishedStages, run: Execution, device: str | None, told: Progress
) -> None:
    """Embeddings of all pieces, in files."""
    if makers.encoder is None:
        return
    todo = [(k, piece) for k, piece in enumerate(source.pieces) if not stages.embeddings(k).exists()]
    total = len(source.pieces)
    told("encoding", total - len(todo), total)
    calls = run.map_on_devices(_encoded, todo, makers.encoder, stages, device)
    for done, _ in enumerate(calls, total - len(todo) + 1):
        told("encoding", done, total)


def _encoded(item: tuple[int, Piece], encoder: Embeddings, stages: FinishedStages, device: str | None) -> int:
    k, piece = item
    stages.write_embedded(k, encoder.view(piece.read(), device).x)
    return k


def _part(rows: int, sample: Dataset, makers: Makers, room: int) -> Ints:
    """The rows that learners are fitted on."""
    few = sample.subset(np.arange(min(100, len(sample))))
    width = makers.encoder.width if makers.encoder is not None else 0
    embedded = np.zeros((len(few), width), np.float32)
    size = sum(
        _bytes(view.x) + (0 if view.trees is view.x else _bytes(view.trees)) for view in makers.views(few, embedded)
    )
    most = max(1000, int(room / max(size / len(few), 1)))
    return np.arange(rows) if rows <= most else np.linspace(0, rows - 1, most).astype(np.int64)


def _bytes(x: Any) -> int:
    if x is None:
        return 0
    return int(x.nbytes if isinstance(x, np.ndarray) else x.data.nbytes + x.indices.nbytes)


def _scan(
    source: PiecedSource, part: Ints, makers: Makers, stages: FinishedStages, run: Execution, told: Progress
) -> tuple[Ints | None, tuple[View, ...]]:
    """(N,) the keys of all rows, and the views of the part."""
    kept = stages.read_scan()
    if kept is not None:
        return kept
    cuts = np.searchsorted(part, [*(piece.start for piece in source.pieces), len(source)])
    items = [(k, piece, part[cuts[k] : cuts[k + 1]] - piece.start) for k, piece in enumerate(source.pieces)]
    keys, views = [], []
    for done, (key, found) in enumerate(run.map(_scanned, items, makers, stages), 1):
        keys.append(key)
        views.append(found)
        told("reading", done, len(items))
    whole = tuple(_joined(list(ones)) for ones in zip(*views, strict=True))
    joined = None if keys[0] is None else np.concatenate(keys)
    stages.write_scan(joined, whole)
    return joined, whole


def _scanned(
    item: tuple[int, Piece, Ints], makers: Makers, stages: FinishedStages
) -> tuple[Ints | None, tuple[View, ...]]:
    k, piece, rows = item
    data = piece.read()
    views = makers.views(data, _embedded(makers, stages, k))
    return keys_of(data, views), views if len(rows) == piece.rows else tuple(some_of(view, rows) for view in views)


def _joined(views: list[View]) -> View:
    x = _stacked([view.x for view in views])
    first = views[0]
    if first.trees is None or first.trees is first.x:
        return View(first.name, x, None if first.trees is None else x)
    return View(first.name, x, _stacked([view.trees for view in views]))


def _stacked(parts: list[Any]) -> Any:
    """The rows of all parts; each part is let go once it is copied."""
    if sp.issparse(parts[0]):
        return sp.vstack(parts, format="csr")
    found = _uncut(parts)
    if found is not None:
        return found
    found = np.empty((sum(map(len, parts)), parts[0].shape[1]), parts[0].dtype)
    start = 0
    for k, part in enumerate(parts):
        found[start : start + len(part)] = part
        start += len(part)
        parts[k] = None
    return found


def _uncut(parts: list[Any]) -> NDArray[Any] | None:
    """The rows of all parts without a copy, if they follow each other in one array: data in memory that were cut.

    >>> x = np.arange(12).reshape(6, 2)
    >>> np.shares_memory(_uncut([x[1:4], x[4:]]), x), _uncut([x[:4], x[3:]]) is None, _uncut([x[:4], x[4:].copy()]) is None
    (True, True, True)
    """
    whole, first = parts[0].base, parts[0]
    if not isinstance(whole, np.ndarray) or not whole.flags.c_contiguous:
        return None
    places = np.cumsum([_place(first), *(part.nbytes for part in parts)])
    if any(
        part.base is not whole or not part.flags.c_contiguous or part.dtype != first.dtype or _place(part) != place
        for part, place in zip(parts, places, strict=False)
    ):
        return None
    shape = (sum(map(len, parts)), *first.shape[1:])
    return np.ndarray(shape, first.dtype, whole.data, int(places[0]) - _place(whole))


def _place(x: NDArray[Any]) -> int:
    return int(x.__array_interface__["data"][0])


def _embedded(makers: Makers, stages: FinishedStages, k: int) -> Singles | None:
    return None if makers.encoder is None else stages.embedded(k)


# --- judging --------------------------------------------------------------------------------------------------


def _judge(
    source: PiecedSource,
    given: Ints,
    folds: NDArray[np.int8],
    judge: Judge,
    log_q: Floats | None,
    makers: Makers,
    stages: FinishedStages,
    run: Execution,
    told: Progress,
) -> dict[str, NDArray[Any]]:
    """(N,) each: score, p_error, suggested, margin and loss of all rows; each piece writes its own to a file first."""
    ends = [slice(piece.start, piece.start + piece.rows) for piece in source.pieces]
    todo = [
        (
            k,
            source.numbers(np.arange(piece.start, piece.start + piece.rows)),
            source.labels[ends[k]],
            (piece, folds[:, ends[k]]) if log_q is None else log_q[ends[k]],
        )
        for k, piece in enumerate(source.pieces)
        if not stages.judged(k).exists()
    ]
    total = len(source.pieces)
    # Learners are handed over as they were when they were fitted: workers have them already.
    light = replace(judge, by_fold=(), models=())
    learned = np.flatnonzero(np.bincount(given[given != UNLABELED], minlength=len(source.classes)))
    calls = run.map(_judged, todo, light, makers, source.classes, learned, stages, *judge.by_fold)
    for done, _ in enumerate(calls, total - len(todo) + 1):
        told("judging", done, total)
    kept = KEPT if (source.labels != UNLABELED).all() else {**KEPT, "probability": np.float32}
    found: dict[str, NDArray[Any]] = {name: np.empty(len(source), kind) for name, kind in kept.items()}
    for k, rows in enumerate(ends):
        for name, values in stages.read_judged(k, list(kept)).items():
            found[name][rows] = values
    return found


KEPT = {"score": np.float32, "p_error": np.float32, "suggested": np.int32, "margin": np.float32, "loss": np.float32}
"""What is known of each row, and how it is kept in memory."""


def _judged(
    item: tuple[int, Ints, Ints, tuple[Piece, NDArray[np.int8]] | Floats],
    judge: Judge,
    makers: Makers,
    classes: tuple[str, ...],
    learned: Ints,
    stages: FinishedStages,
    *by_fold: dict[str, Divided],
) -> int:
    """Judges a piece and writes what was found; a row without a label has the probability of its suggestion in place of an error's.

    Labels of classes that are not among those that were learned occur once.
    """
    k, index, given, rows_or_log_q = item
    if isinstance(rows_or_log_q, tuple):
        piece, folds = rows_or_log_q
        views = makers.views(piece.read(), _embedded(makers, stages, k))
        log_q = replace(judge, by_fold=by_fold).log_q(views, folds.astype(np.int64))
    else:
        log_q = rows_or_log_q
    log_q = without_spellings(log_q, np.where(np.isin(given, learned), given, UNLABELED), classes)
    rows = np.flatnonzero(given != UNLABELED)
    found = {
        name: np.full(len(given), np.nan, kind if name != "suggested" else np.float32) for name, kind in KEPT.items()
    }
    found |= {"suggested": log_q.argmax(1), "probability": np.exp(log_q.max(1)).astype(np.float32)}
    odds, found["suggested"][rows] = judge.noise.model.score(log_q[rows], given[rows])
    once = ~np.isin(given[rows], learned)
    lone = rows[once]
    if len(lone):
        sharpness = judge.noise.model.sharpness
        odds[once], found["suggested"][lone] = judge_lone(log_q[lone], given[lone], classes, learned, sharpness)
    p = expit(odds)
    found["score"][rows], found["p_error"][rows] = odds, np.minimum(p, 0.5) if judge.by_chance else p
    for name, values in evidence(log_q[rows], given[rows]).items():
        found[name][rows] = values
    found["probability"][rows] = np.nan
    stages.write_judged(k, index, given, found, classes)
    return k


# --- the result -----------------------------------------------------------------------------------------------


def _result(
    source: PiecedSource,
    given: Ints,
    judge: Judge,
    judged: dict[str, NDArray[Any]],
    makers: Makers,
    notes: tuple[str, ...],
    config: dict[str, Any],
) -> Audit:
    """The audit of all rows, without their samples."""
    rows = np.flatnonzero(source.labels != UNLABELED)
    lost = np.flatnonzero(source.labels == UNLABELED)
    often = given[rows] != UNLABELED
    whole = slice(None) if len(rows) == len(given) else rows  # a copy of all rows would be hundreds of megabytes
    kept = {name: judged[name][whole] for name in KEPT}
    weights = {
        f"{name}: {learner}": weight
        for name, by_name in zip(judge.names, judge.weights, strict=True)
        for learner, weight in by_name.items()
    }
    config = {
        **config, "folds": FOLDS, **makers.about, "views": shares(weights),
        "agreement": float((kept["margin"] > 0).mean(where=often)), "by_chance": judge.by_chance,
    }  # fmt: skip
    unlabeled = {name: judged[name][lost] for name in ("suggested", "probability") if len(lost)}
    findings = Findings(
        classes=source.classes,
        index=source.numbers(rows),
        given=source.labels[whole],
        suggested=kept["suggested"],
        log_odds=kept["score"],
        p_error=kept["p_error"],
        evidence={"margin": kept["margin"], "loss": kept["loss"]},
        noise_rate=judge.noise.share(float(kept["p_error"].mean(dtype=np.float64, where=often))),
        unlabeled={"index": source.numbers(lost), **unlabeled} if len(lost) else {},
        provenance=Provenance(**config),
        notes=notes,
        fitted=Scorer(makers.makers, judge.models, judge.weights, judge.noise.model, judge.by_chance),
    )
    return build_audit(source.info, findings)


def _listed(
    whole: Audit,
    source: PiecedSource,
    folds: NDArray[np.int8],
    judge: Judge,
    log_q: Floats | None,
    makers: Makers,
    stages: FinishedStages,
) -> Audit:
    """The most suspect rows, and for each class some that are certain, with their samples."""
    order = np.argpartition(-whole.log_odds, min(LISTED, len(whole) - 1))[:LISTED]
    certain = [
        rows[np.argpartition(whole.p_error[rows], min(POOL, len(rows) - 1))[:POOL]]
        for rows in (np.flatnonzero(whole.given == c) for c in range(len(whole.classes)))
        if len(rows)
    ]
    chosen = np.unique(np.concatenate([order, *certain]))
    index, places = whole.index[chosen], np.flatnonzero(source.labels != UNLABELED)[chosen]
    data = source.rows(places)
    embedded = None if makers.encoder is None else stages.embedded_rows(source.pieces, places)
    views = makers.views(data, embedded)
    said = judge.log_q(views, folds[:, places].astype(np.int64)) if log_q is None else log_q[places]
    digests = source.info.row_digests
    if digests is not None:
        digests = digests[index]
    elif isinstance(data.raw, pd.DataFrame):
        digests = digest_frame(data.raw, str(source.info.label))
    return replace(
        whole,
        index=index,
        **{name: getattr(whole, name)[chosen] for name in ("given", "suggested", "log_odds", "p_error")},
        evidence={name: values[chosen] for name, values in whole.evidence.items()},
        probabilities=np.exp(said).astype(np.float32),
        data=data,
        vectors=views[0].x,
        row_digests=digests,
        ids=() if data.ids is None else tuple(map(str, data.ids)),
        provenance=replace(whole.provenance, rows=len(whole), flagged=int(whole.mask.sum())),
    )
