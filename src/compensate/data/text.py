"""Texts as numbers: tokens, vocabulary, token ids, TF-IDF, and word vectors in GloVe's format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import Ragged, Splits, data_folder, generator
from compensate.errors import InputError
from compensate.files import read_lines

Vectors = dict[str, NDArray[np.float32]]
UNKNOWN = 1  # the id of a word that is not in the vocabulary; 0 is padding
MAX_WORDS = 30_000  # words and word pairs that `Tfidf` weighs
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

    >>> words = Vocabulary.build([["a", "film"], ["a", "play"]])
    >>> words.encode(["a", "new", "play"])
    [2, 1, 4]
    """

    words: tuple[str, ...]

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, start=2)}

    @classmethod
    def build(cls, texts: Iterable[Sequence[str]], *, keep: Iterable[str] = ()) -> Vocabulary:
        """The words of these texts, most frequent first, ties in alphabetical order; then ``keep``."""
        counts = Counter(token for tokens in texts for token in tokens)
        words = [word for _, word in sorted((-n, word) for word, n in counts.items())]
        return cls(tuple(dict.fromkeys([*words, *sorted(keep)])))

    def __len__(self) -> int:
        """The number of ids: the words, padding and unknown."""
        return len(self.words) + 2

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """Ids of the words; an empty text becomes one unknown word."""
        return [self.ids.get(token, UNKNOWN) for token in tokens] or [UNKNOWN]


def encode_texts(
    splits: Splits, *, vectors: Container[str] | None = None, max_length: int | None = None
) -> tuple[Splits, Vocabulary]:
    """Token ids for every part of a text data set, and their vocabulary.

    Args:
        splits: parts whose ``x`` is an array of texts. The vocabulary holds the words of the training part.
        vectors: a mapping from words to vectors; words of other parts that have a vector are added to the vocabulary.
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
    vocabulary = Vocabulary.build(tokens["train"], keep=known)
    encoded = {}
    for name, texts in tokens.items():
        ids = Ragged.of([vocabulary.encode(text[:max_length]) for text in texts], dtype=np.int32)
        part = parts[name]
        encoded[name] = replace(part, x=ids, raw=part.x if part.raw is None else part.raw)
    return Splits(**encoded), vocabulary


@dataclass(frozen=True, eq=False)
class Tfidf:
    r"""TF-IDF weights of texts, reduced to a few dimensions.

    .. math:: x_{tw} = (1 + \ln n_{tw}) \left(1 + \ln\frac{1 + N}{1 + N_w}\right), \qquad z_t = V^\top x_t / \|x_t\|

    where :math:`n_{tw}` counts word or word pair :math:`w` in text :math:`t`, :math:`N_w` of :math:`N` texts hold it,
    and :math:`V`, (words, dims), holds the leading right singular vectors of the fitted matrix. Each column of
    :math:`z` is scaled to unit variance over the fitted texts. The words are those of `tokenize`.

    >>> Tfidf.fit(["a good film", "a bad film", "good fun"], dims=2, min_count=1)(["a film"]).shape
    (1, 2)
    """

    vectorizer: Any
    svd: Any
    scale: NDArray[np.float32]

    @classmethod
    def fit(cls, texts: Iterable[str], *, dims: int = 256, min_count: int = 2) -> Tfidf:
        """Learn words, weights and directions from these texts."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        docs = [str(text) for text in texts]
        if not docs:
            raise InputError("Tfidf.fit was given no texts.")
        vectorizer = TfidfVectorizer(
            tokenizer=tokenize, token_pattern=None, lowercase=False, ngram_range=(1, 2), sublinear_tf=True,
            min_df=min_count, max_features=MAX_WORDS, dtype=np.float32,
        )  # fmt: skip
        try:
            x = vectorizer.fit_transform(docs)
        except ValueError:  # no terms are left
            raise InputError(f"no word occurs in {min_count} of the {len(docs)} texts; lower min_count.") from None
        svd = TruncatedSVD(min(dims, *x.shape), random_state=0).fit(x)
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


def read_vectors(path: str | Path) -> Vectors:
    r"""Word vectors from a text file with a word and its numbers on each line (.txt, .gz, .xz, .bz2).

    A first line with word2vec's count and size is skipped.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tiny.2d.txt"
    >>> _ = path.write_text("film 1 2\nplot 3 4\n")
    >>> read_vectors(path)["plot"].tolist()
    [3.0, 4.0]

    Reference: Pennington, Socher and Manning, GloVe: Global Vectors for Word Representation, 2014.
    """
    vectors: Vectors = {}
    size = 0
    for number, line in enumerate(read_lines(path), start=1):
        head, _, tail = line.rstrip().partition(b" ")
        if number == 1 and head.isdigit() and tail.isdigit():
            continue
        size = size or len(tail.split())
        if size == 0:
            raise InputError(f"line {number} of {path} has no numbers; expected a word and its vector.")
        fields = line.split()
        if len(fields) > size + 1:  # a few words of the largest GloVe files contain blanks
            head = line.rstrip().rsplit(b" ", size)[0]
        try:
            word = head.decode("utf-8")
            vectors[word] = np.array(fields[-size:], dtype=np.float32)
            if len(fields) <= size or not np.isfinite(vectors[word]).all():
                raise ValueError(f"{len(fields) - 1} numbers")
        except ValueError as error:
            held = f"line {number} of {path} is not a word with {size} numbers ({error})"
            raise InputError(f"{held}. The file may be truncated: download it again.") from None
    if not size:
        raise InputError(f"{path} holds no word vectors; expected a word and its numbers on each line.")
    return vectors


def find_vectors(name: str, data_dir: str | Path | None = None) -> Path:
    r"""The file of word vectors: a path, or the start of a file name in the data folder, such as ``glove.6B.100d``.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "tiny.2d.txt").write_text("film 1 2\n")
    >>> find_vectors("tiny.2d", folder).name
    'tiny.2d.txt'
    """
    if Path(name).is_file():
        return Path(name)
    folder = data_folder(data_dir)
    files = sorted(path for path in folder.glob(f"{name}*") if ".txt" in path.suffixes)
    if not files:
        remedy = f"Download https://nlp.stanford.edu/data/glove.6B.zip, unpack it, and put {name}.txt there"
        raise InputError(f"there are no word vectors {name} in {folder}. {remedy}.")
    return files[0]


def embedding_matrix(vocabulary: Vocabulary, vectors: Vectors, *, seed: int = 0) -> NDArray[np.float32]:
    """(ids, size) initial weights of an embedding layer: zero for padding, the given vectors, and for other words random ones.

    >>> embedding_matrix(Vocabulary(("film", "n't")), {"film": np.ones(2, np.float32)}).shape      # padding, unknown, two words
    (4, 2)
    """
    if not vectors:
        raise InputError("there are no word vectors; none of the vocabulary's words is in the file.")
    size = len(next(iter(vectors.values())))
    known = [i for i, word in enumerate(vocabulary.words, start=2) if word in vectors]
    values = np.array([vectors[vocabulary.words[i - 2]] for i in known], dtype=np.float32).reshape(-1, size)
    spread = float(values.std()) if len(known) else 0.1
    matrix = generator(seed, "embedding").normal(0, spread, (len(vocabulary), size)).astype(np.float32)
    matrix[known] = values
    matrix[0] = 0
    return matrix
