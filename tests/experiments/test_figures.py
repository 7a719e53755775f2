"""The paper's figures: what is drawn is what was measured."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from compensate.core.tables import Sample
from compensate.core.taxonomy import TARGETS
from compensate.data import Dataset, load
from compensate.errors import InputError
from compensate.methods import METHODS, logit_adjustment
from experiments.__main__ import app
from experiments.figures import FIGURES, Request, curves, draw, find_figure, trained, tree
from experiments.figures import request as asked
from experiments.figures.pages import figures_page, figures_section

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(*arguments: str, fails: bool = False) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    if isinstance(done.exception, InputError):
        assert fails, done.exception
        return str(done.exception)
    assert (done.exit_code != 0) == fails, (done.output, done.exception)
    return done.output


# --- the tree -------------------------------------------------------------------------------------------------


def leaves(branch, path=()):
    if branch.method is not None:
        yield branch.method, path
    for child in branch.children:
        yield from leaves(child, (*path, child.name))


def test_tree_has_all_targets_and_each_method_once_at_its_place():
    root = tree.grown()
    assert [branch.name for branch in root.children][: len(TARGETS)] == list(TARGETS)
    found = list(leaves(root))
    assert Counter(row.name for row, _ in found) == dict.fromkeys(METHODS, 1)
    for row, path in found:
        if row.kind != "compensation":
            assert path[:2] == (tree.OTHER, row.kind)
        else:
            target, _, inference, granularity = row.taxonomy
            assert path[:3] == (tree.MIXED if "+" in target else target, inference, granularity)


def test_drawn_tree_writes_every_name_once_and_nothing_over_another():
    figure = tree.taxonomy(Request())
    ax = figure.axes[0]
    written = Counter(text.get_text() for text in ax.texts)
    assert all(written[name.replace("_", "-")] == 1 for name in METHODS)
    assert all(written[target] == 1 for target in TARGETS)
    assert Counter(written)["+"] == sum(
        row.taxonomy.direction == "positive" and row.kind == "compensation" for row in METHODS.values()
    )
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts if text.get_text().strip()]
    page = figure.bbox
    for i, one in enumerate(boxes):
        assert page.x0 <= one.x0 <= one.x1 <= page.x1, "a name leaves the page"
        for other in boxes[i + 1 :]:
            over = min(one.x1, other.x1) - max(one.x0, other.x0), min(one.y1, other.y1) - max(one.y0, other.y0)
            assert min(over) < 2, "two names lie over each other"


# --- trained ones ---------------------------------------------------------------------------------------------


def test_change_of_undecided_logits_is_that_of_the_class_sizes():
    counts = np.array([80, 15, 5])
    target = np.repeat(np.arange(3), counts)
    train = Dataset(np.zeros((100, 4), np.float32), target, ("a", "b", "c"))
    model = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(model.bias)
    result = SimpleNamespace(
        model=model, criterion=logit_adjustment(class_counts=counts), prepared=SimpleNamespace(train=train)
    )
    expected = [(-math.log(share) - math.log(3)) / math.log(3) for share in (0.8, 0.15, 0.05)]
    assert trained.changes(result).tolist() == pytest.approx(expected, abs=1e-5)
    assert expected[0] < 0 < expected[1] < expected[2]


def test_logit_adjustment_lowers_the_head_and_raises_the_tail_of_digits():
    figure = trained.logit_adjustment(Request("digits", options={"epochs": 3}))
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    labels = [tick.get_text().split("\n") for tick in figure.axes[0].get_xticklabels()]
    sizes = [int(size) for _, size in labels]
    assert sizes == sorted(sizes, reverse=True)
    assert max(heights[:3]) < -0.2
    assert min(heights[-3:]) > 0.2


@pytest.fixture(scope="module")
def noisy(tmp_path_factory) -> Request:
    """Digits with wrong labels; both figures of compensation read the same finished run."""
    torch.set_num_threads(1)
    options = {"epochs": 20, "limit": 500, "noise": "random:0.2"}
    return Request("digits", options=options, runs=tmp_path_factory.mktemp("runs"))


def test_wrong_labels_take_more_compensation_than_right_ones(noisy):
    figure = trained.distribution(noisy)
    result = noisy.train(trained._logcomp(noisy, "none"))
    table = next(m for m in result.criterion.modules() if isinstance(m, Sample))
    sizes, wrong = table.weight[result.prepared.train.index].abs().sum(1).numpy(), result.prepared.wrong
    assert 0.1 < wrong.mean() < 0.25
    assert np.median(sizes[wrong]) > 3 * np.median(sizes[~wrong])
    right, mistaken = figure.axes[0].get_legend().get_texts()
    assert f"{(~wrong).sum()}, median {np.median(sizes[~wrong]):.2f}" in right.get_text()
    assert f"{wrong.sum()}, median {np.median(sizes[wrong]):.2f}" in mistaken.get_text()
    drawn = sum(bar.get_height() for bars in figure.axes[0].containers for bar in bars)
    assert drawn == len(sizes), "every sample is in one bar"
    assert len(list(noisy.runs.iterdir())) == 1, "the run was read again, not trained again"


def test_sheet_shows_the_samples_with_the_largest_compensation(noisy):
    figure = trained.samples(noisy)
    result = noisy.train(trained._logcomp(noisy, "none"))
    train, sizes = result.prepared.train, trained.mean_sizes(result)
    order = np.argsort(-sizes, kind="stable")
    assert len(figure.axes) == trained.ROWS * trained.COLUMNS
    for ax, row in zip(figure.axes, order, strict=False):
        given, suggested = ax.get_title().split(" → ")
        assert given == train.classes[train.target[row]] != suggested
        assert np.allclose(ax.images[0].get_array(), train.x[row, 0])
        assert float(ax.get_xlabel()) == pytest.approx(sizes[row], abs=0.051)
    assert result.prepared.wrong[order[: len(figure.axes)]].mean() > 0.8


def test_the_figure_of_the_strength_is_a_mean_over_seeds(monkeypatch, tmp_path):
    monkeypatch.setattr(trained, "STRENGTHS", (0.05, 0.5))
    monkeypatch.setattr(trained, "SEEDS", 2)
    request = Request("digits", options={"epochs": 16, "limit": 300, "seed": 5}, runs=tmp_path)
    clean, noisy = trained.strengths(request, "none"), trained.strengths(request, "random:0.2")
    assert clean.found is None
    assert noisy.share.shape == noisy.gain.shape == noisy.found.shape == (2, 2)
    assert clean.epochs.shape == (2, 2, 16)
    assert (clean.epochs[:, 0] >= clean.epochs[:, 1]).all(), (
        "a smaller penalty compensates more samples, in every epoch"
    )
    assert (clean.epochs[:, 0, -1] > clean.epochs[:, 1, -1] + 10).all()
    assert (noisy.share[:, 0] > noisy.share[:, 1]).all()
    assert len(list(tmp_path.iterdir())) == 2 * 2 * 3, (
        "two kinds of labels, two seeds; plain training and two strengths"
    )
    base = request.train(request.config(method="base", noise="random:0.2", seed=5))
    ours = request.train(request.config(method="logcomp", noise="random:0.2", seed=5, hyper={"lam": 0.5}))
    assert noisy.gain[0, 1] == pytest.approx(100 * (ours.last["test_accuracy"] - base.last["test_accuracy"]))
    young, share, accuracy, found = trained.strength(request).axes
    assert np.allclose(young.get_lines()[0].get_ydata(), clean.epochs[:, 0].mean(0))
    for ax, each in ((share, noisy.share), (accuracy, noisy.gain), (found, noisy.found)):
        assert np.allclose(ax.containers[-1].lines[0].get_ydata(), each.mean(0))


def test_encoded_data_are_read_once(monkeypatch):
    read = []
    digits = load("digits")
    monkeypatch.setattr(asked, "load", lambda *given: read.append(given) or digits)
    monkeypatch.setattr(
        asked, "encode_data", lambda data, name: SimpleNamespace(values=data.x.reshape(len(data), -1) + len(name))
    )
    asked._named_features.cache_clear()
    request = Request("digits", encoder="made up")
    first, again = request.encoded("digits"), request.encoded("digits")
    assert first is again
    assert np.allclose(first.train.x, digits.train.x.reshape(len(digits.train), -1) + 7)
    assert not np.allclose(Request("digits", encoder="other").encoded("digits").train.x, first.train.x)
    assert len(read) == 2, "once for each encoder"
    asked._named_features.cache_clear()


@pytest.mark.parametrize("method", ["base", "label_smoothing"])
def test_a_training_without_logit_compensation_is_refused(method):
    request = Request("digits", options={"method": method, "epochs": 1, "limit": 100})
    with pytest.raises(InputError, match="leave the method as it is"):
        trained.distribution(request)


# --- curves ---------------------------------------------------------------------------------------------------


def record(number, method, noise, seed, curve, hyper=None):
    config = {"method": method, "noise": noise, "seed": seed, "model": "bilstm", "hyper": hyper or {}}
    return {"id": str(number), "config": config, "curves": {"val_accuracy": curve}}


def store(folder, records, chosen=None):
    lines = "".join(json.dumps(r) + "\n" for r in records)
    (folder / "imdb-small.jsonl").write_text(lines)
    if chosen is not None:
        (folder / "imdb-small-chosen.json").write_text(json.dumps({"logcomp": {"chosen": chosen, "trials": []}}))


def test_validation_shows_the_mean_of_the_first_six_epochs_of_the_chosen_runs(tmp_path):
    long = [0.5, 0.6, 0.7, 0.7, 0.6, 0.6, 0.9, 0.9]
    other = [0.1] * 8
    store(
        tmp_path,
        [
            record(1, "base", "first:0.2", 0, long),
            record(2, "base", "first:0.2", 1, [0.7] * 8),
            record(3, "base", "none", 0, [0.8] * 8),
            record(4, "logcomp", "none", 0, [0.9] * 8, {"lam": 0.1}),
            record(5, "logcomp", "first:0.2", 0, long, {"lam": 0.1}),
            *(record(6 + seed, "logcomp", "none", seed, other, {"lam": 0.9}) for seed in range(5)),
        ],
        chosen={"lam": 0.1},
    )
    left, right = curves.validation(Request("imdb", results=tmp_path)).axes
    drawn = {line.get_label(): line.get_ydata() for line in left.get_lines()}
    assert list(drawn) == ["none", "first 20 %"]
    assert drawn["first 20 %"] == pytest.approx([60, 65, 70, 70, 65, 65])
    ours = {line.get_label(): line.get_ydata() for line in right.get_lines()}
    assert ours["none"] == pytest.approx([90] * 6), "runs with hyper-parameters that were not chosen are left out"
    assert [left.get_title(), right.get_title()] == ["base", "LogComp"]


def test_validation_without_runs_says_which_command_makes_them(tmp_path):
    with pytest.raises(
        InputError, match="python -m experiments reproduce table-8-imdb --scale small --only base,logcomp"
    ):
        curves.validation(Request("imdb", results=tmp_path))
    store(tmp_path, [record(1, "base", "none", 0, [0.5]), record(2, "logcomp", "first:0.2", 0, [0.5])])
    with pytest.raises(InputError, match="both base and logcomp"):
        curves.validation(Request("imdb", results=tmp_path))
    with pytest.raises(InputError, match="no table of digits"):
        curves.validation(Request("digits", results=tmp_path))


def test_ratio_is_one_below_the_threshold_and_that_of_a_loop_above():
    torch.manual_seed(1)
    u, y = 3 * torch.randn(40, 4).double(), torch.randint(4, (40,))
    losses, left = curves._ratio(u, y, 1.2, 2.0)
    for i in range(40):
        p = torch.exp(u[i]) / torch.exp(u[i]).sum()
        loss = -math.log(p[y[i]])
        assert losses[i].item() == pytest.approx(loss)
        v = [2.0 * (float(c == y[i]) - p[c].item()) if loss >= 1.2 else 0.0 for c in range(4)]
        moved = [math.exp(u[i, c].item() + v[c]) for c in range(4)]
        assert left[i].item() == pytest.approx(-math.log(moved[y[i]] / sum(moved)) / loss, rel=1e-5)
    assert (left[losses >= 1.2] < 1).all()


def test_ratio_on_digits_falls_at_the_threshold():
    ax = curves.self_paced_ratio(Request("digits", options={"epochs": 3, "limit": 400})).axes[0]
    strong, weak = (line.get_xydata() for line in ax.get_lines()[:2])
    hard = strong[:, 0] >= math.log(10)
    assert 0.02 < hard.mean() < 0.5
    assert np.allclose(strong[~hard, 1], 1)
    assert strong[hard, 1].max() < weak[hard, 1].max() < 1


def test_weights_are_drawn_apart_from_the_ratio():
    lines = curves.self_paced_weights(Request()).axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["hard", "linear", "logarithmic", "mixture"]
    assert np.interp(0.3, *lines[1].get_data()) == pytest.approx(0.5, abs=0.01)


# --- files, pages, the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "head"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_files_of_three_kinds(tmp_path, suffix, head):
    path = draw("self-paced-weights", tmp_path / "deep" / f"weights{suffix}")
    assert path.read_bytes().startswith(head)


def test_command_lists_and_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = run("figure")
    assert all(f"{name} " in listed and row.summary in listed for name, row in FIGURES.items())
    assert "drawn:  figure-self-paced-weights.png" in run("figure", "self_paced_weights")
    asked = ["distribution", "--set", "limit=120", "--set", "epochs=2", "--seed", "3", "--noise", "none", "-o", "v.svg"]
    assert "v.svg" in run("figure", *asked)
    (folder,) = (tmp_path / "runs" / "figures").iterdir()
    config = json.loads((folder / "config.json").read_text())["config"]
    assert (config["seed"], config["limit"], config["noise"], config["method"]) == (3, 120, "none", "logcomp")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["taxonmy"], 'did you mean "taxonomy"'),
        (["taxonomy", "-o", "tree.jpg"], "expected .png, .pdf or .svg"),
        (["taxonomy", "--data", "digits"], "leave out --data"),
        (["distribution", "--set", "epoch=3"], 'did you mean "epochs"'),
        (["samples", "--data", "nowhere"], "no data set has the name"),
        (["validation", "--results", "nowhere"], "python -m experiments reproduce table-8-imdb"),
    ],
)
def test_mistakes_say_what_to_do(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in run("figure", *arguments, fails=True)
    assert not list(tmp_path.glob("*.png"))


def test_page_has_a_picture_and_a_command_for_each_figure(tmp_path):
    (tmp_path / "figure-samples.png").touch()
    (tmp_path / "figure-samples-cifar10.png").touch()
    (tmp_path / "figure-distribution-cifar10-none.png").touch()
    text = "\n".join(figures_section(tmp_path))
    assert all(f"`python -m experiments figure {name}`" in text for name in FIGURES)
    assert text.count("![") == 3
    assert "python -m experiments figure distribution --data cifar10 --noise none" in text
    assert "python -m experiments figure samples --data cifar10" in text


def test_pictures_of_other_data_come_in_the_order_of_their_captions(tmp_path):
    for name in ("cifar10-none", "cifar10_auto-none", "unknown"):
        (tmp_path / f"figure-distribution-{name}.png").touch()
    text = "\n".join(figures_section(tmp_path))
    places = [
        text.index(f"figure-distribution-{name}.png") for name in ("cifar10_auto-none", "cifar10-none", "unknown")
    ]
    assert places == sorted(places), "the caption of the small network says what differs from the one before"


def test_stored_page_and_pictures_are_up_to_date():
    page = (ROOT / "docs" / "figures.md").read_text()
    assert figures_page(ROOT / "results", ROOT / "docs" / "img") == page, "run `make docs`"
    for picture in (ROOT / "docs" / "img").glob("figure-*.png"):
        assert f"(img/{picture.name})" in page
        assert picture.stat().st_size < 250_000


def test_names_are_found_in_any_spelling():
    assert find_figure("Logit_Adjustment") is FIGURES["logit-adjustment"]
