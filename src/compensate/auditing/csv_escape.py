r"""Text that a spreadsheet would evaluate, made harmless on export and restored on import.

A cell that begins with ``=``, ``+``, ``-`` or ``@`` is a formula to a spreadsheet, and a class may well be called
``=HYPERLINK(...)``. Such a text gets a leading apostrophe, which spreadsheets read as "this is text". A text that already
looks guarded gets one more, so that taking one off always restores the original; numbers such as -1 stay as they are.

Where a semicolon parts cells, a spreadsheet takes a line of this file apart at other places than it was put together, and
quotes do not help. So the same is done within a text, after each semicolon, tab and line end.
"""

from __future__ import annotations

import re

# Leading blanks and the wide forms of the signs count too: some programs trim the ones and fold the others.
_FORMULA = re.compile(r"'*[ \t\r\n]*[=+\-@\uff1d\uff0b\uff0d\uff20]|'*[\t\r\n]")
_WITHIN = re.compile(r"(?<=[;\t\r\n])(?='* *[=+\-@\uff1d\uff0b\uff0d\uff20])")
_GUARDED = re.compile(r"(?<=[;\t\r\n])'(?='* *[=+\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def is_number(text: str) -> bool:
    """Whether a text is a decimal number and nothing else.

    >>> is_number("-1.5e3"), is_number("-1+cmd"), is_number("1_000")
    (True, False, False)
    """
    return _NUMBER.fullmatch(text) is not None


def guard(text: str) -> str:
    """The text as it may stand in a file that someone opens in a spreadsheet.

    >>> guard("=1+1"), guard("-1"), guard("'=x"), guard("cat"), guard("a;=1+1")
    ("'=1+1", '-1', "''=x", 'cat', "a;'=1+1")
    """
    first = "'" if _FORMULA.match(text) and not is_number(text) else ""
    return _WITHIN.sub("'", first + text)


def unguard(text: str) -> str:
    """The text before `guard`.

    >>> unguard("'=1+1"), unguard("-1"), unguard("''=x"), unguard("'cat'"), unguard("a;'=1+1")
    ('=1+1', '-1', "'=x", "'cat'", 'a;=1+1')
    """
    text = _GUARDED.sub("", text)
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
