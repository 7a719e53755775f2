"""Embeddings of texts with a transformer: long texts are split into chunks, batches have similar lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

MAX_CHUNKS = 8
"""Chunks per text, evenly spaced: about 2,000 words."""

MAX_CHARACTERS = 100_000
"""Longer texts are reduced to `MAX_CHUNKS` evenly spaced excerpts of this total length before tokenization."""

SECTION = 4096
"""Texts that are tokenized and sorted by length at a time, which bounds the memory for tokens."""

BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}
"""Tokens of a batch, padding included. On a CPU, larger batches leave the cache and are slower."""

EncodedBatch = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Positions of items, and their embeddings."""

ABSENT = -1
"""Marks positions without a token."""


class TextNetwork(nn.Module):
    """From tokens (B, chunks, T), padded with `ABSENT`, to (B, D), the sum of the normalized embeddings of the chunks."""

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
    """A tokenizer of `transformers` and a model of its tokens, on a device.

    Args:
        model: from input_ids and attention_mask, both (B, T), to embeddings (B, D).
        max_length: the maximum number of tokens of the model, special tokens included.
    """

    def __init__(self, tokenizer: Any, model: nn.Module, max_length: int, device: torch.device) -> None:
        self.tokenizer, self.device = tokenizer, device
        # Special tokens before and after a text, such as [CLS] and [SEP].
        full, bare = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
        places = (k for k in range(len(full) - len(bare) + 1) if full[k : k + len(bare)] == bare)
        start = next(places, None)
        self.before: list[int] = [] if start is None else full[:start]
        self.after: list[int] = [] if start is None else full[start + len(bare) :]
        self.chunk_length = max(1, max_length - len(self.before) - len(self.after))
        self.padding = tokenizer.pad_token_id or 0
        self.network = TextNetwork(model, self.padding)

    def __call__(self, texts: Sequence[str], batch_size: int | None = None) -> Iterator[EncodedBatch]:
        """Yields batches of unit-length embeddings, in another order than the texts."""
        budget = BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cpu"])
        for start in range(0, len(texts), SECTION):
            pieces = self.pieces(texts[start : start + SECTION])
            batches: list[list[int]] = [[]]
            size = 0
            for row in sorted(range(len(pieces)), key=lambda row: len(pieces[row][0])):
                size += len(pieces[row])
                # The last text is the widest, because they are sorted by length.
                if batches[-1] and (size * len(pieces[row][0]) > budget or len(batches[-1]) == batch_size):
                    batches.append([])
                    size = len(pieces[row])
                batches[-1].append(row)
            for batch in batches:
                with torch.inference_mode():
                    x = stacked([pieces[row] for row in batch]).to(self.device)
                    values = F.normalize(self.network(x), dim=1).cpu().numpy()
                yield np.array(batch) + start, values

    def pieces(self, texts: Sequence[str], max_chunks: int = MAX_CHUNKS) -> list[list[list[int]]]:
        """The tokens of each text, in at most ``max_chunks`` chunks with special tokens around each."""
        width = MAX_CHARACTERS // MAX_CHUNKS
        excerpts = list(texts)
        for row, text in enumerate(texts):
            if len(text) > MAX_CHARACTERS:
                starts = np.linspace(0, len(text) - width, MAX_CHUNKS).astype(int)
                excerpts[row] = " ".join(text[start : start + width] for start in starts)
        found = self.tokenizer(excerpts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        before, after, blank = self.before, self.after, [self.padding]
        texts_in_chunks = (chunks(ids, self.chunk_length, max_chunks) for ids in found["input_ids"])
        return [[[*before, *chunk, *after] or blank for chunk in text] for text in texts_in_chunks]


def stacked(texts: Sequence[Sequence[Any]]) -> Tensor:
    """(B, chunks, T) the tokens of texts, padded with `ABSENT`.

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
    """(B, D) the mean of (B, T, D) over the tokens under the mask."""
    weights = mask.unsqueeze(2).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)


def chunks(ids: Sequence[int], chunk_length: int, max_chunks: int = MAX_CHUNKS) -> list[list[int]]:
    """Chunks of at most ``chunk_length`` tokens and nearly equal length; at most ``max_chunks`` of them, evenly spaced.

    >>> chunks([1, 2, 3, 4, 5], 2), chunks(range(100), 1, max_chunks=3)
    ([[1, 2], [3, 4], [5]], [[0], [50], [99]])
    """
    count = max(1, -(-len(ids) // chunk_length))
    width = max(1, -(-len(ids) // count))
    starts = range(0, max(len(ids), 1), width)
    if len(starts) > max_chunks:
        starts = [starts[round(i * (len(starts) - 1) / (max_chunks - 1))] for i in range(max_chunks)]  # type: ignore[assignment]
    return [list(ids[start : start + width]) for start in starts]
