"""Texts whose labels a model keeps contradicting: the paper's tables of sentences."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from compensate._version import __version__
from compensate.auditing.write_back import guard
from compensate.data import Dataset, Splits, load
from compensate.errors import InputError
from compensate.files import make_folder, write_atomically
from compensate.training.config import Config
from compensate.training.fitting import fit
from experiments.protocols import PROTOCOLS

LENGTH = 160
"""Characters of a text that are kept."""

QUOTED = {
    "the exploitative, clumsily staged violence overshadows everything": "wrong",
    "a fascinating curiosity piece -- fascinating, that is, for about ten minutes": "wrong",
    "this is a great movie. I love the series on tv and so I loved the movie": "wrong",
    "plummer steals the show without resorting to camp as nicholas' wounded": "wrong",
    "it 's a boring movie about a boring man, made watchable by a bravura performance": "hard",
    "she is a lioness, protecting her cub, and he a reluctant villain": "hard",
    "it made me want to get made-up and go see this movie with my sisters": "hard",
}
"""Beginnings of the sentences that the paper quotes, and in which of its two tables they are."""


@dataclass(frozen=True)
class Sentence:
    """A text and the record of its label in a few trainings.

    Attributes:
        index: its row in the source.
        text: its beginning.
        given: the name of its label.
        suggested: the class that most trainings would give instead.
        size: the l1 norm of its logit compensation, mean over epochs and seeds.
        rank: 1 for the largest.
        contradicted: in how many of the trainings the model was against the label on average.
    """

    index: int
    text: str
    given: str
    suggested: str
    size: float
    rank: int
    contradicted: int


@dataclass(frozen=True)
class Sentences:
    """The results on a corpus.

    Attributes:
        data: its name.
        config: of the first training, as it was asked for.
        seeds: how many trainings.
        texts: how many texts were looked at.
        top: those with the largest compensation, largest first.
        quoted: the sentences that the paper quotes, where the corpus has them.
        version: of the package.
    """

    data: str
    config: Mapping[str, Any]
    seeds: int
    texts: int
    top: tuple[Sentence, ...]
    quoted: tuple[Sentence, ...] = ()
    version: str = __version__

    def save(self, path: Path) -> None:
        """Writes them as JSON."""
        make_folder(path.parent)
        write_atomically(path, (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Sentences:
        """Reads them from a file."""
        stored = json.loads(path.read_text(encoding="utf-8"))
        rows = {name: tuple(Sentence(**row) for row in stored[name]) for name in ("top", "quoted")}
        return cls(**{**stored, **rows})


def setting(data: str, limit: int | None = None, **changes: Any) -> Config:
    """The training on a corpus: the small protocol, LogComp, unchanged labels.

    >>> setting("sst2").method, setting("sst2").noise
    ('logcomp', 'none')
    """
    known = data in PROTOCOLS["small"]
    options = {**PROTOCOLS["small"][data if known else "imdb"].options, "validation": 0.0}
    if not known:
        options["vectors"] = None
    if limit is not None:
        options["limit"] = limit
    return Config(**{"data": data, **options, "method": "logcomp", **changes})


def find_sentences(
    config: Config,
    *,
    seeds: int = 3,
    top: int = 20,
    data: Splits | None = None,
    data_dir: Path | None = None,
    runs: Path | None = None,
    console: Console | None = None,
) -> Sentences:
    """Trains a few times and ranks all texts by their mean compensation.

    Args:
        config: the training; its seed is replaced. With a `limit`, all seeds see the same texts, the first of each class.
        seeds: how many trainings.
        top: how many texts to name.
        data: the corpus itself, where it is not to be loaded by name.
        data_dir: where named corpora are.
        runs: folder of the trainings; a finished one is read, one that was interrupted goes on.
        console: shows progress.
    """
    splits = load(config.data, data_dir, **config.data_options) if data is None else data
    if getattr(getattr(splits.train.x, "dtype", None), "kind", "") != "O":
        raise InputError(f"{config.data} has no texts; give sst2, imdb, or a table with a column of texts.")
    splits = Splits(_first(splits.train, config.limit), splits.test, splits.validation)
    sizes, against, votes = [], [], []
    for seed in range(seeds):
        one = config.replace(seed=seed)
        folder = None if runs is None else runs / one.name
        result = fit(one, data=splits, data_dir=data_dir, folder=folder, resume=folder is not None, console=console)
        record, index = result.criterion.record, torch.from_numpy(result.prepared.train.index)
        assert record is not None
        sizes.append(record.mean("size")[index].numpy())
        against.append((record.mean("margin")[index] < 0).numpy())
        votes.append(record.guess[index].numpy())
        kept = result.prepared.train
    mean, contradicted = np.mean(sizes, 0), np.sum(against, 0)
    order = np.argsort(-mean, kind="stable")

    def row(rank: int) -> Sentence:
        at = int(order[rank])
        guesses = np.bincount([v[at] for v in votes], minlength=kept.num_classes)
        return Sentence(
            int(kept.index[at]), cut(_text(kept, at)), kept.classes[kept.target[at]], kept.classes[int(guesses.argmax())],
            round(float(mean[at]), 4), rank + 1, int(contradicted[at]),
        )  # fmt: skip

    quoted = [row(int(np.flatnonzero(order == at)[0])) for at in _quoted(kept)]
    stored = {k: v for k, v in config.json.items() if v not in (None, {})}
    found = tuple(row(rank) for rank in range(min(top, len(order))))
    return Sentences(config.data, stored, seeds, len(order), found, tuple(sorted(quoted, key=lambda s: s.rank)))


def _first(data: Dataset, limit: int | None) -> Dataset:
    """The first texts of each class, the same share of all: the limit of a `Config` would differ from seed to seed."""
    if limit is None or limit >= len(data):
        return data
    share = limit / len(data)
    rows = [np.flatnonzero(data.target == c) for c in range(data.num_classes)]
    kept = np.sort(np.concatenate([r[: round(share * len(r))] for r in rows]))
    return data.subset(kept[:limit])


def _text(data: Dataset, row: int) -> str:
    return str(data.raw[row] if data.table is None else data.table.iloc[row][str(data.source.text)])


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


def _quoted(data: Dataset) -> list[int]:
    wanted = [_letters(start) for start in QUOTED]
    texts = (_letters(_text(data, row)[:400]) for row in range(len(data)))
    return [row for row, text in enumerate(texts) if any(start in text for start in wanted)]


def cut(text: str, length: int = LENGTH) -> str:
    """The beginning of a text on one line, cut between words.

    >>> cut("a  long <br />text that goes on", 14)
    'a long text …'
    """
    flat = " ".join(re.sub(r"<[a-zA-Z/][^<>]{0,200}>", " ", text).split())
    return flat if len(flat) <= length else flat[: length - 1].rsplit(" ", 1)[0] + " …"


def escaped(text: str) -> str:
    r"""A text that Markdown leaves as it is, in a cell of a table too.

    >>> escaped("a *b* | <c> $d$ [e]")
    'a \\*b\\* \\| &lt;c&gt; \\$d\\$ \\[e\\]'
    """
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$#])", r"\\\1", safe)


def table(rows: Sequence[Sentence], seeds: int) -> str:
    """The sentences as a Markdown table."""
    head = ["rank", "text", "given", "suggested", "mean \\|v\\|", f"contradicted, of {seeds}"]
    lines = [
        [str(s.rank), escaped(s.text), escaped(s.given), escaped(s.suggested), f"{s.size:.2f}", str(s.contradicted)]
        for s in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def write(found: Sentences, path: Path) -> None:
    """Writes the sentences as .csv, .md or .json, as the name of the file says."""
    if path.suffix == ".json":
        found.save(path)
        return
    if path.suffix == ".md":
        text = table(found.top, found.seeds) + "\n"
    elif path.suffix == ".csv":
        buffer = io.StringIO()
        rows = csv.writer(buffer, lineterminator="\n")
        rows.writerow(Sentence.__dataclass_fields__)
        rows.writerows([guard(v) if isinstance(v, str) else v for v in asdict(s).values()] for s in found.top)
        text = buffer.getvalue()
    else:
        raise InputError(f'{path} ends in "{path.suffix}"; expected .csv, .md or .json.')
    make_folder(path.parent)
    write_atomically(path, text.encode())


def agreement_with_paper(found: Sentences) -> list[str]:
    """A line for each sentence that the paper quotes: where it stands among all texts here."""
    lines = []
    for s in found.quoted:
        kind = next(kind for start, kind in QUOTED.items() if _letters(start) in _letters(s.text))
        lines.append(
            f"- “{escaped(cut(s.text, 70))}” (the paper: {'wrong label' if kind == 'wrong' else 'difficult to predict'}): "
            f"rank {s.rank:,} of {found.texts:,}, contradicted by {s.contradicted} of {found.seeds} trainings."
        )
    return lines


def sentences_section(results: Path) -> list[str]:
    """The stored sentences of all corpora as parts of a Markdown page; nothing if there are none."""
    paths = sorted((results / "sentences").glob("*.json"))
    parts = []
    for path in (p for p in paths if p.stem != "readings"):
        found = Sentences.read(path)
        parts += [
            f"### {found.data.upper().replace('SST2', 'SST-2')}",
            f"`{_command(found)}`: {found.texts:,} texts with their original labels, LogComp, {found.seeds} "
            f"trainings of {found.config.get('epochs')} epochs. |v| is the l1 norm of a text's logit compensation, the mean over "
            "epochs and trainings.",
        ]
        parts += _read(found, results / "sentences" / "readings.json")
        quoted = agreement_with_paper(found)
        if quoted:
            parts += ["Ranks of the sentences that the paper quotes:", "\n".join(quoted)]
    return parts


def _command(found: Sentences) -> str:
    """The command line."""
    limit, usual = found.config.get("limit"), setting(found.data).limit
    more = f" --limit {limit}" if limit != usual else ""
    more += f" --seeds {found.seeds}" if found.seeds != 3 else ""
    more += f" --top {len(found.top)}" if len(found.top) != 20 else ""
    more += "".join(f" --set hyper.{name}={value}" for name, value in (found.config.get("hyper") or {}).items())
    return f"python -m experiments sentences {found.data}{more} -o results/sentences/{found.data}.json"


def _read(found: Sentences, path: Path) -> list[str]:
    """The table, or two if somebody has read the texts and said which labels are wrong."""
    readings = json.loads(path.read_text(encoding="utf-8")).get(found.data, {}) if path.is_file() else {}
    said = {
        "wrong": "Labels that look wrong:",
        "hard": "Labels that look right or ambiguous, on texts that mislead a model:",
    }
    if any(str(s.index) not in readings for s in found.top):
        return [table(found.top, found.seeds)]
    parts = ["Which labels are wrong was decided by reading the texts; it is an opinion."]
    for kind, title in said.items():
        rows = [s for s in found.top if readings[str(s.index)] == kind]
        parts += [title, table(rows, found.seeds)] if rows else []
    return parts
