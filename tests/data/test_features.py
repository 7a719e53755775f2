from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from compensate.data import Column, TableEncoder, class_sizes, digits, from_frame, load, long_tailed
from compensate.data.dataset import Dataset
from compensate.errors import InputError


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


def test_trees_get_numbers_as_they_are_and_a_column_per_category():
    table = frame()
    encoder = TableEncoder.fit(table)
    x = pd.DataFrame(encoder.trees(table), columns=encoder.tree_names)
    assert encoder.tree_names == ("age", "age is missing", "pay", "town", "flag")
    assert np.allclose(x["pay"], table["pay"], rtol=1e-6)
    assert x["age"][0] == np.median(pd.to_numeric(table["age"]).dropna())
    assert len(set(zip(x["town"], table["town"], strict=True))) == 4


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
    assert encoder.trees(new)[0, list(encoder.tree_names).index("town")] == 4, "a new town comes last"
    with pytest.raises(InputError, match="lacks the columns town"):
        encoder(new.drop(columns="town"))


def test_a_column_of_many_values_is_no_wall_of_one_hot():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"c": [f"{(v % 2 and 'upper') or 'lower'} street {v}" for v in rng.integers(0, 200, 800)]})
    encoder = TableEncoder.fit(table, [Column("c", "category", "")])
    assert len(encoder.names) == 10
    assert len(encoder.tree_names) == 11
    z = encoder(table)
    assert z.var(0).sum() == pytest.approx(1, abs=1e-3)
    upper = table["c"].str.startswith("upper")
    centers = z[upper].mean(0), z[~upper].mean(0)
    nearer = np.linalg.norm(z - centers[0], axis=1) < np.linalg.norm(z - centers[1], axis=1)
    assert (nearer == upper).mean() > 0.95, "values written alike lie near each other"
    assert np.isfinite(encoder(pd.DataFrame({"c": ["never seen", None, ""]}))).all()


def test_a_few_odd_cells_do_not_make_categories():
    table = pd.DataFrame({"a": [str(i * i) for i in range(99)] + ["unknown"], "inf": [1.0, np.inf, 3.0, 2.0] * 25})
    encoder = TableEncoder.fit(table)
    assert encoder.names == ("a", "a is missing", "inf", "inf is missing")
    assert encoder(table)[99, 1] == 1
    assert np.isfinite(encoder(table)).all()
    huge = pd.DataFrame({"a": [1e308, -1e308, 5.0, 7.0] * 10})
    assert np.isfinite(TableEncoder.fit(huge)(huge)).all()


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d", "%d %B %Y", "typed", "zoned"])
def test_dates_become_numbers(form):
    days = pd.date_range("2023-11-30", periods=60, freq="37h")
    column = {"typed": days, "zoned": days.tz_localize("UTC")}.get(form, days.strftime(form))
    table = pd.DataFrame({"day": pd.Series(column, dtype=object if "%" in form else None), "x": np.arange(60) ** 2})
    table.loc[5, "day"] = None
    encoder = TableEncoder.fit(table)
    x = pd.DataFrame(encoder.trees(table), columns=encoder.tree_names)
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
    one, two = (from_frame(rows, "t", label="label").train.source.encoder for rows in (table, shuffled))
    assert np.array_equal(one(table), two(table))
    assert np.array_equal(one.trees(table), two.trees(table))
    assert not any("label" in name for name in (*one.names, *one.tree_names))


def test_a_table_with_a_text_keeps_the_roles_of_its_other_columns():
    table = frame().assign(label=["yes", "no"] * 100, text=[f"a very fine film of {i}" for i in range(200)])
    data = from_frame(table, "t").train
    assert data.source.kind == "text"
    some = data.subset(np.arange(50))
    encoder = TableEncoder.fit(some.raw, some.source.columns)
    assert encoder(some.raw).shape == (50, len(encoder.names))
    assert "pay" in encoder.tree_names


def test_a_table_becomes_a_data_set(tmp_path):
    table = frame().assign(label=["yes", "no"] * 100, id=range(1000, 1200))
    table.to_csv(tmp_path / "t.csv", index=False)
    data = load(tmp_path / "t.csv").train
    assert data.source.kind == "table"
    assert data.x.shape == (200, len(data.source.encoder.names))
    assert data.ids[0] == "1000"
    assert list(data.raw.columns) == list(table.columns)
    assert "id" not in data.source.encoder.names


def test_only_the_training_rows_are_fitted(tmp_path):
    table = pd.DataFrame({"a": [1.0, 2.5, 4.0, 100.0], "label": list("xyxy"), "split": ["train"] * 3 + ["test"]})
    splits = from_frame(table, "t")
    assert splits.train.x.mean() == pytest.approx(0, abs=1e-6)
    assert splits.test.x[0, 0] == 10


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


def test_a_lonely_identifier_is_better_than_nothing():
    table = pd.DataFrame({"n": range(100), "label": ["a"] * 50 + ["b"] * 50})
    data = from_frame(table, "t").train
    assert data.x.shape == (100, 1)
    with pytest.raises(InputError, match="nothing but the label"):
        from_frame(table[["label"]], "t")
    with pytest.raises(InputError, match=r"no column of same says"):
        from_frame(table[["label"]].assign(same=1), "t")
    with pytest.raises(InputError, match="more than one column"):
        from_frame(pd.DataFrame([[1, 2, 3]] * 3, columns=["a", "a", "label"]), "t")


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


def test_long_tail_errors():
    assert class_sizes(10, 5000, 100).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    with pytest.raises(InputError, match="at least 1"):
        class_sizes(10, 100, 0.1)
    with pytest.raises(InputError, match="exponential or step"):
        class_sizes(10, 100, 10, "linear")
    with pytest.raises(InputError, match="classes b have no samples"):
        long_tailed(Dataset(np.zeros((2, 1)), np.array([0, 0]), ("a", "b")), 10)
    with pytest.raises(InputError, match="quantity"):
        long_tailed(Dataset(np.zeros((2, 1)), np.array([0.5, 1.0]), ()), 10)
