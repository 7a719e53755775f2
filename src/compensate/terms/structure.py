r"""Structure compensation: a bounded change of the edges of a graph network.

.. math:: A'_e = \mathrm{clip}_{[0, 1]}(A_e + \Delta a_e)
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.statistics import Statistic, Suspects
from compensate.core.tables import Table
from compensate.errors import InputError


@final
class Edges(Table):
    r"""A number for each edge of a graph, :math:`\Delta a_e`, or one for all of them.

    Args:
        num_edges: the number of edges.
        shared: one number for all edges.
        settings: as of every table; `lr` is the step by the gradient of the mean loss of a batch, so large graphs need a large step.

    >>> from compensate.terms import L1, Ball
    >>> Edges(100, penalty=L1(0.01), bound=Ball(1.0, "linf"))
    Edges(100, L1(0.01), Ball(1, linf), lr=1, prox)
    """

    def __init__(self, num_edges: int, *, shared: bool = False, **settings: Any) -> None:
        super().__init__(1 if shared else num_edges, **settings)
        self.num_edges, self.shared = num_edges, shared
        self.granularity = "corpus" if shared else "sample"  # type: ignore[misc]

    def key(self, s: Batch) -> Tensor:
        """(E,) the row of each edge."""
        return torch.arange(self.num_edges, device=s.target.device) * (not self.shared)

    def forward(self, s: Batch) -> Tensor:
        """(E,) the change of each edge."""
        if s.slot != "da":
            raise InputError("a table of edges belongs under structure=; for samples use Sample, for classes Category.")
        if len(s.like) != self.num_edges:
            raise InputError(f"the table has {self.num_edges} edges and the graph of the model {len(s.like)}.")
        return super().forward(s)

    def counted(self, s: Batch) -> Tensor:
        """(E,) all edges count, whatever samples are in the batch; together as one if they share a number, which then moves by their sum."""
        return torch.full((self.num_edges,), 1 / self.num_edges if self.shared else 1.0, device=s.target.device)

    def charged(self, penalty: Tensor, s: Batch) -> Tensor:
        """(B,) the penalty of all rows for each sample: the mean over the batch is their sum. A number that edges share is one row."""
        return (penalty.mean() if self.shared else penalty.sum()) * s.valid.to(penalty.dtype)


@final
class Dissimilarity(nn.Module):
    r"""How unlike the two ends of an edge are, :math:`\kappa (1 - \cos(x_a, x_b))`, (E,): prior knowledge about edges.

    Args:
        scale: :math:`\kappa`.

    >>> from compensate import Compensated
    >>> from compensate.models import GCN
    >>> net = GCN(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0, 1], [1, 2]]), 2)
    >>> criterion = Compensated(structure=lambda s: -Dissimilarity()(s))       # drops the second edge
    >>> criterion.evaluate(net, torch.tensor([0]), torch.tensor([1])).da
    tensor([-0., -1.])

    Reference: Wu et al., Adversarial Examples for Graph Data: Deep Insights into Attack and Defense, IJCAI 2019, with another index.
    """

    inference, granularity = "prior", "sample"

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, s: Batch) -> Tensor:
        """(E,) the dissimilarities."""
        given = getattr(s.model, "dissimilarity", None)
        if given is None:
            raise InputError("this model has no dissimilarity of edges, (E,); compensate.models.GCN has.")
        return self.scale * given


@final
class EdgeRecord(Statistic):
    r"""The weight that each edge loses, on average over the steps, :math:`-\frac1T \sum_t \Delta a_e^{(t)}`: evidence against it.

    Args:
        term: the term on edges whose changes are recorded; the record replaces it in the criterion.
        num_edges: the number of edges.

    >>> from compensate import Compensated
    >>> from compensate.terms import L1
    >>> record = EdgeRecord(Edges(2, penalty=L1(0.01)), 2)
    >>> criterion = Compensated(structure=record)
    >>> record.suspects()
       index     score  suggested  flagged
        none: nothing was seen in training; train for some epochs before you call this
    """

    def __init__(self, term: Any, num_edges: int) -> None:
        super().__init__()
        self.term = term
        self.total = self.track("total", torch.zeros(num_edges), merge="sum")
        self.steps = self.track("steps", torch.zeros((), dtype=torch.long), merge="sum")

    def forward(self, s: Batch) -> Tensor:
        """(E,) the change of each edge."""
        return self.term(s)

    def observe(self, s: Batch) -> None:
        """Adds the changes of this step."""
        if s.da is not None:
            self.total -= s.da.detach().to(self.total.dtype)
            self.steps += 1

    def suspects(self, top: int | None = None) -> Suspects:
        """The edges, most suspect first: `index` are their numbers; edges that lost more than half a weight on average are flagged."""
        score, steps, edges = self.total / self.steps.clamp(min=1), int(self.steps), len(self.total)
        order = score.argsort(descending=True, stable=True)[: top if steps else 0]
        unjudged = 0 if steps else edges
        return Suspects(order, score[order], torch.zeros_like(order), score[order] > 0.5, None, unjudged, edges)
