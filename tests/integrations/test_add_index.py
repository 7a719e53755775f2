"""The column that names each sample."""

from __future__ import annotations

import pytest

datasets = pytest.importorskip("datasets")

from compensate import InputError  # noqa: E402
from compensate.integrations.transformers import add_index  # noqa: E402


def rows(n=6):
    return datasets.Dataset.from_dict({"text": [f"row {k}" for k in range(n)], "label": [k % 2 for k in range(n)]})


def test_the_number_goes_with_the_sample():
    data = add_index(rows()).shuffle(seed=0).filter(lambda row: row["label"] == 1)
    assert sorted(data["index"][:]) == [1, 3, 5]
    assert all(row["text"] == f"row {row['index']}" for row in data)


def test_each_part_is_numbered_on_its_own():
    parts = add_index(datasets.DatasetDict(train=rows(), test=rows(3)))
    assert isinstance(parts, datasets.DatasetDict)
    assert parts["test"]["index"][:] == [0, 1, 2]
    assert len(parts["train"]["index"][:]) == 6


def test_numbering_twice_is_once_and_another_column_is_left_alone():
    data = add_index(rows())
    assert add_index(data)["index"][:] == list(range(6))
    shuffled = data.select([3, 1, 2])
    with pytest.raises(InputError, match="which is not the row number"):
        add_index(shuffled)
    assert add_index(shuffled, "row")["row"][:] == [0, 1, 2]


def test_streams_and_other_things():
    with pytest.raises(InputError, match="a stream"):
        add_index(rows().to_iterable_dataset())
    with pytest.raises(InputError, match=r"given a list; expected a datasets\.Dataset"):
        add_index([1, 2])
