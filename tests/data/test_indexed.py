from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from compensate.data import Indexed
from compensate.errors import InputError


def test_index_names_the_sample_whatever_the_order():
    x, y = torch.randn(10, 3), torch.arange(10) % 4
    seen = 0
    for xb, yb, i in DataLoader(Indexed(TensorDataset(x, y)), batch_size=4, shuffle=True):
        assert torch.equal(xb, x[i])
        assert torch.equal(yb, y[i])
        seen += len(i)
    assert seen == 10


def test_items_that_are_dictionaries_get_an_entry():
    """As data sets of Hugging Face give them, and as their collators read them."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["good", "bad", "fine"], "label": [1, 0, 1]})
    data = Indexed(rows)
    assert data[-1] == {"text": "fine", "label": 1, "index": 2}
    assert rows[2] == {"text": "fine", "label": 1}
    for batch in DataLoader(data, batch_size=2, shuffle=True):
        assert [rows[k]["text"] for k in batch["index"].tolist()] == batch["text"]
    assert Indexed([{"x": 1.0, "y": 0}])[0] == {"x": 1.0, "y": 0, "index": 0}
    with pytest.raises(InputError, match='item 0 of the list has an entry "index" already'):
        Indexed([{"x": 1.0, "index": 7}])[0]


def test_errors_say_what_to_do():
    with pytest.raises(InputError, match="map-style"):
        Indexed(iter([(1, 2)]))
    with pytest.raises(InputError, match="once"):
        Indexed(Indexed([(1, 2)]))
    with pytest.raises(InputError, match="pairs"):
        Indexed([(1, 2, 3)])[0]
    with pytest.raises(InputError, match="a int"):
        Indexed([7])[0]
    with pytest.raises(IndexError, match="out of range"):
        Indexed([(1, 2)])[1]
