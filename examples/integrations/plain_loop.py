"""A plain loop: the loss is replaced, the data set is numbered, and the wrong labels are named.

Run:  python examples/integrations/plain_loop.py
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

import compensate
from compensate.data import Indexed


def digits_with_wrong_labels():
    """Pictures (N, 64), labels of which three in ten are wrong, and which those are."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = rng.random(len(y)) < 0.3
    given = np.where(wrong, (y + rng.integers(1, 10, len(y))) % 10, y)
    return (x / 16).astype("float32"), given, wrong


def main(epochs: int = 10) -> None:
    x, y, wrong = digits_with_wrong_labels()
    train = Indexed(list(zip(torch.from_numpy(x), torch.from_numpy(y), strict=True)))
    loader = DataLoader(train, batch_size=64, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    criterion = compensate.methods.logcomp(num_samples=len(train), num_classes=10)  # was: nn.CrossEntropyLoss()

    criterion.start(total_steps=epochs * len(loader))
    for _ in range(epochs):
        for batch, target, index in loader:
            loss = criterion(model(batch), target, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        criterion.end_epoch()

    first = criterion.suspects(top=300).index
    print(f"of the 300 most suspect labels {wrong[first].mean():.0%} are wrong")


if __name__ == "__main__":
    main()
