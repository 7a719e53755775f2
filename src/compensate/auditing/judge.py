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
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

from compensate.auditing.chunks import Chunk, ChunkedDataset, FinishedStages, evenly
from compensate.auditing.class_names import judge_lone, without_spellings
from compensate.auditing.execution import LOCAL, Execution
from compensate.auditing.features import (
    MAKERS,
    Columns,
    Embeddings,
    FeatureViews,
    Maker,
    Progress,
    Words,
    make_views,
    row_keys,
)
from compensate.auditing.learners import FOLDS, LEARNERS, ByFold, Steps, StoredLearner, View, judge_view, predict_rows
from compensate.auditing.noise_model import (
    NoiseModel,
    best_linear,
    evidence,
    fit_noise,
    normalized,
    pool,
    pooled,
    shares,
    some_rows,
)
from compensate.auditing.opinions import second_opinion
from compensate.data.dataset import UNLABELED, Dataset, Floats, Ints, Singles
from compensate.errors import InputError
from compensate.extras import require
from compensate.files import write_atomically

FORMAT = 1  # version of the files that `Judge.save` writes
FILE = "scorer"  # their name without the suffix
ARRAY = "array"  # key under which the JSON names an array
MIN_FITTED = 1000  # rows that learners are fitted on, at least


@dataclass(frozen=True, eq=False)
class Judge:
    """Judges labels of rows that it was fitted on, out of fold, and of new rows.

    Attributes:
        makers: of the features, one for each view.
        learners: for each view, by name; they predict new rows.
        weights: for each view, of its learners; their sum is the sharpness of the pooled prediction.
        noise: the noise model.
        by_fold: for each view, the learners by fold, which are not stored.
        shares: by view and learner, the weight as a share of all.
        opinions: by name, the weight of each opinion itself apart from the learners of it; not stored.
        log_q: (N, C) the pooled out-of-fold log probabilities of the fitted rows, if they were kept.
        arrays: further ones that a kind of label needs.
    """

    makers: tuple[Maker, ...]
    learners: tuple[Mapping[str, StoredLearner], ...]
    weights: tuple[Mapping[str, float], ...]
    noise: NoiseModel
    by_fold: tuple[ByFold, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    opinions: Mapping[str, float] = field(default_factory=dict)
    log_q: Floats | None = None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @staticmethod
    def fit(
        features: FeatureViews | None,
        labels: Ints,
        folds: Ints,
        classes: Sequence[str],
        *,
        keep: bool = True,
        former: Ints | None = None,
        networks: Mapping[str, Singles] | None = None,
        opinions: Mapping[str, Floats] | None = None,
        run: Execution = LOCAL,
        progress: Progress | None = None,
        **options: Any,
    ) -> Judge:
        """Fits the learners of all views, their weights, and the noise model.

        Args:
            features: of the rows to fit on; None if only networks predict.
            labels: (N,) class numbers, -1 for missing labels.
            folds: (R, N) the fold of each row, in each of R divisions.
            classes: (C,) names.
            keep: keep the predictions of all fitted rows as `Judge.log_q`, and no learners by fold.
            former: (N,) labels on which the noise model is fitted, if they differ from the present ones.
            networks: (N, C) log probabilities of further models, by name.
            opinions: (N, C) log probabilities that were made without the labels, by name; see `compensate.auditing.opinions`.
            run: where to compute.
            progress: reports the stages.
            options: of `judge_view`.
        """
        views = () if features is None else features.views
        known = some_rows(labels, len(classes))
        predicted: Any = slice(None) if keep else known
        options |= {"some": None if keep else known, "run": run, "steps": Steps(progress, views, len(folds))}
        fitted = [judge_view(view, labels, folds, FOLDS, len(classes), **options) for view in views]
        log_p = {f"{view.name}: {n}": p for view, one in zip(views, fitted, strict=True) for n, p in one.log_p.items()}
        if keep and progress is not None:
            progress("judging", 0, 1)
        log_q, weights = pool({**log_p, **(networks or {})}, labels[predicted])
        reported, itself = dict(weights), {}
        for name, opinion in (opinions or {}).items():
            learned: dict[str, NDArray[np.floating]] = {name: normalized(opinion[predicted])}
            guess = np.where(opinion.any(1), opinion.argmax(1), UNLABELED)
            if len(np.unique(guess[guess != UNLABELED])) > 1:
                alone = options | {"trusted": None, "steps": Steps()}
                for view, one in zip(views, fitted, strict=True):
                    judged = judge_view(view, guess, folds, FOLDS, len(classes), **alone)
                    learned |= {f"{view.name}: {name}: {n}": p for n, p in judged.log_p.items()}
                    one.models.update({f"{name}: {n}": model for n, model in judged.models.items()})
                    one.by_fold.update({f"{name}: {n}": models for n, models in judged.by_fold.items()})
            said, own = pool(learned, labels[predicted])
            log_q, reported[name] = second_opinion(log_q, said, labels[predicted])
            weights |= {n: reported[name] * weight for n, weight in own.items()}
            itself[name] = weights[name]
        log_q = without_spellings(log_q, labels[predicted], classes)
        noise = fit_noise(
            log_q, (labels if former is None else former)[predicted], best_linear(log_p, labels[predicted]), run=run
        )
        if keep:
            run.finish()
        of_view = [{n: weights[f"{v.name}: {n}"] for n in one.models} for v, one in zip(views, fitted, strict=True)]
        return Judge(
            makers=() if features is None else features.makers, learners=tuple(one.models for one in fitted),
            weights=tuple(of_view), noise=noise, by_fold=() if keep else tuple(one.by_fold for one in fitted),
            shares=shares(reported), opinions=itself, log_q=log_q if keep else None,
        )  # fmt: skip

    def predict(
        self,
        data: Dataset,
        folds: Ints | None = None,
        *,
        embedded: Singles | None = None,
        opinion: Floats | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """(N, C) the pooled log probabilities of some samples.

        Args:
            data: samples of the kind that was fitted on.
            folds: (R, N) the folds of these rows, which are then predicted by models that did not learn from them; None for new rows.
            embedded: (N, D) the embeddings of the samples, if there is an encoder and they are known.
            opinion: (N, C) the sum of the opinions on these rows, times their weights.
            progress: of the encoder.
        """
        log_p: list[Singles] = []
        weights: list[float] = []
        for k, view in enumerate(FeatureViews(self.makers).of(data, embedded, progress)):
            used = {name: weight for name, weight in self.weights[k].items() if weight > 0}
            if folds is None:
                found = {name: self.learners[k][name].log_p(view.x, view.trees) for name in used}
            else:
                found = predict_rows(view, {name: self.by_fold[k][name] for name in used}, folds)
            log_p += found.values()
            weights += used.values()
        if opinion is not None:
            log_p.append(opinion.astype(np.float32))
            weights.append(1.0)
        return pooled(np.array(weights), log_p)

    def reasons(self, data: Dataset, given: Ints, suggested: Ints) -> list[list[tuple[str, float]]]:
        r"""For each sample, the words of its text and the columns of its table, by their contribution to the suggested class over the given one.

        .. math:: c_{ij} = x_{ij} (W_{j s_i} - W_{j g_i})

        with the weights :math:`W` of the LogComp model of the words or columns, the mean over folds; features of one column are added. The contributions
        and the difference of the intercepts are the difference of the logits.
        """
        found: list[list[tuple[str, float]]] = [[] for _ in range(len(data))]
        for maker, learners in zip(self.makers, self.learners, strict=True):
            if not isinstance(maker, Words | Columns):
                continue
            x, names, w = sp.csr_matrix(maker.view(data).x), maker.names, learners["logcomp"].arrays()["weights"]
            for i, (g, s) in enumerate(zip(given.tolist(), suggested.tolist(), strict=True)):
                here = slice(x.indptr[i], x.indptr[i + 1])
                at, parts = x.indices[here], dict[str, float]()
                for j, value in zip(at.tolist(), x.data[here] * (w[at, s] - w[at, g]), strict=True):
                    parts[names[j]] = parts.get(names[j], 0.0) + float(value)
                found[i] += parts.items()
        return [sorted(parts, key=lambda part: -part[1]) for parts in found]

    def score(self, log_q: Floats, labels: Ints) -> tuple[Floats, Floats, Ints]:
        """(N,) each: the probability that a label is wrong, its log odds, and the likeliest other class; see `NoiseModel.score`."""
        odds, suggested = self.noise.score(log_q, labels)
        return np.minimum(expit(odds), 0.5 if self.noise.by_chance else 1.0), odds, suggested

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
        odds, suggested = self.noise.score(log_q[rows], given[rows])
        if single.any():
            alone, sharpness = rows[single], self.noise.sharpness
            odds[single], suggested[single] = judge_lone(log_q[alone], given[alone], classes, learned, sharpness)
        p = np.minimum(expit(odds), 0.5 if self.noise.by_chance else 1.0)
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
        numbers = np.array([noise.share, noise.sharpness, noise.shift, *noise.offsets])
        stored = {"numbers": numbers, "directions": noise.directions, "ratios": noise.ratios}
        tree = {
            "format": FORMAT,
            "views": views,
            "noise": stored,
            "by_chance": noise.by_chance,
            "arrays": dict(self.arrays),
        }
        write_packed(tree, folder / FILE)

    @staticmethod
    def load(folder: Path) -> Judge | None:
        """Reads a saved judge; None if there is no file."""
        if not (folder / f"{FILE}.json").is_file():
            return None
        try:
            tree = read_packed(folder / FILE)
            if tree["format"] != FORMAT:
                raise InputError(f"it has the format {tree['format']!r:.20}, of another version")
            share, sharpness, shift, *offsets = tree["noise"]["numbers"].tolist()
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
        noise = NoiseModel(
            share, sharpness, directions, ratios, np.array(offsets), shift, by_chance=bool(tree["by_chance"])
        )
        return Judge(tuple(makers), tuple(learners), tuple(weights), noise, arrays=tree.get("arrays", {}))


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

    def key_of(array: NDArray[Any]) -> dict[str, str]:
        arrays[str(len(arrays))] = np.ascontiguousarray(array)
        return {ARRAY: str(len(arrays) - 1)}

    written = json.dumps(tree, ensure_ascii=False, default=key_of)
    content = save(arrays)
    text = f'{{"arrays": "{hashlib.sha256(content).hexdigest()}", "tree": {written}}}'
    write_atomically(path.with_name(f"{path.name}.safetensors"), content)
    write_atomically(path.with_name(f"{path.name}.json"), text.encode("utf-8", "surrogatepass"))


def read_packed(path: Path) -> Any:
    """Reads the tables that `write_packed` wrote."""
    from safetensors.numpy import load

    content = path.with_name(f"{path.name}.safetensors").read_bytes()
    text = path.with_name(f"{path.name}.json").read_bytes().decode("utf-8", "surrogatepass")
    tree = json.loads(text)
    if not isinstance(tree, dict) or tree.get("arrays") != hashlib.sha256(content).hexdigest():
        raise InputError(f"{path}.safetensors is not the file that {path.name}.json was written with")
    arrays = load(content)
    return json.loads(text, object_hook=lambda node: arrays[node[ARRAY]] if set(node) == {ARRAY} else node)["tree"]


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
            stages = FinishedStages(Path(folder))
            return compute_features(data, encoder, device=device, progress=progress, run=run, stages=stages, room=room)
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
    arrays = [x for view in views for x in (view.x, None if view.trees is view.x else view.trees) if x is not None]
    size = sum(x.nbytes if isinstance(x, np.ndarray) else x.data.nbytes + x.indices.nbytes for x in arrays)
    part = evenly(len(data), max(MIN_FITTED, int(min(room / max(size / len(few), 1), len(data)))))
    keys, parts = [], []
    for done, (key, found) in enumerate(run.map(_scan_chunk, list(data.chunks(part)), made, stages), 1):
        keys.append(key)
        parts.append(found)
        report("reading", done, total)
    views = tuple(map(_join_views, zip(*parts, strict=True)))
    return replace(made, keys=None if keys[0] is None else np.concatenate(keys), views=views), part


def _encode_chunk(item: tuple[int, Chunk], encoder: Embeddings, stages: FinishedStages, device: str | None) -> int:
    k, chunk = item
    content = BytesIO()
    np.save(content, encoder.view(chunk.read(), device).x)
    write_atomically(stages.embeddings(k), content.getvalue())
    return k


def _scan_chunk(
    item: tuple[int, Chunk, Ints], made: FeatureViews, stages: FinishedStages
) -> tuple[Ints | None, tuple[View, ...]]:
    """The keys of all rows of a chunk, and the features of some of them."""
    k, chunk, rows = item
    data = chunk.read()
    views = made.of(data, None if made.encoder is None else stages.embedded(k))
    return row_keys(data, views), views if len(rows) == chunk.rows else tuple(view.subset(rows) for view in views)


def _join_views(views: Sequence[View]) -> View:
    first, *_ = views
    x = sp.vstack([v.x for v in views], format="csr") if sp.issparse(first.x) else np.concatenate([v.x for v in views])
    if first.trees is None or first.trees is first.x:
        return View(first.name, x, None if first.trees is None else x)
    return View(first.name, x, np.concatenate([v.trees for v in views if v.trees is not None]))


# --- judging of chunks ----------------------------------------------------------------------------------------

KEPT = {"score": np.float32, "p_error": np.float32, "suggested": np.int32, "margin": np.float32, "loss": np.float32}
"""The columns of judged rows, and their types in memory."""


def judge_chunks(
    data: ChunkedDataset,
    judge: Judge,
    folds: NDArray[np.int8],
    learned: Ints,
    opinion: Floats | None = None,
    *,
    flagged: float,
    stages: FinishedStages,
    run: Execution = LOCAL,
    progress: Progress | None = None,
) -> dict[str, NDArray[Any]]:
    """(N,) each: the columns of `Judge.judge_rows` of all rows. Each chunk first writes its own to a file.

    Labels with a probability of error from ``flagged`` on are flagged; ``learned`` are the classes with two or more rows, and ``opinion`` is
    as for `Judge.predict`.
    """
    parquet = require("pyarrow.parquet", "writing suspects as Parquet", "parquet")
    places = [slice(piece.start, piece.start + piece.rows) for piece in data.pieces]
    missing = []
    for k, (piece, rows) in enumerate(zip(data.pieces, places, strict=True)):
        if not stages.judged(k).exists():
            said = None if opinion is None else opinion[rows]
            known = (piece, folds[:, rows], said) if judge.log_q is None else judge.log_q[rows]
            missing.append((k, data.index[rows], data.target[rows], known))
    total = len(data.pieces)
    # The learners by fold are separate arguments, as when they were fitted: workers have them already.
    light = replace(judge, learners=(), by_fold=(), log_q=None)
    calls = run.map(_judge_chunk, missing, light, data.classes, learned, flagged, stages, *judge.by_fold)
    for done, _ in enumerate(calls, total - len(missing) + 1):
        if progress is not None:
            progress("judging", done, total)
    kept = KEPT if data.labeled.all() else {**KEPT, "probability": np.float32}
    columns: dict[str, NDArray[Any]] = {name: np.empty(len(data), kind) for name, kind in kept.items()}
    for k, rows in enumerate(places):
        table = parquet.read_table(stages.judged(k), columns=list(kept), use_threads=False, partitioning=None)
        for name, column in columns.items():
            values = table[name].combine_chunks()  # "suggested" holds the numbers of names
            column[rows] = (values.indices if name == "suggested" else values).to_numpy(zero_copy_only=False)
    return columns


def _judge_chunk(
    item: tuple[int, Ints, Ints, tuple[Chunk, NDArray[np.int8], Floats | None] | Floats],
    judge: Judge,
    classes: tuple[str, ...],
    learned: Ints,
    flagged: float,
    stages: FinishedStages,
    *by_fold: ByFold,
) -> int:
    k, index, given, rows = item
    if isinstance(rows, tuple):
        chunk, folds, opinion = rows
        embedded = stages.embedded(k) if any(isinstance(maker, Embeddings) for maker in judge.makers) else None
        judge, divisions = replace(judge, by_fold=by_fold), folds.astype(np.int64)
        rows = judge.predict(chunk.read(), divisions, embedded=embedded, opinion=opinion)
    found = judge.judge_rows(rows, given, classes, learned)
    columns = {"index": index, "given": given, "suggested": found["suggested"]}
    columns |= {name: found[name].astype(np.float32) for name in ("score", "p_error")}
    columns["flagged"] = columns["p_error"] >= flagged
    columns |= {name: found[name].astype(np.float32) for name in ("margin", "loss", "probability")}
    stages.write_judged(k, columns, classes)
    return k
