"""What a page holds: claims, examples, predictions and files."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from review_pages import planted_audit, planted_regression
from scipy.stats import fisher_exact

from compensate.auditing.page import (
    ClassCount,
    Content,
    Estimate,
    Example,
    Item,
    Page,
    contents,
    render_page,
    thumbnail,
)
from compensate.auditing.page.contents import beside, page_of, predictable
from compensate.auditing.page.payload import Unreliable, exceeds, image_type, lopsided, payload, to_json, unreliable
from compensate.auditing.page.write import SCRIPTS, STYLES
from compensate.auditing.result import Audit, Provenance
from compensate.errors import InputError

# Page claims
SHARP, OPEN = Estimate(0.05, 0.04, 0.06), Estimate(0.05, 0.01, 0.25)


def drawn(rng: np.random.Generator, classes: int, rows: int, rates: np.ndarray) -> list[ClassCount]:
    flagged = rng.binomial(rows, rates)
    return [ClassCount(f"class {c}", rows, int(flagged[c])) for c in range(classes)]


@pytest.mark.parametrize("counts", [(0, 10, 0, 10), (3, 10, 1, 40), (10, 10, 9, 10), (47, 1200, 20, 900)])
def test_shares_are_compared_as_fishers_exact_test_does(counts: tuple[int, int, int, int]) -> None:
    k, n, other, m = counts
    p = fisher_exact([[k, n - k], [other, m - other]], alternative="greater").pvalue
    arrays = [np.array([number]) for number in counts]
    assert exceeds(*arrays, level=p * 1.001).tolist() == [True]
    assert exceeds(*arrays, level=p * 0.999).tolist() == [False]


def test_a_class_that_is_unreliable_is_named() -> None:
    rates = np.full(10, 0.04)
    rates[3] = 0.15
    found = unreliable(drawn(np.random.default_rng(0), 10, 500, rates), SHARP)
    assert found == Unreliable(("class 3",), worst=True, wrong=True)


def test_one_direction_is_more_frequent_only_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    forward = rng.binomial(60, 0.5, 1000)
    assert np.mean([lopsided(int(n), 60 - int(n)) for n in forward]) <= 0.08
    assert lopsided(45, 15)
    assert lopsided(15, 45)
    assert not lopsided(0, 0)


# Page examples
def shown_rows(audit: Audit) -> np.ndarray:
    sides = beside(audit, np.flatnonzero(audit.mask))
    return np.array([j for pair in sides.values() for side in pair for j in side])


@pytest.mark.parametrize(("classes", "spread", "rate"), [(2, 1.2, 0.1), (2, 1.2, 0.2), (5, 1.0, 0.2), (20, 0.8, 0.1)])
def test_at_most_one_in_a_hundred_shown_examples_is_a_planted_error(classes: int, spread: float, rate: float) -> None:
    wrong, shown = 0, 0
    for seed in range(3):
        audit, changed = planted_audit(classes, spread=spread, rate=rate, seed=seed)
        rows = shown_rows(audit)
        wrong, shown = wrong + int(changed[rows].sum()), shown + len(rows)
    assert shown > 300
    assert wrong <= 0.01 * shown


# Page fill
def test_labels_that_have_nothing_to_do_with_the_samples_cannot_be_predicted() -> None:
    for seed in range(10):
        audit, _ = planted_audit(4, rows=400, spread=0.0, rate=0.3, seed=seed)
        assert not page_of(audit).predictable


def test_what_the_audit_found_about_chance_holds() -> None:
    audit, _ = planted_audit(4, rows=400)
    assert not predictable(replace(audit, provenance=Provenance(by_chance=True)))
    assert predictable(replace(audit, provenance=Provenance(by_chance=False)))


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


def test_the_likeliest_other_classes_of_an_item_are_those_of_its_probabilities() -> None:
    audit, _ = planted_audit(20)
    found = page_of(audit)
    for item in found.items[:20]:
        p = dict(zip(audit.classes, audit.probabilities[item.index], strict=True))
        others = sorted((name for name in p if name not in (item.given, item.suggested)), key=lambda name: -p[name])
        assert list(item.likely) == others[:9]
    assert all(item.likely == () for item in page_of(replace(audit, probabilities=None)).items)
    assert all(item.likely == () for item in page_of(planted_audit(2)[0]).items)


def test_a_suggested_value_has_no_more_digits_than_its_usual_error_allows() -> None:
    audit, _ = planted_regression()
    for item in page_of(audit).items:
        assert item.usual_error is not None
        assert abs(float(item.suggested) - audit.suggested[item.index]) <= item.usual_error / 10
        assert len(item.suggested) <= 6


def test_all_flags_are_counted_though_few_are_shown(monkeypatch) -> None:
    audit, _ = planted_audit(2, rate=0.2)
    monkeypatch.setattr(contents, "MOST_ITEMS", 10)
    found = page_of(audit)
    assert (found.flagged, found.all_flagged) == (10, audit.mask.sum())
    assert "the 10 most suspect are here" in found.notes[-1]


# Page file
HOSTILE = "</script><!-- {{ 7*7 }} {% x %} --><img src=x onerror=alert(1)>&lt;\u2028\u2029\ud800\x00\u202e"


def page(text: str = "x", **changes: object) -> Page:
    item = Item(3, text, "y", 1.0, 0.9, True, Content(text=text, fields=((text, text),)), id=text)
    values: dict[str, object] = {
        "title": text,
        "kind": "text",
        "classes": (text, "y"),
        "rows": 9,
        "items": (item,),
        "noise_rate": Estimate(0.1, 0.0, 0.2),
        "command": text,
        "notes": (text,),
    }
    return Page(**{**values, **changes})  # type: ignore[arg-type]


class Elements(HTMLParser):
    """The elements of a page, with the text of those that hold raw text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("/" + tag, {}, ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)


def test_no_text_of_the_data_becomes_markup() -> None:
    harmless = [tag for tag, _, _ in Elements(render_page(page("x"))).found]
    assert [tag for tag, _, _ in Elements(render_page(page(HOSTILE))).found] == harmless


def test_the_data_come_back_as_they_were() -> None:
    found = next(text for tag, a, text in Elements(render_page(page(HOSTILE))).found if a.get("id") == "data")
    read = json.loads(found)
    assert read == json.loads(json.dumps(payload(page(HOSTILE))))
    assert read["labels"][0] == HOSTILE
    assert read["items"]["content"][0]["text"] == [HOSTILE]
    assert not re.search("[<>&\u2028\u2029]", to_json(payload(page(HOSTILE))))


def test_only_our_own_script_and_style_may_run() -> None:
    elements = Elements(render_page(page())).found
    policy = next(a["content"] for _, a, _ in elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    scripts = [text for tag, a, text in elements if tag == "script" and a.get("type") is None]
    styles = [text for tag, _, text in elements if tag == "style"]
    assert len(scripts) == len(styles) == 1
    for kind, text in (("script-src", scripts[0]), ("style-src", styles[0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_every_asset_is_used_and_none_writes_markup() -> None:
    folder = Path(__file__).parents[2] / "src/compensate/auditing/page/assets"
    assert {path.name for path in folder.iterdir()} == {*STYLES, *SCRIPTS, "page.html"}
    for name in SCRIPTS:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|XMLHttp|</",
            (folder / name).read_text(),
        ), name
    asking = [name for name in SCRIPTS if "fetch(" in (folder / name).read_text()]
    assert asking == ["sync.js"], "and that only where the page is served"


def test_only_images_are_shown_as_images() -> None:
    gif = b"GIF89a" + bytes(20)
    kinds = [b"\x89PNG\r\n\x1a\n1", b"\xff\xd8\xff1", gif, b"RIFF1234WEBPVP8 ", b"<svg onload='x()'>", b""]
    items = tuple(Item(i, "x", "y", 1.0, 0.5, True, Content(image=image)) for i, image in enumerate(kinds))
    contents = payload(page(items=items))["items"]["content"]
    assert [c.get("image", "").partition(";")[0] for c in contents] == ["png", "jpeg", "gif", "webp", "", ""]
    assert all("missing" in c for c in contents[4:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "sound"}, 'kind "sound"'),
        ({"items": (Item(0, "x", "y", 1.0, 1.5, True),)}, "p_error of row 0 is 1.5"),
        ({"items": (Item(0, "x", "y", 1.0, 0.5, True),) * 2}, "row 0 is among the items"),
        ({"items": (Item(0, "x", "y", 1.0, 0.5, True, like_given=(4,)),)}, "compared with row 4"),
        ({"examples": (Example(1, "x", Content()),) * 2}, "row 1 is among the examples"),
    ],
)
def test_a_page_that_cannot_be_shown_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        page(**changes)


@pytest.mark.parametrize(
    ("shape", "size", "mode"),
    [
        ((1, 8, 8), (8, 8), "L"),
        ((3, 32, 20), (20, 32), "RGB"),
        ((4, 9, 9), (9, 9), "RGBA"),
        ((3, 400, 200), (80, 160), "RGB"),
    ],
)
def test_thumbnails_keep_small_images_whole(shape: tuple[int, ...], size: tuple[int, int], mode: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    for image in (pixels, pixels / 255):
        found = Image.open(io.BytesIO(thumbnail(image)))
        assert (found.size, found.mode) == (size, mode)
        assert image_type(thumbnail(image)) is not None
        if max(size) <= 64:
            expected = pixels[0] if mode == "L" else pixels.transpose(1, 2, 0)
            assert np.array_equal(np.asarray(found), expected)
