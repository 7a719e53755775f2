"""Texts to embeddings with a transformer: long texts in chunks, batches of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

MOST_CHUNKS = 8
"""Of longer texts this many chunks are read, spread evenly: about 2,000 words of a book say what it is about."""

MOST_CHARACTERS = 100_000
"""Longer texts are thinned to this length before their words are counted, in `MOST_CHUNKS` pieces."""

SECTION = 4096
"""Texts that are sorted by length at a time: memory for their word pieces stays small whatever the data set."""

TOKENS = {"cpu": 2048, "cuda": 65536}
"""Word pieces of a batch, padding included. On a CPU larger batches leave the cache and are slower."""

EncodedBatch = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Positions of items, and their embeddings."""


ABSENT = -1
"""Where a text has no word piece."""


class TextNetwork(nn.Module):
    """A model of word pieces that reads texts of several chunks.

    Shapes: word pieces (B, chunks, T), `ABSENT` where there is none; embeddings (B, D), the sum of those of the chunks, each of
    unit length.

    Args:
        model: from input_ids and attention_mask, both (B, T), to embeddings (B, D).
        padding: the word piece that fills up a chunk.
    """

    def __init__(self, model: nn.Module, padding: int) -> None:
        super().__init__()
        self.model, self.padding = model, padding

    def forward(self, x: Tensor) -> Tensor:
        there = x != ABSENT
        text, chunk = there.any(2).nonzero(as_tuple=True)
        mask = there[text, chunk]
        ids = x[text, chunk].masked_fill(~mask, self.padding)
        embedded = F.normalize(self.model(ids, mask.long()).float(), dim=1)
        return embedded.new_zeros(len(x), embedded.shape[1]).index_add(0, text, embedded)


class TextEncoder:
    """A tokenizer and a model of its word pieces.

    Args:
        tokenizer: of the `transformers` library.
        model: from input_ids and attention_mask, both (B, T), to embeddings (B, D).
        max_length: the word pieces that the model takes, its own marks included.
        device: where the model is.
    """

    def __init__(self, tokenizer: Any, model: nn.Module, max_length: int, device: torch.device) -> None:
        self.tokenizer, self.device = tokenizer, device
        self.before, self.after = _marks(tokenizer)
        self.room = max(1, max_length - len(self.before) - len(self.after))
        self.padding = tokenizer.pad_token_id or 0
        self.network = TextNetwork(model, self.padding)

    def __call__(self, texts: Sequence[str], batch_size: int | None = None) -> Iterator[EncodedBatch]:
        """Embeddings of unit length, some texts at a time, not in order."""
        for start in range(0, len(texts), SECTION):
            for rows, values in self._section(self.pieces(texts[start : start + SECTION]), batch_size):
                yield rows + start, values

    def pieces(self, texts: Sequence[str], most: int = MOST_CHUNKS) -> list[list[list[int]]]:
        """The word pieces of each text, in at most ``most`` chunks with the marks around each."""
        thinned = [_thin(text) for text in texts]
        found = self.tokenizer(thinned, add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [
            [[*self.before, *chunk, *self.after] or [self.padding] for chunk in chunks(ids, self.room, most)]
            for ids in found["input_ids"]
        ]

    def _section(self, pieces_of: list[list[list[int]]], batch_size: int | None) -> Iterator[EncodedBatch]:
        order = sorted(range(len(pieces_of)), key=lambda row: len(pieces_of[row][0]))
        budget = TOKENS.get(self.device.type, TOKENS["cpu"])
        batch: list[int] = []
        size = 0
        for row in order:
            size += len(pieces_of[row])
            # Sorted by length, so the last one is the widest.
            if batch and (size * len(pieces_of[row][0]) > budget or len(batch) == batch_size):
                yield np.array(batch), self._batch([pieces_of[r] for r in batch])
                batch, size = [], len(pieces_of[row])
            batch.append(row)
        if batch:
            yield np.array(batch), self._batch([pieces_of[r] for r in batch])

    @torch.inference_mode()
    def _batch(self, texts: list[list[list[int]]]) -> NDArray[np.float32]:
        return F.normalize(self.network(stacked(texts).to(self.device)), dim=1).cpu().numpy()


def stacked(texts: Sequence[Sequence[Any]]) -> Tensor:
    """(B, chunks, T) the word pieces of texts, filled up with `ABSENT`.

    >>> stacked([[[5, 6], [7]], [[8]]]).tolist()
    [[[5, 6], [7, -1]], [[8, -1], [-1, -1]]]
    """
    width = max(len(chunk) for text in texts for chunk in text)
    x = torch.full((len(texts), max(map(len, texts)), width), ABSENT, dtype=torch.int64)
    for row, text in enumerate(texts):
        for place, chunk in enumerate(text):
            x[row, place, : len(chunk)] = torch.as_tensor(chunk)
    return x


def mean_pooling(hidden: Tensor, mask: Tensor) -> Tensor:
    """(B, D) the mean of (B, T, D) over the word pieces that are there.

    >>> mean_pooling(torch.tensor([[[1.0], [3.0], [99.0]]]), torch.tensor([[1, 1, 0]])).item()
    2.0
    """
    weights = mask.unsqueeze(2).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)


def chunks(ids: Sequence[int], room: int, most: int = MOST_CHUNKS) -> list[list[int]]:
    """Pieces of at most ``room`` word pieces and nearly equal length; of more than ``most``, those spread evenly.

    >>> chunks([1, 2, 3, 4, 5], 2)
    [[1, 2], [3, 4], [5]]
    >>> chunks(range(100), 1, most=3)
    [[0], [50], [99]]
    >>> chunks([], 2)
    [[]]
    """
    count = max(1, -(-len(ids) // room))
    width = max(1, -(-len(ids) // count))
    starts = range(0, max(len(ids), 1), width)
    if len(starts) > most:
        starts = [starts[round(i * (len(starts) - 1) / (most - 1))] for i in range(most)]  # type: ignore[assignment]
    return [list(ids[start : start + width]) for start in starts]


def _thin(text: str) -> str:
    """A text of bearable length: pieces from all over a longer one."""
    if len(text) <= MOST_CHARACTERS:
        return text
    width = MOST_CHARACTERS // MOST_CHUNKS
    starts = np.linspace(0, len(text) - width, MOST_CHUNKS).astype(int)
    return " ".join(text[start : start + width] for start in starts)


def _marks(tokenizer: Any) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text, such as [CLS] and [SEP]."""
    full, bare = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    return [], []
