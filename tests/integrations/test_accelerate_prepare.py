"""accelerate: a criterion in a loop of one's own, its checkpoints, and several processes."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from compensate import methods
from compensate.data import Indexed
from compensate.integrations.accelerate import prepare

N, C, BATCH = 20, 3, 6
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(N) % C
BUILD = {
    "base": lambda: methods.base(num_samples=N),
    "logcomp": lambda: methods.logcomp(num_samples=N, num_classes=C),
    "mixcomp": lambda: methods.mixcomp(num_samples=N, over="epoch"),
}


class Run:
    """A loop as a user would write it."""

    def __init__(self, criterion, epochs=4, **options) -> None:
        torch.manual_seed(0)
        self.accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(4, C)
        parts = (
            model,
            torch.optim.SGD(model.parameters(), lr=0.3),
            DataLoader(Indexed(list(zip(X, Y, strict=True))), BATCH),
        )
        self.model, self.optimizer, self.loader = self.accelerator.prepare(*parts)
        self.criterion = prepare(
            self.accelerator, criterion, self.loader, epochs=epochs, **{"optimizer": self.optimizer, **options}
        )
        self.losses = []

    def train(self, epochs, index=lambda k: k):
        for _ in range(epochs):
            for x, y, k in self.loader:
                loss = self.criterion(self.model(x), y, index(k))
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.losses.append(float(loss.detach()))
            self.criterion.end_epoch()
        return self


@pytest.mark.parametrize("method", BUILD)
def test_a_resumed_training_is_the_uninterrupted_one(method, tmp_path):
    whole = Run(BUILD[method]()).train(4)
    Run(BUILD[method]()).train(2).accelerator.save_state(str(tmp_path))
    again = Run(BUILD[method]())
    again.accelerator.load_state(str(tmp_path))
    again.train(2)
    assert again.losses == pytest.approx(whole.losses[8:], rel=1e-6)
    for name, value in whole.criterion.state_dict().items():
        torch.testing.assert_close(value, again.criterion.state_dict()[name])
    assert int(again.criterion.total) == 16
