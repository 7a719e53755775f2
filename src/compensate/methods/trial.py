"""A method tried on a batch of real data: its direction, measured."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from compensate.direction import change, measured
from compensate.inference.meta import meta_step
from compensate.methods.registry import Method
from compensate.state import State

BATCH, EPOCHS, RATE = 64, 30, 0.005


@dataclass(frozen=True)
class Change:
    """What compensation did to the losses of a batch."""

    raised: int
    lowered: int
    mean: float
    shared: bool
    """True if samples share rows: then single losses may go either way, and the mean shows the direction."""

    @property
    def direction(self) -> str:
        """In the paper's words: positive lowers losses, negative raises them."""
        if not self.raised and not self.lowered:
            return "none"
        if self.raised and self.lowered and not self.shared:
            return "mixed"
        return "negative" if self.mean > 0 else "positive"

    def agrees(self, row: Method) -> bool:
        """True if it does not contradict the taxonomy; a method of mixed direction may go one way on a single batch."""
        return self.direction == "none" or row.taxonomy.direction in ("mixed", self.direction)

    def __str__(self) -> str:
        return f"{self.direction}: raises {self.raised} and lowers {self.lowered} of {BATCH} losses, {self.mean:+.3f} on average"


@lru_cache(maxsize=1)
def _data() -> tuple[Tensor, Tensor]:
    """Digits: a batch whose first labels are wrong, and as many clean ones."""
    from compensate.data.named.image_sets import digits

    data = digits().subset(range(2 * BATCH))
    y = torch.from_numpy(data.target).clone()
    y[: BATCH // 8] = (y[: BATCH // 8] + 1) % 10
    return torch.from_numpy(data.x).flatten(1), y


def trial_sizes() -> dict[str, Any]:
    """The sizes of the trial, for any method."""
    _, y = _data()
    return {
        "num_samples": BATCH,
        "num_classes": 10,
        "class_counts": y[:BATCH].bincount(minlength=10).tolist(),
        "feature_dim": 32,
        "feature_shape": (64,),
    }


def tried(row: Method) -> State:
    """The state of the batch late in a short training with the method, all it asks for provided.

    It is the last one in which anybody was compensated: some methods rest at the end, or until they are sure.
    """
    from compensate.models.small import MLP

    x, y = _data()
    batch, clean = (x[:BATCH], y[:BATCH], torch.arange(BATCH)), (x[BATCH:], y[BATCH:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = MLP(64, 10 + row.extra_outputs, hidden=(32,))
        criterion = row.make(**trial_sizes()).start(EPOCHS)
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        own = [p for p in criterion.parameters() if p.requires_grad]
        tables = {id(p) for t in criterion.tables() for p in t.parameters(False)}
        moved = torch.optim.Adam(own, lr=1e-2) if any(id(p) not in tables for p in own) else None
        found = None
        for _ in range(EPOCHS):
            if "clean" in row.needs:
                meta_step(criterion, model, batch, clean, lr=0.1, optimizer=copy.copy(moved))
            s = criterion.evaluate(model, *batch)
            _ = change(s)  # before the model moves on
            optimizer.zero_grad()
            s.loss.backward()
            optimizer.step()
            criterion.end_epoch()
            if found is None or bool(measured(s).any()):
                found = s
    assert found is not None
    return found


def measured_change(row: Method) -> Change:
    """What the method does to the losses of the batch late in a short training."""
    s = tried(row)
    signs = measured(s)
    shared = row.taxonomy.granularity != "sample" and row.taxonomy.inference in ("regularized", "adversarial")
    mean = float(change(s).mean())
    return Change(int((signs > 0).sum()), int((signs < 0).sum()), mean, shared)
