"""`python -m experiments COMMAND`, in the folder of the checkout."""

from __future__ import annotations

import typer

import experiments.data  # noqa: F401  the public data sets by name
from compensate.cli import SETTINGS, Commands, run
from compensate.cli.audit import audit
from compensate.cli.compare import compare, tune
from compensate.cli.train import train
from experiments.commands.choices import choices
from experiments.commands.defaults import defaults
from experiments.commands.figure import figure
from experiments.commands.gallery import gallery
from experiments.commands.graph import graph
from experiments.commands.human import human
from experiments.commands.leading import leading
from experiments.commands.reproduce import reproduce
from experiments.commands.search import search
from experiments.commands.sentences import sentences
from experiments.commands.suspects import suspects
from experiments.commands.taxonomy import taxonomy
from experiments.demo_search import demo_search

app = typer.Typer(
    cls=Commands,
    name="python -m experiments",
    help="Reproduce the tables, figures and sentences of the paper, and the studies behind the defaults. The commands train, compare, tune and audit "
    "equal the commands of `compensate` and also accept public data sets by name: `python -m experiments train cifar10`.",
    no_args_is_help=True,
    **SETTINGS,
)
for command in (
    reproduce,
    human,
    leading,
    suspects,
    defaults,
    choices,
    figure,
    sentences,
    graph,
    search,
    taxonomy,
    gallery,
    demo_search,
):
    app.command()(command)
for command in (train, compare, tune, audit):
    app.command(rich_help_panel="Commands of compensate")(command)


def main() -> None:
    """Runs the command line."""
    run(app)


if __name__ == "__main__":
    main()
