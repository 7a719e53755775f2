"""The role of each column, the choice of the label, and features of tables."""

from __future__ import annotations

import builtins
import json
import sys
import uuid

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from compensate.cli.audit import ask_label
from compensate.data import (
    Column,
    TableEncoder,
    UnclearLabel,
    choose_label,
    class_sizes,
    digits,
    from_frame,
    load,
    long_tailed,
)
from compensate.data.columns import analyze, numbers, vectors
from compensate.data.label_column import joined_labels, targets
from compensate.errors import InputError

# Columns
N = 300
RNG = np.random.default_rng(0)

COLUMNS = {
    "row number": (range(N), "identifier"),
    "row number in texts": ([str(i + 1) for i in range(N)], "identifier"),
    "shuffled numbers": (RNG.permutation(N) + 1000, "identifier"),
    "numbers with gaps": (np.cumsum(RNG.integers(1, 4, N)), "identifier"),
    "customer_id": ([f"c{v}" for v in RNG.permutation(N)], "identifier"),
    "id": (np.repeat(np.arange(N // 2), 2) * 7, "identifier"),
    "key": (RNG.choice(list("CDEFGAB"), N), "category"),
    "uuids": ([str(uuid.UUID(int=int(v))) for v in RNG.integers(1, 2**62, N)], "identifier"),
    "hashes": ([RNG.bytes(16).hex() for _ in range(N)], "identifier"),
    "web addresses": ([f"https://example.org/{i}" for i in range(N)], "identifier"),
    "names": ([f"person {i}" for i in range(N)], "identifier"),
    "measures": (RNG.normal(size=N), "number"),
    "written measures": ([f"{v:.3f}" for v in RNG.normal(size=N)], "number"),
    "prices": ([f"${v:,.2f}" for v in RNG.uniform(1, 5000, N)], "number"),
    "decimal commas": ([f"{v:.3f}".replace(".", ",") for v in RNG.normal(size=N)], "number"),
    "ages": (RNG.integers(18, 90, N), "number"),
    "sorted measures": (np.sort(RNG.integers(0, 100_000, N)), "number"),
    "unknown in between": ([str(v) if i % 40 else "unknown" for i, v in enumerate(RNG.normal(size=N))], "number"),
    "half empty": (["" if i % 2 else str(i * i) for i in range(N)], "number"),
    "years": (RNG.integers(1990, 2024, N), "number"),
    "flags": (RNG.random(N) < 0.5, "category"),
    "towns": (RNG.choice(["rome", "oslo", "lima"], N), "category"),
    "many towns": ([f"town{v}" for v in RNG.integers(0, 80, N)], "category"),
    "May": (RNG.choice(["May", "June"], N), "category"),
    "days": (pd.date_range("2024-01-01", periods=N).strftime("%d/%m/%Y"), "date"),
    "times": (pd.date_range("2024-01-01", periods=N, freq="h").strftime("%Y-%m-%dT%H:%M:%SZ"), "date"),
    "typed days": (pd.date_range("2024-01-01", periods=N), "date"),
    "days as numbers": (pd.date_range("2024-01-01", periods=N).strftime("%Y%m%d").astype(int), "date"),
    "sentences": ([f"what a fine day number {i} was" for i in range(N)], "text"),
    "constant": (["x"] * N, "constant"),
    "constant number": ([3.0] * N, "constant"),
    "empty": (["", "NA", None] * (N // 3), "constant"),
    "no finite number": ([np.inf, -np.inf] * (N // 2), "constant"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_role_of_a_column(name):
    values, role = COLUMNS[name]
    (found,) = analyze(pd.DataFrame({name: pd.Series(values)}))
    assert found.role == role, found.reason
    assert found.reason
    assert found.used == (role in ("number", "category", "date"))


def test_a_copy_of_the_label_is_no_feature():
    label = RNG.choice(["cat", "dog"], N)
    frame = pd.DataFrame(
        {"code": np.where(label == "cat", 0, 1), "like": np.where(label == "cat", 0, 1), "label": label}
    )
    frame.loc[3, "like"] = 1 - frame.loc[3, "like"]
    found = {c.name: c for c in analyze(frame, label="label")}
    assert {name: c.role for name, c in found.items()} == {"code": "label", "like": "number", "label": "label"}
    assert found["code"].reason.startswith("repeats the label")


CELLS = st.one_of(st.none(), st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.dates(), st.just(""))


@settings(max_examples=150, deadline=None)
@given(st.lists(CELLS, min_size=1, max_size=40))
def test_every_column_has_a_role_and_finite_features(cells):
    frame = pd.DataFrame({"a": pd.Series(cells, dtype=object)})
    encoder = TableEncoder.fit(frame)
    assert isinstance(encoder.columns[0], Column)
    for x in (encoder(frame), encoder.trees(frame)):
        assert np.isfinite(x).all()
        assert len(x) == len(cells)
    assert encoder(frame).shape[1] == len(encoder.names)


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        *[("$1,200.50", 1200.5), ("12 %", 12), ("-€3", -3), ("€-3", -3), ("1e3", 1000), (" 7 ", 7), ("+2", 2)],
        *[("1,2", 1.2), ("1.200,50 €", 1200.5), ("1,200", 1200), ("0,125", 0.125)],
        *[(cell, None) for cell in ("12-3", "", "1 2", "--1", "$", "1,2,3", "9" * 5000)],
    ],
)
def test_numbers_as_people_write_them(cell, number):
    (found,) = numbers(pd.Series([cell]))
    assert np.isnan(found) if number is None else found == number


def test_one_cell_with_a_decimal_comma_speaks_for_the_column():
    assert numbers(pd.Series(["1,250", "0,5", "3", "2.000,25"])).tolist() == [1.25, 0.5, 3, 2000.25]
    assert numbers(pd.Series(["1,250", "500", "3,000"])).tolist() == [1250, 500, 3000]


HUGE = 10**400


@pytest.mark.parametrize("others", [[0, 1], [0.5, 1.5], ["a", "b"], [HUGE + 1, HUGE + 2], [None, True]])
def test_an_integer_beyond_the_range_of_floats_is_read_as_no_number(others):
    column = pd.Series([others[i % 2] for i in range(59)] + [HUGE], dtype=object)
    assert np.isnan(numbers(column)[-1])
    analyze(pd.DataFrame({"size": column}))


@pytest.mark.parametrize("where", ["label", "feature", "both", "all"])
def test_a_table_with_huge_integers_is_read(tmp_path, where):
    rows = [{"size": i % 2 + i / 100, "label": i % 2} for i in range(60)]
    for row in rows if where == "all" else rows[3:4]:
        row |= {"label": HUGE + row["label"]} if where != "feature" else {}
        row |= {"size": HUGE} if where in ("feature", "both") else {}
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    data = load(path).train
    assert len(data) == 60
    assert np.isfinite(data.x).all()


# Label column
LABEL_COLUMN_N = 200


def table(**columns) -> pd.DataFrame:
    return pd.DataFrame({"size": RNG.normal(size=LABEL_COLUMN_N), "weight": RNG.normal(size=LABEL_COLUMN_N), **columns})


def classes(*values):
    return RNG.choice(values, LABEL_COLUMN_N)


def test_of_several_columns_of_few_values_the_predictable_one_is_the_label():
    frame = table(fold=RNG.integers(0, 5, LABEL_COLUMN_N), batch=classes("a", "b"))
    frame["kind"] = np.where(frame["size"] > 0, "large", "small")
    assert choose_label(frame, None, "t") == "kind"
    texts = ["a good and fine film", "a bad and dull film"]
    frame = pd.DataFrame({"fold": RNG.integers(0, 5, LABEL_COLUMN_N), "mood": RNG.integers(0, 2, LABEL_COLUMN_N)})
    frame["words"] = [f"{texts[m]} of {i % 50}" for i, m in enumerate(frame["mood"])]
    assert choose_label(frame, None, "t", "words") == "mood"


def test_a_label_with_one_value_is_named():
    with pytest.raises(UnclearLabel, match='label column "sentiment" of t has fewer than 2 values'):
        choose_label(table(sentiment=classes("pos")), None, "t")


@pytest.mark.parametrize(
    ("values", "quantity"),
    [
        (RNG.normal(size=LABEL_COLUMN_N).round(2), True),
        (RNG.integers(17, 90, LABEL_COLUMN_N), True),
        (RNG.integers(0, 100_000, LABEL_COLUMN_N), True),
        (RNG.integers(0, 20, LABEL_COLUMN_N), False),
        (RNG.choice([0, 0.5, 1], LABEL_COLUMN_N), False),
        (RNG.integers(1, 6, LABEL_COLUMN_N), False),
        (RNG.choice(["low", "high"], LABEL_COLUMN_N), False),
        (np.arange(3000) % 100, False),
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


def sentences(n: int = LABEL_COLUMN_N) -> list[str]:
    return [f"a sentence of some words with the number {i}" for i in range(n)]


PRICE, STARS, TEXT = RNG.normal(300, 50, LABEL_COLUMN_N), RNG.integers(1, 6, LABEL_COLUMN_N), sentences()


@pytest.mark.parametrize(
    ("label", "frame"),
    [
        ("label", table(label=classes(0, 1), kind=classes(0, 1))),
        ("Class ", table(**{"Class ": classes(0, 1), "kind": classes(0, 1)})),
        ("label_text", table(label_text=classes("a", "b"), kind=classes(0, 1))),
        ("targetClass", table(targetClass=classes("a", "b"), kind=classes(0, 1))),
        ("label", table(label=classes(0, 1), label_text=classes("a", "b"))),
        ("sentiment", table(sentiment=classes("pos", "neg"), kind=classes(0, 1))),
        ("Survived", table(Survived=classes(0, 1), kind=classes(0, 1), deck=classes("a", "b"))),
        ("category", table(label_id=range(LABEL_COLUMN_N), category=classes(0, 1), kind=classes(0, 1))),
        ("kind", table(sentiment=["same"] * LABEL_COLUMN_N, kind=classes(0, 1))),
        ("kind", table(kind=classes("x", "y", "z"))),
        (
            "preferred",
            pd.DataFrame({"prompt": TEXT, "response_a": TEXT, "response_b": TEXT, "preferred": classes("a", "b")}),
        ),
        (
            "relevance",
            pd.DataFrame({"query": classes("red shoes", "hats"), "title": TEXT, "relevance": classes(0, 1, 2)}),
        ),
        ("churned", table(plan=classes("free", "paid"), region=classes("a", "b"), churned=classes(0, 1))),
        ("price", pd.DataFrame({"rooms": STARS, "area": RNG.normal(90, 20, LABEL_COLUMN_N), "price": PRICE})),
        ("score", pd.DataFrame({"review": TEXT, "score": STARS})),
        ("category", pd.DataFrame({"title": TEXT, "price": PRICE, "category": classes("a", "b")})),
        ("target_class", table(price=PRICE, target_class=classes("a", "b"))),
    ],
)
def test_a_name_that_says_it_wins_else_the_only_column_of_few_values(label, frame):
    assert from_frame(frame, "t").train.source.label == label


@pytest.mark.parametrize(
    "columns",
    [
        {"energy_class": classes("a", "b", "c"), "price": PRICE},
        {"score": STARS, "response_kind": classes("a", "b")},
        {"price": PRICE, "score": RNG.normal(size=LABEL_COLUMN_N)},
    ],
)
def test_a_weak_guess_with_another_next_to_it_is_no_guess(columns):
    with pytest.raises(UnclearLabel) as caught:
        choose_label(table(**columns), None, "t")
    assert set(caught.value.candidates) == set(columns)


def test_the_other_candidates_are_kept_for_telling():
    frame = table(plan=classes("free", "paid"), energy_class=classes("a", "b"), churned=classes(0, 1))
    assert from_frame(frame, "t").train.source.runners_up == ("energy_class",)
    frame = table(fold=RNG.integers(0, 5, LABEL_COLUMN_N), batch=classes("a", "b"))
    frame["kind"] = np.where(frame["size"] > 0, "large", "small")
    assert from_frame(frame, "t").train.source.runners_up == ("fold", "batch")
    assert from_frame(frame, "t", label="kind").train.source.runners_up == ()
    assert from_frame(table(label=classes("a", "b"), kind=classes("a", "b")), "t").train.source.runners_up == ()


@pytest.mark.parametrize("form", [list, str, np.array, tuple])
def test_embeddings_in_a_column_are_found_by_their_cells(form):
    x = RNG.normal(size=(LABEL_COLUMN_N, 8)).round(3)
    titles = [f"the title {i} of a film" for i in range(LABEL_COLUMN_N)]
    frame = pd.DataFrame({"vector": [form(row.tolist()) for row in x], "title": titles, "label": classes("a", "b")})
    data = from_frame(frame, "t").train
    assert (data.source.embedding, data.source.text) == ("vector", "title"), "the page shows the text"
    np.testing.assert_allclose(data.x, x, rtol=1e-6)
    assert from_frame(frame, "t", embedding="vector").train.x.shape == (LABEL_COLUMN_N, 8)
    assert from_frame(frame, "t", ignore="vector").train.x[0] == titles[0]
    with pytest.raises(InputError, match=r"several columns of embeddings: vector, other\. .*--features vector"):
        from_frame(frame.assign(other=frame["vector"]), "t")
    with pytest.raises(InputError, match=r'column "title" of t does not hold embeddings; expected a list of equally'):
        from_frame(frame, "t", embedding="title")


@pytest.mark.parametrize(
    "cells", [[[1, 2, 3], [1, 2]], [["a", "b", "c"]], [[1, 2]], ["[1, 2, nan]"], ["[1, 2, 3"], [None]]
)
def test_other_lists_are_no_embeddings(cells):
    assert vectors(pd.Series(cells * 20, dtype=object)) is None


# Features
def frame(n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": [str(v) if i % 7 else "" for i, v in enumerate(rng.integers(20, 70, n))],
            "pay": rng.normal(3e4, 5e3, n),
            "town": [("rome", "oslo", "lima", "")[i % 4] for i in range(n)],
            "name": [f"person {i}" for i in range(n)],
            "same": ["x"] * n,
            "flag": rng.random(n) < 0.5,
        }
    )


def test_features_equal_sklearns():
    table = frame()
    encoder = TableEncoder.fit(table)
    assert {c.name for c in encoder.columns if not c.used} == {"name", "same"}
    x = pd.DataFrame(encoder(table), columns=encoder.names)
    numbers = table[["age", "pay"]].replace("", np.nan).astype(float)
    expected = StandardScaler().fit_transform(SimpleImputer(strategy="median").fit_transform(numbers))
    assert np.allclose(x[["age", "pay"]], expected, atol=1e-5)
    assert (x["age is missing"] == (table["age"] == "")).all()
    hot = OneHotEncoder(sparse_output=False).fit_transform(table[["town"]])
    towns = x[["town=(missing)", "town=lima", "town=oslo", "town=rome"]].to_numpy()
    assert np.allclose(towns, hot / np.sqrt(hot.var(0).sum()), atol=1e-6)
    assert towns.var(0).sum() == pytest.approx(1, abs=1e-4), "as much as a number"


def test_new_rows_use_what_was_fitted():
    encoder = TableEncoder.fit(frame())
    new = frame(3).assign(town=["paris", "oslo", None], age=["1e9", "nan", "30"])
    x = pd.DataFrame(encoder(new), columns=encoder.names)
    towns = x.filter(like="town=")
    assert (towns.sum(axis=1) > 0).tolist() == [False, True, True], "a new town is none of the known ones"
    assert x["town=(missing)"][2] > 0
    assert x["age"].tolist()[0] == 10, "a slip of the keyboard is cut"
    assert x["age is missing"].tolist() == [0, 1, 0]
    assert np.isfinite(x.to_numpy()).all()
    assert encoder.trees(new)[0, 3] == 4, "a new town comes last"
    with pytest.raises(InputError, match="lacks the columns town"):
        encoder(new.drop(columns="town"))


def test_a_column_of_many_values_is_no_wall_of_one_hot():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"c": [f"{(v % 2 and 'upper') or 'lower'} street {v}" for v in rng.integers(0, 200, 800)]})
    encoder = TableEncoder.fit(table, [Column("c", "category", "")])
    assert len(encoder.names) == 10
    assert encoder.trees(table).shape[1] == 11
    z = encoder(table)
    assert z.var(0).sum() == pytest.approx(1, abs=1e-3)
    upper = table["c"].str.startswith("upper")
    centers = z[upper].mean(0), z[~upper].mean(0)
    nearer = np.linalg.norm(z - centers[0], axis=1) < np.linalg.norm(z - centers[1], axis=1)
    assert (nearer == upper).mean() > 0.95, "values written alike lie near each other"
    assert np.isfinite(encoder(pd.DataFrame({"c": ["never seen", None, ""]}))).all()


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d", "%d %B %Y", "typed", "zoned"])
def test_dates_become_numbers(form):
    days = pd.date_range("2023-11-30", periods=60, freq="37h")
    column = {"typed": days, "zoned": days.tz_localize("UTC")}.get(form, days.strftime(form))
    table = pd.DataFrame({"day": pd.Series(column, dtype=object if "%" in form else None), "x": np.arange(60) ** 2})
    table.loc[5, "day"] = None
    encoder = TableEncoder.fit(table)
    x = pd.DataFrame(encoder.trees(table), columns=encoder.names)
    there = np.arange(60) != 5
    whole = days if form in ("typed", "zoned") else days.normalize()
    assert (x["day month"][there] == whole.month[there]).all()
    assert (x["day year"][there] == whole.year[there]).all()
    assert (x["day weekday"][there] == whole.day_of_week[there]).all()
    assert np.allclose(x["day seconds"][there], (whole - pd.Timestamp(0)).total_seconds()[there], atol=128)
    assert x["day is missing"].sum() == 1
    assert ("day hour" in x) == (form in ("typed", "zoned"))
    z = encoder(table)
    assert np.isfinite(z).all()
    assert z[:, : len(encoder.names) - 2].var(0).sum() == pytest.approx(1, abs=0.01), (
        "a date weighs as much as a number"
    )


def test_features_do_not_see_the_label():
    table = frame().assign(label=["yes", "no"] * 100)
    shuffled = table.assign(label=table["label"].sample(frac=1, random_state=0).to_list())
    one, two = (from_frame(each, "t", label="label").train for each in (table, shuffled))
    first, second = (TableEncoder.fit(data.raw, data.source.columns) for data in (one, two))
    assert np.array_equal(first(one.raw), second(two.raw))
    assert np.array_equal(first.trees(one.raw), second.trees(two.raw))
    assert not any("label" in name for name in first.names)


def test_columns_are_chosen_by_name(tmp_path):
    table = frame().assign(label=["yes", "no"] * 100)
    table.to_csv(tmp_path / "t.csv", index=False)
    some = load(tmp_path / "t.csv", ignore="town, flag").train
    assert {c.name for c in some.source.columns if c.used} == {"age", "pay"}
    only = load(tmp_path / "t.csv", columns=["name", "age"]).train
    assert {c.name: c.role for c in only.source.columns if c.used} == {"age": "number", "name": "category"}
    with pytest.raises(InputError, match=r'ignore names the column "tawn".*did you mean "town"'):
        load(tmp_path / "t.csv", ignore=["tawn"])
    with pytest.raises(InputError, match='columns names the column "agee"'):
        load(tmp_path / "t.csv", columns=["agee"])


def test_names_of_people_do_not_make_a_table_a_text():
    table = frame().assign(who=[f"Smith, Mr. John {i}" for i in range(200)], label=["yes", "no"] * 100)
    data = from_frame(table, "t").train
    assert data.source.kind == "table"
    assert {c.name: c.role for c in data.source.columns}["who"] == "text"
    assert from_frame(table, "t", text="who").train.source.kind == "text"
    assert from_frame(table[["who", "pay", "label"]], "t").train.source.kind == "text"


def test_sentences_that_occur_several_times_are_the_text():
    said = [f"the room number {i} was clean and quiet" for i in range(40)]
    table = pd.DataFrame({"said": np.repeat(said, 3), "by": ["ann", "bob", "eve"] * 40, "label": ["a", "b"] * 60})
    assert from_frame(table, "t").train.source.kind == "text"


@pytest.mark.parametrize(
    ("kind", "ratio"), [("exponential", 10), ("exponential", 100), ("step", 20), ("exponential", 1)]
)
def test_long_tails(kind, ratio):
    data = digits()
    tail = long_tailed(data, ratio, kind, seed=1)
    n = data.class_counts.min()
    for c, count in enumerate(tail.class_counts):
        share = ratio ** (-c / 9) if kind == "exponential" else (1 if c < 5 else 1 / ratio)
        assert count == max(1, int(n * share + 1e-9))
    assert np.array_equal(tail.x, data.x[tail.index])
    assert (np.diff(tail.index) > 0).all()
    assert np.array_equal(tail.index, long_tailed(data, ratio, kind, seed=1).index)
    assert ratio == 1 or not np.array_equal(tail.index, long_tailed(data, ratio, kind, seed=2).index)


def test_class_sizes_of_cifar():
    assert class_sizes(10, 5000, 100).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
