"""A method tried on a batch of real data: its direction, measured."""

from __future__ import annotations

import copy
import inspect
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.taxonomy import change, measured
from compensate.methods.registry import METHODS, Method
from compensate.terms.meta import meta_step

BATCH, EPOCHS, RATE = 64, 30, 0.005


@dataclass(frozen=True)
class Change:
    """What compensation did to the losses of a batch."""

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
        """True if it does not contradict the taxonomy; a method of mixed direction may go one way on a single batch."""
        return self.direction == "none" or row.taxonomy.direction in ("mixed", self.direction)

    def __str__(self) -> str:
        return f"{self.direction}: raises {self.raised} and lowers {self.lowered} of {BATCH} losses, {self.mean:+.3f} on average"


@lru_cache(maxsize=1)
def _data() -> tuple[Tensor, Tensor]:
    """Digits: a batch whose first labels are wrong, and as many clean ones."""
    from compensate.data.named.image_sets import digits

    data = digits().subset(range(2 * BATCH))
    y = torch.from_numpy(data.target).clone()
    y[: BATCH // 8] = (y[: BATCH // 8] + 1) % 10
    return torch.from_numpy(data.x).flatten(1), y


def trial_sizes() -> dict[str, Any]:
    """The sizes of the trial, for any method."""
    _, y = _data()
    return {
        "num_samples": BATCH,
        "num_classes": 10,
        "class_counts": y[:BATCH].bincount(minlength=10).tolist(),
        "feature_dim": 32,
        "feature_shape": (64,),
    }


def tried(row: Method) -> Batch:
    """The state of the batch late in a short training with the method, all it asks for provided.

    It is the last one in which anybody was compensated: some methods rest at the end, or until they are sure.
    """
    from compensate.models.networks import MLP

    x, y = _data()
    batch, clean = (x[:BATCH], y[:BATCH], torch.arange(BATCH)), (x[BATCH:], y[BATCH:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = MLP(64, 10 + row.extra_outputs, hidden=(32,))
        criterion = row.make(**trial_sizes()).start(EPOCHS)
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        own = [p for p in criterion.parameters() if p.requires_grad]
        tables = {id(p) for t in criterion.tables() for p in t.parameters(False)}
        moved = torch.optim.Adam(own, lr=1e-2) if any(id(p) not in tables for p in own) else None
        found = None
        for _ in range(EPOCHS):
            if "clean" in row.needs:
                meta_step(criterion, model, batch, clean, lr=0.1, optimizer=copy.copy(moved))
            s = criterion.evaluate(model, *batch)
            _ = change(s)  # before the model moves on
            optimizer.zero_grad()
            s.loss.backward()
            optimizer.step()
            criterion.end_epoch()
            if found is None or bool(measured(s).any()):
                found = s
    assert found is not None
    return found


def measured_change(row: Method) -> Change:
    """What the method does to the losses of the batch late in a short training."""
    s = tried(row)
    signs = measured(s)
    shared = row.taxonomy.granularity != "sample" and row.taxonomy.inference in ("regularized", "adversarial")
    mean = float(change(s).mean())
    return Change(int((signs > 0).sum()), int((signs < 0).sum()), mean, shared)


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
