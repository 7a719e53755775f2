"""The configuration of a run: data, noise, method, model and optimizer."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from compensate.data import noise as noises
from compensate.errors import InputError, check, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROTOCOL = 2
"""Raised by hand whenever the same configuration would train differently, also by a new default of a method."""


@dataclass(frozen=True)
class Config:
    """One run. The seed fixes split, noise, initial weights, order and augmentation, equally for every method.

    Values that are None depend on the model, see `RECIPES` and `with_recipe`.

    Attributes:
        data: a name or path for `compensate.data.load`.
        content: digest of the files of `data` and `labels` (`compensate.files.content_digest`); the commands fill it in, and
            changed files then give another run.
        data_options: options of the reader, such as ``label`` and ``text``.
        labels, labels_key: a file with other labels for the training part, and the name of a label set in it.
        limit, limit_test: maximum number of training samples, stratified, and of test samples, the same for every seed.
        imbalance: ``none``, or ``exponential:R`` or ``step:R``, with the largest class R times the smallest.
        noise: ``none``, or a scheme and a rate such as ``pair:0.2``; it also applies to the validation part.
        test, validation: shares of the data and of the noisy training part that are held out, if the data has no such parts.
        clean: share of the training part that keeps its labels; by default 2 % for methods that need clean data, else 0.
        method, hyper: a name in `compensate.METHODS`, and its hyper-parameters.
        teacher: for methods with a teacher: the folder of a finished run, or a .npy file of logits (rows, C).
        model, model_options: a name in `compensate.models.MODELS` or ``auto``, and options such as ``hidden``.
        vectors: a file of word vectors, or its name in the data folder, such as ``glove.6B.100d``.
        max_length: the maximum number of words of a text.
        augment: ``crop-flip``, ``crop`` or ``none``.
        epochs, batch_size: of the training; several processes share a batch.
        order: ``random``, or ``ranges``: every batch has the same share of every range of samples, and each of several processes
            owns a range and holds the table rows of its samples only.
        optimizer: a name in `OPTIMIZERS`; with `lr`, `momentum` (for SGD) and `weight_decay`.
        schedule: a name in `SCHEDULES`, after a linear `warmup` (share of all steps).
        clip, accumulate: maximum norm of the gradient, if any, and number of batches per optimizer step.
        average: the decay, such as 0.99, of a running mean of the weights after each step, which is evaluated and stored; None has none.
        precision: ``no``, ``bf16`` or ``fp16``.
        patience: number of epochs without a better validation accuracy before training stops; None never stops.
        seed: of all random numbers.

    >>> Config().id == Config(seed=1).id
    False
    """

    data: str = "digits"
    content: str | None = None
    data_options: Mapping[str, Any] = field(default_factory=dict)
    labels: str | None = None
    labels_key: str | None = None
    limit: int | None = None
    limit_test: int | None = None
    imbalance: str = "none"
    noise: str = "none"
    test: float = 0.2
    validation: float = 0.1
    clean: float | None = None
    method: str = "base"
    hyper: Mapping[str, Any] = field(default_factory=dict)
    teacher: str | None = None
    model: str = "auto"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    vectors: str | None = None
    max_length: int | None = None
    augment: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    order: str | None = None
    optimizer: str | None = None
    lr: float | None = None
    momentum: float = 0.9
    weight_decay: float | None = None
    schedule: str | None = None
    warmup: float = 0.0
    clip: float | None = None
    accumulate: int = 1
    average: float | None = None
    precision: str = "no"
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if float in kinds and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, name, float(value))  # 1 and 1.0 are the same run
            elif not isinstance(value, kinds) or isinstance(value, bool):
                wanted = " or ".join("nothing" if k is type(None) else _WORDS.get(k, k.__name__) for k in kinds)
                raise InputError(f"{name} is {value!r}; expected {wanted}.")
        object.__setattr__(self, "method", self.method.replace("-", "_").lower())
        object.__setattr__(self, "noise", str(noises.parse(self.noise)))
        if self.order == "random":  # the default, named or not, is one run
            object.__setattr__(self, "order", None)
        for (low, high), name in ((span, name) for span, names in _RANGES.items() for name in names):
            value = getattr(self, name)
            check(value is None or low <= value <= high, f"a value from {low:g} to {high:g}", **{name: value})
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) is not None and value not in choices:
                raise InputError(f'{name} is "{value}"; {nearest(value, choices)}')

    @classmethod
    def of(cls, given: Mapping[str, Any], where: str = "the options") -> Config:
        """A configuration from names and values, for example of a TOML file; `where` names their source in errors."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name.replace("-", "_") not in known:
                raise InputError(f'{where}: there is no option "{name}"; {nearest(name.replace("-", "_"), known)}')
        return cls(**{name.replace("-", "_"): value for name, value in given.items()})

    def replace(self, **changes: Any) -> Config:
        """The configuration with some values changed."""
        return replace(self, **changes)

    @property
    def json(self) -> dict[str, Any]:
        """Plain values, for a JSON file."""
        return asdict(self)

    @property
    def id(self) -> str:
        """The SHA-256 of the canonical JSON and the protocol number, in hexadecimal digits."""
        try:
            # Values that are None are left out: a new option keeps the ids of earlier runs.
            plain = {name: value for name, value in self.json.items() if value is not None}
            text = json.dumps([PROTOCOL, plain], sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"a configuration holds numbers, texts and lists only: {error}.") from error
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def name(self) -> str:
        """A short name for the folder of the run."""
        return f"{Path(self.data).name.split('.')[0] or 'data'}-{self.method.replace('_', '-')}-{self.id[:8]}"


_WORDS = {int: "a whole number", float: "a number", str: "a text", Mapping: "a table of names and values"}
_KINDS: dict[str, tuple[type, ...]] = {
    name: get_args(hint) if type(None) in get_args(hint) else (Mapping,) if "Mapping" in str(hint) else (hint,)
    for name, hint in get_type_hints(Config).items()
}
_RANGES: dict[tuple[float, float], tuple[str, ...]] = {
    (1, 10**9): ("limit", "limit_test", "max_length", "epochs", "batch_size", "accumulate", "patience"),
    (0, 0.9999): ("average",),
    (0, 0.9): ("test", "validation", "clean", "warmup"),
    (0, 10**9): ("lr", "weight_decay", "clip", "seed"),
    (0, 1): ("momentum",),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "precision": ("no", "bf16", "fp16"),
    "augment": ("none", "crop", "crop-flip"),
    "order": ("random", "ranges"),
    "optimizer": ("sgd", "adam", "adamw"),
    "schedule": ("constant", "cosine", "linear", "step"),
}

_SMALL = {
    "epochs": 60, "batch_size": 64, "optimizer": "adam", "lr": 2e-3, "weight_decay": 0.0, "schedule": "cosine",
    "augment": "none",
}  # fmt: skip
RECIPES: dict[str, dict[str, Any]] = {
    "resnet": {
        "epochs": 100, "batch_size": 128, "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "schedule": "cosine",
        "augment": "crop-flip",
    },
    "bilstm": {**_SMALL, "epochs": 5, "batch_size": 32, "lr": 1e-3, "schedule": "constant"},
    **dict.fromkeys(("cnn", "mlp", "probe"), _SMALL),
}  # fmt: skip
"""Defaults of the configuration for each kind of model."""


def with_recipe(config: Config, model: str, *, needs_clean: bool) -> Config:
    """The configuration for this model, with its recipe for values that are None.

    >>> with_recipe(Config(), "cnn", needs_clean=False).lr
    0.002
    """
    recipe = RECIPES[model.rstrip("0123456789")]
    defaults = {name: value for name, value in recipe.items() if getattr(config, name) is None}
    clean = config.clean if config.clean is not None else 0.02 if needs_clean else 0.0
    return config.replace(**defaults, model=model, clean=clean)


def read_toml(path: str | Path) -> dict[str, Any]:
    r"""The options of a TOML file: the fields of `Config`, with tables such as ``[hyper]``.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.toml"
    >>> _ = path.write_text('method = "logcomp"\n[hyper]\nlam = 0.1')
    >>> read_toml(path)
    {'method': 'logcomp', 'hyper': {'lam': 0.1}}
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f'there is no file {path}; give a TOML file with lines such as: method = "logcomp".')
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f'{path} is not TOML: {error}. Texts need quotes: method = "logcomp".') from error
