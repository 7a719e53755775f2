"""`compensate audit` and `compensate apply`, from a file to a corrected file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from commands import run
from PIL import Image
from sklearn.metrics import average_precision_score
from typer.testing import CliRunner

import compensate
import experiments.data  # noqa: F401  reads pickled labels
from compensate.auditing.page import command
from compensate.auditing.result import Audit
from compensate.auditing.source import read
from compensate.cli import app
from compensate.cli.audit import describe_data
from compensate.errors import InputError

pytestmark = pytest.mark.slow


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Numbers, categories, missing values; a tenth of the labels wrong."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    size = 500
    age, town = rng.normal(40, 10, size).round(1), rng.choice(["rome", "oslo"], size)
    true = np.where((age > 40) ^ (town == "rome"), "yes", "no")
    wrong = rng.random(size) < 0.1
    given = np.where(wrong, np.where(true == "yes", "no", "yes"), true)
    frame = pd.DataFrame({"age": age.astype(str), "town": town, "target": given})
    frame.loc[3, "age"] = ""
    frame.loc[5, "target"] = ""
    frame.to_csv("people.csv", index=False)
    return frame, true, wrong


def test_a_table_from_audit_to_corrected_file(table, tmp_path):
    frame, true, wrong = table
    said = run("audit", "people.csv")
    assert 'label column "target" (2 classes' in said
    assert "1 without a label" in said
    assert "judged 5 folds · by columns 100% · predictions agree with " in said
    assert "of the labels look wrong" in said
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"review them: compensate review runs/{folder.name} or open" in said
    assert f"then: compensate apply runs/{folder.name}" in said
    assert "compensate apply people.csv corrections.csv" in (folder / "report.html").read_text(), "for who exports"
    names = {p.name for p in folder.iterdir()}
    assert names >= {"config.json", "suspects.csv", "report.html", "audit", "predictions.csv"}
    assert not names & {"metrics.jsonl", "model.safetensors"}, "no model is trained"
    assert json.loads((folder / "config.json").read_text())["label"] == "target"
    suspects = pd.read_csv(folder / "suspects.csv")
    assert list(suspects.columns[:6]) == ["index", "given", "suggested", "score", "p_error", "flagged"]
    top = suspects.head(int(wrong.sum() * 0.8))
    assert wrong[top["index"]].mean() > 0.8
    flagged = suspects[suspects["flagged"]]
    lines = ["index,given,decision,label"] + [
        f"{r.index_},{r.given},accept,{r.suggested}" for r in flagged.rename(columns={"index": "index_"}).itertuples()
    ]
    (tmp_path / "corrections.csv").write_text("\n".join(lines) + "\n")
    said = run("apply", "people.csv", "corrections.csv", "-o", "fixed.csv")
    assert f"{len(flagged)} of 500 labels changed" in said
    fixed = pd.read_csv("fixed.csv", dtype=str, keep_default_na=False)
    pd.testing.assert_frame_equal(fixed[["age", "town"]], frame[["age", "town"]])
    assert (fixed["target"] == true).mean() > (frame["target"] == true).mean()
    sure = suspects[suspects["p_error"] >= 0.8]
    said = run("apply", "people.csv", folder, "--accept", 0.8, "-o", "sure.csv")
    assert f"{len(sure)} of 499 labels are wrong with a probability of 0.8 or more" in said
    changed = np.flatnonzero(pd.read_csv("sure.csv", keep_default_na=False)["target"] != frame["target"])
    assert sorted(changed) == sorted(sure["index"])
    for asked, refused in (
        (("corrections.csv", "-o", "fixed.csv"), "exists already"), ((folder,), r"--accept 0\.9"),
        (("fixed.csv", "--accept", 0.9), "not the folder of one"), ((folder, "--accept", 90, "-o", "other.csv"), "not a probability"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=refused):
            run("apply", "people.csv", *asked)


def test_a_model_is_trained_and_its_checkpoints_are_cleared_away(table, tmp_path):
    said = run("audit", "people.csv", "--model", "mlp", "--epochs", 3, "--out", "runs/mine")
    assert "by model 100%" in said
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["mine"]
    lines = (tmp_path / "runs" / "mine" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert (tmp_path / "runs" / "mine" / "model.safetensors").exists()


def tickets(rows: int = 60, **more: object) -> pd.DataFrame:
    text = [f"please look at case {k} {'the bill is wrong' if k % 2 else 'the box is lost'}" for k in range(rows)]
    return pd.DataFrame(
        {"ticket_id": range(rows), "text": text, **more, "label": ["shipping", "billing"] * (rows // 2)}
    )


def test_every_column_that_is_not_used_is_named():
    said = describe_data(
        read(tickets(age=np.arange(60) % 7, city=["rome", "oslo", "lima"] * 20, same=1), None, None, {})
    )
    assert 'text column "text" together with age, city (by the text alone: --columns "")' in said
    assert said.endswith("not used: ticket_id, same")
    said = describe_data(read(tickets(age=np.arange(60) % 7), None, np.zeros((60, 2)), {}))
    assert said.endswith("not used: ticket_id, age"), "embeddings were given, and are judged"
    said = describe_data(read(tickets(age=np.arange(60) % 7), None, None, {"columns": "age"}))
    assert said.endswith("not used: ticket_id, text")
    said = describe_data(read(tickets(**{f"n{k}": np.arange(60) % (k + 7) for k in range(19)}), None, None, {}))
    assert "together with n0, n2, n3, n4, n5, n6, n7, n8 and 10 more (" in said


@pytest.mark.parametrize(("category", "why"), [("", "is empty"), ("a", "has one value")])
def test_labels_that_cannot_be_predicted_name_the_column_and_the_option(tmp_path, monkeypatch, category, why):
    monkeypatch.chdir(tmp_path)
    priority = np.random.default_rng(0).choice(["low", "high"], 60)
    tickets(category=category, priority=priority).drop(columns="label").to_csv("tickets.csv", index=False)
    said = run("audit", "tickets.csv", "--encoder", "none", "--out", "run")
    assert f'), not "category", which {why}, not used: ticket_id' in said
    assert 'The labels in "priority" cannot be predicted from "text" better than by chance' in said
    assert f'--label NAME ("category" was passed over: it {why})' in said
    assert "the labels cannot be judged" in said
    assert "compensate review" not in said
    assert "compensate apply" not in said


def test_one_row_without_a_label_is_predicted_and_two_are():
    frame = tickets()
    frame.loc[3, "label"] = ""
    assert "1 without a label, which is predicted" in describe_data(read(frame, None, None, {}))
    frame.loc[4, "label"] = ""
    assert "2 without a label, which are predicted" in describe_data(read(frame, None, None, {}))


def test_embeddings_and_probabilities(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    true = rng.integers(3, size=300)
    x = (np.eye(3)[true] * 4 + rng.normal(size=(300, 3))).astype(np.float32)
    given = true.copy()
    given[:20] = (given[:20] + 1) % 3
    np.save("x.npy", x)
    np.save("y.npy", given)
    np.savez("both.npz", x=x, y=given)
    p = np.exp(2 * x)
    np.save("p.npy", p / p.sum(1, keepdims=True))
    for arguments in (["x.npy", "--labels", "y.npy"], ["both.npz"], ["--probs", "p.npy", "--labels", "y.npy"]):
        out = tmp_path / arguments[-1].replace(".", "-") / str(len(arguments))
        run("audit", *arguments, "--out", out)
        suspects = pd.read_csv(out / "suspects.csv")
        assert (suspects.head(15)["index"] < 20).mean() > 0.7
        assert command(Audit.load(out)) == "", "arrays are not written back"
    with pytest.raises(InputError, match="needs the labels too"):
        run("audit", "--probs", "p.npy")


@pytest.mark.parametrize("how", ["--opinion", "--describe"])
def test_opinions_join_given_probabilities(tmp_path, monkeypatch, how):
    """A weak model finds few wrong labels; the opinion and the texts tell all."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    true = rng.integers(2, size=200)
    wrong = (true == 0) & (rng.random(200) < 0.2)
    texts = [f"number {k} of them will {('purr', 'bark')[t]} when it is {k % 7} at night" for k, t in enumerate(true)]
    frame = pd.DataFrame({"text": texts, "label": np.array(["cat", "dog"])[np.where(wrong, 1, true)]})
    frame.to_csv("pets.csv", index=False)
    p = 1 / (1 + np.exp(-rng.normal(2 * true - 1, 1)))
    np.save("p.npy", np.stack([1 - p, p], 1))
    Path("opinion.csv").write_text("label\n" + "\n".join(np.array(["cat", "dog"])[true]))
    Path("about.yaml").write_text("cat: it will purr\ndog: it will bark\n")
    files = {"--opinion": "opinion.csv", "--describe": "about.yaml"}
    for name, more in (("alone", []), ("joined", [how, files[how]])):
        run("audit", "pets.csv", "--probs", "p.npy", "--encoder", "none", *more, "--out", name)
    alone, joined = (
        average_precision_score(wrong, -Audit.load(tmp_path / n / "audit").evidence["margin"])
        for n in ("alone", "joined")
    )
    views = Audit.load(tmp_path / "joined" / "audit").provenance.views
    assert joined > alone + 0.1
    assert set(views) == {"probabilities", {"--opinion": "opinion", "--describe": "descriptions"}[how]}
    assert min(views.values()) > 0.05


def test_descriptions_need_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("p.npy", np.tile([[0.9, 0.1], [0.2, 0.8]], (20, 1)))
    np.save("y.npy", np.arange(40) % 2)
    Path("about.yaml").write_text("0: zero\n1: one\n")
    with pytest.raises(InputError, match="compared with the samples"):
        run("audit", "--probs", "p.npy", "--labels", "y.npy", "--describe", "about.yaml")


def test_embeddings_in_a_column(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    true = rng.integers(3, size=300)
    x = np.eye(3)[true] * 4 + rng.normal(size=(300, 3))
    given = np.where(np.arange(300) < 20, (true + 1) % 3, true)
    rows = pd.DataFrame({"caption": [f"row {i} of it" for i in range(300)], "vector": x.tolist(), "label": given})
    rows.to_json("rows.jsonl", orient="records", lines=True)
    for more in ([], ["--features", "vector"]):
        said = run("audit", "rows.jsonl", *more, "--out", "run")
        assert 'text column "caption", embedding column "vector" (3 numbers), label' in said
        assert (pd.read_csv("run/suspects.csv").head(15)["index"] < 20).mean() > 0.7
    assert not set(pd.read_csv("run/issues.csv")["issue"]) & {"duplicate", "conflicting_duplicate"}
    rows.assign(label=(true + 1) % 3).tail(5).to_json("new.jsonl", orient="records", lines=True)
    assert len(compensate.Audit.load("run").score("new.jsonl")) == 5
    with pytest.raises(InputError, match=r'no column "vectr"; did you mean "?vector'):
        run("audit", "rows.jsonl", "--features", "vectr")


def test_a_folder_of_images_with_one_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, level in (("dark", 40), ("light", 200)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(30):
            pixels = np.clip(rng.normal(level, 20, (8, 8)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{i}.png")
    (tmp_path / "pets" / "dark" / "broken.png").write_bytes(b"not an image")
    said = run("audit", "pets", "--encoder", "none")
    assert "broken.png" in said
    (folder,) = (tmp_path / "runs").iterdir()
    suspects = pd.read_csv(folder / "suspects.csv")
    assert len(suspects) == 60
    assert "dark/broken.png" not in set(suspects["id"])
    assert "broken.png" in (folder / "report.html").read_text("utf-8")


def test_quantities_are_announced_and_their_column_is_named_for_apply(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(60, 2)).round(3)
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "price": x[:, 0] * 10 + 0.5}).to_csv("p.csv", index=False)
    assert "a quantity from" in run("audit", "p.csv", "--label", "price", "--task", "regression", "--out", "run")
    assert "--label price" in Path("run/report.html").read_text()


def test_errors_name_the_options_of_the_command_line(table):
    np.save("x.npy", np.random.default_rng(0).normal(size=(100, 4)))
    result = CliRunner().invoke(app, ["audit", "x.npy"])
    assert "labels=... (--labels y.npy on the command line)" in str(result.exception)
    assert "0 classes" not in result.output, "there is nothing to open with"
    with pytest.raises(
        InputError, match=r"epochs is an option of training.*\(--model mlp or --finetune on the command line\)"
    ):
        run("audit", "people.csv", "--epochs", 3)
    with pytest.raises(InputError, match="write for example: compensate audit"):
        run("audit")


def test_the_help_shows_patterns_with_their_asterisks():
    said = run("audit", "--help").replace(" │ │ ", " ")
    assert "'data/*.parquet'" in said
    assert "'s3://bucket/data/*.parquet'" in said


def test_suspects_say_what_they_are_about(tmp_path, monkeypatch):
    """Flagged rows carry their cells, made harmless for a spreadsheet; the others stay empty."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    true = rng.integers(2, size=300)
    words = (["good", "great", "fine"], ["bad", "awful", "poor"])
    texts = ["=1+1 " + " ".join(rng.choice(words[t] + ["film", "plot", "the"], size=60)) for t in true]
    wrong = rng.random(300) < 0.1
    labels = np.array(["pos", "neg"])[np.where(wrong, 1 - true, true)]
    columns = {"id": range(300), "margin": range(300), "review": texts, "sentiment": labels}
    pd.DataFrame(columns).to_csv("r.csv", index=False)
    said = run("audit", "r.csv", "--encoder", "none")
    assert 'text column "review"' in said
    assert "pos → neg" in said
    (folder,) = (tmp_path / "runs").iterdir()
    suspects = pd.read_csv(folder / "suspects.csv", keep_default_na=False)
    assert list(suspects.columns[-3:]) == ["review", "id (data)", "margin (data)"]
    assert list(suspects["id"]) == list(suspects["index"])
    flagged = suspects[suspects["flagged"]]
    assert wrong[flagged["index"]].mean() > 0.8
    for row in flagged.itertuples():
        whole = texts[suspects.loc[row.Index, "index"]]
        assert row.review.startswith("'=1+1 ")
        assert whole.startswith(row.review[1:].removesuffix("…"))
        assert len(row.review) <= 201
    assert list(flagged["margin (data)"].astype(int)) == list(flagged["index"])
    assert set(suspects[~suspects["flagged"]]["review"]) == {""}


def test_encoding_and_delimiter_of_the_audit_hold_for_what_follows(table, tmp_path):
    frame, _, _ = table
    frame.assign(town=frame["town"] + ", Österbotten", note="¦").to_csv(
        "people.csv", sep=":", index=False, encoding="latin-1"
    )
    options = ("--encoding", "latin-1", "--delimiter", ":")
    run("audit", "people.csv", *options, "--only", "labels", "--out", "run")
    assert "corrections.csv -o people.fixed.csv --encoding latin-1 --delimiter :" in Path("run/report.html").read_text()
    run("apply", "run", "--accept", 0.8)
    before, after = Path("people.csv").read_bytes().splitlines(), Path("people.fixed.csv").read_bytes().splitlines()
    assert 0 < sum(a != b for a, b in zip(before, after, strict=True)) < 100
    found = compensate.audit("people.csv", encoding="latin-1", delimiter=":")
    accepted = found.accepted(0.8)
    found.apply(accepted, "python.csv")
    with pytest.raises(InputError, match='the character "日", which latin-1 has not'):
        found.apply([replace(accepted[0], decision="other", label="日")], "other.csv")
    assert Path("python.csv").read_bytes() == Path("people.fixed.csv").read_bytes()
    assert run("check", "people.csv", "--against", "run").endswith("0 labels look wrong")


# --- files and folders, by audits that need no training -------------------------------------------------------


@pytest.fixture
def scored(tmp_path, monkeypatch):
    """A table in two places, with the probabilities that some model gave its rows."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    true = rng.integers(2, size=60)
    given = true.copy()
    given[:6] = 1 - given[:6]
    frame = pd.DataFrame(
        {"text": [f"word{i} number {i} here" for i in range(60)], "label": np.array(["no", "yes"])[given]}
    )
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        frame.to_csv(tmp_path / place / "d.csv", index=False)
        np.save(
            tmp_path / place / "p.npy",
            np.where(np.eye(2)[true] == 1, 0.95, 0.05) if place == "a" else np.full((60, 2), 0.5),
        )
    return frame


def test_other_data_or_files_get_another_folder(scored, tmp_path):
    for data in ("a/d.csv", "b/d.csv"):
        for probs in ("a/p.npy", "b/p.npy"):
            run("audit", data, "--probs", probs)
    assert len(list((tmp_path / "runs").iterdir())) == 4
    run("audit", "a/d.csv", "--probs", "a/p.npy")
    assert len(list((tmp_path / "runs").iterdir())) == 4, "the same audit has the same folder"


def test_features_are_part_of_the_name_of_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    pd.DataFrame({"a": rng.normal(size=40), "label": ["x", "y"] * 20}).to_csv("d.csv", index=False)
    for name in ("e1.npy", "e2.npy"):
        np.save(name, rng.normal(size=(40, 3)))
        run("audit", "d.csv", "--features", name)
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_place_that_cannot_be_written_to_is_refused_before_any_work(scored, tmp_path, monkeypatch):
    def no_work(*_, **__):
        raise AssertionError("the data is read")

    monkeypatch.setattr("compensate.auditing.request._read", no_work)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written"):
        run("audit", "a/d.csv", "--probs", "a/p.npy", "--out", "file/run")


def test_a_folder_with_files_of_the_users_is_refused_before_training(scored, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    monkeypatch.setattr("compensate.auditing.request.audit_probabilities", None)
    with pytest.raises(InputError, match=r"holds notes\.txt"):
        run("audit", "a/d.csv", "--probs", "a/p.npy", "--out", "mine")


def test_apply_knows_the_audited_file_and_finds_rows_by_content_when_asked(scored, tmp_path):
    run("audit", "a/d.csv", "--probs", "a/p.npy", "--out", "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["source_digest"].startswith("sha256:")
    least = pd.read_csv(tmp_path / "run" / "suspects.csv")["p_error"][3]
    said = run("apply", "a/d.csv", "run", "--accept", least - 1e-6, "-o", "fixed.csv")
    assert "note:" not in said
    fixed = pd.read_csv("fixed.csv")
    changed = set(np.flatnonzero(fixed["label"] != scored["label"]))
    assert len(changed) >= 4
    assert changed <= set(range(6))
    shifted = pd.concat([pd.DataFrame({"text": ["a new row here"], "label": ["no"]}), scored[:30][::-1]])
    shifted.to_csv("shifted.csv", index=False)
    with pytest.raises(InputError, match="is not what was reviewed"):
        run("apply", "shifted.csv", "run", "--accept", least - 1e-6, "-o", "s.csv")
    said = run("apply", "shifted.csv", "run", "--accept", least - 1e-6, "-o", "s.csv", "--rematch")
    assert f"{len(changed)} rows found by content, {len(changed)} of them at another place" in said
    again = pd.read_csv("s.csv")
    assert {30 - i for i in np.flatnonzero(again["label"] != shifted["label"].to_numpy())} == changed


@pytest.mark.parametrize("name", ["y.npz", "y.pt"])
def test_a_set_of_labels_is_named_by_an_option(scored, tmp_path, name):
    sets = {"good": np.arange(60) % 2, "other": np.zeros(60, int)}
    np.savez(tmp_path / name, **sets) if name == "y.npz" else torch.save(sets, tmp_path / name)
    with pytest.raises(InputError, match=r'labels_key="good" \(--labels-key good'):
        run("audit", "--probs", "a/p.npy", "--labels", name)
    run("audit", "--probs", "a/p.npy", "--labels", name, "--labels-key", "good", "--out", "run")
    given = pd.read_csv(tmp_path / "run" / "suspects.csv").set_index("index")["given"].sort_index()
    assert list(given) == list(sets["good"])


def test_an_unknown_encoder_is_refused_and_an_unused_one_is_named(table, tmp_path):
    np.save("p.npy", np.full((len(table[0]), 2), 0.5))
    for where in (
        ["people.csv"],
        ["people.csv", "--model", "mlp", "--epochs", "1"],
        ["people.csv", "--probs", "p.npy"],
    ):
        with pytest.raises(
            InputError, match=r'there is no encoder "efficientnet-lite"; did you mean "efficientnet-lite0"'
        ):
            run("audit", *where, "--encoder", "efficientnet-lite")
    assert not (tmp_path / "runs").exists()
    said = run("audit", "people.csv", "--encoder", "all-MiniLM-L6-v2")
    assert "the encoder all-MiniLM-L6-v2 is not used: the columns of a table are not encoded" in said
