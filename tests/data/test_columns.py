from __future__ import annotations

import json
import uuid

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compensate.data import load
from compensate.data.columns import Column, analyze, numbers

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


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.dates(), st.just("")),
        min_size=1,
        max_size=40,
    )
)
def test_every_column_has_a_role_and_finite_features(cells):
    from compensate.data import TableEncoder

    frame = pd.DataFrame({"a": pd.Series(cells, dtype=object)})
    encoder = TableEncoder.fit(frame)
    assert isinstance(encoder.columns[0], Column)
    for x in (encoder(frame), encoder.trees(frame)):
        assert np.isfinite(x).all()
        assert len(x) == len(cells)
    assert encoder(frame).shape[1] == len(encoder.names)
    assert encoder.trees(frame).shape[1] == len(encoder.tree_names)


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        *[("$1,200.50", 1200.5), ("12 %", 12), ("-€3", -3), ("€-3", -3), ("1e3", 1000), (" 7 ", 7), ("+2", 2)],
        *[
            ("1,2", 1.2),
            ("1.200,50 €", 1200.5),
            ("1,200", 1200),
            ("0,125", 0.125),
            ("12-3", None),
            ("", None),
            ("1 2", None),
            ("--1", None),
            ("$", None),
            ("1,2,3", None),
            ("9" * 5000, None),
        ],
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
