"""The pages of the methods, as plain text and Markdown, with the measured direction of a method on real data."""

from __future__ import annotations

import copy
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from compensate.core.taxonomy import change, measured
from compensate.files import write_atomically
from compensate.methods.registry import METHODS, Method
from compensate.terms.meta import meta_step

BATCH, EPOCHS, RATE = 64, 30, 0.005


@dataclass(frozen=True)
class Change:
    """The effect of compensation on the losses of a batch."""

    raised: int
    lowered: int
    mean: float
    shared: bool
    """True if samples share rows: then single losses may go either way, and the mean shows the direction."""

    @property
    def direction(self) -> str:
        """In the paper's words: positive lowers losses, negative raises them."""
        if not self.raised and not self.lowered:
            return "none"
        if self.raised and self.lowered and not self.shared:
            return "mixed"
        return "negative" if self.mean > 0 else "positive"

    def agrees(self, row: Method) -> bool:
        """True if it does not contradict the taxonomy; a method of mixed direction may have one direction on a single batch."""
        return self.direction == "none" or row.taxonomy.direction in ("mixed", self.direction)

    def __str__(self) -> str:
        return f"{self.direction}: raises {self.raised} and lowers {self.lowered} of {BATCH} losses, {self.mean:+.3f} on average"


def measured_change(row: Method) -> Change:
    """The effect of a method on the losses of a batch of digits, one in eight labels wrong, late in a short training.

    It measures the last step with any compensation: some methods stop at the end, or wait until they are sure.
    """
    from sklearn.datasets import load_digits

    from compensate.models.networks import MLP

    pixels, target = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels[: 2 * BATCH] / 16).float(), torch.from_numpy(target[: 2 * BATCH]).long()
    y[: BATCH // 8] = (y[: BATCH // 8] + 1) % 10
    batch, clean = (x[:BATCH], y[:BATCH], torch.arange(BATCH)), (x[BATCH:], y[BATCH:])
    sizes = {
        "num_samples": BATCH, "num_classes": 10, "class_counts": y[:BATCH].bincount(minlength=10).tolist(), "feature_dim": 32,
        "feature_shape": (64,),
    }  # fmt: skip
    found: tuple[Tensor, Tensor] | None = None
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
            changes = change(s)  # before the model moves on
            optimizer.zero_grad()
            s.loss.backward()
            optimizer.step()
            criterion.end_epoch()
            signs = measured(s)
            if found is None or bool(signs.any()):
                found = signs, changes
    assert found is not None
    signs, changes = found
    shared = row.taxonomy.granularity != "sample" and row.taxonomy.inference in ("regularized", "adversarial")
    return Change(int((signs > 0).sum()), int((signs < 0).sum()), float(changes.mean()), shared)


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
    text = re.sub(r"(?m)^\.\. math:: ", "    ", text)
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text)


def first_sentence(row: Method) -> str:
    """The first sentence of the method's docstring.

    >>> first_sentence(METHODS["base"])
    'Cross entropy without compensation.'
    """
    return _plain((inspect.getdoc(row.build) or "").split("\n\n")[0]).replace("\n", " ")


def page(row: Method) -> str:
    """A page of plain text."""
    name = row.name.replace("_", "-")
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
        f"needs      {_needs(row)}",
        f"limits     {row.limits}",
        f"measured   {measured_change(row)} (digits, one in eight labels wrong)",
    ]
    return "\n".join(lines)


def write_pages(path: Path) -> None:
    """Writes the pages of all methods as one Markdown file."""
    head = [
        "# Methods",
        "",
        "This page is made from the table of methods: `compensate methods --markdown docs/methods.md`.",
        "",
        "| method | description | target · direction · inference · granularity |",
        "|---|---|---|",
    ]
    rows = [f"| [{row.name}](#{row.name}) | {first_sentence(row)} | {row.taxonomy} |" for row in METHODS.values()]
    pages = [_markdown(row) for row in METHODS.values()]
    write_atomically(path, ("\n".join([*head, *rows, *pages]) + "\n").encode())


def _markdown(row: Method) -> str:
    """A method as a Markdown section, with the formulas of its docstring."""
    text = inspect.getdoc(row.build) or ""
    text = re.sub(r"(?m)^\.\. math:: ((?:.*\n)(?: +.*\n)*)", lambda m: f"$$\n{m[1].strip()}\n$$\n", text)
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text)
    text = re.sub(r"(?m)^Args:\n((?:    .*\n?|\n)*)", lambda m: "Arguments:\n\n" + _arguments(m[1]) + "\n", text)
    text = re.sub(r"(?m)((?:^>>> .*\n?(?:^(?!>>>|$).*\n?)*)+)", lambda m: f"```pycon\n{m[1].rstrip()}\n```\n", text)
    kind = "" if row.kind == "compensation" else f" *({row.kind}, not compensation)*"
    return (
        f"\n## {row.name}\n\n{row.taxonomy}{kind}\n\n{text.strip()}\n\n"
        f"- **Needs:** {_needs(row)}\n- **Limits:** {row.limits}\n- **Equation:** {row.equation}\n- **Reference:** {row.reference}"
    )


def _arguments(block: str) -> str:
    entries = (" ".join(entry.split()).partition(":") for entry in re.split(r"(?m)^    (?=\S)", block) if entry.strip())
    return "\n".join(f"- `{names}`:{text}" for names, _, text in entries) + "\n"
