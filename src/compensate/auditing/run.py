"""The training run of an audit: one loop, whose labels may change from one phase to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from compensate.auditing.evidence import Trace
from compensate.auditing.kinds import Inputs, Recipe
from compensate.data.seeding import generator
from compensate.equation import Compensated
from compensate.granularity import Sample
from compensate.methods.registry import find

Ints = NDArray[np.int64]
Progress = Callable[[int, int, float, float], None]
"""Called after each epoch: epochs done, all epochs, accuracy on the given labels, and the share of samples whose label holds
only by compensation."""


@dataclass(frozen=True, eq=False)
class Phase:
    """Some epochs with these labels (N,); -1 leaves a row out."""

    epochs: int
    labels: Ints


@dataclass(eq=False)
class Outcome:
    """What a run leaves behind: the model, a trace for each phase, and measures after each epoch."""

    model: nn.Module
    traces: list[Trace]
    accuracy: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    compensated: list[float] = field(default_factory=list)
    visits: int = 0


def train(
    inputs: Inputs,
    phases: list[Phase],
    num_classes: int,
    recipe: Recipe,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Trains one model through all phases; the learning rate goes down over their sum."""
    labels = phases[0].labels
    size = len(labels)
    torch.manual_seed(int(generator(seed, "weights").integers(2**31)))
    model = inputs.make()
    criterion = find(recipe.method).make(num_samples=size, num_classes=num_classes, **recipe.hyper)
    criterion.record = None  # the trace keeps more, phase by phase
    total = sum(phase.epochs for phase in phases)
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)
    criterion.start(total * -(-int((labels >= 0).sum()) // recipe.batch_size))
    outcome = Outcome(model, [])
    for phase in phases:
        _forget(criterion, np.flatnonzero(phase.labels != labels))
        labels = phase.labels
        trace = Trace(size, num_classes)
        for _ in range(phase.epochs):
            epoch = len(outcome.loss)
            _epoch(inputs, labels, model, criterion, optimiser, trace, recipe.batch_size, seed, epoch, outcome)
            schedule.step()
            if progress is not None:
                progress(epoch + 1, total, outcome.accuracy[-1], outcome.compensated[-1])
        outcome.traces.append(trace)
    return outcome


def _epoch(
    inputs: Inputs,
    labels: Ints,
    model: nn.Module,
    criterion: Compensated,
    optimiser: torch.optim.Optimizer,
    trace: Trace,
    batch_size: int,
    seed: int,
    epoch: int,
    outcome: Outcome,
) -> None:
    model.train()
    order = generator(seed, "order", epoch).permutation(np.flatnonzero(labels >= 0))
    # Summed up as tensors: reading a number in each batch would wait for it.
    right, loss, moved = torch.zeros(3).unbind()
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        if len(rows) == 1 and len(order) > 1:
            rows = order[start - 1 : start + 1]  # a lone sample has no batch statistics
        place = torch.from_numpy(rows)
        target = torch.from_numpy(labels[rows])
        s = criterion.evaluate(model, inputs.batch(rows, epoch), target, place)
        optimiser.zero_grad()
        s.loss.backward()
        optimiser.step()
        agrees = trace.observe(s, place) > 0
        right += agrees.sum()
        loss += s.plain_losses.sum()
        if s.du is not None:
            held = (s.plain + s.du.detach()).argmax(1) == target
            moved += (held & ~agrees).sum()
    criterion.end_epoch()
    outcome.visits += len(order)
    for name, value in (("accuracy", right), ("loss", loss), ("compensated", moved)):
        getattr(outcome, name).append(float(value) / max(len(order), 1))


def _forget(criterion: Compensated, rows: Ints) -> None:
    """What a sample's own row learned of its label is void once the label is another."""
    if not len(rows):
        return
    place = torch.from_numpy(rows)
    for table in criterion.tables():
        if isinstance(table, Sample):
            table.write(place, torch.zeros_like(table.gather(place)))


@torch.no_grad()
def predict(model: nn.Module, inputs: Inputs, rows: Ints, batch_size: int = 500) -> NDArray[np.float32]:
    """(len(rows), C) what the trained model says of these rows."""
    model.eval()
    found = np.empty((0, 0), np.float32)
    for i in range(0, len(rows), batch_size):
        p = F.softmax(model(inputs.batch(rows[i : i + batch_size], None)).float(), 1).numpy()
        if not i:
            found = np.empty((len(rows), p.shape[1]), np.float32)
        found[i : i + len(p)] = p
    return found
