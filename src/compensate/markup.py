"""Small pieces of HTML for notebooks. Every text is escaped; nothing is fetched and nothing runs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# What is not seen but changes what is: control codes, and signs that turn the direction of writing.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: object, longest: int = 200) -> Html:
    """A text as HTML: markup is shown and not obeyed, and what cannot be seen is a mark.

    >>> escape("<b>&")
    '&lt;b&gt;&amp;'
    """
    if isinstance(text, Html):
        return text
    said = str(text)
    said = said if len(said) <= longest else said[: longest - 1] + "…"
    return Html(html.escape(_UNSEEN.sub("\ufffd", said)))


def element(tag: str, *parts: object, style: str = "") -> Html:
    """An element with escaped content.

    >>> element("b", "1 < 2")
    '<b>1 &lt; 2</b>'
    """
    look = f' style="{html.escape(style)}"' if style else ""
    return Html(f"<{tag}{look}>{''.join(map(escape, parts))}</{tag}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """A table, aligned to the left.

    >>> table(["a"], [["<"]])
    '<table><thead><tr><th style="text-align:left">a</th></tr></thead><tbody><tr><td style="text-align:left">&lt;</td></tr></tbody></table>'
    """
    left = "text-align:left"
    heads = element("tr", *(element("th", cell, style=left) for cell in head))
    lines = (element("tr", *(element("td", cell, style=left) for cell in row)) for row in rows)
    return element("table", element("thead", heads), element("tbody", *lines))
