"""From an audit to the records of its page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from review_pages import planted_audit, planted_regression

from compensate.auditing.api import audit as run_audit
from compensate.auditing.content import sample_content
from compensate.auditing.findings import Provenance
from compensate.auditing.page import data as page_data
from compensate.auditing.page import page_of
from compensate.auditing.page.data import predictable
from compensate.data import Dataset
from compensate.data.dataset import Source


def test_labels_that_have_nothing_to_do_with_the_samples_cannot_be_predicted() -> None:
    for seed in range(10):
        audit, _ = planted_audit(4, rows=400, spread=0.0, rate=0.3, seed=seed)
        assert not page_of(audit)["predictable"]


def test_what_the_audit_found_about_chance_holds() -> None:
    audit, _ = planted_audit(4, rows=400)
    assert not predictable(replace(audit, provenance=Provenance(by_chance=True)))
    assert predictable(replace(audit, provenance=Provenance(by_chance=False)))


def test_labels_with_many_errors_can_still_be_predicted() -> None:
    for seed in range(5):
        audit, _ = planted_audit(4, rows=400, spread=1.0, rate=0.4, seed=seed)
        assert predictable(audit)


def test_a_rare_class_that_is_never_the_top_one_can_still_be_predicted() -> None:
    rng = np.random.default_rng(0)
    audit, _ = planted_audit(2, rows=1000)
    given = (rng.random(1000) < 0.1).astype(int)
    p = np.where(given == 1, 0.3, 0.08) + rng.normal(0, 0.02, 1000)
    assert predictable(replace(audit, given=given, probabilities=np.stack([1 - p, p], 1)))


def test_probabilities_that_are_too_sure_do_not_make_labels_unpredictable() -> None:
    audit, _ = planted_audit(2, rate=0.2)
    sure = np.eye(2)[audit.probabilities.argmax(1)]
    assert predictable(replace(audit, probabilities=sure))


def test_values_are_predictable_if_predictions_beat_the_median() -> None:
    audit, _ = planted_regression()
    assert predictable(audit)
    shuffled = np.random.default_rng(0).permutation(audit.given)
    assert not predictable(replace(audit, given=shuffled))
    wild = audit.given.copy()
    wild[:5] = 1e9
    assert predictable(replace(audit, given=wild))


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


def test_the_usual_error_of_a_value_is_that_of_its_place_or_of_all() -> None:
    audit, _ = planted_regression()
    expected = 1.4826 * np.median(np.abs(audit.given - audit.suggested))
    assert set(page_of(audit)["items"]["usual"]) == {expected}
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
