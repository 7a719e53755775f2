"""What a command says of its data before it begins: what was read, what was chosen, and what each part is for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compensate.commands.options import quoted
from compensate.commands.terminal import console

if TYPE_CHECKING:
    from compensate.training.config import Config
    from compensate.training.preparation import Prepared


NAMED = 8
"""Columns of a list."""


def short(text: Any, limit: int = 30) -> str:
    """Safe for a terminal: neither long nor with signs that move the cursor or turn the direction of writing."""
    text = "".join(sign if sign.isprintable() else "\ufffd" for sign in str(text)[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def chosen_columns(info: Mapping[str, Any], labels: str) -> list[str]:
    """The columns of text and label, what is to be said of the labels, and which columns were passed over for them.

    >>> chosen_columns({"text": "message", "label": "topic"}, "5 classes")
    ['text column "message"', 'label column "topic" (5 classes)']
    """
    text = [f'text column "{info["text"]}"'] if info.get("text") else []
    passed = [f'not "{short(name)}", which {why}' for name, why in info.get("passed_over", {}).items()]
    others = ", ".join(map(short, info.get("runners_up", ())))
    labels += f"; it could also be {others}: --label" if others else ""
    return [*text, f'label column "{info["label"]}" ({labels})' if info.get("label") else labels, *passed]


def unused_columns(info: Mapping[str, Any]) -> list[str]:
    """The columns that are not read, in one phrase; of texts, how to go by the columns that could be features."""
    labels = getattr(info.get("parts"), "columns", ())  # of label sets
    chosen = (info.get("label"), info.get("text"), *labels, *info.get("passed_over", ()))
    rest = [c for c in info.get("columns", ()) if c.role != "split" and c.name not in chosen]
    alone = info.get("features_given") or info.get("text")
    unused = [short(c.name) for c in rest if alone or not c.used]
    if not unused:
        return []
    said = f"not used: {_list(unused)}"
    # A name with a comma in it, or one that is cut, cannot be given.
    free = [c.name for c in rest if c.used and "," not in c.name and short(c.name) == c.name]
    if free and info.get("text") and not info.get("features_given"):
        by = ",".join(free[:NAMED]) + ",…" * (len(free) > NAMED)
        said += f" (texts are judged by the text alone; by columns instead: --columns {quoted(by)})"
    return [said]


def _list(names: list[str]) -> str:
    """The first names, and how many more there are.

    >>> _list(["a", "b"]), _list(list("abcdefghijk"))
    ('a, b', 'a, b, c, d, e, f, g, h and 3 more')
    """
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def announce(config: Config, data_dir: Path | None) -> None:
    """Says what a training is about to use, while a wrong column costs no more than a look."""
    from compensate.training.preparation import prepare_run

    prepared = prepare_run(config, data_dir=data_dir)
    for line in (_data(prepared), _clean(prepared), _test(prepared)):
        if line:
            console.print(line, markup=False, soft_wrap=True)


def _data(prepared: Prepared) -> str:
    train, info = prepared.train, prepared.train.info
    wrong = f" ({prepared.wrong.mean():.1%} of their labels made wrong)" if prepared.wrong.any() else ""
    parts = [*chosen_columns(info, f"{train.num_classes} classes"), f"{len(train):,} samples to train{wrong}"]
    for part, purpose in ((prepared.validation, "validate"), (prepared.test, "test")):
        if part is not None:
            parts.append(f"{len(part):,} to {purpose}")
    if prepared.unlabeled:
        parts.append(f"{prepared.unlabeled:,} without a label left out")
    return f"{prepared.config.data}: {', '.join([*parts, *unused_columns(info)])}"


def _clean(prepared: Prepared) -> str:
    """Where the samples come from that a method takes for clean."""
    if prepared.clean is None:
        return ""
    why = "no noise is injected into them" if prepared.noisy else "nobody has checked their labels"
    return f"{len(prepared.clean):,} more are taken as clean (clean={prepared.config.clean:g}): {why}"


def _test(prepared: Prepared) -> str:
    """What test accuracy is worth: it is of the labels that the data have."""
    if prepared.test is None:
        return ""
    if prepared.noisy:
        return "no noise is injected into test labels"
    if prepared.own_test:
        return "test labels are those of the data's own test part"
    return "test labels are those of the data, wrong ones included"
