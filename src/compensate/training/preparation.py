"""From a configuration to data, model and criterion, each a function of it and of the seed alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.core.criterion import Compensated
from compensate.core.stages import ModelStages
from compensate.data import (
    CropFlip,
    Dataset,
    Ragged,
    Splits,
    Vocabulary,
    embedding_matrix,
    encode_texts,
    find_vectors,
    gather,
    load,
    long_tailed,
    noise,
    read_vectors,
)
from compensate.data.dataset import generator
from compensate.errors import InputError
from compensate.files import read_array
from compensate.methods.composition import find
from compensate.methods.registry import Method
from compensate.models.registry import build, resolve
from compensate.terms.margins import CosineHead
from compensate.training.config import Config, settled


@dataclass(frozen=True, eq=False)
class Prepared:
    """The parts of a run's data.

    Attributes:
        config: with every open value filled in.
        train: what the model learns from, noise included.
        clean: trusted samples, for methods that ask for them.
        validation: held-out samples with the same noise.
        test: held-out samples as they came.
        wrong: (N,) which labels of `train` the noise made wrong.
        vocabulary, vectors: of texts.
        own_test: whether the data came with a test part, so that `test` is no share of the same samples.
        unlabeled: samples without a label, which are in no part.

    >>> prepared = prepare_run(Config(data="digits", noise="pair:0.2"))
    >>> len(prepared.train) == len(prepared.wrong), round(float(prepared.wrong.mean()), 1)
    (True, 0.2)
    """

    config: Config
    train: Dataset
    clean: Dataset | None
    validation: Dataset | None
    test: Dataset | None
    wrong: NDArray[np.bool_]
    vocabulary: Vocabulary | None = None
    vectors: Any = None
    own_test: bool = False
    unlabeled: int = 0

    @property
    def noisy(self) -> bool:
        """Whether noise was injected into the labels of `train` and `validation`."""
        return self.config.noise != "none"

    @property
    def method(self) -> Method:
        """The row of the method."""
        return find(self.config.method)

    @property
    def augment(self) -> CropFlip | None:
        """How images are augmented."""
        kinds = {"none": None, "crop": CropFlip(flip=False), "crop-flip": CropFlip()}
        return kinds[self.config.augment or "none"]


@lru_cache(maxsize=1)
def _loaded(
    data: str,
    data_dir: str | None,
    labels: str | None,
    key: str | None,
    options: tuple[Any, ...],
    changed: tuple[int, ...],
) -> Splits:
    """Reading a large set takes longer than many a run; a worker with several runs reads it once, until a file changes."""
    return load(data, data_dir, labels=labels, labels_key=key, **dict(options))


def _changed(*names: str | None) -> tuple[int, ...]:
    """When the files of these names were last written."""
    paths = [Path(name).expanduser() for name in names if name is not None]
    return tuple(path.stat().st_mtime_ns for path in paths if path.exists())


def prepare_run(config: Config, data: Splits | Dataset | None = None, data_dir: str | Path | None = None) -> Prepared:
    """Loads, splits, thins out and corrupts the data of a run, in this order, and settles its configuration.

    The test part and the clean part are taken before the noise; the validation part gets noise of its own, because people
    whose training labels are wrong have no other validation labels either.

    >>> parts = prepare_run(Config(data="digits"))
    >>> len(parts.train), len(parts.validation), len(parts.test)
    (1132, 126, 539)
    """
    needs = find(config.method).needs
    if data is None:
        where = None if data_dir is None else str(data_dir)
        options = tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in config.data_options.items()))
        splits = _loaded(
            config.data, where, config.labels, config.labels_key, options, _changed(config.data, config.labels)
        )
    else:
        splits = load(data, labels=config.labels, labels_key=config.labels_key)
    if splits.train.regression:
        raise InputError(
            "training needs classes, and the label of this data is a quantity; choose another label column."
        )
    unlabeled = sum(int((~part.labeled).sum()) for part in vars(splits).values() if part is not None)
    splits = _limited(splits, config.limit, config.limit_test, 0 if config.limit is None else config.seed)
    vocabulary = vectors = None
    if _is_text(splits.train):
        splits, vocabulary, vectors = _texts(config, splits, data_dir)
    config = settled(config, resolve(config.model, splits.train), needs_clean="clean" in needs)

    train, test, validation = splits.train, splits.test, splits.validation
    if test is None and config.test:
        train, test = train.split((1 - config.test, config.test), seed=config.seed)
    if config.imbalance != "none":
        train = _thinned(train, config)
    clean = None
    if config.clean:
        # A stream of its own: another share of clean data must not move the noise.
        train, clean = train.split((1 - config.clean, config.clean), seed=config.seed + 1)
    train, changed = _noisy(train, config, config.seed)
    wrong = np.zeros(train.rows, dtype=bool)
    wrong[train.index] = changed
    if validation is not None:
        validation, _ = _noisy(validation, config, config.seed + 1)
    elif config.validation:
        train, validation = train.split((1 - config.validation, config.validation), seed=config.seed + 2)
    if len(train) < 2:
        raise InputError(f"{len(train)} samples are left to train on; lower the shares of test, validation and clean.")
    return Prepared(
        config, train, clean, validation, test, wrong[train.index], vocabulary, vectors, splits.test is not None, unlabeled
    )  # fmt: skip


@lru_cache(maxsize=1)
def _limited(splits: Splits, limit: int | None, limit_test: int | None, seed: int) -> Splits:
    """The samples that have a label, and no more of them than are wanted. A smaller set of texts has fewer words, too."""
    train, test, validation = (
        part if part is None or part.labeled.all() else part.subset(part.labeled)
        for part in (splits.train, splits.test, splits.validation)
    )
    assert train is not None
    if limit is not None and limit < len(train):
        train = train.split((share := limit / len(train), 1 - share), seed=seed)[0]
    if test is not None and limit_test is not None and limit_test < len(test):
        test = test.split((share := limit_test / len(test), 1 - share), seed=0)[0]
    return Splits(train, test, validation)


def _noisy(data: Dataset, config: Config, seed: int) -> tuple[Dataset, NDArray[np.bool_]]:
    flipped = noise.parse(config.noise)(
        data.target, data.num_classes, seed=seed, features=data.x if isinstance(data.x, np.ndarray) else None
    )
    return data.relabel(flipped.labels), flipped.changed


def _thinned(train: Dataset, config: Config) -> Dataset:
    kind, _, ratio = config.imbalance.partition(":")
    try:
        return long_tailed(train, float(ratio), kind, seed=config.seed)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f'imbalance "{config.imbalance}" has no ratio that can be read; write for example exponential:100.'
        ) from None


def _is_text(data: Dataset) -> bool:
    return not isinstance(data.x, Ragged) and getattr(getattr(data.x, "dtype", None), "kind", "") == "O"


def _texts(config: Config, splits: Splits, data_dir: str | Path | None) -> tuple[Splits, Vocabulary, Any]:
    path = None if config.vectors is None else find_vectors(config.vectors, data_dir)
    splits, vocabulary, known = _encoded(splits, path, config.max_length)
    matrix = None if known is None else embedding_matrix(vocabulary, known, seed=config.seed)
    return splits, vocabulary, matrix


@lru_cache(maxsize=1)
def _encoded(splits: Splits, vectors: Path | None, max_length: int | None) -> tuple[Splits, Vocabulary, Any]:
    """Token ids, and the word vectors; kept for the next run of a worker, as the texts are."""
    known = None if vectors is None else read_vectors(vectors)
    return *encode_texts(splits, vectors=known, max_length=max_length), known


def make_model(prepared: Prepared) -> nn.Module:
    """The model of the run, with first weights that depend on the seed and on nothing else.

    >>> type(make_model(prepare_run(Config(data="digits")))).__name__
    'CNN'
    """
    config, data, method = prepared.config, prepared.train, prepared.method
    if method.extra_outputs:
        extra = tuple(f"output {k}" for k in range(method.extra_outputs))
        data = replace(data, classes=data.classes + extra)
    options = dict(config.model_options)
    if prepared.vocabulary is not None:
        options.setdefault("num_words", len(prepared.vocabulary))
        if prepared.vectors is not None:
            options.setdefault("vectors", prepared.vectors)
    cosine = options.pop("cosine", None)
    torch.manual_seed(config.seed)
    try:
        model = build(config.model, data, **options)
    except TypeError as error:
        raise InputError(f"the model {config.model} cannot take these options: {error}.") from error
    if cosine is not None:
        head = getattr(model, "head", None)
        if not isinstance(head, nn.Linear):
            raise InputError(f"the model {config.model} has no linear head that a cosine head could replace.")
        model.head = CosineHead(head.in_features, head.out_features, float(cosine))
    return model


@torch.no_grad()
def model_sizes(model: nn.Module, x: Any, *, sequences: bool = False) -> dict[str, Any]:
    """What a method may ask about a model: the shape of the input that is compensated, and the number of its features.

    Args:
        model: the model.
        x: a small batch.
        sequences: whether `x` is token ids. One row of a text serves all its words: the shape of a word is the shape of a
            text's compensation.
    """
    stages, was_training = ModelStages.of(model), model.training
    model.eval()
    e = x if stages.embed is None else stages.embed(x)
    found: dict[str, Any] = {}
    if isinstance(e, Tensor):
        found["feature_shape"] = tuple(e.shape[2:] if sequences else e.shape[1:])
    if stages.features is not None:
        found["feature_dim"] = int(stages.features(e).shape[-1])
    model.train(was_training)
    return found


def sizes(prepared: Prepared, model: nn.Module) -> dict[str, Any]:
    """What a method may ask about data and model."""
    data = prepared.train
    x, _, _ = gather(data, np.arange(min(2, len(data))))
    return {
        "num_samples": data.rows,
        "num_classes": data.num_classes,
        "class_counts": data.class_counts.tolist(),
        **model_sizes(model, x, sequences=isinstance(data.x, Ragged)),
    }


def make_criterion(prepared: Prepared, model: nn.Module, data_dir: str | Path | None = None) -> Compensated:
    """The criterion of the run.

    >>> prepared = prepare_run(Config(data="digits", method="logcomp"))
    >>> print(make_criterion(prepared, make_model(prepared)).taxonomy)
    logit · positive · regularized · sample
    """
    config, method = prepared.config, prepared.method
    known: dict[str, Any] = {**sizes(prepared, model), "batch_size": config.batch_size}
    if getattr(prepared.train.x, "ndim", 0) == 4:
        known["bounds"] = (0.0, 1.0)  # images are pixels in [0, 1]
    if "teacher" in method.needs and (name := method.teacher) not in config.hyper:
        known[name] = teacher_logits(prepared, data_dir, soften=name == "guess")
    if "clean" in method.needs and prepared.clean is None:
        raise InputError(f"{method.name} learns from clean data; keep a share of it: clean=0.02 (--clean 0.02).")
    criterion = method.make(**{**known, **config.hyper})
    for table in criterion.tables():
        if table.store is not None:
            table.store.clear()  # the file of a mapped table may hold rows of an earlier run
    return criterion


def teacher_logits(prepared: Prepared, data_dir: str | Path | None, *, soften: bool) -> Tensor:
    """(rows, C) what the teacher says of every training sample: logits, or with `soften` distributions."""
    config = prepared.config
    if config.teacher is None:
        raise InputError(
            f"{config.method} learns from a teacher; name the folder of a finished run on the same data, or a .npy file of "
            "logits, one row a sample: teacher=... (--teacher on the command line)."
        )
    path = Path(config.teacher)
    if path.is_dir():
        from compensate.training.run import predict_rows

        rows = predict_rows(path, prepared, data_dir)
    elif path.suffix == ".npy" and path.is_file():
        rows = torch.from_numpy(read_array(path)).float()
    else:
        raise InputError(f"the teacher {path} is neither the folder of a run nor a .npy file.")
    shape = (prepared.train.rows, prepared.train.num_classes)
    if tuple(rows.shape) != shape:
        raise InputError(f"the teacher's logits have shape {tuple(rows.shape)}; expected {shape}.")
    return rows.softmax(-1) if soften else rows


def clean_batch(prepared: Prepared, step: int) -> NDArray[np.int64]:
    """Positions in the clean part for the meta step of this step; a new random order for each pass over it."""
    assert prepared.clean is not None
    assert prepared.config.batch_size is not None
    n = len(prepared.clean)
    size = min(prepared.config.batch_size, n)
    turns = n // size
    rows = generator(prepared.config.seed, "clean", step // turns).permutation(n)
    start = step % turns * size
    return rows[start : start + size]
