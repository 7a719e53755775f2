"""Options that several commands share, and the text that describes a training."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from compensate.cli.terminal import MAX_NAMES, messages_to_stderr, say, short
from compensate.data.columns import text_columns
from compensate.data.dataset import Source
from compensate.data.load import HUB_NAME
from compensate.errors import InputError, check
from compensate.files import content_digest, is_address

if TYPE_CHECKING:
    from compensate.training.config import Config
    from compensate.training.preparation import Prepared


def option(text: str, *names: str, **more: Any) -> Any:
    """An option without a default value in its help."""
    return typer.Option(*names, help=text, show_default=False, **more)


def argument(text: str) -> Any:
    """An argument without a default value in its help."""
    return typer.Argument(help=text, show_default=False)


def share(text: str, name: str) -> float:
    """A number above 0 and up to 1.

    >>> share("0.8", "--precision")
    0.8
    """
    value = float(text) if text.count(".") < 2 and text.strip(".") else 0.0
    check(0 < value <= 1, "a share above 0 and up to 1, such as 0.8", **{name: text})
    return value


DataDir = Annotated[Path | None, option("Data folder of named data sets [env: COMPENSATE_DATA].")]
Noise = Annotated[str | None, option("Inject label noise, e.g. pair:0.2 or random:0.4.")]
Model = Annotated[str | None, option("Model: resnet20, bilstm, cnn, mlp, ... [default: by the kind of data].")]
ConfigFile = Annotated[Path | None, option("TOML file of settings; the command line takes precedence.", "--config")]
Epochs = Annotated[int | None, option("Training epochs.")]
BatchSize = Annotated[int | None, option("Batch size, over all processes.")]
Rate = Annotated[float | None, option("Learning rate.", "--lr")]
Precision = Annotated[str | None, option("Mixed precision: no, bf16 or fp16.", rich_help_panel="Training")]
Seed = Annotated[int | None, option("Random seed.")]
Vectors = Annotated[str | None, option("Word vectors: glove.6B.100d in the data folder, or a file.")]
Label = Annotated[str | None, option("Label column of a table.")]
Text = Annotated[
    str | None, option("Text column of a table, or several, e.g. premise,hypothesis [default: those of sentences].")
]
Ignore = Annotated[str | None, option("Columns to leave out, e.g. id,url.")]
Columns = Annotated[
    str | None,
    option('Feature columns, e.g. age,town; next to --text, or "" for the text alone [default: all others].'),
]
Hyper = Annotated[list[str] | None, option("Hyper-parameter of the method, e.g. lam=0.1; may be repeated.")]
Set = Annotated[list[str] | None, option("Any other setting, e.g. weight_decay=1e-4; may be repeated.", "--set")]
Workers = Annotated[int | None, option("Worker processes [default: number of cores].", min=1)]
Backend = Annotated[str | None, option("Where to compute: local, or ray, for a cluster [default: local].")]
Encoding = Annotated[str | None, option("File encoding [default: utf-8].")]
Delimiter = Annotated[str | None, option("Column delimiter [default: detected].")]
Force = Annotated[bool, option("Overwrite an existing output file.", "--force")]
Json = Annotated[
    bool, option("Print one JSON object, and all messages to standard error.", "--json", callback=messages_to_stderr)
]

READER = ("label", "text", "ignore", "columns")  # options of the table reader, which `Config` stores separately
PLACES = ("config", "data_dir")  # paths, which are not part of a configuration


@dataclass(frozen=True)
class TrainingOptions:
    """Options of every command that trains; `with_shared` adds them to its signature."""

    data: Annotated[str | None, argument("Data set: a path, or a name such as digits.")] = None
    noise: Noise = None
    model: Model = None
    epochs: Epochs = None
    batch_size: BatchSize = None
    lr: Rate = None
    optimizer: Annotated[str | None, option("Optimizer: sgd, adam or adamw.")] = None
    schedule: Annotated[str | None, option("Learning rate schedule: constant, cosine, linear or step.")] = None
    seed: Seed = None
    limit: Annotated[int | None, option("Maximum number of training samples.")] = None
    vectors: Vectors = None
    max_length: Annotated[int | None, option("Maximum number of words per text.")] = None
    label: Label = None
    text: Text = None
    ignore: Ignore = None
    columns: Columns = None
    set_: Set = None
    config: ConfigFile = None
    data_dir: DataDir = None

    def merged(self, **more: Any) -> dict[str, Any]:
        """All settings by their names in `Config`; the command line overrides the file, and nested tables are merged."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*READER, *PLACES, "set_")}
        reader = {name: getattr(self, name) for name in READER}
        given = settings(self.set_, reader, **more, **named)
        merged: dict[str, Any] = {}
        if self.config is not None:
            from compensate import training

            merged = {k.replace("-", "_"): v for k, v in training.read_toml(self.config).items()}
        for name, value in given.items():
            if value is None or value == {}:
                continue
            both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
            merged[name] = {**merged[name], **value} if both else value
        return merged

    def build(self, merged: Mapping[str, Any]) -> Config:
        """The configuration."""
        if not merged.get("data"):
            raise InputError("no data set is given; write for example: compensate train digits --method robust.")
        check_path(str(merged["data"]))
        from compensate import methods, training

        in_set = pairs(self.set_, "--set")
        if in_set and isinstance(merged.get("method"), str):
            own = {*inspect.signature(methods.find(merged["method"]).build).parameters}
            own -= {*methods.registry.CONTEXT, *(f.name for f in fields(training.Config))}
            for name in (name for name in in_set if name in own):
                raise InputError(f"{name} belongs to the method: --hyper {name}={written(in_set[name])}.")
        asked = training.Config.of(merged, str(self.config or "the command line"))
        return asked.replace(content=content_digest(*(p for p in (asked.data, asked.labels) if p is not None)))


def with_shared(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the fields of `TrainingOptions`, the first parameter of the command, as options after its own.

    >>> @with_shared
    ... def example(shared: TrainingOptions, *, quiet: bool = False) -> None: ...
    >>> list(inspect.signature(example).parameters)[:4]
    ['data', 'quiet', 'noise', 'model']
    """
    hints = get_type_hints(command, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[1:]
    first, *rest = inspect.signature(TrainingOptions).parameters.values()
    hints |= get_type_hints(TrainingOptions, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [one.replace(kind=keyword, annotation=hints[one.name]) for one in (first, *own, *rest)]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        options = TrainingOptions(**{f.name: given.pop(f.name) for f in fields(TrainingOptions)})
        command(options, **given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


def check_path(*paths: str | Path | None) -> None:
    """Refuses a path that does not exist."""
    for path in (p for p in paths if p is not None and not is_address(p)):
        named = isinstance(path, str) and not Path(path).suffix and len(Path(path).parts) == 1
        named = named or (isinstance(path, str) and bool(HUB_NAME.fullmatch(path)) and not Path(path).parent.exists())
        if not named and not Path(path).expanduser().exists() and not glob(str(path)):
            raise InputError(f"{path} does not exist; check the path.")


def pairs(texts: Sequence[str] | None, flag: str) -> dict[str, Any]:
    """Parses texts such as ``lam=0.1`` to names and values: JSON if they are valid, else texts.

    >>> pairs(["lam=0.1", "update=prox", "hidden=[64, 64]"], "--hyper")
    {'lam': 0.1, 'update': 'prox', 'hidden': [64, 64]}
    """
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            example = "weight_decay=1e-4" if flag == "--set" else "lam=0.1"
            raise InputError(f'{flag} "{text}" is not a name, an equals sign and a value, such as {flag} {example}.')
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value.strip()
    return found


def nested(found: Mapping[str, Any]) -> dict[str, Any]:
    """Nests dotted names.

    >>> nested({"model_options.hidden": 100, "seed": 1})
    {'model_options': {'hidden': 100}, 'seed': 1}
    """
    tree: dict[str, Any] = {}
    for name, value in found.items():
        head, dot, rest = name.partition(".")
        tree[head] = {**tree.get(head, {}), rest: value} if dot else value
    return tree


def settings(set_: Sequence[str] | None, reader: Mapping[str, Any], **named: Any) -> dict[str, Any]:
    """Settings by their names in `Config`: named ones, the pairs of --set, and the options of the reader."""
    others = nested(pairs(set_, "--set"))
    chosen = {name: value for name, value in reader.items() if value is not None}
    return {**named, **others, "data_options": {**others.pop("data_options", {}), **chosen}}


def program() -> str:
    """How this command line was started: ``compensate``, or ``python -m experiments`` in a checkout."""
    path = Path(sys.argv[0])
    as_module = path.name == "__main__.py" and path.parent.name in ("compensate", "experiments")
    return f"python -m {path.parent.name}" if as_module else "compensate"


def written(value: Any) -> str:
    """A value as `pairs` reads it."""
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def describe_columns(source: Source, labels: str) -> list[str]:
    """The columns of text and label, a description of the labels, and the columns that were passed over for them.

    >>> describe_columns(Source(text="message", label="topic"), "5 classes")
    ['text column "message"', 'label column "topic" (5 classes)']
    """
    texts = " and ".join(f'"{name}"' for name in text_columns(source.text, (c.name for c in source.columns)))
    text = [f"text column{'s' * (' and ' in texts)} {texts}"] if texts else []
    used = [short(c.name) for c in source.columns if c.used]
    if texts and used and not source.features_given:
        more = f" and {len(used) - MAX_NAMES:,} more" * (len(used) > MAX_NAMES)
        text = [f'{text[0]} together with {", ".join(used[:MAX_NAMES])}{more} (by the text alone: --columns "")']
    if source.embedding:
        width = next((c.reason for c in source.columns if c.name == source.embedding), "embeddings")
        text.append(f'embedding column "{source.embedding}" ({width})')
    passed = [f'not "{short(name)}", which {why}' for name, why in source.passed_over.items()]
    others = ", ".join(map(short, source.runners_up))
    labels += f"; it could also be {others}: --label" if others else ""
    # The label of votes is that of the majority, and no column.
    named = source.label if not source.columns or source.label in [c.name for c in source.columns] else None
    return [*text, f'label column "{named}" ({labels})' if named else labels, *passed]


def describe_unused(source: Source, parts: Any = None) -> list[str]:
    """The columns that are not read, in one phrase."""
    texts = text_columns(source.text, (c.name for c in source.columns))
    chosen = (source.label, source.embedding, *texts, *getattr(parts, "columns", ()), *source.passed_over)
    rest = [c for c in source.columns if c.role != "split" and c.name not in chosen]
    unused = [short(c.name) for c in rest if source.features_given or not c.used]
    more = len(unused) - MAX_NAMES
    return [f"not used: {', '.join(unused[:MAX_NAMES])}{f' and {more:,} more' * (more > 0)}"] if unused else []


def announce(config: Config, data_dir: Path | None) -> Prepared:
    """Prints the data that a training uses, before it starts, and returns it."""
    from compensate import training

    prepared = training.prepare_run(config, data_dir=data_dir)
    train, source = prepared.train, prepared.train.source
    if source.text:  # networks read texts alone
        source = replace(source, columns=tuple(replace(c, role="ignored") if c.used else c for c in source.columns))
    wrong = f" ({prepared.wrong.mean():.1%} of their labels made wrong)" if prepared.wrong.any() else ""
    parts = [*describe_columns(source, f"{train.num_classes} classes"), f"{len(train):,} samples to train{wrong}"]
    for part, purpose in ((prepared.validation, "validate"), (prepared.test, "test")):
        if part is not None:
            parts.append(f"{len(part):,} to {purpose}")
    if prepared.unlabeled:
        parts.append(f"{prepared.unlabeled:,} without a label left out")
    lines = [f"{prepared.config.data}: {', '.join([*parts, *describe_unused(source)])}"]
    if prepared.clean is not None:
        why = "no noise is injected into them" if prepared.noisy else "their labels are unchecked"
        lines.append(f"{len(prepared.clean):,} more are taken as clean (clean={prepared.config.clean:g}): {why}")
    if prepared.test is not None and prepared.noisy:
        lines.append("no noise is injected into test labels")
    elif prepared.test is not None:
        where = "the test part of the data" if prepared.own_test else "the data, wrong ones included"
        lines.append(f"test labels come from {where}")
    for line in lines:
        say(line, wrap=False)
    return prepared
