"""The file itself: one piece, escaped, locked down."""

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
from review_pages import Item, Page

from compensate.auditing.content import Content, embedded_image, thumbnail
from compensate.auditing.page import SCRIPTS, STYLES, TEXT_LIMITS, payload, render_page, to_json, write_page
from compensate.data.dataset import Estimate

HOSTILE = "</script><!-- {{ 7*7 }} {% x %} --><img src=x onerror=alert(1)>&lt;\u2028\u2029\ud800\x00\u202e"


def page(text: str = "x", **changes: object) -> dict[str, object]:
    item = Item(3, text, "y", 1.0, 0.9, True, Content(text=text, fields=((text, text),)), id=text)
    made = Page(text, "text", (text, "y"), 9, (item,), Estimate(0.1, 0.0, 0.2), command=text, notes=(text,))
    return replace(made, **changes).data()


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


def test_the_page_needs_no_other_file() -> None:
    for tag, attributes, _ in Elements(render_page(page())).found:
        assert not {"src", "srcset", "action"} & attributes.keys(), tag
        assert (attributes.get("href") or "#").startswith("#")


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


def test_the_key_follows_the_content() -> None:
    assert payload(page("a"))["key"] == payload(page("a"))["key"] != payload(page("b"))["key"]


def test_labels_are_stored_once_and_texts_are_cut() -> None:
    huge = "x" * 1_000_000
    items = tuple(Item(i, huge, "y", 1.0, 0.5, True, Content(text=huge)) for i in range(300))
    found = payload(page(classes=(huge, "y"), items=items))
    text, length = found["items"]["content"][0]["text"]
    assert length == 1_000_000
    assert TEXT_LIMITS[0] <= len(text) <= TEXT_LIMITS[1]
    assert found["labels"][0] == huge  # whole: the export must say what the data say
    assert len(to_json(found)) < 40_000_000


def test_only_images_are_shown_as_images() -> None:
    gif = b"GIF89a" + bytes(20)
    kinds = [b"\x89PNG\r\n\x1a\n1", b"\xff\xd8\xff1", gif, b"RIFF1234WEBPVP8 ", b"<svg onload='x()'>", b""]
    items = tuple(Item(i, "x", "y", 1.0, 0.5, True, Content(image=image)) for i, image in enumerate(kinds))
    contents = payload(page(items=items))["items"]["content"]
    assert [c.get("image", "").partition(";")[0] for c in contents] == ["png", "jpeg", "gif", "webp", "", ""]
    assert all("missing" in c for c in contents[4:])


def test_numbers_that_json_cannot_hold_are_left_out() -> None:
    item = Item(0, "x", "y", float("nan"), 0.5, True)
    nan = float("nan")
    found = payload(page(items=(item,), noise=Estimate(nan, nan, nan)))
    assert found["items"]["score"] == [None]
    assert found["noise"] == [None, None, None]


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write_page(page(), tmp_path / "new" / "report.html")
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_page(page(command=object()), path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


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
        assert embedded_image(thumbnail(image)) is not None
        if max(size) <= 64:
            expected = pixels[0] if mode == "L" else pixels.transpose(1, 2, 0)
            assert np.array_equal(np.asarray(found), expected)
