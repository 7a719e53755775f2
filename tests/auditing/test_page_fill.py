"""From an audit to the records of its page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from review_pages import planted_audit, planted_regression

from compensate.auditing import page as page_data
from compensate.auditing.api import audit as run_audit
from compensate.auditing.content import sample_content
from compensate.auditing.findings import Provenance
from compensate.auditing.page import page_of
from compensate.data import Dataset
from compensate.data.dataset import Source


def test_the_likeliest_other_classes_of_an_item_are_those_of_its_probabilities() -> None:
    audit, _ = planted_audit(20)
    items = page_of(audit)["items"]
    for k in range(20):
        p = dict(zip(audit.classes, audit.probabilities[items["index"][k]], strict=True))
        own = (items["given"][k], items["suggested"][k])
        others = sorted((name for name in p if name not in own), key=lambda name: -p[name])
        assert items["likely"][k] == others[:9]
    assert not any(page_of(replace(audit, probabilities=None))["items"]["likely"])
    assert not any(page_of(planted_audit(2)[0])["items"]["likely"])
    assert page_of(audit)["predictable"]
    assert not page_of(replace(audit, provenance=Provenance(by_chance=True)))["predictable"]


def test_the_usual_error_of_a_value_is_that_of_its_place() -> None:
    audit, _ = planted_regression()
    scale = np.linspace(1, 2, len(audit))
    items = page_of(replace(audit, evidence={"usual residual": scale}))["items"]
    assert items["usual"] == scale[items["index"]].tolist()


def test_a_suggested_value_has_no_more_digits_than_its_usual_error_allows() -> None:
    audit, _ = planted_regression()
    items = page_of(audit)["items"]
    for row, suggested, usual in zip(items["index"], items["suggested"], items["usual"], strict=True):
        assert abs(float(suggested) - audit.suggested[row]) <= usual / 10
        assert len(suggested) <= 6


def test_all_flags_are_counted_though_few_are_shown(monkeypatch) -> None:
    audit, _ = planted_audit(2, rate=0.2)
    monkeypatch.setattr(page_data, "MAX_ITEMS", 10)
    found = page_of(audit)
    assert (sum(found["items"]["flagged"]), found["allFlagged"]) == (10, audit.mask.sum())
    assert "the 10 most suspect are here" in found["notes"][-1]


def test_the_picture_of_values_has_all_flags_and_a_sample_of_the_rest(monkeypatch) -> None:
    audit, _ = planted_regression()
    monkeypatch.setattr(page_data, "DOTS", 200)
    flagged = page_of(audit)["values"]["flagged"]
    assert sum(flagged) == audit.mask.sum()
    assert 150 < len(flagged) - sum(flagged) <= 200


def test_images_of_any_channels_and_range_are_shown() -> None:
    rng = np.random.default_rng(0)
    for channels in (1, 2, 3, 4, 5):
        data = Dataset(rng.normal(size=(1, channels, 9, 9)), np.zeros(1, int), ("a",), source=Source(kind="images"))
        image = sample_content(data, 0).image
        assert image is not None
        assert image[:4] == b"\x89PNG"


def test_images_are_shown_as_images_beside_embeddings_of_the_users() -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8)).astype(np.uint8)
    labels = np.arange(40) % 2
    vectors = np.random.default_rng(1).normal(size=(40, 4)) + 3 * labels[:, None]
    found = run_audit(Dataset(images, labels, ("a", "b"), source=Source(kind="images")), features=vectors)
    shown = sample_content(found.data, 0)
    assert shown.image is not None
    assert shown.text is None
