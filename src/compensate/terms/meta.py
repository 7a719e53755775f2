r"""Inference with meta learning: compensation is good if a step under it helps on clean data.

.. math:: \Theta'(W) = \Theta - \eta\, \nabla_\Theta L(\Theta; W), \qquad
          W \leftarrow W - \alpha\, \nabla_W \sum_{j \in \Omega} l(S(f(x_j; \Theta'(W))), y_j)

where :math:`\Omega` is a batch of clean data, :math:`\eta` the step of the model and :math:`\alpha` that of the table.

There are two ways to the same gradient. With :math:`g` the gradient of the outer loss at :math:`\Theta'`,

.. math:: \nabla_W\, l_{\mathrm{outer}}(\Theta') = -\eta\, \nabla_W \left\langle g, \nabla_\Theta L(\Theta; W) \right\rangle
          = -\eta\, \nabla_W \sum_i \left\langle \frac{\partial L}{\partial u_i}(W), \dot u_i \right\rangle

where :math:`\dot u = \frac{d}{d\epsilon} f(x; \Theta + \epsilon g)` is how the logits move along :math:`g`. The left hand side is a second
derivative through the whole model; the right hand side needs one pass of the model with directions and a second derivative
through the loss only.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.stages import run_with_parameters, traceless
from compensate.core.tables import Sample, Table, TouchedRows
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.core.criterion import Compensated

BatchParts = Sequence[Any]
Found = tuple[Tensor, Batch, list[Tensor]]

_WITHOUT_DIRECTIONS: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models with a layer without forward-mode derivative."""


def meta_gradient(
    criterion: Compensated, model: nn.Module, batch: BatchParts, clean: BatchParts, *, lr: float
) -> tuple[Tensor, Batch, list[Tensor], list[Tensor]]:
    """The outer loss and its gradient, first for each touched table in `batch.touched`, then for other parameters.

    The model's parameters, gradients and running statistics are left as they were.
    """
    own = {id(p) for p in criterion.parameters()}  # a model may hold its criterion
    named = ((name, p) for name, p in model.named_parameters() if p.requires_grad and id(p) not in own)
    theta = {name: p.detach().requires_grad_() for name, p in named}
    others = networks(criterion)
    with torch.enable_grad(), traceless(model):
        result = along_direction(criterion, model, theta, others, batch, clean, lr)
        outer, s, grads = result or through_graph(criterion, model, theta, others, batch, clean, lr)
    return outer.detach(), s, grads[: len(s.touched)], grads[len(s.touched) :]


def meta_step(
    criterion: Compensated,
    model: nn.Module,
    batch: BatchParts,
    clean: BatchParts,
    *,
    lr: float,
    optimizer: torch.optim.Optimizer | None = None,
) -> Tensor:
    """One meta step, to be run before the training step on the same batch; returns the outer loss.

    Args:
        criterion: with at least one table of `update="meta"`, or a term with parameters.
        model: in training mode; only looked at.
        batch: `(x, target)`, `(x, target, index)` or `(x, target, index, group)`, the training batch.
        clean: `(x, target)`, a batch of trusted data.
        lr: the learning rate of the model, for the look-ahead.
        optimizer: moves the tables and parameters of the criterion; without one, rows take a plain step of their table's
            own `lr`, with its penalty and bound.

    >>> import torch
    >>> from compensate import methods
    >>> model = torch.nn.Linear(4, 2)
    >>> criterion = methods.meta_logit(num_samples=10, num_classes=2)
    >>> x, y, i = torch.randn(3, 4), torch.tensor([0, 1, 0]), torch.tensor([0, 1, 2])
    >>> outer = meta_step(criterion, model, (x, y, i), (torch.randn(3, 4), torch.tensor([1, 0, 1])), lr=0.1)
    >>> criterion.evaluate(model, x, y, i).loss.backward()                # then the training step, as usual
    """
    outer, s, rows, others = meta_gradient(criterion, model, batch, clean, lr=lr)
    if optimizer is None:
        if others:
            raise InputError(
                "This criterion has parameters besides its tables; give meta_step an optimizer for them, such as "
                "torch.optim.Adam(criterion.parameters())."
            )
        for touched, grad in zip(s.touched, rows, strict=True):
            # The outer loss is shared by all samples: its gradient is a sum already, not one per visit.
            if touched.count is not None:
                grad = grad * touched.count.reshape((-1,) + (1,) * (grad.ndim - 1))
            with torch.no_grad():
                touched.table.descend(touched, -touched.table.sign * grad, s)
        return outer
    optimizer.zero_grad(set_to_none=True)
    for touched, grad in zip(s.touched, rows, strict=True):
        table = touched.table
        if table.penalty is not None:
            grad = grad + table.penalty.subgradient(touched.rows.detach(), s)
        grad = _as_table(touched, grad)
        table.weight.grad = grad if table.weight.grad is None else table.weight.grad + grad
    for parameter, grad in zip(networks(criterion), others, strict=True):
        parameter.grad = grad
    optimizer.step()
    for touched in s.touched:
        if touched.table.bound is not None:
            touched.table.write(touched.keys, touched.table.bound(touched.table.gather(touched.keys).detach()))
    return outer


def _as_table(touched: TouchedRows, grad: Tensor) -> Tensor:
    """A gradient of the whole table; sparse for a table of samples, of which a batch touches few rows."""
    weight = touched.table.weight
    if isinstance(touched.table, Sample):
        return torch.sparse_coo_tensor(touched.keys[None], grad, weight.shape, check_invariants=False)
    return torch.zeros_like(weight).index_copy_(0, touched.keys, grad)


def networks(criterion: Compensated) -> list[nn.Parameter]:
    """Parameters of a criterion that belong to no table: for example of networks that weigh samples.

    >>> from compensate import methods
    >>> len(networks(methods.logcomp(num_samples=8, num_classes=2))), len(networks(methods.meta_weight()))
    (0, 4)
    """
    tables = {id(p) for m in criterion.modules() if isinstance(m, Table) for p in m.parameters(False)}
    return [p for p in criterion.parameters() if id(p) not in tables and p.requires_grad]


def through_graph(
    criterion: Compensated,
    model: nn.Module,
    theta: dict[str, Tensor],
    others: list[nn.Parameter],
    batch: BatchParts,
    clean: BatchParts,
    lr: float,
) -> Found:
    """Outer loss, state and gradients for rows and other parameters, by a second derivative: for every criterion and model."""
    x, target, (index, group) = _parts(batch)
    s: Batch = run_with_parameters(
        model, theta, lambda m: criterion.evaluate(m, x, target, index, group=group, meta=True)
    )
    grads = torch.autograd.grad(s.loss.mean(), list(theta.values()), create_graph=True, materialize_grads=True)
    ahead = {name: p - lr * g for (name, p), g in zip(theta.items(), grads, strict=True)}
    outer = run_with_parameters(model, ahead, lambda m: plain_loss(criterion, m, clean))
    return outer, s, list(torch.autograd.grad(outer, _wanted(s, others), materialize_grads=True))


def along_direction(
    criterion: Compensated,
    model: nn.Module,
    theta: dict[str, Tensor],
    others: list[nn.Parameter],
    batch: BatchParts,
    clean: BatchParts,
    lr: float,
) -> Found | None:
    """The same by a pass with directions; None if the criterion needs more than logits, or a layer has no such pass."""
    if criterion.before_logits or model in _WITHOUT_DIRECTIONS:
        return None
    x, target, (index, group) = _parts(batch)
    before = torch.get_rng_state()
    u = run_with_parameters(model, theta, lambda m: m(x))
    leaf = u.detach().requires_grad_()
    try:
        s = criterion.infer(Batch(criterion, target, index, group, logits=leaf, meta=True))
    except InputError:  # a term needs the model, or the other way will raise the same error
        torch.set_rng_state(before)
        return None
    wanted = _wanted(s, others)
    (slope,) = torch.autograd.grad(s.loss.mean(), leaf, create_graph=True)
    grads = torch.autograd.grad(u, list(theta.values()), slope.detach(), materialize_grads=True)
    ahead = {name: (p.detach() - lr * g).requires_grad_() for (name, p), g in zip(theta.items(), grads, strict=True)}
    outer = run_with_parameters(model, ahead, lambda m: plain_loss(criterion, m, clean))
    way = torch.autograd.grad(outer, list(ahead.values()), materialize_grads=True)
    moved = _moved(model, dict(zip(theta, way, strict=True)), theta, lambda m: m(x), before)
    if moved is None:
        torch.set_rng_state(before)
        _WITHOUT_DIRECTIONS.add(model)
        return None
    along = (slope * moved).sum()
    if not along.requires_grad:
        return outer, s, [torch.zeros_like(w) for w in wanted]
    return outer, s, [-lr * g for g in torch.autograd.grad(along, wanted, materialize_grads=True)]


def _moved(
    model: nn.Module,
    way: dict[str, Tensor],
    theta: dict[str, Tensor],
    run: Callable[[nn.Module], Tensor],
    random: Tensor,
) -> Tensor | None:
    """The derivative of the outputs along the direction `way` of the parameters; None if a layer has no forward derivative."""
    with torch.no_grad(), forward_mode.dual_level(), torch.random.fork_rng(devices=()), warnings.catch_warnings():
        torch.set_rng_state(random)  # the same dropout masks
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of how it writes some of these derivatives
        duals = {name: forward_mode.make_dual(p.detach(), way[name]) for name, p in theta.items()}
        try:
            out = run_with_parameters(model, duals, run)
        except (NotImplementedError, RuntimeError):
            return None
        moved = forward_mode.unpack_dual(out).tangent
        return torch.zeros_like(out) if moved is None else moved.clone()


def _parts(batch: BatchParts) -> tuple[Any, Tensor, tuple[Tensor | None, Tensor | None]]:
    return batch[0], batch[1], (*batch[2:], None, None)[:2]


def _wanted(s: Batch, others: list[nn.Parameter]) -> list[Tensor]:
    wanted = [touched.rows for touched in s.touched] + others
    if not wanted:
        raise InputError(
            "meta_step found nothing to learn: no table of this criterion has update='meta' and no term has "
            "parameters. Write for example Category(num_classes, 1, update='meta')."
        )
    return wanted


def plain_loss(criterion: Compensated, model: nn.Module, clean: BatchParts) -> Tensor:
    """The outer loss: the plain mean over clean data, without compensation and without class weights.

    Class weights correct a skewed training set; clean data need no correction.
    """
    x, target, (index, group) = _parts(clean)
    s = Batch(criterion, target, index, group, model=model, x=x)
    return criterion.losses_of(s, s.u).sum() / criterion.divisor(s, weighted=False)
