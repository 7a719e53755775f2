"""Hyper-parameter search with Optuna, scored on validation labels as noisy as the training labels."""

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
from compensate.training.comparison import finished_run
from compensate.training.config import Config
from compensate.training.preparation import prepare_run
from compensate.training.workers import LOST, side_by_side

LAST = 5
"""The score is a mean over this many last epochs, because a single epoch may be lucky."""


def open_study(folder: Path, name: str, seed: int, pruner: Any = None) -> Any:
    """The Optuna study in this folder, in a journal file that several processes share."""
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
    """The paper's setting for a data set: images, SST-2, or IMDB for all other texts."""
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
    """The mean validation accuracy over the last epochs and all seeds."""
    values = []
    for run in (config.replace(seed=config.seed + k) for k in range(seeds)):
        finished_run(run, folder / "runs", data_dir, on_epoch)
        lines = (folder / "runs" / run.name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        values.append(float(np.mean([json.loads(line)["val_accuracy"] for line in lines[-LAST:]])))
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
    """Searches until the study has `trials` finished trials; returns the best and all of them.

    An interrupted study continues: finished trials are kept, and interrupted trials resume first, from their checkpoints.
    """
    prepared = prepare_run(config, data_dir=data_dir)
    if prepared.validation is None or not len(prepared.validation):
        raise InputError("tuning needs a validation part; hold out a share of the noisy data: validation=0.1.")
    space = find(config.method).space(preset, paper_data_of(config, prepared.train))
    batch_size = prepared.config.batch_size or 1
    name = f"{config.method}-{preset}-{config.replace(hyper={}).id[:8]}-{seeds}"
    study = open_study(folder, name, config.seed)
    restart_abandoned(study)
    tried, missing = len(study.trials), max(trials - len(_complete(study)), 0)
    # The number of the trial seeds a worker's sampler: neither two workers nor two sessions draw alike.
    jobs = [(config, folder, name, space, preset, batch_size, seeds, data_dir, tried + k) for k in range(missing)]
    lost = 0
    for finished in side_by_side(_trial, jobs, workers, lost=lambda *job: False):
        lost += not finished
        if done is not None:
            done(len(_complete(study)))
    rows = [
        {"number": t.number, "hyper": space.hyper(t.params, preset, batch_size), "validation": t.value}
        for t in _complete(study)
    ]
    if not rows:
        raise InputError(f"no trial has finished: {LOST}")
    rows.sort(key=lambda row: (-row["validation"], row["number"]))
    return {
        "method": config.method, "preset": preset, "seeds": seeds, "best": rows[0], "trials": rows, "lost": lost,
    }  # fmt: skip


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
    from optuna.trial import TrialState

    study = open_study(folder, name, config.seed + 1000 * (number + 1))
    restart_abandoned(study, number)  # a killed process may have left a running trial of this number
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
        study.tell(trial, trial_score(config.replace(hyper=hyper), folder, data_dir, seeds))
    except NotFinite:
        study.tell(trial, 0.0)  # training diverges with this setting: a bad score, and the search goes on
    except InputError:
        study.tell(trial, state=TrialState.FAIL)
        raise
    return True


def restart_abandoned(study: Any, job: int | None = None) -> None:
    """Marks running trials whose process has ended (all, or only of one job) as failed, and queues their settings first."""
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if job is None or trial.user_attrs.get("job") == job:
            study.tell(trial.number, state=TrialState.FAIL)
            if trial.params:
                study.enqueue_trial(trial.params)


def _complete(study: Any) -> list[Any]:
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
