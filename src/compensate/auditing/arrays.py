"""Types of arrays, as the audit has them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
"""Class numbers, rows, folds."""

Floats = NDArray[np.float64]
"""Log probabilities and what is computed from them."""

Singles = NDArray[np.float32]
"""Features, and what learners say of rows: there are many of them."""
