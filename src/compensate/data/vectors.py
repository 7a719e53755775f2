"""Word vectors in GloVe's text format."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import generator
from compensate.data.load import data_folder
from compensate.data.text import Vocabulary
from compensate.errors import InputError
from compensate.files import read_lines

Vectors = dict[str, NDArray[np.float32]]


def read_vectors(path: str | Path, wanted: Container[str] | None = None) -> Vectors:
    r"""Word vectors from a text file with a word and its numbers on each line (.txt, .gz, .xz, .bz2).

    Args:
        path: the file, for example ``glove.6B.100d.txt``. A first line with word2vec's count and size is skipped.
        wanted: keep only these words; all by default.

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
            if wanted is not None and word not in wanted:
                continue
            vectors[word] = np.array(fields[-size:], dtype=np.float32)
            if len(fields) <= size or not np.isfinite(vectors[word]).all():
                raise ValueError(f"{len(fields) - 1} numbers")
        except ValueError as error:
            raise InputError(
                f"line {number} of {path} is not a word with {size} numbers ({error}). The file may be truncated: "
                "download it again."
            ) from None
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
    for path in sorted(folder.glob(f"{name}*")) if folder.is_dir() else ():
        if ".txt" in path.suffixes:
            return path
    raise InputError(
        f"there are no word vectors {name} in {folder}. Download https://nlp.stanford.edu/data/glove.6B.zip, unpack it, "
        f"and put {name}.txt there."
    )


def embedding_matrix(vocabulary: Vocabulary, vectors: Vectors, *, seed: int = 0) -> NDArray[np.float32]:
    """(ids, size) initial weights of an embedding layer: zero for padding, the given vectors, and random ones for other words.

    Random vectors are normal with the standard deviation of the given ones.

    >>> words = Vocabulary(("film", "n't"))
    >>> embedding_matrix(words, {"film": np.array([1.0, 2.0], np.float32)}).shape      # padding, unknown, two words
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
