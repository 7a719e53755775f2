"""Models in three stages, ``forward(x) = head(features(embed(x)))``: a stage for each place a term can be added at."""

from compensate.models.bilstm import BiLSTM
from compensate.models.gated_head import GatedHead
from compensate.models.graph import GCN
from compensate.models.normalize import Normalize
from compensate.models.registry import MODELS, build
from compensate.models.resnet import ResNet
from compensate.models.small import CNN, MLP, probe
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
