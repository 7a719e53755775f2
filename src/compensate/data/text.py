"""Texts as numbers: tokens, vocabulary, token ids, TF-IDF."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import Ragged, Splits
from compensate.errors import InputError
from compensate.files import write_atomically

PADDING, UNKNOWN = 0, 1
"""The ids of padding and of a word that is not in the vocabulary."""

_MARKUP = re.compile(r"<[a-z/][^<>]{0,200}>")
_WORD = re.compile(
    r"\w+?(?=n't\b)|n't\b"  # do n't, as treebank and GloVe have it
    r"|'(?:s|re|ve|ll|d|m)\b"  # 's 're 've 'll 'd 'm
    r"|\d+(?:[.,]\d+)*(?!\w)"  # 10,000 and 3.5
    r"|\w+(?:[-']\w+)*?(?=n't\b|'(?:s|re|ve|ll|d|m)\b|[^\w'-]|[-'](?!\w)|$)"  # well-made, o'brien
    r"|\.{2,}|-{2,}|[^\w\s]"  # ... -- and single signs
)


def tokenize(text: str) -> list[str]:
    """Lower-case words, clitics and signs, split as in the Penn treebank and GloVe; HTML tags are dropped.

    >>> tokenize("It's a well-made film,<br />but I don't care...")
    ['it', "'s", 'a', 'well-made', 'film', ',', 'but', 'i', 'do', "n't", 'care', '...']
    """
    return _WORD.findall(_MARKUP.sub(" ", text.lower().replace("’", "'")))


@dataclass(frozen=True)
class Vocabulary:
    """Words and their ids: 0 is padding, 1 any unknown word; the words follow from 2 on.

    >>> words = Vocabulary.build([["a", "film"], ["a", "play"]], min_count=2)
    >>> words.encode(["a", "new", "a"])
    [2, 1, 2]
    """

    words: tuple[str, ...]
    ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", {word: i for i, word in enumerate(self.words, start=2)})

    @classmethod
    def build(
        cls,
        texts: Iterable[Sequence[str]],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        keep: Iterable[str] = (),
    ) -> Vocabulary:
        """The words seen at least ``min_count`` times, most frequent first, ties in alphabetical order; then ``keep``."""
        counts = Counter(token for tokens in texts for token in tokens)
        ranked = sorted(((-n, word) for word, n in counts.items() if n >= min_count))
        words = [word for _, word in ranked[:max_size]]
        return cls(tuple(dict.fromkeys([*words, *sorted(keep)])))

    def __len__(self) -> int:
        """The number of ids: the words, padding and unknown."""
        return len(self.words) + 2

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """Ids of the words; an empty text becomes one unknown word."""
        return [self.ids.get(token, UNKNOWN) for token in tokens] or [UNKNOWN]

    def save(self, path: str | Path) -> None:
        """One word a line, as JSON text."""
        write_atomically(path, json.dumps(self.words, ensure_ascii=False, indent=0).encode())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        words = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise InputError(f"{path} is not a vocabulary; expected a JSON list of words.")
        return cls(tuple(words))


def encode_texts(
    splits: Splits,
    *,
    vectors: Any = None,
    min_count: int = 1,
    max_size: int | None = None,
    max_length: int | None = None,
) -> tuple[Splits, Vocabulary]:
    """Token ids for every part of a text data set, and their vocabulary.

    The vocabulary holds the words of the training part. With ``vectors`` it also holds the words of the other parts that have a
    vector. Labels are not used.

    Args:
        splits: parts whose ``x`` is an array of texts.
        vectors: a mapping from words to vectors.
        min_count: leave out words of the training part seen less often, unless they have a vector.
        max_size: the maximum number of words, by frequency.
        max_length: the maximum number of tokens of a text.

    >>> from compensate.data import Dataset
    >>> texts = Dataset(np.array(["a film", "a play"], dtype=object), np.array([0, 1]), ("x", "y"))
    >>> splits, words = encode_texts(Splits(texts))
    >>> words.words, splits.train.x[0].tolist()
    (('a', 'film', 'play'), [2, 3])
    """
    parts = {name: getattr(splits, name) for name in ("train", "test", "validation")}
    tokens = {name: [tokenize(str(t)) for t in part.x] for name, part in parts.items() if part is not None}
    known: set[str] = set()
    if vectors is not None:
        known = {word for texts in tokens.values() for text in texts for word in text if word in vectors}
    vocabulary = Vocabulary.build(tokens["train"], min_count=min_count, max_size=max_size, keep=known)
    done = {
        name: replace(
            parts[name],
            x=Ragged.of([vocabulary.encode(text[:max_length]) for text in texts], dtype=np.int32),
            raw=parts[name].x if parts[name].raw is None else parts[name].raw,
        )
        for name, texts in tokens.items()
    }
    return Splits(**done), vocabulary


@dataclass(frozen=True, eq=False)
class Tfidf:
    r"""TF-IDF weights of texts, reduced to a few dimensions.

    .. math:: x_{tw} = (1 + \ln n_{tw}) \left(1 + \ln\frac{1 + N}{1 + N_w}\right), \qquad z_t = V^\top x_t / \|x_t\|

    where :math:`n_{tw}` counts word or word pair :math:`w` in text :math:`t`, :math:`N_w` of :math:`N` texts hold it,
    and :math:`V`, (words, dims), holds the leading right singular vectors of the fitted matrix. Each column of
    :math:`z` is scaled to unit variance over the fitted texts. scikit-learn's TfidfVectorizer and TruncatedSVD, with
    the words of `tokenize`.

    >>> texts = ["a good film", "a bad film", "good fun", "bad fun"]
    >>> Tfidf.fit(texts, dims=2, min_count=1)(texts).shape
    (4, 2)
    """

    vectorizer: Any
    svd: Any
    scale: NDArray[np.float32]

    @classmethod
    def fit(
        cls, texts: Iterable[str], *, dims: int = 256, max_words: int = 30_000, min_count: int = 2, seed: int = 0
    ) -> Tfidf:
        """Learn words, weights and directions from these texts."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        docs = [str(text) for text in texts]
        if not docs:
            raise InputError("Tfidf.fit was given no texts.")
        vectorizer = TfidfVectorizer(
            tokenizer=tokenize, token_pattern=None, lowercase=False, ngram_range=(1, 2), sublinear_tf=True,
            min_df=min_count, max_features=max_words, dtype=np.float32,
        )  # fmt: skip
        try:
            x = vectorizer.fit_transform(docs)
        except ValueError as error:
            if min_count <= len(docs) and "no terms remain" not in str(error) and "empty vocabulary" not in str(error):
                raise
            raise InputError(
                f"no word occurs in at least {min_count} of the {len(docs)} texts; lower min_count."
            ) from None
        svd = TruncatedSVD(min(dims, *x.shape), random_state=seed).fit(x)
        spread = svd.transform(x).std(0)
        # A direction without variance stays at zero.
        scale = np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 0).astype(np.float32)
        return cls(vectorizer, svd, scale)

    def __call__(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """(N, dims) features of these texts; a text without a known word is all zero."""
        return (self.svd.transform(self.matrix(texts)) * self.scale).astype(np.float32)

    def matrix(self, texts: Iterable[str]) -> Any:
        """(N, words) the weights themselves, a sparse matrix with rows of unit length."""
        return self.vectorizer.transform([str(text) for text in texts])
