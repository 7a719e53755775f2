"""Audit, review in a browser, apply: for every kind of label and every format the decided labels change, and nothing else does.

Everything runs through the command line and the served page. What the files hold is read by the libraries of their formats.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from compensate.auditing.server import ReviewServer
from compensate.cli import app

pytestmark = pytest.mark.slow

Labels = dict[Any, str]
"""The label at each place of a file."""

Row = Mapping[str, str]
"""A row of suspects.csv."""


# --- classes and quantities -------------------------------------------------------------------------------------

ROWS, WRONG = 150, (3, 17, 41, 62, 80)
UNTAGGED = WRONG[:3]
NAMES = np.array(["cat", "Dögs, big", "fox"], dtype=object)


def classes() -> pd.DataFrame:
    """Three clusters; the label of a few rows is that of another one."""
    rng = np.random.default_rng(0)
    y = np.arange(ROWS) % 3
    x = rng.normal(size=(ROWS, 2)) + 7 * np.array([[0, 0], [1, 0], [0, 1]])[y]
    y[list(WRONG)] = (y[list(WRONG)] + [1, 2, 1, 2, 1]) % 3
    return pd.DataFrame({"size": x[:, 0].round(3), "weight": x[:, 1].round(3), "label": NAMES[y]})


def quantities() -> pd.DataFrame:
    """A linear quantity; a few values are far off."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2))
    price = 100 + x @ [30.0, 20.0] + rng.normal(size=ROWS)
    price[list(WRONG)] += 300
    return pd.DataFrame({"size": x[:, 0].round(3), "weight": x[:, 1].round(3), "price": price.round(1)})


# --- label sets ---------------------------------------------------------------------------------------------------

TOPICS = {
    "food": "bread soup meal taste salt",
    "law": "court judge trial jury crime",
    "sport": "ball team goal match coach",
}


def memberships() -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts that speak of their labels, the given labels, and which of them are wrong."""
    rng = np.random.default_rng(0)
    has = rng.random((160, 3)) < 0.4
    has[~has.any(1), 0] = True
    words = [topic.split() for topic in TOPICS.values()]
    texts = [
        " ".join(rng.permutation([w for j in np.flatnonzero(y) for w in rng.choice(words[j], 4)] + ["the", "we"]))
        for y in has
    ]
    wrong = np.zeros_like(has)
    wrong[rng.choice(len(texts), 12, replace=False), rng.integers(3, size=12)] = True
    return texts, has ^ wrong, wrong


def label_sets(form: str) -> pd.DataFrame:
    texts, has, _ = memberships()
    frame = pd.DataFrame({"text": texts})
    if form == "columns":
        return frame.assign(**{name: has[:, j].astype(int) for j, name in enumerate(TOPICS)})
    sets = [[name for name, is_there in zip(TOPICS, row, strict=True) if is_there] for row in has]
    return frame.assign(labels=pd.Series(sets) if form == "lists" else [";".join(names) for names in sets])


def memberships_in(frame: pd.DataFrame) -> Labels:
    """Whether each label is there, of joined labels, lists, or columns of 0 and 1."""
    found = {}
    for row, cells in enumerate(frame.to_dict("records")):
        held = cells.get("labels")
        names = (held or "").split(";") if isinstance(held, str) or held is None else list(held)
        for name in TOPICS:
            is_there = int(cells[name]) == 1 if name in cells else name in names
            found[row, name] = "present" if is_there else "absent"
    return found


# --- tags, regions and votes ----------------------------------------------------------------------------------------


def sentences() -> list[list[tuple[str, str]]]:
    """A person of two words and a city each; three cities have no tag."""
    rng = np.random.default_rng(0)
    found = []
    for k in range(ROWS):
        city, person = str(rng.choice(["Paris", "Lima", "Oslo"])), rng.choice(["Ann Lee", "Bob Ray", "Eva Sun"]).split()
        verb = str(rng.choice(["visits", "likes", "leaves"]))
        tags = ["B-person", "I-person", "O", "O" if k in UNTAGGED else "B-city", "O"]
        found.append(list(zip([*person, verb, city, "."], tags, strict=True)))
    return found


def write_conll(folder: Path) -> Path:
    path = folder / "t.conll"
    texts = ("\r\n".join(f"{word} NN {tag}" for word, tag in sentence) for sentence in sentences())
    path.write_bytes("\r\n\r\n".join(texts).encode())
    return path


def write_token_lists(folder: Path) -> Path:
    path = folder / "t.jsonl"
    rows = ({"tags": [tag for _, tag in s], "tokens": [word for word, _ in s]} for s in sentences())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tags_in(path: Path) -> Labels:
    """The type of each token, by its number in the file."""
    if path.suffix == ".jsonl":
        tags = [tag for line in path.read_text().splitlines() for tag in json.loads(line)["tags"]]
    else:
        tags = [line.split()[-1] for line in path.read_text().splitlines() if line.strip()]
    return {k: re.sub("^[BI]-", "", tag) for k, tag in enumerate(tags)}


def write_masks(folder: Path, mode: str = "L") -> Path:
    """Bright squares on a dark ground; a few masks miss half of theirs."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / "set" / name).mkdir(parents=True)
    for k in range(14):
        mask = np.zeros((24, 24), np.uint8)
        top, left = rng.integers(2, 10, 2)
        mask[top : top + 12, left : left + 12] = 1
        picture = np.clip(60 + 130 * mask + rng.normal(0, 10, mask.shape), 0, 255).astype(np.uint8)
        if k in (2, 5, 9):
            mask[top + 6 :] = 0
        Image.fromarray(picture).save(folder / "set" / "images" / f"{k:02d}.png")
        image = Image.fromarray(mask)
        if mode == "P":
            image.putpalette([0, 0, 0, 255, 255, 0])
        image.save(folder / "set" / "masks" / f"{k:02d}.png")
    return folder / "set"


def pixels_in(path: Path) -> Labels:
    """The class of each pixel, by file and number."""
    top = path / "masks" if (path / "masks").is_dir() else path
    return {
        (file.name, k): str(c)
        for file in sorted(top.iterdir())
        for k, c in enumerate(np.asarray(Image.open(file)).ravel().tolist())
    }


def votes() -> pd.DataFrame:
    """Two good annotators and three who guess."""
    rng = np.random.default_rng(0)
    frame = classes().drop(columns="label")
    y = np.arange(ROWS) % 3
    for name, right in (("ann", 0.9), ("bob", 0.9), ("eve", 0.2), ("dan", 0.2), ("joe", 0.2)):
        said = np.where(rng.random(ROWS) < right, y, rng.integers(3, size=ROWS))
        frame[f"rater {name}"] = NAMES[said]
    return frame


def vote_rows(*, alone: bool = False) -> pd.DataFrame:
    """A row for each vote, with or without the samples."""
    wide = votes().assign(item=[f"i{k:02d}" for k in range(ROWS)])
    raters = [name for name in wide.columns if name.startswith("rater")]
    long = wide.melt(id_vars=["item", "size", "weight"], value_vars=raters, var_name="who", value_name="label")
    return long.drop(columns=["size", "weight"]) if alone else long


# --- preference pairs -----------------------------------------------------------------------------------------------


def pairs(form: str = "chosen") -> pd.DataFrame:
    """A response with good words and one with bad words each; a few preferences are wrong."""
    rng = np.random.default_rng(0)
    good, bad = ["superb", "lovely", "charming", "fine"], ["dull", "awful", "boring", "weak"]
    sides = [
        [f"a {' '.join(rng.choice(words, 3))} film,\nnumber {rng.integers(40)}" for _ in range(ROWS)]
        for words in (good, bad)
    ]
    turned = np.isin(np.arange(ROWS), WRONG)
    first = turned if form == "chosen" else rng.random(ROWS) < 0.5  # where the bad response comes first
    one, two = (np.where(first, sides[1 - k], sides[k]) for k in (0, 1))
    frame = pd.DataFrame({"prompt": [f"say {k}" for k in range(ROWS)], "x1": one, "x2": two})
    if form == "chosen":
        return frame.rename(columns={"x1": "chosen", "x2": "rejected"})
    frame = frame.rename(columns={"x1": "response1", "x2": "response2"})
    return frame.assign(preference=np.where(first ^ turned, 2, 1))


def preferences_in(path: Path) -> Labels:
    """The preference of each pair, by the number in its prompt; pairs that are not there were dropped."""
    frame = read_table(path)
    said = ["1"] * len(frame) if "chosen" in frame else [str(cell) for cell in frame["preference"]]
    found = dict.fromkeys(range(ROWS), "drop")
    rows = [int(prompt.split()[1]) for prompt in frame["prompt"]]
    return found | {row: {"1": "first", "2": "second"}[one] for row, one in zip(rows, said, strict=True)}


# --- formats ----------------------------------------------------------------------------------------------------------


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """A table in the format that its name says; Parquet files in a folder where it says none."""
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    elif path.name == "saved":
        pytest.importorskip("datasets").Dataset.from_pandas(frame).save_to_disk(str(path))
    elif path.suffix == "":
        path.mkdir()
        frame[:50].to_parquet(path / "1.parquet")
        frame[50:].to_parquet(path / "2.parquet")
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


def read_table(path: Path) -> pd.DataFrame:
    """The table as texts, however it is written; lists stay lists."""
    if path.suffix == ".parquet" or (path.is_dir() and path.name != "saved" and list(path.glob("*.parquet"))):
        return pd.read_parquet(path)
    if path.suffix == ".xlsx":
        return pd.read_excel(path, dtype=str, keep_default_na=False)
    if path.suffix == ".jsonl":
        return pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])
    if path.is_dir():
        return pytest.importorskip("datasets").load_from_disk(str(path)).to_pandas()
    return pd.read_csv(path, dtype=str, keep_default_na=False, sep="\t" if path.suffix == ".tsv" else ",")


def column(name: str) -> Callable[[Path], Labels]:
    return lambda path: {row: str(cell) for row, cell in enumerate(read_table(path)[name])}


def write_images(folder: Path, labels: str = "") -> Path:
    """Dark, red and light pictures in folders of their classes, or with a table of labels."""
    rng = np.random.default_rng(0)
    shades = {"dark": (20, 20, 20), "light": (200, 200, 200), "red": (200, 20, 20)}
    rows = []
    for k in range(45):
        true, given = list(shades)[k % 3], list(shades)[(k + (k in (4, 9, 20))) % 3]
        name = f"{k:02d}.png" if labels else f"{given}/{k:02d}.png"
        (folder / "pics" / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.array(shades[true]) + rng.integers(0, 50, size=(8, 8, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "pics" / name)
        rows.append({"file_name": name, "label": given})
    if labels:
        write_table(pd.DataFrame(rows), folder / "pics" / labels)
    return folder / "pics"


def images_in(path: Path) -> Labels:
    """The label of each picture, by its file."""
    table = next(path.glob("metadata.*"), None) if path.is_dir() else path
    if table is None:
        return {file.relative_to(path).as_posix(): file.parent.name for file in path.rglob("*.png")}
    frame = read_table(table)
    return dict(zip(frame.iloc[:, 0], frame["label"], strict=True))


def write_arrays(folder: Path, name: str) -> Path:
    frame = classes()
    x, y = frame[["size", "weight"]].to_numpy(np.float32), pd.factorize(frame["label"])[0]
    np.savez(folder / name, x=x, y=y) if name.endswith(".npz") else np.save(folder / name, x)
    np.save(folder / "y.npy", y)
    return folder / name


def table(frame: Callable[[], pd.DataFrame], name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        write_table(frame(), folder / name)
        return folder / name

    return write


# --- the table of cases -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A kind of label in a format.

    Attributes:
        name: of both.
        write: makes the data in a folder.
        labels: of a file or folder.
        about: whether a suspect is about the label at a place.
        size: how many labels a suspect is about.
        command: what audits the data.
        options: of the command; ``{folder}`` stands for the folder of the data.
        source: what is corrected, where it is a file of the run.
        suffix: of what is written, if it is another than that of the data.
        refused: what `audit` says where it cannot read such data, or `apply` where it cannot write them.
    """

    name: str
    write: Callable[[Path], Path]
    labels: Callable[[Path], Labels]
    about: Callable[[Row, Any], bool] = lambda row, place: int(row["index"]) == place
    size: Callable[[Row], int] = lambda row: 1
    command: str = "audit"
    options: tuple[str, ...] = ()
    source: str = ""
    suffix: str | None = None
    refused: str = ""

    def __str__(self) -> str:
        return self.name


def set_case(form: str, name: str, *options: str, refused: str = "") -> Case:
    return Case(
        f"label sets as {form}, {name}", table(lambda: label_sets(form), name), lambda path: memberships_in(read_table(path)),
        about=lambda row, place: (int(row["index"]), row["label"]) == place, options=options, refused=refused,
    )  # fmt: skip


def tag_case(name: str, write: Callable[[Path], Path]) -> Case:
    def about(row: Row, place: int) -> bool:
        first = int(row["token"])
        return first <= place < first + int(row["tokens"]) and place // 5 == int(row["index"])

    return Case(f"tags, {name}", write, tags_in, about=about, size=lambda row: int(row["tokens"]))


def mask_case(name: str, mode: str) -> Case:
    return Case(
        f"regions, {name}", lambda folder: write_masks(folder, mode), pixels_in,
        about=lambda row, place: row["file"] == place[0] == f"{int(row['index']):02d}.png",
        size=lambda row: int(row["pixels"]), suffix="",
    )  # fmt: skip


def image_case(name: str, labels: str, suffix: str, *options: str) -> Case:
    return Case(
        f"classes, {name}", lambda folder: write_images(folder, labels), images_in,
        about=lambda row, place: row["id"] == place, options=options, suffix=suffix,
    )  # fmt: skip


def vote_case(form: str, name: str, frame: Callable[[], pd.DataFrame], *options: str) -> Case:
    return Case(
        f"annotators, {form}, {name}", table(frame, name), column("label"), command="consensus", options=options,
        source="labels.csv", suffix=".csv",
    )  # fmt: skip


WIDE, LONG = ("--annotators", "rater*"), ("--item", "item", "--annotator", "who")
COLUMNS = ("--labels-columns", ",".join(TOPICS))
NO_COLUMNS = "corrections of columns of 0 and 1 are written into CSV, TSV and JSONL files"
NO_ARRAYS = "is neither a CSV, TSV, JSONL, Excel or Parquet file"

CASES = [
    *(
        Case(f"classes, {name}", table(classes, name), column("label"))
        for name in ("t.csv", "t.tsv", "t.csv.gz", "t.jsonl", "t.xlsx", "t.parquet", "parts", "saved")
    ),
    Case("classes in pieces, t.parquet", table(classes, "t.parquet"), column("label"), options=("--memory", "4GB")),
    image_case("image folder", "", ".csv"),
    image_case("image folder in pieces", "", ".csv", "--memory", "4GB"),
    image_case("image folder with metadata.csv", "metadata.csv", ".csv"),
    image_case("image folder with metadata.jsonl", "metadata.jsonl", ".jsonl"),
    Case(
        "classes, x.npy", lambda folder: write_arrays(folder, "x.npy"), lambda path: {},
        options=("--labels", "{folder}/y.npy"), refused=NO_ARRAYS,
    ),
    Case("classes, t.npz", lambda folder: write_arrays(folder, "t.npz"), lambda path: {}, refused=NO_ARRAYS),
    *(
        Case(f"quantity, {name}", table(quantities, name), column("price"), options=("--label", "price"))
        for name in ("t.csv", "t.tsv", "t.jsonl", "t.xlsx", "t.parquet")
    ),
    *(set_case("joined", name) for name in ("t.csv", "t.tsv", "t.jsonl", "t.xlsx", "t.parquet")),
    set_case("lists", "t.jsonl"),
    set_case("lists", "t.parquet", refused="holds lists, which are read from JSONL files alone"),
    *(set_case("columns", name, *COLUMNS) for name in ("t.csv", "t.tsv", "t.jsonl")),
    *(set_case("columns", name, *COLUMNS, refused=NO_COLUMNS) for name in ("t.xlsx", "t.parquet")),
    tag_case("t.conll", write_conll),
    tag_case("t.jsonl", write_token_lists),
    mask_case("gray masks", "L"),
    mask_case("masks with a palette", "P"),
    *(
        Case(f"pairs, {name}", table(pairs, name), preferences_in)
        for name in ("t.csv", "t.tsv", "t.jsonl", "t.parquet", "parts", "saved")
    ),
    *(
        Case(f"pairs with preferences, {name}", table(lambda: pairs("preference"), name), preferences_in)
        for name in ("t.csv", "t.jsonl", "t.parquet")
    ),
    *(vote_case("a column each", name, votes, *WIDE) for name in ("t.csv", "t.jsonl", "t.parquet")),
    vote_case("a row each", "t.csv", vote_rows, *LONG),
    vote_case("votes alone", "t.csv", lambda: vote_rows(alone=True), *LONG),
]  # fmt: skip


# --- the tests ---------------------------------------------------------------------------------------------------------


def run(*arguments: Any) -> str:
    """What a command says, on one line; its error if it has one."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return " ".join(f"{done.output} {'' if done.exception is None else done.exception}".split())


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(5000)
    yield context.new_page()
    context.close()


def decide(tab: Any, address: str, keys: str) -> None:
    """Presses a key on each of the first items, and waits until the decisions are saved."""
    tab.goto(address + "#review")
    said = "words => document.querySelector('.progress-words').textContent.includes(words)"
    tab.wait_for_function(said, arg="saved")
    for key in keys:
        tab.keyboard.press(key)
    made = sum(key != "s" for key in keys)
    tab.wait_for_function(said, arg=f"{made} of")
    tab.wait_for_function(said, arg="· saved")


def same(text: str, other: str) -> bool:
    """Equal, or nearly equal numbers with decimals: the page rounds what it suggests."""
    if text == other or "." not in text + other:
        return text == other
    return float(text) == pytest.approx(float(other), rel=0.02)


def counted(said: str) -> int:
    """The number of labels changed and rows dropped, where one label is kept and one is skipped."""
    found = re.search(r"(\d+) of \d+ \w+ changed(?:, (\d+) rows? dropped)?, 1 kept as given, 1 skipped", said)
    return sum(int(number or 0) for number in found.groups()) if found else -1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_decisions_on_the_served_page_change_the_decided_labels_alone(
    case: Case, tab: Any, serve: Callable[..., ReviewServer], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    data, folder = case.write(tmp_path / "data"), tmp_path / "run"
    options = [option.format(folder=tmp_path / "data") for option in case.options]
    only = ["--only", "labels"] if case.command == "audit" else []
    said = run(case.command, data, "--encoder", "none", *only, "--out", folder, *options)
    if case.refused and case.refused in said:
        assert not folder.exists()
        return
    assert (folder / "report.html").is_file(), said
    suspects = list(csv.DictReader((folder / "suspects.csv").read_text(encoding="utf-8").splitlines()))
    accepted, kept, skipped, *others = suspects

    server = serve(folder)
    decide(tab, server.address, "aks")
    server.merge()
    suffix = "".join(data.suffixes) if case.suffix is None else case.suffix
    out = tmp_path / f"fixed{suffix}" if data.name != "saved" else tmp_path / "fixed" / "saved"
    out.parent.mkdir(exist_ok=True)
    said = run("apply", folder, "-o", out)
    if case.refused:
        assert case.refused in said
        assert not out.exists()
        return
    assert counted(said) == 1, said
    source = folder / case.source if case.source else data
    changed = changes(case, source, out)
    assert len(changed) == case.size(accepted)
    for place, (old, new) in changed.items():
        assert case.about(accepted, place)
        assert same(old, accepted["given"])
        assert same(new, accepted["suggested"])
    assert_only_labels_differ(source, out, case.size(accepted))

    # What a person decided holds, whatever is accepted without review.
    taken = [row for row in others if float(row["p_error"]) >= 0.5]
    assert float(kept["p_error"]) >= 0.5
    said = run("apply", folder, "--accept", 0.5, "-o", out, "--force")
    assert f"3 decisions of {folder}" in said
    assert f"{len(taken)} suggestions accepted without review" in said
    assert counted(said) == 1 + len(taken), said
    changed = changes(case, source, out)
    assert len(changed) == sum(case.size(row) for row in (accepted, *taken))
    for place, (old, new) in changed.items():
        about = [row for row in (accepted, kept, skipped, *taken) if case.about(row, place)]
        assert any(
            same(old, row["given"]) and same(new, row["suggested"]) for row in about if row not in (kept, skipped)
        )


@pytest.mark.skipif(sys.platform != "linux", reason="file names of other systems are texts")
@pytest.mark.parametrize(
    ("write", "old", "new"),
    [
        (write_images, "pics/red/02.png", b"pics/red/caf\xe9.png"),
        (write_images, "pics/red", b"pics/r\xe9d"),
        (write_masks, "set/masks/02.png", b"set/masks/caf\xe9.png"),
    ],
)
def test_a_file_whose_name_is_not_utf8_is_named_before_the_work(
    write: Callable[[Path], Path], old: str, new: bytes, tmp_path: Path
) -> None:
    data = write(tmp_path)
    (tmp_path / old).rename(os.fsdecode(os.fsencode(tmp_path) + b"/" + new))
    said = run("audit", data, "--encoder", "none", "--out", tmp_path / "run")
    assert "\\xe9" in said
    assert "is not valid UTF-8" in said
    assert "Rename" in said
    assert not (tmp_path / "run").exists()


def changes(case: Case, before: Path, after: Path) -> dict[Any, tuple[str, str]]:
    """The old and the new label at each place where they differ."""
    old, new = case.labels(before), case.labels(after)
    assert old.keys() == new.keys()
    return {place: (label, new[place]) for place, label in old.items() if label != new[place]}


def assert_only_labels_differ(before: Path, after: Path, most: int) -> None:
    """In a text file, lines without a changed label are the same bytes; in other tables, the other columns are the same."""
    if before.is_dir() and after.is_file():
        return  # folders of pictures get a table of labels
    if before.suffix in (".csv", ".tsv", ".jsonl", ".conll", ".gz"):
        old, new = (path.read_bytes() for path in (before, after))
        if before.suffix == ".gz":
            old, new = gzip.decompress(old), gzip.decompress(new)
        old, new = old.split(b"\n"), new.split(b"\n")
        if len(old) > len(new):  # pairs were dropped
            first = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(new))
            assert old[:first] + old[first + len(old) - len(new) :] == new
            return
        assert 1 <= sum(a != b for a, b in zip(old, new, strict=True)) <= most
    elif after.is_file() or list(after.glob("*.parquet")):
        old, new = read_table(before), read_table(after)
        if len(old) > len(new):
            pd.testing.assert_frame_equal(old[old["prompt"].isin(new["prompt"])].reset_index(drop=True), new)
            return
        labels = [name for name in old if not old[name].equals(new[name])]
        assert len(labels) == 1
        assert old.dtypes.equals(new.dtypes)
