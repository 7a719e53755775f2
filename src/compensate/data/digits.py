"""Handwritten digits that come with scikit-learn: real data without a download."""

from __future__ import annotations

import numpy as np

from compensate.data.dataset import Data, Splits


def digits() -> Data:
    """The 1,797 digits of 8 x 8 pixels, in their stored order: ``x`` is (1797, 1, 8, 8), float32 in [0, 1].

    >>> digits().x.shape
    (1797, 1, 8, 8)

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    from sklearn.datasets import load_digits

    x, target = load_digits(return_X_y=True)
    images = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return Data(images, target.astype(np.int64), tuple("0123456789"))


def digits_splits(test: float = 0.3, *, seed: int = 0) -> Splits:
    """The digits in a training and a test part, the same for the same seed; each class is split by the same share.

    >>> splits = digits_splits()
    >>> len(splits.train), len(splits.test)
    (1258, 539)
    """
    train, held = digits().split((1 - test, test), seed=seed)
    return Splits(train, held)
