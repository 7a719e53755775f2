"""Tagged sentences: read from CoNLL and JSONL, judged token by token, and written back with nothing else changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_review_round_trip import sentences, write_conll

from compensate.auditing.api import audit
from compensate.auditing.decisions import Correction
from compensate.auditing.labels.tags import prefix_scheme, split_tag, with_prefixes
from compensate.auditing.result import apply_corrections
from compensate.errors import InputError


def test_lists_of_words_and_tags_are_audited() -> None:
    words = [[w for w, _ in s] for s in sentences()]
    tags = [[t for _, t in s] for s in sentences()]
    assert audit(words, tags, encoder="none").classes == ("O", "city", "person")
    with pytest.raises(InputError, match="sentence 0 has 5 tokens and 4 tags"):
        audit(words, [tags[0][:4], *tags[1:]])
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
    types = [split_tag(tag)[1] for tag in old]
    after = [new.get(k, kind) for k, kind in enumerate(types)]
    assert with_prefixes(prefix_scheme(old), after, old, types) == expected.split()


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
        ("tokens 749 2", "O", "city", "tokens 0 to 749"),
        ("tokens 0 0", "person", "city", "tokens 0 to 749"),
        ("tokens 0 2", "person", "a b", "blank"),
    ],
)
def test_a_correction_that_fits_nothing_is_refused(
    tmp_path: Path, part: str, given: str, label: str, said: str
) -> None:
    path = write_conll(tmp_path)
    with pytest.raises(InputError, match=said):
        apply_corrections(path, [Correction(0, given, "accept", label, part=part)], tmp_path / "out.conll")
    assert not (tmp_path / "out.conll").exists()


def test_options_of_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="label is not an option for tagged tokens"):
        audit(write_conll(tmp_path), label="x")
