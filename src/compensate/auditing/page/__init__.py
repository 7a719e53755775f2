"""The review page of an audit, one HTML file that works from disk without a network, and the summary for notebooks.

Styles and scripts are joined from the files in ``assets`` into the page. A Content-Security-Policy names the hash of each: no other script
runs, and nothing can be fetched or sent, except to the server of `compensate review` if it serves the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from compensate.auditing.content import embedded_image, sample_content
from compensate.auditing.page.data import command, page_of, payload, read_payload, to_json
from compensate.files import make_folder, write_atomically
from compensate.markup import Html, element, escape, table

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

__all__ = ["audit_html", "command", "page_of", "payload", "read_payload", "render_page", "write_page"]

STYLES = ("base.css", "frame.css", "overview.css", "review.css", "issues.css", "dialogs.css")
SCRIPTS = (
    "dom.js", "words.js", "data.js", "sync.js", "store.js", "queue.js", "csv.js", "content.js", "charts.js", "overview.js",
    "issues.js", "strip.js", "dialogs.js", "review.js", "main.js",
)  # fmt: skip

TOP = 10  # suspects and classes in the summary for notebooks


def write_page(page: Mapping[str, Any], path: str | Path) -> Path:
    """Writes a page, whole or not at all."""
    path = Path(path)
    make_folder(path.parent)
    write_atomically(path, render_page(page).encode())
    return path


def render_page(page: Mapping[str, Any]) -> str:
    """The HTML of a page; `page_of` makes the page of an audit."""

    def asset(name: str) -> str:
        return (resources.files("compensate.auditing.page") / "assets" / name).read_text("utf-8")

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    style = "\n".join(map(asset, STYLES))
    script = '(() => {\n"use strict";\n' + "\n".join(map(asset, SCRIPTS)) + "})();\n"
    policy = (
        "default-src 'none'", f"script-src '{digest(script)}'", f"style-src '{digest(style)}'", "img-src data:",
        "connect-src 'self'", "base-uri 'none'", "form-action 'none'",
    )  # fmt: skip
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(asset("page.html"))
    # Only our own files and escaped JSON are marked as safe; the template escapes the title.
    return template.render(
        title=page["title"].encode("utf-8", "replace").decode(),
        policy="; ".join(policy),
        style=Markup(style),  # nosec B704
        script=Markup(script),  # nosec B704
        data=Markup(to_json(payload(page))),  # nosec B704
    )


def audit_html(audit: Audit) -> str:
    """The HTML summary of an audit for notebooks: noise rate, top suspects and confused classes."""
    rate, what = audit.noise_rate, "values" if audit.regression else "labels"
    headline = element(
        "p",
        element("b", f"{rate.value:.1%}"), f" of {what} look wrong ({rate.low:.1%} to {rate.high:.1%}): ",
        f"{int(audit.mask.sum()):,} of {len(audit):,} flagged in {audit.title}, at {audit.expected_precision:.2f} expected precision",
    )  # fmt: skip
    if audit.provenance.by_chance:
        headline = element(
            "p", f"The {what} of {audit.title} cannot be predicted from the samples, so none can be judged."
        )
    order = np.argsort(-audit.p_error, kind="stable")[:TOP].tolist()
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)
    rows = [(int(audit.rows[i]), _sample(audit, i), given[i], suggested[i], f"{audit.p_error[i]:.2f}") for i in order]
    suspects = table(("row", "sample", "given", "suggested", "probability of error"), rows)
    return element("div", headline, suspects, "" if audit.regression else _matrix(audit))


def _sample(audit: Audit, i: int) -> Html:
    content = sample_content(audit.data, int(audit.position(i)))
    image = None if content.image is None else embedded_image(content.image)
    if image is not None:
        size = 'width="48" height="48" style="image-rendering:pixelated"'
        return Html(f'<img alt="" {size} src="data:image/{image}">')
    if content.text is not None:
        return escape(" ".join(content.text.split()), 120)
    if content.fields:
        return escape(", ".join(f"{name} {value}" for name, value in content.fields[:6]), 120)
    return escape(audit.ids[i] if audit.ids else content.missing)


def _matrix(audit: Audit) -> Html:
    """Flagged rows by given and suggested label, for the classes with most of them."""
    given, suggested = audit.given[audit.mask], audit.suggested[audit.mask]
    if not len(given):
        return Html("")
    often = np.bincount(np.concatenate([given, suggested]), minlength=len(audit.classes))
    shown = np.sort(np.argsort(-often, kind="stable")[: min(TOP, int((often > 0).sum()))])
    counts = np.zeros((len(audit.classes), len(audit.classes)), np.int64)
    np.add.at(counts, (given, suggested), 1)
    names = [escape(audit.classes[c], 40) for c in shown]
    rows = [(element("b", name), *(counts[c, d] or "" for d in shown)) for name, c in zip(names, shown, strict=True)]
    heading = element("p", "Flagged labels, given (rows) and suggested (columns):")
    return element("div", heading, table(("", *names), rows))
