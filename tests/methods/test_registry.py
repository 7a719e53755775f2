"""Laws over all methods: names, state, weights, reductions, ignored samples, edges."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from compensate import METHODS, Compensated, InputError, meta_step
from compensate.cli.methods import measured_change
from compensate.core.criterion import PATIENCE
from compensate.methods import find
from compensate.methods.label import local_dimensionality
from compensate.terms import Category, Corpus, Evidence, Ramp, Sample, Strength
from tiny import TinyNet

# Registry
SIZES = {"num_samples": 40, "num_classes": 3, "class_counts": [20, 12, 8], "feature_dim": 6, "feature_shape": (4,)}


def test_names_may_be_written_with_hyphens_and_misspelling_gets_a_hint():
    assert find("LogComp").name == "logcomp"
    with pytest.raises(InputError, match='did you mean "logcomp"'):
        find("logcmp")


def test_a_misspelt_argument_of_any_method_is_named_with_the_nearest_one():
    for name, row in METHODS.items():
        with pytest.raises(InputError, match=f'{name} has no argument "weigth"; did you mean "weight"'):
            row.build(weigth=[1.0])


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("logcomp", {"lam": "abc"}, 'lam is "abc"; expected a number, such as 0.5'),
        ("logcomp", {"lr": ""}, 'lr is ""; expected a number'),
        ("mixcomp", {"pro": "abc"}, 'pro is "abc"; expected a number, such as 35.0'),
        ("elr", {"beta": "0.7"}, 'beta is "0.7"; expected a number, such as 0.7'),
        ("gce", {"q": "a"}, 'q is "a"; expected a number'),
        ("sop", {"lr_u": "a"}, 'lr_u is "a"; expected a number'),
        ("logcomp", {"num_samples": 512.0}, "num_samples is 512.0; expected a whole number, such as 512"),
    ],
)
def test_a_text_in_place_of_a_number_is_named(name, given, said):
    with pytest.raises(InputError, match=said):
        METHODS[name].make(**{**SIZES, **given})


@pytest.mark.parametrize("name", [*METHODS, "logit.positive.regularized.sample"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_samples": TensorDataset(torch.zeros(9))}, "num_samples is a TensorDataset; expected a whole number, such as len(dataset)."),
        ({"num_samples": torch.zeros(9, dtype=torch.long)}, "num_samples is a Tensor; expected a whole number, such as len(dataset)."),
        ({"num_samples": True}, "num_samples is True; expected a whole number, such as len(dataset)."),
        ({"num_samples": 0}, "num_samples is 0; expected 1 or more samples."),
        ({"num_classes": ["cat", "dog"]}, "num_classes is a list; expected a whole number, such as 10."),
        ({"num_classes": 1}, "num_classes is 1; expected 2 or more classes."),
    ],
)  # fmt: skip
def test_something_else_in_place_of_a_size_is_named(name, given, said):
    row = find(name)
    wanted = inspect.signature(row.build).parameters
    if given.keys() <= wanted.keys():
        right = {key: value for key, value in SIZES.items() if key in wanted}
        with pytest.raises(InputError, match=re.escape(said)):
            row.build(**{**row.example(SIZES), **right, **given})


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Strength([3], 2), "num_samples is a list; expected a whole number, such as len(dataset)."),
        (lambda: Strength(500, 2.5), "num_classes is 2.5; expected a whole number, such as 2."),
        (lambda: Sample([5], 3), "num_samples is a list; expected a whole number, such as len(dataset)."),
        (lambda: Sample(5.5, 3), "num_samples is 5.5; expected a whole number, such as 6."),
        (lambda: Sample(0, 3), "num_samples is 0; expected 1 or more samples."),
        (lambda: Sample(5, (3,)), "a size of Sample is a tuple; expected a whole number, such as 10."),
        (lambda: Sample(5, True), "a size of Sample is True; expected a whole number, such as 10."),
        (lambda: Category("cat", 2), "a size of Category is a str; expected a whole number, such as 10."),
        (lambda: Corpus(3, 0), "Corpus(1, 3, 0): all sizes must be positive."),
        (lambda: Evidence(True), "num_samples is True; expected a whole number, such as len(dataset)."),
    ],
)
def test_something_else_in_place_of_the_size_of_a_part_is_named(build, said):
    with pytest.raises(InputError, match=re.escape(said)):
        build()


def test_one_label_is_enough_where_each_class_is_a_label():
    criterion = METHODS["robust"].build(num_samples=400, num_classes=1, base="bce")
    assert criterion(torch.zeros(3, 1), torch.ones(3, 1), torch.arange(3)).isfinite()
    with pytest.raises(InputError, match="num_classes is 0; expected 1 or more classes"):
        METHODS["robust"].build(num_samples=400, num_classes=0, base="bce")


def test_a_size_may_be_any_whole_number():
    for classes in (torch.tensor(4), np.int64(4), np.array(4)):
        criterion = METHODS["robust"].build(num_samples=torch.tensor(400), num_classes=classes)
        assert criterion.record.num_samples == 400


@pytest.mark.parametrize("name", METHODS)
def test_taxonomy_row_is_what_the_composition_says(name):
    row = METHODS[name]
    assert row.make(**SIZES).taxonomy == row.taxonomy


@pytest.mark.parametrize("name", METHODS)
def test_state_survives_copies_pickles_and_state_dicts(name):
    torch.manual_seed(1)
    criterion, model = METHODS[name].make(**SIZES), TinyNet(classes=3 + METHODS[name].extra_outputs)
    x, y, i = torch.randn(8, 4), torch.randint(3, (8,)), torch.randperm(40)[:8]
    criterion.start(10)
    for _ in range(3):
        criterion.evaluate(model, x, y, i).loss.backward()
    criterion.end_epoch()
    loaded = METHODS[name].make(**SIZES)
    loaded.load_state_dict(criterion.state_dict())
    others = {
        "state_dict": loaded,
        "deepcopy": copy.deepcopy(criterion),
        "pickle": pickle.loads(pickle.dumps(criterion)),
    }

    def loss(one):
        torch.manual_seed(2)
        return one.evaluate(copy.deepcopy(model), x, y, i).loss

    expected = loss(criterion)
    for how, other in others.items():
        assert torch.equal(loss(other), expected), how
        for (key, a), b in zip(criterion.state_dict().items(), other.state_dict().values(), strict=True):
            assert torch.equal(a, b), (how, key)


def _after_a_step(name, **sizes):
    criterion = METHODS[name].make(**{**SIZES, **sizes}).start(10)
    model = TinyNet(classes=3 + METHODS[name].extra_outputs)
    criterion.evaluate(model, torch.randn(8, 4), torch.arange(8) % 3, torch.arange(8)).loss.backward()
    return criterion


def _assert_refused(criterion, state, said):
    """On its own and as a part of a module, and nothing has been loaded."""
    before = copy.deepcopy(criterion.state_dict())
    within = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "criterion": criterion})
    whole = within.state_dict() | {f"criterion.{key}": value for key, value in state.items()}
    for module, given in ((criterion, state), (within, whole)):
        with pytest.raises(InputError, match=said):
            module.load_state_dict(given)
        for key, value in criterion.state_dict().items():
            assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", METHODS)
def test_a_state_of_another_number_of_samples_is_refused_by_what_keeps_samples(name):
    trained, other = _after_a_step(name), METHODS[name].make(**{**SIZES, "num_samples": 50})
    keeps = {key for key, value in trained.state_dict().items() if value.ndim and len(value) == 40}
    assert keeps or trained.record is None
    if keeps:
        _assert_refused(other, trained.state_dict(), r"\(40,.*\(50,.*num_samples")
    else:
        other.load_state_dict(trained.state_dict())


@pytest.mark.parametrize("name", METHODS)
def test_a_state_with_nan_is_refused(name):
    state = _after_a_step(name).state_dict()
    for key, value in state.items():
        if value.is_floating_point() and value.numel():
            broken = {**state, key: value.clone()}
            broken[key].view(-1)[-1] = torch.nan
            _assert_refused(METHODS[name].make(**SIZES), broken, f"{key}.* NaN")


def test_a_state_with_nan_in_a_sparse_table_is_refused():
    build = functools.partial(METHODS["logcomp"].build, num_samples=40, num_classes=3, table="sparse")
    criterion = build()
    criterion(torch.randn(8, 3, requires_grad=True), torch.arange(8) % 3, torch.arange(8))
    state = criterion.state_dict()
    (values,) = (key for key in state if key.endswith("values"))
    state[values][0] = torch.nan
    _assert_refused(build(), state, "values.* NaN")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_measured_direction_agrees_with_the_taxonomy(name):
    row = METHODS[name]
    change = measured_change(row)
    # A method of mixed direction may have one direction on a single batch.
    assert change.direction == "none" or row.taxonomy.direction in ("mixed", change.direction), str(change)
    # D2L waits for the dimensionality of its features to turn, and the floor under the loss for a loss below it: neither
    # comes in a short training. Their own tests measure them.
    assert (change.direction == "none") == (name in ("base", "d2l", "loss_bound"))


WEIGHTS = [0.5, 2.0, 1.0]


def test_weights_of_another_number_of_classes_and_missing_inputs_are_refused():
    for name, settings, said in (
        ("base", {"weight": [1.0, 2.0]}, "one weight for each class"),
        ("proselflc", {}, "start"),
        ("distillation", {"teacher": TinyNet()}, r"criterion\.evaluate"),
        ("gated_category", {"num_classes": 4}, "the gate, has 5 classes"),
        ("arcface", {"scale": 1.0}, "CosineHead"),
    ):
        with pytest.raises(InputError, match=said):
            find(name).build(**settings)(torch.full((2, 3), 3.0), torch.tensor([0, 1]))


# the arguments that every method shares with torch's losses
def _one_step(name, target, **options):
    """Loss and gradient of a step after another one, and all that is kept then."""
    torch.manual_seed(1)
    row = METHODS[name]
    sizes = {
        key: size for key, size in SIZES.items() if key != "class_counts" or name != "metasaug"
    }  # no weights of its own
    criterion, model = row.make(**sizes, **options).start(10), TinyNet(classes=3 + row.extra_outputs)
    x, i = torch.randn(8, 4), torch.arange(8)
    for _ in range(2):
        torch.manual_seed(2)
        model.zero_grad()
        loss = criterion.evaluate(model, x, target, i).loss
        loss.sum().backward()
        criterion.end_epoch()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return {"loss": loss.detach(), "gradient": gradient, **criterion.state_dict()}


def _assert_equal_steps(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("ignored", [255, -1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_ignore_index(name, ignored):
    """Any number may mark samples without a label, one of the classes too."""
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    marked = torch.where(y == 2, ignored, y)
    _assert_equal_steps(_one_step(name, marked, ignore_index=ignored), _one_step(name, torch.where(y == 2, -100, y)))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_reduction(name):
    y = torch.tensor([0, 1, -100, 0, 1, 2, 0, 1])
    mean, total = _one_step(name, y), _one_step(name, y, reduction="sum")
    total["loss"], total["gradient"] = total["loss"] / 7, total["gradient"] / 7
    _assert_equal_steps(total, mean)
    each = _one_step(name, y, reduction="none")
    assert each["loss"].shape == (8,)
    assert each["loss"][2] == 0
    each["loss"], each["gradient"] = each["loss"].sum() / 7, each["gradient"] / 7
    _assert_equal_steps(each, mean)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_without_compensation_they_are_those_of_torch(reduction, ignored):
    u, y, w = torch.randn(6, 3), torch.arange(6) % 3, torch.tensor(WEIGHTS)
    options = {"ignore_index": ignored, "reduction": reduction, "weight": w}
    torch.testing.assert_close(METHODS["base"].build(**options)(u, y), torch.nn.CrossEntropyLoss(**options)(u, y))


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_reduction_is_refused(name):
    with pytest.raises(InputError, match='reduction is "avg"; expected "mean", "sum" or "none"'):
        METHODS[name].make(**SIZES, reduction="avg")
    with pytest.raises(InputError, match=r"ignore_index is 0\.5; expected a whole number"):
        METHODS[name].make(**SIZES, ignore_index=0.5)


# Edges


def test_dimensionality_of_half_precision_is_that_of_the_same_numbers_in_full() -> None:
    z = torch.randn(30, 4).bfloat16()
    torch.testing.assert_close(local_dimensionality(z, 5), local_dimensionality(z.float(), 5))


def test_a_criterion_that_waits_for_meta_steps_says_so_once() -> None:
    u, y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
    criterion = Compensated(logit=Category(3, 3, update="meta"))
    for _ in range(PATIENCE - 1):
        criterion(u, y)
    with pytest.warns(UserWarning, match="without one"):
        criterion(u, y)
    learned = Compensated(logit=Category(3, 3, update="meta"))
    x = torch.randn(4, 4)
    meta_step(learned, TinyNet(), (x, y), (x, y), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(PATIENCE + 1):
            learned(u, y)


ROWS, TEACHER = {"num_samples": 4, "num_classes": 3}, torch.zeros(3, 2)
REFUSED = [
    ("bootstrap_soft", {"guess": "previous_epoch"}, None), ("bootstrap_soft", {"guess": "next"}, "guess"),
    ("bootstrap_hard", {"beta": 1.2}, None), ("mix_bootstrap", {"num_classes": 3, "beta": 2.0}, "beta"),
    ("proselflc", {"sharpness": -1.0}, "sharpness"), ("d2l", {"k": 1}, "k"), ("d2l", {"window": 0}, "window"),
    ("d2l", {"patience": -1}, "patience"), ("d2l", {"guess": "best"}, "guess"), ("meta_label", {**ROWS, "per": "corpus"}, "per"),
    ("deep_self_learning", {**ROWS, "feature_dim": 2, "start": 0}, "start"),
    ("deep_self_learning", {**ROWS, "feature_dim": 2, "count": 0}, "count"),
    ("deep_self_learning", {**ROWS, "feature_dim": 2, "sampled": 0}, "sampled"),
    ("label_smoothing", {"lam": 1.5}, "lam"), ("adversarial_label_smoothing", {"kind": "worst"}, "kind"),
    ("adversarial_label_smoothing", {"kind": "boltzmann", "temperature": 0}, "temperature"),
    ("online_label_smoothing", {"num_classes": 3, "conf": "some"}, "conf"),
    ("distillation", {"teacher": torch.zeros(3)}, None), ("distillation", {"teacher": TEACHER, "form": "old"}, "form"),
    ("distillation", {"teacher": TEACHER, "temperature": 0.0}, "temperature"),
    ("guess_label", {"guess": torch.zeros(3).long()}, None), ("guess_label", {"guess": TEACHER, "lam": 1.1}, "lam"),
    ("mix_level_label", {"class_counts": [60, 20, 4], "lam": 0.7}, "lam"), ("mix_level_label", {"class_counts": [60, 20, 4], "head": 0.8}, "head"),
    ("mix_level_label", {"class_counts": [5, 0, 1]}, "no training sample"), ("ldam", {"class_counts": [9, 3, 1], "weight": [0.5, 2.0, 1.0]}, "defer=None"),
    ("base", {"weight": [[1.0, 2.0]]}, "for each class"), ("base", {"weight": torch.tensor([1, 2])}, "for each class"),
    ("meta_loss", {"num_samples": 9, "temperature": 0.0}, "temperature"), ("causal_logit", {"bound": 0}, "bound"), ("mixcomp", {"floor": -1}, "floor is -1"),
    ("self_paced_logit", {"num_classes": 3, "growth": 1.0}, "growth"), ("augmix", {"alpha": 0}, "alpha"), ("arcface", {"margin": 45.0}, "radians"),
    ("logcomp", {**ROWS, "preset": "papr"}, 'preset is "papr"'),
    ("data_ambiguation", {"alpha": 1}, "alpha"), ("data_ambiguation", {"beta": 2, "beta_end": None}, "beta"),
    ("mixcomp", {"pro": 101}, "pro"), ("mixcomp", {"pro": -1}, "pro"), ("mixcomp", {"over": "epoch"}, None),
    ("mixcomp", {"over": "run"}, "over"), ("mixcomp", {"eta": -1.0}, "eta"), ("mixcomp", {"warmup": (0.5, 0.2)}, None),
    ("mixcomp", {"eta": Ramp(0.0, 1.0), "warmup": (0.1, 0.2)}, "warmup"),
    ("lpl", {"eps": -1}, "eps"), ("lpl", {"step": 0}, "step"), ("lpl", {"by": "size"}, "by"), ("lpl", {"by": "share"}, "class_counts"),
    ("dac", {"warmup": -1}, "warmup"), ("dac", {"final": -0.1}, "final"), ("dac", {"divisor": 0.0}, "divisor"), ("dac", {"mu": 0.0}, "mu"),
    ("elr", {**ROWS, "beta": 1.0}, "beta is 1"), ("loss_bound", {"num_classes": 3, "noise_rate": 1.0}, "noise_rate"),
    ("loss_bound", {"num_classes": 3, "noise": "odd"}, "noise is"), ("loss_bound", {"num_classes": 3, "bound": -1}, "bound"),
    ("loss_bound", {"num_classes": 3, "below": "go"}, "below"), ("sce", {"alpha": -1}, "alpha"), ("sce", {"log_zero": 1}, "log_zero"),
    ("nce_mae", {"beta": -1}, "beta"), ("anl", {"floor": 0}, "floor"), ("poly_loss", {"epsilon": -2}, "epsilon"),
    ("logit_clip", {"tau": 0}, "tau"), ("focal", {"gamma": -1.0}, "gamma"), ("focal", {"per": "corpus"}, "per"),
    ("focal", {"per": "category"}, None), ("gce", {"q": 0.0}, "q"), ("gce", {"q": 1.5}, "q"), ("gce", {"k": 1.0}, "k"),
    ("epsilon_softmax", {"m": -1}, "m is"), ("epsilon_softmax", {"alpha": -1}, "alpha"), ("epsilon_softmax", {"floor": 1}, "floor"),
    ("sop", {**ROWS, "lr_u": 0.0}, "lr_u"), ("sop", {**ROWS, "lr_v": -1.0}, "lr_v"), ("sop", {**ROWS, "spread": 0.0}, "spread"),
    ("sop", {**ROWS, "floor": 1.0}, "floor"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "said"), REFUSED)
def test_settings_that_make_no_sense_are_refused(name, settings, said):
    with pytest.raises(InputError, match=said):
        find(name).build(**settings)
