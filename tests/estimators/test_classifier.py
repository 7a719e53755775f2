"""The scikit-learn face of the methods: conventions, oracles, noise, streams."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from compensate.estimators import CompensatedClassifier


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([CompensatedClassifier()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)
