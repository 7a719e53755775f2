from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from compensate.data import Dataset, digits
from compensate.errors import InputError
from compensate.models import CNN, MLP, BiLSTM, Normalize, ResNet, Staged, Stages, build, probe

SIZES = {8: 0.08, 14: 0.17, 20: 0.27, 32: 0.46, 44: 0.66, 56: 0.85, 110: 1.7}  # million, He et al., Table 6


class Plain(nn.Module):
    """A user's model of texts, with layers of its own names and the head inside a container."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6, padding_idx=0)
        self.drop = nn.Dropout(0.5)
        self.top = nn.ModuleDict({"norm": nn.BatchNorm1d(6), "out": nn.Linear(6, 3)})

    def forward(self, x):
        return self.top["out"](self.top["norm"](self.drop(self.words(x)).mean(1)))


def tokens() -> torch.Tensor:
    return torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]])


def images(c: int = 3) -> torch.Tensor:
    return torch.rand(4, c, 16, 16, generator=torch.Generator().manual_seed(0))


CASES = {
    "resnet": (lambda: ResNet(8, 5, width=4), images),
    "cnn": (lambda: CNN(5, channels=3, batch_norm=True, dropout=0.2), images),
    "mlp": (lambda: MLP(3 * 16 * 16, 5, hidden=(8,), dropout=0.2), images),
    "probe": (lambda: probe(3 * 16 * 16, 5), images),
    "bilstm": (lambda: BiLSTM(20, 5, size=6, hidden=4), tokens),
    "staged": (lambda: Staged(Plain(), "top.out", embed="words"), tokens),
    "stages": (lambda: Stages(nn.Flatten(), nn.Linear(768, 5)), images),
}


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    make, batch = CASES[request.param]
    return make(), batch()


def test_forward_is_head_of_features_of_embed(case):
    model, x = case
    model.eval()
    z = model.features(model.embed(x))
    assert isinstance(model.head, nn.Linear)
    assert z.shape == (len(x), model.head.in_features)
    assert torch.equal(model(x), model.head(z))
    assert torch.equal(F.linear(z, model.head.weight, model.head.bias), model(x))


def test_second_derivatives_exist(case):
    """Meta learning differentiates through a step of the model."""
    model, x = case
    model.eval().double()
    x = x if x.dtype == torch.long else x.double()
    params = {k: v.detach() for k, v in model.named_parameters()}

    def outer(weight):
        def inner(p):
            target = torch.zeros(len(x), dtype=torch.long)
            return weight @ F.cross_entropy(functional_call(model, p, (x,)), target, reduction="none")

        stepped = {k: p - 0.1 * g for (k, p), g in zip(params.items(), grad(inner)(params).values(), strict=True)}
        return functional_call(model, stepped, (x,)).logsumexp(1).sum()

    w = torch.full((len(x),), 0.5, dtype=torch.float64)
    exact = grad(outer)(w)
    h = 1e-5
    for i in range(len(x)):
        e = torch.zeros_like(w)
        e[i] = h
        assert exact[i].item() == pytest.approx((outer(w + e) - outer(w - e)).item() / (2 * h), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("depth", SIZES)
def test_resnet_sizes_are_the_reference_s(depth):
    model = ResNet(depth, 10)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(SIZES[depth], abs=0.05)
    convolutions = sum(isinstance(m, nn.Conv2d) for m in model.modules())
    assert convolutions + 1 == depth


def test_bilstm_equals_a_packed_two_way_lstm():
    torch.manual_seed(1)
    model = BiLSTM(20, 2, size=6, hidden=4).eval()
    two = nn.LSTM(6, 4, batch_first=True, bidirectional=True)
    two.load_state_dict(model.forth.state_dict() | {f"{k}_reverse": v for k, v in model.back.state_dict().items()})
    x = tokens()
    e = model.embed(x)
    lengths = (x > 0).sum(1)
    packed = nn.utils.rnn.pack_padded_sequence(e, lengths, batch_first=True, enforce_sorted=False)
    h, _ = nn.utils.rnn.pad_packed_sequence(two(packed)[0], batch_first=True)
    expected = []
    for row, n in zip(h, lengths, strict=True):
        score = torch.tanh(row[:n]) @ model.attention.weight[0]
        expected.append(torch.tanh(score.softmax(0) @ row[:n]))
    assert torch.allclose(model.features(e), torch.stack(expected), atol=1e-6)


def test_bilstm_takes_vectors():
    vectors = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    model = BiLSTM(20, 2, hidden=4, vectors=vectors, train_vectors=False)
    assert torch.equal(model.embedding.weight[1:], torch.from_numpy(vectors[1:]))
    assert not model.embedding.weight.requires_grad
    with pytest.raises(InputError, match="one a token id"):
        BiLSTM(19, 2, vectors=vectors)


def test_staged_equals_and_shares_the_user_s_model():
    torch.manual_seed(0)
    model = Plain()
    names = [name for name, _ in model.named_modules()]
    staged = Staged(model, "top.out", embed="words", example=tokens())
    assert [name for name, _ in model.named_modules()] == names, "the model is not changed"
    assert model.training
    assert staged.training
    assert {id(p) for p in staged.parameters()} == {id(p) for p in model.parameters()}
    assert len(list(staged.parameters())) == len(list(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    F.cross_entropy(staged(tokens()), torch.tensor([0, 1, 2])).backward()
    optimizer.step()
    staged.eval(), model.eval()
    assert torch.allclose(staged(tokens()), model(tokens())), "buffers are shared too: BatchNorm has moved in both"
    assert torch.equal(staged.padding(tokens()), tokens() == 0)
    assert torch.equal(Staged(model, model.top["out"]).head.weight, model.top["out"].weight)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: Staged(Plain(), "top.oot"), 'did you mean "top.out"'),
        (lambda: Staged(Plain(), "top.norm"), "Its linear layers: top.out"),
        (lambda: Staged(Plain(), nn.Linear(6, 3)), "nowhere"),
        (
            lambda: Staged(nn.Sequential(nn.Linear(4, 4), nn.LogSoftmax(-1)), "0", example=torch.rand(2, 4)),
            "after the head",
        ),
        (lambda: Stages(3, nn.Linear(1, 1)), "features is a int"),
        (lambda: Staged(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), "0")(torch.rand(2, 3)), "follows the head"),
        (lambda: ResNet(21), "6n"),
        (lambda: ResNet(20, mean=[0.5], std=[0.5]), "3 channels"),
        (lambda: Normalize([0.0], [0.0]), "positive"),
        (lambda: build("resnet21", digits()), 'did you mean "resnet20"|did you mean "resnet'),
        (lambda: build("bilstm", digits()), "token ids"),
        (lambda: build("resnet20", Dataset(np.zeros((3, 2)), np.zeros(3, int), ("a",))), "takes images"),
    ],
)
def test_bad_input(call, hint):
    with pytest.raises(InputError, match=hint):
        call()
