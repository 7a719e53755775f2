"""The review page of an audit: one HTML file that works from disk, without a network."""

from __future__ import annotations

from compensate.auditing.page.model import (
    ClassCount,
    Content,
    Curve,
    Estimate,
    Example,
    Histogram,
    Item,
    Page,
    Pair,
)

__all__ = [
    "ClassCount",
    "Content",
    "Curve",
    "Estimate",
    "Example",
    "Histogram",
    "Item",
    "Page",
    "Pair",
]
