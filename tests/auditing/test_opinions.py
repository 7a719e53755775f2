"""Second opinions: reading them, their weight, and what they add to an audit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_softmax
from sklearn.metrics import average_precision_score

from compensate.auditing.api import audit
from compensate.auditing.features import make_views
from compensate.auditing.opinions import SURE, described, opinion_of, read_descriptions, second_opinion
from compensate.data import Dataset
from compensate.errors import InputError

NAMES = ("cat", "dog", "owl")


def data(size: int = 6) -> Dataset:
    return Dataset(np.eye(size, 3, dtype=np.float32), np.arange(size) % 3, NAMES)


# Files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "cat: it purrs\ndog: it barks  \n# birds\n'owl': \"it hoots: at night\"\n"),
        ("a.yml", "cat: >\n  it\n  purrs\ndog: it barks\nowl: 'it hoots: at night'\n"),
        ("a.json", json.dumps({"cat": "it purrs", "dog": "it barks", "owl": "it hoots: at night"})),
        ("a.csv", "class,about\ncat,it purrs\ndog,it barks\nowl,it hoots: at night\n"),
    ],
)
def test_descriptions_are_read_from_any_format(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_descriptions(tmp_path / name) == {"cat": "it purrs", "dog": "it barks", "owl": "it hoots: at night"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "cats purr\n"),
        ("a.yaml", ""),
        ("a.yaml", "cat:\n"),
        ("a.json", "[1]"),
        ("a.json", "{"),
        ("a.csv", "class\ncat\n"),
    ],
)
def test_files_without_descriptions_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError):
        read_descriptions(tmp_path / name)


def test_labels_and_probabilities_of_any_form_give_the_same_opinion(tmp_path: Path) -> None:
    labels = np.array(["owl", "cat", "dog", "", "owl", "cat"], dtype=object)
    expected = np.zeros((6, 3))
    for row, label in enumerate(labels):
        if label:
            expected[row, NAMES.index(label)] = SURE
    numbers = np.array([2, 0, 1, -1, 2, 0])
    (tmp_path / "a.txt").write_text("\n".join(labels))
    pd.DataFrame({"label": labels}).to_csv(tmp_path / "a.csv", index=False)
    np.save(tmp_path / "a.npy", numbers)
    for given in (labels, numbers, tmp_path / "a.txt", tmp_path / "a.csv", tmp_path / "a.npy"):
        np.testing.assert_array_equal(opinion_of(given, data()), expected)

    p = np.random.default_rng(0).dirichlet([1, 1, 1], 6)
    p[3] = 0
    with np.errstate(divide="ignore"):
        log_p = np.where(p > 0, np.log(p), 0)
    pd.DataFrame(p[:, [2, 0, 1]], columns=["owl", "cat", "dog"]).to_csv(tmp_path / "p.csv", index=False)
    np.save(tmp_path / "p.npy", p)
    for given in (p, 7 * p, tmp_path / "p.npy", tmp_path / "p.csv"):
        np.testing.assert_allclose(opinion_of(given, data()), log_p, atol=1e-6)


def test_an_opinion_about_all_rows_of_a_source_is_taken_for_the_audited_ones() -> None:
    part = data().subset([1, 4])
    np.testing.assert_array_equal(
        opinion_of(np.array(["cat", "dog", "owl", "cat", "owl", "dog"]), part).argmax(1), [1, 2]
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (np.array(["cat", "dog"]), "2 rows"),
        (np.array(["cat", "dog", "cow", "cat", "cat", "cat"]), 'class "cow"'),
        (np.array([0, 1, 2, 3, 0, 0]), "class number 3"),
        (np.ones((6, 2)), "3 classes"),
        (-np.ones((6, 3)), "3 classes"),
    ],
)
def test_an_opinion_that_does_not_fit_is_refused(given: np.ndarray, why: str) -> None:
    with pytest.raises(InputError, match=why):
        opinion_of(given, data())


# The weight ---------------------------------------------------------------------------------------------------


def predictions(size: int = 3000, sure: float = 3.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    true = rng.integers(3, size=size)
    return log_softmax(rng.normal(size=(size, 3)) + sure * np.eye(3)[true], 1), true


def test_a_poor_opinion_has_no_weight_and_a_good_one_is_multiplied_in() -> None:
    log_q, labels = predictions()
    for poor in (np.log(np.full((3000, 3), 1 / 3)), predictions(seed=1)[0], np.roll(log_q, 1, axis=1)):
        same, weight = second_opinion(log_q, poor, labels)
        assert weight < 1e-3
        np.testing.assert_allclose(same, log_q, atol=0.05)
    good = log_softmax(np.random.default_rng(2).normal(size=(3000, 3)) + 2 * np.eye(3)[labels], 1)
    both, weight = second_opinion(log_q, good, labels)
    assert 0.2 < weight < 1
    for row in range(20):
        product = [np.exp(log_q[row, c]) * np.exp(good[row, c]) ** weight for c in range(3)]
        np.testing.assert_allclose(np.exp(both[row]), np.array(product) / sum(product), rtol=1e-9)
    assert second_opinion(log_q, log_softmax(3 * good, 1), labels)[1] <= 1


def learned_errors(seed: int = 0, size: int = 900):
    """Two classes of five groups each; most of a group of the first class has the other label, so every model learns the error."""
    rng = np.random.default_rng(seed)
    group = rng.integers(10, size=size)
    x = (4 * rng.normal(size=(10, 8))[group] + rng.normal(size=(size, 8))).astype(np.float32)
    true = (group >= 5).astype(np.int64)
    wrong = (group == 0) & (rng.random(size) < 0.7)
    return x, np.where(wrong, 1, true), true, wrong


def test_an_opinion_finds_errors_that_every_model_has_learned_and_a_poor_one_does_no_harm() -> None:
    x, given, true, wrong = learned_errors()
    rng = np.random.default_rng(5)
    opinion = np.where(rng.random(len(true)) < 0.02, 1 - true, true)
    plain, joined = audit(x, given), audit(x, given, opinion=opinion)
    assert average_precision_score(wrong, joined.log_odds) > average_precision_score(wrong, plain.log_odds) + 0.1
    assert joined.provenance.views["opinion"] > 0.1
    chance = audit(x, given, opinion=rng.integers(2, size=len(true)))
    assert average_precision_score(wrong, chance.log_odds) > average_precision_score(wrong, plain.log_odds) - 0.01


def test_descriptions_are_compared_with_texts_by_their_words() -> None:
    rng = np.random.default_rng(0)
    words = [["goal", "match", "team"], ["market", "bank", "stock"]]
    kind = rng.integers(2, size=200)
    texts = [" ".join(rng.choice(words[k], 3)) + f" {i % 17}" for i, k in enumerate(kind)]
    made = Dataset(np.array(texts, dtype=object), kind, ("money", "sport"))
    said = {"money": "the stock market and a bank", "sport": "a match of one team and a goal"}
    views = make_views(made, "none")
    found = described(said, made.classes, views, [views.views])
    parts = [[view.subset(rows) for view in views.views] for rows in (slice(0, 70), slice(70, None))]
    np.testing.assert_allclose(described(said, made.classes, views, parts), found, atol=1e-6)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-9)
    assert (found.argmax(1) == 1 - kind).mean() > 0.95
    with pytest.raises(InputError, match='class "sport"'):
        described({"money": "a bank"}, made.classes, views, [views.views])


def test_opinions_are_refused_where_they_cannot_be_used() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(InputError, match="one class a row"):
        audit(x, x[:, 0] + 0.5, opinion=np.zeros(60, int))
    with pytest.raises(InputError, match="need texts"):
        audit(x, np.arange(60) % 2, describe={"0": "zero", "1": "one"})
