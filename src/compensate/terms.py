"""The building blocks of a criterion: what is added, who shares it, what sets it, and for which samples.

A term is any callable of the `State` of a batch. It goes under a keyword of `compensate.Compensated`, which says what it
is added to::

    from compensate import Compensated
    from compensate.terms import L1, Sample, Toward, uniform

    Compensated(logit=Sample(50_000, 10, penalty=L1(1.0)), label=Toward(uniform, 0.1))
"""

from __future__ import annotations

from compensate.gates import Where, above, below
from compensate.granularity import Category, Corpus, Fresh, Group, Sample
from compensate.inference.adversarial import Adversarial, Pull
from compensate.inference.gradients import Amplify, ClipGradient, GradientNoise, SharpnessAware
from compensate.inference.prior import Slack, Toward, prediction, uniform
from compensate.inference.regularized import L1, L2, AtLeast, Ball, Between, GroupL2
from compensate.inference.statistics import ClassMean, Evidence, Statistic
from compensate.inference.tuning import Ramp, StepSchedule, Top, Warmup
from compensate.inference.view_terms import ExtremeView, OtherView, RandomMix
from compensate.state import State
from compensate.structure import Dissimilarity, EdgeRecord, Edges
from compensate.views import Views

__all__ = [
    "L1",
    "L2",
    "Adversarial",
    "Amplify",
    "AtLeast",
    "Ball",
    "Between",
    "Category",
    "ClassMean",
    "ClipGradient",
    "Corpus",
    "Dissimilarity",
    "EdgeRecord",
    "Edges",
    "Evidence",
    "ExtremeView",
    "Fresh",
    "GradientNoise",
    "Group",
    "GroupL2",
    "OtherView",
    "Pull",
    "Ramp",
    "RandomMix",
    "Sample",
    "SharpnessAware",
    "Slack",
    "State",
    "Statistic",
    "StepSchedule",
    "Top",
    "Toward",
    "Views",
    "Warmup",
    "Where",
    "above",
    "below",
    "prediction",
    "uniform",
]
