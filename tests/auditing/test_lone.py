"""Labels that occur once are listed, and flagged where a slip of the pen explains them; class names that are nearly the same are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from compensate.auditing.api import audit
from compensate.auditing.class_names import near_names, near_pairs
from compensate.auditing.decisions import Correction
from compensate.auditing.issues import summary
from compensate.auditing.page import page_of
from compensate.auditing.result import Audit

BILLS = ["invoice", "charged", "refund", "card", "payment", "amount", "twice", "wrong", "bill", "fee"]
BOXES = ["box", "parcel", "lost", "late", "courier", "delivered", "street", "package", "tracking", "arrived"]

pytestmark = pytest.mark.filterwarnings("ignore:A label that occurs once")


@pytest.fixture(scope="module")
def tickets() -> pd.DataFrame:
    """Labels that occur once: a slip in row 11, a class of its own in row 30; and two rows with a capital letter."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(BILLS if k % 2 else BOXES, 6)) for k in range(200)]
    labels = np.array(["shipping", "billing"] * 100, dtype=object)
    labels[[11, 21, 23, 30]] = ["biling", "Billing", "Billing", "thanks"]
    return pd.DataFrame({"text": texts, "label": labels})


@pytest.fixture(scope="module")
def found(tickets: pd.DataFrame) -> Audit:
    with pytest.warns(UserWarning, match=r'occurs once .* row 11 \("biling"\), row 30 \("thanks"\)'):
        return audit(tickets, encoder="none")


def of_row(found: Audit, row: int) -> Any:
    return found.suspects.set_index("index").loc[row]


def test_a_slip_is_flagged_and_a_class_of_its_own_is_listed(found: Audit) -> None:
    assert len(found) == 200
    slip, own = of_row(found, 11), of_row(found, 30)
    assert (slip["given"], slip["suggested"], bool(slip["flagged"])) == ("biling", "billing", True)
    assert slip["p_error"] > 0.9
    assert (own["given"], own["suggested"], bool(own["flagged"])) == ("thanks", "shipping", False)
    assert 0.25 < own["p_error"] < 0.5
    assert 30 not in [c.index for c in found.accepted()]
    assert found.noise_rate.value < 0.05, "of the other rows"
    shown = dict(zip(page_of(found)["items"]["index"], page_of(found)["items"]["given"], strict=True))
    assert shown[11] == "biling"


def test_the_last_row_of_a_class_stays_once_the_others_are_decided(tickets: pd.DataFrame) -> None:
    decided = [Correction(21, "Billing", "accept", "billing"), Correction(30, "thanks", "reject", "thanks")]
    again = audit(tickets, encoder="none", decisions=decided)
    last, kept = of_row(again, 23), of_row(again, 30)
    assert (last["given"], last["suggested"], bool(last["flagged"])) == ("Billing", "shipping", False)
    assert of_row(again, 21)["given"] == "billing"
    assert kept["p_error"] < 1e-9, "a person has decided"
    assert again.config["decided"]["corrected"] == again.config["decided"]["confirmed"] == 1


def test_in_pieces_they_are_judged_as_in_the_whole(tickets: pd.DataFrame, found: Audit) -> None:
    pieces = audit(tickets, encoder="none", memory="2GB")
    for name in ("index", "given", "suggested"):
        assert getattr(pieces, name).tolist() == getattr(found, name).tolist()
    np.testing.assert_allclose(pieces.log_odds, found.log_odds, atol=1e-4)
    assert pieces.config["agreement"] == found.config["agreement"]


def test_classes_with_nearly_the_same_name_are_an_issue(found: Audit) -> None:
    issues = found.issues[found.issues["issue"] == "alike_classes"]
    assert issues["detail"].tolist() == [
        '"biling" (1 row) and "billing" (97 rows)',
        '"Billing" (2 rows) and "billing" (97 rows)',
        '"biling" (1 row) and "Billing" (2 rows)',
    ]
    assert "3 pairs of classes with nearly the same name" in summary(found.issues)


SAME = [
    ("Billing", "billing"), ("not spam", "Not_Spam"), ("e-mail", "email"), ("covid-19", "COVID 19"), ("Spam.", "spam"),
    ("shiping", "shipping"), ("postiive", "positive"), ("positve class", "positive class"), ("sport", "sports"), ("cafés", "Cafés"),
]  # fmt: skip
DIFFERENT = [
    ("<=50K", ">50K"), ("A+", "A-"), ("-1", "1"), ("B-", "B"), ("c++", "c#"), ("A", "a"), ("cat", "car"), ("item 1", "item 2"),
    ("type i", "type ii"), ("grade A", "grade B"), ("1-2", "12"), ("abcde", "bcdef"), ("positive", "negative"), ("", " "),
]  # fmt: skip


@pytest.mark.parametrize(("names", "near"), [*((pair, True) for pair in SAME), *((pair, False) for pair in DIFFERENT)])
def test_names_that_are_nearly_the_same_and_names_that_tell_classes_apart(names: tuple[str, str], near: bool) -> None:
    assert near_names(*names) == near_names(*names[::-1]) == near


def test_pairs_of_names_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    names = list({"".join(rng.choice(list("abc "), rng.integers(4, 8))) for _ in range(400)})
    plain = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names)) if near_names(names[i], names[j])]
    assert list(near_pairs(names)) == plain
    assert len(plain) > 50
