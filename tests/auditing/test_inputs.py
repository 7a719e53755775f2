"""Inputs of several columns and layouts: which columns are judged together, and how."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import compensate
from compensate.auditing.features import TextPairs, make_views
from compensate.auditing.source import read
from compensate.cli.audit import describe_data
from compensate.errors import InputError

WORDS = {"bill": ["invoice", "payment", "refund", "receipt"], "ship": ["parcel", "courier", "tracking", "depot"]}


def texts(labels, seed=0):
    rng = np.random.default_rng(seed)
    return [
        f"hello about the {' and the '.join(rng.choice(WORDS[label], 3))} number {rng.integers(999)}"
        for label in labels
    ]


def tickets(rows=80, **columns):
    labels = np.array(["bill", "ship"])[np.arange(rows) % 2]
    return pd.DataFrame({"message": texts(labels), **columns, "label": labels})


def views_of(frame, **options):
    data = read(frame, None, None, options)
    return data, make_views(data, "none")


def test_a_text_is_judged_together_with_the_other_columns():
    frame = tickets(channel=np.resize(["mail", "phone", "chat"], 80), age=np.arange(80) % 9, id=range(80))
    for options, names, said in [
        ({}, ["words", "columns"], '"message" together with channel, age'),
        ({"columns": ""}, ["words"], '"message", label'),
        ({"text": "message", "columns": "age"}, ["words", "columns"], "together with age ("),
        ({"columns": "age,channel"}, ["columns"], "the data: 80 rows, label"),
    ]:
        data, found = views_of(frame, **options)
        assert [view.name for view in found.views] == names
        assert said in describe_data(data)


def test_a_copy_of_the_label_does_not_confirm_it():
    labels = np.array(["bill", "ship"])[np.arange(80) % 2]
    code = np.where(labels == "bill", np.arange(80) % 3, 5 + np.arange(80) % 3)
    data, found = views_of(tickets(code=code))
    assert [view.name for view in found.views] == ["words"]
    assert "not used: code" in describe_data(data)
    assert "code" in [
        c.name
        for c in read(tickets(code=code), None, None, {"text": "message", "columns": "code"}).source.columns
        if c.used
    ]


def test_two_texts_make_a_view_of_their_relation():
    frame = pd.DataFrame(
        {
            "premise": ["it rains in town", "a dog sleeps here"] * 10,
            "hypothesis": ["it rains a lot", "a cat sleeps now"] * 10,
        }
    )
    frame["label"] = ["yes", "no"] * 10
    data, found = views_of(frame)
    assert data.source.text == "premise,hypothesis"
    maker = next(maker for maker in found.makers if isinstance(maker, TextPairs))
    a, b = (maker.inner.vectorizer.transform(frame[name]).toarray() for name in ("premise", "hypothesis"))
    naive = np.hstack([a, b, np.minimum(a, b), np.maximum(a - b, 0), np.maximum(b - a, 0)])
    again = TextPairs.of(maker.state()).view(data).x.toarray()
    np.testing.assert_allclose(again, naive, atol=1e-6)
    with pytest.raises(InputError, match='no column "hypotesis"'):
        read(frame, None, None, {"text": "premise,hypotesis"})


def test_new_rows_of_several_columns_are_judged_by_the_same_views(tmp_path):
    frame = tickets(
        120,
        channel=np.resize(["mail", "phone", "chat"], 120),
        title=texts(np.array(["ship", "bill"])[np.arange(120) % 2], 1),
    )
    found = compensate.audit(frame, encoder="none")
    assert found.source.text == "message,title"
    found.save(tmp_path / "audit")
    loaded = type(found).load(tmp_path / "audit")
    wrong = frame.assign(label=frame["label"].map({"bill": "ship", "ship": "bill"}))
    assert loaded.score(wrong)["p_error"].mean() > 0.8 > 0.2 > loaded.score(frame)["p_error"].mean()
    assert "title: hello" in compensate.auditing.content.sample_content(found.data, 0).text
