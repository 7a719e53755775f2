"""The meta step against finite differences; it looks at the model and leaves no trace."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from compensate import Compensated, InputError, meta_step
from compensate.terms import L1, Category, Corpus, Group, Sample, Slack, Toward, uniform
from compensate.terms.meta import meta_gradient


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


def logit_adjusted(s, table):
    return table(s) * torch.tensor([0.5, 0.3, 0.2]).double().log()


class Adjusted(torch.nn.Module):
    """A category-level strength of logit adjustment."""

    def __init__(self):
        super().__init__()
        self.tau = Category(3, 1, update="meta", init=1.0)

    def forward(self, s):
        return logit_adjusted(s, self.tau)


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


def test_nothing_to_learn_is_an_error(tiny, batch):
    with pytest.raises(InputError, match="nothing to learn"):
        meta_step(Compensated(logit=Sample(9, 3, penalty=L1(0.1))), tiny, batch, batch[:2], lr=0.1)
