"""A linear model of the words of a text, on the sparse TF-IDF weights themselves."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

Bag = tuple[Tensor, Tensor, Tensor]
"""Words of all texts of a batch end to end, where each text begins, and the weight of each word."""


@final
class Words(nn.Module):
    r"""Logits as a weighted sum over the words of a text.

    .. math:: u_t = b + \sum_w x_{tw} W_w

    where :math:`x_{tw}` is the weight of word :math:`w` in text :math:`t`. Reducing the weights to a few directions
    first would lose rare words, and they often tell.

    Args:
        num_words: the number of words W.
        num_classes: the number of logits C.

    Shapes: a `Bag` of B texts; logits (B, C).

    >>> model = Words(3, 2)
    >>> model((torch.tensor([0, 2]), torch.tensor([0, 1]), torch.ones(2))).shape
    torch.Size([2, 2])
    """

    def __init__(self, num_words: int, num_classes: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(num_words, num_classes, mode="sum")
        nn.init.zeros_(self.words.weight)
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, x: Bag) -> Tensor:
        words, starts, weights = x
        return self.words(words, starts, per_sample_weights=weights) + self.bias


def bag(rows: Any) -> Bag:
    """The rows of a sparse matrix (scipy, compressed by rows) as a batch."""
    return (
        torch.from_numpy(rows.indices.astype(np.int64)),
        torch.from_numpy(rows.indptr[:-1].astype(np.int64)),
        torch.from_numpy(rows.data.astype(np.float32)),
    )
