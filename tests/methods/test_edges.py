"""Batches without a sample, half precision, and meta steps that never come."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from compensate import Compensated, meta_step
from compensate.core.criterion import PATIENCE
from compensate.methods import METHODS
from compensate.methods.label_correction import local_dimensionality
from compensate.terms import Category
from tiny import TinyNet


@pytest.mark.parametrize("name", ["self_paced_logit", "isda", "metasaug", "logcomp", "mixcomp"])
def test_an_empty_batch_has_losses_of_its_size(name: str) -> None:
    sizes = {"num_samples": 9, "num_classes": 3, "feature_dim": 6}
    taken = inspect.signature(METHODS[name].build).parameters
    criterion = METHODS[name].build(**{key: size for key, size in sizes.items() if key in taken}).start(10)
    model = TinyNet().eval()  # batch statistics need samples; the criterion trains
    s = criterion.evaluate(model, torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    assert s.losses.shape == (0,)


def test_dimensionality_of_half_precision_is_that_of_the_same_numbers_in_full() -> None:
    z = torch.randn(30, 4).bfloat16()
    torch.testing.assert_close(local_dimensionality(z, 5), local_dimensionality(z.float(), 5))


def test_a_criterion_that_waits_for_meta_steps_says_so_once() -> None:
    u, y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
    criterion = Compensated(logit=Category(3, 3, update="meta"))
    for _ in range(PATIENCE - 1):
        criterion(u, y)
    with pytest.warns(UserWarning, match="without one"):
        criterion(u, y)
    learned = Compensated(logit=Category(3, 3, update="meta"))
    x = torch.randn(4, 4)
    meta_step(learned, TinyNet(), (x, y), (x, y), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(PATIENCE + 1):
            learned(u, y)
