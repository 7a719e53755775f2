"""Texts with large compensation: planted errors come first, and are written safely."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from compensate.data import Dataset, Splits
from compensate.errors import InputError
from compensate.training.config import Config
from compensate.training.fitting import fit
from experiments import sentences as s
from experiments.__main__ import app

pytestmark = pytest.mark.slow

PLANTED = (5, 40, 77, 101)
GOOD, BAD = ["good", "fine", "lovely", "bright", "warm"], ["bad", "poor", "awful", "dull", "cold"]


def corpus(n=120):
    """Texts whose words tell their class, but for a few labels that are wrong."""
    draw = np.random.default_rng(0)
    target = np.arange(n) % 2
    texts = [" ".join(draw.choice(GOOD if y else BAD, 4)) + f" film {i}" for i, y in enumerate(target)]
    target = target.copy()
    target[[i for i in PLANTED if i < n]] ^= 1
    return Dataset(np.array(texts, dtype=object), target, ("negative", "positive"))


TINY = Config(
    data="planted", method="logcomp", model="bilstm", model_options={"hidden": 8}, epochs=6, batch_size=16, lr=0.01,
    validation=0.0, test=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def found():
    return s.find_sentences(TINY, seeds=2, top=6, data=Splits(corpus()))


def test_planted_errors_come_first_with_the_right_suggestion(found):
    assert {row.index for row in found.top[: len(PLANTED)]} == set(PLANTED)
    truth = np.arange(120) % 2
    for rank, row in enumerate(found.top, start=1):
        assert row.rank == rank
        if row.index in PLANTED:
            assert row.suggested == ("negative", "positive")[truth[row.index]] != row.given
            assert row.contradicted == 2
    sizes = [row.size for row in found.top]
    assert sizes == sorted(sizes, reverse=True)
    assert found.texts == 120


def test_sizes_are_means_over_trainings_and_epochs(found):
    """The oracle adds up what every step of two trainings gave each sample."""
    given = np.zeros(120)

    def add(state):
        np.add.at(given, state.index.numpy(), state.du.detach().abs().sum(1).numpy())

    for seed in (0, 1):
        fit(TINY.but(seed=seed), data=Splits(corpus()), on_step=add)
    for row in found.top:
        assert row.size == pytest.approx(given[row.index] / (2 * TINY.epochs), abs=1e-4)
    assert set(np.argsort(-given)[:6]) == {row.index for row in found.top}


def test_a_limit_keeps_the_same_texts_for_every_seed():
    data = corpus()
    kept = s._first(data, 30)
    assert len(kept) == 30
    shares = data.class_counts / 120
    assert kept.class_counts == pytest.approx(30 * shares, abs=1)
    first = [np.flatnonzero(data.target == c)[: kept.class_counts[c]] for c in (0, 1)]
    assert set(kept.index) == set(np.concatenate(first))
    assert s._first(data, None) is s._first(data, 500) is data
    limited = s.find_sentences(TINY.but(limit=30, epochs=1), seeds=2, top=30, data=Splits(data))
    assert {row.index for row in limited.top} == set(kept.index.tolist())


def test_sentences_of_the_paper_are_looked_up(found):
    texts = np.array(
        ["The exploitative , clumsily staged violence overshadows everything , including", "good film", "bad film"] * 4,
        dtype=object,
    )
    data = Dataset(texts, np.arange(12) % 2, ("negative", "positive"))
    one = s.find_sentences(TINY.but(epochs=1), seeds=1, top=3, data=Splits(data))
    assert {row.index for row in one.quoted} == {0, 3, 6, 9}
    (line, *_) = s.agreement_with_paper(one)
    assert "the paper: wrong label" in line
    assert f"rank {one.quoted[0].rank} of 12" in line
    assert found.quoted == ()


@pytest.mark.parametrize("suffix", [".csv", ".md", ".json"])
def test_written_tables_hold_every_row_safely(found, tmp_path, suffix):
    evil = s.Sentence(3, "=1+1 | *b*", "negative", "positive", 2.0, 1, 2)
    odd = s.Sentences("x", {}, 2, 9, (evil, found.top[0]))
    path = tmp_path / "deep" / f"table{suffix}"
    s.write(odd, path)
    text = path.read_text()
    if suffix == ".csv":
        rows = list(csv.DictReader(text.splitlines()))
        assert rows[0]["text"] == "'=1+1 | *b*"
        assert (rows[0]["size"], rows[1]["index"]) == ("2.0", str(found.top[0].index))
    elif suffix == ".md":
        row = next(line for line in text.splitlines() if "=1" in line)
        assert row.replace(r"\|", "").count("|") == 7, "a bar in a text is not a border"
        assert r"\*b\*" in row
    else:
        assert s.Sentences.read(path) == odd


def test_section_splits_the_table_once_all_texts_were_read(found, tmp_path):
    assert s.sentences_section(tmp_path) == []
    found.save(tmp_path / "sentences" / "planted.json")
    plain = "\n".join(s.sentences_section(tmp_path))
    assert "### PLANTED" in plain
    assert all(s.escaped(row.text) in plain for row in found.top)
    assert "looks wrong" not in plain
    said = {str(row.index): "wrong" if row.index in PLANTED else "hard" for row in found.top}
    (tmp_path / "sentences" / "readings.json").write_text(json.dumps({"planted": said}))
    read = "\n".join(s.sentences_section(tmp_path))
    wrong, hard = read.split("Labels that look right")
    assert all((s.escaped(r.text) in wrong) == (r.index in PLANTED) for r in found.top)
    assert all((s.escaped(r.text) in hard) == (r.index not in PLANTED) for r in found.top)


def run(*arguments: str) -> tuple[str, BaseException | None]:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["sentences", *arguments])
    return done.output, done.exception


def test_command_reads_a_table_of_ones_own(tmp_path):
    data = corpus(60)
    path = tmp_path / "reviews.csv"
    lines = (f"{text},{data.classes[y]}" for text, y in zip(data.x, data.target, strict=True))
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    small = [
        part
        for o in ("model_options.hidden=8", "epochs=6", "batch_size=16", "test=0.0", "lr=0.01")
        for part in ("--set", o)
    ]
    out = tmp_path / "found.md"
    said, error = run(str(path), "--seeds", "1", "--top", "2", *small, "--runs", str(tmp_path / "runs"), "-o", str(out))
    assert error is None, said
    assert "60 texts, 1 trainings" in said
    found = {line.split("|")[2].split()[-1] for line in out.read_text().splitlines()[2:]}
    assert found == {str(i) for i in PLANTED if i < 60}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digits"], "has no texts"),
        (["sst2", "-o", "table.xlsx"], "expected .csv, .md or .json"),
        (["nowhere"], "no data set has the name"),
    ],
)
def test_mistakes_of_the_sentences_command(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, error = run(*arguments)
    assert isinstance(error, InputError)
    assert said in str(error)
