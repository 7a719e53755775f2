"""Single rows that do not belong: far from all others, empty, in another language, dark, bright or blank."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from compensate.auditing.arrays import Floats
from compensate.auditing.issues.image_copies import grey
from compensate.auditing.issues.neighbors import Near, nearest_rows

NEIGHBORS = 10
FAR = 2.4
"""The oddity from which on a row is an outlier. Chosen on two draws of 700 sentences of SST-2 with eight of AG News, and on stretched rows of four tables: two
thirds or more of the planted rows of the tables lie beyond, a third of the sentences, and hardly any other; of 3,000 normal rows in 10 dimensions, 2."""

USUAL = 0.8413
"""The quantile that lies one standard deviation above the median of a normal distribution."""

DARK, BRIGHT, BLANK = 0.15, 0.9, 0.015
"""An image is dark if 99 % of its pixels are darker than the first, bright if 99 % are brighter than the second (of 0 to 1), and blank if
the standard deviation of its pixels is below the third, which in a dark or bright image may still be a picture."""

NOTHING = 1 / 255
"""A standard deviation of pixels below one step of brightness: there is no picture, however dark or bright."""

RowFinding = tuple[int, float, str]
"""A position, its score and what to say of it."""

FUNCTION_WORDS = {
    "English": "the and of to is in that it was for with as this but not you are on have be at his her they from which or an",
    "German": "der die das und ist nicht ich sie es mit ein eine auf für auch dem den von wird sich wie aber noch nur war",
    "French": "le la les et est un une des dans que qui pour pas ce il elle nous vous sur avec plus mais sont cette au",
    "Spanish": "el la los las y es un una en que por para con no se lo como más pero su muy está este del al",
    "Italian": "il la gli e è un una di che per non con sono del della più ma si questo come anche nel alla molto",
    "Portuguese": "o a os as e é um uma de que não para com se do da mais mas por como em muito seu foi isso",
    "Dutch": "de het een en is van niet dat ik te op met voor zijn er maar ook aan als om dan nog wel wat",
}
"""Frequent short words by which a language is known."""

LEAST_WORDS = 5
"""Texts of fewer words are in no language for sure."""

_WORD = re.compile(r"[^\W\d_]+")


def outliers(vectors: Any, near: Near | None = None) -> Iterator[RowFinding]:
    """Rows far from their nearest neighbors; the score is their oddity. Arguments as for `oddity`."""
    if vectors is None or sparse.issparse(vectors) or len(vectors) < 5 * NEIGHBORS:
        return
    odd, times = oddity(vectors, near)
    for i in np.flatnonzero(odd > FAR).tolist():
        yield i, float(odd[i]), f"{times[i]:.1f} times as far from its nearest rows as usual"


def oddity(vectors: Any, near: Near | None = None) -> tuple[Floats, Floats]:
    r"""(N,) how odd each row is, and how many times as far as usual its neighbors are.

    The mean distance to the nearest rows is taken twice, as it is and between directions (rows of length one): a heavy tail stretches one of
    the two, and what does not belong is far by both. Of either, :math:`z_i = (\ln d_i - m) / s` with the median :math:`m` and the
    deviation :math:`s` of the upper half alone, since distances lean to one side. The oddity is the mean of the two.

    Args:
        vectors: (N, D) features.
        near: what `nearest_rows` gives for them and `NEIGHBORS`, if it is known.
    """
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    far = (nearest_rows(rows, NEIGHBORS) if near is None else near)[1].mean(1)
    turned = (nearest_rows(rows / np.maximum(lengths, 1e-12), NEIGHBORS)[1] ** 2).mean(1)
    usual = float(np.median(far[far > 1e-9])) if (far > 1e-9).any() else 1.0
    z = [_above_usual(d) for d in (far, turned) if (d > 1e-9).any()]  # of one column, there are but two directions
    return np.mean(z, axis=0) if z else np.zeros(len(rows)), far / usual


def _above_usual(distance: NDArray[Any]) -> Floats:
    apart = distance > 1e-9  # copies say nothing about how far rows usually are
    logs = np.log(np.maximum(distance, 1e-12).astype(np.float64))
    middle, above = np.quantile(logs[apart], [0.5, USUAL])
    return np.asarray((logs - middle) / max(above - middle, 0.01))


def empty_texts(texts: Sequence[str]) -> Iterator[RowFinding]:
    """Texts without a letter or digit."""
    for i, text in enumerate(texts):
        if not any(sign.isalnum() for sign in text):
            yield i, 1.0, "no letter or digit" if text.strip() else "empty"


def other_languages(texts: Sequence[str]) -> Iterator[RowFinding]:
    """Texts in another language than most; the score is the share of its words that say so."""
    found = [language(text) for text in texts]
    known = Counter(name for name, _ in found if name)
    if not known:
        return
    usual, count = known.most_common(1)[0]
    if count < 0.6 * sum(known.values()):
        return  # a mixed corpus has no usual language
    for i, (name, share) in enumerate(found):
        if name and name != usual:
            yield i, share, f"{name}, where most are {usual}"


def language(text: str) -> tuple[str, float]:
    """The language or script of a text, and the share of its words that say so; nothing for short or unclear texts.

    >>> language("Der Film ist nicht gut und die Musik auch nicht")
    ('German', 0.7)
    >>> language("ok")
    ('', 0.0)
    """
    words = _WORD.findall(text[:5000].lower())
    if len(words) < LEAST_WORDS:
        letters = [sign for sign in text[:5000] if sign.isalpha()]
        if len(letters) < LEAST_WORDS or _script(letters[0]) == "LATIN":
            return "", 0.0
    script, signs = ("LATIN", 1.0) if text.isascii() else _most_frequent_script("".join(words[:200]))
    if script != "LATIN":
        return script.title(), signs
    words_of_some = [word for word in words if word in _ALL_WORDS]
    if not words_of_some:
        return "", 0.0
    shares = {name: sum(word in listed for word in words_of_some) / len(words) for name, listed in _SETS.items()}
    (best, share), (_, second) = sorted(shares.items(), key=lambda item: -item[1])[:2]
    # A quarter of the words of running text are such words; names and headlines have fewer, and some words are of several languages.
    several = len(_SETS[best] & set(words)) >= 3
    return (best, share) if several and share >= 0.15 and share >= second + 0.1 else ("", 0.0)


def _most_frequent_script(letters: str) -> tuple[str, float]:
    """The script of most letters, and their share."""
    scripts: Counter[str] = Counter()
    for sign, times in Counter(letters).items():
        scripts[_script(sign)] += times
    script, signs = scripts.most_common(1)[0]
    return script, signs / len(letters)


@lru_cache(1 << 14)
def _script(sign: str) -> str:
    name = unicodedata.name(sign, "OTHER").split()[0]
    return "CJK" if name in ("CJK", "HIRAGANA", "KATAKANA") else name


_SETS = {name: frozenset(word for word in words.split() if len(word) > 1) for name, words in FUNCTION_WORDS.items()}
_ALL_WORDS = frozenset().union(*_SETS.values())


def odd_images(images: NDArray[Any]) -> Iterator[tuple[str, int, float, str]]:
    """Dark, bright and blank images: the kind, and as for others; the score is how far beyond the limit, from 0 to 1."""
    small = grey(images)
    flat = small.reshape(len(small), -1)
    low, high = np.quantile(flat, [0.01, 0.99], axis=1)
    spread = flat.std(1)
    for i in range(len(flat)):
        seen = NOTHING if high[i] < DARK or low[i] > BRIGHT else BLANK
        if spread[i] < seen:
            yield (
                "blank_image",
                i,
                1 - float(spread[i]) / seen,
                f"pixels differ by {spread[i]:.3f} (standard deviation, of 1)",
            )
        elif high[i] < DARK:
            yield "dark_image", i, 1 - float(high[i]) / DARK, f"99 % of the pixels are darker than {high[i]:.2f} (of 1)"
        elif low[i] > BRIGHT:
            yield (
                "bright_image",
                i,
                (float(low[i]) - BRIGHT) / (1 - BRIGHT),
                f"99 % of the pixels are brighter than {low[i]:.2f} (of 1)",
            )
