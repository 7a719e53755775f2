"""A meta step looks the same whether or not the model holds its criterion, and its outer loss is the plain one."""

from __future__ import annotations

import copy

import pytest
import torch

from compensate import METHODS, meta_step, methods
from compensate.terms.meta import meta_gradient
from tiny import TinyNet


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
    from compensate.core.stages import under

    x = batch[0]
    first, second = torch.nn.Linear(4, 4, bias=False).double(), torch.nn.Linear(4, 4, bias=False).double()
    second.weight = first.weight
    net = torch.nn.Sequential(first, second)
    net.again = first
    kept = first.weight
    w = torch.randn(4, 4).double().requires_grad_()
    out = under(net, {"0.weight": w}, lambda m: m[1](m.again(x)))
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
