"""What else is wrong with the data: planted cases of every kind are found, and clean data has none."""

from __future__ import annotations

import io
import json
import shutil
import tracemalloc
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import run
from PIL import Image

from compensate.auditing import duplicates
from compensate.auditing.api import audit
from compensate.auditing.duplicates import (
    SIMILAR_IMAGES,
    image_pairs,
    jaccard,
    nearest_rows,
    ngrams,
    shrunk,
    text_pairs,
)
from compensate.auditing.issues import (
    COLUMNS,
    KINDS,
    copies,
    find_issues,
    language,
    next_step,
    odd_images,
    odd_texts,
    oddity,
    outliers,
    predicts,
    summary,
)
from compensate.auditing.page import page_of
from compensate.auditing.result import Audit
from compensate.data import Dataset, from_frame
from compensate.data.dataset import Source
from compensate.errors import InputError

WORDS = [
    "".join(parts)
    for parts in product(("ka", "lo", "mi", "re", "su"), ("bon", "dar", "fel", "gim"), ("ta", "ve", "zo"))
]


def sentences(n: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(8, 14))) for _ in range(n)]


def of(found: pd.DataFrame, issue: str) -> pd.DataFrame:
    return found[found["issue"] == issue]


# --- neighbors ------------------------------------------------------------------------------------------------


def test_neighbors_are_those_of_a_plain_search() -> None:
    x = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    who, far = nearest_rows(x, 4)
    apart = np.linalg.norm(x[:, None] - x[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    np.testing.assert_allclose(far, np.sort(apart, axis=1)[:, :4], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.take_along_axis(apart, who, 1), far, rtol=1e-3, atol=1e-3)


def test_rows_that_are_all_equal_have_neighbors_at_no_distance() -> None:
    who, far = nearest_rows(np.ones((200, 3), np.float32), 10)
    assert not far.any()
    assert all(len({i, *row}) == 11 for i, row in enumerate(who.tolist()))


def test_in_cells_nearly_all_copies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "EXACT_ROWS", 500)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 16)).astype(np.float32)
    x[2000:] = x[:1000] + rng.normal(0, 0.05, size=(1000, 16))
    who, _ = nearest_rows(x, 1)
    assert (who[2000:, 0] == np.arange(1000)).mean() > 0.95


# --- texts ----------------------------------------------------------------------------------------------------


def test_pairs_of_texts_are_those_of_a_plain_loop() -> None:
    texts = sentences(80)
    texts += [t.replace("a", "o", 2) for t in texts[:40]] + [t.upper() + "!!" for t in texts[40:60]]
    found = {(i, j): s for i, j, s in text_pairs(texts, 0.55)}
    sets = [ngrams(t) for t in texts]
    plain = {(i, j): jaccard(sets[i], sets[j]) for i in range(len(texts)) for j in range(i + 1, len(texts))}
    assert found == {pair: s for pair, s in plain.items() if s >= 0.55}
    assert len(found) >= 60
    assert list(text_pairs(["Straße, ONE two!", "strasse one two", "Straße one... TWO"], 0.9)) == [(0, 2, 1.0)]


def test_texts_of_few_words_do_not_fill_the_memory_with_pairs() -> None:
    texts = sentences(3000)
    tracemalloc.start()
    count = sum(1 for _ in text_pairs(texts, 0.9))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count < 100
    assert peak < 20e6


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Der Film ist nicht gut und die Musik ist auch nicht für mich", "German"),
        ("the film was not for me and it is not for you", "English"),
        ("Это очень хороший фильм для всей семьи", "Cyrillic"),
        ("この映画はとても面白かったです", "Cjk"),
        ("a puzzle whose pieces do not fit", ""),
        ("12 34 !!", ""),
    ],
)
def test_languages_are_told_apart(text: str, name: str) -> None:
    assert language(text)[0] == name


def test_a_corpus_of_several_languages_has_no_foreign_ones() -> None:
    english, german = "the film was not for me and it is dull", "der Film war nicht für mich und ist auch nicht gut"
    assert [i for _, i, *_ in odd_texts([english] * 10 + [german])] == [10]
    assert list(odd_texts([english] * 10 + [german] * 9)) == []


# --- images ---------------------------------------------------------------------------------------------------


def pictures(n: int, seed: int = 0) -> np.ndarray:
    """Smooth random pictures."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, size=(n, 6, 6, 3), dtype=np.uint8)
    return np.stack(
        [np.asarray(Image.fromarray(s).resize((32, 32), Image.Resampling.BICUBIC)).transpose(2, 0, 1) for s in small]
    )


def edited(image: np.ndarray, kind: str) -> np.ndarray:
    p = Image.fromarray(image.transpose(1, 2, 0))
    if kind == "crop":
        p = p.resize((32, 32), Image.Resampling.BILINEAR, box=(3, 1, 29, 27))
    if kind == "compressed":
        out = io.BytesIO()
        p.save(out, "JPEG", quality=20)
        p = Image.open(out)
    if kind == "mirrored":
        p = p.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if kind == "darker":
        p = p.point(lambda v: v * 0.6)
    return np.asarray(p.convert("RGB")).transpose(2, 0, 1)


def products(n: int, seed: int, side: int = 48) -> np.ndarray:
    """Drawings of five shapes in any color and place on white."""
    rng = np.random.default_rng(seed)
    down, right = np.mgrid[:side, :side]
    images = np.full((n, 3, side, side), 255, np.uint8)
    for i in range(n):
        r = int(rng.integers(7, 13))
        y, x = (v - int(c) for v, c in zip((down, right), rng.integers(r + 1, side - r - 1, 2), strict=True))
        box = (abs(y) < r) & (abs(x) < r)
        shapes = [
            y**2 + x**2 < r**2, (y**2 + x**2 < r**2) & (y**2 + x**2 > r**2 / 3), box & ((abs(y) < r / 3) | (abs(x) < r / 3)),
            box & (abs(x) < r / 2), box & (y > abs(x) - r / 2),
        ]  # fmt: skip
        images[i][:, shapes[i % 5]] = rng.integers(0, 200, (3, 1))
    return images


def test_drawings_of_one_shape_in_other_colors_and_places_are_not_copies() -> None:
    images = products(150, seed=3)
    copies = [edited(image, kind) for kind in ("compressed", "mirrored", "darker") for image in images[::15][:5]]
    copies = [np.asarray(Image.fromarray(c.transpose(1, 2, 0)).resize((48, 48))).transpose(2, 0, 1) for c in copies]
    images = np.concatenate([images, np.stack(copies)])
    original = [*range(150), *([0, 15, 30, 45, 60] * 3)]
    vectors = images.reshape(len(images), -1) / np.float32(255)
    pairs = [(i, j) for i, j, _ in image_pairs(shrunk(images), vectors, SIMILAR_IMAGES)]
    wrong = {row for i, j in pairs if original[i] != original[j] for row in (i, j)}
    found = {row for i, j in pairs if original[i] == original[j] for row in (i, j) if row >= 150}
    assert len(wrong) <= 0.1 * len(images)
    assert len(found) >= 12


def test_issues_name_files(tmp_path: Path) -> None:
    images = pictures(40)
    images[21] = images[4]
    for i, image in enumerate(images):
        path = tmp_path / "pics" / ("cat", "dog")[i % 2] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(path)
    found = audit(tmp_path / "pics", encoder="none")
    details = of(found.issues, "conflicting_duplicate").set_index(["id", "other_id"])["detail"]
    row = found.index[list(found.ids).index("dog/21.png")]
    assert set(details.index) == {("cat/04.png", "dog/21.png"), ("dog/21.png", "cat/04.png")}
    assert details["cat/04.png", "dog/21.png"] == f"equal to dog/21.png (row {row}), labeled dog"
    replace(found, found_issues=found.issues).save(tmp_path / "audit")
    Audit.load(tmp_path / "audit").write_issues(tmp_path / "issues.csv")
    assert "cat/04.png" in (tmp_path / "issues.csv").read_text()


@pytest.mark.parametrize("kind", ["crop", "compressed", "mirrored", "darker"])
def test_edited_pictures_are_found(kind: str) -> None:
    images = pictures(60)
    images = np.concatenate([images, np.stack([edited(image, kind) for image in images[:20]])])
    small = shrunk(images)
    found = {(i, j) for i, j, _ in image_pairs(small, small.reshape(len(small), -1), SIMILAR_IMAGES)}
    assert found == {(i, 60 + i) for i in range(20)}


def test_dark_bright_and_blank_pictures_are_named() -> None:
    images = pictures(5)
    bright = np.repeat([232, 255], 16) * np.ones((3, 32, 1))
    odd = [images[0] // 10, bright, np.full((3, 32, 32), 90), images[0] // 30, np.zeros((3, 32, 32))]
    found = [(kind, i) for kind, i, _, _ in odd_images(np.concatenate([images, np.stack(odd).astype(np.uint8)]))]
    assert found == [("dark_image", 5), ("bright_image", 6), ("blank_image", 7), ("dark_image", 8), ("blank_image", 9)]


# --- rows and columns -----------------------------------------------------------------------------------------


def test_oddity_is_the_mean_of_two_deviations_from_the_usual_distance() -> None:
    rng = np.random.default_rng(0)
    x = rng.lognormal(size=(80, 3)).astype(np.float32)
    z = []
    for rows in (x, x / np.linalg.norm(x, axis=1, keepdims=True)):
        apart = np.sort(np.linalg.norm(rows[:, None].astype(float) - rows[None], axis=2), axis=1)[:, 1:11]
        logs = np.log(apart.mean(1)) if rows is x else np.log((apart**2).mean(1))
        z.append((logs - np.median(logs)) / (np.quantile(logs, 0.8413) - np.median(logs)))
    np.testing.assert_allclose(oddity(x)[0], (z[0] + z[1]) / 2, atol=2e-2)
    x = rng.normal(size=(500, 4)).astype(np.float32)
    x[7] = 25
    found = list(outliers(x))
    assert max(found, key=lambda f: f[2])[1] == 7
    assert len(found) <= 5


def test_a_row_without_a_value_is_named() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60).round(2), "b": rng.choice(["x", "y"], 60)}).astype(object)
    frame.iloc[7], frame.iloc[8, 0] = np.nan, np.nan
    frame["label"] = np.array(["no", "yes"])[np.arange(60) % 2]
    found = audit(frame, label="label").issues
    assert found[found["issue"] == "empty_row"]["index"].tolist() == [7]


def test_a_column_that_tells_the_label_is_told_from_one_that_helps() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    frame = pd.DataFrame({"helps": rng.normal(size=400) + 2 * y, "leak": y * 10 + rng.normal(size=400)})
    frame["code"] = [f"c{c}{k}" for c, k in zip(y, rng.integers(0, 5, 400), strict=True)]
    frame["label"] = np.array(["no", "yes"])[y]
    data = from_frame(frame, "t").train
    roles = {c.name: c for c in data.source.columns}
    shares = {name: predicts(frame[name], roles[name], data.target, 2) for name in ("helps", "leak", "code")}
    assert shares["helps"] < 0.9
    assert min(shares["leak"], shares["code"]) > 0.98


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = sentences(120)
    labels = ["ab"[k % 2] for k in range(120)]
    texts[50], labels[50] = texts[10], labels[11]  # equal, another label
    texts[60] = texts[20].replace("a", "o", 1).upper()  # nearly equal, same label
    texts[70] = "?!"
    path = tmp_path_factory.mktemp("reviews") / "reviews.csv"
    rows = {"key": [f"k{k:04d}" for k in range(120)], "text": texts, "copy": [f"is {c}" for c in labels]}
    pd.DataFrame({**rows, "note": ["x", "y", "", "y", "x", ""] * 20, "label": labels}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def audited(reviews: Path) -> Audit:
    return audit(reviews, encoder="none", text="text")


def test_everything_planted_in_a_file_is_found(audited: Audit) -> None:
    issues = audited.issues
    assert [name for name in issues.columns if name not in ("id", "other_id")] == list(COLUMNS)
    assert set(issues["issue"]) <= set(KINDS)
    mixed = of(issues, "conflicting_duplicate")
    assert sorted(mixed["index"]) == [10, 50]
    assert mixed["score"].tolist() == [1.0, 1.0]
    assert mixed["detail"].iloc[0] == "equal to k0050 (row 50), labeled b"
    assert list(zip(mixed["id"], mixed["other_id"], strict=True)) == [("k0010", "k0050"), ("k0050", "k0010")]
    assert sorted(of(issues, "duplicate")["index"]) == [20, 60]
    assert of(issues, "empty_text")["index"].tolist() == [70]
    assert of(issues, "identifier_column")["column"].tolist() == ["key"]
    assert of(issues, "leaking_column")["column"].tolist() == ["copy"]
    assert of(issues, "missing_values")["column"].tolist() == ["note"]
    assert issues["issue"].iloc[0] == "conflicting_duplicate"
    assert summary(issues).startswith(
        "2 equal and 2 similar rows, 2 of them with different labels; 1 column that reveals the label; 1 identifier column"
    )


def test_a_row_conflicts_only_with_a_row_that_it_is_like_itself() -> None:
    texts, labels = sentences(60), ["a", "b"] * 30
    words = WORDS[:14]
    texts[:4] = [" ".join(words[k : k + 9]) for k in (0, 0, 2, 4)]
    assert jaccard(ngrams(texts[0]), ngrams(texts[3])) < 0.55
    labels[:4] = ["a", "a", "a", "b"]
    found = audit(pd.DataFrame({"text": texts, "label": labels}), encoder="none").issues
    assert sorted(zip(*(of(found, "duplicate")[name] for name in ("index", "score")), strict=True)) == [(0, 1), (1, 1)]
    mixed = of(found, "conflicting_duplicate")
    alike = jaccard(ngrams(texts[2]), ngrams(texts[3]))
    assert sorted(zip(mixed["index"], mixed["other"], mixed["score"], strict=True)) == [(2, 3, alike), (3, 2, alike)]
    assert mixed["detail"].iloc[0] == f"{alike:.2f} similar to row 3, labeled b"


def test_of_many_equal_rows_each_has_an_equal_one_with_another_label() -> None:
    texts, labels = sentences(120), ["a", "b"] * 60
    texts[:60], labels[:60] = [texts[0]] * 60, ["a"] * 59 + ["b"]
    found = of(audit(pd.DataFrame({"text": texts, "label": labels}), encoder="none").issues, "conflicting_duplicate")
    assert sorted(found["index"]) == list(range(60))
    others = dict(zip(found["index"], found["other"], strict=True))
    assert {others[row] for row in range(59)} == {59}
    assert others[59] < 59
    assert set(found["score"]) == {1.0}


def test_rows_of_the_test_set_are_found_in_the_data(audited: Audit) -> None:
    texts = sentences(120)
    rows = {"text": [*sentences(30, seed=9), texts[33] + " indeed", texts[44]], "label": ["a", "b"] * 16}
    held = from_frame(pd.DataFrame(rows), "test").train
    found = of(find_issues(audited, held), "test_duplicate")
    assert set(zip(found["index"], found["other"], strict=True)) == {(44, 31), (33, 30)}
    assert summary(found) == "1 row that is in the test set too and 1 row similar to one of it"


def test_rare_classes_are_named_and_equal_rows_of_a_narrow_table_are_not() -> None:
    rng = np.random.default_rng(0)
    label = np.where(np.arange(400) < 6, "rare", np.where(rng.random(400) < 0.5, "x", "y"))
    frame = pd.DataFrame({"size": rng.integers(0, 3, 400), "color": rng.choice(["red", "blue"], 400), "label": label})
    issues = audit(frame, encoder="none").issues
    assert of(issues, "rare_class")["column"].tolist() == ["rare"]
    assert not len(of(issues, "duplicate"))
    assert not len(of(issues, "conflicting_duplicate"))


def test_clean_data_has_no_issues() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(300) % 2
    x = rng.normal(size=(300, 8)) + 2 * y[:, None]
    issues = audit(x, y).issues
    assert len(issues) <= 2
    assert summary(issues[:0]) == ""


def test_flats_of_one_kind_with_other_prices_are_no_copies() -> None:
    rng = np.random.default_rng(0)
    flats = pd.DataFrame({"area": rng.integers(30, 3000, 300), "rooms": rng.integers(1, 5, 300)})
    flats["price"] = 100.0 * flats["area"] + rng.integers(-90, 90, 300)
    twice = flats.iloc[[4, 4, 7]].assign(price=lambda some: some["price"] + [0, 0, 1000])
    flats = pd.concat([flats, twice], ignore_index=True)
    issues = audit(flats, label="price").issues
    assert copies(issues) == np.flatnonzero(flats.duplicated()).tolist()
    assert {7, 302} <= set(of(issues, "duplicate")["index"][issues["score"] < 1])
    assert "--drop duplicate" in next_step(issues, (), "run")
    assert "--drop" not in next_step(issues[issues["score"] < 1], (), "run"), "there is nothing to drop"


def test_rows_of_two_texts_are_similar_if_both_are() -> None:
    premises, others = sentences(20, seed=1), sentences(80, seed=2)
    frame = pd.DataFrame({"premise": premises * 4, "hypothesis": others, "label": ["yes", "no"] * 40})
    frame.loc[21, "hypothesis"] = others[1].upper()
    found = audit(frame, encoder="none").issues
    assert sorted(of(found, "duplicate")["index"]) == [1, 21]
    assert not len(of(found, "conflicting_duplicate"))


# --- stored, on the command line and on the page --------------------------------------------------------------


def test_a_run_stores_its_issues_and_says_so(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(reviews, tmp_path)
    said = run("audit", "reviews.csv", "--text", "text", "--encoder", "none", "--out", "run")
    assert "also found: 2 equal and 2 similar rows, 2 of them with different labels" in said
    listed = pd.read_csv("run/issues.csv", keep_default_na=False)
    assert [name for name in listed.columns if name not in ("id", "other_id")] == list(COLUMNS)
    again = Audit.load("run/audit")
    assert again.found_issues is not None
    assert again.issues["issue"].tolist() == listed["issue"].tolist()
    assert again.issues["index"].isna().sum() == (listed["index"] == "").sum() > 0
    said = run("audit", "reviews.csv", "--text", "text", "--encoder", "none", "--out", "run", "--only", "labels")
    assert "also found" not in said
    assert not Path("run/issues.csv").exists()
    assert Audit.load("run/audit").found_issues is None
    with pytest.raises(InputError, match="expected labels"):
        run("audit", "reviews.csv", "--only", "rows")
    held = {"text": sentences(120)[40:44], "label": list("abab"), "key": list("wxyz"), "copy": list("abab"), "note": ""}
    pd.DataFrame(held).to_csv("held.csv", index=False)
    said = run("audit", "reviews.csv", "--text", "text", "--encoder", "none", "--out", "run", "--test", "held.csv")
    assert "4 rows that are in the test set too" in said


@pytest.mark.parametrize(
    "bad",
    [
        [["x"]], 5, [["odd", 1, 2, "", 0.5, "", ""]], [["outlier", -1, None, "", 0.5, "", ""]],
        [["outlier", 1, None, "", "high", "", ""]],
    ],
)  # fmt: skip
def test_damaged_issues_are_refused(bad: Any, audited: Audit, tmp_path: Path) -> None:
    replace(audited, found_issues=audited.issues).save(tmp_path / "audit")
    texts = json.loads((tmp_path / "audit" / "audit.json").read_text())
    (tmp_path / "audit" / "audit.json").write_text(json.dumps({**texts, "issues": bad}))
    with pytest.raises(InputError, match="issues"):
        Audit.load(tmp_path / "audit")


def with_issues(found: Audit) -> Any:
    return page_of(replace(found, found_issues=found.issues))


def test_the_third_view_shows_both_rows_of_a_pair(audited: Audit, open_page: Any) -> None:
    tab = open_page(with_issues(audited), "issues")
    assert tab.locator("nav a").all_inner_texts() == ["Overview", "Review", "Issues"]
    first = tab.locator(".issue-group").first
    assert "2 duplicates with different labels" in first.inner_text()
    assert first.locator(".issue-row").count() == 1, "a pair is shown once"
    assert first.locator(".issue-side").all_inner_texts()[0].startswith("row 10 k0010 a")
    assert first.locator(".issue-side").all_inner_texts()[1].startswith("row 50 k0050 b")
    assert "column that reveals the label" in tab.locator("#view-issues").inner_text()
    tab.get_by_role("link", name="Review", exact=True).click()
    assert tab.locator("#view-issues").is_hidden()
    assert tab.locator("#view-review").is_visible()


def test_a_page_without_issues_has_two_views_and_one_with_none_says_so(audited: Audit, open_page: Any) -> None:
    tab = open_page(page_of(audited), "issues")
    assert tab.locator("nav a").all_inner_texts() == ["Overview", "Review"]
    assert tab.locator("#view-overview").is_visible()
    tab = open_page(page_of(replace(audited, found_issues=audited.issues[:0])), "issues")
    assert "No other issues" in tab.locator("#view-issues").inner_text()


def test_what_rows_hold_is_shown_and_not_obeyed(tmp_path: Path, open_page: Any) -> None:
    texts = sentences(60)
    texts[5] = texts[6] = '<img src=x onerror="alert(1)"> so many words in one text \u202e here'
    rows = {"text": texts, "label": ["<b>a</b>", "b"] * 30}
    tab = open_page(with_issues(audit(pd.DataFrame(rows), encoder="none")), "issues")
    assert '<img src=x onerror="alert(1)">' in tab.locator(".issue-text").first.inner_text()
    assert "<b>a</b>" in tab.locator("#view-issues").inner_text()


def test_issues_fit_the_width_of_a_phone(open_page: Any) -> None:
    images = pictures(40)[:, :, ::2, ::2]
    images[30:35] = images[:5]
    labels = np.arange(40) % 2
    labels[30:33] ^= 1
    page = with_issues(audit(Dataset(images, labels, ("a" * 80, "b"), source=Source(kind="images")), encoder="none"))
    for width in (1280, 390):
        tab = open_page(page, "issues", width=width, height=900)
        assert tab.locator(".issue-image").count() == 10
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
