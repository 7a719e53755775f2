from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from compensate.data import TableEncoder, class_sizes, digits, load, long_tailed
from compensate.data.dataset import Data
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
    assert set(encoder.dropped) == {"name", "same"}
    x = pd.DataFrame(encoder(table), columns=encoder.names)
    numbers = table[["age", "pay"]].replace("", np.nan).astype(float)
    expected = StandardScaler().fit_transform(SimpleImputer(strategy="median").fit_transform(numbers))
    assert np.allclose(x[["age", "pay"]], expected, atol=1e-5)
    assert (x["age is missing"] == (table["age"] == "")).all()
    hot = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(
        pd.DataFrame({"town": ["lima", "oslo", "rome"]})
    )
    assert np.array_equal(x[["town=lima", "town=oslo", "town=rome"]], hot.transform(table[["town"]]))
    for town in ("rome", "oslo", "lima"):
        assert (x[f"town={town}"] == (table["town"] == town)).all()
    assert (x["town=other"] == (table["town"] == "")).all()


def test_new_rows_use_what_was_fitted():
    encoder = TableEncoder.fit(frame())
    new = frame(3).assign(town=["paris", "oslo", None], age=["1e9", "nan", "30"])
    x = pd.DataFrame(encoder(new), columns=encoder.names)
    assert x["town=other"].tolist() == [1, 0, 1]
    assert x["age"].tolist()[0] == 10, "a slip of the keyboard is cut"
    assert x["age is missing"].tolist() == [0, 1, 0]
    assert np.isfinite(x.to_numpy()).all()
    again = TableEncoder.from_json(encoder.to_json())
    assert again == encoder
    assert np.array_equal(again(new), encoder(new))
    with pytest.raises(InputError, match="lacks the columns town"):
        encoder(new.drop(columns="town"))


def test_rare_categories_share_a_column():
    table = pd.DataFrame({"c": [f"v{i % 80}" for i in range(400)] + ["common"] * 100})
    encoder = TableEncoder.fit(table)
    assert len(encoder.names) == 51
    assert encoder.names[0] == "c=common"
    assert (encoder(table).sum(1) == 1).all()


def test_a_few_odd_cells_do_not_make_categories():
    table = pd.DataFrame({"a": [str(i) for i in range(99)] + ["unknown"], "inf": [1.0, np.inf] * 50})
    encoder = TableEncoder.fit(table)
    assert encoder.names == ["a", "a is missing", "inf", "inf is missing"]
    assert encoder(table)[99, 1] == 1
    assert np.isfinite(encoder(table)).all()


def test_a_table_becomes_a_data_set(tmp_path):
    table = frame().assign(label=["yes", "no"] * 100, id=range(1000, 1200))
    table.to_csv(tmp_path / "t.csv", index=False)
    data = load(tmp_path / "t.csv").train
    assert data.info["kind"] == "table"
    assert data.x.shape == (200, len(data.info["encoder"].names))
    assert data.ids[0] == "1000"
    assert list(data.raw.columns) == list(table.columns)
    assert "id" not in data.info["encoder"].names


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
        long_tailed(Data(np.zeros((2, 1)), np.array([0, 0]), ("a", "b")), 10)
    with pytest.raises(InputError, match="quantity"):
        long_tailed(Data(np.zeros((2, 1)), np.array([0.5, 1.0]), ()), 10)
