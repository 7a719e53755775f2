from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from compensate.data import UnclearLabel, choose_label, from_frame
from compensate.data.label_column import joined_labels, targets
from compensate.errors import InputError

N = 200
RNG = np.random.default_rng(0)


def table(**columns) -> pd.DataFrame:
    return pd.DataFrame({"size": RNG.normal(size=N), "weight": RNG.normal(size=N), **columns})


def classes(*values):
    return RNG.choice(values, N)


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ({"label": classes(0, 1), "kind": classes(0, 1)}, "label"),
        ({"Class ": classes(0, 1), "kind": classes(0, 1)}, "Class "),
        ({"label_text": classes("a", "b"), "kind": classes(0, 1)}, "label_text"),
        ({"targetClass": classes("a", "b"), "kind": classes(0, 1)}, "targetClass"),
        ({"label": classes(0, 1), "label_text": classes("a", "b")}, "label"),
        ({"sentiment": classes("pos", "neg"), "kind": classes(0, 1)}, "sentiment"),
        ({"Survived": classes(0, 1), "kind": classes(0, 1), "deck": classes("a", "b")}, "Survived"),
        ({"label_id": range(N), "category": classes(0, 1), "kind": classes(0, 1)}, "category"),
        ({"sentiment": ["same"] * N, "kind": classes(0, 1)}, "kind"),
        ({"kind": classes("x", "y", "z")}, "kind"),
    ],
)
def test_a_name_that_says_it_wins_else_the_only_column_of_few_values(columns, label):
    assert choose_label(table(**columns), None, "t") == label


def test_of_several_columns_of_few_values_the_predictable_one_is_the_label():
    frame = table(fold=RNG.integers(0, 5, N), batch=classes("a", "b"))
    frame["kind"] = np.where(frame["size"] > 0, "large", "small")
    assert choose_label(frame, None, "t") == "kind"
    texts = ["a good and fine film", "a bad and dull film"]
    frame = pd.DataFrame({"fold": RNG.integers(0, 5, N), "mood": RNG.integers(0, 2, N)})
    frame["words"] = [f"{texts[m]} of {i % 50}" for i, m in enumerate(frame["mood"])]
    assert choose_label(frame, None, "t", "words") == "mood"


def test_a_label_with_one_value_is_named():
    with pytest.raises(UnclearLabel, match='label column "sentiment" of t has fewer than 2 values'):
        choose_label(table(sentiment=classes("pos")), None, "t")


@pytest.mark.parametrize(
    ("values", "quantity"),
    [
        (RNG.normal(size=N).round(2), True),
        (RNG.integers(17, 90, N), True),
        (RNG.integers(0, 100_000, N), True),
        (RNG.integers(0, 20, N), False),
        (RNG.choice([0, 0.5, 1], N), False),
        (RNG.integers(1, 6, N), False),
        (RNG.choice(["low", "high"], N), False),
    ],
)
def test_a_quantity_is_told_from_classes(values, quantity):
    cells = np.array([str(v) for v in values], dtype=object)
    target, names, reason = targets(cells, None, "t", "y")
    assert (target.dtype.kind == "f") == quantity == (not names)
    assert reason.startswith("a quantity") == quantity
    forced, names, _ = targets(cells, "classification", "t", "y")
    assert forced.dtype.kind == "i"
    assert len(names) == len(set(cells))


def test_a_hundred_classes_by_number_are_classes():
    target, names, _ = targets(np.arange(3000) % 100, None, "t", "y")
    assert len(names) == 100
    assert target.dtype.kind == "i"


@pytest.mark.parametrize(
    ("cells", "sign"),
    [
        (["a;b", "b;c", "a", "c"] * 5, ";"),
        (["action|comedy", "comedy|drama", "drama|action"] * 5, "|"),
        (["cat, dog", "dog, bird", "bird", "cat"] * 5, ","),
        ([["a", "b"], ["b"], ["a"]] * 5, "list"),
        (['["a", "b"]', '["b"]'] * 5, "list"),
        (["Paris, France", "Lima, Peru", "Rome, Italy"] * 5, None),
        (["sports/football", "sports/tennis", "news/local"] * 5, None),
        (["C++", "C", "C#"] * 5, None),
        (["black|white", "green"] * 5, None),
        (["<=50K", ">50K"] * 5, None),
    ],
)
def test_several_labels_in_a_cell_are_told_from_names_with_signs(cells, sign):
    assert joined_labels(cells) == sign


def test_a_person_at_a_terminal_is_asked_for_the_label(monkeypatch, capsys):
    import builtins
    import sys

    from compensate.cli.options import ask_label

    error = UnclearLabel("which of them?", ("two", "one"))
    with pytest.raises(UnclearLabel):
        ask_label(error)
    answers = iter(["three", "one", ""])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(builtins, "input", lambda *_: next(answers))
    assert ask_label(error) == "one", "three is not among the columns and is asked again"
    assert ask_label(error) == "two", "the likeliest one by default"
    assert "which of them?" in capsys.readouterr().out


def rows_of(**columns) -> pd.DataFrame:
    return pd.DataFrame({name: list(values) for name, values in columns.items()})


def sentences(n: int = N) -> list[str]:
    return [f"a sentence of some words with the number {i}" for i in range(n)]


GUESSES = {
    "a preferred answer": (rows_of(prompt=sentences(), response_a=sentences(), response_b=sentences(), preferred=classes("a", "b")), "preferred"),
    "a relevance": (rows_of(query=classes("red shoes", "blue shoes", "hats"), title=sentences(), relevance=classes(0, 1, 2)), "relevance"),
    "who left": (table(plan=classes("free", "paid"), region=classes("a", "b"), churned=classes(0, 1)), "churned"),
    "a price": (rows_of(rooms=RNG.integers(1, 9, N), area=RNG.normal(90, 20, N), price=RNG.normal(300, 50, N)), "price"),
    "a score": (rows_of(review=sentences(), score=RNG.integers(1, 6, N)), "score"),
    "a category before a price": (rows_of(title=sentences(), price=RNG.normal(9, 2, N), category=classes("a", "b")), "category"),
    "a target with a prefix before a price": (table(price=RNG.normal(9, 2, N), target_class=classes("a", "b")), "target_class"),
}  # fmt: skip


@pytest.mark.parametrize("name", GUESSES)
def test_names_that_labels_have_are_known(name):
    frame, label = GUESSES[name]
    assert from_frame(frame, "t").train.source.label == label


@pytest.mark.parametrize(
    ("columns", "candidates"),
    [
        ({"energy_class": classes("a", "b", "c"), "price": RNG.normal(300, 50, N)}, {"energy_class", "price"}),
        ({"score": RNG.integers(1, 6, N), "response_kind": classes("a", "b")}, {"score", "response_kind"}),
        ({"price": RNG.normal(300, 50, N), "score": RNG.normal(size=N)}, {"price", "score"}),
    ],
)
def test_a_weak_guess_with_another_next_to_it_is_no_guess(columns, candidates):
    with pytest.raises(UnclearLabel) as caught:
        choose_label(table(**columns), None, "t")
    assert set(caught.value.candidates) == candidates


def test_the_other_candidates_are_kept_for_telling():
    frame = table(plan=classes("free", "paid"), energy_class=classes("a", "b"), churned=classes(0, 1))
    assert from_frame(frame, "t").train.source.runners_up == ("energy_class",)
    frame = table(fold=RNG.integers(0, 5, N), batch=classes("a", "b"))
    frame["kind"] = np.where(frame["size"] > 0, "large", "small")
    assert from_frame(frame, "t").train.source.runners_up == ("fold", "batch")
    assert from_frame(frame, "t", label="kind").train.source.runners_up == ()
    assert from_frame(table(label=classes("a", "b"), kind=classes("a", "b")), "t").train.source.runners_up == ()


def test_lists_written_as_text_are_no_text():
    written = [str(RNG.normal(size=8).round(3).tolist()) for _ in range(N)]
    frame = rows_of(embedding=written, title=[f"the title {i} of a film" for i in range(N)], label=classes("a", "b"))
    data = from_frame(frame, "t").train
    assert data.source.text == "title"
    assert {c.name: c.reason for c in data.source.columns}["embedding"] == "holds lists written as text"
    with pytest.raises(InputError, match=r"lists.*embedding.*--features"):
        from_frame(frame.drop(columns="title"), "t")
