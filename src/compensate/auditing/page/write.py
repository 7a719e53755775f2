"""From a `Page` to one HTML file that needs nothing else.

Style and scripts are joined from the small files in ``assets``, in the order below, and stand inside the page. A
Content-Security-Policy names the hash of each: a script that is not ours, wherever it came from, does not run, and
nothing can be fetched or sent, except to the server of `compensate review` where the page comes from it. The same file is
served and opened from disk.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from compensate.auditing.page.model import Page
from compensate.auditing.page.payload import payload, to_json
from compensate.files import make_folder, write_atomically

STYLES = ("base.css", "frame.css", "overview.css", "review.css", "issues.css", "dialogs.css")
SCRIPTS = (
    "dom.js",
    "words.js",
    "data.js",
    "sync.js",
    "store.js",
    "queue.js",
    "csv.js",
    "content.js",
    "charts.js",
    "overview.js",
    "issues.js",
    "strip.js",
    "dialogs.js",
    "review.js",
    "main.js",
)


def write_page(page: Page, path: str | Path) -> Path:
    """Writes the page to a file, whole or not at all.

    >>> import tempfile
    >>> from compensate.auditing.page import Estimate
    >>> page = Page("a.csv", "text", ("x", "y"), 9, (), Estimate(0.0, 0.0, 0.1))
    >>> write_page(page, Path(tempfile.mkdtemp()) / "report.html").name
    'report.html'
    """
    path = Path(path)
    make_folder(path.parent)
    write_atomically(path, render_page(page).encode())
    return path


def render_page(page: Page) -> str:
    """The HTML of the page."""
    style = _joined(STYLES)
    script = '(() => {\n"use strict";\n' + _joined(SCRIPTS) + "})();\n"
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_asset("page.html"))
    # Only our own files and escaped JSON are marked as safe; the title goes through the template's escaping.
    return template.render(
        title=page.title.encode("utf-8", "replace").decode(),
        policy=_policy(style, script),
        style=Markup(style),  # nosec B704
        script=Markup(script),  # nosec B704
        data=Markup(to_json(payload(page))),  # nosec B704
    )


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _joined(names: tuple[str, ...]) -> str:
    return "\n".join(_asset(name) for name in names)


def _asset(name: str) -> str:
    return (resources.files("compensate.auditing.page") / "assets" / name).read_text("utf-8")
