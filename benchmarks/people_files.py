"""Twenty files as people have them, with planted errors: read as meant or asked about, and the errors found, next to Datalab.

    python -m benchmarks.people_files [--only tickets,chats] [--seed 0] [--keep FOLDER]
    python -m benchmarks.people_files --write       # put the table of the stored results into docs/detection.md

Each file is audited by one command without options (`compensate audit FILE`). It is *read as meant* if the first line of the output names
the columns and the kind of label that the maker of the file had in mind, *asked about* if the error names an option to add, and *misread*
otherwise. Precision, recall and average precision (AP) are of the planted errors, by rows. Datalab sees the same features (MiniLM for texts,
encoded columns for tables, both where the audit uses both, the embeddings of the file) through the cross-validated logistic regression of its
tutorials. Texts are made from templates and vocabulary, so figures compare tools and ways of reading, not difficulty.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results" / "people_files.json"
MARKS = ("<!-- files: made by python -m benchmarks.people_files --write -->", "<!-- /files -->")
ROWS = 500
TOPICS = {
    "billing": [
        "invoice",
        "payment",
        "charge",
        "refund",
        "card",
        "receipt",
        "amount",
        "subscription",
        "fee",
        "discount",
        "price",
        "tax",
    ],
    "shipping": [
        "parcel",
        "courier",
        "delivery",
        "tracking",
        "address",
        "warehouse",
        "package",
        "customs",
        "depot",
        "driver",
        "label",
        "truck",
    ],
    "technical": [
        "login",
        "error",
        "screen",
        "crash",
        "update",
        "browser",
        "password",
        "app",
        "server",
        "button",
        "page",
        "sync",
    ],
    "account": [
        "profile",
        "email",
        "name",
        "settings",
        "member",
        "user",
        "address",
        "account",
        "password",
        "contract",
        "notification",
        "card",
    ],
}
GERMAN = {
    "Rechnung": [
        "Rechnung",
        "Zahlung",
        "Betrag",
        "Lastschrift",
        "Mahnung",
        "Gutschrift",
        "Steuer",
        "Konto",
        "Überweisung",
        "Preis",
    ],
    "Versand": ["Paket", "Lieferung", "Adresse", "Zusteller", "Sendung", "Lager", "Karton", "Bote", "Zoll", "Termin"],
    "Technik": [
        "Fehler",
        "Anmeldung",
        "Bildschirm",
        "Absturz",
        "Update",
        "Passwort",
        "Server",
        "Seite",
        "Taste",
        "Konto",
    ],
}
OPENINGS = (
    "Hello, my",
    "Hi team, the",
    "Since yesterday the",
    "I wonder why the",
    "Please look at this: the",
    "Again the",
)
LINKS = ("does not match the", "came before the", "is gone after the", "is wrong although the", "still waits for the")
ENDS = (
    "was fine last week",
    "is what I asked for",
    "seems to be lost",
    "needs a person to look at it",
    "was never explained",
)
PRAISE = ["moving", "funny", "warm", "clever", "bright", "gripping", "honest", "superb", "lovely", "sharp"]
BLAME = ["dull", "clumsy", "empty", "loud", "slow", "tired", "messy", "shallow", "grim", "flat"]


@dataclass(eq=False)
class File:
    """A made file: its path, the rows with planted errors, and words that the first line of a right reading contains."""

    path: Path
    wrong: NDArray[np.bool_]
    meant: tuple[str, ...]
    compare: Callable[[], tuple[Any, NDArray[Any]]] | None = None  # features and given labels for Datalab
    issues: dict[str, int] = field(default_factory=dict)  # planted findings other than labels


def sentence(rng: np.random.Generator, words: list[str], others: list[str], share: float = 0.8) -> str:
    """A sentence about the words, some of them replaced by others."""
    a, b, c = (str(rng.choice(words if rng.random() < share else others)) for _ in range(3))
    return f"{rng.choice(OPENINGS)} {a} {rng.choice(LINKS)} {b} and the {c} {rng.choice(ENDS)}"


def texts_of(
    rng: np.random.Generator, topics: NDArray[Any], vocabulary: dict[str, list[str]], share: float = 0.8
) -> list[str]:
    """A sentence about each topic."""
    everything = [word for words in vocabulary.values() for word in words]
    return [sentence(rng, vocabulary[topic], everything, share) for topic in topics]


def flip(rng: np.random.Generator, true: NDArray[Any], share: float = 0.08) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Labels of which a share was replaced by another class, and which."""
    classes = np.unique(true)
    given, wrong = true.copy(), rng.random(len(true)) < share
    for i in np.flatnonzero(wrong):
        given[i] = rng.choice(classes[classes != true[i]])
    return given, wrong


def embedded(texts: list[str]) -> Any:
    """MiniLM embeddings."""
    from compensate.encoders import encode

    found = encode(np.array(texts, dtype=object), "auto", "text")
    assert found is not None, "the encoder is not installed"
    return found.values


def encoded(frame: pd.DataFrame, label: str) -> Any:
    """The encoded columns of a table."""
    from compensate.data.columns import TableEncoder, analyze

    return TableEncoder.fit(frame, analyze(frame, label=label))(frame)


def labeled_texts(
    rng: np.random.Generator, vocabulary: dict[str, list[str]] = TOPICS
) -> tuple[list[str], NDArray[Any], NDArray[np.bool_]]:
    """Texts, given labels and which of them are wrong."""
    true = rng.choice(list(vocabulary), ROWS)
    return texts_of(rng, true, vocabulary), *flip(rng, true)


# --- the files ------------------------------------------------------------------------------------------------


def tickets(folder: Path, rng: np.random.Generator, telling: bool = True) -> File:
    """Support tickets whose channel and priority tell half of the queue."""
    true = rng.choice(list(TOPICS), ROWS)
    texts = texts_of(rng, true, TOPICS, 0.45)
    usual = {"billing": "email", "shipping": "phone", "technical": "chat", "account": "form"}
    channel = [usual[t] if telling and rng.random() < 0.7 else rng.choice(list(usual.values())) for t in true]
    priority = [int(rng.integers(1, 4)) + (telling and t == "technical") for t in true]
    given, wrong = flip(rng, true)
    frame = pd.DataFrame(
        {
            "ticket_id": np.arange(ROWS) + 9000,
            "message": texts,
            "channel": channel,
            "priority": priority,
            "queue": given,
        }
    )
    frame = frame.rename(columns={"queue": "label"})
    frame.to_csv(folder / "tickets.csv", index=False)
    meant = ('"message"', "channel, priority", 'label column "label" (4 classes')
    both = ["channel", "priority", "label"]
    return File(
        folder / "tickets.csv", wrong, meant,
        lambda: (np.hstack([embedded(texts), encoded(frame[both], "label")]), given),
    )  # fmt: skip


def churn(folder: Path, rng: np.random.Generator) -> File:
    """A table of customers."""
    tenure, monthly = rng.integers(1, 72, ROWS), rng.normal(60, 20, ROWS).round(2)
    plan, country = rng.choice(["basic", "plus", "pro"], ROWS), rng.choice(["DE", "FR", "US", "BR"], ROWS)
    odds = 2.5 - 0.12 * tenure + 0.05 * (monthly - 60) + 1.5 * (plan == "basic")
    true = np.where(odds + rng.normal(0, 0.7, ROWS) > 0, "yes", "no").astype(object)
    given, wrong = flip(rng, true)
    frame = pd.DataFrame(
        {"customer_id": [f"c{i:05d}" for i in range(ROWS)], "tenure": tenure, "plan": plan, "monthly": monthly}
    )
    frame = frame.assign(country=country, churned=given)
    frame.to_csv(folder / "churn.csv", index=False)
    meant = ('label column "churned" (2 classes', "not used: customer_id")
    return File(folder / "churn.csv", wrong, meant, lambda: (encoded(frame, "churned"), given))


def photos(folder: Path, rng: np.random.Generator) -> File:
    """Small pictures of shapes, one folder a class."""
    from PIL import Image

    true = rng.choice(["circle", "cross", "stripes"], 300)
    given, wrong = flip(rng, true)
    y, x = np.mgrid[:24, :24]
    names, images = [], []
    for i, shape in enumerate(true):
        cx, cy, r = [*rng.uniform(9, 15, 2).tolist(), rng.uniform(5, 9)]
        drawn = {
            "circle": (x - cx) ** 2 + (y - cy) ** 2 < r**2,
            "cross": (abs(x - cx) < 3) & (abs(y - cy) < r) | (abs(y - cy) < 3) & (abs(x - cx) < r),
            "stripes": (y // 3) % 2 == (cx > 12),
        }[shape]
        pixels = np.clip(40 + 150 * drawn + rng.normal(0, 30, (24, 24)), 0, 255).astype(np.uint8)
        file = folder / "photos" / given[i] / f"{i:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
        names.append(f"{given[i]}/{i:04d}.png")
        images.append(pixels.reshape(-1) / 255)
    order = np.argsort(names)
    return File(
        folder / "photos", wrong[order], ("300 rows", "3 classes"), lambda: (np.array(images)[order], given[order])
    )


def tags(folder: Path, rng: np.random.Generator) -> File:
    """Texts with joined tags; one tag of some rows is missing or too many."""
    names = list(TOPICS)
    has = rng.random((ROWS, 4)) < 0.4
    has[~has.any(1), 0] = True
    texts = [
        " ".join(sentence(rng, TOPICS[names[j]], TOPICS[names[j]]) + "." for j in np.flatnonzero(row)) for row in has
    ]
    wrong = rng.random(ROWS) < 0.08
    given = has.copy()
    given[wrong, rng.integers(0, 4, wrong.sum())] ^= True
    cells = [";".join(n for n, one in zip(names, row, strict=True) if one) for row in given]
    pd.DataFrame({"text": texts, "tags": cells}).to_csv(folder / "tags.csv", index=False)
    return File(folder / "tags.csv", wrong, ('"text"', '"tags" (4 labels'))


def entities(folder: Path, rng: np.random.Generator) -> File:
    """Sentences in CoNLL with names of people and places; the type of some names is wrong."""
    people, places = (
        ["Anna", "Bruno", "Clara", "Dario", "Elif", "Farid"],
        ["Rome", "Oslo", "Lima", "Kyoto", "Accra", "Quito"],
    )
    lines, wrong = [], np.zeros(ROWS, bool)
    for i in range(ROWS):
        who, where = rng.choice(people), rng.choice(places)
        words = f"{who} {rng.choice(['lives', 'works', 'arrived', 'stayed'])} in {where} {rng.choice(['today', 'again', 'alone'])} .".split()
        types = {who: "B-PER", where: "B-LOC"}
        if rng.random() < 0.06:
            name = str(rng.choice([who, where]))
            types[name], wrong[i] = {"B-PER": "B-LOC", "B-LOC": "B-PER"}[types[name]], True
        lines += [f"{word}\t{types.get(word, 'O')}" for word in words] + [""]
    (folder / "entities.conll").write_text("\n".join(lines) + "\n")
    return File(folder / "entities.conll", wrong, ("tokens", "2 kinds of tags"))


def votes(folder: Path, rng: np.random.Generator) -> File:
    """Three raters a text, one of them careless."""
    true = rng.choice(list(TOPICS), ROWS)
    frame = pd.DataFrame({"text": texts_of(rng, true, TOPICS)})
    for name, share in (("rater_1", 0.1), ("rater_2", 0.1), ("rater_3", 0.4)):
        frame[name] = flip(rng, true, share)[0]
    raters = ["rater_1", "rater_2", "rater_3"]
    often = frame[raters].stack().value_counts()  # ties go to the class with more votes on all items
    majority = np.array([max(row, key=lambda c: (row.count(c), often[c])) for row in frame[raters].to_numpy().tolist()])
    frame.to_csv(folder / "votes.csv", index=False)
    return File(
        folder / "votes.csv",
        majority != true,
        ("3 annotators", "4 classes"),
        lambda: (embedded(list(frame["text"])), majority),
    )


def prices(folder: Path, rng: np.random.Generator) -> File:
    """Flats; some prices lost or gained a digit."""
    area, rooms = rng.uniform(25, 160, ROWS).round(), rng.integers(1, 6, ROWS)
    district = rng.choice(["north", "south", "old town", "harbor"], ROWS)
    factor = np.array([{"north": 3.1, "south": 2.6, "old town": 5.2, "harbor": 4.4}[d] for d in district])
    price = (1000 * factor * area * np.exp(rng.normal(0, 0.08, ROWS))).round(-2)
    wrong = rng.random(ROWS) < 0.05
    given = np.where(wrong, price * rng.choice([0.1, 10.0], ROWS), price).round()
    pd.DataFrame({"area": area, "rooms": rooms, "district": district, "price": given.astype(int)}).to_csv(
        folder / "prices.csv", index=False
    )
    return File(folder / "prices.csv", wrong, ('"price"', "a quantity"))


def chats(folder: Path, rng: np.random.Generator) -> File:
    """Conversations with the topic as label."""
    texts, given, wrong = labeled_texts(rng)
    rows = []
    for text, label in zip(texts, given, strict=True):
        answer = f"Thank you for writing. We look into it, {rng.choice(['today', 'at once', 'this week'])}."
        rows.append(
            {
                "messages": [{"role": "user", "content": text}, {"role": "assistant", "content": answer}],
                "label": str(label),
            }
        )
    _jsonl(folder / "chats.jsonl", rows)
    return File(folder / "chats.jsonl", wrong, ("messages", '"label" (4 classes'), lambda: (embedded(texts), given))


def instructions(folder: Path, rng: np.random.Generator) -> File:
    """Fine-tuning data without labels: empty, refused, cut and repeated answers."""
    topics = rng.choice(list(TOPICS), ROWS)
    texts, answers = texts_of(rng, topics, TOPICS, 1.0), texts_of(rng, topics, TOPICS, 1.0)
    rows = [
        {"instruction": f"{t}?", "input": "", "output": f"{a}. {b}."}
        for t, a, b in zip(texts, answers, reversed(answers), strict=True)
    ]
    for i in range(10):
        rows[i]["output"] = ""
    for i in range(10, 20):
        rows[i]["output"] = "I'm sorry, but as an AI language model I cannot help with that."
    for i in range(20, 30):
        rows[i]["output"] = rows[i]["output"][: len(rows[i]["output"]) // 2].rsplit(" ", 1)[0] + " and the"
    rows += rows[100:110]
    _jsonl(folder / "instructions.jsonl", rows)
    planted = {"empty_answer": 10, "refusal": 10, "truncated_answer": 10, "duplicate": 20}
    return File(folder / "instructions.jsonl", np.zeros(len(rows), bool), ("no label", "instruction"), issues=planted)


def preferences(folder: Path, rng: np.random.Generator) -> File:
    """Preference pairs, some of them swapped."""
    wrong, rows = rng.random(ROWS) < 0.1, []
    for i in range(ROWS):
        topic = str(rng.choice(list(TOPICS)))
        good = f"Thank you. {sentence(rng, TOPICS[topic], TOPICS[topic])}. Here is what we do: we check the {rng.choice(TOPICS[topic])} and call you."
        bad = f"No idea. {sentence(rng, TOPICS['account'], TOPICS['account'])}. Ask somebody else."
        chosen, rejected = (bad, good) if wrong[i] else (good, bad)
        rows.append({"prompt": sentence(rng, TOPICS[topic], TOPICS[topic]), "chosen": chosen, "rejected": rejected})
    _jsonl(folder / "preferences.jsonl", rows)
    return File(folder / "preferences.jsonl", wrong, ("pairs",))


def inference(folder: Path, rng: np.random.Generator) -> File:
    """Premise and hypothesis: entailment repeats the premise, contradiction denies it."""
    labels = np.array(["entailment", "neutral", "contradiction"], dtype=object)[rng.integers(0, 3, ROWS)]
    people, deeds, places = (
        ["a man", "a woman", "the child", "two friends"],
        ["sings", "sleeps", "cooks", "reads", "runs", "waits"],
        ["park", "house", "train", "street"],
    )
    premises, hypotheses = [], []
    for label in labels:
        who, deed, place = rng.choice(people), rng.choice(deeds), rng.choice(places)
        premises.append(f"{who} {deed} near the {place} early in the morning")
        other = rng.choice([d for d in deeds if d != deed])
        hypotheses.append({
            "entailment": f"{who} {deed} by the {place}", "neutral": f"{who} {deed} with joy for the neighbors",
            "contradiction": f"{who} {other} by the {place}",
        }[label])  # fmt: skip
    given, wrong = flip(rng, labels)
    pd.DataFrame({"premise": premises, "hypothesis": hypotheses, "label": given}).to_csv(
        folder / "inference.csv", index=False
    )
    joined = [f"{a}\n\n{b}" for a, b in zip(premises, hypotheses, strict=True)]
    return File(
        folder / "inference.csv", wrong, ('"premise" and "hypothesis"', "3 classes"), lambda: (embedded(joined), given)
    )


def clusters(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Embeddings around a center for each class."""
    true = rng.choice(["cat", "dog", "fox"], ROWS)
    centers = {name: rng.normal(0, 1, 32) for name in ("cat", "dog", "fox")}
    x = np.array([centers[t] + rng.normal(0, 1.6, 32) for t in true]).round(4)
    return x, *flip(rng, true)


def vectors_json(folder: Path, rng: np.random.Generator) -> File:
    """Embeddings as lists in JSON Lines."""
    x, given, wrong = clusters(rng)
    _jsonl(
        folder / "vectors.jsonl",
        [
            {"id": f"i{i}", "embedding": v.tolist(), "label": str(g)}
            for i, (v, g) in enumerate(zip(x, given, strict=True))
        ],
    )
    return File(folder / "vectors.jsonl", wrong, ('"embedding" (32', "3 classes"), lambda: (x, given))


def vectors_parquet(folder: Path, rng: np.random.Generator) -> File:
    """Embeddings in a column of Parquet, next to captions."""
    x, given, wrong = clusters(rng)
    captions = [f"a picture that somebody took on day {i} of the trip" for i in range(ROWS)]
    frame = pd.DataFrame({"caption": captions, "vector": list(x.astype(np.float32)), "label": given})
    frame.to_parquet(folder / "vectors.parquet")
    return File(folder / "vectors.parquet", wrong, ('"vector" (32', "3 classes"), lambda: (x, given))


def label_studio(folder: Path, rng: np.random.Generator) -> File:
    """An export of Label Studio."""
    texts, given, wrong = labeled_texts(rng)
    tasks = []
    for i, (text, label) in enumerate(zip(texts, given, strict=True)):
        result = [{"from_name": "queue", "to_name": "text", "type": "choices", "value": {"choices": [str(label)]}}]
        tasks.append(
            {
                "id": i + 1,
                "data": {"text": text},
                "annotations": [{"id": i + 1, "completed_by": 1, "was_cancelled": False, "result": result}],
                "predictions": [],
            }
        )
    (folder / "project-7.json").write_text(json.dumps(tasks))
    return File(folder / "project-7.json", wrong, ('"text"', "4 classes"), lambda: (embedded(texts), given))


def argilla(folder: Path, rng: np.random.Generator) -> File:
    """An export of Argilla."""
    texts, given, wrong = labeled_texts(rng)
    records = [
        {"id": f"r{i}", "status": "completed", "fields": {"text": t}, "metadata": {}, "suggestions": {}, "vectors": {},
         "responses": {"label": [{"value": str(g), "status": "submitted", "user_id": "u1"}]}}
        for i, (t, g) in enumerate(zip(texts, given, strict=True))
    ]  # fmt: skip
    (folder / "records.json").write_text(json.dumps(records))
    return File(folder / "records.json", wrong, ('"text"', "4 classes"), lambda: (embedded(texts), given))


def two_labels(folder: Path, rng: np.random.Generator) -> File:
    """A label by a language model with its confidence, and one by a person."""
    true = rng.choice(list(TOPICS), ROWS)
    texts = texts_of(rng, true, TOPICS)
    model, wrong_model = flip(rng, true, 0.15)
    person, wrong = flip(rng, true, 0.08)
    sure = np.where(wrong_model, rng.uniform(0.3, 0.9, ROWS), rng.uniform(0.6, 1.0, ROWS)).round(2)
    frame = pd.DataFrame({"text": texts, "label_llm": model, "llm_confidence": sure, "label_human": person})
    frame.to_csv(folder / "two_labels.csv", index=False)
    return File(folder / "two_labels.csv", wrong, ("2 annotators", "4 classes"), lambda: (embedded(texts), person))


def reviews(folder: Path, rng: np.random.Generator) -> File:
    """Long reviews of several paragraphs."""
    true, texts = rng.choice(["negative", "positive"], ROWS), []
    for mood in true:
        words = [PRAISE, BLAME] if mood == "positive" else [BLAME, PRAISE]
        parts = [
            f"The {rng.choice(['plot', 'cast', 'music', 'ending', 'pace'])} was {rng.choice(words[rng.random() < 0.25])} to me."
            for _ in range(12)
        ]
        texts.append(
            "I went with friends on a rainy evening. " + " ".join(parts) + "\n\nWe talked about it on the way home."
        )
    given, wrong = flip(rng, true)
    pd.DataFrame({"review": texts, "sentiment": given}).to_csv(folder / "reviews.csv", index=False)
    return File(folder / "reviews.csv", wrong, ('"review"', '"sentiment" (2 classes'), lambda: (embedded(texts), given))


def orders(folder: Path, rng: np.random.Generator) -> File:
    """An Excel sheet of orders."""
    items, days, weight = rng.integers(1, 12, ROWS), rng.integers(1, 30, ROWS), rng.gamma(2, 3, ROWS).round(1)
    true = np.where(days - 2 * items + rng.normal(0, 2, ROWS) > 2, "late", "in time").astype(object)
    given, wrong = flip(rng, true)
    frame = pd.DataFrame(
        {"order": [f"A-{i}" for i in range(ROWS)], "items": items, "days": days, "weight": weight, "outcome": given}
    )
    frame.to_excel(folder / "orders.xlsx", index=False)
    return File(folder / "orders.xlsx", wrong, ('"outcome" (2 classes',), lambda: (encoded(frame, "outcome"), given))


def german(folder: Path, rng: np.random.Generator) -> File:
    """German tickets in a CSV of semicolons and decimal commas."""
    true = rng.choice(list(GERMAN), ROWS)
    texts = []
    for topic in true:
        one, two = rng.choice(GERMAN[topic], 2)
        third = rng.choice(GERMAN[str(rng.choice(list(GERMAN)))])
        texts.append(f"Guten Tag, leider ist mit {one} und {two} etwas schief gegangen, bitte prüfen Sie {third}.")
    given, wrong = flip(rng, true)
    value = [f"{v:.2f}".replace(".", ",") for v in rng.gamma(2, 20, ROWS)]
    frame = pd.DataFrame({"Nr": np.arange(ROWS) + 1, "Nachricht": texts, "Warenwert": value, "Kategorie": given})
    frame.to_csv(folder / "anfragen.csv", sep=";", index=False)
    return File(
        folder / "anfragen.csv", wrong, ('"Nachricht"', '"Kategorie" (3 classes'), lambda: (embedded(texts), given)
    )


def parts(folder: Path, rng: np.random.Generator) -> File:
    """Rows of training and test, ten of which are in both."""
    texts, given, wrong = labeled_texts(rng)
    frame = pd.DataFrame({"text": texts, "label": given, "split": np.where(np.arange(ROWS) < 400, "train", "test")})
    frame.loc[400:409, ["text", "label"]] = frame.loc[:9, ["text", "label"]].to_numpy()
    frame.to_csv(folder / "parts.csv", index=False)
    return File(
        folder / "parts.csv",
        wrong[:400],
        ('"text"', "400 of 500 rows", "4 classes"),
        lambda: (embedded(texts[:400]), given[:400]),
        {"test_duplicate": 10},
    )


MADE: tuple[Callable[..., File], ...] = (
    tickets, churn, photos, tags, entities, votes, prices, chats, instructions, preferences, inference, vectors_json, vectors_parquet,
    label_studio, argilla, two_labels, reviews, orders, german, parts,
)  # fmt: skip


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")


# --- measurement ----------------------------------------------------------------------------------------------


def run_audit(file: File, folder: Path, *options: str) -> tuple[str, str, float]:
    """How the file was read, the output, and the seconds."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "compensate", "audit", str(file.path), "--out", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "400"})
    seconds = time.perf_counter() - started
    if done.returncode:
        error = done.stderr[done.stderr.rfind("error:") :]
        asked = "Traceback" not in done.stderr and re.search(r" --[a-z]", error)
        return "asked about" if asked else "failed", error, seconds
    read = all(word in done.stdout.partition("\n")[0] for word in file.meant)
    return "as meant" if read else "misread", done.stdout, seconds


def found_by(folder: Path, wrong: NDArray[np.bool_]) -> dict[str, float]:
    """Precision, recall and AP of the flags of a run, by rows."""
    suspects = pd.read_csv(folder / "suspects.csv")
    row = (
        suspects["row"] if "row" in suspects else suspects["sentence"] if "sentence" in suspects else suspects["index"]
    )
    score, flagged = np.full(len(wrong), -np.inf), np.zeros(len(wrong), bool)
    for i, s, f in zip(
        row.astype(int), suspects["score"], suspects["flagged"].astype(str).str.lower() == "true", strict=True
    ):
        score[i], flagged[i] = max(score[i], s), flagged[i] | f
    return figures(wrong, np.where(np.isfinite(score), score, score[np.isfinite(score)].min() - 1), flagged)


def figures(wrong: NDArray[np.bool_], score: NDArray[Any], flagged: NDArray[np.bool_]) -> dict[str, float]:
    """Precision and recall of flags, and the AP of scores."""
    from sklearn.metrics import average_precision_score

    hits = float((wrong & flagged).sum())
    ap = float(average_precision_score(wrong, score))
    return {
        "precision": round(hits / max(flagged.sum(), 1), 3),
        "recall": round(hits / max(wrong.sum(), 1), 3),
        "ap": round(ap, 3),
    }


def datalab(x: Any, given: NDArray[Any], wrong: NDArray[np.bool_]) -> dict[str, float]:
    """The same of Datalab, with the cross-validated logistic regression of its tutorials."""
    from cleanlab import Datalab
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    p = cross_val_predict(LogisticRegression(max_iter=2000), x, given, cv=5, method="predict_proba")
    lab = Datalab({"label": [str(g) for g in given]}, label_name="label", verbosity=0)
    lab.find_issues(pred_probs=p, issue_types={"label": {}})
    table = lab.get_issues("label")
    return figures(wrong, -table["label_score"].to_numpy(), table["is_label_issue"].to_numpy())


def measure(make: Callable[..., File], folder: Path, seed: int) -> dict[str, Any]:
    """One row of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    file = make(folder, np.random.default_rng([seed, MADE.index(make) if make in MADE else 99]))
    read, output, seconds = run_audit(file, folder / "run")
    row: dict[str, Any] = {
        "file": file.path.name,
        "what": (make.__doc__ or "").rstrip("."),
        "read": read,
        "seconds": round(seconds, 1),
    }
    row["first line"] = output.strip().split("\n")[0][:300]
    if read in ("as meant", "misread"):
        if file.wrong.any():
            row |= found_by(folder / "run", file.wrong)
        if file.issues:
            listed = pd.read_csv(folder / "run" / "issues.csv")
            issues = listed["issue"][listed["score"] == 1].value_counts()
            row["issues"] = {name: [int(issues.get(name, 0)), planted] for name, planted in file.issues.items()}
    if file.compare is not None:
        row["datalab"] = datalab(*file.compare(), file.wrong)
    return row


def with_metadata(folder: Path, seeds: range) -> dict[str, Any]:
    """AP of texts with columns and of the text alone, where the columns tell the label and where they do not."""
    found: dict[str, Any] = {}
    for name, telling in (("the columns tell", True), ("the columns do not tell", False)):
        both, alone = [], []
        for seed in seeds:
            place = folder / f"{name.replace(' ', '-')}-{seed}"
            place.mkdir(parents=True, exist_ok=True)
            file = tickets(place, np.random.default_rng([seed, 100]), telling)
            for options, into in (((), both), (("--columns", ""), alone)):
                run_audit(file, place / f"run{len(options)}", *options, "--only", "labels")
                into.append(found_by(place / f"run{len(options)}", file.wrong)["ap"])
        found[name] = {"together": both, "text alone": alone, "gain": round(float(np.mean(both) - np.mean(alone)), 3)}
    return found


def markdown(stored: dict[str, Any]) -> str:
    """The stored results as a table."""

    def figures(row: dict[str, Any]) -> str:
        return f"{row['precision']:.2f}, {row['recall']:.2f}, {row['ap']:.3f}" if "ap" in row else "–"

    rows = list(stored["files"].values())
    lines = ["| file | content | read | precision, recall, AP | Datalab | seconds |", "|---|---|---|---|---|---|"]
    for row in rows:
        issues = ", ".join(f"{name} {n} of {planted}" for name, (n, planted) in row.get("issues", {}).items())
        own, other = figures(row) if "ap" in row else issues or "–", figures(row.get("datalab") or {})
        lines.append(f"| {row['file']} | {row['what']} | {row['read']} | {own} | {other} | {row['seconds']:.0f} |")
    counts = Counter(row["read"] for row in rows)
    lines += ["", f"{len(rows)} files: " + ", ".join(f"{n} {how}" for how, n in counts.most_common()) + "."]
    for name, found in stored.get("metadata", {}).items():
        together, alone = np.mean(found["together"]), np.mean(found["text alone"])
        lines.append(f"Tickets, {name}: AP {together:.3f} with the other columns, {alone:.3f} by the text alone.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of makers, with commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the files and runs")
    parser.add_argument("--quick", action="store_true", help="three files")
    parser.add_argument("--write", action="store_true", help="put the stored table into docs/detection.md")
    given = parser.parse_args()
    if given.write:
        page = Path(__file__).parent.parent / "docs" / "detection.md"
        before, rest = page.read_text("utf-8").split(MARKS[0])
        shown = markdown(json.loads(RESULTS.read_text()))
        page.write_text(f"{before}{MARKS[0]}\n{shown}\n{MARKS[1]}{rest.split(MARKS[1], 1)[1]}", "utf-8")
        return
    only = given.only.split(",") if given.only else ["churn", "tags", "prices"] if given.quick else None
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"files": {}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        for make in MADE:
            if only is None or make.__name__ in only:
                row = stored["files"][make.__name__] = measure(make, folder / make.__name__, given.seed)
                print(json.dumps(row, ensure_ascii=False), flush=True)
        if only is None or "metadata" in only:
            stored["metadata"] = with_metadata(folder / "metadata", range(10, 15))
            print(json.dumps(stored["metadata"]))
    stored["seed"] = given.seed
    if not given.quick:
        RESULTS.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
