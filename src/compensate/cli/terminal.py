"""Terminal output: control characters in data are never sent to the terminal."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table

LINE_INTERVAL = 10.0  # seconds between two lines about the same stage, if the output is a file or a pipe
MAX_NAMES = 8  # names shown in a list
# Characters that move the cursor, change colors or reverse the writing direction; newline and tab are harmless.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Replaces every control character by a mark.

    >>> visible("a\x1b[31mb") == "a\ufffd[31mb"
    True
    """
    return _CONTROL.sub("\ufffd", text)


class Terminal(Console):
    """A console that replaces control characters in its input; its own colors and bars are unchanged."""

    def print(self, *objects: Any, **options: Any) -> None:
        # Before line breaking: characters of zero width would make the console cut visible ones.
        super().print(*(visible(part) if isinstance(part, str) else part for part in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


console = Terminal(highlight=False)
errors = Terminal(highlight=False, stderr=True)


def say(text: str, *, wrap: bool = True) -> None:
    """Prints a text as it is, without markup; lines with paths and commands are not to be wrapped."""
    console.print(text, markup=False, soft_wrap=not wrap)


def messages_to_stderr(wanted: bool) -> bool:
    """The callback of --json: standard output is left to the report."""
    console.stderr = wanted
    return wanted


def print_json(report: Any) -> None:
    """Prints a report as one JSON value on standard output, with null for NaN and texts for paths."""
    finite = json.loads(json.dumps(report, default=str), parse_constant=lambda _: None)
    sys.stdout.write(json.dumps(finite, indent=1) + "\n")


def plain_table(*heads: str, **options: Any) -> Table:
    """A table without lines."""
    return Table(*heads, box=None, pad_edge=False, **options)


def bar(share: float, width: int = 30) -> str:
    """A horizontal bar in eighths of a character; of # signs where the terminal lacks blocks.

    >>> bar(0.5, 4)
    '██'
    """
    if console.options.ascii_only:
        return "#" * round(share * width)
    full, part = divmod(round(share * width * 8), 8)
    return "█" * full + " ▏▎▍▌▋▊▉"[part].strip()


def progress_bar(what: str, unit: str) -> Progress:
    """A progress bar with a count, the elapsed time and the remaining time."""
    return Progress(
        TextColumn(what), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=console, transient=True,
    )  # fmt: skip


@contextmanager
def stage_progress(started: float) -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function of a stage such as "fitting trees", the finished steps and their number; `started` is by `time.perf_counter`.

    A terminal shows a bar for each stage. A file or pipe gets a line when a stage begins, then one every ten seconds.
    """
    bars = Progress(
        TextColumn("{task.description:<9}"), BarColumn(bar_width=20), TextColumn("{task.fields[status]}", markup=False),
        console=console, transient=True,
    )  # fmt: skip
    tasks: dict[str, Any] = {}
    printed: dict[str, float] = {}

    def progress(stage: str, done: int, total: int) -> None:
        name, _, what = stage.partition(" ")
        now = time.perf_counter()
        status = " · ".join(part for part in (f"{done:,}/{total:,}", what, clock(now - started)) if part)
        if console.is_terminal:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total, status="")
            bars.update(tasks[name], total=total, completed=done, status=status)
        elif now - printed.get(name, -LINE_INTERVAL) >= LINE_INTERVAL:
            printed[name] = now
            console.print(f"{name:<9} {status}", markup=False)

    with bars if console.is_terminal else nullcontext():
        yield progress


def clock(seconds: float) -> str:
    """Minutes and seconds, such as 1:15."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def short(text: Any, limit: int = 30) -> str:
    """The text without control characters, cut to a limit."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in str(text)[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "decision"), plural(1200, "decision")
    ('1 decision', '1,200 decisions')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def quoted(path: str | Path) -> str:
    """A path as one word of a command line."""
    return shlex.quote(str(path))
