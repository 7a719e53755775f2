"""Data that training code can index by rows, each sample with a stable index; and label noise for experiments."""

from compensate.data import noise
from compensate.data.dataset import UNLABELLED, Data, Splits
from compensate.data.digits import digits, digits_splits
from compensate.data.indexed import Indexed

__all__ = [
    "UNLABELLED",
    "Data",
    "Indexed",
    "Splits",
    "digits",
    "digits_splits",
    "noise",
]
