"""An audit as a notebook shows it: the share of wrong labels, the top suspects, and which labels are mistaken for which."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np

from compensate.auditing.page.fill import content
from compensate.auditing.page.payload import image_type
from compensate.markup import Html, element, escape, table

if TYPE_CHECKING:
    from compensate.auditing.result import Audit

TOP = 10
"""Suspects, and classes of the matrix, that are shown."""


def audit_html(audit: Audit) -> str:
    """The HTML of an audit."""
    rate, what = audit.noise_rate, "values" if audit.regression else "labels"
    headline = element(
        "p",
        element("b", f"{rate.value:.1%}"), f" of {what} look wrong ({rate.low:.1%} to {rate.high:.1%}): ",
        f"{int(audit.mask.sum()):,} of {len(audit):,} flagged in {audit.title}, at {audit.expected_precision:.2f} expected precision",
    )  # fmt: skip
    if audit.config.get("by_chance"):
        headline = element(
            "p", f"The {what} of {audit.title} cannot be predicted from the samples, so none can be judged."
        )
    return element("div", headline, _suspects(audit), "" if audit.regression else _matrix(audit))


def _suspects(audit: Audit) -> Html:
    order = np.argsort(-audit.p_error, kind="stable")[:TOP].tolist()
    given, suggested = audit.names(audit.given), audit.names(audit.suggested)
    rows = [(int(audit.rows[i]), _sample(audit, i), given[i], suggested[i], f"{audit.p_error[i]:.2f}") for i in order]
    return table(("row", "sample", "given", "suggested", "probability of error"), rows)


def _sample(audit: Audit, i: int) -> Html:
    found = content(audit.data, int(audit.position(i)))
    kind = image_type(found.image) if found.image is not None else None
    if found.image is not None and kind is not None:
        source = f"data:image/{kind};base64,{base64.b64encode(found.image).decode()}"
        return Html(f'<img alt="" width="48" height="48" style="image-rendering:pixelated" src="{source}">')
    if found.text is not None:
        return escape(" ".join(found.text.split()), 120)
    if found.fields:
        return escape(", ".join(f"{name} {value}" for name, value in found.fields[:6]), 120)
    return escape(audit.ids[i] if audit.ids else found.missing)


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
    return element(
        "div", element("p", "Flagged labels, given (rows) and suggested (columns):"), table(("", *names), rows)
    )
