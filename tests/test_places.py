"""Dense outputs: logits with places are the flattened call, whatever is kept of samples, places, classes and groups."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate import METHODS, Compensated, InputError, methods
from compensate.terms import L1, Adversarial, Category, Evidence, Sample, Top, Where, above

B, C, PLACES = 4, 3, (2, 3)
ROWS = B * 2 * 3


class DenseNet(nn.Module):
    """A network of 1 x 1 convolutions: what it says of a place depends on that place alone."""

    def __init__(self, classes: int = C) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.Tanh())
        self.head = nn.Conv2d(6, classes, 1)

    def embed(self, x: Tensor) -> Tensor:
        return x

    def features(self, e: Tensor) -> Tensor:
        return self.body(e)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x)))


class FlatNet(nn.Module):
    """The same network for places one by one."""

    def __init__(self, net: DenseNet) -> None:
        super().__init__()
        conv, norm, _ = net.body
        self.linear, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, net.head.out_channels)
        self.norm.load_state_dict(norm.state_dict())
        with torch.no_grad():
            for mine, theirs in ((self.linear, conv), (self.head, net.head)):
                mine.weight.copy_(theirs.weight.flatten(1))
                mine.bias.copy_(theirs.bias)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def rows(values: Tensor) -> Tensor:
    return values.movedim(1, -1).flatten(0, -2)


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    x, y = torch.randn(B, 4, *PLACES), torch.randint(C, (B, *PLACES))
    y[0, 0, 0] = -100
    return x, y, torch.randperm(2 * ROWS)[:ROWS].reshape(B, *PLACES)


SIZES = {
    "num_samples": 2 * ROWS, "num_classes": C, "class_counts": [20, 12, 8], "feature_dim": 6, "feature_shape": (4, *PLACES),
}  # fmt: skip
BEFORE_LOGITS = [name for name, row in METHODS.items() if {*row.taxonomy.target.split("+")} & {"feature", "structure"}]
VIEWS = [name for name, row in METHODS.items() if row.make(**SIZES).views is not None]


def made(name: str) -> Compensated:
    torch.manual_seed(1)
    return METHODS[name].make(**SIZES).start(10)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in BEFORE_LOGITS + VIEWS])
def test_every_method_with_a_row_for_each_place_is_the_flattened_call(name):
    x, y, i = batch()
    net = DenseNet(C + METHODS[name].extra_outputs)
    flat = FlatNet(net)
    dense, plain = made(name), made(name)
    for _ in range(3):
        torch.manual_seed(2)
        here = dense.evaluate(net, x, y, i)
        here.loss.backward()
        torch.manual_seed(2)
        there = plain.evaluate(flat, rows(x), y.flatten(), i.flatten())
        there.loss.backward()
        torch.testing.assert_close(here.loss, there.loss)
        torch.testing.assert_close(here.losses, there.losses)
    dense.end_epoch()
    plain.end_epoch()
    torch.testing.assert_close(net.head.weight.grad.flatten(1), flat.head.weight.grad, rtol=1e-4, atol=1e-6)
    for (key, a), b in zip(dense.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", BEFORE_LOGITS)
def test_methods_on_inputs_run_with_a_row_for_each_sample_or_say_why_not(name):
    if METHODS[name].taxonomy.target == "structure":
        return  # nodes of a graph are its samples
    x, y, _ = batch()
    net, criterion = DenseNet(), made(name)
    try:
        s = criterion.evaluate(net, x, y, torch.arange(B))
    except InputError as error:
        assert "has 6" in str(error) or "6 places" in str(error), error  # noqa: PT017 - either way is right
        return
    s.loss.backward()
    assert s.loss.isfinite()
    assert net.head.weight.grad.abs().sum() > 0
    if s.dx is not None:
        assert len(s.dx) == B


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 2.0, 1.0])])
@pytest.mark.parametrize("soft", [False, True])
def test_without_terms_it_is_torchs_loss(reduction, weight, soft):
    u, y, _ = torch.randn(B, C, *PLACES, requires_grad=True), *batch()[1:]
    target = torch.randn(B, C, *PLACES).softmax(1) if soft else y
    found = Compensated(reduction=reduction, weight=weight)(u, target)
    expected = F.cross_entropy(u, target, reduction=reduction, weight=weight)
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(loss.sum(), u)[0] for loss in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_a_sample_takes_one_step_by_the_mean_over_its_places():
    """Against a loop over places, by hand."""
    u, y, i = torch.randn(B, C, *PLACES).double(), batch()[1], torch.tensor([5, 0, 9, 2])
    lam, lr = 0.1, 2.0
    criterion = Compensated(logit=Sample(10, C, penalty=L1(lam), lr=lr)).double()
    expected = torch.zeros(10, C, dtype=torch.double)
    for _ in range(3):
        criterion(u.clone().requires_grad_(), y, i).backward()
        for b in range(B):
            slopes = [
                (u[b, :, h, w] + expected[i[b]]).softmax(0) - F.one_hot(y[b, h, w], C)
                for h in range(2) for w in range(3) if y[b, h, w] != -100
            ]  # fmt: skip
            v = expected[i[b]] - lr * torch.stack(slopes).mean(0)
            expected[i[b]] = v.sign() * (v.abs() - lr * lam).clamp(min=0)
    table = next(criterion.tables())
    torch.testing.assert_close(table.dense(), expected)
    assert expected.abs().sum() > 0


def test_a_record_of_samples_is_the_mean_over_their_places():
    u, y, i = torch.randn(B, C, *PLACES), batch()[1], torch.tensor([3, 1, 0, 4])
    criterion = Compensated(record=Evidence(5, score="loss"))
    for _ in range(2):
        criterion(u.clone().requires_grad_(), y, i)
    losses = F.cross_entropy(u, y, reduction="none")
    expected = losses.flatten(1).sum(1) / (y != -100).flatten(1).sum(1)
    torch.testing.assert_close(criterion.record.mean("loss")[i], expected)
    assert criterion.record.visits.tolist() == [2, 2, 0, 2, 2]
    found = criterion.suspects()
    assert found.index.tolist() == i[expected.argsort(descending=True)].tolist()
    assert found.suggested.tolist() == [-1] * 4


def test_what_keeps_a_value_of_its_own_asks_for_the_index_of_places():
    u, y = torch.randn(B, C, *PLACES, requires_grad=True), batch()[1]
    criterion = Compensated(logit=Where(above(Top(50, "epoch", 24)), Sample(24, C, penalty=L1(0.1))))
    with pytest.raises(InputError, match=r"index names samples with 6 places.*\(batch, d1, ...\)"):
        criterion(u, y, torch.arange(B))
    criterion(u, y, torch.arange(24).reshape(B, *PLACES)).backward()


def test_an_input_moves_by_the_mean_over_its_places_in_the_backward_pass():
    x, y, _ = batch()
    y[0, 0, 0] = 1
    net = DenseNet().eval()
    table = Sample(B, 4, 2, 3, penalty=None, lr=1.0)
    s = Compensated(feature=table).evaluate(net, x, y, torch.arange(B))
    (s.loss * 3).backward()  # a scale of the loss changes nothing
    leaf = x.clone().requires_grad_()
    losses = F.cross_entropy(net(leaf), y, reduction="none").flatten(1).mean(1)
    torch.testing.assert_close(table.dense(), -torch.autograd.grad(losses.sum(), leaf)[0])


def test_gates_and_classes_of_inputs_are_refused_with_a_reason():
    x, y, _ = batch()
    for feature, why in (
        (Where(above(0.5), Adversarial(0.1)), "gate on features asks for one loss of each input.* has 6"),
        (Category(C, 4, 2, 3, penalty=L1(0.1)), "asks for the class of each input.* has 6 labels"),
    ):
        with pytest.raises(InputError, match=why):
            Compensated(feature=feature).evaluate(DenseNet(), x, y)


@pytest.mark.parametrize(
    ("logits", "target", "index", "why"),
    [
        ((4, 3), (4, 2), None, r"expected \(batch, classes, ...\) = \(4, C, 2\)"),
        ((4, 3, 5), (4,), None, r"expected \(batch, classes\) for \(batch,\)"),
        ((4, 3, 5), (4, 6), None, r"\(4, C, 6\)"),
        ((3, 3, 5), (4, 5), None, r"\(4, C, 5\)"),
        ((4, 3, 5), (4, 5), (4, 6), r"expected \(4,\), one row per sample or \(4, 5\)"),
        ((4, 3, 5), (4, 5), (20,), r"expected \(4,\), one row per sample or \(4, 5\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(logits, target, index, why):
    criterion = methods.logcomp(num_samples=40, num_classes=3)
    given = torch.arange(4) if index is None else torch.zeros(index, dtype=torch.long)
    with pytest.raises(InputError, match=why):
        criterion(torch.randn(logits, requires_grad=True), torch.zeros(target, dtype=torch.long), given)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # what torch says of itself
def test_a_compiled_call_on_places_is_the_plain_one():
    u, y, i = torch.randn(B, C, *PLACES), batch()[1], torch.arange(B)
    found = []
    for compiled in (False, True):
        criterion = methods.logcomp(num_samples=B, num_classes=C)
        criterion.check = "off"
        call = torch.compile(criterion, backend="eager", fullgraph=True) if compiled else criterion
        for _ in range(2):
            given = u.clone().requires_grad_()
            loss = call(given, y, i)
            loss.backward()
        found.append((loss.detach(), given.grad, next(criterion.tables()).dense()))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
