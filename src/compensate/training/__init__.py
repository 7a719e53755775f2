"""Training for real: one resumable loop for every method, in one process or many.

`fit(Config(data="cifar10", noise="pair:0.2", method="logcomp"))` is a run; the command ``compensate train`` is the same.
"""

from compensate.training.config import PROTOCOL, RECIPES, Config, read_toml, settled
from compensate.training.distribution import Processes, together
from compensate.training.evaluation import evaluate, predict
from compensate.training.exchange import Exchange
from compensate.training.finished import load_config, load_model
from compensate.training.loop import fit
from compensate.training.outcome import Result
from compensate.training.preparation import Prepared, make_criterion, make_model, prepare
from compensate.training.run import Run
from compensate.training.schedule import OPTIMISERS, SCHEDULES

__all__ = [
    "OPTIMISERS",
    "PROTOCOL",
    "RECIPES",
    "SCHEDULES",
    "Config",
    "Exchange",
    "Prepared",
    "Processes",
    "Result",
    "Run",
    "evaluate",
    "fit",
    "load_config",
    "load_model",
    "make_criterion",
    "make_model",
    "predict",
    "prepare",
    "read_toml",
    "settled",
    "together",
]
