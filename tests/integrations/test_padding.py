"""Samples that a sampler repeats for several processes: cut off, or refused where they cannot be told apart."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from compensate import InputError, methods
from compensate.integrations.accelerate import prepare
from compensate.integrations.common import CriterionHooks, repeated


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


def test_a_loader_says_for_itself_whether_it_is_at_its_end():
    loader = SimpleNamespace(end_of_dataloader=False, remainder=3)
    criterion = prepare(several(), methods.logcomp(num_samples=8, num_classes=3), loader)
    criterion(*batch())
    assert criterion.record.visits.sum() == 4


@pytest.mark.parametrize("how", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_of_the_criterion_is_in_no_loop(how):
    criterion = how(prepare(several(), methods.logcomp(num_samples=8, num_classes=3)))
    criterion.index_check.whole = False
    criterion(*batch())
    assert criterion.record.visits.sum() == 4


def test_slices_of_different_sizes_are_refused():
    with pytest.raises(InputError, match="even_batches=False"):
        prepare(several(even_batches=False), methods.base())


def test_a_state_is_refused_where_its_batch_cannot_be_cut():
    hooks = CriterionHooks(methods.logcomp(num_samples=8, num_classes=3))
    hooks.leave_out(lambda size: slice(0, size - 1))
    u, y, index = batch()
    with pytest.raises(InputError, match=r"repeats samples.*drop_last=True"):
        hooks.criterion.evaluate(torch.nn.Identity(), u, y, index)
    assert not hooks.criterion.record.visits.any()


def test_the_loss_of_a_slice_counts_by_its_size():
    hooks = CriterionHooks(methods.base())
    hooks.leave_out(lambda size: slice(0, 3), lambda left: left / 2)
    u, y, _ = batch()
    torch.testing.assert_close(hooks.criterion(u, y), 1.5 * torch.nn.functional.cross_entropy(u[:3], y[:3]))


@pytest.mark.parametrize(
    ("samples", "size", "drop_sampler", "drop_loader", "expected"),
    [(19, 4, False, False, 1), (19, 4, True, False, 0), (19, 4, False, True, 0), (19, 5, False, True, 1), (20, 4, False, False, 0)],
)  # fmt: skip
def test_repetitions_of_a_sampler_are_counted(samples, size, drop_sampler, drop_loader, expected):
    sampler = DistributedSampler(range(samples), 2, 1, shuffle=False, drop_last=drop_sampler)
    loader = DataLoader(range(samples), batch_size=size, sampler=sampler, drop_last=drop_loader)
    assert repeated(loader) == expected
    seen = sorted(int(k) for rank in (0, 1) for k in _given_out(samples, size, drop_sampler, drop_loader, rank))
    assert len(seen) - len(set(seen)) == expected
    assert repeated(range(3)) == 0


def _given_out(samples, size, drop_sampler, drop_loader, rank):
    sampler = DistributedSampler(range(samples), 2, rank, shuffle=False, drop_last=drop_sampler)
    loader = DataLoader(range(samples), batch_size=size, sampler=sampler, drop_last=drop_loader)
    return [k for part in loader for k in part]


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
