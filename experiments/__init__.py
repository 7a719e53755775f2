"""The paper's experiments, run from a checkout: every table, figure and list of sentences is one command."""
