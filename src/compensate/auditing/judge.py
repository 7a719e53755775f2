"""The judge of labels: features, cross-fitted learners, their pooling weights, and the noise model.

A judge is fitted on all rows, or on evenly spaced rows of data that are larger than memory, and then predicts chunk by chunk. Data in memory
are one chunk. Its stored form is a JSON file, and a safetensors file for the arrays; nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

from compensate.auditing.chunks import Chunk, ChunkedDataset, FinishedStages
from compensate.auditing.class_names import without_spellings
from compensate.auditing.execution import LOCAL, Execution, threads_for
from compensate.auditing.features import MAKERS, Embeddings, FeatureViews, Maker, Progress, make_views, row_keys
from compensate.auditing.learners import (
    FOLDS,
    LEARNERS,
    FittedView,
    Mask,
    Steps,
    StoredLearner,
    View,
    fit_view,
    grow_forests,
    predict_rows,
    steps_of,
)
from compensate.auditing.noise_model import (
    NoiseModel,
    evidence,
    fit_noise,
    judge_lone,
    pool_weights,
    pooled,
    shares,
    some_rows,
)
from compensate.data.dataset import UNLABELED, Dataset, Floats, Ints, Singles
from compensate.errors import InputError
from compensate.files import write_atomically

FORMAT = 1
"""The version of the files that `Judge.save` writes."""

FILE = "scorer"
"""Their name without the suffix."""

ARRAY = "array"
"""The key under which the JSON names an array."""

MIN_FITTED = 1000
"""Learners are fitted on at least this number of rows."""


@dataclass(frozen=True, eq=False)
class FitOptions:
    """How a judge is fitted.

    Attributes:
        seed: of everything random.
        trees: of a forest of few rows; None for the usual number.
        rows: the number of rows to predict, if not the fitted ones.
        keep: keep the predictions of all fitted rows as `Judge.log_q`, and no learners by fold.
        trusted: (N,) labels that are known to be right.
        former: (N,) labels on which the noise model is fitted, if they differ from the present ones.
        networks: (N, C) log probabilities of further models, by name.
        run: where to compute.
        progress: reports the stages.
    """

    seed: int = 0
    trees: int | None = None
    rows: int | None = None
    keep: bool = True
    trusted: Mask | None = None
    former: Ints | None = None
    networks: Mapping[str, Singles] = field(default_factory=dict)
    run: Execution = LOCAL
    progress: Progress | None = None


@dataclass(frozen=True, eq=False)
class Judge:
    """Judges labels of rows that it was fitted on, out of fold, and of new rows.

    Attributes:
        makers: of the features, one for each view.
        learners: for each view, by name; they predict new rows.
        weights: for each view, of its learners; their sum is the sharpness of the pooled prediction.
        noise: the noise model.
        by_chance: whether labels are predicted no better than by chance; no label is then judged wrong.
        views: for each view, the learners by fold, which are not stored.
        shares: by view and learner, the weight as a share of all.
        log_q: (N, C) the pooled out-of-fold log probabilities of the fitted rows, if they were kept.
    """

    makers: tuple[Maker, ...]
    learners: tuple[Mapping[str, StoredLearner], ...]
    weights: tuple[Mapping[str, float], ...]
    noise: NoiseModel
    by_chance: bool = False
    views: tuple[FittedView, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    log_q: Floats | None = None

    @staticmethod
    def fit(
        features: FeatureViews | None,
        labels: Ints,
        folds: Ints,
        classes: Sequence[str],
        how: FitOptions | None = None,
    ) -> Judge:
        """Fits the learners of all views, their weights, and the noise model.

        Args:
            features: of the rows to fit on; None if only networks predict.
            labels: (N,) class numbers, -1 for missing labels.
            folds: (R, N) the fold of each row, in each of R divisions.
            classes: (C,) names.
            how: see `FitOptions`.
        """
        how = FitOptions() if how is None else how
        views = () if features is None else features.views
        known = some_rows(np.flatnonzero(labels >= 0), len(classes))
        steps = Steps(how.progress, sum(steps_of(view, FOLDS, len(folds)) for view in views))
        fitted: list[FittedView] = []
        log_p: dict[str, Singles] = {}
        for view in views:
            with threads_for(view.work(FOLDS, len(classes))):
                one = fit_view(
                    view, labels, folds, FOLDS, len(classes), trusted=how.trusted, seed=how.seed, trees=how.trees,
                    run=how.run, rows=how.rows, steps=steps,
                )  # fmt: skip
                if not how.keep:
                    grow_forests(one, how.run)
                found = predict_rows(view, one, folds, None if how.keep else known, run=how.run, steps=steps)
            log_p |= {f"{view.name}: {name}": values for name, values in found.items()}
            fitted.append(one)
        log_p |= how.networks
        if how.keep and how.progress is not None:
            how.progress("judging", 0, 1)
        predicted = list(log_p.values())
        places = known if how.keep else np.arange(len(known))
        weights = pool_weights([values[places] for values in predicted], labels[known])
        log_q = without_spellings(pooled(weights, predicted), labels if how.keep else labels[known], classes)
        transition = np.mean([one.transition for one in fitted], axis=0) if fitted else None
        former = labels if how.former is None else how.former
        noise = fit_noise(log_q[places], former[known], transition, run=how.run, last=how.keep)
        by_name = dict(zip(log_p, weights.tolist(), strict=True))
        return Judge(
            makers=() if features is None else features.makers,
            learners=tuple(one.models for one in fitted),
            weights=tuple(
                {name: by_name[f"{view.name}: {name}"] for name in one.by_fold}
                for view, one in zip(views, fitted, strict=True)
            ),
            noise=noise,
            by_chance=noise.by_chance,
            views=() if how.keep else tuple(fitted),
            shares=shares(by_name),
            log_q=log_q if how.keep else None,
        )

    def predict(
        self,
        data: Dataset,
        folds: Ints | None = None,
        *,
        embedded: Singles | None = None,
        device: Any = None,
        progress: Progress | None = None,
    ) -> Floats:
        """(N, C) the pooled log probabilities of some samples.

        Args:
            data: samples of the kind that was fitted on.
            folds: (R, N) the folds of these rows, which are then predicted by models that did not learn from them; None for new rows.
            embedded: (N, D) the embeddings of the samples, if there is an encoder and they are known.
            device: for the encoder.
            progress: reports the encoding.
        """
        log_p: list[Singles] = []
        weights: list[float] = []
        for k, maker in enumerate(self.makers):
            if isinstance(maker, Embeddings) and embedded is not None:
                view = View(maker.name, embedded)
            else:
                view = maker.view(data, device, progress)
            used = {name: weight for name, weight in self.weights[k].items() if weight > 0}
            if folds is None:
                found = {name: self.learners[k][name].log_p(view.x, view.trees) for name in used}
            else:
                found = self.views[k].predict(view, folds, used)
            log_p += [found[name] for name in used]
            weights += used.values()
        return pooled(np.array(weights), log_p)

    def score(self, log_q: Floats, labels: Ints) -> tuple[Floats, Floats, Ints]:
        """(N,) each: the probability that a label is wrong, its log odds, and the likeliest other class.

        Args:
            log_q: (N, C) as `predict` returns them.
            labels: (N,) class numbers, none missing.
        """
        odds, suggested = self.noise.score(log_q, labels)
        p = expit(odds)
        return np.minimum(p, 0.5) if self.by_chance else p, odds, suggested

    def judge_rows(self, log_q: Floats, given: Ints, classes: Sequence[str], learned: Ints) -> dict[str, NDArray[Any]]:
        """(N,) each: suggested, score, p_error, margin, loss; and the probability of the suggestion for a missing label.

        Args:
            log_q: (N, C) as `predict` returns them.
            given: (N,) class numbers, -1 for missing labels.
            classes: (C,) names.
            learned: the classes with two or more rows; labels of other classes occur once.
        """
        log_q = without_spellings(log_q, np.where(np.isin(given, learned), given, UNLABELED), classes)
        rows = np.flatnonzero(given != UNLABELED)
        single = ~np.isin(given[rows], learned)
        p, odds, suggested = self.score(log_q[rows], given[rows])
        if single.any():
            alone = rows[single]
            odds[single], suggested[single] = judge_lone(
                log_q[alone], given[alone], classes, learned, self.noise.sharpness
            )
            p[single] = expit(odds[single])
            p = np.minimum(p, 0.5) if self.by_chance else p
        columns: dict[str, NDArray[Any]] = {"suggested": log_q.argmax(1)}
        columns["suggested"][rows] = suggested
        for name, values in {"score": odds, "p_error": p, **evidence(log_q[rows], given[rows])}.items():
            columns[name] = np.full(len(given), np.nan)
            columns[name][rows] = values
        columns["probability"] = np.where(given == UNLABELED, np.exp(log_q.max(1)), np.nan)
        return columns

    def save(self, folder: Path) -> None:
        """Writes ``scorer.json`` and ``scorer.safetensors``."""
        noise = self.noise
        views = [
            {
                "kind": type(maker).__name__,
                "state": maker.state(),
                "learners": [
                    {"name": name, "kind": type(one).__name__, "arrays": one.arrays(), "weight": weights[name]}
                    for name, one in learners.items()
                ],
            }
            for maker, learners, weights in zip(self.makers, self.learners, self.weights, strict=True)
        ]
        numbers = np.array([noise.share, noise.sharpness, noise.offset, noise.shift])
        stored = {"numbers": numbers, "directions": noise.directions, "ratios": noise.ratios}
        write_packed({"format": FORMAT, "views": views, "noise": stored, "by_chance": self.by_chance}, folder / FILE)

    @staticmethod
    def load(folder: Path) -> Judge | None:
        """Reads a saved judge; None if there is no file."""
        if not (folder / f"{FILE}.json").is_file():
            return None
        try:
            tree = read_packed(folder / FILE)
            if tree["format"] != FORMAT:
                raise InputError(f"it has the format {tree['format']!r:.20}, of another version")
            share, sharpness, offset, shift = tree["noise"]["numbers"].tolist()
            directions, ratios = tree["noise"]["directions"], tree["noise"]["ratios"]
            classes = len(directions)
            if directions.shape != (classes, classes) or ratios.shape != (classes, classes):
                raise InputError("the noise model does not fit")
            makers, learners, weights = [], [], []
            for view in tree["views"]:
                makers.append(MAKERS[view["kind"]].of(view["state"]))
                stored = {str(one["name"]): one for one in view["learners"]}
                learners.append({n: LEARNERS[one["kind"]].of(one["arrays"], classes) for n, one in stored.items()})
                weights.append({n: float(one["weight"]) for n, one in stored.items()})
        except Exception as error:  # JSON, safetensors, numpy or scikit-learn may fail on damaged files
            raise InputError(
                f"{folder} holds no fitted model that can be read ({error or type(error).__name__}). Audit the data again."
            ) from error
        noise = NoiseModel(share, sharpness, directions, ratios, offset, shift)
        return Judge(tuple(makers), tuple(learners), tuple(weights), noise, bool(tree["by_chance"]))


# --- files ----------------------------------------------------------------------------------------------------


def write_packed(tree: Any, path: Path) -> None:
    """Writes nested tables of numbers, texts and arrays to ``path.json`` and ``path.safetensors``.

    The JSON holds the checksum of the other file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> write_packed({"x": np.arange(2), "names": ["a", "b"]}, path)
    >>> read_packed(path)
    {'x': array([0, 1]), 'names': ['a', 'b']}
    """
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {}

    def plain(node: Any) -> Any:
        if isinstance(node, np.ndarray):
            arrays[str(len(arrays))] = np.ascontiguousarray(node)
            return {ARRAY: str(len(arrays) - 1)}
        if isinstance(node, dict):
            return {key: plain(value) for key, value in node.items()}
        return [plain(value) for value in node] if isinstance(node, (list, tuple)) else node

    tree = plain(tree)
    content = save(arrays)
    text = json.dumps({"arrays": hashlib.sha256(content).hexdigest(), "tree": tree}, ensure_ascii=False)
    write_atomically(path.with_name(f"{path.name}.safetensors"), content)
    write_atomically(path.with_name(f"{path.name}.json"), text.encode("utf-8", "surrogatepass"))


def read_packed(path: Path) -> Any:
    """Reads the tables that `write_packed` wrote."""
    from safetensors.numpy import load

    content = path.with_name(f"{path.name}.safetensors").read_bytes()
    texts = json.loads(path.with_name(f"{path.name}.json").read_bytes().decode("utf-8", "surrogatepass"))
    if not isinstance(texts, dict) or texts.get("arrays") != hashlib.sha256(content).hexdigest():
        raise InputError(f"{path}.safetensors is not the file that {path.name}.json was written with")
    arrays = load(content)

    def full(node: Any) -> Any:
        if isinstance(node, dict):
            return arrays[node[ARRAY]] if set(node) == {ARRAY} else {key: full(value) for key, value in node.items()}
        return [full(value) for value in node] if isinstance(node, list) else node

    return full(texts["tree"])


# --- features of chunks ---------------------------------------------------------------------------------------


def compute_features(
    data: Dataset,
    encoder: str | Path = "auto",
    *,
    device: Any = None,
    progress: Progress | None = None,
    run: Execution = LOCAL,
    stages: FinishedStages | None = None,
    room: float = np.inf,
) -> tuple[FeatureViews, Ints]:
    """The features of the rows to fit on, and these rows; `FeatureViews.keys` are of all rows.

    Args:
        data: the samples, in memory or in chunks.
        encoder, device, progress: as for `make_views`.
        run: where chunks are encoded and read.
        stages: finished stages of data in chunks; temporary ones by default.
        room: bytes that the features of chunks may take; of more rows, evenly spaced ones are used.
    """
    if not isinstance(data, ChunkedDataset):
        return make_views(data, encoder, device=device, progress=progress), np.arange(len(data))
    if stages is None:
        with tempfile.TemporaryDirectory(prefix="compensate-") as folder:
            kept = FinishedStages(Path(folder), temporary=True)
            return compute_features(
                data, encoder, device=device, progress=progress, run=run, stages=kept, room=room
            )  # fmt: skip
    made = make_views(data.sample, encoder, device=device, fit_only=True)
    report = progress or (lambda stage, done, total: None)
    total = len(data.pieces)
    if made.encoder is not None:
        missing = [(k, piece) for k, piece in enumerate(data.pieces) if not stages.embeddings(k).exists()]
        report("encoding", total - len(missing), total)
        calls = run.map_on_devices(_encode_chunk, missing, made.encoder, stages, device)
        for done, _ in enumerate(calls, total - len(missing) + 1):
            report("encoding", done, total)
    few = data.sample.subset(np.arange(min(100, len(data.sample))))
    width = 0 if made.encoder is None else made.encoder.width
    views = made.of(few, np.zeros((len(few), width), np.float32))
    size = sum(_bytes(view.x) + (0 if view.trees is view.x else _bytes(view.trees)) for view in views)
    most = max(MIN_FITTED, int(min(room / max(size / len(few), 1), len(data))))
    part = np.arange(len(data)) if len(data) <= most else np.linspace(0, len(data) - 1, most).astype(np.int64)
    scan = stages.read_scan()
    if scan is None:
        keys, parts = [], []
        for done, (key, found) in enumerate(run.map(_scan_chunk, list(data.chunks(part)), made, stages), 1):
            keys.append(key)
            parts.append(found)
            report("reading", done, total)
        joined = tuple(_join_views(list(ones)) for ones in zip(*parts, strict=True))
        scan = None if keys[0] is None else np.concatenate(keys), joined
        stages.write_scan(*scan)
    return replace(made, keys=scan[0], views=scan[1]), part


def _encode_chunk(item: tuple[int, Chunk], encoder: Embeddings, stages: FinishedStages, device: str | None) -> int:
    k, chunk = item
    stages.write_embedded(k, encoder.view(chunk.read(), device).x)
    return k


def _scan_chunk(
    item: tuple[int, Chunk, Ints], made: FeatureViews, stages: FinishedStages
) -> tuple[Ints | None, tuple[View, ...]]:
    """The keys of all rows of a chunk, and the features of some of them."""
    k, chunk, rows = item
    data = chunk.read()
    views = made.of(data, None if made.encoder is None else stages.embedded(k))
    return row_keys(data, views), views if len(rows) == chunk.rows else tuple(view.subset(rows) for view in views)


def _bytes(x: Any) -> int:
    if x is None:
        return 0
    return int(x.nbytes if isinstance(x, np.ndarray) else x.data.nbytes + x.indices.nbytes)


def _join_views(views: list[View]) -> View:
    first = views[0]
    x = _join([view.x for view in views])
    if first.trees is None or first.trees is first.x:
        return View(first.name, x, None if first.trees is None else x)
    return View(first.name, x, _join([view.trees for view in views]))


def _join(parts: list[Any]) -> Any:
    """The rows of all parts; each part is released once it is copied."""
    if sp.issparse(parts[0]):
        return sp.vstack(parts, format="csr")
    joined = np.empty((sum(map(len, parts)), parts[0].shape[1]), parts[0].dtype)
    start = 0
    for k, part in enumerate(parts):
        joined[start : start + len(part)] = part
        start += len(part)
        parts[k] = None
    return joined


# --- judging of chunks ----------------------------------------------------------------------------------------

KEPT = {"score": np.float32, "p_error": np.float32, "suggested": np.int32, "margin": np.float32, "loss": np.float32}
"""The columns of judged rows, and their types in memory."""


def judge_chunks(
    data: ChunkedDataset,
    judge: Judge,
    folds: NDArray[np.int8],
    learned: Ints,
    *,
    flagged: float,
    stages: FinishedStages,
    run: Execution = LOCAL,
    progress: Progress | None = None,
) -> dict[str, NDArray[Any]]:
    """(N,) each: the columns of `Judge.judge_rows` of all rows. Each chunk first writes its own to a file.

    Args:
        data: the chunks, with the given labels.
        judge: which judges them.
        folds: (R, N).
        learned: the classes with two or more rows.
        flagged: the probability of error from which on a label is flagged.
        stages: finished stages.
        run: where to compute.
        progress: reports the judged chunks.
    """
    ends = [slice(piece.start, piece.start + piece.rows) for piece in data.pieces]
    missing = [
        (
            k, data.index[here], data.target[here],
            (piece, folds[:, here]) if judge.log_q is None else judge.log_q[here],
        )
        for k, (piece, here) in enumerate(zip(data.pieces, ends, strict=True))
        if not stages.judged(k).exists()
    ]  # fmt: skip
    total = len(data.pieces)
    # The learners by fold are separate arguments, as when they were fitted: workers have them already.
    light = replace(judge, learners=(), views=(), log_q=None)
    calls = run.map(_judge_chunk, missing, light, data.classes, learned, flagged, stages, *judge.views)
    for done, _ in enumerate(calls, total - len(missing) + 1):
        if progress is not None:
            progress("judging", done, total)
    kept = KEPT if data.labeled.all() else {**KEPT, "probability": np.float32}
    columns: dict[str, NDArray[Any]] = {name: np.empty(len(data), kind) for name, kind in kept.items()}
    for k, rows in enumerate(ends):
        for name, values in stages.read_judged(k, list(kept)).items():
            columns[name][rows] = values
    return columns


def _judge_chunk(
    item: tuple[int, Ints, Ints, tuple[Chunk, NDArray[np.int8]] | Floats],
    judge: Judge,
    classes: tuple[str, ...],
    learned: Ints,
    flagged: float,
    stages: FinishedStages,
    *views: FittedView,
) -> int:
    k, index, given, rows = item
    if isinstance(rows, tuple):
        chunk, folds = rows
        embedded = stages.embedded(k) if any(isinstance(maker, Embeddings) for maker in judge.makers) else None
        rows = replace(judge, views=views).predict(chunk.read(), folds.astype(np.int64), embedded=embedded)
    found = judge.judge_rows(rows, given, classes, learned)
    columns = {"index": index, "given": given, "suggested": found["suggested"]}
    columns |= {name: found[name].astype(np.float32) for name in ("score", "p_error")}
    columns["flagged"] = columns["p_error"] >= flagged
    columns |= {name: found[name].astype(np.float32) for name in ("margin", "loss", "probability")}
    stages.write_judged(k, columns, classes)
    return k
