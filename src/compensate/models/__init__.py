"""Models in three stages, ``forward(x) = head(features(embed(x)))``: a stage for each place a term can be added at."""

from compensate.models.networks import CNN, GCN, MLP, MODELS, BiLSTM, GatedHead, Normalize, ResNet

# isort: split
from compensate.models.networks import Staged, Stages, build, probe

__all__ = ["CNN", "GCN", "MLP", "MODELS", "BiLSTM", "GatedHead", "Normalize", "ResNet", "Staged", "Stages", "build",
           "probe"]  # fmt: skip
