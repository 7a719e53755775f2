"""What a run is: its data, noise, method, model and optimizer, as one frozen value with a name of its own."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from compensate.data import noise as noises
from compensate.errors import InputError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROTOCOL = 2
"""Raised by hand whenever the same configuration would train differently, a new default of a method included, so that old runs are not taken for new ones."""


@dataclass(frozen=True)
class Config:
    """One run. The seed fixes split, noise, first weights, order and augmentation alike for every method.

    Values that are None are chosen by the kind of model (see `RECIPES`); `settled` shows them.

    Attributes:
        data: a name or path that `compensate.data.load` knows.
        content: of data at a path, the digest of what is there (`compensate.files.content_digest`), so that a changed file makes another run;
            the commands fill it in.
        data_options: of the reader, such as ``label`` and ``text``.
        labels: a file with other labels for the training part.
        labels_key: which of several label sets of that file.
        limit: the maximum number of training samples, the same share of each class.
        limit_test: the maximum number of test samples, the same for every seed.
        imbalance: ``none``, or ``exponential:R`` or ``step:R``, the largest class R times the smallest.
        noise: ``none``, or a scheme and a rate such as ``pair:0.2``; it also hits the validation part.
        test: share of the data held out for the test, where the data has no test part.
        validation: share of the noisy training part held out, where the data has no validation part.
        clean: share of the training part that keeps its labels, for methods that ask for clean data; by default 2 % for
            those and nothing for others.
        method: a row of `compensate.METHODS`.
        hyper: its hyper-parameters.
        teacher: for methods that ask for one: the folder of a finished run, or a .npy file of logits (rows, C).
        model: a name in `compensate.models.MODELS`, or ``auto``.
        model_options: of the model, such as ``hidden``.
        vectors: word vectors in the data folder, such as ``glove.6B.100d``, or a file.
        max_length: the maximum number of words of a text.
        augment: ``crop-flip``, ``crop`` or ``none``.
        epochs, batch_size: of the training; a batch is shared among processes.
        order: ``random``, or ``ranges``: every batch has the same share of every range of samples, and where several processes
            train, each owns the samples of one range and holds the rows of tables for these alone.
        optimizer: a name in `OPTIMIZERS`; with `lr`, `momentum` (SGD's) and `weight_decay`.
        schedule: a name in `SCHEDULES`, after a linear `warmup` (share of all steps).
        clip: largest norm of the gradient; None for no limit.
        accumulate: batches whose gradients make one step of the optimizer.
        precision: ``no``, ``bf16`` or ``fp16``.
        patience: early stopping after this many epochs without a better validation accuracy; None never stops.
        seed: of everything random.

    >>> Config(data="digits", method="log-comp".replace("-", "")).method
    'logcomp'
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
    precision: str = "no"
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kinds in _KINDS.items():
            self._check(name, kinds)
        object.__setattr__(self, "method", self.method.replace("-", "_").lower())
        object.__setattr__(self, "noise", str(noises.parse(self.noise)))
        if self.order == "random":  # what is said and what holds anyway are one run
            object.__setattr__(self, "order", None)
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(f"{name} is {value}; expected a value from {low:g} to {high:g}.")
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) is not None and value not in choices:
                raise InputError(f'{name} is "{value}"; {nearest(value, choices)}')

    def _check(self, name: str, kinds: tuple[type, ...]) -> None:
        value = getattr(self, name)
        if float in kinds and isinstance(value, int) and not isinstance(value, bool):
            object.__setattr__(self, name, float(value))  # 1 and 1.0 are the same run
        elif not isinstance(value, kinds) or isinstance(value, bool):
            wanted = " or ".join("nothing" if k is type(None) else _WORDS.get(k, k.__name__) for k in kinds)
            raise InputError(f"{name} is {value!r}; expected {wanted}.")

    @classmethod
    def of(cls, given: Mapping[str, Any], where: str = "the options") -> Config:
        """A configuration from names and values, as a TOML file has them."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name.replace("-", "_") not in known:
                raise InputError(f'{where}: there is no option "{name}"; {nearest(name.replace("-", "_"), known)}')
        return cls(**{name.replace("-", "_"): value for name, value in given.items()})

    def but(self, **changes: Any) -> Config:
        """The same run but for these."""
        return replace(self, **changes)

    @property
    def json(self) -> dict[str, Any]:
        """Plain values, for a JSON file."""
        return asdict(self)

    @property
    def id(self) -> str:
        """64 hexadecimal digits that name this run: the SHA-256 of its canonical JSON and of the protocol's number."""
        try:
            # What is not given counts for nothing, so that an option that comes later leaves the names of earlier runs as they are.
            plain = {name: value for name, value in self.json.items() if value is not None}
            text = json.dumps([PROTOCOL, plain], sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"a run is made of numbers, texts and lists only: {error}.") from error
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def name(self) -> str:
        """A short name for its folder."""
        return f"{Path(self.data).name.split('.')[0] or 'data'}-{self.method.replace('_', '-')}-{self.id[:8]}"


_WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    Mapping: "a table of names and values",
}
_KINDS: dict[str, tuple[type, ...]] = {
    name: get_args(hint) if type(None) in get_args(hint) else (Mapping,) if "Mapping" in str(hint) else (hint,)
    for name, hint in get_type_hints(Config).items()
}
_RANGES: list[tuple[str, float, float]] = [
    *(
        (name, 1, 10**9)
        for name in ("limit", "limit_test", "max_length", "epochs", "batch_size", "accumulate", "patience")
    ),
    *((name, 0, 0.9) for name in ("test", "validation", "clean", "warmup")),
    *((name, 0, 10**9) for name in ("lr", "weight_decay", "clip", "seed")),
    ("momentum", 0, 1),
]
_CHOICES: dict[str, tuple[str, ...]] = {
    "precision": ("no", "bf16", "fp16"),
    "augment": ("none", "crop", "crop-flip"),
    "order": ("random", "ranges"),
    "optimizer": ("sgd", "adam", "adamw"),
    "schedule": ("constant", "cosine", "linear", "step"),
}

_SMALL = {"optimizer": "adam", "lr": 2e-3, "weight_decay": 0.0, "schedule": "cosine", "augment": "none"}
RECIPES: dict[str, dict[str, Any]] = {
    "resnet": {
        "epochs": 100, "batch_size": 128, "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "schedule": "cosine",
        "augment": "crop-flip",
    },
    "bilstm": {
        "epochs": 5, "batch_size": 32, "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "schedule": "constant",
        "augment": "none",
    },
    "cnn": {"epochs": 60, "batch_size": 64, **_SMALL},
    "mlp": {"epochs": 60, "batch_size": 64, **_SMALL},
    "probe": {"epochs": 60, "batch_size": 64, **_SMALL},
}  # fmt: skip
"""How each kind of model is trained where the configuration leaves it open."""


def settled(config: Config, model: str, *, needs_clean: bool) -> Config:
    """The configuration with every open value filled in, for the model that was chosen.

    >>> settled(Config(), "cnn", needs_clean=False).lr
    0.002
    """
    recipe = RECIPES[model.rstrip("0123456789")]
    open_values = {name: value for name, value in recipe.items() if getattr(config, name) is None}
    clean = config.clean if config.clean is not None else 0.02 if needs_clean else 0.0
    return config.but(**open_values, model=model, clean=clean)


def read_toml(path: str | Path) -> dict[str, Any]:
    r"""The options of a TOML file: the names of `Config`, with ``[hyper]`` and the like as tables.

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
