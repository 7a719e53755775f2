"""The audit of data in pieces: larger than memory, or spread over the workers of a cluster.

The stages are those of every audit. Views are learned from some rows, learners are fitted on an even part of the rows that fits into
memory, weights and the noise model are estimated from rows of that part; then each piece is read, and every row of it is judged by models
that did not learn from it. Where the part is the whole, the result is that of `audit`, up to rounding.

What stays in memory for each row are its label, its fold and five numbers. Each finished stage is kept in a folder, so that an audit that
was interrupted goes on from there.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

from compensate.auditing import learners
from compensate.auditing.arrays import Floats, Ints, Singles
from compensate.auditing.asked import Divided, some_of
from compensate.auditing.class_names import without_spellings
from compensate.auditing.digests import digest_frame
from compensate.auditing.execution import HERE, Execution
from compensate.auditing.folds import FOLDS, assign_folds, num_divisions
from compensate.auditing.large_fit import Judge, fit_part
from compensate.auditing.learners import GROWN_ON, View
from compensate.auditing.lone import judge_lone
from compensate.auditing.noise_model import by_chance_note, evidence, shares
from compensate.auditing.page.examples import POOL
from compensate.auditing.page.fill import MOST_ITEMS
from compensate.auditing.pieces import Piece, PiecedSource
from compensate.auditing.result import Audit
from compensate.auditing.scorer import Scorer
from compensate.auditing.source import CHOSEN, KINDS
from compensate.auditing.stages import FinishedStages
from compensate.auditing.view_makers import Embeddings
from compensate.auditing.views import Makers, fit_makers, keys_of
from compensate.data.dataset import UNLABELED, Data
from compensate.errors import InputError
from compensate.files import make_folder

Progress = Callable[[str, int, int], None]

ROOM = 1_000_000_000
"""Bytes of features that learners are fitted on, where nothing else is asked for."""

SHARE = 0.1
"""The part of the memory that may be used which these features take: fitting copies them, and holds the trees beside them."""

FORESTS = 0.3
"""The part of it that trees may take."""

PER_ROW, REST = 60, 800_000_000
"""Bytes for each row of the source, and for libraries, trees and a piece: without them there is no audit."""

LISTED = 2 * MOST_ITEMS
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
    from compensate.auditing.audit import audited_labels

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


def _part(rows: int, sample: Data, makers: Makers, room: int) -> Ints:
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
    chosen = {name: source.info[name] for name in CHOSEN if source.info.get(name)}
    weights = {
        f"{name}: {learner}": weight
        for name, by_name in zip(judge.names, judge.weights, strict=True)
        for learner, weight in by_name.items()
    }
    config = {
        **chosen, **config, "folds": FOLDS, **makers.about, "views": shares(weights),
        "agreement": float((kept["margin"] > 0).mean(where=often)), "by_chance": judge.by_chance,
    }  # fmt: skip
    unlabeled = {name: judged[name][lost] for name in ("suggested", "probability") if len(lost)}
    return Audit(
        kind=KINDS.get(str(source.info.get("kind")), "embedding"),
        title=str(source.info.get("title", "the data")),
        classes=source.classes,
        index=source.numbers(rows),
        given=source.labels[whole],
        suggested=kept["suggested"],
        log_odds=kept["score"],
        p_error=kept["p_error"],
        evidence={"margin": kept["margin"], "loss": kept["loss"]},
        noise_rate=judge.noise.share(float(kept["p_error"].mean(dtype=np.float64, where=often))),
        unlabeled={"index": source.numbers(lost), **unlabeled} if len(lost) else {},
        config=config,
        notes=(*notes, by_chance_note("labels", source.info)) if judge.by_chance else notes,
        source_digest=str(source.info.get("source_digest", "")),
        fitted=Scorer(makers.makers, judge.models, judge.weights, judge.noise.model, judge.by_chance),
    )


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
    digests = source.info.get("row_digests")
    if digests is not None:
        digests = digests[index]
    elif isinstance(data.raw, pd.DataFrame):
        digests = digest_frame(data.raw, str(source.info.get("label")))
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
        config={**whole.config, "rows": len(whole), "flagged": int(whole.mask.sum())},
    )
