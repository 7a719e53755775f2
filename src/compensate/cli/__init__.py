"""The command line: `compensate COMMAND`."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from compensate._version import __version__
from compensate.cli.apply import apply
from compensate.cli.audit import audit
from compensate.cli.check import check
from compensate.cli.compare import compare, tune
from compensate.cli.consensus import consensus
from compensate.cli.demo import demo
from compensate.cli.export import export
from compensate.cli.review import review
from compensate.cli.terminal import console, errors, visible
from compensate.cli.train import train
from compensate.errors import InputError


class Commands(TyperGroup):
    """A group of commands that prints a message on Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            errors.print("stopped by Ctrl-C")
            raise typer.Exit(130) from None


app = typer.Typer(
    name="compensate",
    cls=Commands,
    help="Train on labels you cannot fully trust, and find the ones that are wrong.\n\n**Example:** `compensate audit reviews.csv`",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for command in (audit, review, apply, check, export, consensus, train, compare, tune):
    app.command()(command)


def main() -> None:
    """Runs the command line."""
    run(app)


def run(commands: typer.Typer) -> None:
    """Runs commands; invalid input ends in an error message instead of a stack trace."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding other than UTF-8 may lack arrows
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            commands()
    except InputError as error:
        errors.print(Text.assemble(("error: ", "bold red"), visible(str(error))))
        sys.exit(2)
    except MemoryError as error:
        said = f"there is not enough memory: {error}" if str(error) else "there is not enough memory"
        errors.print(
            Text.assemble(
                ("error: ", "bold red"), f"{said}. Give fewer rows or columns, or read them in pieces (--memory)."
            )
        )
        sys.exit(2)
    except OSError as error:
        # The disk is full or the folder read-only; files are written atomically.
        errors.print(Text.assemble(("error: ", "bold red"), visible(str(error))))
        sys.exit(2)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Prints a UserWarning as a note, without file and line; other warnings as Python does."""
    if category is UserWarning:
        errors.print(Text.assemble(("note: ", "yellow"), visible(str(message))))
    else:
        errors.print(warnings.formatwarning(message, category, filename, lineno, line).rstrip(), markup=False)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Method whose page to print.", show_default=False)] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the pages of all methods to this file.", show_default=False)
    ] = None,
) -> None:
    """List all methods with their place in the taxonomy, or print the page of one.

    **Example:** `compensate methods logcomp`
    """
    from compensate.methods import METHODS, find, pages

    if markdown is not None:
        pages.write_pages(markdown)
        console.print(f"{len(METHODS)} methods: {markdown}")
    elif name is not None:
        console.print(pages.page(find(name)), markup=False, soft_wrap=True)
    else:
        table = Table("method", "summary", "taxonomy", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.columns[0].no_wrap = True
        for row in METHODS.values():
            mark = "" if row.kind == "compensation" else f"({row.kind})"
            table.add_row(row.name.replace("_", "-"), pages.first_sentence(row), mark or str(row.taxonomy))
        console.print(table)
        console.print("\nthe page of one:  compensate methods NAME")


app.command()(demo)
