"""Data, model and criterion of a run, each a function of the configuration and its seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.core.criterion import Compensated
from compensate.core.stages import ModelStages
from compensate.data import Dataset, Ragged, Splits, gather, load, long_tailed, noise
from compensate.data.dataset import generator
from compensate.data.text import Vocabulary, embedding_matrix, encode_texts, find_vectors, read_vectors
from compensate.errors import InputError
from compensate.files import read_array
from compensate.methods.composition import find
from compensate.methods.registry import Method
from compensate.models.networks import build, resolve
from compensate.terms.classes import CosineHead
from compensate.training import checkpoint
from compensate.training.config import Config, with_recipe
from compensate.training.evaluation import predict
from compensate.training.run import load_config


@dataclass(frozen=True, eq=False)
class Prepared:
    """The data of a run.

    Attributes:
        config: with the defaults of the model filled in.
        train, validation: with injected noise.
        clean: trusted samples, for methods that need them.
        test: without injected noise.
        wrong: (N,) true where noise made the label of a training sample wrong.
        own_test, unlabeled: whether the data have a test part; the number of samples without a label, which are left out.

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

    def clean_batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the clean batch for a meta step; each pass over the clean part has a new random order."""
        assert self.clean is not None and self.config.batch_size is not None  # noqa: PT018
        n = len(self.clean)
        size = min(self.config.batch_size, n)
        rows = generator(self.config.seed, "clean", step // (n // size)).permutation(n)
        start = step % (n // size) * size
        x, target, _ = gather(self.clean, rows[start : start + size])
        return x, target


def prepare_run(config: Config, data: Splits | Dataset | None = None, data_dir: str | Path | None = None) -> Prepared:
    """Loads the data of a run, splits it, makes it imbalanced and adds label noise, in this order; fills in the configuration.

    The test part and the clean part are taken before the noise. The validation part gets noise of its own.

    >>> parts = prepare_run(Config(data="digits"))
    >>> len(parts.train), len(parts.validation), len(parts.test)
    (1132, 126, 539)
    """
    options = config.data_options if data is None else {}
    source = config.data if data is None else data
    splits = load(source, data_dir, labels=config.labels, labels_key=config.labels_key, **options)
    if splits.train.regression:
        raise InputError("training needs classes, and this label is a quantity; choose another label column.")
    unlabeled = sum(int((~part.labeled).sum()) for part in vars(splits).values() if part is not None)
    labeled: dict[str, Any] = {
        name: part if part is None or part.labeled.all() else part.subset(part.labeled)
        for name, part in vars(splits).items()
    }
    for name, limit, seed in (("train", config.limit, config.seed), ("test", config.limit_test, 0)):
        part = labeled[name]
        if part is not None and limit is not None and limit < len(part):
            labeled[name] = part.split((share := limit / len(part), 1 - share), seed=seed)[0]
    own_test, splits = splits.test is not None, Splits(**labeled)
    vocabulary = matrix = None
    if not isinstance(splits.train.x, Ragged) and getattr(getattr(splits.train.x, "dtype", None), "kind", "") == "O":
        known = None if config.vectors is None else read_vectors(find_vectors(config.vectors, data_dir))
        splits, vocabulary = encode_texts(splits, vectors=known, max_length=config.max_length)
        matrix = None if known is None else embedding_matrix(vocabulary, known, seed=config.seed)
    needs_clean = "clean" in find(config.method).needs
    config = with_recipe(config, resolve(config.model, splits.train), needs_clean=needs_clean)

    train, test, validation = splits.train, splits.test, splits.validation
    if test is None and config.test:
        train, test = train.split((1 - config.test, config.test), seed=config.seed)
    if config.imbalance != "none":
        kind, _, text = config.imbalance.partition(":")
        try:
            ratio = float(text)
        except ValueError:
            raise InputError(f'imbalance is "{config.imbalance}"; write for example exponential:100.') from None
        train = long_tailed(train, ratio, kind, seed=config.seed)
    clean = None
    if config.clean:
        # Another seed: the share of clean data must not change the noise.
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
    wrong = wrong[train.index]
    return Prepared(config, train, clean, validation, test, wrong, vocabulary, matrix, own_test, unlabeled)


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

    >>> load_model("no/such/folder", prepare_run(Config(data="digits")))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    compensate.errors.InputError: there is no file
    """
    model = make_model(prepared)
    name = "best.safetensors" if best else "model.safetensors"
    model.load_state_dict(checkpoint.load_weights(Path(folder) / name))
    return model.eval()


@torch.no_grad()
def model_sizes(model: nn.Module, x: Any, *, sequences: bool = False) -> dict[str, Any]:
    """The sizes that methods ask for, from a small batch: the shape of the compensated input, and the number of features.

    With `sequences` of token ids, the words of a text share one row of the shape of a word.
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
        "num_samples": data.rows, "num_classes": data.num_classes, "class_counts": data.class_counts.tolist(),
        "batch_size": config.batch_size, **model_sizes(model, x, sequences=isinstance(data.x, Ragged)),
    }  # fmt: skip
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
            raise InputError(f"the run in {path} has other data; a teacher must be trained on the same samples.")
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
