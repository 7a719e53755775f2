"""Trains in as many processes as the environment says, by Lightning, by accelerate and by the trainer of Hugging Face.

python pair.py OUT; the tests start it twice and compare with a plain loop in one process.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from compensate import InputError, methods
from compensate.data import Indexed

N, C, BATCH, EPOCHS, RATE = 16, 3, 8, 2, 0.3
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(N) % C


def model() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(4, C)


def criterion(method: str):
    sizes = {"num_samples": N, "num_classes": C} if method == "logcomp" else {"num_samples": N}
    return getattr(methods, method)(**sizes)


def data() -> Indexed:
    return Indexed(list(zip(X, Y, strict=True)))


def plain(method: str):
    """One process, the whole batch."""
    net, made = model(), criterion(method)
    optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
    made.start(EPOCHS * N // BATCH)
    for _ in range(EPOCHS):
        for x, y, index in DataLoader(data(), batch_size=BATCH):
            optimiser.zero_grad()
            made(net(x), y, index).backward()
            optimiser.step()
        made.end_epoch()
    return net, made


def tensors(net, made) -> dict[str, torch.Tensor]:
    held = {name: value.clone() for name, value in made.state_dict().items()}
    return {"weight": net.weight.detach().clone(), "bias": net.bias.detach().clone(), **held}


def by_lightning(method: str, folder: Path):
    import lightning as L

    from compensate.integrations.lightning import CompensationCallback
    from compensate.training import together

    whole = method == "mixcomp"  # its threshold counts the batch, so all processes must see all of it

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.criterion = model(), criterion(method)

        def training_step(self, batch, _):
            x, y, index = batch
            u = self.net(x)
            return self.criterion(*together(u, y, index)) if whole else self.criterion(u, y, index)

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=RATE)

    module = Module()
    rank = int(os.environ["RANK"])
    sampler = torch.utils.data.DistributedSampler(data(), 2, rank, shuffle=False)  # Lightning's own would shuffle
    L.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, use_distributed_sampler=False,
        callbacks=[CompensationCallback(exchange=not whole)],
    ).fit(module, DataLoader(data(), batch_size=BATCH // 2, sampler=sampler))  # fmt: skip
    return module.net, module.criterion


def by_accelerate(method: str, folder: Path):
    from accelerate import Accelerator

    from compensate.integrations.accelerate import prepare
    from compensate.training import together

    accelerator, net, made = Accelerator(cpu=True), model(), criterion(method)
    optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
    wrapped, optimiser, loader = accelerator.prepare(net, optimiser, DataLoader(data(), batch_size=BATCH // 2))
    made = prepare(accelerator, made, loader, epochs=EPOCHS, optimizer=optimiser)
    x, y, index = next(iter(loader))
    try:
        made(wrapped(x), y, index)
    except InputError as error:
        assert "together" in str(error)  # noqa: PT017 - there is no pytest in this process
    else:
        raise AssertionError("own slices were not found out")
    for _ in range(EPOCHS):
        for x, y, index in loader:
            optimiser.zero_grad()
            accelerator.backward(made(*together(wrapped(x), y, index)))
            optimiser.step()
        made.end_epoch()
    return net, made


class Classifier(torch.nn.Module):
    """What the trainer needs of a model."""

    def __init__(self):
        super().__init__()
        self.layer = model()

    def forward(self, x):
        return {"logits": self.layer(x)}


def by_transformers(method: str, folder: Path):
    import transformers

    from compensate.integrations.transformers import CompensatedTrainer

    net, made = Classifier(), criterion(method)
    arguments = transformers.TrainingArguments(
        str(folder), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH // 2, max_grad_norm=0.0, report_to=[],
        use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no", dataloader_pin_memory=False,
        train_sampling_strategy="sequential",
    )  # fmt: skip
    optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
    steady = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda _: 1.0)
    rows = [{"x": x, "labels": int(y), "index": k} for k, (x, y) in enumerate(zip(X, Y, strict=True))]
    CompensatedTrainer(net, arguments, train_dataset=rows, criterion=made, optimizers=(optimiser, steady)).train()
    return net.layer, made


RUNS = {"accelerate": by_accelerate, "transformers": by_transformers, "lightning": by_lightning}

if __name__ == "__main__":
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rank = os.environ["RANK"]
    for name, run in RUNS.items():
        for method in ("logcomp", "mixcomp"):
            torch.save(tensors(*run(method, out)), out / f"{name}-{method}-{rank}.pt")
