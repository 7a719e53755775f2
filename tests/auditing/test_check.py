"""`compensate check` and `Audit.score`: new and changed labels judged by the fitted model of an audit, without training."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import exit_code
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from compensate import audit
from compensate.auditing.api import audit_probabilities
from compensate.auditing.check import FORMATS, check, label_places
from compensate.auditing.decisions import Correction, write_corrections
from compensate.auditing.features import make_views
from compensate.auditing.judge import read_packed, write_packed
from compensate.auditing.learners import judge_view
from compensate.auditing.result import Audit
from compensate.auditing.store import write_run
from compensate.cli.check import FORMATS as NAMED
from compensate.data import digits, noise
from compensate.data.dataset import Dataset, Source
from compensate.errors import InputError

WORDS = {
    "good": ["fine", "lovely", "great", "superb", "warm", "funny"],
    "bad": ["dull", "awful", "boring", "weak", "cold", "slow"],
}


def texts(n: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Reviews whose words tell the class, and which of their labels are wrong."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(["bad", "good"], n)
    wrong = rng.random(n) < 0.08
    said = [
        f"{rng.choice(WORDS[label])} and {rng.choice(WORDS[label])} film {rng.integers(1000)}, {rng.choice(WORDS[label])}"
        for label in labels
    ]
    given = np.where(wrong, np.where(labels == "bad", "good", "bad"), labels)
    return pd.DataFrame({"review": said, "label": given}), wrong


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, and the run of its audit."""
    folder = tmp_path_factory.mktemp("reviews")
    frame, _ = texts(300)
    frame.to_csv(folder / "reviews.csv", index=False)
    found = audit(folder / "reviews.csv", encoder="none")
    write_run(found, folder / "run")
    return folder


def loaded(folder: Path) -> Audit:
    return Audit.load(folder / "run" / "audit")


# --- the fitted model -----------------------------------------------------------------------------------------


def test_a_stored_model_says_what_the_fitted_one_said(reviewed: Path) -> None:
    frame, wrong = texts(200, seed=1)
    found = audit(reviewed / "reviews.csv", encoder="none")
    here, stored = found.score(frame), loaded(reviewed).score(frame)
    np.testing.assert_allclose(here["p_error"], stored["p_error"], atol=2e-3)
    assert average_precision_score(wrong, stored["p_error"]) > 0.95
    assert stored["given"].tolist() == frame["label"].tolist()
    assert set(stored.loc[wrong, "suggested"]) == {"bad", "good"}


def table(n: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    size, town = rng.normal(size=n), rng.integers(60, size=n)
    kind = rng.choice(["a", "b", "c"], n)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(300, size=n), "D")
    label = np.where(2 * size + (kind == "a") - (town > 30) > 0, "high", "low")
    wrong = rng.random(n) < 0.1
    given = np.where(wrong, np.where(label == "low", "high", "low"), label)
    towns = [f"{'north' if t > 30 else 'south'} {t}" for t in town]
    columns = {"town": towns, "kind": kind, "day": day.strftime("%d.%m.%Y"), "label": given}
    return pd.DataFrame({"size": np.where(rng.random(n) < 0.05, np.nan, size), **columns}), wrong


def test_tables_with_dates_gaps_and_many_categories_are_scored_after_storing(tmp_path: Path) -> None:
    frame, _ = table(400)
    found = audit(frame, label="label")
    new, wrong = table(200, seed=1)
    new.loc[0, "kind"] = "never seen"
    here, stored = found.score(new), Audit.load(found.save(tmp_path / "audit")).score(new)
    np.testing.assert_allclose(here["p_error"], stored["p_error"], atol=2e-3)
    assert average_precision_score(wrong, stored["p_error"]) > 0.6


def test_images_and_features_are_scored_and_other_shapes_are_refused(tmp_path: Path) -> None:
    train, test = digits().split((0.6, 0.4))
    wrong = noise.symmetric(test.target, 10, 0.1)
    for kind in ("images", "features"):
        x, new = (part.x if kind == "images" else part.x.reshape(len(part), -1) for part in (train, test))
        found = audit(x, train.target, encoder="none")
        stored = Audit.load(found.save(tmp_path / kind))
        scored = stored.score(new, wrong.labels)
        assert average_precision_score(wrong.changed, scored["p_error"]) > 0.9
        assert wrong.changed[scored["flagged"]].mean() > 0.8
        with pytest.raises(InputError, match="the audit was made of"):
            stored.score(new[:, ..., :4], wrong.labels)


def test_stored_trees_vote_as_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.ensemble import ExtraTreesClassifier

    from compensate.auditing.learners import Forest, smoothed

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0) + 2 * (x[:, 2] > 1)
    forest = ExtraTreesClassifier(20, min_samples_leaf=3, random_state=0).fit(x, y)
    mine = Forest.of(Forest.fitted([(tree, forest.classes_) for tree in forest.estimators_], 5).arrays(), 5)
    new = rng.normal(size=(100, 5)).astype(np.float32)
    p = np.zeros((100, 5))
    p[:, forest.classes_] = forest.predict_proba(new)
    np.testing.assert_allclose(mine.log_p(None, new), smoothed(p), atol=2e-3)
    broken = {**mine.arrays(), "right": np.zeros_like(mine.right)}
    with pytest.raises(InputError, match="trees"):
        Forest.of(broken, 5)


def log_loss(log_p: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    return -float(log_p[np.arange(len(labels)), labels].mean())


def test_the_stored_learners_are_as_good_as_those_of_the_folds() -> None:
    """Each learner by itself: log loss on new rows beside that of the held-out rows."""
    train, test = digits().split((0.6, 0.4))
    data = Dataset(train.x.reshape(len(train), -1), train.target, train.classes, source=Source(kind="features"))
    views = make_views(data, "none")
    folds = np.arange(len(train)) % 5
    judged = judge_view(views.views[0], train.target, folds, 5, 10)
    new = views.makers[0].view(Dataset(test.x.reshape(len(test), -1), test.target, test.classes))
    assert judged.models.keys() == judged.log_p.keys()
    for name, model in judged.models.items():
        log_p = model.log_p(new.x, new.trees)
        assert np.allclose(np.exp(log_p).sum(1), 1, atol=0.05), name
        held, fresh = log_loss(judged.log_p[name], train.target), log_loss(log_p, test.target)
        assert fresh < 1.6 * held, name  # the new rows are a little harder


def test_audits_without_a_fitted_model_say_why(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3))
    p = rng.dirichlet([1, 1], 50)
    with pytest.raises(InputError, match="--probs"):
        Audit.load(audit_probabilities(p, p.argmax(1)).save(tmp_path / "audit")).score(x, rng.integers(2, size=100))


@pytest.mark.parametrize("columns", [3, 200])  # trees, and nearest rows
def test_new_quantities_are_judged_as_audited_ones_are(columns: int, tmp_path: Path) -> None:
    """Of values whose errors are known, the same share is found in new rows as out of fold, and stored models say the same."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, columns)).astype(np.float32)
    y, wrong = 5 * x[:, 0] + 0.3 * rng.normal(size=800), rng.random(800) < 0.05
    y[wrong] += 8
    found = audit(x[:400], y[:400])
    new = found.score(x[400:], y[400:])
    stored = Audit.load(found.save(tmp_path / "audit")).score(x[400:], y[400:])
    assert np.allclose(new["p_error"], stored["p_error"], atol=1e-3)
    assert new["flagged"][wrong[400:]].mean() > 0.9
    assert wrong[400:][new["flagged"]].mean() > 0.9
    flagged = new[new["flagged"]]
    assert np.abs(flagged["suggested"].astype(float) - 5 * x[400:, 0][new["flagged"]]).median() < 1


def test_a_damaged_model_is_refused(reviewed: Path, tmp_path: Path) -> None:
    found = loaded(reviewed)
    for name in ("scorer.json", "scorer.safetensors"):
        folder = found.save(tmp_path / name)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(InputError, match="no fitted model that can be read"):
            Audit.load(folder).score(texts(5)[0])
    tree = read_packed(found.save(tmp_path / "odd") / "scorer")
    tree["views"][0]["learners"][0]["arrays"]["intercept"] = np.zeros(7, np.float32)
    write_packed(tree, tmp_path / "odd" / "scorer")
    with pytest.raises(InputError, match="weights of a learner do not fit"):
        Audit.load(tmp_path / "odd").score(texts(5)[0])


def test_a_class_called_array_is_no_array(tmp_path: Path) -> None:
    tree = {"values": ["array"], "x": np.arange(3), "nested": [{"y": np.ones((2, 2), np.float16)}]}
    write_packed(tree, tmp_path / "a")
    found = read_packed(tmp_path / "a")
    assert found["values"] == ["array"]
    np.testing.assert_array_equal(found["nested"][0]["y"], tree["nested"][0]["y"])


# --- which rows are judged ------------------------------------------------------------------------------------


def test_only_new_and_relabeled_rows_are_judged(
    reviewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = loaded(reviewed)
    frame = pd.read_csv(reviewed / "reviews.csv")
    sure = int(np.argmin(found.log_odds))
    frame.loc[sure, "label"] = "good" if frame.loc[sure, "label"] == "bad" else "bad"
    more, _ = texts(3, seed=9)
    more.loc[0] = ["dull and awful film 1, boring", "good"]
    more.loc[1] = ["lovely and warm film 1, fine", "god"]
    more.loc[2] = ["superb and warm film 2, fine", ""]
    frame = pd.concat([more, frame.sample(frac=1, random_state=0)])
    frame.to_csv(tmp_path / "new.csv", index=False)
    scorer = found.scorer
    assert scorer is not None
    seen: list[int] = []
    whole = type(scorer).predict
    monkeypatch.setattr(
        type(scorer), "predict", lambda self, data, **more: (seen.append(len(data)), whole(self, data, **more))[1]
    )
    result = check(found, tmp_path / "new.csv")
    assert seen == [2], "audited content is not encoded again"
    assert (result.rows, result.new, result.relabeled, result.unlabeled) == (303, 2, 1, 1)
    assert result.known == 299
    first = [(f.row, f.why, f.suggested) for f in result.findings[:2]]
    assert first == [(0, "new", "bad"), (1, "unknown class", "good")]
    assert result.findings[1].p_error == 1
    (relabeled,) = result.findings[2:]
    assert relabeled.why == "relabeled"
    assert frame.iloc[relabeled.row]["review"] == pd.read_csv(reviewed / "reviews.csv").loc[sure, "review"]


def test_a_decided_label_is_known(reviewed: Path, tmp_path: Path) -> None:
    found = loaded(reviewed)
    result = check(found, reviewed / "reviews.csv")
    assert (result.known, result.new, result.relabeled, result.findings) == (300, 0, 0, ())
    (tmp_path / "a.csv").write_text("review,labels\nx,good\n")
    with pytest.raises(InputError, match=r'no column "label".*labels'):
        check(found, tmp_path / "a.csv")
    frame = pd.read_csv(reviewed / "reviews.csv")
    sure = int(np.argmin(found.log_odds))
    given = frame.loc[sure, "label"]
    other = "good" if given == "bad" else "bad"
    frame.loc[sure, "label"] = other
    frame.to_csv(tmp_path / "new.csv", index=False)
    decided = Correction(sure, given, "other", other, found.row_digest(sure), found.source_digest)
    assert len(check(found, tmp_path / "new.csv").findings) == 1
    result = check(found, tmp_path / "new.csv", decisions=[decided])
    assert (result.new, result.relabeled) == (0, 0)
    write_corrections(reviewed / "run" / "corrections.csv", [decided])
    assert exit_code("check", str(tmp_path / "new.csv"), "--against", str(reviewed / "run")) == 0
    (reviewed / "run" / "corrections.csv").unlink()
    assert exit_code("check", str(tmp_path / "new.csv"), "--against", str(reviewed / "run")) == 1


def test_a_folder_of_images_names_the_image(tmp_path: Path) -> None:
    from PIL import Image

    data = digits()
    data = data.subset(data.target < 2)

    def write(folder: Path, rows: range, wrong: int | None = None) -> None:
        for row in rows:
            name = str(data.target[row] if row != wrong else 1 - data.target[row])
            (folder / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray((data.x[row, 0] * 255).astype(np.uint8)).save(folder / name / f"{row}.png")

    write(tmp_path / "a", range(100))
    found = Audit.load(audit(tmp_path / "a", encoder="none").save(tmp_path / "audit"))
    write(tmp_path / "b", range(50, 160), wrong=130)
    result = check(found, tmp_path / "b")
    assert (result.known, result.new) == (50, 60)
    assert [Path(f.file).name for f in result.findings] == ["130.png"]


# --- lines and formats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_numbers_are_those_of_the_label_whatever_is_quoted(end: str) -> None:
    rows = [f'"a{end}b{end}c",x', "", "d,y", f'"say ""hi"",{end}",z', "short"]
    text = end.join(["text,label", *rows]) + end
    lines = re.split("\r\n|\r|\n", text)
    places = label_places(text, ".csv", 1)
    assert [line for line, _ in places] == [4, 6, 8, 9]
    assert [lines[line - 1][column - 1 :] for line, column in places] == ["x", "y", "z", "short"]


def test_other_kinds_of_files_are_checked_against_the_same_run(reviewed: Path, tmp_path: Path) -> None:
    """JSON Lines have lines; Parquet, and a folder of several, have rows."""
    wrong = {"review": "dull and awful film 1, boring", "label": "good"}
    known = pd.read_csv(reviewed / "reviews.csv").head(2).to_dict("records")
    lines = [json.dumps(record) for record in (*known, wrong)]
    (tmp_path / "new.jsonl").write_text("\n" + "\n\n".join(lines) + "\n")
    frame = pd.DataFrame([*known, wrong])
    (tmp_path / "parts").mkdir()
    for path in (tmp_path / "new.parquet", tmp_path / "parts" / "a.parquet"):
        frame.to_parquet(path)
    for name, line in (("new.jsonl", 6), ("new.parquet", None), ("parts", None)):
        result = check(loaded(reviewed), tmp_path / name)
        assert (result.known, result.new) == (2, 1), name
        assert [(f.row, f.line, f.suggested) for f in result.findings] == [(2, line, "bad")], name


@pytest.fixture
def odd(reviewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with two labels that look wrong, one after a quoted line end, in a folder with a comma."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my, data"
    folder.mkdir()
    (folder / "new.csv").write_text(
        'review,label\n"dull and\nawful film 1, boring",good\n"superb, warm\nand fine",good\nweak and slow film,"no\nclass"\n'
    )
    return "my, data/new.csv"


def test_every_format_names_file_and_line(reviewed: Path, odd: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(FORMATS) == NAMED
    against = ("--against", str(reviewed / "run"))
    assert exit_code("check", odd, *against) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(
        'my, data/new.csv:3:23: "good" looks wrong, "bad" is likelier (probability of error > 0.99'
    )
    assert said[1].startswith("my, data/new.csv:6:20: ")
    assert said[2].endswith("3 rows, 0 of them as audited; judged 3 new and 0 relabeled rows: 2 labels look wrong")

    assert exit_code("check", odd, *against, "--format", "json") == 1
    (result,) = json.loads(capsys.readouterr().out)["files"]
    assert [f["line"] for f in result["findings"]] == [3, 6]
    assert result["findings"][1]["given"] == "no\nclass"

    assert exit_code("check", odd, *against, "--format", "github") == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith('::warning file=my%2C data/new.csv,line=3,col=23,title=wrong-label::"good" looks wrong')
    assert said[1].startswith("::warning file=my%2C data/new.csv,line=6,col=20,title=unknown-class::")

    assert exit_code("check", odd, *against, "--format", "sarif") == 1
    sarif = json.loads(capsys.readouterr().out)
    assert sarif["version"] == "2.1.0"
    (one,) = sarif["runs"]
    rules = {rule["id"] for rule in one["tool"]["driver"]["rules"]}
    for found, line in zip(one["results"], (3, 6), strict=True):
        assert found["ruleId"] in rules
        place = found["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "my%2C%20data/new.csv"
        assert place["region"]["startLine"] == line


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), 1, ""), (("--max-wrong", "1"), 1, ""), (("--max-wrong", "2"), 0, ""), (("--max-wrong", "0.5"), 1, ""),
        (("--max-wrong", "67%"), 0, ""), (("--max-wrong", "many"), 2, "--max-wrong"), (("--max-wrong", "1.5"), 2, "--max-wrong"),
        (("--fail-above", "2"), 2, "--fail-above"), (("--format", "sarf"), 2, "sarif"), (("--against", "nowhere.d"), 2, "nowhere.d"),
    ],
)  # fmt: skip
def test_the_exit_code_follows_the_bound_and_wrong_options_are_named(
    reviewed: Path, odd: str, options: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("check", odd, "--against", str(reviewed / "run" / "audit"), *options) == code
    assert said in capsys.readouterr().err


def test_fail_above_moves_the_threshold(reviewed: Path, odd: str, capsys: pytest.CaptureFixture[str]) -> None:
    against = ("--against", str(reviewed / "run"))
    for above, count in (("0", 3), ("0.5", 2), ("1", 1)):
        exit_code("check", odd, *against, "--fail-above", above, "--json")
        assert len(json.loads(capsys.readouterr().out)["files"][0]["findings"]) == count
    assert exit_code("check", odd, str(reviewed / "reviews.csv"), *against, "--max-wrong", "2") == 0
    assert capsys.readouterr().out.count(" rows, ") == 2, "several files are judged together"
