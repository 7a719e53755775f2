"""Formulas without a network: the LaTeX of docstrings and pages becomes MathML, which browsers draw themselves.

A hook of mkdocs (`on_page_content`), and an extension of griffe that turns the marks of docstrings (Sphinx's formulas and
references, sessions of the interpreter) into Markdown.
"""

from __future__ import annotations

import html
import re
from typing import Any

import griffe
from latex2mathml.converter import convert

_DISPLAYED = re.compile(r"^([ \t]*)\.\. math::[ \t]*(.*?)(?=\n[ \t]*\n|\Z)", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r":math:`(.+?)`", re.DOTALL)
_ROLE = re.compile(r":(?:func|class|meth|attr|mod|data):`~?(?:[\w.]*\.)?(\w+)`")
_SESSION = re.compile(r"(?:^|(?<=\n))((?:[ \t]*)>>> .*?)(?=\n[ \t]*\n|\Z)", re.DOTALL)
_WRAPPED = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def marked(text: str) -> str:
    """A docstring's marks, as Markdown has them."""
    text = _DISPLAYED.sub(lambda m: f"{m[1]}$$\n{m[1]}{' '.join(m[2].split())}\n{m[1]}$$", text)
    text = _INLINE.sub(lambda m: f"${' '.join(m[1].split())}$", text)
    text = _SESSION.sub(lambda m: f"{_ahead(m[1])}```pycon\n{m[1]}\n{_ahead(m[1])}```", text)
    return _ROLE.sub(r"`\1`", text)


def _ahead(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


class Formulas(griffe.Extension):
    """Rewrites every docstring before it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = marked(obj.docstring.value)


def on_page_content(content: str, **_: Any) -> str:
    """Every formula of a page as MathML."""

    def drawn(match: re.Match[str]) -> str:
        return convert(html.unescape(match[3]).strip(), display="block" if match[2] == "[" else "inline")

    return _WRAPPED.sub(drawn, content)
