"""Preference pairs: read in every form, judged without regard to their order, decided on, checked and written back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import test_review_round_trip as round_trip
from sklearn.metrics import average_precision_score
from test_review_round_trip import ROWS, WRONG, pairs

from compensate.auditing.api import audit
from compensate.auditing.check import check
from compensate.auditing.decisions import Correction
from compensate.auditing.labels.pairs import Differences, Pairs, antisymmetric
from compensate.auditing.page import page_of, payload
from compensate.auditing.result import Audit, apply_corrections
from compensate.data.dataset import Dataset
from compensate.data.pairs import Pair, answers_of, messages, pair_columns, pairs_of_frame
from compensate.errors import InputError


@pytest.fixture(scope="module")
def found() -> Audit:
    return audit(pairs(), encoder="none")


def test_wrong_preferences_are_found_and_dropping_them_is_suggested(found: Audit) -> None:
    assert found.label_kind is Pairs
    assert set(found.flagged["index"]) == set(WRONG)
    assert (found.flagged["suggested"] == "drop").all()
    assert (found.flagged["p second"] > 0.5).all()
    assert found.noise_rate.low <= len(WRONG) / ROWS <= found.noise_rate.high
    assert any("Length, form and overlap" in note for note in found.notes)


def test_exchanging_all_responses_mirrors_the_answers() -> None:
    frame = pairs("preference")
    mirrored = frame.assign(
        response1=frame["response2"], response2=frame["response1"], preference=3 - frame["preference"]
    )
    one, two = audit(frame, encoder="none"), audit(mirrored, encoder="none")
    np.testing.assert_allclose(one.log_odds, two.log_odds, atol=2e-2)
    np.testing.assert_allclose(one.probabilities[:, 0], two.probabilities[:, 1], atol=2e-3)


def test_predictions_of_mirror_images_are_mirrored_exactly() -> None:
    rng = np.random.default_rng(0)
    p, q = (np.log(rng.dirichlet(np.ones(3), 8)).astype(np.float32) for _ in range(2))
    here, there = antisymmetric(p, q), antisymmetric(q, p)
    np.testing.assert_array_equal(here, there[:, [1, 0, 2]])


def test_features_of_mirror_images_are_mirrored() -> None:
    some = [Pair("a question about films", "A superb film. Really!", "dull\n1 2 3"), Pair("", "", "x")]
    maker = Differences()
    sample = np.empty(2, object), np.empty(2, object)
    for k, pair in enumerate(some):
        sample[0][k], sample[1][k] = pair, Pair(pair.prompt, pair.second, pair.first)
    one, two = (maker.view(Dataset(x, np.zeros(2, np.int64), ("a",))).x for x in sample)
    np.testing.assert_allclose(maker.mirrored(one), two, atol=1e-6)


def test_an_encoder_adds_the_difference_of_embeddings_alone_and_with_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    known: dict[str, Any] = {}

    class Encoded:
        name, license, source = "toy", "", ""

        def __init__(self, texts: Any) -> None:
            self.values = np.stack([known.setdefault(text, rng.normal(size=8)) for text in texts]).astype(np.float32)

    monkeypatch.setattr("compensate.encoders.encode_data", lambda data, *_, **__: Encoded(data.x))
    views = audit(pairs()).provenance.views
    assert {name.split(":")[0] for name in views} == {"toy", "toy with prompt", "words", "length and overlap"}


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["prompt", "chosen", "rejected"], (("prompt",), "chosen", "rejected", ())),
        (["Chosen", "Rejected", "id"], ((), "Chosen", "Rejected", ())),
        (["instruction", "input", "response1", "response2", "preference"], (("instruction", "input"), "response1", "response2", ("preference",))),
        (["question", "answer_b", "answer_a", "winner"], (("question",), "answer_a", "answer_b", ("winner",))),
        (["prompt", "output_0", "output_1", "annotator_1", "annotator_2"], (("prompt",), "output_0", "output_1", ("annotator_1", "annotator_2"))),
        (["text", "label"], None),
        (["response1", "response2"], None),
        (["chosen", "label"], None),
    ],
)  # fmt: skip
def test_columns_are_found_by_their_names(names: list[str], expected: Any) -> None:
    assert pair_columns(names) == (None if expected is None else (*expected, "side"))


@pytest.mark.parametrize(
    ("first", "second", "cells", "expected"),
    [
        ("response1", "response2", ["1", "2", "0", "", "tie"], [0, 1, 2, -1, 2]),
        ("response_a", "response_b", ["A", "b", "response_b", "Tie", "model_a"], [0, 1, 1, 2, 0]),
        ("answer_0", "answer_1", [0, 1, None], [0, 1, -1]),
        ("response_a", "response_b", [1.0, 2.0, 0.0], [0, 1, 2]),
    ],
)
def test_preferences_are_understood_as_they_are_written(
    first: str, second: str, cells: list[Any], expected: list[int]
) -> None:
    columns = pair_columns(["prompt", first, second, "preference"])
    assert columns is not None
    assert answers_of(cells, "preference", columns, "t").tolist() == expected


def test_a_preference_that_means_nothing_is_named() -> None:
    columns = pair_columns(["prompt", "response1", "response2", "preference"])
    assert columns is not None
    with pytest.raises(InputError, match=r'row 1: the column "preference" says "maybe"; expected 1'):
        answers_of(["1", "maybe"], "preference", columns, "t")


def test_preferences_of_zero_and_one_for_responses_one_and_two_are_asked_about() -> None:
    columns = pair_columns(["response1", "response2", "preference"])
    assert columns is not None
    with pytest.raises(InputError, match="may mean two things"):
        answers_of([0, 1, 1], "preference", columns, "t")


def test_sentence_pairs_and_numbers_are_no_preference_pairs() -> None:
    assert pair_columns(["text1", "text2", "label"]) is None
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"response1": rng.normal(size=60), "response2": rng.normal(size=60), "winner": ["a", "b"] * 30}
    )
    assert audit(frame, encoder="none").label_kind is not Pairs


def test_messages_that_both_conversations_share_are_the_prompt() -> None:
    user = {"role": "user", "content": "Hi"}
    cells = [[user, {"role": "assistant", "content": text}] for text in ("Hello!", "Go away.")]
    frame = pd.DataFrame({"chosen": [cells[0]], "rejected": [cells[1]]})
    columns = pair_columns(frame.columns)
    assert columns is not None
    assert pairs_of_frame(frame, columns, "t")[0].x[0] == Pair("Hi", "Hello!", "Go away.")
    assert messages(np.array(["a", None], object)) == ["a", ""]


def test_a_label_column_of_the_users_choice_is_audited_as_classes(tmp_path: Path) -> None:
    frame = pairs().assign(topic=["a", "b"] * (ROWS // 2))
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert audit(tmp_path / "t.csv", encoder="none", label="topic").label_kind is not Pairs


def test_an_option_that_pairs_do_not_have_is_named() -> None:
    with pytest.raises(InputError, match="columns is not an option for preference pairs"):
        audit(pairs(), columns="prompt", encoder="none")


# --- layouts ----------------------------------------------------------------------------------------------------


def chat(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def human(prompt: str, answer: str) -> str:
    return f"\n\nHuman: {prompt}\n\nAssistant: Why?\n\nHuman: so\n\nAssistant: {answer}"


def ranked(first: str, second: str) -> Callable[..., dict[str, Any]]:
    """Rows of a better and a worse response."""
    return lambda p, a, b, c: {"prompt": p, first: (a, b)[c], second: (b, a)[c]}


# Each makes a row of a prompt, two responses, and the answer: 0 or 1 for the better one, 2 for a tie.
LAYOUTS: dict[str, Callable[[str, str, str, int], dict[str, Any]]] = {
    "stack exchange": ranked("response_j", "response_k"), "chosen_response": ranked("chosen_response", "rejected_response"),
    "preferred": ranked("preferred", "dispreferred"), "response_w": ranked("response_w", "response_l"),
    "hh": lambda p, a, b, c: {"chosen": human(p, (a, b)[c]), "rejected": human(p, (b, a)[c])},
    "llama factory": lambda p, a, b, c: {
        "conversations": [{"from": "human", "value": p}], "chosen": {"from": "gpt", "value": (a, b)[c]}, "rejected": {"from": "gpt", "value": (b, a)[c]},
    },
    "ultrafeedback": lambda p, a, b, c: {
        "prompt": p, "chosen": chat(p, (a, b)[c]), "rejected": chat(p, (b, a)[c]), "messages": chat(p, (a, b)[0]), "score_chosen": 7.5,
        "score_rejected": 3.0, "chosen_score": "3",
    },
    "openai": lambda p, a, b, c: {
        "input": {"messages": [{"role": "user", "content": p}]}, "preferred_output": chat(p, (a, b)[c])[1:], "non_preferred_output": chat(p, (b, a)[c])[1:],
    },
    "safe rlhf": lambda p, a, b, c: {"prompt": p, "response_0": a, "response_1": b, "better_response_id": c, "safer_response_id": 0},
    "shp": lambda p, a, b, c: {"history": p, "human_ref_A": a, "human_ref_B": b, "labels": 1 - c, "score_A": 3},
    "arena": lambda p, a, b, c: {
        "model_a": "x-1", "winner": ("model_a", "model_b", "tie (bothbad)")[c], "conversation_a": chat(p, a), "conversation_b": chat(p, b),
    },
    "lmsys": lambda p, a, b, c: {
        "prompt": json.dumps([p]), "response_a": json.dumps([a]), "response_b": json.dumps([b]), "winner_model_a": int(c == 0), "winner_model_b": int(c == 1),
        "winner_tie": int(c == 2),
    },
    "judge": lambda p, a, b, c: {"question": p, "response_A": a, "response_B": b, "winner": ("[[A>B]]", "[[B>>A]]", "A=B")[c]},
    "sides": lambda p, a, b, c: {"prompt": p, "response1": a, "response2": b, "choice": ("left", "right", "equal")[c]},
    "models": lambda p, a, b, c: {"prompt": p, "response_a": a, "response_b": b, "preference": ("model_1", "model_2", "tie")[c]},
    "letters": lambda p, a, b, c: {"prompt": p, "output_1": a, "output_2": b, "winner": ("A", "B", "tie")[c]},
    "names": lambda p, a, b, c: {"prompt": p, "response_a": a, "response_b": b, "winner": ("response_a", "response_b", "tie")[c]},
    "unknown names": lambda p, a, b, c: {"q": p, "old": a, "new": b, "which": c},
    "helpsteer": lambda p, a, b, c: {"context": chat(p, "")[:1], "response1": a, "response2": b, "overall_preference": (-len(p), len(p), 0)[c]},
}  # fmt: skip
TIES = {"arena", "helpsteer", "lmsys", "judge", "sides", "models", "letters", "names"}
ASKED = {"unknown names": {"task": "preference", "text": "q,old,new", "label": "which"}}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_read_audited_and_written_back_in_their_form(name: str, tmp_path: Path) -> None:
    ranks = "chosen" in LAYOUTS[name]("", "", "", 0) or name in (
        "stack exchange",
        "preferred",
        "response_w",
        "chosen_response",
        "openai",
    )
    shown = pairs("preference")[:40]
    answers = [0] * 40 if ranks else [int(c) - 1 for c in shown["preference"]]
    for row in (5, 20) if name in TIES else ():
        answers[row] = 2
    texts = list(zip(shown["prompt"], shown["response1"], shown["response2"], strict=True))
    rows = [LAYOUTS[name](*text, c) for text, c in zip(texts, answers, strict=True)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = audit(tmp_path / "t.jsonl", encoder="none", **ASKED.get(name, {}))
    assert found.label_kind is Pairs
    assert found.given.tolist() == answers
    assert found.data is not None
    for pair, (prompt, *responses) in zip(found.data.x, texts, strict=True):
        assert [one.strip() for one in pair[1:]] == responses
        assert prompt in pair.prompt
        assert not any(one in pair.prompt for one in responses)
    new = {row: 1 - answers[row] for row in (0, 1, 30)} | ({7: 2, 5: 0} if name in TIES else {})
    words = ("first", "second", "tie")
    made = [Correction(row, words[answers[row]], "other", words[c], part=f"pair {row}") for row, c in new.items()]
    made.append(Correction(12, words[answers[12]], "drop", "", part="pair 12"))
    run = found.save(tmp_path / "run")
    done = Audit.load(run).apply(made, tmp_path / "out.jsonl")
    expected = [LAYOUTS[name](*texts[row], new.get(row, answers[row])) for row in range(40) if row != 12]
    after = [json.loads(line) for line in done.path.read_text().splitlines()]
    if name == "helpsteer":  # a tie has no size that could be kept
        after[5]["overall_preference"], expected[5]["overall_preference"] = (
            np.sign(one[5]["overall_preference"]) for one in (after, expected)
        )
    assert after == expected


@pytest.mark.parametrize("values", [[-2, -1, 0, 1, 2], [-1, 0, 1], ["-1.0", "0.0", "1.0"], [-0.5, 0, 2.5]])
def test_the_sign_of_a_preference_decides_and_is_kept(values: list[Any], tmp_path: Path) -> None:
    frame = pairs("preference")
    cells = [values[k % len(values)] for k in range(ROWS)]
    frame["preference"] = cells
    read, _ = pairs_of_frame(frame, pair_columns(frame.columns), "t")  # type: ignore[arg-type]
    assert read.target.tolist() == [[0, 2, 1][int(np.sign(float(one))) + 1] for one in cells]
    frame.to_csv(tmp_path / "t.csv", index=False)
    made = [
        Correction(0, "first", "other", "second", part="pair 0"),
        Correction(len(values) - 1, "second", "other", "tie", part=f"pair {len(values) - 1}"),
    ]
    after = pd.read_csv(apply_corrections(tmp_path / "t.csv", made).path)["preference"].tolist()
    expected = [-float(cells[0]), *map(float, cells[1:])]
    expected[len(values) - 1] = 0
    assert after == expected


def test_a_third_response_is_refused() -> None:
    frame = pairs("preference").assign(response_3="one more film")
    frame = frame.rename(columns={"response1": "response_1", "response2": "response_2", "preference": "winner"})
    with pytest.raises(InputError, match=r"response_1, response_2, response_3.*--label winner --task classification"):
        audit(frame, encoder="none")
    assert audit(frame, encoder="none", label="winner", task="classification").label_kind is not Pairs


@pytest.mark.parametrize("ends", ["1234", "abcd"])
def test_a_multiple_choice_question_is_a_table_of_classes(ends: str) -> None:
    rng = np.random.default_rng(0)
    told = rng.integers(4, size=ROWS)
    frame = pd.DataFrame({"question": [f"what is {'abcd'[k]} number {i}" for i, k in enumerate(told)]})
    frame = frame.assign(**{f"answer_{end}": "one more answer" for end in ends}, choice=[ends[k] for k in told])
    found = audit(frame, encoder="none")
    assert found.label_kind is not Pairs
    assert (found.source.label, found.classes) == ("choice", tuple(ends))


@pytest.mark.parametrize("quoted", [json.dumps, repr])
def test_conversations_written_as_text_are_messages_and_keep_their_cells(quoted: Any, tmp_path: Path) -> None:
    frame = pairs()[:40]
    for name in ("chosen", "rejected"):
        frame[name] = [quoted(chat(p, text)) for p, text in zip(frame["prompt"], frame[name], strict=True)]
    frame.drop(columns="prompt").to_csv(tmp_path / "t.csv", index=False)
    found = audit(tmp_path / "t.csv", encoder="none")
    assert found.data is not None
    assert [tuple(pair) for pair in found.data.x] == list(pairs()[:40].itertuples(index=False, name=None))
    done = apply_corrections(tmp_path / "t.csv", [Correction(3, "first", "other", "second", part="pair 3")])
    frame.loc[3, ["chosen", "rejected"]] = frame.loc[3, ["rejected", "chosen"]].to_numpy()
    frame.drop(columns="prompt").to_csv(tmp_path / "expected.csv", index=False)
    assert done.path.read_bytes() == (tmp_path / "expected.csv").read_bytes()


def test_half_of_an_escaped_character_is_replaced() -> None:
    cells = {"prompt": ['["a"]'], "chosen": [r'["good \ud83d"]'], "rejected": ['["bad", null]']}
    frame = pd.DataFrame(cells)
    columns = pair_columns(frame.columns)
    assert columns is not None
    assert pairs_of_frame(frame, columns, "t")[0].x[0] == Pair("a", "good ?", "bad\n")


@pytest.mark.parametrize("said", [("essay_1", "essay_2"), ("A", "B"), ("first", "second"), (1, 2)])
def test_unknown_names_of_pairs_are_asked_about(said: Any) -> None:
    frame = pairs("preference").rename(columns={"response1": "essay_1", "response2": "essay_2", "prompt": "question"})
    frame["verdict"] = [said[c - 1] for c in frame.pop("preference")]
    with pytest.raises(InputError, match="--task preference --text question,essay_1,essay_2 --label verdict") as asked:
        audit(frame, encoder="none")
    options = dict(re.findall(r"(task|text|label)='([^']*)'", str(asked.value)))
    found, listed = (
        audit(frame, encoder="none", **{**options, "text": text})
        for text in (options["text"], options["text"].split(","))
    )
    assert found.label_kind is listed.label_kind is Pairs
    np.testing.assert_array_equal(found.log_odds, listed.log_odds)
    assert audit(frame, encoder="none", label="verdict").label_kind is not Pairs


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("question1", "question2", "is_duplicate"), (0, 1)),
        (("title", "body", "spam"), (0, 1)),
        (("premise", "hypothesis", "label"), ("A", "B")),
        (("title", "description", "priority"), (1, 2)),
        (("title", "description", "group"), ("A", "B")),
    ],
)
def test_classes_of_two_texts_are_not_asked_about(names: tuple[str, ...], said: Any) -> None:
    frame = pairs("preference").drop(columns="prompt").set_axis(list(names), axis=1)
    frame[names[2]] = [said[c - 1] for c in frame[names[2]]]
    assert audit(frame, encoder="none").label_kind is not Pairs


def test_columns_that_the_user_names_for_pairs_are_checked() -> None:
    frame = pairs("preference")
    for options, problem in (
        ({}, "needs the columns"),
        ({"text": "prompt,resp"}, '"resp"'),
        ({"text": "prompt"}, "expected the col"),
    ):
        with pytest.raises(InputError, match=problem):
            audit(frame, encoder="none", task="preference", **options)


def test_a_row_with_two_winners_is_refused() -> None:
    frame = pairs("preference").drop(columns="preference").assign(winner_1=1, winner_2=[0] * 5 + [1] * (ROWS - 5))
    with pytest.raises(InputError, match="row 5: several of winner_1, winner_2 are 1"):
        audit(frame, encoder="none")


def test_keys_within_a_cell_are_no_columns(tmp_path: Path) -> None:
    rows = [
        {"text": f"a {['good', 'dull'][k % 2]} film {k}", "label": "pn"[k % 2], "meta": {"chosen": 1, "rejected": 2}}
        for k in range(60)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(UserWarning, match="meta hold lists or objects"):
        assert audit(tmp_path / "t.jsonl", encoder="none").classes == ("n", "p")


def test_a_tie_that_zero_and_one_cannot_express_is_refused(tmp_path: Path) -> None:
    frame = pairs("preference").rename(columns={"response1": "answer_0", "response2": "answer_1"})
    frame["preference"] -= 1
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = ["first", "second"][frame["preference"][4]]
    with pytest.raises(InputError, match="no row prefers the tie response; drop such pairs"):
        apply_corrections(tmp_path / "t.csv", [Correction(4, given, "other", "tie", part="pair 4")])


# --- ties and annotators ----------------------------------------------------------------------------------------


def test_ties_are_a_third_answer() -> None:
    frame = pairs("preference")
    same = np.arange(ROWS) % 5 == 0
    frame.loc[same, "response2"] = frame.loc[same, "response1"] + " too"
    frame.loc[same & ~np.isin(np.arange(ROWS), WRONG), "preference"] = 0
    result = audit(frame, encoder="none")
    assert set(result.suspects["given"]) == {"first", "second", "tie"}
    assert "p tie" in result.suspects
    assert set(WRONG) <= set(result.suspects["index"].head(15))


def test_several_annotators_give_a_majority_and_their_votes_are_shown(tmp_path: Path) -> None:
    frame = pairs("preference")
    votes = np.stack([frame["preference"]] * 3, 1)
    votes[7] = [1, 2, 0]
    frame = frame.drop(columns="preference").assign(**{f"annotator{k + 1}": votes[:, k] for k in range(3)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    result = audit(tmp_path / "t.csv", encoder="none")
    assert dict(zip(result.index, result.names(result.given), strict=True))[7] == "tie"
    assert any("majority of annotator1, annotator2, annotator3" in note for note in result.notes)
    content = page_of(result)["items"]["content"][0]
    assert [who for who, _ in content.votes] == ["annotator1", "annotator2", "annotator3"]
    swap = Correction(3, result.names(result.given[[3]])[0], "other", "tie", part="pair 3")
    with pytest.raises(InputError, match="votes of several annotators"):
        apply_corrections(tmp_path / "t.csv", [swap])
    assert apply_corrections(tmp_path / "t.csv", result.accepted(0.6)).dropped == int((result.p_error >= 0.6).sum())


@pytest.mark.parametrize("ties", [0.0, 0.1])
def test_a_careless_annotator_counts_less(ties: float) -> None:
    """Two careless people outvote a good one; the annotator model and the texts tell where."""
    rng = np.random.default_rng(1)
    frame = pairs("preference")
    true = frame["preference"].to_numpy().copy()
    true[list(WRONG)] = 3 - true[list(WRONG)]
    true[rng.random(ROWS) < ties] = 0
    votes = np.stack([np.where(rng.random(ROWS) < rate, 3 - true, true) % 3 for rate in (0.0, 0.35, 0.35)], 1)
    frame = frame.drop(columns="preference").assign(**{f"rater{k}": votes[:, k] for k in range(3)})
    result = audit(frame, encoder="none")
    wrong = result.given != np.array([2, 0, 1])[true]
    assert wrong.mean() > 0.05
    assert average_precision_score(wrong, result.log_odds) > 0.9
    said = next(note for note in result.notes if note.startswith("Estimated share of right votes"))
    right = [int(share) for share in re.findall(r"(\d+)%", said)]
    np.testing.assert_allclose(right, 100 * (votes == true[:, None]).mean(0), atol=6)


def test_two_annotators_who_differ_make_a_tie_that_is_judged() -> None:
    frame = pairs("preference")
    second = frame["preference"].where(frame.index % 10 > 0, 3 - frame["preference"])
    frame = frame.rename(columns={"preference": "annotator1"}).assign(annotator2=second)
    result = audit(frame, encoder="none")
    assert set(np.flatnonzero(result.given == 2)) == set(range(0, ROWS, 10))
    assert (result.p_error[result.given == 2] > 0.9).all()


def test_pairs_without_a_preference_are_predicted() -> None:
    frame = pairs("preference")
    frame["preference"] = frame["preference"].astype(object)
    true = frame["preference"][20:30].tolist()
    frame.loc[20:29, "preference"] = None
    result = audit(frame, encoder="none")
    assert result.predicted["index"].tolist() == list(range(20, 30))
    assert result.predicted["suggested"].tolist() == [["first", "second"][one - 1] for one in true]


# --- writing ----------------------------------------------------------------------------------------------------


def decisions(frame: pd.DataFrame, new: dict[int, str]) -> list[Correction]:
    given = (
        ["first"] * len(frame) if "chosen" in frame else [["first", "second"][int(c) - 1] for c in frame["preference"]]
    )
    return [Correction(row, given[row], "other", label, part=f"pair {row}") for row, label in new.items()]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.parquet", "parts", "saved"])
@pytest.mark.parametrize("form", ["chosen", "preference"])
def test_swaps_ties_and_dropped_pairs_are_written_in_every_format(form: str, name: str, tmp_path: Path) -> None:
    frame = pairs(form)
    round_trip.write_table(frame, tmp_path / name)
    other = {row: "second" if form == "chosen" or frame["preference"][row] == 1 else "first" for row in (3, 60)}
    out = tmp_path / "out" / name  # a folder of a saved data set is read by its name
    out.parent.mkdir()
    done = apply_corrections(tmp_path / name, decisions(frame, {**other, 5: "drop", 70: "drop", 8: "tie"}), out)
    after, expected = round_trip.read_table(done.path), frame.copy()
    dropped = [5, 70]
    if form == "chosen":  # which cannot express a tie
        expected.loc[[3, 60], ["chosen", "rejected"]] = frame.loc[[3, 60], ["rejected", "chosen"]].to_numpy()
        dropped.append(8)
    else:
        expected.loc[[3, 60], "preference"] = 3 - frame.loc[[3, 60], "preference"]
        expected.loc[8, "preference"] = 0
    expected = expected.drop(index=dropped).reset_index(drop=True)
    pd.testing.assert_frame_equal(after.astype(str), expected.astype(str))
    assert (done.changed, done.dropped) == (3, 2)


def test_conversations_are_swapped_as_they_are_written(tmp_path: Path) -> None:
    rows = [
        {"chosen": [{"role": "user", "content": "q"}, {"content": f"é{k}"}], "rejected": [{"content": "b"}]}
        for k in range(3)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row, indent=None) + "\n" for row in rows))
    done = apply_corrections(tmp_path / "t.jsonl", [Correction(1, "first", "other", "second", part="pair 1")])
    lines = done.path.read_text().splitlines()
    assert json.loads(lines[1]) == {"chosen": rows[1]["rejected"], "rejected": rows[1]["chosen"]}
    assert [lines[0], lines[2]] == [json.dumps(rows[0]), json.dumps(rows[2])]


def test_other_data_and_other_labels_are_refused(tmp_path: Path) -> None:
    pairs("preference").to_csv(tmp_path / "t.csv", index=False)
    wrong = [Correction(0, "tie", "other", "drop", part="pair 0")]
    with pytest.raises(InputError, match="differs from the reviewed data"):
        apply_corrections(tmp_path / "t.csv", wrong)
    with pytest.raises(InputError, match="expected first, second, tie, drop"):
        apply_corrections(tmp_path / "t.csv", decisions(pairs("preference"), {0: "third"}))
    with pytest.raises(InputError, match="has the rows 0 to 149"):
        apply_corrections(tmp_path / "t.csv", [Correction(900, "first", "other", "drop", part="pair 900")])
    pairs().to_excel(tmp_path / "t.xlsx", index=False)
    with pytest.raises(InputError, match="written as CSV"):
        apply_corrections(tmp_path / "t.xlsx", decisions(pairs(), {0: "drop"}))


def test_suggestions_can_be_swaps_on_request(found: Audit) -> None:
    dropped, swapped = found.accepted(0.6), found.accepted(0.6, relabel=True)
    assert {c.label for c in dropped} == {"drop"}
    assert {c.label for c in swapped} == {"second"}
    assert [c.index for c in dropped] == [c.index for c in swapped]


# --- check, issues and page -------------------------------------------------------------------------------------


def test_new_pairs_are_checked_by_the_stored_model(tmp_path: Path) -> None:
    frame = pairs()
    frame[:120].to_json(tmp_path / "old.jsonl", orient="records", lines=True)
    run = audit(tmp_path / "old.jsonl", encoder="none").save(tmp_path / "run")
    new = frame.copy()
    new.loc[140, ["chosen", "rejected"]] = frame.loc[140, ["rejected", "chosen"]].to_numpy()
    new.to_json(tmp_path / "new.jsonl", orient="records", lines=True)
    result = check(Audit.load(run), tmp_path / "new.jsonl")
    assert (result.rows, result.known, result.new) == (150, 120, 30)
    assert [(f.row, f.line, f.given, f.suggested) for f in result.findings] == [(140, 141, "first", "second")]
    scores = Audit.load(run).score(new)
    assert scores["p_error"].idxmax() in (140, *WRONG)


def test_other_issues_of_pairs(tmp_path: Path) -> None:
    frame = pairs()
    frame.loc[10, "prompt"] = frame.loc[11, "prompt"]
    frame.loc[20, "rejected"] = frame.loc[20, "chosen"]
    frame.loc[31, ["prompt", "rejected"]] = frame.loc[30, ["prompt", "chosen"]].to_numpy()
    frame["rejected"] = frame["rejected"].astype(object)
    frame.loc[[40, 41], "rejected"] = [None, " "]
    issues = audit(frame, encoder="none").issues
    rows = {kind: set(part["index"]) for kind, part in issues.groupby("issue")}
    assert rows == {
        "duplicate_prompt": {11, 31},
        "identical_responses": {20},
        "contradicting_response": {30},
        "empty_answer": {40, 41},
    }


def test_the_page_shows_prompt_and_both_responses(found: Audit) -> None:
    page = page_of(found)
    content = page["items"]["content"][0]
    row = int(found.suspects["index"][0])
    frame = pairs()
    assert content.text == frame["prompt"][row]
    assert content.sides == (("chosen", frame["chosen"][row]), ("rejected", frame["rejected"][row]))
    assert not content.fields
    stored = payload(page)
    assert stored["kind"] == "pair"
    assert [stored["names"][name] for name, _ in stored["items"]["content"][0]["sides"]] == ["chosen", "rejected"]


@pytest.mark.slow
def test_keys_of_the_page_keep_swap_drop_and_tie(found: Audit, browser: Any, tmp_path: Path) -> None:
    path = found.report(tmp_path / "report.html")
    tab = browser.new_page()
    tab.goto(f"{path.as_uri()}#review")
    assert tab.locator(".sides section").count() == 2
    marked = tab.locator(".differs").all_inner_texts()
    assert set(marked) & {"superb", "lovely", "charming", "fine", "dull", "awful", "boring", "weak"}
    assert "film" not in marked
    for key in "kwdta":
        tab.keyboard.press(key)
    made = tab.evaluate("Object.values(localStorage).map((one) => JSON.parse(one).made)[0].map(([, kept]) => kept)")
    assert made == [["reject"], ["other", "second"], ["accept"], ["other", "tie"], ["accept"]]
    tab.close()
