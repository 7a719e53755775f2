"""`compensate card`: describe the labels of an audited data set for its README."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from compensate._version import __version__
from compensate.auditing.decisions import BULK, CORRECTIONS, Journal
from compensate.auditing.result import Audit
from compensate.auditing.sampling import describe_looks
from compensate.cli import options as o
from compensate.cli.terminal import plural, print_json, say
from compensate.errors import InputError, check
from compensate.files import read_text, write_atomically

BEGIN, END = "<!-- labels: written by compensate card -->", "<!-- end of labels -->"
SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M", 10_000_000: "1M<n<10M"}
"""Size categories of dataset cards, by their upper end."""

LIMITS = {
    "labels alone": "The share is an estimate from the labels and the samples alone. It is too low where models learn systematic errors; the "
    "interval allows for that.",
    "flags": "Labels that were not reviewed are judged by models. Some flags are wrong, and some wrong labels are not flagged.",
}


def card(
    run: Annotated[Path, typer.Argument(help="Run folder that `compensate audit` wrote.")],
    out: Annotated[Path | None, o.option(
        "README to write; of an existing one, only the section on labels is replaced [default: print].", "--out", "-o"
    )] = None,
    reviewers: Annotated[int | None, o.option("Number of people who reviewed labels; a run does not store it.")] = None,
    json_: o.Json = False,
) -> None:  # fmt: skip
    """Describe the labels of an audited data set, for its README.

    **Example:** `compensate card runs/reviews-3f2a --out README.md`

    The card is Markdown with the metadata of a Hugging Face dataset card.
    """
    check(reviewers is None or reviewers > 0, "a number of people from 1 on", **{"--reviewers": reviewers})
    o.check_path(run)
    found = Audit.load(run)
    counts = count_decisions(Journal(run))
    section = describe_labels(found, counts, reviewers)
    before = read_text(out) if out is not None and out.exists() else front_matter(found)
    head, begin, rest = before.partition(BEGIN)
    if begin and END not in rest:
        raise InputError(f'{out} has the line "{BEGIN}" without "{END}". Remove the first, or restore the last.')
    end = "\r\n" if "\r\n" in before else "\n"
    head, tail = (head, rest.partition(END)[2]) if begin else (head.rstrip() + 2 * end, end)
    text = head + f"{BEGIN}\n{section}\n{END}".replace("\n", end) + tail
    if out is not None:
        write_atomically(out, text.encode())
        say(f"card: {out}", wrap=False)
    if json_:
        print_json({"card": out, **found.figures, "decided": counts[0], "decisions": counts[1]})
    elif out is None:
        typer.echo(text, nl=False)


def front_matter(found: Audit) -> str:
    """The metadata and the title of a new card; JSON texts are YAML too."""
    rows = found.provenance.rows or len(found)
    size = next((name for most, name in SIZES.items() if rows < most), "10M<n<100M")
    fields = {"pretty_name": found.title, "size_categories": [size], "tags": ["label-errors"]}
    lines = [f"{name}: {json.dumps(value, ensure_ascii=True)}" for name, value in fields.items()]
    return "\n".join(("---", *lines, "---", "", f"# {_plain(found.title)}", ""))


def count_decisions(journal: Journal) -> tuple[dict[str, int], dict[str, int]]:
    """The number of decisions by the way they were made, and by their effect."""
    latest = [event for event in journal.latest.values() if event.made.decision]
    imported, bulk = (sum(event.tab == CORRECTIONS for event in latest), sum(event.how == BULK for event in latest))
    made = Counter(event.made.decision for event in latest)
    ways = {"one at a time": len(latest) - imported - bulk, "in bulk": bulk, "in an earlier audit or a file": imported}
    names = {
        "reject": "kept",
        "drop": "dropped",
        "unclear": "marked as unclear",
        "wrong": "known to be wrong and not corrected",
    }
    effects = {"changed": sum(event.made.changes for event in latest)}
    return ways, effects | {said: made[name] for name, said in names.items()}


def describe_labels(found: Audit, counts: tuple[Mapping[str, int], ...], reviewers: int | None = None) -> str:
    """The section on labels: what was audited and how, the share of wrong labels, the review, the corrections and the limits."""
    how, rate = found.provenance, found.noise_rate
    share = f"about {rate.value:.1%} of the labels look wrong (90 % interval: {rate.low:.1%} to {rate.high:.1%})"
    if how.looks is not None:
        share = f"{describe_looks(how.looks)}; 95 % interval, from a random sample that a person looked at"
    elif how.by_chance:
        share = "unknown: the labels cannot be predicted from the samples better than by chance"
    people = "1 person" if reviewers == 1 else f"{reviewers or 'an unknown number of'} people"
    ways, effects = (", ".join(f"{n:,} {what}" for what, n in counted.items() if n) for counted in counts)
    classes = [name for name in found.classes if name != found.label_kind.drops]
    facts = {
        "Audited": f"{plural(how.rows or len(found), 'label')} of {_plain(found.title)} ({found.source_digest or 'no digest'})",
        "Classes": ", ".join(map(_plain, classes[:20])) + (", ..." if len(classes) > 20 else ""),
        "Method": f"compensate {__version__}; each label judged by models that did not train on it" + f"; encoder {how.encoder}" * bool(how.encoder),
        "Wrong labels": share,
        "Flagged": found.flag_summary,
        "Decided": f"{ways}, by {people}" if ways else "nothing",
        "Outcome": ways and (effects or "no label changed"),
    }  # fmt: skip
    limits = [text for name, text in LIMITS.items() if name == "flags" or how.looks is None]
    lines = [f"- **{name}**: {text}" for name, text in facts.items() if text]
    lines += ["", "Known limits:", "", *(f"- {_plain(text)}" for text in (*limits, *found.notes))]
    return "\n".join(("## Labels", "", *lines))


def _plain(text: object) -> str:
    """A text on one line, without the signs of Markdown and HTML."""
    return " ".join("".join(f"\\{c}" if c in r"\`*_[]<>#|" else c for c in str(text)).split())
