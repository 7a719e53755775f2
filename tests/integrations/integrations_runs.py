"""The same training by each library: each function returns the losses of all batches, and the model."""

from __future__ import annotations

import accelerate
import datasets
import lightning as L
import torch
from loops import BATCH, RATE, Net, Pairs, bert, loader, words
from transformers import TrainingArguments

from compensate.integrations.accelerate import prepare
from compensate.integrations.lightning import CompensationCallback
from compensate.integrations.skorch import CompensatedNet
from compensate.integrations.transformers import CompensatedTrainer, add_index

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


class Module(L.LightningModule):
    """As a user would write it."""

    def __init__(self, criterion, registered: bool = True) -> None:
        super().__init__()
        self.net, self.losses, self.validated = Net(), [], []
        self.loose = [criterion]
        if registered:
            self.criterion = criterion

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y, index = batch
        loss = self.loose[0].evaluate(self.net, x, y, index).loss
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch, _):
        x, y, index = batch
        self.validated.append(float(self.loose[0](self.net(x), y, index)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=RATE)


def trainer(folder, *, epochs=3, callbacks=None, **options) -> L.Trainer:
    callbacks = [CompensationCallback()] if callbacks is None else callbacks
    options = {**QUIET, "enable_checkpointing": False, **options}
    return L.Trainer(max_epochs=epochs, default_root_dir=folder, callbacks=callbacks, **options)


def by_lightning(criterion, folder, accumulate=1):
    module = Module(criterion)
    trainer(folder, accumulate_grad_batches=accumulate).fit(module, loader())
    return module.losses, module.net


def rows():
    """The data set as a table for `datasets`."""
    ids, target = words()
    columns = {"input_ids": ids.tolist(), "attention_mask": (ids != 0).long().tolist(), "labels": target.tolist()}
    return add_index(datasets.Dataset.from_dict(columns))


class Listening(CompensatedTrainer):
    """Notes the losses."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.losses = []

    def compute_loss(self, model, inputs, *args, **kwargs):
        found = super().compute_loss(model, inputs, *args, **kwargs)
        if model.training:
            self.losses.append(float(found.detach()))
        return found


def hf_trainer(criterion, folder, *, model=None, data=None, epochs=3, arguments=None, **options):
    model = bert() if model is None else model
    arguments = {
        "num_train_epochs": epochs, "per_device_train_batch_size": BATCH, "max_grad_norm": 0.0, "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no",
        "train_sampling_strategy": "sequential", "dataloader_pin_memory": False, **(arguments or {}),
    }  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return Listening(
        model, TrainingArguments(str(folder), **arguments), train_dataset=rows() if data is None else data,
        criterion=criterion, **{"optimizers": (optimizer, steady), **options},
    )  # fmt: skip


def by_transformers(criterion, folder, accumulate=1):
    trainer = hf_trainer(criterion, folder, arguments={"gradient_accumulation_steps": accumulate})
    torch.manual_seed(5)  # the trainer sets its own seed first
    trainer.args.seed = 5
    trainer.train()
    return trainer.losses, trainer.model


def by_accelerate(criterion, folder, accumulate=1, *, epochs=3, save=False, load=False):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model, losses = Net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    net, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    criterion = prepare(accelerator, criterion, batches, epochs=3, optimizer=optimizer)
    if load:
        accelerator.load_state(str(folder))
    for _ in range(epochs):
        for x, y, index in batches:
            with accelerator.accumulate(net):
                loss = criterion.evaluate(net, x, y, index).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(loss.detach()))
        criterion.end_epoch()
    if save:
        accelerator.save_state(str(folder))
    return losses, model


def skorch_net(criterion, **options):
    defaults = {"max_epochs": 3, "lr": RATE, "batch_size": BATCH, "train_split": None, "verbose": 0}
    return CompensatedNet(Net, criterion=criterion, **{**defaults, **options})


def by_skorch(criterion, folder):
    net = skorch_net(criterion).fit(Pairs(), y=None)
    return [loss for epoch in net.history[:, "batches", :, "train_loss"] for loss in epoch], net.module_


RUNS = {"lightning": by_lightning, "transformers": by_transformers, "accelerate": by_accelerate, "skorch": by_skorch}
