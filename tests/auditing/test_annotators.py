"""Several annotators: the consensus is better than a majority, bad annotators are named, tables of both forms are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import run

from compensate.auditing.api import audit, audit_votes
from compensate.auditing.labels.votes import Votes, find_consensus, long_votes, vote_columns, wide_votes
from compensate.auditing.page import page_of, payload, read_payload
from compensate.auditing.result import Audit
from compensate.errors import InputError

ACCURACY = np.array([0.95, 0.9, 0.85, 0.5, 0.45])


def made(items: int = 600, people: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Votes]:
    """Points in two dimensions, their classes, and votes of annotators who differ in quality."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 3, items)
    x = np.eye(3)[true] * 3 + rng.normal(size=(items, 3))
    who = np.array([rng.permutation(len(ACCURACY))[:people] for _ in range(items)])
    right = rng.random(who.shape) < ACCURACY[who]
    label = np.where(right, true[:, None], (true[:, None] + 1) % 3)
    item = np.repeat(np.arange(items), people)
    return x, true, Votes(item, who.ravel(), label.ravel(), items, tuple("abcde"), ("0", "1", "2"))


def by_hand(votes: Votes, tables: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """The posterior of the definition, item by item, under given tables and frequencies of classes."""
    found = np.tile(frequency, (votes.items, 1))
    for i, a, j in zip(votes.item, votes.annotator, votes.label, strict=True):
        for t in range(len(votes.classes)):
            found[i, t] *= tables[a, t, j]
    return found / found.sum(1, keepdims=True)


def test_probabilities_are_those_of_the_definition():
    _, _, votes = made()
    found = find_consensus(votes)
    expected = by_hand(votes, found.tables, found.probabilities.mean(0))
    assert np.allclose(found.probabilities, expected, atol=1e-3)


def test_a_model_that_knows_nothing_changes_nothing():
    _, _, votes = made()
    noise = np.log(np.random.default_rng(1).dirichlet(np.ones(3), votes.items))
    assert find_consensus(votes, noise).power == 0


def test_the_consensus_is_better_than_the_majority_and_better_still_with_models():
    x, true, votes = made()
    majority = (votes.majority() == true).mean()
    alone = (find_consensus(votes).label == true).mean()
    found, both = audit_votes(x.astype(np.float32), votes)
    assert majority < alone - 0.02
    assert (both.label == true).mean() > alone
    wrong = votes.majority() != true
    assert found.p_error[wrong].mean() > 0.5 > found.p_error[~wrong].mean()


def test_annotators_are_ranked_by_how_often_they_are_right():
    _, _, votes = made()
    quality = find_consensus(votes).quality
    assert set(quality["accuracy"].nsmallest(2).index) == {"d", "e"}
    assert ((quality["low"] <= ACCURACY + 0.1) & (quality["high"] >= ACCURACY - 0.1)).all()


def test_an_annotator_with_few_votes_is_taken_for_an_average_one():
    _, _, votes = made()
    few = Votes(
        np.append(votes.item, 0), np.append(votes.annotator, 5), np.append(votes.label, votes.label[0]), votes.items, tuple("abcdef"), votes.classes
    )  # fmt: skip
    tables = find_consensus(few).tables
    assert np.allclose(tables[5], tables[:5].mean(0), atol=0.25)


def test_items_are_to_be_labeled_again_by_someone_who_has_not_voted():
    _, _, votes = made()
    found = find_consensus(votes)
    again = found.to_label_again(20)
    assert again["p_error"].is_monotonic_decreasing
    for _, row in again.iterrows():
        asked = votes.annotators.index(row["ask"])
        assert asked not in votes.annotator[votes.item == row["item"]]


def test_wide_and_long_tables_say_the_same():
    frame = pd.DataFrame({"text": ["t1", "t2", "t3"], "ann": ["x", "y", ""], "bob": ["x", "x", "y"]})
    items, wide = wide_votes(frame, ["ann", "bob"])
    rows = [(i, name, frame.loc[i, name]) for name in ("ann", "bob") for i in range(3) if frame.loc[i, name]]
    long = pd.DataFrame(rows, columns=["id", "who", "said"])
    _, other = long_votes(long, "id", "who", "said")
    assert list(items.columns) == ["text"]
    assert (wide.counts == other.counts).all()
    assert wide.annotators == other.annotators


@pytest.mark.parametrize(
    ("frame", "columns", "said"),
    [
        (pd.DataFrame({"ann": ["x"], "bob": ["y"]}), ["anne", "bob"], 'no column "anne"'),
        (pd.DataFrame({"ann": ["x"], "bob": ["y"]}), ["ann"], "expected two or more"),
        (pd.DataFrame({"ann": ["x"], "bob": ["x"]}), ["ann", "bob"], 'all votes say "x"'),
        (pd.DataFrame({"ann": [""], "bob": [""]}), ["ann", "bob"], "there is no vote"),
    ],
)
def test_tables_without_votes_are_refused(frame, columns, said):
    with pytest.raises(InputError, match=said):
        wide_votes(frame, columns)


def test_the_command_writes_consensus_annotators_and_page(tmp_path: Path):
    x, true, votes = made(200)
    frame = pd.DataFrame(x, columns=["left", "right", "top"])
    for a, name in enumerate(votes.annotators):
        cells = np.array([""] * votes.items, dtype=object)
        mine = votes.annotator == a
        cells[votes.item[mine]] = [f"class {c}" for c in votes.label[mine]]
        frame[f"rater {name}"] = cells
    frame.to_csv(tmp_path / "votes.csv", index=False)
    for _ in range(2):  # a run's folder can be written again
        run("consensus", tmp_path / "votes.csv", "--annotators", "rater*", "--out", tmp_path / "run")
    found = pd.read_csv(tmp_path / "run" / "consensus.csv")
    assert (found["consensus"] == [f"class {c}" for c in true]).mean() > (votes.majority() == true).mean()
    assert len(pd.read_csv(tmp_path / "run" / "annotators.csv")) == 5
    assert (tmp_path / "run" / "report.html").is_file()


def test_items_without_a_vote_are_predicted_and_keep_their_names():
    x, true, votes = made(300)
    kept = votes.item >= 5
    few = Votes(
        votes.item[kept], votes.annotator[kept], votes.label[kept], 300, votes.annotators, votes.classes, tuple(f"i{k}" for k in range(300))
    )  # fmt: skip
    _, consensus = audit_votes(x.astype(np.float32), few)
    assert (consensus.label[:5] == true[:5]).sum() >= 4
    assert consensus.p_error()[:5].max() < 0.6
    assert consensus.to_frame()["item"].tolist()[:2] == ["i0", "i1"]
    assert consensus.to_label_again(3)["item"].str.startswith("i").all()


def test_the_page_has_the_votes_beside_each_item():
    x, _, votes = made(200)
    found, _ = audit_votes(x.astype(np.float32), votes)
    shown = page_of(found)
    items = shown["items"]
    assert items["index"]
    for row, content in zip(items["index"], items["content"], strict=True):
        here = votes.item == row
        said = [
            (votes.annotators[a], votes.classes[c])
            for a, c in zip(votes.annotator[here], votes.label[here], strict=True)
        ]
        assert sorted(content.votes) == sorted(said)
    assert "votes" in payload(shown)["items"]["content"][0]


def test_votes_without_samples_are_judged_by_the_votes_alone(tmp_path: Path):
    _, _, votes = made(200, people=5)
    names = np.array(votes.annotators, dtype=object)
    rows = {"item": [f"i{k}" for k in votes.item], "who": names[votes.annotator], "label": votes.label}
    pd.DataFrame(rows).to_csv(tmp_path / "votes.csv", index=False)
    asked = ["consensus", tmp_path / "votes.csv", "--item", "item", "--annotator", "who", "--out", tmp_path / "run"]
    assert "the votes alone decide" in run(*asked)
    page = read_payload((tmp_path / "run" / "report.html").read_bytes())
    assert page["allFlagged"] > 0
    assert page["predictable"]
    assert not page["evidence"]["views"]
    assert not [note for note in page["notes"] if "cannot be predicted" in note or "flagged" in note]
    alone, reviewed = find_consensus(votes), Audit.load(tmp_path / "run" / "audit")
    assert "look wrong" in reviewed._repr_html_()
    np.testing.assert_allclose(reviewed.p_error, alone.p_error(votes.majority()), atol=1e-6)


@pytest.mark.parametrize(
    ("names", "annotators", "stated"),
    [
        (("text", "rater_1", "rater_2"), ["rater_1", "rater_2"], {}),
        (("text", "label_llm", "label_human"), ["label_human", "label_llm"], {}),
        (("label", "gpt4_label", "gpt4_confidence"), ["label", "gpt4_label"], {"gpt4_label": "gpt4_confidence"}),
        (("label", "llm_label", "confidence"), ["label", "llm_label"], {"llm_label": "confidence"}),
        (("label", "rater_1", "rater_2"), [], {}),  # the label column wins
        (("label", "car model"), [], {}),  # other values
        (("text", "label", "confidence"), [], {}),
    ],
)
def test_annotators_are_recognized_by_names_and_values(names, annotators, stated):
    values = {"text": ["a", "b", "c", "d"], "car model": ["u", "v", "w", "u"]}
    frame = pd.DataFrame(
        {n: [0.9, 0.8, 0.2, 0.4] if "confidence" in n else values.get(n, ["x", "y", "x", "y"]) for n in names}
    )
    assert vote_columns(frame) == (annotators, stated)


@pytest.mark.parametrize("confidence", [False, True])
def test_an_audit_of_two_labels_takes_them_for_annotators(tmp_path: Path, confidence: bool):
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, 300)
    person, model = (np.where(rng.random(300) < share, 1 - true, true) for share in (0.05, 0.2))
    sure = np.where(model == true, rng.uniform(0.6, 1, 300), rng.uniform(0.2, 0.7, 300))
    frame = pd.DataFrame(np.eye(2)[true] * 2 + rng.normal(size=(300, 2)), columns=["a", "b"])
    frame = frame.assign(label_llm=model, label_human=person, **({"llm_confidence": sure} if confidence else {}))
    frame.to_csv(tmp_path / "two.csv", index=False)
    said = run("audit", tmp_path / "two.csv", "--out", tmp_path / "run")
    assert "600 votes of 2 annotators" in said
    assert ('"llm_confidence" is the confidence of "label_llm"' in said) == confidence
    found = pd.read_csv(tmp_path / "run" / "consensus.csv")
    assert (found["consensus"] == true).mean() >= (person == true).mean()
    quality = pd.read_csv(tmp_path / "run" / "annotators.csv").set_index("annotator")["accuracy"]
    assert quality.idxmin().startswith("label_llm")
    assert len(quality) == (4 if confidence else 2)
    alone = audit(tmp_path / "two.csv")
    assert (alone.mask == Audit.load(tmp_path / "run" / "audit").mask).all()
    asked = ["audit", tmp_path / "two.csv", "--json", "--budget", "7", "--out", tmp_path / "seven"]
    printed = run(*asked)
    figures = json.loads(printed[printed.index("{") :])
    assert (figures["flagged"], figures["noise_rate"]) == (7, pytest.approx(alone.noise_rate.value))
    run("apply", tmp_path / "run", "--accept", "0.5", "--out", tmp_path / "fixed.csv")
    assert (pd.read_csv(tmp_path / "fixed.csv")["label"] == true).mean() >= (person == true).mean()


def test_the_command_asks_where_the_votes_are(tmp_path: Path):
    (tmp_path / "votes.csv").write_text("a,b\nx,y\n")
    with pytest.raises(InputError, match="say where the votes are"):
        run("consensus", tmp_path / "votes.csv")
