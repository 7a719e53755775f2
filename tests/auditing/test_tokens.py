"""Tagged sentences: read from CoNLL and JSONL, judged token by token, and written back with nothing else changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from compensate.auditing.api import audit
from compensate.auditing.apply import apply_corrections
from compensate.auditing.decisions import Correction
from compensate.auditing.labels.tags import Scheme, Token, shape, type_of
from compensate.auditing.source import read
from compensate.cli import app
from compensate.errors import InputError

CITIES, PEOPLE = ("Paris", "Lima", "Oslo", "Rome"), ("Ann Lee", "Bob Ray", "Eva Sun")
WRONG = (7, 30, 61)
"""Sentences whose city has no tag."""


def sentences() -> list[list[tuple[str, str]]]:
    rng = np.random.default_rng(0)
    found = []
    for k in range(90):
        city, person = rng.choice(CITIES), rng.choice(PEOPLE).split()
        verb = str(rng.choice(["visits", "likes", "leaves"]))
        tag = "O" if k in WRONG else "B-city"
        found.append(
            [(person[0], "B-person"), (person[1], "I-person"), (verb, "O"), ("in", "O"), (str(city), tag), (".", "O")]
        )
    return found


def conll(path: Path) -> Path:
    lines = ["\r\n".join(f"{word} NN {tag}" for word, tag in sentence) for sentence in sentences()]
    path.write_bytes("\r\n\r\n".join(lines).encode())
    return path


def jsonl(path: Path) -> Path:
    rows = ({"id": k, "tags": [t for _, t in s], "tokens": [w for w, _ in s]} for k, s in enumerate(sentences()))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["t.conll", "t.jsonl"])
def test_dropped_tags_are_found_and_put_back_and_no_other_byte_changes(tmp_path: Path, name: str) -> None:
    path = (conll if name == "t.conll" else jsonl)(tmp_path / name)
    found = audit(path, encoder="none")
    worst = found.suspects.head(3)
    assert sorted(worst["token"]) == [6 * k + 4 for k in WRONG]
    assert set(worst["given"]) == {"O"}
    assert set(worst["suggested"]) == {"city"}
    assert worst["id"].isin(CITIES).all()
    assert found.addresses[0] == (0, range(2))  # the tokens of an entity are judged together
    out = tmp_path / f"fixed{path.suffix}"
    made = [
        Correction(t, "O", "accept", "city", part=f"tokens {t} 1", source=found.source_digest) for t in worst["token"]
    ]
    done = apply_corrections(path, made, out)
    assert (done.changed, done.checked) == (3, True)
    before, after = path.read_bytes(), out.read_bytes()
    assert after.count(b"B-city") == 90
    assert len(after) == len(before) + 3 * len("B-city") - 3
    assert after.replace(b"B-city", b"O") == before.replace(b"B-city", b"O")


def test_the_command_audits_tokens_and_applies_what_it_finds(tmp_path: Path) -> None:
    path = conll(tmp_path / "t.conll")
    run = CliRunner()
    done = run.invoke(app, ["audit", str(path), "--encoder", "none", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "540 tokens, 2 kinds of tags" in done.output
    assert '"tokens":[' in (tmp_path / "run" / "report.html").read_text()
    fixed = tmp_path / "fixed.conll"
    done = run.invoke(app, ["apply", str(path), str(tmp_path / "run"), "--accept", "0.05", "-o", str(fixed)])
    assert done.exit_code == 0, done.output
    assert len(read(fixed, None, None, {}).parts.tokens) == 540


def test_lists_of_words_and_tags_are_audited() -> None:
    words = [[w for w, _ in s] for s in sentences()]
    tags = [[t for _, t in s] for s in sentences()]
    assert audit(words, tags, encoder="none").classes == ("O", "city", "person")
    with pytest.raises(InputError, match="sentence 0 has 6 tokens and 5 tags"):
        audit(words, [tags[0][:5], *tags[1:]])
    with pytest.raises(InputError, match="pass them too"):
        audit(words)


@pytest.mark.parametrize(
    ("tags", "new", "expected"),
    [
        ("B-x I-x I-x O", {0: "O"}, "O B-x I-x O"),  # what follows a removed beginning begins
        ("O B-x I-x O", {3: "x"}, "O B-x I-x I-x"),  # an entity grows to the right
        ("O B-x I-x O", {0: "x"}, "B-x B-x I-x O"),  # what began before still begins
        ("B-x B-x O O", {2: "x"}, "B-x B-x I-x O"),  # neighbors stay apart
        ("B-x I-x O O", {1: "y"}, "B-x B-y O O"),
        ("S-x O O", {1: "x", 2: "x"}, "B-x I-x E-x"),
        ("B-x E-x O", {1: "O"}, "S-x O O"),
        ("NOUN VERB", {0: "VERB"}, "VERB VERB"),
    ],
)
def test_prefixes_follow_the_types(tags: str, new: dict[int, str], expected: str) -> None:
    old = tags.split()
    types = [type_of(tag) for tag in old]
    scheme = Scheme.of(
        [[Token("w", tag) for tag in (*old, *(["E-x"] if "S-x" in old else ["S-x"] if "E-x" in old else []))]]
    )
    assert scheme.write([new.get(k, kind) for k, kind in enumerate(types)], old, types) == expected.split()


def test_shapes_are_short() -> None:
    assert shape("HELLO") == "X"
    assert shape("") == ""


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.conll", "word\n", "line 1"),
        ("a.conll", "a O\nb\tO\n\nlonely\n", "line 4"),
        ("a.conll", "\n\n", "no token"),
        ("a.conll", "a O\nb O\n", "an audit needs"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O", "O"]}\n', "1 words and 2 tags"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": "a"}\n', "row 1"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [null]}\n', '"None"'),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a"\n', "line 2"),
    ],
)
def test_malformed_files_are_refused_with_the_place(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        audit(tmp_path / name)


@pytest.mark.parametrize(
    ("part", "given", "label", "said"),
    [
        ("tokens 0 2", "city", "person", "differs from the reviewed data"),
        ("tokens 1 2", "person", "city", "differs from the reviewed data"),
        ("tokens 539 2", "O", "city", "tokens 0 to 539"),
        ("tokens 0 0", "person", "city", "tokens 0 to 539"),
        ("tokens 0 2", "person", "a b", "blank"),
    ],
)
def test_a_correction_that_fits_nothing_is_refused(
    tmp_path: Path, part: str, given: str, label: str, said: str
) -> None:
    path = conll(tmp_path / "t.conll")
    with pytest.raises(InputError, match=said):
        apply_corrections(path, [Correction(0, given, "accept", label, part=part)], tmp_path / "out.conll")
    assert not (tmp_path / "out.conll").exists()


def test_options_of_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="label is not an option for tagged tokens"):
        audit(conll(tmp_path / "t.conll"), label="x")
