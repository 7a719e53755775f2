"""The loop: against a plain loop, over every method, and with each of its options."""

from __future__ import annotations

import numpy as np
import pytest
import replicas
import torch
import torch.nn.functional as F

from compensate import METHODS, InputError
from compensate.data import Dataset, Splits, batches, digits
from compensate.methods import base, logcomp
from compensate.training import Config, evaluate, fit, load_config, load_model, make_model, predict, prepare_run
from compensate.training.checkpoint import load_weights
from compensate.training.step import Learner, rate


def small(**changes) -> Config:
    given = {"limit": 300, "epochs": 2, "batch_size": 32, "model": "mlp", "model_options": {"hidden": [16]}}
    return Config(data="digits", **{**given, **changes})


def test_fit_is_the_plain_loop():
    config = small(method="logcomp", noise="pair:0.3", optimizer="adam", lr=0.01, schedule="cosine")
    result = fit(config)
    parts = prepare_run(config)
    model = make_model(parts)
    criterion = logcomp(num_samples=parts.train.rows, num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    total, step = 2 * -(-len(parts.train) // 32), 0
    for epoch in range(2):
        for x, y, i in batches(parts.train, 32, seed=0, epoch=epoch):
            optimizer.param_groups[0]["lr"] = rate(0.01, step, total, schedule="cosine")
            optimizer.zero_grad()
            criterion(model(x), y, i).backward()
            optimizer.step()
            step += 1
        criterion.end_epoch()
    for ours, theirs in zip(result.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    table, other = next(result.criterion.tables()).weight, next(criterion.tables()).weight
    assert torch.allclose(table, other, atol=1e-6)
    assert table.abs().sum() > 1


def test_one_seed_gives_one_result_and_leaves_other_random_numbers_alone():
    config = small(model_options={"hidden": [16], "dropout": 0.5})
    before = torch.get_rng_state()
    first = fit(config)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert fit(config).history == first.history
    assert fit(config.replace(seed=1)).history != first.history


def test_rows_without_a_label_and_imbalance():
    data = digits()
    target = data.target.copy()
    target[:100] = -1
    parts = prepare_run(small(limit=None, validation=0.0), Splits(data.relabel(target), data))
    assert len(parts.train) == len(data) - 100
    thin = prepare_run(small(limit=None, validation=0.0, imbalance="step:10"), Splits(data, data)).train.class_counts
    assert thin[0] == 10 * thin[9] or thin[0] // 10 == thin[9]
    with pytest.raises(InputError, match="exponential:100"):
        prepare_run(small(imbalance="step"))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_resumes_exactly(method, tmp_path):
    """Stopped in the middle of an epoch and resumed, the run ends where the one that was not stopped ends."""
    losses, whole = replicas.train(method)
    first, nothing = replicas.train(method, tmp_path / "run", stop=replicas.STOP + 1)
    assert nothing is None
    rest, resumed = replicas.train(method, tmp_path / "run")
    assert losses == first[: replicas.STOP] + rest
    expected, found = replicas.tensors([], whole), replicas.tensors([], resumed)
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_accumulated_batches_are_one_large_batch():
    data = Splits(digits().subset(np.arange(100)), digits().subset(np.arange(100, 200)))
    common = small(limit=None, validation=0.0, optimizer="sgd", lr=0.1, epochs=1, schedule="constant")
    # 100 samples: two batches of 50 against two each of 25, and one of 100 against 40, 40 and 20 with the mean of all.
    for size, part, accumulate in ((50, 25, 2), (100, 40, 3)):
        one = fit(common.replace(batch_size=size), data=data)
        several = fit(common.replace(batch_size=part, accumulate=accumulate), data=data)
        for a, b in zip(one.model.parameters(), several.model.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_clipping_bounds_the_step():
    start = list(make_model(prepare_run(small())).parameters())
    done = fit(small(optimizer="sgd", lr=1.0, momentum=0.0, weight_decay=0.0, clip=0.01, epochs=1, batch_size=10**6))
    moved = torch.cat([(a - b).flatten() for a, b in zip(start, done.model.parameters(), strict=True)])
    assert float(moved.norm().detach()) == pytest.approx(0.01, rel=1e-3)


def test_averaged_weights_are_evaluated_and_resumed(tmp_path):
    config, folder, steps = small(epochs=2, average=0.9), tmp_path / "run", []

    def stop(s):
        steps.append(s)
        if len(steps) == 4:
            raise KeyboardInterrupt

    result = fit(config)
    plain = fit(config.replace(average=None))
    assert plain.history[0]["train_loss"] == result.history[0]["train_loss"]  # the trained weights are the same
    assert plain.last["test_loss"] != result.last["test_loss"]
    with pytest.raises(KeyboardInterrupt):
        fit(config, folder=folder, every=1, on_step=stop)
    resumed = fit(config, folder=folder, resume=True)
    assert resumed.history == result.history
    for a, b in zip(resumed.model.parameters(), result.model.parameters(), strict=True):
        assert torch.equal(a, b)
    stored = load_weights(folder / "model.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in result.model.state_dict().items())


def test_the_mean_of_the_weights_follows_each_step_and_leaves_constants():
    model = torch.nn.Linear(3, 2)
    constants = {"order": torch.arange(64), "mask": torch.full((2,), -torch.inf)}
    for name, value in constants.items():
        model.register_buffer(name, value.clone())
    learner = Learner(model, base(), lambda p: torch.optim.SGD(p, 0.5), average=0.8)
    mean = None
    for _ in range(6):
        learner.step(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), torch.arange(4), lr=0.5)
        now = model.weight.detach().clone()
        mean = now if mean is None else 0.8 * mean + 0.2 * now
    assert torch.allclose(learner.averaged.weight, mean, atol=1e-6)
    assert not torch.allclose(model.weight, mean, atol=1e-3)
    assert all(torch.equal(learner.averaged.get_buffer(name), value) for name, value in constants.items())


def test_mixed_precision_trains_in_bfloat16_and_back():
    seen = []
    for precision in ("bf16", "no"):
        result = fit(small(precision=precision, epochs=5, lr=0.02), on_step=lambda s: seen.append(s.u.dtype))
        assert result.last["test_accuracy"] > 0.5
    assert seen == [torch.bfloat16] * (len(seen) // 2) + [torch.float32] * (len(seen) // 2)


def test_early_stopping_waits_for_patience_and_best_is_kept(tmp_path):
    config = small(lr=0.0, epochs=9, patience=2)
    result = fit(config, folder=tmp_path / "run")
    assert len(result.history) == 3  # nothing changes after the first epoch, so two more are waited for
    assert result.best is result.history[0]
    assert result.selected_on == "validation"
    steps = []
    again = fit(config, folder=tmp_path / "run", resume=True, on_step=steps.append)
    assert not steps  # a run that stopped early stays so
    assert again.history == result.history


def test_best_epoch_is_chosen_on_validation_and_its_weights_are_stored(tmp_path):
    config = small(epochs=8, noise="pair:0.3", lr=0.02)
    result = fit(config, folder=tmp_path)
    accuracies = [row["val_accuracy"] for row in result.history]
    assert result.best["val_accuracy"] == max(accuracies)
    best = load_model(tmp_path, result.prepared, best=True)
    assert evaluate(best, result.prepared.validation)["accuracy"] == max(accuracies)
    last = load_model(tmp_path, result.prepared)
    assert evaluate(last, result.prepared.test)["accuracy"] == result.last["test_accuracy"]
    assert load_config(tmp_path) == config


def test_evaluation_meets_a_naive_loop():
    data = digits().subset(np.arange(300))
    model = make_model(prepare_run(small()))
    x, y = torch.from_numpy(data.x).float(), torch.from_numpy(data.target)
    model.eval()
    with torch.no_grad():
        right = sum(int(model(x[i : i + 1]).argmax()) == int(y[i]) for i in range(300))
        loss = float(F.cross_entropy(model(x), y))
        logits = model(x)
    found = evaluate(model, data)
    assert found["accuracy"] == pytest.approx(right / 300)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert torch.allclose(predict(model, data), logits, atol=1e-5)


@pytest.mark.parametrize("method", ["base", "mixcomp", "universal_at", "isda"])
def test_texts_are_encoded_and_learned(method):
    hyper = {"eta": 0.5, "eps2": 0.01, "pro": 5.0, "steps": 2} if method == "mixcomp" else {}
    options = {"hidden": 8, "size": 8}
    config = Config(data="texts", method=method, hyper=hyper, model_options=options, epochs=4, lr=0.03, batch_size=16)
    result = fit(config, data=replicas.texts())
    assert result.config.model == "bilstm"
    assert result.last["test_accuracy"] > 0.9


def test_a_folder_holds_one_run(tmp_path):
    fit(small(epochs=1), folder=tmp_path)
    with pytest.raises(InputError, match="holds this run already"):
        fit(small(epochs=1), folder=tmp_path)
    with pytest.raises(InputError, match="differs in seed"):
        fit(small(epochs=1, seed=4), folder=tmp_path, resume=True)
    before = (tmp_path / "result.json").read_bytes()
    again = fit(small(epochs=1), folder=tmp_path, resume=True)
    assert len(again.history) == 1
    assert (tmp_path / "result.json").read_bytes() == before


def test_a_teacher_is_a_finished_run_or_a_file(tmp_path):
    first = fit(small(epochs=6), folder=tmp_path / "teacher")
    student = small(method="distillation", teacher=str(tmp_path / "teacher"), epochs=1)
    by_run = fit(student)
    rows = np.zeros((first.prepared.train.rows, 10), dtype=np.float32)
    rows[first.prepared.train.index] = predict(first.model, first.prepared.train).numpy()
    np.save(tmp_path / "t.npy", rows)
    by_file = fit(student.replace(teacher=str(tmp_path / "t.npy")))
    assert by_run.last == pytest.approx(by_file.last)
    with pytest.raises(InputError, match="learns from a teacher"):
        fit(small(method="distillation"))
    with pytest.raises(InputError, match="neither"):
        fit(small(method="distillation", teacher="nowhere"))
    np.save(tmp_path / "t.npy", rows[:5])
    with pytest.raises(InputError, match="shape"):
        fit(student.replace(teacher=str(tmp_path / "t.npy")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "logcomp", "hyper": {"lm": 1}}, 'did you mean "lam"'),
        ({"model_options": {"hiden": [3]}}, "cannot take these options"),
        ({"method": "meta_weight", "clean": 0.0}, "learns from clean data"),
        ({"model": "bilstm"}, "token ids"),
        ({"model": "resnet21"}, 'unknown model "resnet21"; did you mean'),
        ({"model": "convolutional"}, 'unknown model "convolutional"'),
        ({"test": 0.5, "validation": 0.9, "clean": 0.9, "limit": 10}, "left to train on|batch"),
    ],
)
def test_what_cannot_be_trained_says_why(changes, said):
    with pytest.raises(InputError, match=said):
        fit(small(**changes))


def test_quantities_are_not_classes():
    data = Dataset(np.random.default_rng(0).random((20, 3)), np.random.default_rng(1).random(20), ())
    with pytest.raises(InputError, match="quantity"):
        fit(Config(), data=data)
