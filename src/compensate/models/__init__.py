"""Models in three stages, ``forward(x) = head(features(embed(x)))``: a stage for each place a term can be added at."""

from compensate.models.networks import CNN, GCN, MLP, BiLSTM, GatedHead, Normalize, ResNet, probe
from compensate.models.registry import MODELS, build
from compensate.models.staged import Staged, Stages

__all__ = [
    "CNN",
    "GCN",
    "MLP",
    "MODELS",
    "BiLSTM",
    "GatedHead",
    "Normalize",
    "ResNet",
    "Staged",
    "Stages",
    "build",
    "probe",
]
