"""Hyper-parameters by search, judged on labels as noisy as those that are trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from compensate.errors import InputError, NotFinite
from compensate.extras import require
from compensate.files import make_folder
from compensate.methods.composition import find
from compensate.methods.registry import Choice, PaperData, Preset, Space
from compensate.training.comparison import LOST, side_by_side, trained
from compensate.training.config import Config
from compensate.training.preparation import prepare_run

LAST = 5
"""The score is a mean over this many last epochs: one lucky epoch is not a good setting."""


def open_study(folder: Path, name: str, seed: int, pruner: Any = None) -> Any:
    """The study in this folder: a file that several processes write to, and that outlives them."""
    optuna = require("optuna", "tuning", "tune")
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    make_folder(folder)
    file = str(folder / "study.log")
    return optuna.create_study(
        study_name=name,
        storage=JournalStorage(JournalFileBackend(file, lock_obj=JournalFileOpenLock(file))),
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=8, constant_liar=True),
        pruner=optuna.pruners.NopPruner() if pruner is None else pruner,
        direction="maximize",
        load_if_exists=True,
    )


def paper_data_of(config: Config, data: Any) -> PaperData:
    """Which of the paper's settings a data set falls under: texts that are not SST-2 count as IMDB does."""
    if getattr(data.x, "ndim", 0) == 4:
        return "image"
    return "sst2" if "sst" in Path(config.data).name.lower() else "imdb"


def trial_score(
    config: Config,
    folder: Path,
    data_dir: Path | None,
    seeds: int,
    on_epoch: Callable[[Mapping[str, float]], None] | None = None,
) -> float:
    """The mean accuracy on held-out noisy labels over the last epochs and all seeds."""
    values = []
    for k in range(seeds):
        run = config.but(seed=config.seed + k)
        trained(run, folder / "runs", data_dir, on_epoch)
        lines = (folder / "runs" / run.name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        values += [float(np.mean([json.loads(line)["val_accuracy"] for line in lines[-LAST:]]))]
    return float(np.mean(values))


def search_space(
    config: Config,
    folder: Path,
    *,
    preset: Preset = "default",
    trials: int = 20,
    seeds: int = 1,
    workers: int | None = None,
    data_dir: Path | None = None,
    done: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Tries settings until the study has `trials` finished trials; returns the best and all of them.

    A study that was interrupted goes on: finished trials stay, and the setting of a trial that was under way comes first,
    whose training goes on from its checkpoint.
    """
    prepared = prepare_run(config, data_dir=data_dir)
    if prepared.validation is None or not len(prepared.validation):
        raise InputError("tuning needs a validation part; hold out a share of the noisy data: validation=0.1.")
    space = find(config.method).space(preset, paper_data_of(config, prepared.train))
    batch_size = prepared.config.batch_size or 1
    name = f"{config.method}-{preset}-{config.but(hyper={}).id[:8]}-{seeds}"
    study = open_study(folder, name, config.seed)
    take_up_abandoned(study)
    tried, missing = len(study.trials), max(trials - _finished(study), 0)
    # A worker's sampler is seeded by the number of its trial, so that neither two workers nor two sessions draw alike.
    jobs = [(config, folder, name, space, preset, batch_size, seeds, data_dir, tried + k) for k in range(missing)]
    failed = 0
    for ended in side_by_side(_trial, jobs, workers, lost=_lost):
        failed += not ended
        if done is not None:
            done(_finished(study))
    if not _finished(study):
        raise InputError(f"no trial came to its end: {LOST}")
    return _summary(study, config, space, preset, batch_size, seeds) | {"lost": failed}


def _trial(
    config: Config,
    folder: Path,
    name: str,
    space: Space,
    preset: Preset,
    batch_size: int,
    seeds: int,
    data_dir: Path | None,
    number: int,
) -> bool:
    study = open_study(folder, name, config.seed + 1000 * (number + 1))
    # A trial under way with this very number: its process was ended, and this one takes its place.
    take_up_abandoned(study, number)
    trial = study.ask()
    trial.set_user_attr("job", number)
    values = {}
    for key, span in space.ranges.items():
        if isinstance(span, Choice):
            values[key] = trial.suggest_categorical(key, list(span.values))
        else:
            values[key] = trial.suggest_float(key, span.low, span.high, log=span.log)
    hyper = {**config.hyper, **space.hyper(values, preset, batch_size)}
    try:
        study.tell(trial, trial_score(config.but(hyper=hyper), folder, data_dir, seeds))
    except NotFinite:
        # A setting under which training diverges is a bad setting, not the end of the search.
        study.tell(trial, 0.0)
    except InputError:
        _give_up(study, trial)
        raise
    return True


def _lost(*_: Any) -> bool:
    return False


def _give_up(study: Any, trial: Any) -> None:
    from optuna.trial import TrialState

    study.tell(trial, state=TrialState.FAIL)


def take_up_abandoned(study: Any, job: int | None = None) -> None:
    """Trials of processes that are gone would count as under way for ever; their settings are tried first instead."""
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if job is not None and trial.user_attrs.get("job") != job:
            continue
        study.tell(trial.number, state=TrialState.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params)


def _finished(study: Any) -> int:
    from optuna.trial import TrialState

    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))


def _summary(study: Any, config: Config, space: Space, preset: Preset, batch_size: int, seeds: int) -> dict[str, Any]:
    from optuna.trial import TrialState

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    rows = [
        {"number": t.number, "hyper": space.hyper(t.params, preset, batch_size), "validation": t.value}
        for t in complete
    ]
    rows.sort(key=lambda row: (-row["validation"], row["number"]))
    return {
        "method": config.method,
        "preset": preset,
        "seeds": seeds,
        "best": rows[0] if rows else None,
        "trials": rows,
    }
