"""Labels that occur once. Nothing was learned of their classes, so that no model can say whether they are right.

What is known is the likeliest of the other classes, and whether it has nearly the same name. A name that is nearly that of this class is
a sign of a slip that does not hang together with the prediction, and any other name is one against it: each counts for one half.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import logit

from compensate.auditing.arrays import Floats, Ints
from compensate.auditing.class_names import near_names, same_name
from compensate.auditing.noise_model import SMALLEST

HALF = 0.5
"""The odds that a class is there although one row has it: even, for nothing speaks for either."""

NOTE = (
    "A label that occurs once cannot be contradicted by others. Such rows are listed with the likeliest other class, and flagged only if "
    "that has nearly the same name: {}."
)
"""On such rows."""


def judge_lone(
    log_q: Floats, labels: Ints, classes: Sequence[str], learned: Ints, sharpness: float
) -> tuple[Floats, Ints]:
    """(N,) the log odds that each label is wrong, and the likeliest class.

    Args:
        log_q: (N, C) pooled log probabilities.
        labels: (N,) the class that only this row has.
        classes: (C,) their names.
        learned: the classes that occur more often.
        sharpness: of the noise model.

    >>> log_q, names = np.log([[0.9, 0.1, 1e-9, 1e-9]] * 2), ["billing", "shipping", "biling", "thanks"]
    >>> from scipy.special import expit
    >>> odds, suggested = judge_lone(log_q, np.array([2, 3]), names, np.array([0, 1]), 1.0)
    >>> expit(odds).round(2), suggested
    (array([0.95, 0.45]), array([0, 0]))
    """
    u = sharpness * log_q[:, learned]
    q = np.exp(u - u.max(1, keepdims=True))
    other = np.array([[not same_name(classes[own], classes[c]) for c in learned] for own in labels]).reshape(q.shape)
    sure = (q * other).max(1) / q.sum(1)
    suggested = learned[np.where(other, q, -1.0).argmax(1)]
    near = [near_names(classes[own], classes[other]) for own, other in zip(labels, suggested, strict=True)]
    p = np.where(near, 1 - HALF * (1 - sure), HALF * sure)
    return logit(np.clip(p, SMALLEST, 1 - 1e-9)), suggested
