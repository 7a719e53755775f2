"""skorch: a classifier in the manner of scikit-learn; sizes and index come from the data given to `fit`.

Run:  python examples/integrations/skorch_classifier.py
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

import compensate
from compensate.integrations.skorch import CompensatedNet


def digits_with_wrong_labels():
    """Pictures (N, 64), labels of which three in ten are wrong, and which those are."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = rng.random(len(y)) < 0.3
    given = np.where(wrong, (y + rng.integers(1, 10, len(y))) % 10, y)
    return (x / 16).astype("float32"), given, wrong


class Net(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def main(epochs: int = 10) -> None:
    x, y, wrong = digits_with_wrong_labels()
    net = CompensatedNet(
        Net, criterion=compensate.methods.logcomp, optimizer=torch.optim.Adam, lr=0.003, batch_size=64,
        max_epochs=epochs, iterator_train__shuffle=True, train_split=None, verbose=0,
    )  # fmt: skip
    net.fit(x, y)
    criterion = net.criterion_
    first = criterion.suspects(top=300).index
    print(f"of the 300 most suspect labels {wrong[first].mean():.0%} are wrong")


if __name__ == "__main__":
    main()
