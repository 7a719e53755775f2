"""What makes a view of samples, once it has been fitted: an encoder, words, the columns of a table, pixels, bounds of features.

A maker sees new samples as it saw those that it was fitted on. It can be stored: `state` is of numbers, texts and arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from compensate.auditing.learners import View, content_keys
from compensate.data.dataset import Dataset, Floats, Ints, Singles
from compensate.data.features import TableEncoder, tfidf
from compensate.errors import InputError

Told = Callable[[int, int], None]
"""Called with the items that are done and the number of all."""

WORDS = 50_000
"""The most frequent words and pairs of words that are counted."""

WORD = r"(?u)\b\w+\b|[!?]"
"""What counts as a word: signs of emphasis do, for they tell sentiment."""

COUNTED: dict[str, Any] = {"sublinear_tf": True, "ngram_range": (1, 2), "token_pattern": WORD}
"""How words are counted."""

PIXELS = 1024
"""Pixels, about, that larger images are reduced to where no encoder looks at them."""

FAR, LARGE, LOOKED_AT = 10, 1e3, 1_000
"""Values farther from the median than this many times the nearer of the 5 % and 95 % quantiles are cut; columns that reach
beyond 1e3, or nowhere beyond 1e-3, are scaled; and the rows in which quantiles are looked up."""

FEW_COLUMNS = 200
"""The number of columns up to which features go to the trees too: they may be a table."""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The embeddings of a pretrained encoder.

    Attributes:
        encoder: as the user named it, or its name.
        name: of the encoder that was found.
        width: of an embedding.
    """

    encoder: str
    name: str
    width: int

    def view(self, data: Dataset, device: Any = None, told: Told | None = None) -> View:
        """The view of some samples."""
        from compensate.encoders import encode_data

        found = encode_data(data, self.encoder, device=device, progress=told)
        if found is None or found.values.shape[1] != self.width:
            raise InputError(
                f'the audit was made with the encoder "{self.name}" ({self.width} numbers for each sample), which is not what '
                f'"{self.encoder}" is here. Install it (pip install "compensate[encoders]"), or audit again.'
            )
        return View(self.name, found.values)

    def state(self) -> dict[str, Any]:
        """What is stored."""
        return {"encoder": self.encoder, "name": self.name, "width": self.width}

    @staticmethod
    def of(state: Mapping[str, Any]) -> Embeddings:
        """From what was stored."""
        return Embeddings(str(state["encoder"]), str(state["name"]), int(state["width"]))


@dataclass(frozen=True, eq=False)
class Words:
    """TF-IDF of words and pairs of words."""

    counted: Any

    @staticmethod
    def fit(texts: list[str]) -> tuple[Words, View] | None:
        """The maker and the view of these texts, or nothing if they have no word in common."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        rare = 1 if len(texts) < 200 else 2
        counted = TfidfVectorizer(min_df=rare, max_features=WORDS, **COUNTED)
        try:
            found = counted.fit_transform(texts)
        except ValueError:  # an empty vocabulary
            return None
        return Words(counted), View("words", sp.csr_matrix(found).astype(np.float32))

    def view(self, data: Dataset, device: Any = None, told: Told | None = None) -> View:
        """The view of some texts."""
        found = self.counted.transform([str(text) for text in data.x])
        return View("words", sp.csr_matrix(found).astype(np.float32))

    def state(self) -> dict[str, Any]:
        """What is stored."""
        return {"words": self.counted.get_feature_names_out().tolist(), "idf": self.counted.idf_}

    @staticmethod
    def of(state: Mapping[str, Any]) -> Words:
        """From what was stored."""
        return Words(tfidf(state["words"], state["idf"], **COUNTED))


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table."""

    encoder: TableEncoder

    def view(self, data: Dataset, device: Any = None, told: Told | None = None) -> View:
        """The view of some rows."""
        if not isinstance(data.raw, pd.DataFrame):
            raise InputError("the audit was made of a table; expected a table with the same columns.")
        return View("columns", self.encoder(data.raw), self.encoder.trees(data.raw))

    def state(self) -> dict[str, Any]:
        """What is stored."""
        return self.encoder.state()

    @staticmethod
    def of(state: Mapping[str, Any]) -> Columns:
        """From what was stored."""
        return Columns(TableEncoder.of(state))


@dataclass(frozen=True, eq=False)
class Pixels:
    """The pixels themselves, averaged over squares in large images.

    Attributes:
        shape: (C, H, W) of the images.
        few: whether trees look at them too.
    """

    shape: tuple[int, ...]
    few: bool

    def view(self, data: Dataset, device: Any = None, told: Told | None = None) -> View:
        """The view of some images."""
        if tuple(np.shape(data.x)[1:]) != self.shape:
            raise InputError(f"images of the shape {np.shape(data.x)[1:]}; the audit was made of {self.shape}.")
        found = pixel_rows(data.x)
        return View("pixels", found, found if self.few else None)

    def state(self) -> dict[str, Any]:
        """What is stored."""
        return {"shape": list(self.shape), "few": self.few}

    @staticmethod
    def of(state: Mapping[str, Any]) -> Pixels:
        """From what was stored."""
        return Pixels(tuple(state["shape"]), bool(state["few"]))


def pixel_rows(images: NDArray[Any]) -> Singles:
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


@dataclass(frozen=True, eq=False)
class Features:
    """Features as they are, without values far beyond the others, which would rule the scale of their column.

    Columns whose values are all very large or very small are brought to numbers of usual size.

    Attributes:
        least, most: (D,) where values are cut.
        shift, scale: (D,) what is taken off columns of unusual size, and by what they are divided; 0 and 1 for the others.
    """

    least: Floats
    most: Floats
    shift: Floats
    scale: Floats

    @staticmethod
    def fit(values: Singles) -> Features:
        """Bounds by the quantiles of some rows.

        >>> values = np.array([[0.0], [1.0], [2.0], [1e30]], np.float32)
        >>> Features.fit(values).bounded(values).max() < 100
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
        return Features(middle - reach, middle + reach, np.where(odd, middle, 0.0), np.where(odd, extent, 1.0))

    def bounded(self, values: Singles) -> Singles:
        """The values within bounds; where nothing has to change, the array itself: it may be a mapped file."""
        usual = not self.shift.any() and (self.scale == 1).all()
        if usual and (values.max(0) <= self.most).all() and (values.min(0) >= self.least).all():
            return values
        found = np.empty_like(values)
        for start in range(0, len(values), LOOKED_AT):
            part = np.clip(values[start : start + LOOKED_AT], self.least, self.most)
            found[start : start + LOOKED_AT] = (part - self.shift) / self.scale
        return found

    def view(self, data: Dataset, device: Any = None, told: Told | None = None) -> View:
        """The view of some rows."""
        values = flat_rows(data.x)
        if values.shape[1] != len(self.least):
            raise InputError(f"the samples have {values.shape[1]} features; the audit was made of {len(self.least)}.")
        values = self.bounded(values)
        return View("features", values, values if values.shape[1] <= FEW_COLUMNS else None)

    def state(self) -> dict[str, Any]:
        """What is stored."""
        return {"least": self.least, "most": self.most, "shift": self.shift, "scale": self.scale}

    @staticmethod
    def of(state: Mapping[str, Any]) -> Features:
        """From what was stored."""
        return Features(*(np.asarray(state[name]) for name in ("least", "most", "shift", "scale")))


def flat_rows(x: Any) -> Singles:
    """(N, D) samples as rows of numbers."""
    values = np.asarray(x)
    return values.reshape(len(values), -1).astype(np.float32, copy=False)


Maker = Embeddings | Words | Columns | Pixels | Features
MAKERS: dict[str, Callable[[Mapping[str, Any]], Maker]] = {
    "Embeddings": Embeddings.of,
    "Words": Words.of,
    "Columns": Columns.of,
    "Pixels": Pixels.of,
    "Features": Features.of,
}


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
    data: Dataset, encoder: str | Path = "auto", *, device: Any = None, progress: Progress | None = None
) -> FeatureViews:
    """All views that suit the data.

    Args:
        data: of any kind.
        encoder: as for `compensate.encoders.encode`.
        device: for the encoder.
        progress: called while items are encoded.
    """
    kind = data.source.kind or kind_of(data.x)
    if not _own_features(data):
        if kind == "text":
            return _of_texts(data, encoder, device, progress)
        if kind == "images":
            return _of_images(data, encoder, device, progress)
        if kind == "table" and isinstance(data.raw, pd.DataFrame) and data.source.columns:
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

    def views(self, data: Dataset, embedded: Singles | None = None) -> tuple[View, ...]:
        """The views of some samples, and with them their embeddings, if there is an encoder."""
        return tuple(
            View(maker.name, embedded) if isinstance(maker, Embeddings) and embedded is not None else maker.view(data)
            for maker in self.makers
        )


def fit_makers(data: Dataset, encoder: str | Path = "auto", *, device: Any = None) -> Makers:
    """What `make_views` would learn from these samples; nothing but the first of them is encoded.

    Args:
        data: some of the samples.
        encoder, device: as for `make_views`.
    """
    kind = data.source.kind or kind_of(data.x)
    if not _own_features(data) and kind == "table" and isinstance(data.raw, pd.DataFrame) and data.source.columns:
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


def keys_of(data: Dataset, views: tuple[View, ...]) -> Ints | None:
    """(N,) equal for rows with equal content, as `make_views` has them."""
    kind = data.source.kind or kind_of(data.x)
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


def _own_features(data: Dataset) -> bool:
    """Whether the user has given embeddings in place of the samples themselves."""
    return data.source.features_given


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


def _columns_maker(data: Dataset) -> Columns:
    return Columns(TableEncoder.fit(data.raw, data.source.columns))


def _of_table(data: Dataset) -> FeatureViews:
    maker = _columns_maker(data)
    view = maker.view(data)
    return FeatureViews((view,), (maker,), content_keys(np.asarray(view.trees)), view.x, {})


def _of_texts(data: Dataset, encoder: str | Path, device: Any, progress: Progress | None) -> FeatureViews:
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


def _of_images(data: Dataset, encoder: str | Path, device: Any, progress: Progress | None) -> FeatureViews:
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
    data: Dataset, encoder: str | Path, kind: str, device: Any, progress: Progress | None
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
