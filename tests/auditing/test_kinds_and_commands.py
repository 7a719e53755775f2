"""Every command works for every kind of label: planted errors are found, decided in a tool, and written back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

WORDS = {
    "sports": ["goal", "match", "team", "player", "coach", "score", "league", "ball"],
    "money": ["bank", "market", "price", "shares", "stock", "profit", "tax", "loan"],
    "weather": ["rain", "storm", "cloud", "sunny", "wind", "snow", "cold", "heat"],
}
NAMES = list(WORDS)
ROWS, NEW = 240, 40  # of the audited file, and of the file that is checked


def sentence(rng: np.random.Generator, topics: list[str]) -> str:
    return " ".join(rng.permutation([str(word) for t in topics for word in rng.choice(WORDS[t], 5, replace=False)]))


class Made(NamedTuple):
    """The text of a file with errors and of the true one, and the rows of the errors; further arguments of the command."""

    name: str
    text: str
    truth: str
    wrong: set[int]
    command: tuple[str, ...] = ("audit",)


def table(rows: list[dict[str, Any]]) -> str:
    return pd.DataFrame(rows).to_csv(index=False)


def made(kind: str, rows: int, seed: int) -> Made:
    rng = np.random.default_rng(seed)
    wrong = set(rng.choice(rows, 6, replace=False).tolist())
    given, true = [], []
    if kind == "entities":
        for k in range(rows):
            words = [
                "the",
                NAMES[k % 3],
                "of",
                *sentence(rng, ["money"]).split()[:2],
                "in",
                ("Paris", "Rome", "Oslo")[k % 3],
            ]
            tags = ["O"] * 6 + ["B-LOC"]
            true.append("".join(f"{w} {t}\n" for w, t in zip(words, tags, strict=True)))
            given.append(true[-1].replace("B-LOC", "O") if k in wrong else true[-1])
        return Made("tags.conll", "\n".join(given), "\n".join(true), wrong)
    for k in range(rows):
        topic = NAMES[k % 3]
        other = NAMES[(k + 1) % 3]
        if kind == "classes":
            row = {"text": sentence(rng, [topic])}
            labels = {"label": topic}, {"label": other}
        elif kind in ("label sets", "label columns"):
            topics = [topic] if k % 2 else [topic, other]
            row, bad = {"text": sentence(rng, topics)}, [*topics, NAMES[(k + 2) % 3]]
            if kind == "label sets":
                labels = {"labels": ";".join(sorted(topics))}, {"labels": ";".join([*sorted(topics), bad[-1]])}
            else:
                labels = tuple({name: int(name in some) for name in NAMES} for some in (topics, bad))
        elif kind == "quantities":
            x, z = rng.normal(size=2).round(3)
            value = round(50 + 10 * x - 5 * z + rng.normal() * 0.3, 2)
            row, labels = {"x": x, "z": z}, ({"price": value}, {"price": round(value * 10, 2)})
        elif kind == "votes":
            row = {"text": sentence(rng, [topic])}
            labels = {"ann": topic, "bob": topic, "eve": topic}, {"ann": other, "bob": other, "eve": topic}
        else:
            good, bad = "a long kind and helpful answer about " + sentence(rng, [topic]), "no idea " + str(k)
            row, labels = (
                {"prompt": f"tell me about {topic} {k}"},
                ({"chosen": good, "rejected": bad}, {"chosen": bad, "rejected": good}),
            )
        true.append(row | labels[0])
        given.append(row | labels[k in wrong])
    command = {
        "votes": ("consensus", "--annotators", "ann,bob,eve"),
        "label columns": ("audit", "--labels-columns", ",".join(NAMES)),
    }
    return Made("data.csv", table(given), table(true), wrong, command.get(kind, ("audit",)))


KINDS = ("classes", "label sets", "label columns", "entities", "quantities", "votes", "pairs")
