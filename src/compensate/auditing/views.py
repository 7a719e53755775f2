"""From samples to views: the feature matrices that learners see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from compensate.auditing.folds import content_keys
from compensate.auditing.learners import View
from compensate.data.dataset import Data
from compensate.errors import InputError

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, the steps that are done and the number of all."""

WORDS = 50_000
"""The most frequent words and pairs of words that are counted."""

WORD = r"(?u)\b\w+\b|[!?]"
"""What counts as a word: signs of emphasis do, for they tell sentiment."""

PIXELS = 1024
"""Larger images are brought to about this many pixels where no encoder looks at them."""

FAR, LARGE, LOOKED_AT = 10, 1e3, 1_000
"""Values farther from the median than this many times the nearer of the 5 % and 95 % quantiles are cut; columns that reach
beyond 1e3, or nowhere beyond 1e-3, are scaled; and the rows in which quantiles are looked up."""

FEW_COLUMNS = 200
"""Features of at most this many columns are looked at by trees too: they may be a table."""


@dataclass(frozen=True, eq=False)
class Views:
    """The views of a data set.

    Attributes:
        views: one or more.
        keys: (N,) equal for rows with equal content, or None.
        shown: (N, D) features by which samples are compared on the review page.
        about: name, license and source of the encoder, or a hint at what an encoder would bring; for the report.
        notes: what a user should know about them.
    """

    views: tuple[View, ...]
    keys: NDArray[np.int64] | None
    shown: Any
    about: dict[str, str]
    notes: tuple[str, ...] = ()


def make_views(
    data: Data, encoder: str | Path = "auto", *, device: Any = None, progress: Progress | None = None
) -> Views:
    """All views that suit the data.

    Args:
        data: of any kind.
        encoder: as for `compensate.encoders.encode`.
        device: for the encoder.
        progress: called while items are encoded.
    """
    kind = str(data.info.get("kind") or kind_of(data.x))
    if not _own_features(data):
        if kind == "text":
            return _of_texts(data, encoder, device, progress)
        if kind == "images":
            return _of_images(data, encoder, device, progress)
        if kind == "table" and isinstance(data.raw, pd.DataFrame) and "columns" in data.info:
            return replace(_of_table(data), notes=unused_encoder(encoder, "the columns of a table"))
    return replace(_of_features(data.x), notes=unused_encoder(encoder, "embeddings and other features"))


def unused_encoder(encoder: str | Path, what: str) -> tuple[str, ...]:
    """A note if an encoder was asked for and is not used; an unknown one is refused all the same.

    >>> unused_encoder("auto", "embeddings")
    ()
    """
    if str(encoder) in ("auto", "none"):
        return ()
    from compensate.encoders import check_encoder

    check_encoder(encoder)
    return (f"the encoder {encoder} is not used: {what} are not encoded.",)


def kind_of(x: Any) -> str:
    """What samples are, where nobody has said it.

    >>> kind_of(np.zeros((2, 3, 8, 8))), kind_of(np.array(["a text"], dtype=object)), kind_of(np.zeros((2, 3)))
    ('images', 'text', 'features')
    """
    if isinstance(x, np.ndarray) and x.dtype.kind == "O":
        return "text"
    return "images" if np.ndim(x) == 4 else "features"


def _own_features(data: Data) -> bool:
    """Whether the user has given embeddings in place of the samples themselves."""
    return bool(data.info.get("features_given"))


def _of_features(x: Any) -> Views:
    values = np.asarray(x)
    values = values.reshape(len(values), -1).astype(np.float32, copy=False)
    if not values.shape[1]:
        raise InputError("the samples have no features; an audit needs at least one column beside the labels.")
    few = values.shape[1] <= FEW_COLUMNS
    keys = content_keys(values)
    values = bounded(values)
    return Views((View("features", values, values if few else None),), keys, values, {})


def bounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The columns without values far beyond the others, which would rule the scale of their column.

    Columns whose values are all very large or very small are brought to numbers of usual size. Where nothing has to change, the
    array itself is returned: it may be a mapped file.

    >>> bounded(np.array([[0.0], [1.0], [2.0], [1e30]], np.float32)).max() < 100
    np.True_
    """
    some = values[:: max(1, len(values) // LOOKED_AT)].astype(np.float64)
    tail = 0.05 if len(some) > 40 else 0.25
    low, middle, high = np.quantile(some, [tail, 0.5, 1 - tail], axis=0)
    reach = FAR * np.minimum(high - middle, middle - low)
    reach = np.where(reach > 0, reach, np.inf)
    least, most = values.min(0).astype(np.float64), values.max(0).astype(np.float64)
    extent = np.minimum(np.maximum(most - middle, middle - least), reach)
    odd = (extent > LARGE) | ((extent < 1 / LARGE) & (extent > 0))
    if not odd.any() and (most <= middle + reach).all() and (least >= middle - reach).all():
        return values
    found = np.empty_like(values)
    for start in range(0, len(values), LOOKED_AT):
        part = np.clip(values[start : start + LOOKED_AT], middle - reach, middle + reach)
        found[start : start + LOOKED_AT] = np.where(odd, (part - middle) / np.where(odd, extent, 1), part)
    return found


def _of_table(data: Data) -> Views:
    from compensate.data.features import table_views

    found = table_views(data)
    linear = found.linear.astype(np.float32, copy=False)
    view = View("columns", linear, found.trees)
    return Views((view,), content_keys(np.asarray(found.trees)), linear, {})


def _of_texts(data: Data, encoder: str | Path, device: Any, progress: Progress | None) -> Views:
    texts = [str(text) for text in data.x]
    encoded, about = _encoded(data, encoder, "text", device, progress)
    views = [] if encoded is None else [View(about["encoder"], encoded)]
    words = _words(texts)
    if words is not None:
        views.append(View("words", words))
    if not views:
        raise InputError("the texts have no word in common; an audit compares samples. Check which column is the text.")
    return Views(tuple(views), content_keys(texts), words if encoded is None else encoded, about)


def _words(texts: list[str]) -> Any:
    """(N, words) sparse TF-IDF of words and pairs of words, or None if there are none."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    rare = 1 if len(texts) < 200 else 2
    counted = TfidfVectorizer(
        sublinear_tf=True, min_df=rare, max_features=WORDS, ngram_range=(1, 2), token_pattern=WORD
    )
    try:
        return sp.csr_matrix(counted.fit_transform(texts)).astype(np.float32)
    except ValueError:  # an empty vocabulary
        return None


def _of_images(data: Data, encoder: str | Path, device: Any, progress: Progress | None) -> Views:
    pixels = _pixels(data.x)
    keys = content_keys(np.asarray(data.x))
    encoded, about = _encoded(data, encoder, "image", device, progress)
    if encoded is None:
        few = pixels.shape[1] <= PIXELS
        return Views((View("pixels", pixels, pixels if few else None),), keys, pixels, about)
    views = [View(about["encoder"], encoded)]
    if _is_gray(data.x):  # drawings and digits: the pixels themselves say much
        views.append(View("pixels", pixels, pixels))
    return Views(tuple(views), keys, encoded, about)


def _is_gray(images: NDArray[Any]) -> bool:
    return images.shape[1] == 1


def _pixels(images: NDArray[Any]) -> NDArray[np.float32]:
    """(N, D) values between 0 and 1; large images are averaged over squares."""
    x = np.asarray(images)
    side = max(1, int(np.ceil(np.sqrt(x.shape[2] * x.shape[3] / PIXELS))))
    h, w = x.shape[2] // side * side, x.shape[3] // side * side
    small = np.empty((len(x), x.shape[1] * (h // side) * (w // side)), np.float32)
    for start in range(0, len(x), 1000):
        part = x[start : start + 1000, :, :h, :w].astype(np.float32)
        part = part.reshape(*part.shape[:2], h // side, side, w // side, side).mean((3, 5))
        small[start : start + 1000] = part.reshape(len(part), -1)
    if x.dtype == np.uint8:
        small /= 255
    return small


def _encoded(
    data: Data, encoder: str | Path, kind: str, device: Any, progress: Progress | None
) -> tuple[NDArray[np.float32] | None, dict[str, str]]:
    if encoder == "none":
        return None, {}
    from compensate.encoders import encode_data, hint

    def told(done: int, total: int) -> None:
        if progress is not None:
            progress("encoding", done, total)

    found = encode_data(data, encoder, device=device, progress=told)
    if found is None:
        return None, {"hint": hint(kind)}
    return found.values, {"encoder": found.name, "license": found.license, "encoder_source": found.source}
