"""Lightning: the criterion is an attribute of the module, and one callback does the rest.

Run:  python examples/integrations/lightning_module.py
"""

from __future__ import annotations

import lightning as L
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

import compensate
from compensate.data import Indexed
from compensate.integrations.lightning import CompensationCallback


def digits_with_wrong_labels():
    """Pictures (N, 64), labels of which three in ten are wrong, and which those are."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = rng.random(len(y)) < 0.3
    given = np.where(wrong, (y + rng.integers(1, 10, len(y))) % 10, y)
    return (x / 16).astype("float32"), given, wrong


class Classifier(L.LightningModule):
    def __init__(self, samples: int) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.criterion = compensate.methods.mixcomp(num_samples=samples)

    def training_step(self, batch, _):
        x, y, index = batch
        return self.criterion(self.net(x), y, index)

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=0.003)


def main(epochs: int = 10) -> None:
    x, y, wrong = digits_with_wrong_labels()
    train = Indexed(list(zip(torch.from_numpy(x), torch.from_numpy(y), strict=True)))
    module = Classifier(len(train))
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[CompensationCallback()],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(train, batch_size=64, shuffle=True))
    criterion = module.criterion
    first = criterion.suspects(top=300).index
    print(f"of the 300 most suspect labels {wrong[first].mean():.0%} are wrong")


if __name__ == "__main__":
    main()
