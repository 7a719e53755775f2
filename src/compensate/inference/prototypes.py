"""Several typical samples of each class, and the class whose typical samples a sample is most like."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.checks import checked_features
from compensate.errors import InputError
from compensate.inference.statistics import Statistic
from compensate.state import State


def choose_prototypes(z: Tensor, count: int = 8, rank: float = 0.4, limit: float = 0.95) -> Tensor:
    r"""The rows of `z` (m, D), features of one class, that are typical of it and yet unlike each other.

    .. math:: S_{ij} = \cos(z_i, z_j), \quad \rho_i = \sum_j \mathrm{sign}(S_{ij} - S_c), \quad
              \eta_i = \begin{cases} \max_{j: \rho_j > \rho_i} S_{ij} & \rho_i < \rho_{\max} \\
                       \min_j S_{ij} & \rho_i = \rho_{\max} \end{cases}

    The `count` densest rows (largest :math:`\rho`) with :math:`\eta <` `limit` are chosen; rows past the limit follow
    only if there are not enough others. :math:`S_c` is the entry of :math:`S` at `rank`, in rising order.

    Returns:
        (min(count, m),) numbers of rows, densest first.

    Reference: Han et al., Deep Self-Learning From Noisy Labels, ICCV 2019.
    """
    unit = F.normalize(z, dim=-1)
    similar = unit @ unit.T
    entries = similar.flatten()
    critical = entries.kthvalue(min(int(rank * len(entries)) + 1, len(entries))).values
    density = torch.sign(similar - critical).sum(1)
    denser = density[None, :] > density[:, None]
    nearest = similar.masked_fill(~denser, -torch.inf).amax(1)
    nearest = torch.where(density == density.max(), similar.amin(1), nearest)
    span = 2 * len(z) + 1  # larger than any difference of densities
    order = (density - span * (nearest >= limit)).argsort(descending=True, stable=True)
    return order[:count]


@final
class Prototypes(Statistic):
    r"""Labels from the prototypes of the previous epoch; as a value, (B, C) one-hot.

    .. math:: \hat y_i = \arg\max_c \frac1p \sum_{k=1}^p \cos(z_i, z_{c,k})

    where :math:`z_{c,k}` are the :math:`p` prototypes of class :math:`c`; see :func:`choose_prototypes`. Until the first
    epoch has ended the guess is the given label.

    The authors relabel the whole set between epochs, in a pass of its own; here a sample is relabelled when it is
    visited, by its features of that moment and the prototypes of the previous epoch, which costs no extra pass.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        feature_dim: the size of the features.
        count: prototypes per class.
        sampled: samples per class (on average) that prototypes are chosen from; always the same ones.
        rank, limit: as in :func:`choose_prototypes`.
    """

    reader = "a choice of prototypes"

    def __init__(
        self,
        num_samples: int,
        num_classes: int,
        feature_dim: int,
        *,
        count: int = 8,
        sampled: int = 1280,
        rank: float = 0.4,
        limit: float = 0.95,
    ) -> None:
        super().__init__()
        if count < 1 or sampled < 1:
            raise InputError(f"count={count}, sampled={sampled}; expected at least one prototype and one sample.")
        self.num_samples, self.num_classes, self.rolls = num_samples, num_classes, True
        self.count, self.rank, self.limit = count, rank, limit
        kept = min(num_samples, sampled * num_classes)
        # A fixed seed: all processes must agree on the samples, and a new run should too.
        chosen = torch.randperm(num_samples, generator=torch.Generator().manual_seed(0))[:kept]
        slot = torch.full((num_samples,), -1).index_copy_(0, chosen, torch.arange(kept))
        self.track("slot", slot, merge="same")
        self.track("features", torch.zeros(kept, feature_dim), merge="rows")
        self.track("given", torch.full((kept,), -1), merge="rows")
        self.track("prototypes", torch.zeros(num_classes, count, feature_dim), merge="same")
        self.track("known", torch.zeros(num_classes, count), merge="same")
        self.slot: Tensor
        self.features: Tensor
        self.given: Tensor
        self.prototypes: Tensor
        self.known: Tensor

    def forward(self, s: State) -> Tensor:
        """(B, C) the guess."""
        z = F.normalize(s.z.detach().flatten(1).to(self.prototypes.dtype), dim=-1)
        likeness = torch.einsum("bd,cpd->bcp", z, self.prototypes)  # prototypes are unit vectors, or zero if unknown
        counts = self.known.sum(-1)
        score = (likeness.sum(-1) / counts.clamp(min=1)).masked_fill(counts == 0, -torch.inf)
        guess = F.one_hot(score.argmax(-1), s.u.shape[-1]).to(s.u.dtype)
        return torch.where(counts.any(), guess, s.y)

    def check(self, s: State) -> None:
        """Features must fit, too."""
        super().check(s)
        checked_features(s, self.features.shape[-1])

    def observe(self, s: State) -> None:
        """Keeps the features of the chosen samples in the batch."""
        slots = self.slot[self.index(s)]
        kept = (slots >= 0) & s.valid
        self.features[slots[kept]] = s.z.detach().flatten(1)[kept].to(self.features.dtype)
        self.given[slots[kept]] = s.labels[kept]

    def end_epoch(self) -> None:
        """Chooses the prototypes of each class anew; a class without samples keeps its own."""
        for c in range(len(self.prototypes)):
            z = self.features[self.given == c]
            if len(z):
                best = z[choose_prototypes(z, self.count, self.rank, self.limit)]
                self.prototypes[c].zero_()[: len(best)] = F.normalize(best, dim=-1)
                self.known[c].zero_()[: len(best)] = 1
        self.given.fill_(-1)

    def extra_repr(self) -> str:
        """Size."""
        return f"{self.count} per class"
