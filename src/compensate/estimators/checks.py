"""Checks that every estimator shares: options, numbers and sample weights, worded as scikit-learn words them."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, check_non_negative, check_scalar


def one_of(value: object, name: str, options: Iterable[object]) -> None:
    """Raises unless `value` is among `options`.

    >>> one_of("l3", "penalty", ["l1", "l2"])
    Traceback (most recent call last):
    ...
    ValueError: The 'penalty' parameter must be one of {'l1', 'l2'}. Got 'l3' instead.
    """
    options = list(options)
    if not any(value is option or (type(value) is type(option) and value == option) for option in options):
        listed = ", ".join(repr(option) for option in options)
        raise ValueError(f"The {name!r} parameter must be one of {{{listed}}}. Got {value!r} instead.")


def positive(value: Any, name: str, *, zero: bool = False) -> None:
    """Raises unless `value` is a real number above zero (or zero, where that is allowed).

    >>> positive(-1.0, "lam")
    Traceback (most recent call last):
    ...
    ValueError: lam == -1.0, must be > 0.
    """
    check_scalar(value, name, Real, min_val=0, include_boundaries="left" if zero else "neither")
    if np.isnan(value):
        raise ValueError(f"{name} == {value}, must be {'>=' if zero else '>'} 0.")


def count(value: Any, name: str, least: int = 1) -> None:
    """Raises unless `value` is a whole number of at least `least`.

    >>> count(0, "n_clusters")
    Traceback (most recent call last):
    ...
    ValueError: n_clusters == 0, must be >= 1.
    """
    check_scalar(value, name, Integral, min_val=least)


def share(value: Any, name: str) -> None:
    """Raises unless `value` is a share of the samples below one half.

    >>> share(0.7, "contamination")
    Traceback (most recent call last):
    ...
    ValueError: contamination == 0.7, must be < 0.5.
    """
    check_scalar(value, name, Real, min_val=0, max_val=0.5, include_boundaries="left")


def weights(sample_weight: Any, X: Any) -> np.ndarray:
    """One non-negative weight per sample; ones where none are given."""
    size = X.shape[0]
    if sample_weight is None or isinstance(sample_weight, Real):
        sample_weight = np.full(size, 1.0 if sample_weight is None else float(sample_weight))
    found = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if found.shape != (size,):
        raise ValueError(f"sample_weight.shape == {found.shape}, expected {(size,)}: one weight per sample.")
    check_non_negative(found, "`sample_weight`")
    if not found.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return found
