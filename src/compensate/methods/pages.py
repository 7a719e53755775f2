"""The page of a method, made from its row of the table and its docstring."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from compensate.methods.registry import METHODS, Method
from compensate.methods.trial import measured_change

_NEEDS = {
    "index": "the index of each sample",
    "model": "the model: criterion.evaluate(model, x, target, index)",
    "features": "a model with features(x) and head(z)",
    "clean": "a little clean data, for meta_step",
    "epochs": "criterion.end_epoch() after each epoch",
    "steps": "criterion.start(total_steps) before the first step",
    "group": "the group of each sample",
    "teacher": "the predictions of another model",
}


def page(row: Method) -> str:
    """A page of plain text."""
    name = row.name.replace("_", "-")
    asks = "; ".join(_NEEDS[need] for need in sorted(row.needs)) or "nothing beyond logits and targets"
    lines = [
        f"{name}{'' if row.kind == 'compensation' else f' ({row.kind})'}",
        "=" * len(name),
        str(row.taxonomy),
        "",
        _plain(inspect.getdoc(row.build) or ""),
        "",
        f"signature  {row.name}{inspect.signature(row.build)}",
        f"equation   {row.equation}",
        f"reference  {row.reference}",
        f"needs      {asks}",
        f"limits     {row.limits}",
        f"measured   {measured_change(row)} (digits, one in eight labels wrong)",
    ]
    return "\n".join(lines)


def first_sentence(row: Method) -> str:
    """What the method does, in one sentence: the first of its docstring.

    >>> first_sentence(METHODS["base"])
    'Cross entropy without compensation.'
    """
    return _plain((inspect.getdoc(row.build) or "").split("\n\n")[0]).replace("\n", " ")


def _plain(text: str) -> str:
    """A docstring for a terminal: formulas indented, without the marks of the documentation tool."""
    text = re.sub(r"(?m)^\.\. math:: ", "    ", text)
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text)


def write_pages(path: Path) -> None:
    """Writes the pages of all methods as one Markdown file."""
    from compensate.files import write_atomically

    head = [
        "# Methods",
        "",
        "This page is made from the table of methods: `compensate methods --markdown docs/methods.md`.",
        "",
        "| method | what it does | target · direction · inference · granularity |",
        "|---|---|---|",
    ]
    rows = [f"| [{row.name}](#{row.name}) | {first_sentence(row)} | {row.taxonomy} |" for row in METHODS.values()]
    pages = [_markdown(row) for row in METHODS.values()]
    write_atomically(path, ("\n".join([*head, *rows, *pages]) + "\n").encode())


def _markdown(row: Method) -> str:
    """One method as a Markdown section, with the mathematics of its docstring."""
    text = inspect.getdoc(row.build) or ""
    text = re.sub(r"(?m)^\.\. math:: ((?:.*\n)(?: +.*\n)*)", lambda m: f"$$\n{m[1].strip()}\n$$\n", text)
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text)
    text = re.sub(r"(?m)^Args:\n((?:    .*\n?|\n)*)", lambda m: "Arguments:\n\n" + _arguments(m[1]) + "\n", text)
    text = re.sub(r"(?m)((?:^>>> .*\n?(?:^(?!>>>|$).*\n?)*)+)", lambda m: f"```pycon\n{m[1].rstrip()}\n```\n", text)
    asks = "; ".join(_NEEDS[need] for need in sorted(row.needs)) or "nothing beyond logits and targets"
    kind = "" if row.kind == "compensation" else f" *({row.kind}, not compensation)*"
    return (
        f"\n## {row.name}\n\n{row.taxonomy}{kind}\n\n{text.strip()}\n\n"
        f"- **Needs:** {asks}\n- **Limits:** {row.limits}\n- **Equation:** {row.equation}\n- **Reference:** {row.reference}"
    )


def _arguments(block: str) -> str:
    entries = re.split(r"(?m)^    (?=\S)", inspect.cleandoc("\n" + block).replace("\n", "\n    ").join(["    ", ""]))
    joined = (" ".join(entry.split()) for entry in entries if entry.strip())
    return (
        "\n".join(f"- `{entry.split(':', 1)[0]}`:{entry.split(':', 1)[1]}" for entry in joined if ":" in entry) + "\n"
    )
