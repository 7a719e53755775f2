"""Search over the taxonomy: which of its cells, most of them without a name, is worth a name on this data?

First many cells are tried for a short time each, on one seed, judged on held-out labels as noisy as the training labels;
trials that fall behind are stopped. Then the best cells meet the tuned peers over fresh seeds, on test data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compensate._version import __version__
from compensate.core.criterion import DIRECTIONS, GRANULARITIES, INFERENCES, TARGETS, Taxonomy
from compensate.errors import InputError, NotFinite
from compensate.extras import require
from compensate.files import make_folder, write_atomically
from compensate.methods.composition import cell_method, find, why_not
from compensate.methods.registry import Method
from compensate.training import comparison
from compensate.training.comparison import open_study, restart_abandoned, search_space, trial_score
from compensate.training.config import Config
from compensate.training.preparation import prepare_run
from compensate.training.run import Run
from compensate.training.workers import side_by_side
from experiments.taxonomy import cells

PEERS = ("base", "gce", "elr", "sop")
"""The peers of a cell: no compensation, the usual robust loss, and two published compensations."""

CLEAN = 0.02
"""The share of clean samples where cells that learn from them are searched."""

FRESH = 1000
"""Added to the seed of the search for the seeds of the comparison: other splits, other noise, other weights."""


class Pruned(Exception):
    """A trial that fell behind the others."""


@dataclass(frozen=True)
class Part:
    """A part of the taxonomy, by the values of its axes.

    >>> part = Part(targets=("logit",), inferences=("prior",), granularities=("sample",))
    >>> [".".join(cell) for cell in part.cells()]
    ['logit.positive.prior.sample', 'logit.negative.prior.sample', 'logit.mixed.prior.sample']
    """

    targets: tuple[str, ...] = tuple(target for target in TARGETS if target != "structure")
    directions: tuple[str, ...] = DIRECTIONS
    inferences: tuple[str, ...] = tuple(inference for inference in INFERENCES if inference != "meta")
    granularities: tuple[str, ...] = tuple(level for level in GRANULARITIES if level != "group")

    def __post_init__(self) -> None:
        known = {"targets": TARGETS, "directions": DIRECTIONS, "inferences": INFERENCES, "granularities": GRANULARITIES}
        for name, values in known.items():
            for value in getattr(self, name):
                if value not in values:
                    raise InputError(f'{name} has "{value}"; expected some of {", ".join(values)}.')
            # One part has one name, in whatever order its values are given.
            object.__setattr__(self, name, tuple(value for value in values if value in getattr(self, name)))
        if "structure" in self.targets:
            raise InputError("structure needs a graph, which data sets do not have; leave it out of the targets.")

    @property
    def name(self) -> str:
        """Eight digits that tell this part from others; nothing for the part that is searched by default.

        >>> Part().name, Part(targets=("logit", "label")).name == Part(targets=("label", "logit")).name
        ('', True)
        """
        return "" if self == Part() else hashlib.sha256(json.dumps(vars(self)).encode()).hexdigest()[:8]

    def cells(self) -> list[Taxonomy]:
        """The cells that run."""
        return [cell for cell in cells() if self.holds(cell) and why_not(cell) is None]

    def holds(self, cell: Taxonomy) -> bool:
        """True if the cell lies in this part."""
        axes = (self.targets, self.directions, self.inferences, self.granularities)
        return all(value in axis for value, axis in zip(cell, axes, strict=True))


@dataclass(frozen=True)
class Budget:
    """How much is tried.

    Attributes:
        trials: number of cells with numbers, including trials that are stopped early.
        finalists: cells that meet the peers.
        seeds: of that comparison.
        peer_trials: settings that are tried of each peer.
    """

    trials: int = 60
    finalists: int = 3
    seeds: int = 3
    peer_trials: int = 10


def explore(
    config: Config,
    folder: Path,
    *,
    part: Part | None = None,
    budget: Budget | None = None,
    workers: int | None = None,
    data_dir: Path | None = None,
    done: Callable[[str, int, int], None] = lambda what, number, total: None,
) -> dict[str, Any]:
    """Searches, compares and stores the results as `search.json`; finished trials are not repeated.

    Args:
        config: the run; its method and hyper-parameters are replaced.
        folder: of studies and runs.
        part: of the taxonomy.
        budget: how much is tried.
        workers: processes.
        data_dir: where named data sets are.
        done: called with the name of the current stage, the number of finished units and of all.
    """
    part, budget = part or Part(), budget or Budget()
    config = searched(config, part)
    prepared = prepare_run(config, data_dir=data_dir)
    if prepared.validation is None or not len(prepared.validation):
        raise InputError("a search needs a validation part; hold out a share of the noisy data: --set validation=0.1.")
    make_folder(folder / "runs")
    epochs = prepared.config.epochs or 1
    name = "-".join(filter(None, ("cells", config.id[:8], part.name)))
    _try_cells(config, folder, name, part, budget.trials, epochs, workers, data_dir, done)
    study = open_study(folder, name, config.seed)
    tried = _tried(study, part)
    if not any(row["validation"] is not None for row in tried):
        raise InputError("no trial came to its end; give the search more trials or a larger part of the taxonomy.")
    best = _best(tried, budget.finalists)
    peers = _tuned_peers(config, folder, budget, workers, data_dir, done)
    methods = {**peers, **{row["cell"]: row["hyper"] for row in best}}
    configs = comparison.plan(config.replace(seed=config.seed + FRESH), methods, budget.seeds)
    runs, failed = _compared(configs, folder, workers, data_dir, done)
    tables = {peer: comparison.comparison_table(runs, list(methods), peer) for peer in PEERS if _has(runs, peer)}
    found = {
        "version": __version__,
        "common": {k: v for k, v in prepared.config.json.items() if k not in ("method", "hyper", "seed")},
        "part": {"cells": len(part.cells()), **{k: list(v) for k, v in vars(part).items()}},
        "budget": vars(budget),
        "seeds": {"search": config.seed, "comparison": [config.seed + FRESH + k for k in range(budget.seeds)]},
        "trials": tried,
        "best": best,
        "peers": peers,
        "tables": {peer: [vars(row) for row in rows] for peer, rows in tables.items()},
        "runs": [{"method": r["config"]["method"], "seed": r["config"]["seed"], **r["result"]} for r in runs],
        "failed": failed,
    }
    found = comparison.json_safe(found)
    write_atomically(folder / "search.json", (json.dumps(found, indent=1) + "\n").encode())
    return found


def searched(config: Config, part: Part) -> Config:
    """The run whose method the cells replace. If some cells need clean samples, no cell trains on them."""
    share = CLEAN if "meta" in part.inferences else 0.0
    return config.replace(method="base", hyper={}, clean=share if config.clean is None else config.clean)


# --- trials -------------------------------------------------------------------------------------------------------


def _try_cells(
    config: Config,
    folder: Path,
    name: str,
    part: Part,
    trials: int,
    epochs: int,
    workers: int | None,
    data_dir: Path | None,
    done: Callable[[str, int, int], None],
) -> None:
    study = open_study(folder, name, config.seed)
    restart_abandoned(study)
    begun, ended = len(study.trials), _ended(study, part)
    done("trying cells", ended, trials)
    jobs = [(config, folder, name, part, epochs, data_dir, begun + k) for k in range(max(trials - ended, 0))]
    for _ in side_by_side(_trial, jobs, workers, lost=_lost):
        ended += 1
        done("trying cells", ended, trials)


def _trial(
    config: Config, folder: Path, name: str, part: Part, epochs: int, data_dir: Path | None, number: int
) -> bool:
    optuna = require("optuna", "searching", "tune")
    from optuna.trial import TrialState

    # A third of the trials goes on at each of three stages; every process decides for itself.
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, epochs // 6), reduction_factor=3)
    study = open_study(folder, name, config.seed + 1000 * (number + 1), pruner)
    restart_abandoned(study, number)
    trial, row = _next_cell(study, part, number)
    assert row.search is not None
    hyper = {key: _at(span, trial.suggest_float(key, 0.0, 1.0)) for key, span in row.search.ranges.items()}
    trial.set_user_attr("cell", row.name)
    trial.set_user_attr("hyper", hyper)

    def watch(metrics: Mapping[str, float]) -> None:
        trial.report(metrics["val_accuracy"], int(metrics["epoch"]))
        if trial.should_prune():
            raise Pruned

    try:
        study.tell(trial, trial_score(config.replace(method=row.name, hyper=hyper), folder, data_dir, 1, watch))
    except Pruned:
        study.tell(trial, state=TrialState.PRUNED)
    except NotFinite:
        study.tell(trial, 0.0)
    except InputError as error:
        # A cell that this data or model cannot have, such as feature compensation of word numbers: it is noted, not tried again.
        trial.set_user_attr("refused", str(error))
        study.tell(trial, state=TrialState.FAIL)
    return True


def _lost(*_: Any) -> bool:
    return False


def _next_cell(study: Any, part: Part, number: int) -> tuple[Any, Method]:
    """The next trial, and the cell that it is about: axes are chosen one by one until they meet in a cell that runs."""
    from optuna.trial import TrialState

    axes = {
        "target": part.targets, "direction": part.directions, "inference": part.inferences, "granularity": part.granularities
    }  # fmt: skip
    for _ in range(100):
        trial = study.ask()
        trial.set_user_attr("job", number)
        cell = Taxonomy(*(str(trial.suggest_categorical(axis, list(values))) for axis, values in axes.items()))
        if why_not(cell) is None:
            return trial, cell_method(".".join(cell))
        study.tell(trial, state=TrialState.FAIL)
    raise InputError("hardly any cell of this part of the taxonomy runs; search a larger part.")


def _at(span: Any, share: float) -> float:
    """The number at a share of a range."""
    if span.log:
        return float(span.low * (span.high / span.low) ** share)
    return float(span.low + share * (span.high - span.low))


def _ended(study: Any, part: Part) -> int:
    return sum(
        row["validation"] is not None or row["stopped"] is not None or bool(row["refused"])
        for row in _tried(study, part)
    )


def _tried(study: Any, part: Part) -> list[dict[str, Any]]:
    """All trials of cells of the part: finished ones by accuracy, then stopped ones, then refused ones."""
    from optuna.trial import TrialState

    rows = []
    for t in study.get_trials(deepcopy=False):
        if "cell" not in t.user_attrs or t.state in (TrialState.RUNNING, TrialState.WAITING):
            continue
        if not part.holds(Taxonomy(*t.user_attrs["cell"].split("."))):
            continue
        stopped = max(t.intermediate_values, default=0) if t.state == TrialState.PRUNED else None
        refused = t.user_attrs.get("refused", "")
        if t.state == TrialState.FAIL and not refused:
            continue  # of a process that was ended; its setting was taken up
        rows.append(
            {
                "cell": t.user_attrs["cell"], "hyper": t.user_attrs["hyper"],
                "validation": t.value if t.state == TrialState.COMPLETE else None, "stopped": stopped, "refused": refused,
            }
        )  # fmt: skip
    return sorted(
        rows, key=lambda row: (row["validation"] is None, -(row["validation"] or 0.0), -(row["stopped"] or 0))
    )


def _best(tried: Sequence[Mapping[str, Any]], count: int) -> list[dict[str, Any]]:
    """The best setting of each of the best cells."""
    found: dict[str, dict[str, Any]] = {}
    for row in tried:
        if row["validation"] is not None:
            found.setdefault(row["cell"], {k: row[k] for k in ("cell", "hyper", "validation")})
    return list(found.values())[:count]


# --- the comparison -----------------------------------------------------------------------------------------------


def _tuned_peers(
    config: Config,
    folder: Path,
    budget: Budget,
    workers: int | None,
    data_dir: Path | None,
    done: Callable[[str, int, int], None],
) -> dict[str, dict[str, Any]]:
    """Each peer with its best setting, tuned on the seed of the search by the same labels."""
    tuned: dict[str, dict[str, Any]] = {}
    for peer in PEERS:
        if find(peer).search is None:
            tuned[peer] = {}
            continue

        def told(number: int, peer: str = peer) -> None:
            done(f"tuning {peer}", number, budget.peer_trials)

        found = search_space(
            config.replace(method=peer),
            folder,
            trials=budget.peer_trials,
            workers=workers,
            data_dir=data_dir,
            done=told,
        )
        tuned[peer] = found["best"]["hyper"]
    return tuned


def _compared(
    configs: Sequence[Config],
    folder: Path,
    workers: int | None,
    data_dir: Path | None,
    done: Callable[[str, int, int], None],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    runs = [stored for c in configs if (stored := Run(folder / "runs" / c.name).result) is not None]
    finished, failed = {stored["id"] for stored in runs}, []
    jobs = [(c, folder / "runs", data_dir) for c in configs if c.id not in finished]
    done("comparing", len(runs), len(configs))
    for config, outcome in side_by_side(comparison.attempt, jobs, workers, lost=comparison.lost_run):
        if isinstance(outcome, str):
            failed.append({"method": config.method, "seed": config.seed, "reason": outcome})
        else:
            runs.append(outcome)
        done("comparing", len(runs), len(configs))
    return runs, failed


def _has(runs: Sequence[Mapping[str, Any]], method: str) -> bool:
    return any(run["config"]["method"] == method for run in runs)
