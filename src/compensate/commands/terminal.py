"""The terminal, as commands write to it: names from the data are shown, and never obeyed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment

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
