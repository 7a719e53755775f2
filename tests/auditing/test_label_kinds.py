"""Label sets, tags and masks: what is found, what is written back, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compensate.auditing.api import audit
from compensate.auditing.decisions import Correction, apply_corrections
from compensate.auditing.labels.regions import (
    JOINED,
    joined_with_neighbors,
    pixels_of,
    read_mask,
    runs_in,
)
from compensate.auditing.labels.sets import label_sets, labels_in, predict_labels
from compensate.auditing.labels.tags import Scheme, Token, type_of
from compensate.auditing.noise_model import judge
from compensate.auditing.source import read
from compensate.errors import InputError

# Multilabel
WORDS = {
    "food": ["bread", "soup", "cook", "salt", "dish"],
    "law": ["court", "judge", "trial", "crime", "jury"],
    "sport": ["ball", "team", "goal", "match", "coach"],
}
NAMES = tuple(WORDS)
ROWS = 160


def sets(seed: int = 0) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts that name their labels, the given labels, and which of them are wrong."""
    rng = np.random.default_rng(seed)
    true = rng.random((ROWS, 3)) < 0.4
    true[~true.any(1), 0] = True
    texts = [
        " ".join(
            rng.permutation([w for j in np.flatnonzero(y) for w in rng.choice(WORDS[NAMES[j]], 4)] + ["the", "we"])
        )
        for y in true
    ]
    wrong = np.zeros_like(true)
    for row in rng.choice(ROWS, 12, replace=False):
        wrong[row, rng.integers(3)] = True
    return texts, true ^ wrong, wrong


TEXTS, GIVEN, WRONG = sets()


def joined(sign: str = ";") -> list[str]:
    return [sign.join(np.array(NAMES)[row]) for row in GIVEN]


def written(folder: Path, form: str) -> Path:
    """A file of one of the forms, with quotes, spaces and line ends of its own."""
    path = folder / ("t.jsonl" if form in ("list", "json columns") else "t.csv")
    if form == "joined":
        lines = [f'"{text}",{cell}' for text, cell in zip(TEXTS, joined(), strict=True)]
        path.write_bytes(("text,labels\r\n" + "\r\n".join(lines) + "\r\n").encode())
    elif form == "columns":
        lines = [f"{text},{','.join(map(str, row))}" for text, row in zip(TEXTS, GIVEN.astype(int), strict=True)]
        path.write_text("comment," + ",".join(NAMES) + "\n" + "\n".join(lines))
    elif form == "list":
        rows = (
            {"labels": [name for name, on in zip(NAMES, row, strict=True) if on], "text": text}
            for text, row in zip(TEXTS, GIVEN, strict=True)
        )
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [
            json.dumps({"text": text, **dict(zip(NAMES, map(bool, row), strict=True))})
            for text, row in zip(TEXTS, GIVEN, strict=True)
        ]
        path.write_text("\n".join(lines) + "\n")
    return path


def test_corrections_and_back_leave_every_byte_as_it_was(tmp_path: Path) -> None:
    for form in ("joined", "columns", "list"):
        path = written(tmp_path, form)
        row, j = 5, 1
        given = "present" if GIVEN[row, j] else "absent"
        other = "absent" if GIVEN[row, j] else "present"
        part = f"{'column' if form == 'columns' else 'label'} {row} {NAMES[j]}"
        there, back = tmp_path / f"a{path.suffix}", tmp_path / f"b{path.suffix}"
        apply_corrections(path, [Correction(0, given, "accept", other, part=part)], there, force=True)
        apply_corrections(there, [Correction(0, other, "accept", given, part=part)], back, force=True)
        same = path.read_bytes() == back.read_bytes()
        assert there.read_bytes() != path.read_bytes()
        assert same or sorted(path.read_text()) == sorted(back.read_text())  # a label goes back to the end of its list


def test_columns_of_zero_and_one_are_found_where_no_column_is_called_a_label(tmp_path: Path) -> None:
    found = read(written(tmp_path, "columns"), None, None, {}).parts
    assert found.names == NAMES
    assert found.form == "column"


def test_an_empty_cell_of_joined_labels_is_a_row_without_labels_and_of_a_column_is_not_judged(tmp_path: Path) -> None:
    assert labels_in("", ";") == []
    path = written(tmp_path, "columns")
    lines = path.read_text().split("\n")
    lines[1] = lines[1].rsplit(",", 1)[0] + ","
    path.write_text("\n".join(lines))
    found = audit(path, encoder="none", labels_columns=",".join(NAMES))
    assert len(found) == GIVEN.size - 1
    assert f"column 0 {NAMES[-1]}" not in found.parts


def test_arrays_and_lists_of_names_are_audited() -> None:
    found = audit(TEXTS, GIVEN.astype(int), encoder="none")
    assert found.flagged["index"].tolist()
    assert set(found.flagged["label"]) <= {"label 0", "label 1", "label 2"}
    worst = found.suspects.iloc[0]
    assert f'{worst["index"]}</td><td style="text-align:left">{TEXTS[worst["index"]]}' in found._repr_html_()
    names = label_sets([["b", "a"], ["a"]])
    assert names is not None
    assert names.names == ("a", "b")
    assert names.given.tolist() == [[1, 1], [1, 0]]


def test_other_labels_of_a_row_tell_of_a_label_that_the_text_does_not_name() -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 300)
    given = np.stack([y, y, 1 - y], 1)
    wrong = np.zeros_like(given, bool)
    wrong[rng.choice(300, 20, replace=False), 0] = True
    given = np.where(wrong, 1 - given, given)
    from compensate.auditing.learners import View

    noise = rng.normal(size=(300, 3)).astype(np.float32)
    log_q, _, weights = predict_labels([View("noise", noise)], given, np.arange(300) % 5)
    assert ((log_q[..., 1] > log_q[..., 0])[:, 0] != given[:, 0])[wrong[:, 0]].mean() > 0.9
    assert max(weights, key=weights.__getitem__).startswith("other labels")


@pytest.mark.parametrize(
    ("part", "given", "label", "said"),
    [
        ("label 1 nosuch", "present", "absent", "differs from what was reviewed"),
        ("label 999 law", "present", "absent", "rows 0 to 159"),
        ("label x law", "present", "absent", "names no part"),
        ("tokens 1", "present", "absent", "names no part"),
        ("label 0 law", "present" if GIVEN[0, 1] else "absent", "maybe", "expected absent or present"),
    ],
)
def test_a_correction_that_fits_nothing_is_refused(
    tmp_path: Path, part: str, given: str, label: str, said: str
) -> None:
    path = written(tmp_path, "joined")
    with pytest.raises(InputError, match=said):
        apply_corrections(path, [Correction(0, given, "accept", label, part=part)], tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("text,a,b\nx y z,1,2\nq r s,0,1\n", {"labels_columns": "a,b"}, 'column "b" says "2"'),
        ("text,a,b\nx y z,1,0\nq r s,0,1\n", {"labels_columns": "a,c"}, 'no column "c"'),
        ("text,a,b\nx y z,1,0\nq r s,0,1\n", {"labels_columns": "a,a"}, "each of them once"),
        (
            "text,labels\none two three,a;b\nfour five six,b\nseven eight,a\nnine ten,b;a\n",
            {"label": "labels"},
            "5 rows or more",
        ),
    ],
)
def test_malformed_label_sets_are_refused_with_what_to_do(
    tmp_path: Path, content: str, options: dict, said: str
) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(InputError, match=said):
        audit(tmp_path / "t.csv", encoder="none", **options)


def test_values_beside_zero_and_one_are_no_label_sets() -> None:
    with pytest.raises(InputError, match="other values than 0 and 1"):
        audit(np.zeros((30, 2)), np.full((30, 3), 2))


def test_an_export_of_whole_rows_is_refused() -> None:
    found = audit(TEXTS, GIVEN.astype(int), encoder="none")
    with pytest.raises(InputError, match="several labels a sample"):
        found.to_frame()


# Tokens
CITIES, PEOPLE = ("Paris", "Lima", "Oslo", "Rome"), ("Ann Lee", "Bob Ray", "Eva Sun")
WRONG = (7, 30, 61)
"""Sentences whose city has no tag."""


def sentences() -> list[list[tuple[str, str]]]:
    rng = np.random.default_rng(0)
    found = []
    for k in range(90):
        city, person = rng.choice(CITIES), rng.choice(PEOPLE).split()
        verb = str(rng.choice(["visits", "likes", "leaves"]))
        tag = "O" if k in WRONG else "B-city"
        found.append(
            [(person[0], "B-person"), (person[1], "I-person"), (verb, "O"), ("in", "O"), (str(city), tag), (".", "O")]
        )
    return found


def conll(path: Path) -> Path:
    lines = ["\r\n".join(f"{word} NN {tag}" for word, tag in sentence) for sentence in sentences()]
    path.write_bytes("\r\n\r\n".join(lines).encode())
    return path


def jsonl(path: Path) -> Path:
    rows = ({"id": k, "tags": [t for _, t in s], "tokens": [w for w, _ in s]} for k, s in enumerate(sentences()))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["t.conll", "t.jsonl"])
def test_dropped_tags_are_found_and_put_back_and_no_other_byte_changes(tmp_path: Path, name: str) -> None:
    path = (conll if name == "t.conll" else jsonl)(tmp_path / name)
    found = audit(path, encoder="none")
    worst = found.suspects.head(3)
    assert sorted(worst["token"]) == [6 * k + 4 for k in WRONG]
    assert set(worst["given"]) == {"O"}
    assert set(worst["suggested"]) == {"city"}
    assert worst["id"].isin(CITIES).all()
    assert found.parts[0] == "tokens 0 2"  # the tokens of an entity are judged together
    out = tmp_path / f"fixed{path.suffix}"
    made = [
        Correction(t, "O", "accept", "city", part=f"tokens {t} 1", source=found.source_digest) for t in worst["token"]
    ]
    done = apply_corrections(path, made, out)
    assert (done.changed, done.checked) == (3, True)
    before, after = path.read_bytes(), out.read_bytes()
    assert after.count(b"B-city") == 90
    assert len(after) == len(before) + 3 * len("B-city") - 3
    assert after.replace(b"B-city", b"O") == before.replace(b"B-city", b"O")


def test_lists_of_words_and_tags_are_audited() -> None:
    words = [[w for w, _ in s] for s in sentences()]
    tags = [[t for _, t in s] for s in sentences()]
    assert audit(words, tags, encoder="none").classes == ("O", "city", "person")
    with pytest.raises(InputError, match="sentence 0 has 6 tokens and 5 tags"):
        audit(words, [tags[0][:5], *tags[1:]])
    with pytest.raises(InputError, match="pass them too"):
        audit(words)


@pytest.mark.parametrize(
    ("tags", "new", "expected"),
    [
        ("B-x I-x I-x O", {0: "O"}, "O B-x I-x O"),  # what follows a removed beginning begins
        ("O B-x I-x O", {3: "x"}, "O B-x I-x I-x"),  # an entity grows to the right
        ("O B-x I-x O", {0: "x"}, "B-x B-x I-x O"),  # what began before still begins
        ("B-x B-x O O", {2: "x"}, "B-x B-x I-x O"),  # neighbors stay apart
        ("B-x I-x O O", {1: "y"}, "B-x B-y O O"),
        ("S-x O O", {1: "x", 2: "x"}, "B-x I-x E-x"),
        ("B-x E-x O", {1: "O"}, "S-x O O"),
        ("NOUN VERB", {0: "VERB"}, "VERB VERB"),
    ],
)
def test_prefixes_follow_the_types(tags: str, new: dict[int, str], expected: str) -> None:
    old = tags.split()
    types = [type_of(tag) for tag in old]
    scheme = Scheme.of(
        [[Token("w", tag) for tag in (*old, *(["E-x"] if "S-x" in old else ["S-x"] if "E-x" in old else []))]]
    )
    assert scheme.write([new.get(k, kind) for k, kind in enumerate(types)], old, types) == expected.split()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.conll", "word\n", "line 1"),
        ("a.conll", "a O\nb\tO\n\nlonely\n", "line 4"),
        ("a.conll", "\n\n", "no token"),
        ("a.conll", "a O\nb O\n", "an audit needs"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O", "O"]}\n', "1 words and 2 tags"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": "a"}\n', "row 1"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [null]}\n', '"None"'),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a"\n', "line 2"),
    ],
)
def test_malformed_files_are_refused_with_the_place(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        audit(tmp_path / name)


@pytest.mark.parametrize(
    ("part", "given", "label", "said"),
    [
        ("tokens 0 2", "city", "person", "differs from what was reviewed"),
        ("tokens 1 2", "person", "city", "differs from what was reviewed"),
        ("tokens 539 2", "O", "city", "tokens 0 to 539"),
        ("tokens 0 0", "person", "city", "tokens 0 to 539"),
        ("tokens 0 2", "person", "a b", "blank"),
    ],
)
def test_tokens_a_correction_that_fits_nothing_is_refused(
    tmp_path: Path, part: str, given: str, label: str, said: str
) -> None:
    path = conll(tmp_path / "t.conll")
    with pytest.raises(InputError, match=said):
        apply_corrections(path, [Correction(0, given, "accept", label, part=part)], tmp_path / "out.conll")
    assert not (tmp_path / "out.conll").exists()


def test_options_of_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="label is no option for tagged tokens"):
        audit(conll(tmp_path / "t.conll"), label="x")


# Masks
SIDE, COUNT, WRONG = 24, 12, 5


def canvases(folder: Path) -> Path:
    """Bright squares on a dark ground; one mask has half of its square missing."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for k in range(COUNT):
        mask = np.zeros((SIDE, SIDE), np.uint8)
        top, left = rng.integers(2, 10, 2)
        mask[top : top + 12, left : left + 12] = 1
        picture = np.clip(60 + 130 * mask + rng.normal(0, 10, mask.shape), 0, 255).astype(np.uint8)
        if k == WRONG:
            mask[top + 6 :] = 0
        Image.fromarray(picture).save(folder / "images" / f"{k:02d}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{k:02d}.png")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return canvases(tmp_path_factory.mktemp("masks"))


def test_the_missing_half_is_found_and_put_back_and_other_masks_are_the_same_bytes(
    folder: Path, tmp_path: Path
) -> None:
    found = audit(folder, encoder="none")
    worst = found.suspects.iloc[0]
    assert (worst["file"], worst["given"], worst["suggested"]) == ("05.png", "0", "1")
    assert 50 <= worst["pixels"] <= 90
    assert worst["index"] == WRONG
    decided = [c for c in found.accepted(0.5) if c.part == found.parts[int(found.log_odds.argmax())]]
    done = found.apply(decided, tmp_path / "fixed")
    assert (done.changed, done.checked) == (1, True)
    for path in sorted((folder / "masks").iterdir()):
        same = path.read_bytes() == (tmp_path / "fixed" / path.name).read_bytes()
        assert same == (path.name != "05.png")
    assert int(read_mask(tmp_path / "fixed" / "05.png").sum()) > 1.5 * int(read_mask(folder / "masks" / "05.png").sum())
    found.report(tmp_path / "page.html")
    assert "image" in (tmp_path / "page.html").read_text()


def test_runs_name_pixels_and_back() -> None:
    inside = np.random.default_rng(0).random((7, 9)) < 0.4
    assert (pixels_of(runs_in(inside), inside.shape) == inside).all()
    with pytest.raises(InputError, match="of another mask"):
        pixels_of("60+9", (7, 9))


def test_a_palette_stays(folder: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    masks.mkdir()
    image = Image.fromarray(np.zeros((4, 4), np.uint8)).convert("P")
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.save(masks / "a.png")
    made = [Correction(0, "0", "accept", "1", part="region 0+3 a.png")]
    apply_corrections(masks, made, tmp_path / "out")
    with Image.open(tmp_path / "out" / "a.png") as fixed:
        assert fixed.mode == "P"
        assert (fixed.getpalette() or [])[:6] == [10, 20, 30, 200, 100, 50]
        assert np.asarray(fixed).ravel()[:4].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("part", "given", "label", "said"),
    [
        ("region 0+3 no.png", "0", "1", "has not"),
        ("region 0+3 00.png", "1", "0", "differs from what was reviewed"),
        ("region 0+3 00.png", "0", "cat", "no class of a mask"),
        ("region 0-3 00.png", "0", "1", "names no part"),
    ],
)
def test_masks_a_correction_that_fits_nothing_is_refused(
    folder: Path, tmp_path: Path, part: str, given: str, label: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        apply_corrections(folder / "masks", [Correction(0, given, "accept", label, part=part)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cell_is_judged_together_with_those_around_it() -> None:
    rng = np.random.default_rng(0)
    grids, kept = [(4, 5), (3, 3)], np.arange(29) % 7 != 0
    log_q = np.log(rng.dirichlet([1, 1], int(kept.sum())))
    before = judge(log_q, rng.integers(0, 2, int(kept.sum())))
    after = joined_with_neighbors(before, kept, grids)
    odds = np.full(29, np.nan)
    odds[kept] = before.log_odds
    expected, start = [], 0
    for rows, columns in grids:
        grid = odds[start : start + rows * columns].reshape(rows, columns)
        start += rows * columns
        for y in range(rows):
            for x in range(columns):
                around = np.nanmean(grid[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2])
                expected.append(JOINED * (grid[y, x] + around))
    shift = after.log_odds - np.array(expected)[kept]
    np.testing.assert_allclose(shift, shift[0], atol=1e-5)
    assert after.p_error.mean() == pytest.approx(before.share.value, abs=1e-4)


def test_malformed_masks_are_refused_with_the_file(tmp_path: Path) -> None:
    canvases(tmp_path / "a")
    masks = tmp_path / "a" / "masks"
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(masks / "00.png")
    with pytest.raises(InputError, match=r"00\.png has 5 x 5 pixels"):
        audit(tmp_path / "a")
    Image.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8)).save(masks / "00.png")
    with pytest.raises(InputError, match="mode RGB"):
        audit(tmp_path / "a")
    (masks / "00.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="cannot be read as a mask"):
        audit(tmp_path / "a")
    (masks / "00.png").unlink()
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(masks / "other.png")
    with pytest.raises(InputError, match="no image of that name"):
        audit(tmp_path / "a" / "images", masks)
