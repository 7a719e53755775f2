"""The review page of an audit: one HTML file that works from disk, without a network.

>>> item = Item(7, "cat", "dog", score=3.2, p_error=0.97, flagged=True, content=Content(text="woof"))
>>> page = Page("pets.csv", "text", ("cat", "dog"), rows=100, items=(item,), noise_rate=Estimate(0.01, 0.0, 0.03))
>>> render_page(page).startswith("<!doctype html>")
True
"""

from __future__ import annotations

from compensate.auditing.page.model import (
    ClassCount,
    ClassPair,
    Content,
    Curve,
    Estimate,
    Example,
    Histogram,
    IssueGroup,
    IssueRow,
    Item,
    Kind,
    Page,
    PageProvenance,
    Since,
    Values,
    thumbnail,
)
from compensate.auditing.page.write import render_page, write_page

__all__ = [
    "ClassCount",
    "ClassPair",
    "Content",
    "Curve",
    "Estimate",
    "Example",
    "Histogram",
    "IssueGroup",
    "IssueRow",
    "Item",
    "Kind",
    "Page",
    "PageProvenance",
    "Since",
    "Values",
    "render_page",
    "thumbnail",
    "write_page",
]
