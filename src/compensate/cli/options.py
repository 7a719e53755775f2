"""Options that several commands share, and the text that describes a training."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.prompt import Confirm, Prompt

from compensate.cli.terminal import MAX_NAMES, at_terminal, console, name_list, quoted, short
from compensate.data.dataset import Source
from compensate.errors import InputError
from compensate.files import content_digest, decode, is_address

if TYPE_CHECKING:
    from compensate.data import UnclearLabel
    from compensate.training.config import Config
    from compensate.training.preparation import Prepared


def option(text: str, *names: str, **more: Any) -> Any:
    """An option without a default value in its help."""
    return typer.Option(*names, help=text, show_default=False, **more)


Data = Annotated[
    str | None,
    typer.Argument(help="Data set: a path, or a name such as digits.", show_default=False),
]
DataDir = Annotated[Path | None, option("Data folder of named data sets [env: COMPENSATE_DATA].")]
ConfigFile = Annotated[Path | None, option("TOML file of settings; the command line takes precedence.", "--config")]
Noise = Annotated[str | None, option("Inject label noise, e.g. pair:0.2 or random:0.4.")]
Model = Annotated[str | None, option("Model: resnet20, bilstm, cnn, mlp, ... [default: by the kind of data].")]
Epochs = Annotated[int | None, option("Training epochs.")]
BatchSize = Annotated[int | None, option("Batch size, over all processes.")]
Rate = Annotated[float | None, option("Learning rate.", "--lr")]
Precision = Annotated[str | None, option("Mixed precision: no, bf16 or fp16.")]
Optimizer = Annotated[str | None, option("Optimizer: sgd, adam or adamw.")]
Schedule = Annotated[str | None, option("Learning rate schedule: constant, cosine, linear or step.")]
Seed = Annotated[int | None, option("Random seed.")]
Limit = Annotated[int | None, option("Maximum number of training samples.")]
Vectors = Annotated[str | None, option("Word vectors: glove.6B.100d in the data folder, or a file.")]
MaxLength = Annotated[int | None, option("Maximum number of words per text.")]
Label = Annotated[str | None, option("Label column of a table.")]
Text = Annotated[str | None, option("Text column of a table.")]
Ignore = Annotated[str | None, option("Columns to leave out, e.g. id,url.")]
Columns = Annotated[str | None, option("Feature columns, e.g. age,town [default: all others].")]
Hyper = Annotated[list[str] | None, option("Hyper-parameter of the method, e.g. lam=0.1; may be repeated.")]
Set = Annotated[list[str] | None, option("Any other setting, e.g. weight_decay=1e-4; may be repeated.", "--set")]
Workers = Annotated[int | None, option("Worker processes [default: number of cores].", min=1)]
Backend = Annotated[str | None, option("Where to compute: local, or ray, for a cluster [default: local].")]
Encoding = Annotated[str | None, option("File encoding [default: utf-8].")]
Delimiter = Annotated[str | None, option("Column delimiter [default: detected].")]


@dataclass(frozen=True)
class TrainingOptions:
    """Options of every command that trains; `with_shared` adds them to its signature."""

    data: Data = None
    noise: Noise = None
    model: Model = None
    epochs: Epochs = None
    batch_size: BatchSize = None
    lr: Rate = None
    optimizer: Optimizer = None
    schedule: Schedule = None
    seed: Seed = None
    limit: Limit = None
    vectors: Vectors = None
    max_length: MaxLength = None
    label: Label = None
    text: Text = None
    ignore: Ignore = None
    columns: Columns = None
    set_: Set = None
    config: ConfigFile = None
    data_dir: DataDir = None

    def merged(self, **more: Any) -> dict[str, Any]:
        """All settings by their names in `Config`; the command line overrides the file."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*READER, *PLACES)}
        reader = {name: getattr(self, name) for name in READER}
        merged = _over(self.config, settings(named.pop("set_"), reader, **more, **named))
        _refuse_hyper(pairs(self.set_, "--set"), merged.get("method"))
        return merged

    def build(self, merged: Mapping[str, Any]) -> Config:
        """The configuration."""
        if not merged.get("data"):
            raise InputError("no data set is given; write for example: compensate train digits --method logcomp.")
        check_path(str(merged["data"]))
        from compensate.training.config import Config

        asked = Config.of(merged, str(self.config or "the command line"))
        return asked.replace(content=content_digest(*(p for p in (asked.data, asked.labels) if p is not None)))


READER = ("label", "text", "ignore", "columns")
"""Options of the table reader, which `Config` stores separately."""

PLACES = ("config", "data_dir")
"""Paths, which are not part of a configuration."""


def with_shared(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the fields of `TrainingOptions`, the first parameter of the command, as options after its own.

    >>> @with_shared
    ... def example(shared: TrainingOptions, *, quiet: bool = False) -> None: ...
    >>> list(inspect.signature(example).parameters)[:4]
    ['data', 'quiet', 'noise', 'model']
    """
    hints = get_type_hints(command, include_extras=True)
    shared = get_type_hints(TrainingOptions, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(f.name, keyword, default=f.default, annotation=shared[f.name])
        for f in fields(TrainingOptions)
    ]
    first, *rest = parameters
    parameters = [first, *(one.replace(kind=keyword, annotation=hints[one.name]) for one in own), *rest]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        options = TrainingOptions(**{f.name: given.pop(f.name) for f in fields(TrainingOptions)})
        command(options, **given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


def ask_label(error: UnclearLabel) -> str:
    """Asks for the label column at a terminal; raises the error elsewhere."""
    if not at_terminal():
        raise error
    typer.echo(str(error))
    return Prompt.ask("label column", choices=list(error.candidates), default=error.candidates[0])


def ask_merge(alike: str) -> bool:
    """Asks at a terminal whether to merge similar class names; False elsewhere."""
    if not alike or not at_terminal():
        return False
    return Confirm.ask(f"These names differ only in case, spacing or Unicode form: {alike}. Take them for one class?")


def check_path(*paths: str | Path | None) -> None:
    """Refuses a path that does not exist, before heavy libraries are imported."""
    for path in (p for p in paths if p is not None and not is_address(p)):
        named = isinstance(path, str) and not Path(path).suffix and len(Path(path).parts) == 1
        if not named and not Path(path).expanduser().exists() and not glob(str(path)):
            raise InputError(f"{path} does not exist; check the path.")


def check_reader(encoding: str | None, delimiter: str | None) -> None:
    """Refuses an unknown encoding and a delimiter that is not one character."""
    if encoding is not None:
        decode(b"a", "the file", encoding)
    if delimiter is not None and len(delimiter) != 1:
        raise InputError(f'delimiter is "{delimiter}"; expected one character, such as ";".')


def value_of(text: str) -> Any:
    """Parses a value of the command line: JSON if it is valid, else the text.

    >>> value_of("0.1"), value_of("[64, 64]"), value_of("prox"), value_of("true")
    (0.1, [64, 64], 'prox', True)
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Parses texts such as ``lam=0.1`` to names and values.

    >>> pairs(["lam=0.1", "update=prox"], "--hyper")
    {'lam': 0.1, 'update': 'prox'}
    """
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            example = "weight_decay=1e-4" if option == "--set" else "lam=0.1"
            raise InputError(
                f'{option} "{text}" is not a name, an equals sign and a value, such as {option} {example}.'
            )
        found[name.strip()] = value_of(value.strip())
    return found


def nested(found: Mapping[str, Any]) -> dict[str, Any]:
    """Nests dotted names: ``model_options.hidden`` becomes ``hidden`` of ``model_options``.

    >>> nested({"model_options.hidden": 100, "seed": 1})
    {'model_options': {'hidden': 100}, 'seed': 1}
    """
    tree: dict[str, Any] = {}
    for name, value in found.items():
        head, dot, rest = name.partition(".")
        if dot:
            tree.setdefault(head, {})[rest] = value
        else:
            tree[head] = value
    return tree


def settings(set_: Sequence[str] | None, reader: Mapping[str, Any], **named: Any) -> dict[str, Any]:
    """Settings by their names in `Config`: named ones, the pairs of --set, and the options of the reader."""
    others = nested(pairs(set_, "--set"))
    chosen = {name: value for name, value in reader.items() if value is not None}
    return {**named, **others, "data_options": {**others.pop("data_options", {}), **chosen}}


def _refuse_hyper(given: Mapping[str, Any], method: Any) -> None:
    """Refuses hyper-parameters of the method in --set; they belong to --hyper."""
    if not given or not isinstance(method, str):
        return
    from compensate.methods.composition import find
    from compensate.methods.registry import CONTEXT
    from compensate.training.config import Config

    own = {*inspect.signature(find(method).build).parameters} - {*CONTEXT, *(f.name for f in fields(Config))}
    for name in (name for name in given if name in own):
        raise InputError(f"{name} belongs to the method: --hyper {name}={written(given[name])}.")


def _over(config: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the file, updated by the given ones; nested tables are merged."""
    merged = {}
    if config is not None:
        from compensate.training.config import read_toml

        merged = {k.replace("-", "_"): v for k, v in read_toml(config).items()}
    for name, value in given.items():
        if value is None or value == {}:
            continue
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            value = {**merged[name], **value}
        merged[name] = value
    return merged


def program() -> str:
    """How this command line was started: ``compensate``, or ``python -m experiments`` in a checkout."""
    path = Path(sys.argv[0])
    as_module = path.name == "__main__.py" and path.parent.name in ("compensate", "experiments")
    return f"python -m {path.parent.name}" if as_module else "compensate"


def written(value: Any) -> str:
    """A value as `value_of` reads it."""
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def describe_columns(source: Source, labels: str) -> list[str]:
    """The columns of text and label, a description of the labels, and the columns that were passed over for them.

    >>> describe_columns(Source(text="message", label="topic"), "5 classes")
    ['text column "message"', 'label column "topic" (5 classes)']
    """
    text = [f'text column "{source.text}"'] if source.text else []
    passed = [f'not "{short(name)}", which {why}' for name, why in source.passed_over.items()]
    others = ", ".join(map(short, source.runners_up))
    labels += f"; it could also be {others}: --label" if others else ""
    return [*text, f'label column "{source.label}" ({labels})' if source.label else labels, *passed]


def describe_unused(source: Source, parts: Any = None) -> list[str]:
    """The columns that are not read, in one phrase; for texts, how to use the columns that could be features."""
    chosen = (source.label, source.text, *getattr(parts, "columns", ()), *source.passed_over)
    rest = [c for c in source.columns if c.role != "split" and c.name not in chosen]
    unused = [short(c.name) for c in rest if source.features_given or source.text or not c.used]
    if not unused:
        return []
    said = f"not used: {name_list(unused)}"
    # A name with a comma in it, or one that is cut, cannot be given.
    free = [c.name for c in rest if c.used and "," not in c.name and short(c.name) == c.name]
    if free and source.text and not source.features_given:
        by = ",".join(free[:MAX_NAMES]) + ",…" * (len(free) > MAX_NAMES)
        said += f" (texts are judged by the text alone; by columns instead: --columns {quoted(by)})"
    return [said]


def announce(config: Config, data_dir: Path | None) -> Prepared:
    """Prints the data that a training uses, before it starts, and returns it."""
    from compensate.training.preparation import prepare_run

    prepared = prepare_run(config, data_dir=data_dir)
    for line in (_data(prepared), _clean(prepared), _test(prepared)):
        if line:
            console.print(line, markup=False, soft_wrap=True)
    return prepared


def _data(prepared: Prepared) -> str:
    train, info = prepared.train, prepared.train.source
    wrong = f" ({prepared.wrong.mean():.1%} of their labels made wrong)" if prepared.wrong.any() else ""
    parts = [*describe_columns(info, f"{train.num_classes} classes"), f"{len(train):,} samples to train{wrong}"]
    for part, purpose in ((prepared.validation, "validate"), (prepared.test, "test")):
        if part is not None:
            parts.append(f"{len(part):,} to {purpose}")
    if prepared.unlabeled:
        parts.append(f"{prepared.unlabeled:,} without a label left out")
    return f"{prepared.config.data}: {', '.join([*parts, *describe_unused(info)])}"


def _clean(prepared: Prepared) -> str:
    """The source of the samples that a method treats as clean."""
    if prepared.clean is None:
        return ""
    why = "no noise is injected into them" if prepared.noisy else "their labels are unchecked"
    return f"{len(prepared.clean):,} more are taken as clean (clean={prepared.config.clean:g}): {why}"


def _test(prepared: Prepared) -> str:
    """The quality of the test labels."""
    if prepared.test is None:
        return ""
    if prepared.noisy:
        return "no noise is injected into test labels"
    if prepared.own_test:
        return "test labels come from the test part of the data"
    return "test labels come from the data, wrong ones included"
