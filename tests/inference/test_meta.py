"""Meta steps against finite differences, by either way of looking ahead."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate import METHODS, Compensated, InputError, meta_step, methods
from compensate.core.stages import traceless
from compensate.terms import L1, Category, Corpus, Group, Sample, Slack, Toward, uniform
from compensate.terms.meta import along_direction, meta_gradient, through_graph
from tiny import TinyNet


# Meta
def look_ahead(criterion, model, batch, clean, lr):
    """The outer loss, computed the plain way on copies: one real SGD step, then the clean loss."""
    model, criterion = copy.deepcopy(model), copy.deepcopy(criterion)
    for table in criterion.tables():
        table.update = "manual"
    criterion.evaluate(model, *batch).loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
        return F.cross_entropy(model(clean[0]), clean[1]).item()


class Adjusted(torch.nn.Module):
    """A category-level strength of logit adjustment."""

    def __init__(self):
        super().__init__()
        self.tau = Category(3, 1, update="meta", init=1.0)

    def forward(self, s):
        return self.tau(s) * torch.tensor([0.5, 0.3, 0.2]).double().log()


CRITERIA = {
    "sample logit": lambda: Compensated(logit=Sample(9, 3, update="meta", init=0.1)),
    "category logit": lambda: Compensated(logit=Category(3, 3, update="meta", init=0.1)),
    "corpus logit": lambda: Compensated(logit=Corpus(3, update="meta", init=0.1)),
    "with class weights": lambda: Compensated(
        logit=Category(3, 3, update="meta", init=0.1), weight=torch.tensor([0.2, 1.0, 3.0])
    ),
    "strength of a formula": lambda: Compensated(logit=Adjusted()),
    "trust in a guess": lambda: Compensated(label=Toward(uniform, Category(3, 1, update="meta", init=0.2))),
    "slack of the loss": lambda: Compensated(loss=Slack(Sample(9, update="meta", init=0.1), temperature=0.5)),
    "feature": lambda: Compensated(feature=Category(3, 4, update="meta", init=0.05)),
    "gradient": lambda: Compensated(gradient=Category(3, 3, update="meta", init=0.1)),
}


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("lr", [0.1, 0.7])
def test_gradient_equals_finite_differences(name, lr, tiny, batch):
    """The model has batch normalization; both sides use batch statistics."""
    criterion = CRITERIA[name]().double()
    clean = torch.randn(6, 4).double(), torch.randint(3, (6,))
    tiny.train()
    outer, s, (grad,), _ = meta_gradient(criterion, tiny, batch, clean, lr=lr)
    assert outer.item() == pytest.approx(look_ahead(criterion, tiny, batch, clean, lr), rel=1e-10)
    (touched,) = s.touched
    assert grad.abs().max() > 1e-6
    weight = next(criterion.tables()).weight
    for row, key in enumerate(touched.keys.tolist()):
        flat = weight.detach()[key].reshape(-1)
        for j in range(flat.numel()):
            values = []
            for h in (1e-5, -1e-5):
                other = copy.deepcopy(criterion)
                with torch.no_grad():
                    next(other.tables()).weight[key].reshape(-1)[j] += h
                values.append(look_ahead(other, tiny, batch, clean, lr))
            numeric = (values[0] - values[1]) / 2e-5
            assert grad[row].reshape(-1)[j].item() == pytest.approx(numeric, abs=1e-6)


def test_the_model_is_left_alone(tiny, batch):
    criterion = CRITERIA["sample logit"]().double()
    clean = torch.randn(6, 4).double(), torch.randint(3, (6,))
    tiny(batch[0]).sum().backward()
    before = copy.deepcopy(tiny.state_dict())
    grads = [p.grad.clone() for p in tiny.parameters()]
    meta_step(criterion, tiny, batch, clean, lr=0.1)
    for name, value in tiny.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(torch.equal(p.grad, g) for p, g in zip(tiny.parameters(), grads, strict=True))
    assert int(criterion.step) == 0
    with pytest.raises(InputError, match="nothing to learn"):
        meta_step(Compensated(logit=Sample(9, 3, penalty=L1(0.1))), tiny, batch, clean, lr=0.1)


def test_rows_of_absent_samples_rest_and_the_others_descend(tiny, batch):
    criterion = CRITERIA["sample logit"]().double()
    clean = torch.randn(6, 4).double(), torch.randint(3, (6,))
    table = next(criterion.tables())
    before = table.weight.detach().clone()
    _, s, (grad,), _ = meta_gradient(criterion, tiny, batch, clean, lr=0.5)
    first = meta_step(criterion, tiny, batch, clean, lr=0.5)
    absent = [i for i in range(9) if i not in batch[2]]
    assert torch.equal(table.weight[absent], before[absent])
    assert torch.allclose(table.weight[s.touched[0].keys], before[s.touched[0].keys] - grad)
    for _ in range(20):
        last = meta_step(criterion, tiny, batch, clean, lr=0.5)
    assert last < first


@pytest.mark.parametrize("kind", ["sample logit", "category logit"])
def test_an_optimizer_may_move_the_tables(kind, tiny, batch):
    criterion = CRITERIA[kind]().double()
    clean = torch.randn(6, 4).double(), torch.randint(3, (6,))
    _, s, (grad,), _ = meta_gradient(criterion, tiny, batch, clean, lr=0.5)
    table = next(criterion.tables())
    before = table.weight.detach().clone()
    meta_step(criterion, tiny, batch, clean, lr=0.5, optimizer=torch.optim.SGD(criterion.parameters(), lr=0.3))
    expected = before.clone()
    expected[s.touched[0].keys] -= 0.3 * grad
    assert torch.allclose(table.weight, expected)


def test_groups_learn_and_ignored_clean_samples_do_not_count(tiny, batch):
    x, y, i = batch
    clean = torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, -100])
    criterion = Compensated(logit=Group(2, 3, update="meta")).double()
    outer = meta_step(criterion, tiny, (x, y, i, y % 2), clean, lr=0.1)
    assert next(criterion.tables()).weight.abs().min() > 0
    assert outer == meta_step(
        Compensated(logit=Group(2, 3, update="meta")).double(), tiny, (x, y, i, y % 2), clean, lr=0.1
    )
    tiny.eval()
    dropped = meta_gradient(criterion, tiny, (x, y, i, y % 2), (clean[0][:5], clean[1][:5]), lr=0.1)[0]
    assert torch.allclose(meta_gradient(criterion, tiny, (x, y, i, y % 2), clean, lr=0.1)[0], dropped)


# Lookahead
def both(criterion: Compensated, model: nn.Module, batch: Any, clean: Any) -> list[Any]:
    """What each way finds, and where it leaves the random numbers."""
    found = []
    for way in (along_direction, through_graph):
        torch.manual_seed(3)
        with traceless(model):
            result = way(criterion, model, batch, clean, 0.5)
        found.append(None if result is None else (result[0].detach(), *result[2], torch.rand(3)))
    return found


LOOKAHEAD = {**CRITERIA, "label": lambda: Compensated(label=Sample(9, 3, update="meta"))}


@pytest.mark.parametrize("name", sorted(LOOKAHEAD.keys() - {"feature"}))
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_both_ways_find_one_gradient(name: str, dropout: float, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    model, criterion = TinyNet(dropout=dropout).double(), LOOKAHEAD[name]().double()
    clean = torch.randn(4, 4).double(), torch.tensor([0, 1, 2, 1])
    short, long = both(criterion, model, batch, clean)
    assert short is not None
    for a, b in zip(short, long, strict=True):
        torch.testing.assert_close(a, b)
    assert short[1].abs().max() > 0


class NoDirections(torch.autograd.Function):
    """A layer without a forward derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Odd(TinyNet):
    def forward(self, x: Tensor) -> Tensor:
        return NoDirections.apply(super().forward(x))


def test_a_layer_without_directions_and_a_term_on_features_take_the_long_way(
    batch: tuple[Tensor, Tensor, Tensor],
) -> None:
    clean = torch.randn(4, 4).double(), torch.tensor([0, 1, 2, 1])
    odd = both(CRITERIA["sample logit"]().double(), Odd().double(), batch, clean)
    assert odd[0] is None
    assert odd[1] is not None
    reads_features = METHODS["metasaug"].build(num_classes=3, feature_dim=6).start(10).double()
    assert both(reads_features, TinyNet().double(), batch, clean)[0] is None


# Meta registered
@pytest.mark.parametrize("method", ["meta_logit", "meta_weight"])
def test_a_model_may_hold_its_criterion(method, batch):
    x, y, index = batch
    sizes = {"num_samples": 9, "num_classes": 3} if method == "meta_logit" else {}
    apart, model = getattr(methods, method)(**sizes).double(), TinyNet().double()
    registered, holder = copy.deepcopy(apart), copy.deepcopy(model)
    holder.criterion = registered
    clean = (torch.randn(6, 4).double(), torch.arange(6) % 3)
    for criterion, net in ((apart, model), (registered, holder)):
        optimizer = torch.optim.SGD(criterion.parameters(), lr=1.0)
        meta_step(criterion, net, (x, y, index), clean, lr=0.5, optimizer=optimizer)
    moved = [not torch.equal(p, torch.zeros_like(p)) for p in apart.parameters()]
    assert any(moved)
    for one, other in zip(apart.parameters(), registered.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_layer_under_two_names_and_a_parameter_in_two_layers(batch):
    """The model is left as it was, and both uses of a parameter count."""
    from compensate.core.stages import run_with_parameters

    x = batch[0]
    first, second = torch.nn.Linear(4, 4, bias=False).double(), torch.nn.Linear(4, 4, bias=False).double()
    second.weight = first.weight
    net = torch.nn.Sequential(first, second)
    net.again = first
    kept = first.weight
    w = torch.randn(4, 4).double().requires_grad_()
    out = run_with_parameters(net, {"0.weight": w}, lambda m: m[1](m.again(x)))
    torch.testing.assert_close(out, x @ w.T @ w.T)
    assert first.weight is kept
    assert second.weight is kept
    net.again(x).sum().backward()
    net.again(x).sum().backward()  # no graph of the look-ahead has stayed in the model


CLEAN = [name for name, row in METHODS.items() if "clean" in row.needs]


@pytest.mark.parametrize("name", CLEAN)
def test_the_outer_loss_is_the_plain_loss_whatever_the_class_weights(name):
    """A step of length 0 leaves the model as it is, so that its loss on clean data is what torch says."""
    sizes = {"num_samples": 9, "num_classes": 3, "class_counts": [20, 12, 2], "feature_dim": 6, "feature_shape": (4,)}
    criterion, model = METHODS[name].make(**sizes).start(10), TinyNet()
    clean = torch.randn(6, 4), torch.arange(6) % 3
    batch = torch.randn(5, 4), torch.arange(5) % 3, torch.arange(5)
    expected = torch.nn.functional.cross_entropy(model(clean[0]), clean[1]).detach()
    for weight in (criterion.weight, torch.tensor([0.1, 1.0, 5.0])):
        criterion.weight = weight
        torch.testing.assert_close(meta_gradient(criterion, model, batch, clean, lr=0.0)[0], expected)
