"""A gallery of suspect labels in public data sets: no error is planted, and a person judges each suspect.

Each set is audited as it is published. Its most suspect labels go to ``results/gallery/SET.json``, with an empty verdict. A person looks at them,
writes "wrong", "debatable" or "right" (about the given label) and a reason into the file, and `page` makes the page of all sets.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import experiments.data  # noqa: F401  the public data sets by name
from compensate.auditing.api import audit
from compensate.auditing.content import Content, label_content
from compensate.auditing.labels.tags import parse_tokens
from compensate.auditing.page import page_of, payload, to_json
from compensate.auditing.result import Audit
from compensate.data import Dataset, digits, from_frame, load
from compensate.errors import InputError
from compensate.extras import escape
from compensate.files import make_folder, read_text, write_atomically

TOP = 12
VERDICTS = ("wrong", "debatable", "right")
QUOTED = 200  # characters of a text that are shown
SIDE = 96  # of a picture, in pixels
REVIEWS = 2_000  # of IMDB, the first of its fixed random order
NEWS = ("world", "sports", "business", "science")


@dataclass(frozen=True)
class Set:
    """A data set: its title, the labels that are audited, the function that reads it, and whether the review page is part of the site."""

    title: str
    about: str
    read: Callable[[Path], tuple[Any, ...]]
    page: bool = False


def _titled(data: Dataset, title: str) -> tuple[Dataset]:
    return (replace(data, source=replace(data.source, title=title)),)


def _file(folder: Path, name: str) -> Path:
    found = next((path for path in (folder / name, folder / f"{name}.xz") if path.is_file()), None)
    if found is None:
        raise InputError(f"{name} is missing in {folder}; see --data-dir.")
    return found


def _cells(folder: Path) -> tuple[Dataset]:
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer(as_frame=True).frame
    table["target"] = np.where(table["target"] == 1, "benign", "malignant")
    return _titled(from_frame(table, "breast cancer", label="target").train, "breast cancer")


def _news(folder: Path) -> tuple[Dataset]:
    table = pd.read_csv(_file(folder, "noisy-agnews-train.csv"))
    table["label"] = [NEWS[k] for k in table["gt"]]
    return _titled(from_frame(table[["text", "label"]], "AG-News").train, "AG-News")


def _test_images(name: str, title: str) -> Callable[[Path], tuple[Dataset]]:
    def read(folder: Path) -> tuple[Dataset]:
        test = load(name, folder).test
        assert test is not None
        return _titled(test, title)

    return read


def _entities(folder: Path) -> tuple[list[list[str]], list[list[str]]]:
    path = _file(folder, "wnut17-train.conll")
    sentences = parse_tokens(read_text(path), path)
    return [[token.word for token in s] for s in sentences], [[token.tag for token in s] for s in sentences]


def _pairs(folder: Path) -> tuple[pd.DataFrame]:
    rows = pd.DataFrame(json.loads(read_text(_file(folder, "pandalm-test.json"))))
    return (rows[["instruction", "input", "response1", "response2", "annotator1", "annotator2", "annotator3"]],)


SETS = {
    "digits": Set("Digits", "1,797 images of scikit-learn", lambda folder: _titled(digits(), "digits"), page=True),
    "breast-cancer": Set("Breast cancer", "569 rows of scikit-learn", _cells, page=True),
    "sst2": Set("SST-2", "6,920 training sentences", lambda folder: _titled(load("sst2", folder).train, "SST-2")),
    "imdb": Set("IMDB", f"{REVIEWS:,} of 25,000 training reviews",
                lambda folder: _titled(load("imdb", folder).train.subset(np.arange(REVIEWS)), "IMDB")),
    "agnews": Set("AG-News", "10,000 texts of NoisyAG-News with the original labels", _news),
    "cifar10": Set("CIFAR-10", "10,000 test images", _test_images("cifar10", "CIFAR-10")),
    "cifar100": Set("CIFAR-100", "10,000 test images, 100 classes", _test_images("cifar100", "CIFAR-100")),
    "wnut17": Set("WNUT-17", "3,394 training sentences, entity tags", _entities, page=True),
    "pandalm": Set("PandaLM", "999 pairs of responses, majority of three annotators", _pairs),
}  # fmt: skip


def make(name: str, data_dir: Path, results: Path, runs: Path, docs: Path) -> dict[str, Any]:
    """Audits a set and stores its most suspect labels, its pictures and the data of its review page, unless that is done.

    Returns what is stored of the labels.
    """
    path = results / f"{name}.json"
    if path.is_file():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    one = SETS[name]
    found = audit(*one.read(data_dir))
    order = np.argsort(-found.log_odds, kind="stable")[:TOP].tolist()
    contents = [label_content(found, i) for i in order]
    stored: dict[str, Any] = {
        "set": name, "labels": len(found), "flagged": int(found.mask.sum()), "share": [round(v, 4) for v in vars(found.noise_rate).values()],
        "encoder": found.provenance.encoder, "suspects": [_suspect(found, i, c) for i, c in zip(order, contents, strict=True)],
    }  # fmt: skip
    for suspect, content in zip(stored["suspects"], contents, strict=True):
        if content.image is not None:
            make_folder(docs / "img" / "gallery")
            write_atomically(docs / "img" / "gallery" / f"{name}-{suspect['row']}.png", enlarged(content.image))
    make_folder(runs)
    texts = [
        f"{s['row']} {s['given']} -> {s['suggested']}\n{words(c)}\n"
        for s, c in zip(stored["suspects"], contents, strict=True)
    ]
    write_atomically(runs / f"{name}.txt", "\n".join(texts).encode())
    if one.page:
        make_folder(results / "pages")
        data = to_json(payload(page_of(found.flag(budget=TOP)) | {"title": one.title}))
        write_atomically(results / "pages" / f"{name}.json", f"{data}\n".encode())
    make_folder(results)
    write_atomically(path, (json.dumps(stored, indent=1, ensure_ascii=False) + "\n").encode())
    return stored


def _suspect(found: Audit, i: int, content: Content) -> dict[str, Any]:
    suggested = int(found.suggested[i])
    if content.sides:  # the audit suggests to drop a pair; the page names the likelier answer
        assert found.probabilities is not None
        p = found.probabilities[i].copy()
        p[found.given[i]] = 0
        suggested = int(p.argmax())
    given, better = (found.classes[int(c)] for c in (found.given[i], suggested))
    quoted = "" if content.image is not None else cut(words(content))
    about = {"row": int(found.rows[i]), "given": given, "suggested": better, "p": round(float(found.p_error[i]), 3)}
    return about | {"text": quoted, "verdict": "", "reason": ""}


def words(content: Content) -> str:
    """A sample in words: its text, its sentence with the judged words in brackets, a pair, or the cells of a row."""
    if content.tokens:
        assert isinstance(content.marked, tuple)
        start, stop = content.marked
        said = [word for word, _ in content.tokens]
        return " ".join([*said[:start], f"[{' '.join(said[start:stop])}]", *said[stop:]])
    if content.sides:
        return " / ".join([content.text or "", *(f"{name}: {text}" for name, text in content.sides)])
    return content.text or ", ".join(f"{name} {value}" for name, value in content.fields)


def cut(text: str) -> str:
    """The beginning of a text, in one line.

    >>> len(cut("word " * 100))
    200
    """
    text = " ".join(text.split())
    return text if len(text) <= QUOTED else text[: QUOTED - 1] + "…"


def enlarged(image: bytes) -> bytes:
    """A small picture with larger pixels, as PNG."""
    from PIL import Image

    picture = Image.open(io.BytesIO(image))
    file = io.BytesIO()
    scale = max(1, SIDE // max(picture.size))
    picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST).save(
        file, "PNG", optimize=True
    )
    return file.getvalue()


def check_verdicts(stored: Mapping[str, Any]) -> None:
    """Raises unless each suspect has a verdict and a reason."""
    for suspect in stored["suspects"]:
        if suspect["verdict"] not in VERDICTS or not suspect["reason"]:
            where = f"row {suspect['row']} of results/gallery/{stored['set']}.json"
            raise InputError(
                f'{where} has the verdict "{suspect["verdict"]}"; write one of {", ".join(VERDICTS)}, and a reason.'
            )
        if len(suspect["text"]) > QUOTED:
            raise InputError(
                f"row {suspect['row']} of {stored['set']} quotes {len(suspect['text'])} characters; at most {QUOTED} are shown."
            )


def page(results: Path) -> str:
    """The page of all sets that are stored, as Markdown."""
    sets = [
        json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        for name in SETS
        if (results / f"{name}.json").is_file()
    ]
    for stored in sets:
        check_verdicts(stored)
    parts = [INTRODUCTION, *_counts(sets)]
    for stored in sets:
        parts += _section(stored)
    return "\n".join(parts) + "\n"


INTRODUCTION = f"""# Gallery of errors found

The {TOP} most suspect labels of public data sets, audited as they are published: no error is planted. `python -m experiments gallery --data-dir DIR`
audits the sets and stores the suspects; every one was then looked at, and its *given* label was judged:

- **wrong**: the label contradicts the sample, or the rule that the other labels follow;
- **debatable**: people could reasonably choose either label;
- **right**: the audit is mistaken.

One reader made the judgments knowing both labels, so they may lean toward the suggestions. Long texts are cut to the part that decides. The
labels of breast cancer are biopsies, which nobody can see in the numbers: a label is called debatable if, in both measurements that are shown, at
least one in ten rows of the other class lies further toward the given class. The verdicts, with reasons, are in `results/gallery/`.
"""

CONCLUSION = """The first rows of a list are where a model is most confident *and* most surprised, so they also collect its own failures: dark dogs, fawns and
white tigers, praise by negation ("not half bad"). On CIFAR-10, CIFAR-100, SST-2 and WNUT-17 far fewer of them are wrong than the probabilities
say. On AG-News the labels come from the section that published the text, and the audit finds texts that belong elsewhere.
"""


def _counts(sets: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| data set | audited | flagged | expected errors among these | wrong | debatable | right | review page |",
        "|---|---|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    for stored in sets:
        one, count = SETS[stored["set"]], Counter(s["verdict"] for s in stored["suspects"])
        total += count
        expected = sum(s["p"] for s in stored["suspects"])
        link = f"[open](gallery/{stored['set']}.html)" if one.page else ""
        anchor = one.title.lower().replace(" ", "-")
        numbers = " | ".join(str(count[v]) for v in VERDICTS)
        lines.append(
            f"| [{one.title}](#{anchor}) | {one.about} | {stored['flagged']:,} | {expected:.1f} | {numbers} | {link} |"
        )
    numbers = " | ".join(f"**{total[v]}**" for v in VERDICTS)
    return [*lines, f"| all | | | | {numbers} | |", "", CONCLUSION]


def _section(stored: Mapping[str, Any]) -> list[str]:
    one, name = SETS[stored["set"]], stored["set"]
    value, low, high = stored["share"]
    encoder = f" Encoder: {stored['encoder']}." if stored["encoder"] else ""
    said = f"The audit estimates that {value:.1%} of the labels are wrong ({low:.1%} to {high:.1%}).{encoder}"
    lines = [
        f"## {one.title}",
        "",
        said,
        "",
        "| sample | row | given | suggested | p | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for s in stored["suspects"]:
        picture = f"![{s['given']}, row {s['row']}](img/gallery/{name}-{s['row']}.png)"
        sample = _cell(s["text"]) if s["text"] else picture
        verdict = f"**{s['verdict']}**: {_cell(s['reason'])}"
        lines.append(
            f"| {sample} | {s['row']} | {_cell(s['given'])} | {_cell(s['suggested'])} | {s['p']:.2f} | {verdict} |"
        )
    return [*lines, ""]


def _cell(text: str) -> str:
    """A text in a cell of a table: nothing in it is markup."""
    return "".join(f"\\{c}" if c in "\\`*_[]#|~" else c for c in str(escape(text, QUOTED)))
