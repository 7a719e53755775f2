"""The terminal, as commands write to it: names from the data are shown, and never obeyed."""

from __future__ import annotations

import functools
import inspect
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.prompt import Confirm, Prompt
from rich.segment import Segment

from compensate.data.dataset import Source
from compensate.errors import InputError
from compensate.files import content_digest, decode, is_address

if TYPE_CHECKING:
    from compensate.data import UnclearLabel
    from compensate.training.config import Config
    from compensate.training.preparation import Prepared

# Signs that move the cursor, change colors, or turn the direction of writing; a line end and a tab are harmless.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with a mark in place of every sign that a terminal would obey.

    >>> visible("a\x1b[31mb") == "a\ufffd[31mb"
    True
    """
    return _CONTROL.sub("\ufffd", text)


class Terminal(Console):
    """A console that shows control characters of what it prints as marks; its own colors and bars are unchanged."""

    def print(self, *objects: Any, **options: Any) -> None:
        # Before lines are broken: signs without width would make the console cut letters beside them.
        super().print(*(visible(part) if isinstance(part, str) else part for part in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


def _terminal(**options: Any) -> Terminal:
    return Terminal(highlight=False, **options)


console = _terminal()
errors = _terminal(stderr=True)


def bar_of(what: str, unit: str) -> Progress:
    """A progress bar that counts: `what` is done, how many `unit`s are, the time so far and the time left."""
    return Progress(
        TextColumn(what), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=console, transient=True,
    )  # fmt: skip


BETWEEN = 10.0
"""Seconds between two lines on the same stage where output goes to a file or pipe."""


@contextmanager
def told_stages(started: float) -> Iterator[Callable[[str, int, int], None]]:
    """What to call with a stage, such as "fitting trees", its steps that are done and the number of all.

    A terminal shows a bar for each stage. A file or pipe gets a line when a stage begins, and then one every ten seconds.

    Args:
        started: by `time.perf_counter`.
    """
    bars = Progress(
        TextColumn("{task.description:<9}"), BarColumn(bar_width=20), TextColumn("{task.fields[said]}", markup=False),
        console=console, transient=True,
    )  # fmt: skip
    tasks: dict[str, Any] = {}
    told: dict[str, float] = {}

    def progress(stage: str, done: int, total: int) -> None:
        name, _, what = stage.partition(" ")
        now = time.perf_counter()
        said = " · ".join(part for part in (f"{done:,}/{total:,}", what, clock(now - started)) if part)
        if console.is_terminal:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total, said="")
            bars.update(tasks[name], total=total, completed=done, said=said)
        elif now - told.get(name, -BETWEEN) >= BETWEEN:
            told[name] = now
            console.print(f"{name:<9} {said}", markup=False)

    if not console.is_terminal:
        yield progress
        return
    with bars:
        yield progress


def clock(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock(75.3)
    '1:15'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def option(text: str, *names: str, **more: Any) -> Any:
    """An option without a default value in its help."""
    return typer.Option(*names, help=text, show_default=False, **more)


Data = Annotated[
    str | None,
    typer.Argument(help="Data set: a name (cifar10, sst2, imdb, digits, ...) or a path.", show_default=False),
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
    """The options of every command that trains, in the order of its help; `with_shared` puts them into its signature."""

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
        """All settings by their names in `Config`: those of the file, and over them those of the command line."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*READER, *PLACES)}
        reader = {name: getattr(self, name) for name in READER}
        merged = _over(self.config, settings(named.pop("set_"), reader, **more, **named))
        _refuse_hyper(pairs(self.set_, "--set"), merged.get("method"))
        return merged

    def build(self, merged: Mapping[str, Any]) -> Config:
        """The configuration; a missing data set is the most common slip."""
        if not merged.get("data"):
            raise InputError("no data set is given; write for example: compensate train digits --method logcomp.")
        check_path(str(merged["data"]))
        from compensate.training.config import Config

        asked = Config.of(merged, str(self.config or "the command line"))
        return asked.but(content=content_digest(*(p for p in (asked.data, asked.labels) if p is not None)))


READER = ("label", "text", "ignore", "columns")
"""Options of the reader of a table, which `Config` keeps apart."""

PLACES = ("config", "data_dir")
"""Where things are; no part of a configuration."""


def with_shared(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its first parameter, a `TrainingOptions`, as options after its own.

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
    """The label column as a person at the terminal chooses it; without a terminal the error stands."""
    if not at_terminal():
        raise error
    typer.echo(str(error))
    return Prompt.ask("label column", choices=list(error.candidates), default=error.candidates[0])


def at_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask_merge(alike: str) -> bool:
    """Whether to take classes with alike names for one, as a person at the terminal answers; without a terminal they stay apart."""
    if not alike or not at_terminal():
        return False
    return Confirm.ask(f"These names differ only in case, spacing or Unicode form: {alike}. Take them for one class?")


def check_path(*paths: str | Path | None) -> None:
    """Refuses what can only be a path and is not there, before anything heavy is imported to read it."""
    for path in (p for p in paths if p is not None and not is_address(p)):
        named = isinstance(path, str) and not Path(path).suffix and len(Path(path).parts) == 1
        if not named and not Path(path).expanduser().exists() and not glob(str(path)):
            raise InputError(f"there is no file or folder {path}; check the path.")


def check_reader(encoding: str | None, delimiter: str | None) -> None:
    """Refuses an encoding that is unknown and a delimiter that is none."""
    if encoding is not None:
        decode(b"a", "the file", encoding)
    if delimiter is not None and len(delimiter) != 1:
        raise InputError(f'delimiter is "{delimiter}"; expected one character, such as ";".')


def quoted(path: str | Path) -> str:
    """A path as one word of a command line.

    >>> quoted("my run")
    "'my run'"
    """
    return shlex.quote(str(path))


def value_of(text: str) -> Any:
    """A value as written on a command line: JSON where it is, else the text itself.

    >>> value_of("0.1"), value_of("[64, 64]"), value_of("prox"), value_of("true")
    (0.1, [64, 64], 'prox', True)
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Names and values from texts such as ``lam=0.1``.

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
    """Dotted names as tables: ``model_options.hidden`` is ``hidden`` of ``model_options``.

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
    """Settings by their names in `Config`: named ones, those of --set, and the reader's as a table of their own."""
    others = nested(pairs(set_, "--set"))
    chosen = {name: value for name, value in reader.items() if value is not None}
    return {**named, **others, "data_options": {**others.pop("data_options", {}), **chosen}}


def _refuse_hyper(given: Mapping[str, Any], method: Any) -> None:
    """Refuses hyper-parameters of the method among the settings of the run: they have an option of their own."""
    if not given or not isinstance(method, str):
        return
    from compensate.methods.registry import CONTEXT, find
    from compensate.training.config import Config

    own = {*inspect.signature(find(method).build).parameters} - {*CONTEXT, *(f.name for f in fields(Config))}
    for name in (name for name in given if name in own):
        raise InputError(f"{name} belongs to the method: --hyper {name}={_written(given[name])}.")


def _over(config: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the file, and over them those that are given; tables are joined."""
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


def training_command(given: Mapping[str, Any], **more: Any) -> str:
    """The line that trains with these options: `given` as `TrainingOptions.merged` has them, with other values for some.

    >>> training_command({"data": "my file.csv", "noise": "pair:0.2", "lr": None, "weight_decay": 0.1, "hyper": {"lam": 0.5}})
    "compensate train 'my file.csv' --noise pair:0.2 --set weight_decay=0.1 --hyper lam=0.5"
    """
    from compensate.cli.train import train

    merged = {**given, **more}
    parts = ["compensate", "train", str(merged.pop("data"))]
    parts += _flags(merged.pop("data_options", {}), inspect.signature(train).parameters, "data_options.")
    return shlex.join([*parts, *_flags(merged, inspect.signature(train).parameters)])


def _flags(options: Mapping[str, Any], own: Container[str], prefix: str = "") -> list[str]:
    """Options with a flag of their own, hyper-parameters, and any other by --set."""
    found: list[str] = []
    for name, value in options.items():
        if value is None:
            continue
        if name == "hyper":
            found += [part for key, one in value.items() for part in ("--hyper", f"{key}={_written(one)}")]
        elif isinstance(value, Mapping):
            found += _flags(value, (), f"{prefix}{name}.")
        elif name in own:
            found += [f"--{name.replace('_', '-')}", _written(value)]
        else:
            found += ["--set", f"{prefix}{name}={_written(value)}"]
    return found


def _written(value: Any) -> str:
    """A value as `value_of` reads it."""
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


NAMED = 8
"""Columns of a list."""


def short(text: Any, limit: int = 30) -> str:
    """Safe for a terminal: neither long nor with signs that move the cursor or turn the direction of writing."""
    text = "".join(sign if sign.isprintable() else "\ufffd" for sign in str(text)[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def chosen_columns(source: Source, labels: str) -> list[str]:
    """The columns of text and label, a description of the labels, and the columns that were passed over for them.

    >>> chosen_columns(Source(text="message", label="topic"), "5 classes")
    ['text column "message"', 'label column "topic" (5 classes)']
    """
    text = [f'text column "{source.text}"'] if source.text else []
    passed = [f'not "{short(name)}", which {why}' for name, why in source.passed_over.items()]
    others = ", ".join(map(short, source.runners_up))
    labels += f"; it could also be {others}: --label" if others else ""
    return [*text, f'label column "{source.label}" ({labels})' if source.label else labels, *passed]


def unused_columns(source: Source, parts: Any = None) -> list[str]:
    """The columns that are not read, in one phrase; for texts, how to use the columns that could be features."""
    chosen = (source.label, source.text, *getattr(parts, "columns", ()), *source.passed_over)
    rest = [c for c in source.columns if c.role != "split" and c.name not in chosen]
    unused = [short(c.name) for c in rest if source.features_given or source.text or not c.used]
    if not unused:
        return []
    said = f"not used: {_list(unused)}"
    # A name with a comma in it, or one that is cut, cannot be given.
    free = [c.name for c in rest if c.used and "," not in c.name and short(c.name) == c.name]
    if free and source.text and not source.features_given:
        by = ",".join(free[:NAMED]) + ",…" * (len(free) > NAMED)
        said += f" (texts are judged by the text alone; by columns instead: --columns {quoted(by)})"
    return [said]


def _list(names: list[str]) -> str:
    """The first names, and how many more there are.

    >>> _list(["a", "b"]), _list(list("abcdefghijk"))
    ('a, b', 'a, b, c, d, e, f, g, h and 3 more')
    """
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def announce(config: Config, data_dir: Path | None) -> None:
    """Says what a training is about to use, while a wrong column costs no more than a look."""
    from compensate.training.preparation import prepare_run

    prepared = prepare_run(config, data_dir=data_dir)
    for line in (_data(prepared), _clean(prepared), _test(prepared)):
        if line:
            console.print(line, markup=False, soft_wrap=True)


def _data(prepared: Prepared) -> str:
    train, info = prepared.train, prepared.train.source
    wrong = f" ({prepared.wrong.mean():.1%} of their labels made wrong)" if prepared.wrong.any() else ""
    parts = [*chosen_columns(info, f"{train.num_classes} classes"), f"{len(train):,} samples to train{wrong}"]
    for part, purpose in ((prepared.validation, "validate"), (prepared.test, "test")):
        if part is not None:
            parts.append(f"{len(part):,} to {purpose}")
    if prepared.unlabeled:
        parts.append(f"{prepared.unlabeled:,} without a label left out")
    return f"{prepared.config.data}: {', '.join([*parts, *unused_columns(info)])}"


def _clean(prepared: Prepared) -> str:
    """Where the samples come from that a method takes for clean."""
    if prepared.clean is None:
        return ""
    why = "no noise is injected into them" if prepared.noisy else "nobody has checked their labels"
    return f"{len(prepared.clean):,} more are taken as clean (clean={prepared.config.clean:g}): {why}"


def _test(prepared: Prepared) -> str:
    """What test accuracy is worth: it is of the labels that the data have."""
    if prepared.test is None:
        return ""
    if prepared.noisy:
        return "no noise is injected into test labels"
    if prepared.own_test:
        return "test labels are those of the data's own test part"
    return "test labels are those of the data, wrong ones included"
