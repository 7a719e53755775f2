"""Local intrinsic dimensionality: how crowded the features of the model are, and when they begin to spread."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from compensate.errors import InputError
from compensate.inference.statistics import Statistic
from compensate.state import State

SMALL = 1e-8
"""Keeps the logarithm of a ratio of distances finite."""


def local_dimensionality(z: Tensor, k: int = 20) -> Tensor:
    r"""(B,) the maximum-likelihood estimate of the dimension around each row of `z`, from its neighbours in the batch.

    .. math:: \mathrm{LID}_i = -\left( \frac1k \sum_{j=1}^k \log \frac{r_{ij}}{r_{ik}} \right)^{-1}

    where :math:`r_{i1} \le \dots \le r_{ik}` are the distances to the `k` nearest other rows.

    Reference: Amsaleg et al., Estimating Local Intrinsic Dimensionality, KDD 2015.
    """
    k = min(k, len(z) - 1)
    if k < 2:
        return z.new_full((len(z),), torch.nan)
    z = z.to(torch.promote_types(z.dtype, torch.float32))  # distances are not defined for half precision
    distances = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
    r = distances.topk(k + 1, largest=False).values[:, 1:]  # the nearest row is the row itself
    return -k / torch.log(r / r[:, -1:] + SMALL).sum(-1)


@final
class Dimensionality(Statistic):
    r"""Watches the dimensionality of the features; as a value, how far to trust the predictions of the model.

    .. math:: \lambda = 1 - \exp\left( -\frac{e}{E} \frac{\mathrm{LID}_e}{\min_{j \le e} \mathrm{LID}_j} \right)

    from the turning point on and 0 before, where :math:`\mathrm{LID}_e` is the mean over epoch :math:`e` of the
    :math:`E` epochs. The turning point is the first epoch whose LID exceeds the mean of the `window` epochs before it
    by two of their standard deviations, counted after `patience + window` epochs: from there the model spreads its
    features in order to fit wrong labels.

    The authors measure on 1,280 samples at the start of each epoch, and go back to the weights of the turning point;
    here all batches of an epoch are measured while it trains, and the weights are left to the training loop.

    Args:
        k: the number of neighbours in the batch.
        window: epochs that the present one is compared with.
        patience: further epochs before the first comparison.
    """

    direction = "positive"  # of trust in the likeliest class; a guess of another direction says so itself

    def __init__(self, k: int = 20, window: int = 5, patience: int = 5) -> None:
        super().__init__()
        if k < 2 or window < 1 or patience < 0:
            raise InputError(
                f"k={k}, window={window}, patience={patience}; expected k >= 2, window >= 1, patience >= 0."
            )
        self.k, self.window, self.patience, self.rolls = k, window, patience, True
        self.track("total", torch.zeros(()), merge="sum")
        self.track("count", torch.zeros(()), merge="sum")
        self.track("recent", torch.zeros(window + 1), merge="same")
        self.track("lowest", torch.tensor(torch.inf), merge="same")
        for name, start in (("epochs", 0), ("turned", -1), ("seen", 0), ("begun", 0)):
            self.track(name, torch.tensor(start), merge="same")
        self.total: Tensor
        self.count: Tensor
        self.recent: Tensor
        self.lowest: Tensor
        self.epochs: Tensor
        self.turned: Tensor
        self.seen: Tensor
        self.begun: Tensor

    def forward(self, s: State) -> Tensor:
        """The trust now, a scalar tensor."""
        s.criterion.require_total()
        time = self.begun / s.criterion.total
        trust = 1 - torch.exp(-time * self.recent[-1] / self.lowest)
        return torch.where(self.turned >= 0, trust, 0.0).to(s.u.dtype)

    def check(self, s: State) -> None:
        """There must be features."""
        super().check(s)
        _ = s.z

    def observe(self, s: State) -> None:
        """Adds the dimensionality of the batch."""
        if not len(s.target):
            return
        lid = local_dimensionality(s.z.detach().flatten(1), self.k)
        usable = lid.isfinite() & (lid > 0)
        self.total += lid[usable].sum()
        self.count += usable.sum()
        self.seen += 1

    def end_epoch(self) -> None:
        """The epoch joins the others, and is compared with those before it."""
        now = torch.where(self.count > 0, self.total / self.count, self.recent[-1])
        self.recent.copy_(torch.cat([self.recent[1:], now[None]]))
        self.lowest.copy_(torch.where(now > 0, torch.minimum(self.lowest, now), self.lowest))
        self.epochs += 1
        before = self.recent[:-1]
        spreads = now - before.mean() > 2 * before.std(correction=0)
        turns = (self.turned < 0) & (self.epochs > self.patience + self.window) & spreads
        self.turned.copy_(torch.where(turns, self.epochs - 2, self.turned))
        self.begun.copy_(self.seen)
        self.total.zero_()
        self.count.zero_()

    def extra_repr(self) -> str:
        """Neighbours and window."""
        return f"k={self.k}, window={self.window}"
