"""Training: one resumable loop for every method, in one process or several.

`fit(Config(data="digits", noise="pair:0.2", method="logcomp"))` trains one run, like the command ``compensate train``.
"""

from compensate.training.config import PROTOCOL, RECIPES, Config, read_toml, with_recipe
from compensate.training.distributed import Exchange, Hardware, Processes, together
from compensate.training.evaluation import Samples, evaluate, predict
from compensate.training.fitting import Result, fit, train_and_record
from compensate.training.preparation import Prepared, load_model, make_criterion, make_model, prepare_run
from compensate.training.run import Run, load_config
from compensate.training.step import OPTIMIZERS, SCHEDULES, Learner
from compensate.training.trainer import EarlyStopping, Interrupted, Trainer

__all__ = [
    "OPTIMIZERS", "PROTOCOL", "RECIPES", "SCHEDULES", "Config", "EarlyStopping", "Exchange", "Hardware", "Interrupted",
    "Learner", "Prepared", "Processes", "Result", "Run", "Samples", "Trainer", "evaluate", "fit",
    "load_config", "load_model", "make_criterion", "make_model", "predict", "prepare_run", "read_toml", "together",
    "train_and_record", "with_recipe",
]  # fmt: skip
