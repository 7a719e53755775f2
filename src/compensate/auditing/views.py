"""From samples to views: the feature matrices that learners see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.auditing.arrays import Ints, Singles
from compensate.auditing.folds import content_keys
from compensate.auditing.learners import View
from compensate.auditing.view_makers import (
    FEW_COLUMNS,
    PIXELS,
    Columns,
    Embeddings,
    Features,
    Maker,
    Pixels,
    Words,
    flat_rows,
    pixel_rows,
)
from compensate.data.dataset import Data
from compensate.data.features import TableEncoder
from compensate.errors import InputError

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, the steps that are done and the number of all."""


@dataclass(frozen=True, eq=False)
class FeatureViews:
    """The views of a data set.

    Attributes:
        views: one or more.
        makers: what made each of them, and makes the same of new samples.
        keys: (N,) equal for rows with equal content, or None.
        shown: (N, D) features by which samples are compared on the review page.
        about: name, license and source of the encoder, or a hint at what an encoder would bring; for the report.
        notes: what a user should know about them.
    """

    views: tuple[View, ...]
    makers: tuple[Maker, ...]
    keys: Ints | None
    shown: Any
    about: dict[str, str]
    notes: tuple[str, ...] = ()


def make_views(
    data: Data, encoder: str | Path = "auto", *, device: Any = None, progress: Progress | None = None
) -> FeatureViews:
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


@dataclass(frozen=True, eq=False)
class Makers:
    """What makes the views of samples that are read piece by piece.

    Attributes:
        makers: one for each view.
        about, notes: as for `FeatureViews`.
    """

    makers: tuple[Maker, ...]
    about: dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def encoder(self) -> Embeddings | None:
        """The maker that runs a pretrained encoder, if there is one."""
        return next((maker for maker in self.makers if isinstance(maker, Embeddings)), None)

    def views(self, data: Data, embedded: Singles | None = None) -> tuple[View, ...]:
        """The views of some samples, and with them their embeddings, if there is an encoder."""
        return tuple(
            View(maker.name, embedded) if isinstance(maker, Embeddings) and embedded is not None else maker.view(data)
            for maker in self.makers
        )


def fit_makers(data: Data, encoder: str | Path = "auto", *, device: Any = None) -> Makers:
    """What `make_views` would learn from these samples; nothing but the first of them is encoded.

    Args:
        data: some of the samples.
        encoder, device: as for `make_views`.
    """
    kind = str(data.info.get("kind") or kind_of(data.x))
    if not _own_features(data) and kind == "table" and isinstance(data.raw, pd.DataFrame) and "columns" in data.info:
        return Makers((_columns_maker(data),), {}, unused_encoder(encoder, "the columns of a table"))
    if _own_features(data) or kind not in ("text", "images"):
        maker = Features.fit(_rows_of_features(data.x))
        return Makers((maker,), {}, unused_encoder(encoder, "embeddings and other features"))
    encoded, about = _encoded(data.subset([0]), encoder, "text" if kind == "text" else "image", device, None)
    makers: list[Maker] = [] if encoded is None else [encoded[0]]
    if kind == "text":
        words = Words.fit([str(text) for text in data.x])
        makers += [] if words is None else [words[0]]
    elif encoded is None or _is_gray(data.x):
        makers.append(_pixels_maker(data.x, encoded is not None))
    if not makers:
        raise InputError("the texts have no word in common; an audit compares samples. Check which column is the text.")
    return Makers(tuple(makers), about)


def keys_of(data: Data, views: tuple[View, ...]) -> Ints | None:
    """(N,) equal for rows with equal content, as `make_views` has them."""
    kind = str(data.info.get("kind") or kind_of(data.x))
    if not _own_features(data):
        if kind == "text":
            return content_keys([str(text) for text in data.x])
        if kind == "images":
            return content_keys(np.asarray(data.x))
        if kind == "table" and views[0].trees is not None:
            return content_keys(views[0].trees)
    return content_keys(flat_rows(data.x))


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


def _rows_of_features(x: Any) -> Singles:
    values = flat_rows(x)
    if not values.shape[1]:
        raise InputError("the samples have no features; an audit needs at least one column beside the labels.")
    return values


def _of_features(x: Any) -> FeatureViews:
    values = _rows_of_features(x)
    keys = content_keys(values)
    maker = Features.fit(values)
    values = maker.bounded(values)
    few = values.shape[1] <= FEW_COLUMNS
    return FeatureViews((View("features", values, values if few else None),), (maker,), keys, values, {})


def _columns_maker(data: Data) -> Columns:
    return Columns(TableEncoder.fit(data.raw, data.info["columns"]))


def _of_table(data: Data) -> FeatureViews:
    maker = _columns_maker(data)
    view = maker.view(data)
    return FeatureViews((view,), (maker,), content_keys(np.asarray(view.trees)), view.x, {})


def _of_texts(data: Data, encoder: str | Path, device: Any, progress: Progress | None) -> FeatureViews:
    texts = [str(text) for text in data.x]
    encoded, about = _encoded(data, encoder, "text", device, progress)
    found: list[tuple[Maker, View]] = [] if encoded is None else [encoded]
    words = Words.fit(texts)
    if words is not None:
        found.append(words)
    if not found:
        raise InputError("the texts have no word in common; an audit compares samples. Check which column is the text.")
    makers, views = zip(*found, strict=True)
    return FeatureViews(views, makers, content_keys(texts), views[0].x, about)


def _of_images(data: Data, encoder: str | Path, device: Any, progress: Progress | None) -> FeatureViews:
    keys = content_keys(np.asarray(data.x))
    encoded, about = _encoded(data, encoder, "image", device, progress)
    found: list[tuple[Maker, View]] = [] if encoded is None else [encoded]
    if encoded is None or _is_gray(data.x):  # of drawings and digits the pixels themselves say much
        maker = _pixels_maker(data.x, encoded is not None)
        found.append((maker, maker.view(data)))
    makers, views = zip(*found, strict=True)
    return FeatureViews(views, makers, keys, views[0].x, about)


def _pixels_maker(images: NDArray[Any], encoded: bool) -> Pixels:
    few = encoded or pixel_rows(images[:1]).shape[1] <= PIXELS
    return Pixels(tuple(np.shape(images)[1:]), few)


def _is_gray(images: NDArray[Any]) -> bool:
    return images.shape[1] == 1


def _encoded(
    data: Data, encoder: str | Path, kind: str, device: Any, progress: Progress | None
) -> tuple[tuple[Embeddings, View] | None, dict[str, str]]:
    if encoder == "none":
        return None, {}
    from compensate.encoders import encode_data, hint

    def told(done: int, total: int) -> None:
        if progress is not None:
            progress("encoding", done, total)

    found = encode_data(data, encoder, device=device, progress=told)
    if found is None:
        return None, {"hint": hint(kind)}
    about = {"encoder": found.name, "license": found.license, "encoder_source": found.source}
    maker = Embeddings(found.name if encoder == "auto" else str(encoder), found.name, found.values.shape[1])
    return (maker, View(found.name, found.values)), about
