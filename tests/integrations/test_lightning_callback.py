"""Lightning: what the callback does, what it finds, and that a resumed training is the uninterrupted one."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

pytest.importorskip("lightning")
pytest.importorskip("transformers")
pytest.importorskip("datasets")
pytest.importorskip("skorch")

import lightning as L
from integrations_runs import Module, trainer
from loops import BATCH, METHODS, RATE, SCHEDULED, C, N, assert_same, loader, plain

from compensate import InputError, meta_step, methods
from compensate.data import Indexed
from compensate.integrations.lightning import CompensationCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*treespec.*"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
]


class Small(L.LightningModule):
    """A linear model: where the model does not matter."""

    def __init__(self, criterion) -> None:
        super().__init__()
        self.layer, self.criterion = torch.nn.Linear(4, C), criterion

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, k):
        x, y, index = batch
        return self.criterion(self(x), y, index)

    def configure_optimizers(self):
        return torch.optim.SGD(self.layer.parameters(), lr=RATE)


X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(N) % C


def small():
    return DataLoader(Indexed(list(zip(X, Y, strict=True))), batch_size=BATCH)


def logcomp():
    return methods.logcomp(num_samples=N, num_classes=C)


# coming back
@pytest.mark.parametrize("registered", [True, False], ids=["registered", "loose"])
@pytest.mark.parametrize("method", ["base", "logcomp", "mixcomp_over_epoch"])
def test_a_resumed_training_is_the_uninterrupted_one(method, registered, tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    def fit(epochs, ckpt_path=None):
        criterion = METHODS[method]()
        module = Module(criterion, registered)
        ours = CompensationCallback() if registered else CompensationCallback(criterion)
        # One checkpoint at the last batch of the first epoch, before the epoch is ended, and one at the end of each.
        early = ModelCheckpoint(tmp_path, "early-{step}", every_n_train_steps=4, save_top_k=-1)
        late = ModelCheckpoint(tmp_path, "late-{epoch}", save_top_k=-1)
        made = trainer(tmp_path, epochs=epochs, callbacks=[ours, early, late], enable_checkpointing=True)
        made.fit(module, loader(), ckpt_path=ckpt_path, **({"weights_only": False} if ckpt_path else {}))
        return criterion, module

    whole, uninterrupted = fit(3)
    expected = METHODS[method]()
    assert uninterrupted.losses == pytest.approx(plain(expected)[0], rel=1e-4)
    for name in ("late-epoch=0.ckpt", "early-step=4.ckpt"):
        criterion, module = fit(3, tmp_path / name)
        assert module.losses == pytest.approx(uninterrupted.losses[4:], rel=1e-6), name
        assert_same(criterion, whole, rtol=1e-6, atol=1e-7)
        assert (int(criterion.epoch), int(criterion.step), int(criterion.total)) == (3, 12, 12)


# the criterion
def test_no_criterion_and_two(tmp_path):
    module = Small(None)
    with pytest.raises(InputError, match="Small has no criterion of compensate"):
        trainer(tmp_path).fit(module, small())
    module.criterion, module.other = logcomp(), logcomp()
    with pytest.raises(InputError, match="Small has 2 criteria"):
        trainer(tmp_path).fit(module, small())


@pytest.mark.parametrize("build", [lambda: methods.meta_logit(num_samples=N, num_classes=C), methods.meta_weight])
def test_meta_steps_are_taken_before_each_step(build, tmp_path):
    expected, module = Small(build()), Small(build())
    module.load_state_dict(expected.state_dict())
    optimizer = torch.optim.SGD(expected.layer.parameters(), lr=RATE)
    networks = build is methods.meta_weight
    meta = torch.optim.Adam(expected.criterion.parameters(), lr=1e-3) if networks else None
    expected.criterion.start(8)
    for _ in range(2):
        for x, y, index in small():
            meta_step(expected.criterion, expected.layer, (x, y, index), (X, Y), lr=RATE, optimizer=meta)
            optimizer.zero_grad()
            expected.criterion(expected.layer(x), y, index).backward()
            optimizer.step()
        expected.criterion.end_epoch()
    trainer(tmp_path, epochs=2, callbacks=[CompensationCallback(clean=[(X, Y)])]).fit(module, small())
    assert_same(module.criterion, expected.criterion)
    torch.testing.assert_close(module.layer.weight, expected.layer.weight)


# time
class Stream(IterableDataset):
    def __iter__(self):
        return iter([(X[k], Y[k], k) for k in range(N)])


def test_a_training_without_an_end(tmp_path):
    module = Small(SCHEDULED["scheduled"]())
    stream = DataLoader(Stream(), batch_size=BATCH)
    with pytest.raises(InputError, match="whose length is not known"):
        trainer(tmp_path, epochs=1).fit(module, stream)
    module = Small(SCHEDULED["scheduled"]())
    module.criterion.start(4)  # as the message says
    trainer(tmp_path, epochs=1).fit(module, stream)
    assert int(module.criterion.total) == 4
    module = Small(logcomp())  # needs no length
    trainer(tmp_path, epochs=1).fit(module, stream)
    assert int(module.criterion.step) == 4


@pytest.mark.parametrize(("options", "total"), [
    ({"max_steps": 3, "epochs": None}, 3),
    ({"max_steps": 3, "epochs": None, "accumulate_grad_batches": 3}, 7),  # epochs of 3 + 1 batches: 4 and 3
    ({"limit_train_batches": 2}, 6),
])  # fmt: skip
def test_the_clock_counts_batches(options, total, tmp_path):
    module = Small(logcomp())
    trainer(tmp_path, **options).fit(module, small())
    assert int(module.criterion.step) == int(module.criterion.total) == total
