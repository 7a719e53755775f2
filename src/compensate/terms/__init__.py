"""The building blocks of a criterion: terms, tables, penalties, statistics, schedules and gates.

A term is any callable of the `Batch`. The keyword of `compensate.Compensated` is the target that it is added to::

    from compensate import Compensated
    from compensate.terms import L1, Sample, Toward, uniform

    Compensated(logit=Sample(50_000, 10, penalty=L1(1.0)), label=Toward(uniform, 0.1))
"""

from __future__ import annotations

from compensate.core.batch import Batch
from compensate.core.proximal import L1, L2, AtLeast, Ball, Between, GroupL2
from compensate.core.statistics import ClassMean, Evidence, Statistic
from compensate.core.tables import Category, Corpus, Fresh, Group, Sample
from compensate.terms.adversarial import Adversarial, Pull
from compensate.terms.gradients import Amplify, ClipGradient, GradientNoise, SharpnessAware
from compensate.terms.prior import Slack, Toward, prediction, uniform
from compensate.terms.schedules import Ramp, StepSchedule, Top, Warmup, Where, above, below
from compensate.terms.strength import Scaled, Strength
from compensate.terms.structure import Dissimilarity, EdgeRecord, Edges
from compensate.terms.views import ExtremeView, OtherView, RandomMix, Views

__all__ = [
    "L1", "L2", "Adversarial", "Amplify", "AtLeast", "Ball", "Batch", "Between", "Category", "ClassMean",
    "ClipGradient", "Corpus", "Dissimilarity", "EdgeRecord", "Edges", "Evidence", "ExtremeView", "Fresh",
    "GradientNoise", "Group", "GroupL2", "OtherView", "Pull", "Ramp", "RandomMix", "Sample", "Scaled",
    "SharpnessAware", "Slack", "Statistic", "StepSchedule", "Strength", "Top", "Toward", "Views", "Warmup", "Where",
    "above", "below", "prediction", "uniform",
]  # fmt: skip
