"""scikit-learn's own checks over every estimator that takes what they can make."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from compensate.estimators import RobustKMeans, ShiftRegressor, SlackSVC

DEFAULTS = [RobustKMeans(), SlackSVC(), ShiftRegressor()]
VARIANTS = [
    RobustKMeans(n_clusters=3, penalty="l1", n_init=2),
    RobustKMeans(n_clusters=3, soft=True, n_init=2),
    RobustKMeans(n_clusters=3, kernel="rbf", n_init=2),
    RobustKMeans(n_clusters=3, lam=1.0, n_init=2),
    SlackSVC(compensate="label"),
    SlackSVC(kernel="rbf"),
    ShiftRegressor(penalty="l0"),
    ShiftRegressor(permuted=True),
    ShiftRegressor(lam=1.0, fit_intercept=False),
]
"""Estimators that are fitted in another way. How they look at their arguments is the same."""

DEPEND_ON_THE_FIT = {
    "check_classifiers_train", "check_clustering", "check_dict_unchanged", "check_estimators_dtypes", "check_estimators_pickle",
    "check_f_contiguous_array_estimator", "check_fit2d_1feature", "check_fit2d_1sample", "check_fit_idempotent",
    "check_methods_sample_order_invariance", "check_methods_subset_invariance", "check_n_features_in",
    "check_readonly_memmap_input", "check_regressors_int", "check_regressors_train",
    "check_sample_weight_equivalence_on_dense_data", "check_transformer_general",
}  # fmt: skip
"""Checks that another way of fitting can fail."""


def fitting_checks():
    for variant in VARIANTS:
        for estimator, check in estimator_checks_generator(variant, mark=None):
            if check.func.__name__ in DEPEND_ON_THE_FIT:
                yield pytest.param(estimator, check, id=f"{estimator!r}-{check.func.__name__}")


# Every entry needs its reason; the limit below keeps this list from swallowing the test.
EXPECTED_FAILURES: dict[str, dict[str, str]] = {}


def expected_failures(estimator: object) -> dict[str, str]:
    return EXPECTED_FAILURES.get(type(estimator).__name__, {})


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(DEFAULTS, expected_failed_checks=expected_failures)
def test_scikit_learn_checks(estimator: object, check: object) -> None:
    check(estimator)  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize(("estimator", "check"), list(fitting_checks()))
def test_scikit_learn_checks_of_the_fit(estimator: object, check: object) -> None:
    check(estimator)  # type: ignore[operator]
