"""From a row of `METHODS` and a data set to module and criterion, with errors that say what a method still needs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from compensate.equation import Compensated
from compensate.granularity import Sample
from compensate.inference.margins import AngularMargin, CosineHead
from compensate.inference.statistics import Statistic
from compensate.methods.registry import SIZES, Method
from compensate.models.small import MLP, probe

CLEAN = "clean"
"""The entry of `hyper` that is not for the method but for the training: trusted samples."""

HIDDEN = (128,)
"""Hidden units of the default network."""

FEW, FEW_PER_FEATURE = 100, 5
"""With fewer samples than these, in all or for each feature, the default is linear: more could not be learned from them."""

PER_STEP, LEAST_RATE, MOST_RATE = 2.0, 1e-3, 0.1
"""Of Adam, where the user gives no learning rate: see `default_rate`."""

STREAM_RATE = 0.01
"""Of Adam on a stream, whose length nobody knows."""


def default_rate(optimizer: str, steps: int | None) -> float:
    r"""A learning rate for a training of this many steps: :math:`2 / \mathrm{steps}`, from 0.001 to 0.1; tenfold for SGD.

    Short trainings need large steps to get anywhere, and in long ones large steps would fit wrong labels before their compensation
    does. Chosen on held-out labels of six tables, as given and with a fifth of them wrong (`python -m experiments choices`). Without a number of steps, that
    is on a stream, it is 0.01.

    >>> [round(default_rate("adam", steps), 4) for steps in (10, 100, 500, 10_000)]
    [0.1, 0.02, 0.004, 0.001]
    """
    rate = STREAM_RATE if steps is None else min(MOST_RATE, max(LEAST_RATE, PER_STEP / steps))
    return rate if optimizer == "adam" else 10 * rate


def default_module(n_samples: int, n_features: int, n_outputs: int) -> MLP:
    """A network with one hidden layer, or a linear one where there are few samples for the features.

    >>> default_module(1500, 64, 10).head, default_module(60, 4, 3).head
    (Linear(in_features=128, out_features=10, bias=True), Linear(in_features=4, out_features=3, bias=True))
    """
    if n_samples < max(FEW, FEW_PER_FEATURE * n_features):
        return probe(n_features, n_outputs)
    return MLP(n_features, n_outputs, hidden=HIDDEN)


def fit_head(module: nn.Module, criterion: Compensated) -> None:
    """Angular margins ask for cosines: gives the default network the head that its criterion is made for."""
    scales = [m.scale for m in criterion.modules() if isinstance(m, AngularMargin)]
    head = module.head
    if scales and isinstance(head, nn.Linear):
        module.head = CosineHead(head.in_features, head.out_features, scales[0]).to(head.weight)


def check_several_labels(row: Method) -> None:
    """Raises if a method has no form for several labels a sample."""
    if "base" not in inspect.signature(row.build).parameters:
        row.build(base="bce")  # which says why, and which have


def check_method(row: Method, hyper: Mapping[str, Any]) -> None:
    """Raises if the method asks for something that neither the data nor `hyper` gives, or does not know an entry."""
    row.check(name for name in hyper if name != CLEAN or "clean" not in row.needs)
    wanted = inspect.signature(row.build).parameters
    if "clean" in row.needs and CLEAN not in hyper:
        raise ValueError(
            f'method "{row.name}" learns from clean data: give trusted samples as hyper={{"clean": (X_clean, y_clean)}}.'
        )
    if "group" in row.needs:
        raise ValueError(f'method "{row.name}" asks for the group of each sample, which a classifier is not given.')
    missing = [
        name
        for name, parameter in wanted.items()
        if parameter.default is parameter.empty and name not in SIZES and name not in hyper
    ]
    if missing and "teacher" in row.needs:
        raise ValueError(
            f'method "{row.name}" learns from a teacher: give hyper={{"{missing[0]}": ...}}, a fitted classifier with '
            "predict_proba, a torch module, or an array with one row per sample."
        )
    if missing:
        raise ValueError(f'method "{row.name}" needs a value for {missing[0]!r}: give hyper={{"{missing[0]}": ...}}.')


def taught(hyper: Mapping[str, Any], X: Any, classes: np.ndarray, *, stream: bool) -> dict[str, Any]:
    """`hyper` with teachers as methods take them: what a fitted classifier says of each row of `X`, arrays as tensors."""
    given = dict(hyper)
    for name in ("teacher", "guess"):
        value = given.get(name)
        if isinstance(value, nn.Module):
            given[name] = copy.deepcopy(value)  # the criterion freezes it and changes its precision
        if value is None or isinstance(value, nn.Module | str):
            continue
        if stream:
            raise ValueError(
                f"partial_fit does not know its samples beforehand: {name!r} must be a torch module there."
            )
        if hasattr(value, "predict_proba"):
            if not np.array_equal(value.classes_, classes):
                raise ValueError(f"{name!r} knows the classes {value.classes_}; expected {classes}.")
            p = np.asarray(value.predict_proba(X), dtype=np.float64)
            value = p if name == "guess" else np.log(np.maximum(p, np.finfo(np.float64).tiny))
        rows = torch.as_tensor(np.array(value))
        if len(rows) != X.shape[0]:
            raise ValueError(f"{name!r} has {len(rows)} rows; expected one for each of {X.shape[0]} samples.")
        given[name] = rows
    return given


@torch.no_grad()
def take_over(new: Compensated, old: Compensated) -> Compensated:
    """Lets a criterion for more samples know what the old one knew: rows of samples are kept, new ones stay fresh."""
    fresh = dict(new.named_modules())
    for name, module in old.named_modules():
        for key, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            target = getattr(fresh[name], key)
            if target.shape == value.shape:
                target.copy_(value)
            elif isinstance(module, Sample) or (isinstance(module, Statistic) and module.merges.get(key) == "rows"):
                target[: len(value)] = value
    return new
