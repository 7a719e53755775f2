from __future__ import annotations

import gzip
import lzma
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compensate.data import Ragged, Tfidf, Vocabulary, find_vectors, read_vectors, tokenize
from compensate.errors import InputError

GLOVE = "the 0.5 -1 2e-1\nfilm 1 2 3\nn't 0 0 1\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't!", ["do", "n't", "!"]),
        ("it's they're we've", ["it", "'s", "they", "'re", "we", "'ve"]),
        ("I'll he'd I'm", ["i", "'ll", "he", "'d", "i", "'m"]),
        ("it 's a well-made film", ["it", "'s", "a", "well-made", "film"]),
        ("O’Brien can’t", ["o'brien", "ca", "n't"]),
        ("10,000 dollars, 3.5 stars... or 4", ["10,000", "dollars", ",", "3.5", "stars", "...", "or", "4"]),
        ("so <br /><br />good </b>a < b > c", ["so", "good", "a", "<", "b", ">", "c"]),
        ("café naïve 電影", ["café", "naïve", "電影"]),
        ("rock-n-roll -- (really)", ["rock-n-roll", "--", "(", "really", ")"]),
        ("the '70s 'quoted'", ["the", "'", "70s", "'", "quoted", "'"]),
        ("", []),
    ],
)
def test_tokenize(text, words):
    assert tokenize(text) == words


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_tokenize_keeps_every_letter_and_no_blank(text):
    words = tokenize(text)
    assert all(word and not any(c.isspace() for c in word) for word in words)
    if "<" not in text:
        kept = "".join(words)
        assert kept == "".join(c for c in text.lower().replace("’", "'") if not c.isspace())


def test_vocabulary():
    words = Vocabulary.build([["b", "a", "b"], ["c", "a"]], keep=["z", "a"])
    assert words.words == ("a", "b", "c", "z")
    assert len(words) == 6
    assert words.encode(["z", "q", "a"]) == [5, 1, 2]
    assert words.encode([]) == [1], "no sequence is empty"


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_vectors(tmp_path, suffix, pack):
    path = tmp_path / f"glove.txt{suffix}"
    path.write_bytes(pack(GLOVE.encode()))
    found = read_vectors(path)
    assert found["the"].tolist() == pytest.approx([0.5, -1, 0.2])
    if suffix:
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(InputError, match="damaged"):
            read_vectors(path)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"a 1 2\nb 1\n", "line 2"),
        (b"a 1 2\nb 1 x\n", "line 2"),
        (b"a 1 2\nb 1 nan\n", "line 2"),
        (b"a 1 2\n\xff\xfe 1 2\n", "line 2"),
        (b"word\n", "line 1"),
        (b"", "no word vectors"),
    ],
)
def test_damaged_vectors(tmp_path, content, hint):
    (tmp_path / "v.txt").write_bytes(content)
    with pytest.raises(InputError, match=hint):
        read_vectors(tmp_path / "v.txt")


def test_word2vec_header_and_words_with_blanks(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"2 3\na 1 2 3\n. . . 4 5 6\n")
    found = read_vectors(tmp_path / "v.txt")
    assert found["a"].tolist() == [1, 2, 3]
    assert found[". . ."].tolist() == [4, 5, 6]


def test_find_vectors(tmp_path):
    (tmp_path / "glove.6B.50d.subset.txt.xz").write_bytes(b"")
    assert find_vectors("glove.6B.50d", tmp_path).name == "glove.6B.50d.subset.txt.xz"
    assert find_vectors(str(tmp_path / "glove.6B.50d.subset.txt.xz")).exists()
    with pytest.raises(InputError, match=r"put glove\.6B\.300d\.txt there"):
        find_vectors("glove.6B.300d", tmp_path)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=8), st.integers(0, 99))
def test_ragged_is_a_list_of_lists(rows, seed):
    x = Ragged.of(rows)
    assert len(x) == len(rows)
    assert [x[i].tolist() for i in range(len(x))] == rows
    assert x[-1].tolist() == rows[-1]
    pick = np.random.default_rng(seed).integers(len(rows), size=5)
    chosen = x[pick]
    assert [chosen[i].tolist() for i in range(5)] == [rows[i] for i in pick]
    width = max(1, *(len(rows[i]) for i in pick))
    assert chosen.pad().tolist() == [rows[i] + [0] * (width - len(rows[i])) for i in pick]
    with pytest.raises(IndexError):
        x[len(rows)]


TEXTS = [
    "a good film , a good story",
    "a bad film with a bad end",
    "good fun from start to end",
    "a story that is bad , bad , bad",
    "fun for all , and a good end",
]


def test_tfidf_weights_are_those_of_its_formula():
    weights = Tfidf.fit(TEXTS, dims=3, min_count=1).matrix(TEXTS).toarray()
    terms = [[*words, *(f"{a} {b}" for a, b in pairwise(words))] for words in map(tokenize, TEXTS)]
    known = sorted({term for text in terms for term in text})
    naive = np.zeros((len(TEXTS), len(known)))
    for t, text in enumerate(terms):
        for w, term in enumerate(known):
            if term in text:
                holders = sum(term in other for other in terms)
                naive[t, w] = (1 + np.log(text.count(term))) * (1 + np.log((1 + len(TEXTS)) / (1 + holders)))
    assert np.allclose(weights, naive / np.linalg.norm(naive, axis=1, keepdims=True), atol=1e-6)


def test_tfidf_features_are_the_singular_directions():
    ours = Tfidf.fit(TEXTS, dims=3, min_count=1)
    x = ours.matrix(TEXTS).toarray()
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    expected = u[:, :3] * s[:3]
    expected = expected / expected.std(0)
    z = ours(TEXTS)
    signs = np.sign((z * expected).sum(0))
    assert np.allclose(z * signs, expected, atol=1e-3)
    assert np.allclose(z.std(0), 1, atol=1e-4)
    assert not ours(["zzz", ""]).any()
    for texts, least in ((["a b", "c d"], 2), (["a"], 2), (["", ""], 1)):
        with pytest.raises(InputError, match="min_count"):
            Tfidf.fit(texts, min_count=least)
    with pytest.raises(InputError, match="no texts"):
        Tfidf.fit([])
