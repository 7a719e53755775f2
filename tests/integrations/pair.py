"""Trains in two processes by Lightning, by accelerate and by the trainer of Hugging Face, and in one by a plain loop."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

import lightning as L
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader

from compensate import InputError, methods
from compensate.data import Indexed
from compensate.integrations.accelerate import prepare
from compensate.integrations.lightning import CompensationCallback
from compensate.integrations.transformers import CompensatedTrainer
from compensate.training import together

C, BATCH, EPOCHS, RATE = 3, 8, 2, 0.3
X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(64) % C


class Case(NamedTuple):
    """A set of samples and how it is cut in batches."""

    samples: int = 16
    drop_last: bool = False
    accumulate: int = 1

    @property
    def batches(self) -> int:
        """Batches of all processes together in an epoch."""
        return self.samples // BATCH if self.drop_last else -(-self.samples // BATCH)


CASES = [Case(16), Case(19), Case(19, drop_last=True), Case(22), Case(23), Case(23, drop_last=True)]
ACCUMULATED = Case(27, accumulate=2)
"""The last two batches of an epoch are one step of the optimizer, and only the second of them is filled up."""
MANY = Case(64)
"""Enough samples that an epoch is looked at for an index that is the place in the batch."""


def model() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(4, C)


def criterion(method: str, case: Case):
    sizes = {"num_samples": case.samples} | ({} if method == "mixcomp" else {"num_classes": C})
    return getattr(methods, method)(**sizes)


def data(case: Case) -> Indexed:
    return Indexed(list(zip(X, Y, strict=True))[: case.samples])


def plain(method: str, case: Case):
    """One process, the whole batch."""
    net, made = model(), criterion(method, case)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    made.start(EPOCHS * case.batches)
    for _ in range(EPOCHS):
        batches = list(DataLoader(data(case), batch_size=BATCH, drop_last=case.drop_last))
        for first in range(0, len(batches), case.accumulate):
            group = batches[first : first + case.accumulate]
            optimizer.zero_grad()
            for x, y, index in group:
                (made(net(x), y, index) / len(group)).backward()
            optimizer.step()
        made.end_epoch()
    return net, made


def tensors(net, made) -> dict[str, torch.Tensor]:
    held = {name: value.clone() for name, value in made.state_dict().items()}
    return {"weight": net.weight.detach().clone(), "bias": net.bias.detach().clone(), **held}


def by_lightning(method: str, folder: Path, case: Case):
    whole = method == "mixcomp"  # its threshold counts the batch, so all processes must see all of it

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.criterion = model(), criterion(method, case)

        def training_step(self, batch, _):
            x, y, index = batch
            u = self.net(x)
            return self.criterion(*together(u, y, index)) if whole else self.criterion(u, y, index)

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=RATE)

    module = Module()
    rank = int(os.environ["RANK"])
    # Lightning's own sampler would shuffle.
    sampler = torch.utils.data.DistributedSampler(data(case), 2, rank, shuffle=False)
    L.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, use_distributed_sampler=False,
        callbacks=[CompensationCallback(exchange=not whole)],
    ).fit(module, DataLoader(data(case), batch_size=BATCH // 2, sampler=sampler, drop_last=case.drop_last))  # fmt: skip
    return module.net, module.criterion


def by_accelerate(method: str, folder: Path, case: Case):
    accelerator, net, made = Accelerator(cpu=True), model(), criterion(method, case)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    loader = DataLoader(data(case), batch_size=BATCH // 2, drop_last=case.drop_last)
    wrapped, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    made = prepare(accelerator, made, loader, epochs=EPOCHS, optimizer=optimizer)
    x, y, index = next(iter(loader))
    try:
        made(wrapped(x), y, index)
    except InputError as error:
        assert "together" in str(error)  # noqa: PT017 - there is no pytest in this process
    else:
        raise AssertionError("own slices were not found out")
    for _ in range(EPOCHS):
        for x, y, index in loader:
            optimizer.zero_grad()
            accelerator.backward(made(*together(wrapped(x), y, index)))
            optimizer.step()
        made.end_epoch()
    return net, made


class Classifier(torch.nn.Module):
    """What the trainer needs of a model."""

    def __init__(self):
        super().__init__()
        self.layer = model()

    def forward(self, x):
        return {"logits": self.layer(x)}


def by_transformers(method: str, folder: Path, case: Case):
    net, made = Classifier(), criterion(method, case)
    arguments = transformers.TrainingArguments(
        str(folder), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH // 2, max_grad_norm=0.0, report_to=[],
        use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no", dataloader_pin_memory=False,
        train_sampling_strategy="sequential", dataloader_drop_last=case.drop_last,
        gradient_accumulation_steps=case.accumulate,
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    rows = [{"x": x, "labels": int(y), "index": k} for k, (x, y, _) in enumerate(data(case))]
    CompensatedTrainer(net, arguments, train_dataset=rows, criterion=made, optimizers=(optimizer, steady)).train()
    return net.layer, made


RUNS = {"accelerate": by_accelerate, "transformers": by_transformers, "lightning": by_lightning}


def runs():
    """Library, method and case of every run."""
    for library in RUNS:
        for method in ("logcomp", "mixcomp"):
            for case in [*CASES, ACCUMULATED] if library == "transformers" else CASES:
                yield library, method, case
    for method in ("logcomp", "online_label_smoothing"):  # the second is renewed with every epoch
        yield "lightning", method, MANY


def as_one(library: str, case: Case) -> Case:
    """The case of one process: Lightning gives each process twelve samples of 23, the last batch is full with a repetition."""
    return Case(23) if library == "lightning" and case == Case(23, drop_last=True) else case


def stored(library: str, method: str, case: Case, rank: int | str) -> str:
    return f"{library}-{method}-{'-'.join(map(str, case))}-{rank}.pt"


def train_all(out: Path) -> None:
    """Every run, as one of two processes; what it holds in the end goes to a file."""
    # These processes are forked: what an earlier test told accelerate, that there is one process, is forgotten first.
    AcceleratorState._reset_state(reset_partial_state=True)
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", message="in the last epoch|.*processes evaluate")
    for library, method, case in runs():
        torch.save(tensors(*RUNS[library](method, out, case)), out / stored(library, method, case, os.environ["RANK"]))
