"""One small data set, one small model, and the training loop that all others are compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from compensate import Compensated, methods
from compensate.data import Indexed
from compensate.terms import Adversarial, Evidence, Pull, Where, above, below

N, C, T, BATCH, RATE = 20, 3, 6, 6, 0.3


def words() -> tuple[Tensor, Tensor]:
    """Token numbers (N, T) with 0 for padding, and classes (N,) that a model can learn, a few of them wrong."""
    g = torch.Generator().manual_seed(3)
    target = torch.arange(N) % C
    ids = torch.randint(10, 20, (N, T), generator=g)
    ids[:, 1] = 3 + target
    ids[::2, 4:] = 0
    target[:3] = (target[:3] + 1) % C
    return ids, target


class Pairs(Dataset):
    """Items (ids, label)."""

    def __init__(self) -> None:
        self.x, self.y = words()

    def __len__(self) -> int:
        return N

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        return self.x[k], self.y[k]


def bert():
    """Two layers without dropout, the same weights each time."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=24, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=C,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=T, initializer_range=0.3,
    )  # fmt: skip
    return BertForSequenceClassification(config).train()


class Net(nn.Module):
    """The model in stages, cut by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = bert()
        self.head = self.inner.classifier

    def embed(self, ids: Tensor) -> Tensor:
        self.ids = ids
        return self.inner.get_input_embeddings()(ids)

    def features(self, e: Tensor) -> Tensor:
        return self.inner.bert(inputs_embeds=e, attention_mask=(self.ids != 0).long()).pooler_output

    def padding(self, ids: Tensor) -> Tensor:
        return ids == 0

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.features(self.embed(ids)))


METHODS = {
    "base": lambda: methods.base(num_samples=N),
    "logcomp": lambda: methods.logcomp(num_samples=N, num_classes=C, lam=0.2),
    "mixcomp": lambda: methods.mixcomp(num_samples=N, pro=40, eta=2.0),
    "mixcomp_over_epoch": lambda: methods.mixcomp(num_samples=N, pro=40, eta=2.0, over="epoch"),
}


def mixed_features() -> Compensated:
    """Mixed compensation with a feature part, whose inner loop starts at zero: each library seeds in its own way."""
    attack = Adversarial(0.1, sign=1, steps=2, random_start=False)
    return Compensated(logit=Where(above(1.0), Pull(2.0)), feature=Where(below(1.0), attack), record=Evidence(N))


FEATURES = {"mixcomp_features": mixed_features}
SCHEDULED = {"scheduled": lambda: methods.proselflc()}  # reads the progress of the whole training


def loader(**options) -> DataLoader:
    return DataLoader(Indexed(Pairs()), batch_size=BATCH, **options)


def plain(criterion, epochs: int = 3, accumulate: int = 1) -> tuple[list[float], nn.Module]:
    """Losses of every batch, and the model, by the loop that anyone would write."""
    net, losses = Net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    size = len(loader())
    criterion.start(epochs * size)
    for _ in range(epochs):
        batches = list(loader())  # draws random numbers, as every loop does that begins an epoch
        for k, (x, y, index) in enumerate(batches):
            loss = criterion.evaluate(net, x, y, index).loss
            first = k - k % accumulate
            (loss / len(batches[first : first + accumulate])).backward()
            if (k + 1) % accumulate == 0 or k + 1 == size:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(loss.detach()))
        criterion.end_epoch()
    return losses, net


def assert_same(one, other, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Two criteria hold the same."""
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}")
