"""HTML for notebooks. Every text is escaped; nothing is fetched or executed."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# Control characters and marks of the writing direction.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: object, longest: int = 200) -> Html:
    """A text as HTML, with markup escaped and invisible characters replaced.

    >>> escape("<b>&")
    '&lt;b&gt;&amp;'
    """
    if isinstance(text, Html):
        return text
    plain = str(text)
    plain = plain if len(plain) <= longest else plain[: longest - 1] + "…"
    return Html(html.escape(_INVISIBLE.sub("\ufffd", plain)))


def element(tag: str, *parts: object, style: str = "") -> Html:
    """An element with escaped content.

    >>> element("b", "1 < 2")
    '<b>1 &lt; 2</b>'
    """
    attributes = f' style="{html.escape(style)}"' if style else ""
    return Html(f"<{tag}{attributes}>{''.join(map(escape, parts))}</{tag}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """A table, aligned to the left.

    >>> table(["a"], [["<"]])
    '<table><thead><tr><th style="text-align:left">a</th></tr></thead><tbody><tr><td style="text-align:left">&lt;</td></tr></tbody></table>'
    """
    left = "text-align:left"
    heads = element("tr", *(element("th", cell, style=left) for cell in head))
    lines = (element("tr", *(element("td", cell, style=left) for cell in row)) for row in rows)
    return element("table", element("thead", heads), element("tbody", *lines))
