"""Numbered data sets, the check of the index, repeated samples and stored tables, without a framework."""

from __future__ import annotations

import copy
import pickle
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from compensate import Compensated, InputError, methods
from compensate.integrations import CriterionHooks, check_optimizers, repeated
from compensate.integrations.accelerate import prepare
from compensate.integrations.transformers import add_index
from compensate.terms import Sample


# Criterion hooks
def criterion(n=12):
    return methods.logcomp(num_samples=n, num_classes=3)


def visit(made, index, target):
    index, target = torch.as_tensor(index), torch.as_tensor(target)
    return made(torch.randn(len(index), 3), target, index)


def test_the_place_in_the_batch_is_no_index_and_rows_do_not_move_under_it():
    made = CriterionHooks(criterion()).criterion
    visit(made, range(4), [0, 1, 2, 0])
    before = copy.deepcopy(made.state_dict())
    with pytest.raises(InputError, match="index 1 came with label 1 before and comes with label 2 now"):
        visit(made, range(4), [0, 2, 1, 0])
    after = made.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_labels_that_change_on_purpose_and_distributions():
    made = CriterionHooks(criterion(), fixed_labels=False).criterion
    visit(made, [0], [0]), visit(made, [0], [1])
    made = CriterionHooks(criterion()).criterion
    for share in (0.2, 0.7):
        made(torch.randn(1, 3), torch.tensor([[share, 1 - share, 0.0]]), torch.tensor([0]))
    assert int(made.step) == 2


def test_few_indices_for_many_samples_are_told_of_once_an_epoch():
    made = CriterionHooks(criterion(40)).criterion
    for _ in range(8):
        visit(made, range(4), [0, 1, 2, 0])  # labels agree by chance
    with pytest.warns(UserWarning, match="32 samples came under only 4 different indices"):
        made.end_epoch()
    for k in range(8):
        visit(made, range(4 * k, 4 * k + 4), [r % 3 if r > 3 else [0, 1, 2, 0][r] for r in range(4 * k, 4 * k + 4)])
    made.end_epoch()  # warnings are errors here


def test_a_forgotten_end_of_epoch_is_told_of():
    made = CriterionHooks(criterion(4)).criterion
    for _ in range(6):
        visit(made, [0], [0])
    with pytest.warns(UserWarning, match="has not been called"):
        visit(made, [0], [0])


@pytest.mark.parametrize("gradients", [True, False])
def test_an_evaluation_batch_in_training_mode(gradients):
    hooks = CriterionHooks(criterion())
    hooks.index_check.evaluating = True
    with torch.set_grad_enabled(gradients), pytest.raises(InputError, match="evaluation batch"):
        visit(hooks.criterion, [0], [0])
    with pytest.raises(InputError, match="evaluation batch"):
        hooks.criterion.evaluate(torch.nn.Linear(2, 3), torch.randn(1, 2), torch.tensor([0]), torch.tensor([0]))
    visit(hooks.criterion.eval(), [0], [0])
    assert int(hooks.criterion.step) == 0


def test_the_index_check_is_no_part_of_the_state_and_survives_copies():
    plain, made = criterion(), CriterionHooks(criterion()).criterion
    assert plain.state_dict().keys() == made.state_dict().keys()
    visit(made, [3], [2])
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        with pytest.raises(InputError, match="index 3 came with label 2"):
            visit(twin, [3], [1])


def test_state_comes_back_and_another_one_is_refused():
    one, other = CriterionHooks(criterion()), CriterionHooks(criterion())
    visit(one.criterion, [4, 5], [0, 1])
    one.criterion.end_epoch()
    other.begin(total=30)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert int(other.criterion.epoch) == 1
    assert int(other.criterion.total) == 30  # the length of this training, not of the stored one
    with pytest.raises(InputError, match="index 5 came with label 1"):
        visit(other.criterion, [5], [2])
    with pytest.raises(InputError, match=r"shape \(12, 3\), and that of this criterion has \(13, 3\)"):
        CriterionHooks(criterion(13)).load_state_dict(one.state_dict())
    with pytest.raises(InputError, match="expected what"):
        other.load_state_dict({"model": 1})


def test_resumed_without_its_state_or_used_before():
    hooks = CriterionHooks(criterion())
    with pytest.raises(InputError, match="resumes after 4 batches, but the criterion has seen none"):
        hooks.begin(total=8, done=4)
    visit(hooks.criterion, [0], [0])
    with pytest.warns(UserWarning, match="trained for 1 steps already"):
        hooks.begin(total=8)
    assert int(hooks.criterion.total) == 9  # progress goes on from the step that was reached


class TestOptimizers:
    model = torch.nn.Linear(4, 3)

    def sgd(self, *more):
        return torch.optim.SGD([*self.model.parameters(), *more], lr=0.1)

    @pytest.mark.parametrize("build", [lambda: methods.meta_logit(num_samples=9, num_classes=3), methods.meta_weight])
    def test_meta_methods(self, build):
        made = build()
        check_optimizers(made, [self.sgd()], meta=True)
        with pytest.raises(InputError, match="nothing takes them"):
            check_optimizers(made, [self.sgd()], meta=False)
        with pytest.raises(InputError, match="the optimizer of the model holds parameters of the criterion"):
            check_optimizers(made, [self.sgd(*made.parameters())], meta=True)

    def test_manual_tables(self):
        made = Compensated(logit=Sample(9, 3, update="manual"))
        with pytest.raises(InputError, match="none holds its weight"):
            check_optimizers(made, [self.sgd()], meta=False)
        check_optimizers(made, [self.sgd(*made.parameters())], meta=False)

    def test_an_optimizer_that_looks_several_times(self):
        with pytest.warns(UserWarning, match="LBFGS"):
            check_optimizers(criterion(), [torch.optim.LBFGS(self.model.parameters())], meta=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_optimizers(methods.base(), [torch.optim.LBFGS(self.model.parameters())], meta=False)

    def test_meta_steps_move_what_they_should(self):
        made = methods.meta_weight()
        clean = [(torch.randn(5, 4), torch.arange(5) % 3), (torch.randn(2, 4), torch.tensor([0, 1]))]
        hooks = CriterionHooks(made, clean=clean)
        hooks.begin(total=9, optimizers=[self.sgd()])
        before = copy.deepcopy(made.state_dict())
        for _ in range(3):  # more than there are batches: they come again
            hooks.meta(self.model, (torch.randn(6, 4), torch.arange(6) % 3), 0.1)
        assert any(not torch.equal(v, before[k]) for k, v in made.state_dict().items())
        twin = CriterionHooks(methods.meta_weight(), clean=clean)
        twin.load_state_dict(copy.deepcopy(hooks.state_dict()))
        assert twin.meta_optimizer.state_dict()["state"].keys() == {0, 1, 2, 3}
        hooks = CriterionHooks(methods.meta_weight(), clean=[])
        hooks.begin(total=9)
        with pytest.raises(InputError, match="clean has no batch"):
            hooks.meta(self.model, (torch.randn(6, 4), torch.arange(6) % 3), 0.1)


# Padding
def several(**more):
    """What `prepare` reads of an accelerator of two processes."""
    state = SimpleNamespace(end_of_dataloader=True, remainder=3)
    given = {"device": "cpu", "num_processes": 2, "even_batches": True, "gradient_state": state} | more
    return SimpleNamespace(register_for_checkpointing=lambda _: None, **given)


def batch(size=4):
    return torch.randn(size, 3), torch.arange(size) % 3, torch.arange(size)


def test_the_last_batch_of_an_epoch_is_cut_and_no_other():
    criterion = prepare(several(), methods.logcomp(num_samples=8, num_classes=3))
    criterion(*batch())
    assert criterion.record.visits.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    u, y, index = batch()
    criterion(u, target=y, index=index)
    assert criterion.record.visits.tolist() == [2, 2, 2, 0, 0, 0, 0, 0]
    criterion.eval()
    assert criterion(u, y) == torch.nn.functional.cross_entropy(u, y)  # an evaluation is not cut
    loader = SimpleNamespace(end_of_dataloader=False, remainder=3)  # says for itself whether it is at its end
    criterion = prepare(several(), methods.logcomp(num_samples=8, num_classes=3), loader)
    criterion(*batch())
    assert criterion.record.visits.sum() == 4
    with pytest.raises(InputError, match="even_batches=False"):
        prepare(several(even_batches=False), methods.base())


@pytest.mark.parametrize("how", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_of_the_criterion_is_in_no_loop(how):
    criterion = how(prepare(several(), methods.logcomp(num_samples=8, num_classes=3)))
    criterion.index_check.whole = False
    criterion(*batch())
    assert criterion.record.visits.sum() == 4


def test_a_state_is_refused_where_its_batch_cannot_be_cut():
    hooks = CriterionHooks(methods.logcomp(num_samples=8, num_classes=3))
    hooks.leave_out(lambda size: slice(0, size - 1))
    u, y, index = batch()
    with pytest.raises(InputError, match=r"repeats samples.*drop_last=True"):
        hooks.criterion.evaluate(torch.nn.Identity(), u, y, index)
    assert not hooks.criterion.record.visits.any()
    hooks = CriterionHooks(methods.base())  # the loss of a slice counts by its size
    hooks.leave_out(lambda size: slice(0, 3), lambda left: left / 2)
    torch.testing.assert_close(hooks.criterion(u, y), 1.5 * torch.nn.functional.cross_entropy(u[:3], y[:3]))


@pytest.mark.parametrize(
    ("samples", "size", "drop_sampler", "drop_loader", "expected"),
    [(19, 4, False, False, 1), (19, 4, True, False, 0), (19, 4, False, True, 0), (19, 5, False, True, 1), (20, 4, False, False, 0)],
)  # fmt: skip
def test_repetitions_of_a_sampler_are_counted(samples, size, drop_sampler, drop_loader, expected):
    seen = []
    for rank in (0, 1):
        sampler = DistributedSampler(range(samples), 2, rank, shuffle=False, drop_last=drop_sampler)
        loader = DataLoader(range(samples), batch_size=size, sampler=sampler, drop_last=drop_loader)
        seen += [int(k) for part in loader for k in part]
        assert repeated(loader) == expected
    assert len(seen) - len(set(seen)) == expected
    assert repeated(range(3)) == 0


def test_meta_steps_and_several_loaders_refuse_repetitions():
    pytest.importorskip("lightning")
    from compensate.integrations.lightning import CompensationCallback

    sampler = DistributedSampler(range(5), 2, 0)
    loader = DataLoader(range(5), sampler=sampler)
    for loaders, clean in (([loader, loader], None), (loader, [batch()])):
        callback = CompensationCallback(clean=clean)
        module = torch.nn.Module()
        module.criterion = methods.base()
        trainer = SimpleNamespace(world_size=2, global_rank=0, train_dataloader=loaders)
        callback.setup(trainer, module, "fit")
        with pytest.raises(InputError, match=r"repeats samples.*DistributedSampler\(dataset, drop_last=True\)"):
            callback._leave_out_padding(trainer)


# Add index
datasets = pytest.importorskip("datasets")


def rows(n=6):
    return datasets.Dataset.from_dict({"text": [f"row {k}" for k in range(n)], "label": [k % 2 for k in range(n)]})


def test_the_number_goes_with_the_sample():
    data = add_index(rows()).shuffle(seed=0).filter(lambda row: row["label"] == 1)
    assert sorted(data["index"][:]) == [1, 3, 5]
    assert all(row["text"] == f"row {row['index']}" for row in data)
    parts = add_index(datasets.DatasetDict(train=rows(), test=rows(3)))
    assert isinstance(parts, datasets.DatasetDict)
    assert parts["test"]["index"][:] == [0, 1, 2]
    assert len(parts["train"]["index"][:]) == 6  # each part is numbered on its own


def test_numbering_twice_is_once_and_another_column_is_left_alone():
    data = add_index(rows())
    assert add_index(data)["index"][:] == list(range(6))
    shuffled = data.select([3, 1, 2])
    with pytest.raises(InputError, match="which is not the row number"):
        add_index(shuffled)
    assert add_index(shuffled, "row")["row"][:] == [0, 1, 2]


def test_streams_and_other_things():
    with pytest.raises(InputError, match="a stream"):
        add_index(rows().to_iterable_dataset())
    with pytest.raises(InputError, match=r"given a list; expected a datasets\.Dataset"):
        add_index([1, 2])
