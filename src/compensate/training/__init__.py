"""Training for real: one resumable loop for every method, in one process or many.

`fit(Config(data="cifar10", noise="pair:0.2", method="logcomp"))` is a run; the command ``compensate train`` is the same.
"""

from compensate.training.config import PROTOCOL, RECIPES, Config, read_toml, settled
from compensate.training.distributed import Exchange, Processes, together
from compensate.training.evaluation import Samples, evaluate, predict
from compensate.training.fitting import fit
from compensate.training.hardware import Hardware
from compensate.training.preparation import Prepared, make_criterion, make_model, prepare_run
from compensate.training.record import train_and_record
from compensate.training.run import Result, Run, load_config, load_model
from compensate.training.step import OPTIMIZERS, SCHEDULES, Learner, TrainingBatch
from compensate.training.trainer import EarlyStopping, Interrupted, Trainer

__all__ = [
    "OPTIMIZERS",
    "PROTOCOL",
    "RECIPES",
    "SCHEDULES",
    "Config",
    "EarlyStopping",
    "Exchange",
    "Hardware",
    "Interrupted",
    "Learner",
    "Prepared",
    "Processes",
    "Result",
    "Run",
    "Samples",
    "Trainer",
    "TrainingBatch",
    "evaluate",
    "fit",
    "load_config",
    "load_model",
    "make_criterion",
    "make_model",
    "predict",
    "prepare_run",
    "read_toml",
    "settled",
    "together",
    "train_and_record",
]
