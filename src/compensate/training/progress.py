"""What a person sees while a run trains: one line."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """A bar over all steps, with loss, accuracy and the share of compensated samples beside it.

    Without a console it is silent, so that the loop need not ask.
    """

    def __init__(self, console: Console | None, epochs: int, total: int, done: int = 0) -> None:
        self.epochs = epochs
        self._drawn = 0.0
        self._progress: Progress | None = None
        if console is not None:
            self._progress = Progress(
                TextColumn("training"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[said]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=total, completed=done, said="")

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._progress is not None:
            self._progress.stop()

    def step(self, epoch: int, done: int, totals: Any) -> None:
        """Shows where the run stands, at most ten times a second: reading a number off a device makes it wait."""
        if self._progress is None or time.monotonic() - self._drawn < 0.1:
            return
        self._drawn = time.monotonic()
        loss, right, moved, count = totals.tolist()
        count = max(count, 1)
        self._progress.update(
            self._task,
            completed=done,
            said=f"epoch {epoch + 1}/{self.epochs} · loss {loss / count:.3f} · accuracy {right / count:.3f} · "
            f"compensated {moved / count:.1%}",
        )
