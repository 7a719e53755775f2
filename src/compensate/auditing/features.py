"""Features of samples: embeddings of a pretrained encoder, words, columns of a table, pixels, or given features.

A maker is fitted once and then makes the same features (`view`) of new samples. Its `state`, from which `of` rebuilds it, holds numbers,
texts and arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from compensate.auditing.learners import View, content_keys
from compensate.data.columns import TableEncoder, row_texts, text_columns, tfidf
from compensate.data.dataset import Dataset, Floats, Ints, Singles, Source
from compensate.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, the number of finished steps and the total."""

MAX_WORDS = 50_000  # most frequent words and pairs of words that are counted
WORD_OPTIONS: dict[str, Any] = {"sublinear_tf": True, "ngram_range": (1, 2), "token_pattern": r"(?u)\b\w+\b|[!?]"}  # nosec B105
"""How words are counted. Exclamation and question marks count as words because they indicate sentiment."""

MAX_PIXELS = 1024  # larger images are reduced to about this number of pixels
OUTLIER_REACH, LARGE, QUANTILE_ROWS = 10, 1e3, 1_000
"""Values are clipped beyond this multiple of the distance from the median to the nearer of the 5 % and 95 % quantiles. Columns that reach
beyond 1e3, or nowhere beyond 1e-3, are scaled. Quantiles are computed from about this number of rows."""

SEPARATORS, PAIRED = (
    ("[SEP]", "</s>", "<sep>", "|||", "\t"),
    0.9,
)  # of joined texts, and the share of rows that have one
MAX_TREE_COLUMNS = 200  # of given features up to which trees use them: more columns are rarely a table


class StoredFields:
    """A maker whose fields are its state."""

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        return cls(**state)


@dataclass(frozen=True, eq=False)
class Embeddings(StoredFields):
    """Embeddings of this width by a pretrained encoder, given as the user named it."""

    encoder: str
    name: str
    width: int

    def view(self, data: Dataset, device: Any = None, progress: Progress | None = None) -> View:
        from compensate.encoders import encode_data

        encoded = encode_data(data, self.encoder, device=device, progress=_encoding(progress))
        if encoded is None or encoded.values.shape[1] != self.width:
            raise InputError(
                f'the audit was made with the encoder "{self.name}" ({self.width} numbers for each sample), which is not what '
                f'"{self.encoder}" is here. Install it (pip install "compensate[encoders]"), or audit again.'
            )
        return View(self.name, encoded.values)


@dataclass(frozen=True, eq=False)
class Words:
    """TF-IDF of words and pairs of words."""

    vectorizer: Any

    @staticmethod
    def fit(texts: list[str]) -> tuple[Words, View] | None:
        """The maker and the features of these texts; None if no word can be counted."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(min_df=1 if len(texts) < 200 else 2, max_features=MAX_WORDS, **WORD_OPTIONS)
        try:
            counts = vectorizer.fit_transform(texts)
        except ValueError:  # an empty vocabulary
            return None
        return Words(vectorizer), View("words", sp.csr_matrix(counts).astype(np.float32))

    @property
    def names(self) -> list[str]:
        """The word or pair of words of each feature."""
        return [str(name) for name in self.vectorizer.get_feature_names_out()]

    def view(self, data: Dataset, device: Any = None, progress: Progress | None = None) -> View:
        counts = self.vectorizer.transform([str(text) for text in data.x])
        return View("words", sp.csr_matrix(counts).astype(np.float32))

    def state(self) -> dict[str, Any]:
        return {"words": self.names, "idf": self.vectorizer.idf_}

    @staticmethod
    def of(state: Mapping[str, Any]) -> Words:
        return Words(tfidf(state["words"], state["idf"], **WORD_OPTIONS))


@dataclass(frozen=True, eq=False)
class TextPairs:
    """Features of two texts of a row and of their relation, from an inner maker's features :math:`a` and :math:`b` of each.

    Embeddings: :math:`a, b, |a - b|` and :math:`ab`. Words: :math:`a, b, \\min(a, b)`, and the words of one of them alone.
    """

    inner: Embeddings | Words
    columns: tuple[str, ...]

    def view(self, data: Dataset, device: Any = None, progress: Progress | None = None) -> View:
        if not isinstance(data.raw, pd.DataFrame):
            raise InputError(
                f"the audit was made of the texts {' and '.join(self.columns)}; expected a table with both."
            )
        texts = np.concatenate([row_texts(data.raw, name) for name in self.columns])
        alone = Dataset(texts, np.zeros(len(texts), np.int64), ("text",), source=Source(kind="text"))
        inner = self.inner.view(alone, device, progress)
        a, b = inner.x[: len(data)], inner.x[len(data) :]
        if isinstance(a, np.ndarray):
            return View(f"{inner.name} pairs", np.hstack([a, b, np.abs(a - b), a * b * np.float32(a.shape[1] ** 0.5)]))
        blocks = [a, b, a.minimum(b), (a - b).maximum(0), (b - a).maximum(0)]
        return View(f"{inner.name} pairs", sp.csr_matrix(sp.hstack(blocks), dtype=np.float32))

    def state(self) -> dict[str, Any]:
        return {"kind": type(self.inner).__name__, "state": self.inner.state(), "columns": list(self.columns)}

    @staticmethod
    def of(state: Mapping[str, Any]) -> TextPairs:
        inner = {maker.__name__: maker for maker in (Embeddings, Words)}[state["kind"]]
        return TextPairs(inner.of(state["state"]), tuple(state["columns"]))


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table."""

    encoder: TableEncoder

    @property
    def names(self) -> list[str]:
        """The column of each feature."""
        return [part.column.name for part in self.encoder.parts for _ in part.names]

    def view(self, data: Dataset, device: Any = None, progress: Progress | None = None) -> View:
        if not isinstance(data.raw, pd.DataFrame):
            raise InputError("the audit was made of a table; expected a table with the same columns.")
        return View("columns", self.encoder(data.raw), self.encoder.trees(data.raw))

    def state(self) -> dict[str, Any]:
        return self.encoder.state()

    @staticmethod
    def of(state: Mapping[str, Any]) -> Columns:
        return Columns(TableEncoder.of(state))


@dataclass(frozen=True, eq=False)
class Pixels(StoredFields):
    """The pixels of images; large images are averaged over squares.

    Trees use them too if they are ``few``.
    """

    shape: tuple[int, ...]
    few: bool

    def view(self, data: Dataset, device: Any = None, progress: Progress | None = None) -> View:
        if tuple(np.shape(data.x)[1:]) != tuple(self.shape):
            raise InputError(f"images of the shape {np.shape(data.x)[1:]}; the audit was made of {tuple(self.shape)}.")
        values = pixel_rows(data.x)
        return View("pixels", values, values if self.few else None)


def pixel_rows(images: NDArray[Any]) -> Singles:
    """(N, D) values between 0 and 1; large images are averaged over squares."""
    x = np.asarray(images)
    side = max(1, int(np.ceil(np.sqrt(x.shape[2] * x.shape[3] / MAX_PIXELS))))
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
class Features(StoredFields):
    """Given features, with outliers clipped and columns of extreme size scaled.

    Attributes:
        least, most: (D,) the bounds of each column.
        shift, scale: (D,) subtracted from a column of extreme size, and its divisor; 0 and 1 for other columns.
    """

    least: Floats
    most: Floats
    shift: Floats
    scale: Floats

    @staticmethod
    def fit(values: Singles) -> Features:
        """Bounds from the quantiles of some rows."""
        some = values[:: max(1, len(values) // QUANTILE_ROWS)].astype(np.float64)
        tail = 0.05 if len(some) > 40 else 0.25
        low, middle, high = np.quantile(some, [tail, 0.5, 1 - tail], axis=0)
        reach = OUTLIER_REACH * np.minimum(high - middle, middle - low)
        reach = np.where(reach > 0, reach, np.inf)
        least, most = values.min(0).astype(np.float64), values.max(0).astype(np.float64)
        extent = np.minimum(np.maximum(most - middle, middle - least), reach)
        extreme = (extent > LARGE) | ((extent < 1 / LARGE) & (extent > 0))
        return Features(middle - reach, middle + reach, np.where(extreme, middle, 0.0), np.where(extreme, extent, 1.0))

    def bounded(self, values: Singles) -> Singles:
        """The clipped and scaled values; the array itself (it may be a mapped file) if nothing changes."""
        plain = not self.shift.any() and (self.scale == 1).all()
        if plain and (values.max(0) <= self.most).all() and (values.min(0) >= self.least).all():
            return values
        bounded = np.empty_like(values)
        for start in range(0, len(values), QUANTILE_ROWS):
            part = np.clip(values[start : start + QUANTILE_ROWS], self.least, self.most)
            bounded[start : start + QUANTILE_ROWS] = (part - self.shift) / self.scale
        return bounded

    def view(self, data: Dataset, device: Any = None, progress: Progress | None = None) -> View:
        values = flat_rows(data.x)
        if values.shape[1] != len(self.least):
            raise InputError(f"the samples have {values.shape[1]} features; the audit was made of {len(self.least)}.")
        values = self.bounded(values)
        return View("features", values, values if values.shape[1] <= MAX_TREE_COLUMNS else None)


def flat_rows(x: Any) -> Singles:
    """(N, D) samples as rows of numbers."""
    values = np.asarray(x)
    return values.reshape(len(values), -1).astype(np.float32, copy=False)


Maker = Embeddings | Words | TextPairs | Columns | Pixels | Features
ALL_MAKERS: tuple[type[Maker], ...] = (Embeddings, Words, TextPairs, Columns, Pixels, Features)
MAKERS: dict[str, type[Maker]] = {maker.__name__: maker for maker in ALL_MAKERS}


@dataclass(frozen=True, eq=False)
class FeatureViews:
    """The features of a data set.

    Attributes:
        makers: one or more, with which features of further samples are made.
        views: the features, one entry for each maker; empty if the makers were only fitted.
        keys: (N,) equal for rows with equal content, or None.
        about: name, license and source of the encoder, or a hint about which encoder to install.
        notes: remarks for the user.
    """

    makers: tuple[Maker, ...]
    views: tuple[View, ...] = ()
    keys: Ints | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> Any:
        """(N, D) the features by which the review page compares samples."""
        return self.views[0].x

    @property
    def encoder(self) -> Embeddings | None:
        """The maker that runs a pretrained encoder, if there is one."""
        return next((maker for maker in self.makers if isinstance(maker, Embeddings)), None)

    def of(self, data: Dataset, embedded: Singles | None = None, progress: Progress | None = None) -> tuple[View, ...]:
        """The features of some samples; embeddings that are known are not computed again."""
        known: dict[Maker, View] = {}
        if self.encoder is not None and embedded is not None:
            known[self.encoder] = View(self.encoder.name, embedded)
        return tuple(known.get(maker) or maker.view(data, progress=progress) for maker in self.makers)


def make_views(
    data: Dataset,
    encoder: str | Path = "auto",
    *,
    device: Any = None,
    progress: Progress | None = None,
    fit_only: bool = False,
) -> FeatureViews:
    """Fits all makers that suit the data, and makes the features of the data.

    Args:
        data: samples of any kind.
        encoder: as for `compensate.encoders.encode`.
        device, progress: for the encoder.
        fit_only: fit the makers on these samples, and encode only the first of them; `keys` and `views` stay empty.
    """
    kind = feature_kind(data)
    fitted: list[tuple[Maker, View | None]] = []
    about: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    if kind == "table":
        notes = unused_encoder(encoder, "the columns of a table")
        fitted.append((Columns(TableEncoder.fit(data.raw, data.source.columns)), None))
    elif kind == "features":
        notes = unused_encoder(encoder, "embeddings and other features")
        values = flat_rows(data.x)
        if not values.shape[1]:
            raise InputError("the samples have no features; an audit needs at least one column and the labels.")
        fitted.append((Features.fit(values), None))
    elif encoder != "none":
        from compensate.encoders import encode_data, hint

        some = data.subset([0]) if fit_only else data
        encoded = encode_data(some, encoder, device=device, progress=None if fit_only else _encoding(progress))
        if encoded is None:
            about = {"hint": hint("text" if kind == "text" else "image")}
        else:
            about = {"encoder": encoded.name, "license": encoded.license, "encoder_source": encoded.source}
            named = encoded.name if encoder == "auto" else str(encoder)
            view = View(encoded.name, encoded.values)
            fitted.append((Embeddings(named, encoded.name, encoded.values.shape[1]), view))
    if kind == "text":
        words = Words.fit([str(text) for text in data.x])
        fitted += [] if words is None else [words]
        if not fitted:
            raise InputError(
                "the texts have no word in common; an audit compares samples. Check which column is the text."
            )
        notes += joined_pairs([str(text) for text in data.x])
        if isinstance(data.raw, pd.DataFrame):
            texts = text_columns(data.source.text, data.raw.columns)
            if len(texts) == 2:
                fitted += [
                    (TextPairs(maker, texts), None) for maker, _ in fitted if isinstance(maker, Embeddings | Words)
                ]
            encoder_of_columns = TableEncoder.fit(data.raw, data.source.columns)
            fitted += [(Columns(encoder_of_columns), None)] if encoder_of_columns.names else []
    elif kind == "images" and (not fitted or data.x.shape[1] == 1):  # pixels of gray drawings and digits say much
        few = bool(fitted) or pixel_rows(data.x[:1]).shape[1] <= MAX_PIXELS
        fitted.append((Pixels(tuple(np.shape(data.x)[1:]), few), None))
    makers = tuple(maker for maker, _ in fitted)
    if fit_only:
        return FeatureViews(makers, about=about, notes=notes)
    views = tuple(maker.view(data) if view is None else view for maker, view in fitted)
    return FeatureViews(makers, views, row_keys(data, views), about, notes)


def joined_pairs(texts: Sequence[str]) -> tuple[str, ...]:
    """A note if nearly every text is two texts joined by a separator, whose relation neither words nor a sentence encoder show.

    >>> len(joined_pairs(["a man eats [SEP] someone eats", "it rains [SEP] it is dry"])), joined_pairs(["it rains", "a [SEP] b"])
    (1, ())
    """
    for separator in SEPARATORS:
        if np.mean([text.count(separator) == 1 for text in texts]) >= PAIRED:
            return (
                f'The texts are pairs joined by "{separator.strip() or "a tab"}". Words and sentence embeddings hardly show how two texts '
                "relate: give features of a model for pairs (--features), or its labels or probabilities (--opinion).",
            )
    return ()


def row_keys(data: Dataset, views: tuple[View, ...]) -> Ints | None:
    """(N,) equal for rows with equal content; ``views`` are the features of these rows."""
    kind = feature_kind(data)
    if kind == "text":
        return content_keys([str(text) for text in data.x])
    if kind == "images":
        return content_keys(np.asarray(data.x))
    return content_keys(np.asarray(views[0].trees) if kind == "table" else flat_rows(data.x))


def feature_kind(data: Dataset) -> str:
    """The kind of samples that features are made of: "text", "images", "table" or "features"."""
    kind = data.source.kind or kind_of(data.x)
    table = kind == "table" and isinstance(data.raw, pd.DataFrame) and bool(data.source.columns)
    return kind if (table or kind in ("text", "images")) and not data.source.features_given else "features"


def unused_encoder(encoder: str | Path, what: str) -> tuple[str, ...]:
    """A note if the user chose an encoder that is not used; an unknown encoder is an error."""
    if str(encoder) in ("auto", "none"):
        return ()
    from compensate.encoders import check_encoder

    check_encoder(encoder)
    return (f"the encoder {encoder} is not used: {what} are not encoded.",)


def kind_of(x: Any) -> str:
    """The kind of samples, by their form.

    >>> kind_of(np.zeros((2, 3, 8, 8))), kind_of(np.array(["a text"], dtype=object)), kind_of(np.zeros((2, 3)))
    ('images', 'text', 'features')
    """
    if isinstance(x, np.ndarray) and x.dtype.kind == "O":
        return "text"
    return "images" if np.ndim(x) == 4 else "features"


def _encoding(progress: Progress | None) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress("encoding", done, total)
