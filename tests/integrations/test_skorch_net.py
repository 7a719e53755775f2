"""skorch: rows of X as index, a new criterion at each fit, and what is found out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("skorch")

from sklearn.base import clone
from skorch.dataset import Dataset, ValidSplit
from skorch.helper import predefined_split
from torch.utils.data import IterableDataset, Subset

from compensate import InputError, methods
from compensate.integrations.skorch import CompensatedNet, source_rows

N, C = 30, 3
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 4)).astype("float32"), np.arange(N) % C


def net(criterion=methods.logcomp, **options):
    torch.manual_seed(0)
    defaults = {"module__in_features": 4, "module__out_features": C, "max_epochs": 2, "lr": 0.3, "batch_size": 8}
    return CompensatedNet(torch.nn.Linear, criterion=criterion, **{**defaults, "verbose": 0, **options})


def test_the_index_is_the_row_of_x_whatever_is_held_out():
    made = net(iterator_train__shuffle=True, train_split=ValidSplit(5, stratified=True)).fit(X, Y)
    visits = made.criterion_.record.visits.numpy()
    assert (visits == 2).sum() == 24
    assert (visits == 0).sum() == 6
    assert made.criterion_.index_check.given[visits > 0].tolist() == Y[visits > 0].tolist()
    held_out = Dataset(X[:6], Y[:6])
    made = net(train_split=predefined_split(held_out)).fit(X, Y)
    assert made.criterion_.record.visits.tolist() == [2.0] * N
    np.testing.assert_array_equal(source_rows(Subset(Subset(range(9), [8, 4, 2]), [1])), [4])


def test_sizes_come_from_the_data_and_each_fit_begins_anew():
    made = net().fit(X, Y)
    first = made.criterion_
    assert (first.record.num_samples, int(first.step), int(first.total)) == (N, 6, 6)
    made.fit(X[:20], Y[:20])
    assert made.criterion_ is not first
    assert (made.criterion_.record.num_samples, int(made.criterion_.step)) == (20, 4)
    assert net(methods.ldam).fit(X, Y).criterion_.step == 6  # takes counts of classes
    assert int(clone(made).fit(X, Y).criterion_.step) == 6
    with pytest.raises(InputError, match="the criterion needs num_samples, num_classes: call fit"):
        net().initialize()


def test_going_on_is_one_longer_training():
    whole = net(max_epochs=4, train_split=None).fit(X, Y)
    parts = net(train_split=None).fit(X, Y)
    parts.partial_fit(X, Y)
    assert (int(parts.criterion_.epoch), int(parts.criterion_.step), int(parts.criterion_.total)) == (4, 16, 16)
    for name, value in whole.criterion_.state_dict().items():
        torch.testing.assert_close(value, parts.criterion_.state_dict()[name])
    torch.testing.assert_close(whole.module_.weight, parts.module_.weight)


def test_saved_and_loaded(tmp_path):
    files = {"f_params": tmp_path / "p.pt", "f_optimizer": tmp_path / "o.pt", "f_history": tmp_path / "h.json"}
    whole = net(max_epochs=4, train_split=None).fit(X, Y)
    first = net(train_split=None).fit(X, Y)
    first.save_params(f_criterion=tmp_path / "c.pt", **files)

    def fresh():
        made = net(train_split=None, criterion__num_samples=N, criterion__num_classes=C).initialize()
        made.load_params(**files)
        return made

    made = fresh()
    made.load_params(f_criterion=tmp_path / "c.pt")
    made.partial_fit(X, Y)
    for name, value in whole.criterion_.state_dict().items():
        torch.testing.assert_close(value, made.criterion_.state_dict()[name])
    with pytest.raises(InputError, match="the criterion has seen none: its state is not in the checkpoint"):
        fresh().partial_fit(X, Y)


def test_inputs_by_name():
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, C)

        def forward(self, left, right):
            return self.layer(torch.cat([left, right], 1))

    torch.manual_seed(0)
    made = CompensatedNet(Named, lr=0.3, batch_size=8, max_epochs=2, train_split=None, verbose=0)
    made.fit({"left": X[:, :2], "right": X[:, 2:]}, Y)
    torch.testing.assert_close(made.module_.layer.weight, net(train_split=None).fit(X, Y).module_.weight)


def test_a_stream_has_no_rows():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(X, Y, strict=True))

    with pytest.raises(InputError, match="no length"):
        net(methods.label_smoothing, train_split=None).fit(Stream(), y=None)


@pytest.mark.parametrize("method", [methods.meta_logit, methods.meta_weight])
def test_meta_steps_are_taken(method):
    made = net(method, clean=(X[:6], Y[:6]), train_split=None).fit(X, Y)
    held = {id(p) for group in made.optimizer_.param_groups for p in group["params"]}
    assert not held & {id(p) for p in made.criterion_.parameters()}
    fresh = method(**({"num_samples": N, "num_classes": C} if method is methods.meta_logit else {}))
    torch.manual_seed(0)
    start = net(method, clean=(X[:6], Y[:6]), train_split=None, max_epochs=0).fit(X, Y).criterion_
    moved = [not torch.equal(a, b) for a, b in zip(made.criterion_.parameters(), start.parameters(), strict=True)]
    assert all(moved)
    assert len(moved) == len(list(fresh.parameters()))
