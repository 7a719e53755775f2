"""Data, model and criterion of a run, each a function of the configuration and its seed."""

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
from compensate.training import checkpoint
from compensate.training.config import Config, with_recipe
from compensate.training.evaluation import predict
from compensate.training.run import load_config


@dataclass(frozen=True, eq=False)
class Prepared:
    """The data of a run.

    Attributes:
        config: with the defaults of the model filled in.
        train: the training samples, noise included.
        clean: trusted samples, for methods that need them.
        validation: held-out samples with the same noise.
        test: held-out samples without injected noise.
        wrong: (N,) true where noise made the label of a training sample wrong.
        vocabulary, vectors: of texts.
        own_test: whether the data came with a test part.
        unlabeled: number of samples without a label, which no part holds.

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
        """The method's entry in `METHODS`."""
        return find(self.config.method)

    @property
    def augment(self) -> CropFlip | None:
        """The augmentation of images."""
        kinds = {"none": None, "crop": CropFlip(flip=False), "crop-flip": CropFlip()}
        return kinds[self.config.augment or "none"]

    def clean_batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the clean batch for a meta step; each pass over the clean part has a new random order."""
        assert self.clean is not None
        assert self.config.batch_size is not None
        n = len(self.clean)
        size = min(self.config.batch_size, n)
        rows = generator(self.config.seed, "clean", step // (n // size)).permutation(n)
        start = step % (n // size) * size
        x, target, _ = gather(self.clean, rows[start : start + size])
        return x, target


def prepare_run(config: Config, data: Splits | Dataset | None = None, data_dir: str | Path | None = None) -> Prepared:
    """Loads, splits, thins out and corrupts the data of a run, in this order, and fills in its configuration.

    The test part and the clean part are taken before the noise. The validation part gets noise of its own, because people
    with noisy training labels have no better validation labels.

    >>> parts = prepare_run(Config(data="digits"))
    >>> len(parts.train), len(parts.validation), len(parts.test)
    (1132, 126, 539)
    """
    needs = find(config.method).needs
    if data is None:
        options = tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in config.data_options.items()))
        paths = [Path(name).expanduser() for name in (config.data, config.labels) if name is not None]
        changed = tuple(path.stat().st_mtime_ns for path in paths if path.exists())
        where = None if data_dir is None else str(data_dir)
        splits = _load(config.data, where, config.labels, config.labels_key, options, changed)
    else:
        splits = load(data, labels=config.labels, labels_key=config.labels_key)
    if splits.train.regression:
        raise InputError(
            "training needs classes, and the label of this data is a quantity; choose another label column."
        )
    unlabeled = sum(int((~part.labeled).sum()) for part in vars(splits).values() if part is not None)
    given = config.vectors if _is_text(splits.train) else None
    vectors = None if given is None else find_vectors(given, data_dir)
    seed = 0 if config.limit is None else config.seed
    splits, vocabulary, known = _limit_and_encode(
        splits, config.limit, config.limit_test, seed, vectors, config.max_length
    )
    matrix = None if known is None else embedding_matrix(vocabulary, known, seed=config.seed)
    config = with_recipe(config, resolve(config.model, splits.train), needs_clean="clean" in needs)

    train, test, validation = splits.train, splits.test, splits.validation
    if test is None and config.test:
        train, test = train.split((1 - config.test, config.test), seed=config.seed)
    if config.imbalance != "none":
        kind, _, text = config.imbalance.partition(":")
        try:
            ratio = float(text)
        except ValueError:
            raise InputError(
                f'imbalance "{config.imbalance}" has no ratio that can be read; write for example exponential:100.'
            ) from None
        train = long_tailed(train, ratio, kind, seed=config.seed)
    clean = None
    if config.clean:
        # A random stream of its own: the share of clean data must not change the noise.
        train, clean = train.split((1 - config.clean, config.clean), seed=config.seed + 1)
    train, changed_labels = _add_noise(train, config, config.seed)
    wrong = np.zeros(train.rows, dtype=bool)
    wrong[train.index] = changed_labels
    if validation is not None:
        validation, _ = _add_noise(validation, config, config.seed + 1)
    elif config.validation:
        train, validation = train.split((1 - config.validation, config.validation), seed=config.seed + 2)
    if len(train) < 2:
        raise InputError(f"{len(train)} samples are left to train on; lower the shares of test, validation and clean.")
    return Prepared(
        config, train, clean, validation, test, wrong[train.index], vocabulary, matrix, splits.test is not None, unlabeled
    )  # fmt: skip


@lru_cache(maxsize=1)
def _load(
    data: str, data_dir: str | None, labels: str | None, labels_key: str | None, options: Any, changed: Any
) -> Splits:
    """Reads data once for all runs of a worker; `changed`, the times of the files, is part of the key."""
    return load(data, data_dir, labels=labels, labels_key=labels_key, **dict(options))


@lru_cache(maxsize=1)
def _limit_and_encode(
    splits: Splits, limit: int | None, limit_test: int | None, seed: int, vectors: Path | None, max_length: int | None
) -> tuple[Splits, Any, Any]:
    """At most `limit` labeled samples, texts as token ids, their vocabulary and word vectors; kept for the next run of a worker."""
    train, test, validation = (
        part if part is None or part.labeled.all() else part.subset(part.labeled)
        for part in (splits.train, splits.test, splits.validation)
    )
    assert train is not None
    if limit is not None and limit < len(train):
        train = train.split((share := limit / len(train), 1 - share), seed=seed)[0]
    if test is not None and limit_test is not None and limit_test < len(test):
        test = test.split((share := limit_test / len(test), 1 - share), seed=0)[0]
    splits = Splits(train, test, validation)
    if not _is_text(train):
        return splits, None, None
    known = None if vectors is None else read_vectors(vectors)
    return *encode_texts(splits, vectors=known, max_length=max_length), known


def _is_text(data: Dataset) -> bool:
    return not isinstance(data.x, Ragged) and getattr(getattr(data.x, "dtype", None), "kind", "") == "O"


def _add_noise(data: Dataset, config: Config, seed: int) -> tuple[Dataset, NDArray[np.bool_]]:
    features = data.x if isinstance(data.x, np.ndarray) else None
    flipped = noise.parse(config.noise)(data.target, data.num_classes, seed=seed, features=features)
    return data.relabel(flipped.labels), flipped.changed


def make_model(prepared: Prepared) -> nn.Module:
    """The model of the run, with initial weights that depend only on the seed.

    >>> type(make_model(prepare_run(Config(data="digits")))).__name__
    'CNN'
    """
    config, data, method = prepared.config, prepared.train, prepared.method
    if method.extra_outputs:
        data = replace(data, classes=data.classes + tuple(f"output {k}" for k in range(method.extra_outputs)))
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


def load_model(folder: str | Path, prepared: Prepared, *, best: bool = False) -> nn.Module:
    """The trained model of a run in evaluation mode, after its last epoch, or after its best one.

    >>> import tempfile
    >>> from compensate.training import fit
    >>> folder = tempfile.mkdtemp()
    >>> result = fit(Config(data="digits", epochs=1), folder=folder)
    >>> type(load_model(folder, result.prepared)).__name__
    'CNN'
    """
    model = make_model(prepared)
    name = "best.safetensors" if best else "model.safetensors"
    model.load_state_dict(checkpoint.load_weights(Path(folder) / name))
    return model.eval()


@torch.no_grad()
def model_sizes(model: nn.Module, x: Any, *, sequences: bool = False) -> dict[str, Any]:
    """The model's sizes that methods ask for: the shape of the compensated input, and the number of features.

    Args:
        model: the model.
        x: a small batch.
        sequences: whether `x` is token ids. All words of a text share a row, with the shape of one word.
    """
    stages, was_training = ModelStages.of(model), model.training
    model.eval()
    e = x if stages.embed is None else stages.embed(x)
    sizes: dict[str, Any] = {}
    if isinstance(e, Tensor):
        sizes["feature_shape"] = tuple(e.shape[2:] if sequences else e.shape[1:])
    if stages.features is not None:
        sizes["feature_dim"] = int(stages.features(e).shape[-1])
    model.train(was_training)
    return sizes


def make_criterion(prepared: Prepared, model: nn.Module, data_dir: str | Path | None = None) -> Compensated:
    """The criterion of the run.

    >>> prepared = prepare_run(Config(data="digits", method="logcomp"))
    >>> print(make_criterion(prepared, make_model(prepared)).taxonomy)
    logit · positive · regularized · sample
    """
    config, method, data = prepared.config, prepared.method, prepared.train
    x, _, _ = gather(data, np.arange(min(2, len(data))))
    known: dict[str, Any] = {
        "num_samples": data.rows,
        "num_classes": data.num_classes,
        "class_counts": data.class_counts.tolist(),
        "batch_size": config.batch_size,
        **model_sizes(model, x, sequences=isinstance(data.x, Ragged)),
    }
    if getattr(data.x, "ndim", 0) == 4:
        known["bounds"] = (0.0, 1.0)  # images are pixels in [0, 1]
    if "teacher" in method.needs and (name := method.teacher) not in config.hyper:
        logits = _teacher_logits(prepared, data_dir)
        known[name] = logits.softmax(-1) if name == "guess" else logits
    if "clean" in method.needs and prepared.clean is None:
        raise InputError(f"{method.name} learns from clean data; keep a share of it: clean=0.02 (--clean 0.02).")
    criterion = method.make(**{**known, **config.hyper})
    for table in criterion.tables():
        if table.store is not None:
            table.store.clear()  # the file of a mapped table may hold rows of an earlier run
    return criterion


def _teacher_logits(prepared: Prepared, data_dir: str | Path | None) -> Tensor:
    """(rows, C) logits of the teacher for every training sample, zeros elsewhere."""
    config, train = prepared.config, prepared.train
    if config.teacher is None:
        raise InputError(
            f"{config.method} learns from a teacher; name the folder of a finished run on the same data, or a .npy file of "
            "logits, one row a sample: teacher=... (--teacher on the command line)."
        )
    path = Path(config.teacher)
    if path.is_dir():
        theirs = prepare_run(load_config(path), data_dir=data_dir)
        if theirs.train.rows != train.rows or theirs.train.classes != train.classes:
            raise InputError(f"the run in {path} is not on the same data; a teacher must know the same samples.")
        with torch.random.fork_rng():
            model = load_model(path, theirs)
        rows = torch.zeros(train.rows, train.num_classes)
        rows[torch.from_numpy(train.index)] = predict(model, train)
    elif path.suffix == ".npy" and path.is_file():
        rows = torch.from_numpy(read_array(path)).float()
    else:
        raise InputError(f"the teacher {path} is neither the folder of a run nor a .npy file.")
    shape = (train.rows, train.num_classes)
    if tuple(rows.shape) != shape:
        raise InputError(f"the teacher's logits have shape {tuple(rows.shape)}; expected {shape}.")
    return rows
