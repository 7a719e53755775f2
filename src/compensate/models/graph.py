"""A small graph network: each node is classified with its neighbors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.errors import InputError


class GCN(nn.Module):
    r"""Two graph convolutions over one graph, whose edges have weights that compensation may change.

    .. math:: u = \hat A\, \mathrm{ReLU}(\hat A X W_1) W_2, \qquad \hat A = D^{-1/2} (A + I) D^{-1/2}

    where :math:`A` has the weight of each undirected edge, kept in [0, 1], and :math:`D` are its row sums with 1 added.

    Args:
        x: (N, F) features of the nodes.
        edges: (2, E) the two nodes of each undirected edge, each edge once.
        num_classes: number of logits.
        hidden: units of the hidden layer.
        dropout: share of the hidden units dropped in training.
        weight: (E,) weights of the edges; 1 if not given. An edge of weight 0 is a candidate that compensation may add.

    The input of `forward` are numbers of nodes (B,); it gives their logits (B, C), and takes a change of the edges (E,).

    >>> edges = torch.tensor([[0, 1], [1, 2]])
    >>> net = GCN(torch.eye(3), edges, 2)
    >>> net(torch.tensor([0, 2])).shape, net(torch.tensor([0]), torch.tensor([-1.0, 0.0])).shape
    (torch.Size([2, 2]), torch.Size([1, 2]))

    Reference: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, ICLR 2017.
    """

    x: Tensor
    edges: Tensor
    structure: Tensor
    dissimilarity: Tensor

    def __init__(
        self,
        x: Tensor,
        edges: Tensor,
        num_classes: int,
        *,
        hidden: int = 32,
        dropout: float = 0.0,
        weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        if x.ndim != 2 or edges.ndim != 2 or len(edges) != 2:
            raise InputError(
                f"x is {tuple(x.shape)} and edges are {tuple(edges.shape)}; expected features (N, F) and pairs of nodes (2, E)."
            )
        if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= len(x)):
            raise InputError(
                f"edges name nodes from {int(edges.min())} to {int(edges.max())}; there are {len(x)}, from 0."
            )
        weight = x.new_ones(edges.shape[1]) if weight is None else weight
        if weight.shape != edges.shape[1:] or bool(((weight < 0) | (weight > 1)).any()):
            raise InputError(
                f"weight is {tuple(weight.shape)}; expected a number in [0, 1] for each of {edges.shape[1]} edges."
            )
        self.register_buffer("x", x, persistent=False)
        self.register_buffer("edges", edges, persistent=False)
        self.register_buffer("structure", weight, persistent=False)
        unit = F.normalize(x, dim=-1)
        self.register_buffer("dissimilarity", 1 - (unit[edges[0]] * unit[edges[1]]).sum(-1), persistent=False)
        self.first, self.last = nn.Linear(x.shape[1], hidden, bias=False), nn.Linear(hidden, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, nodes: Tensor, change: Tensor | None = None) -> Tensor:
        """(B, C) logits of some nodes, with the weights of the edges changed."""
        a = self.structure if change is None else (self.structure + change).clamp(0, 1)
        one, other = self.edges
        degree = torch.ones_like(self.x[:, 0]).index_add(0, one, a).index_add(0, other, a)
        share = degree.rsqrt()
        along = (a * share[one] * share[other])[:, None]

        def spread(h: Tensor) -> Tensor:
            own = h / degree[:, None]
            return own.index_add(0, one, along * h[other]).index_add(0, other, along * h[one])

        h = self.dropout(spread(self.first(self.x)).relu())
        u: Tensor = self.last(spread(h))
        return u[nodes]
