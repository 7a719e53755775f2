"""The tables, figures and lists of the paper as commands: `python -m experiments COMMAND`."""
