"""Texts: two LSTMs, one in each direction, and attention over their states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from compensate.errors import InputError


class BiLSTM(nn.Module):
    r"""The paper's network for texts.

    .. math::
        h_t = [\overrightarrow{h}_t ; \overleftarrow{h}_t], \qquad
        \alpha = \operatorname{softmax}_t(w^\top \tanh h_t), \qquad
        z = \tanh \sum_t \alpha_t h_t, \qquad u = W z + b

    where :math:`h_t`, (2H,), are the states of the two LSTMs at word :math:`t`, :math:`w` is learned, and the sums
    run over the words of the text, never over padding.

    Args:
        num_words: number of token ids; id 0 is padding.
        num_classes: number of logits.
        size: length of a word vector; taken from ``vectors`` if they are given.
        hidden: H, states of each direction.
        dropout: share of the word vectors' and of z's entries dropped in training.
        vectors: (num_words, size) the word vectors to start from; row 0 becomes zero.
        train_vectors: whether the word vectors learn.

    Shapes: x (B, T) token ids; ``embed(x)`` (B, T, size); ``features(e)`` (B, 2H); logits (B, C).

    A text's padding has the zero vector, which is how ``features`` knows it: it needs no second argument, and terms
    added to ``embed(x)`` must be zero there (`padding` says where).

    >>> model = BiLSTM(100, 2, size=8, hidden=4)
    >>> x = torch.tensor([[5, 6, 7], [8, 0, 0]])
    >>> model(x).shape, model.padding(x)[1].tolist()
    (torch.Size([2, 2]), [False, True, True])

    Reference: Zhou et al., Attention-Based Bidirectional LSTM Networks for Relation Classification, 2016.
    """

    def __init__(
        self,
        num_words: int,
        num_classes: int,
        *,
        size: int = 100,
        hidden: int = 256,
        dropout: float = 0.5,
        vectors: Any = None,
        train_vectors: bool = True,
    ) -> None:
        super().__init__()
        if vectors is not None:
            vectors = torch.as_tensor(vectors, dtype=torch.float32)
            if vectors.ndim != 2 or len(vectors) != num_words:
                raise InputError(
                    f"the word vectors have shape {tuple(vectors.shape)}; expected ({num_words}, size), one a token id. "
                    "Make them with compensate.data.embedding_matrix(vocabulary, vectors)."
                )
            size = vectors.shape[1]
        self.embedding = nn.Embedding(num_words, size, padding_idx=0)
        with torch.no_grad():
            if vectors is None:
                self.embedding.weight.mul_(0.1)
            else:
                self.embedding.weight.copy_(vectors)
            self.embedding.weight[0].zero_()
        self.embedding.weight.requires_grad_(train_vectors)
        # Two one-way LSTMs and an explicit reversal equal a packed two-way one, and stay on the fast kernels.
        self.forth = nn.LSTM(size, hidden, batch_first=True)
        self.back = nn.LSTM(size, hidden, batch_first=True)
        self.attention = nn.Linear(2 * hidden, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * hidden, num_classes)

    def padding(self, x: Tensor) -> Tensor:
        """(B, T) true where there is no word."""
        return x == 0

    def embed(self, x: Tensor) -> Tensor:
        return self.embedding(x)

    def features(self, e: Tensor) -> Tensor:
        word = (e != 0).any(-1)
        mirror = reversal(word)[..., None]
        e = self.dropout(e)
        forth = self.forth(e)[0]
        back = self.back(e.gather(1, mirror.expand_as(e)))[0]
        h = torch.cat([forth, back.gather(1, mirror.expand_as(back))], dim=-1)
        score = self.attention(torch.tanh(h)).squeeze(-1)
        alpha = score.masked_fill(~word, torch.finfo(score.dtype).min).softmax(-1)
        return self.dropout(torch.tanh((alpha[..., None] * h).sum(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


def reversal(word: Tensor) -> Tensor:
    """(B, T) positions that turn each text round and leave its padding where it is; its own inverse.

    >>> reversal(torch.tensor([[True, True, True, False]])).tolist()
    [[2, 1, 0, 3]]
    """
    t = torch.arange(word.shape[1], device=word.device)
    # The last word, not the number of words: a word whose vector happens to be zero must not shift the others.
    length = torch.where(word, t + 1, 0).amax(1, keepdim=True)
    return torch.where(t < length, length - 1 - t, t)
