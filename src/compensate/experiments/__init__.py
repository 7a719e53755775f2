"""Experiments: each is one command."""
