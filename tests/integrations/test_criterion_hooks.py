"""An index that names another sample than before is found; a criterion is hooks with its clock and its state."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch

from compensate import Compensated, InputError, methods
from compensate.integrations import CriterionHooks
from compensate.integrations.common import check_optimizers
from compensate.terms import Sample


def criterion(n=12):
    return methods.logcomp(num_samples=n, num_classes=3)


def visit(made, index, target):
    index, target = torch.as_tensor(index), torch.as_tensor(target)
    return made(torch.randn(len(index), 3), target, index)


def test_the_place_in_the_batch_is_no_index():
    made = CriterionHooks(criterion()).criterion
    visit(made, range(4), [0, 1, 2, 0])
    with pytest.raises(InputError, match="index 1 came with label 1 before and comes with label 2 now"):
        visit(made, range(4), [0, 2, 1, 0])


def test_rows_do_not_move_under_a_wrong_index():
    made = CriterionHooks(criterion()).criterion
    visit(made, [0, 1], [0, 1])
    before = copy.deepcopy(made.state_dict())
    with pytest.raises(InputError):
        visit(made, [1, 0], [0, 0])
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


def test_something_else_than_a_criterion():
    with pytest.raises(InputError, match="CrossEntropyLoss; expected one of compensate"):
        CriterionHooks(torch.nn.CrossEntropyLoss())


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

    def test_clean_data_without_a_batch(self):
        hooks = CriterionHooks(methods.meta_weight(), clean=[])
        hooks.begin(total=9)
        with pytest.raises(InputError, match="clean has no batch"):
            hooks.meta(self.model, (torch.randn(6, 4), torch.arange(6) % 3), 0.1)
