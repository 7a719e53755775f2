"""The command line: `compensate COMMAND`."""

from __future__ import annotations

import importlib
import io
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from compensate._version import __version__
from compensate.cli.terminal import console, errors, visible
from compensate.errors import InputError

COMMANDS = {
    "audit": "Find the labels that look wrong, and write a page to review them on.",
    "review": "Open the review page, and save decisions as they are made.",
    "apply": "Write the data with the corrected labels.",
    "check": "Judge new and changed labels by the model of an audit, without training.",
    "export": "Export the suspects to an annotation tool; `compensate apply` reads the decisions made there.",
    "card": "Describe the labels of an audited data set, for its README.",
    "consensus": "Find the consensus of several annotators, how good each is, and which items to label again.",
    "train": "Train a model with any method; the run can be interrupted and resumed exactly.",
    "compare": "Compare methods over several seeds, in worker processes with one thread each.",
    "tune": "Search the hyper-parameters of a method, judged on held-out labels as noisy as the training labels.",
    "methods": "List all methods with their place in the taxonomy, or print the page of one.",
    "demo": "Find wrong labels in a real data set: digits, 20 % of them mislabeled on purpose.",
}
"""Each command with the first sentence of its help, in the order of the help."""

MODULES = {"export": "apply", "tune": "compare", "demo": "compare"}
"""The modules of commands; others are in the module of their name."""

PANELS = {
    "Data": "label text ignore columns features size split encoding delimiter data_dir limit vectors max_length annotators annotator item",
    "Labels": "labels labels_columns labels_key task missing merge_alike describe opinion noise clean",
    "Models": "encoder probs model finetune crossfit method methods hyper preset set_ config teacher",
    "Training": "epochs batch_size lr optimizer schedule patience accumulate average seed seeds baseline trials",
    "Findings": "only test precision budget with_ top",
    "Size and computing": "memory backend workers every resume",
    "Changes": "accept swap drop unclear merge units fill undo rematch",
    "Output": "out layout force tracker quiet json_",
}
"""The sections of the help of long commands, with the names of their options."""
MAX_UNGROUPED = 12  # the most parameters of a command without sections

SETTINGS: Any = {"pretty_exceptions_enable": False, "rich_markup_mode": "markdown"}


class Command(TyperCommand):
    """A command whose module is imported when it is called: the list of commands needs no library."""

    def load(self) -> Any:
        """The command with its options."""
        name = str(self.name)
        commands = typer.Typer(add_completion=False, **SETTINGS)
        commands.command()(getattr(importlib.import_module(f"compensate.cli.{MODULES.get(name, name)}"), name))
        command = typer.main.get_command(commands)
        command.params = in_panels(command.params)
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the loaded command."""
        return self.load().make_context(info_name, args, parent, **extra)


def in_panels(params: Sequence[Any]) -> list[Any]:
    """The parameters of a command in the order of their sections, if there are many."""
    panel = {name: title for title, names in PANELS.items() for name in names.split()}
    if len(params) > MAX_UNGROUPED:
        for param in params:
            if param.param_type_name == "option":
                param.rich_help_panel = param.rich_help_panel or panel.get(param.name)
    order = [None, *PANELS]
    return sorted(params, key=lambda param: order.index(param.rich_help_panel))


class Commands(TyperGroup):
    """A group of commands that prints a message on Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        console.stderr = False
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
    **SETTINGS,
)
for command, summary in COMMANDS.items():
    app.command(command, cls=Command, help=summary)(lambda: None)


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
    except (InputError, MemoryError, OSError) as error:
        said = str(error)
        if isinstance(error, MemoryError):
            said = f"there is not enough memory{f': {error}' if said else ''}. Give fewer rows or columns, or read them in pieces (--memory)."
        errors.print(Text.assemble(("error: ", "bold red"), visible(said)))
        sys.exit(2)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:  # fmt: skip
    """Prints a UserWarning as a note, without file and line; other warnings as Python does."""
    if category is UserWarning:
        errors.print(Text.assemble(("note: ", "yellow"), visible(str(message))))
    else:
        errors.print(warnings.formatwarning(message, category, filename, lineno).rstrip(), markup=False)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:  # fmt: skip
    pass
