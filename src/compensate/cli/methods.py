"""`compensate methods`: the list of methods, and their pages as text and Markdown, with the direction of each measured on real data."""

from __future__ import annotations

import copy
import inspect
import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch import nn

from compensate.cli import options as o
from compensate.cli.terminal import console, plain_table, print_json, say
from compensate.core.criterion import change, measured
from compensate.files import write_atomically
from compensate.methods import METHODS, find
from compensate.methods.registry import Method
from compensate.models.networks import MLP
from compensate.terms.meta import meta_step

BATCH, EPOCHS, RATE = 64, 30, 0.005


def methods(
    name: Annotated[str | None, o.argument("Method whose page to print.")] = None,
    markdown: Annotated[Path | None, o.option("Write the pages of all methods to this file.")] = None,
    json_: o.Json = False,
) -> None:
    """List all methods with their place in the taxonomy, or print the page of one.

    **Example:** `compensate methods logcomp`
    """
    if markdown is not None:
        write_pages(markdown)
        console.print(f"{len(METHODS)} methods: {markdown}")
    elif json_:
        rows = METHODS.values() if name is None else [find(name)]
        print_json({"methods": [facts(row) for row in rows]})
    elif name is not None:
        say(page(find(name)), wrap=False)
    else:
        console.print("where labels may be wrong, take robust:  compensate methods robust\n")
        table = plain_table("method", "summary", "taxonomy", padding=(0, 2, 0, 0))
        table.columns[0].no_wrap = True
        for row in METHODS.values():
            mark = "" if row.kind == "compensation" else f"({row.kind})"
            table.add_row(row.name.replace("_", "-"), first_sentence(row), mark or str(row.taxonomy))
        console.print(table)
        console.print("\nthe page of one:  compensate methods NAME")


class Change(NamedTuple):
    """The effect of compensation on the losses of a batch."""

    direction: str
    """In the paper's words: positive lowers losses, negative raises them."""
    raised: int
    lowered: int
    mean: float

    def __str__(self) -> str:
        return f"{self.direction}: raises {self.raised} and lowers {self.lowered} of {BATCH} losses, {self.mean:+.3f} on average"


def measured_change(row: Method) -> Change:
    """The effect of a method on the losses of a batch of digits, one in eight labels wrong, late in a short training.

    It measures the last step with any compensation: some methods stop at the end, or wait until they are sure.
    """
    from sklearn.datasets import load_digits

    pixels, target = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels[: 2 * BATCH] / 16).float(), torch.from_numpy(target[: 2 * BATCH]).long()
    y[: BATCH // 8] = (y[: BATCH // 8] + 1) % 10
    batch, clean = (x[:BATCH], y[:BATCH], torch.arange(BATCH)), (x[BATCH:], y[BATCH:])
    counts = y[:BATCH].bincount(minlength=10).tolist()
    sizes: dict[str, Any] = {
        "num_samples": BATCH,
        "num_classes": 10,
        "class_counts": counts,
        "feature_dim": 32,
        "feature_shape": (64,),
    }
    strength = inspect.signature(row.build).parameters.get("strength")
    if strength is not None and strength.default == "auto":
        sizes["strength"] = 1.0  # a batch is too small to measure a strength
    signs, changes = torch.zeros(BATCH), torch.zeros(BATCH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = MLP(64, 10 + row.extra_outputs, hidden=(32,))
        criterion = row.make(**sizes).start(EPOCHS)
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        own = [p for p in criterion.parameters() if p.requires_grad]
        tables = {id(p) for t in criterion.tables() for p in t.parameters(False)}
        meta_optimizer = torch.optim.Adam(own, lr=1e-2) if any(id(p) not in tables for p in own) else None
        for _ in range(EPOCHS):
            if "clean" in row.needs:
                meta_step(criterion, model, batch, clean, lr=0.1, optimizer=copy.copy(meta_optimizer))
            s = criterion.evaluate(model, *batch)
            signs, changes = (measured(s), change(s)) if bool(measured(s).any()) else (signs, changes)
            optimizer.zero_grad()
            s.loss.backward()
            optimizer.step()
            criterion.end_epoch()
    raised, lowered, mean = int((signs > 0).sum()), int((signs < 0).sum()), float(changes.mean())
    direction = "mixed" if raised and lowered else "negative" if raised else "positive" if lowered else "none"
    shared = row.taxonomy.granularity != "sample" and row.taxonomy.inference in ("regularized", "adversarial")
    if direction == "mixed" and shared:
        # Samples that share a row may go either way; the mean shows the direction.
        direction = "negative" if mean > 0 else "positive"
    return Change(direction, raised, lowered, mean)


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


def _needs(row: Method) -> str:
    return "; ".join(_NEEDS[need] for need in sorted(row.needs)) or "nothing beyond logits and targets"


def _plain(text: str) -> str:
    """A docstring for a terminal: formulas indented, without the roles of Sphinx."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", re.sub(r"(?m)^\.\. math:: ", "    ", text))


def first_sentence(row: Method) -> str:
    """The first sentence of the method's docstring."""
    return _plain((inspect.getdoc(row.build) or "").split("\n\n")[0]).replace("\n", " ")


def facts(row: Method) -> dict[str, str]:
    """The method in texts, ready for JSON."""
    own = {name: getattr(row, name) for name in ("name", "kind", "equation", "reference", "limits")}
    return own | {"summary": first_sentence(row), "taxonomy": str(row.taxonomy)}


def page(row: Method) -> str:
    """A page of plain text."""
    name = row.name.replace("_", "-")
    return f"""{name}{"" if row.kind == "compensation" else f" ({row.kind})"}
{"=" * len(name)}
{row.taxonomy}

{_plain(inspect.getdoc(row.build) or "")}

signature  {row.name}{inspect.signature(row.build)}
equation   {row.equation}
reference  {row.reference}
needs      {_needs(row)}
limits     {row.limits}
measured   {measured_change(row)} (digits, one in eight labels wrong)"""


HEAD = """# Methods

This page is made from the table of methods: `compensate methods --markdown docs/methods.md`.

| method | description | target · direction · inference · granularity |
|---|---|---|
"""


def write_pages(path: Path) -> None:
    """Writes the pages of all methods as one Markdown file."""
    rows = [f"| [{row.name}](#{row.name}) | {first_sentence(row)} | {row.taxonomy} |" for row in METHODS.values()]
    write_atomically(path, (HEAD + "\n".join([*rows, *map(_markdown, METHODS.values())]) + "\n").encode())


def _markdown(row: Method) -> str:
    """A method as a Markdown section, with the formulas of its docstring."""
    text = inspect.getdoc(row.build) or ""
    text = re.sub(r"(?m)^\.\. math:: ((?:.*\n)(?: +.*\n)*)", lambda m: f"$$\n{m[1].strip()}\n$$\n", text)
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text)
    text = re.sub(r"(?m)^Args:\n((?:    .*\n?|\n)*)", _arguments, text)
    text = re.sub(r"(?m)((?:^>>> .*\n?(?:^(?!>>>|$).*\n?)*)+)", lambda m: f"```pycon\n{m[1].rstrip()}\n```\n", text)
    kind = "" if row.kind == "compensation" else f" *({row.kind}, not compensation)*"
    return (
        f"\n## {row.name}\n\n{row.taxonomy}{kind}\n\n{text.strip()}\n\n"
        f"- **Needs:** {_needs(row)}\n- **Limits:** {row.limits}\n- **Equation:** {row.equation}\n- **Reference:** {row.reference}"
    )


def _arguments(section: re.Match[str]) -> str:
    parts = filter(str.strip, re.split(r"(?m)^    (?=\S)", section[1]))
    entries = (" ".join(part.split()).partition(":") for part in parts)
    return "Arguments:\n\n" + "\n".join(f"- `{names}`:{text}" for names, _, text in entries) + "\n\n"
