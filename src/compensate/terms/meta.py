r"""Inference with meta learning: compensation is good if a step under it helps on clean data.

.. math:: \Theta'(W) = \Theta - \eta\, \nabla_\Theta L(\Theta; W), \qquad
          W \leftarrow W - \alpha\, \nabla_W \sum_{j \in \Omega} l(S(f(x_j; \Theta'(W))), y_j)

where :math:`\Omega` is a batch of clean data, :math:`\eta` the step of the model and :math:`\alpha` that of the table. With :math:`g` the gradient
of the outer loss at :math:`\Theta'` and :math:`\dot u` the derivative of the logits along :math:`g`, the gradient is
:math:`-\eta\, \nabla_W \langle g, \nabla_\Theta L(\Theta; W) \rangle`, a second derivative through the model, or
:math:`-\eta\, \nabla_W \sum_i \langle \partial L / \partial u_i (W), \dot u_i \rangle`, one through the loss only.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.stages import run_with_parameters, traceless
from compensate.core.tables import Sample, Table
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.core.criterion import Compensated

BatchParts = Sequence[Any]
Found = tuple[Tensor, Batch, list[Tensor]]
"""The outer loss, the batch, and gradients for its touched rows and for other parameters."""

_WITHOUT_DIRECTIONS: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models with a layer without forward-mode derivative."""


def meta_gradient(
    criterion: Compensated, model: nn.Module, batch: BatchParts, clean: BatchParts, *, lr: float
) -> tuple[Tensor, Batch, list[Tensor], list[Tensor]]:
    """The outer loss and its gradient, first for each touched table in `batch.touched`, then for other parameters.

    The model's parameters, gradients and running statistics are left as they were.
    """
    with torch.enable_grad(), traceless(model):
        result = along_direction(criterion, model, batch, clean, lr)
        outer, s, grads = result or through_graph(criterion, model, batch, clean, lr)
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
                "This criterion has parameters besides its tables; give meta_step an optimizer for them, such as torch.optim.Adam(criterion.parameters())."
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
        if isinstance(table, Sample):  # of which a batch touches few rows
            grad = torch.sparse_coo_tensor(touched.keys[None], grad, table.weight.shape, check_invariants=False)
        else:
            grad = torch.zeros_like(table.weight).index_copy_(0, touched.keys, grad)
        table.weight.grad = grad if table.weight.grad is None else table.weight.grad + grad
    for parameter, grad in zip(networks(criterion), others, strict=True):
        parameter.grad = grad
    optimizer.step()
    for touched in s.touched:
        if touched.table.bound is not None:
            touched.table.write(touched.keys, touched.table.bound(touched.table.gather(touched.keys).detach()))
    return outer


def networks(criterion: Compensated) -> list[nn.Parameter]:
    """Parameters of a criterion that belong to no table: for example of networks that weigh samples.

    >>> from compensate import methods
    >>> len(networks(methods.logcomp(num_samples=8, num_classes=2))), len(networks(methods.meta_weight()))
    (0, 4)
    """
    tables = {id(p) for m in criterion.modules() if isinstance(m, Table) for p in m.parameters(False)}
    return [p for p in criterion.parameters() if id(p) not in tables and p.requires_grad]


def _parameters(criterion: Compensated, model: nn.Module) -> dict[str, Tensor]:
    own = {id(p) for p in criterion.parameters()}  # a model may hold its criterion
    named = ((name, p) for name, p in model.named_parameters() if p.requires_grad and id(p) not in own)
    return {name: p.detach().requires_grad_() for name, p in named}


def _wanted(criterion: Compensated, s: Batch) -> list[Tensor]:
    wanted = [touched.rows for touched in s.touched] + networks(criterion)
    if not wanted:
        raise InputError(
            "meta_step found nothing to learn: no table of this criterion has update='meta' and no term has "
            "parameters. Write for example Category(num_classes, 1, update='meta')."
        )
    return wanted


def _outer_loss(criterion: Compensated, model: nn.Module, ahead: dict[str, Tensor], clean: BatchParts) -> Tensor:
    """The mean over clean data with the parameters of the model after a step, without class weights."""
    x, target, index, group = (*clean, None, None)[:4]

    def run(model: nn.Module) -> Tensor:
        s = Batch(criterion, target, index, group, model=model, x=x)
        return criterion.losses_of(s, s.u).sum() / criterion.divisor(s, weighted=False)

    return run_with_parameters(model, ahead, run)


def through_graph(criterion: Compensated, model: nn.Module, batch: BatchParts, clean: BatchParts, lr: float) -> Found:
    """The gradient by a second derivative: for every criterion and model."""
    theta = _parameters(criterion, model)
    x, target, index, group = (*batch, None, None)[:4]
    s: Batch = run_with_parameters(
        model, theta, lambda m: criterion.evaluate(m, x, target, index, group=group, meta=True)
    )
    grads = torch.autograd.grad(s.loss.mean(), list(theta.values()), create_graph=True, materialize_grads=True)
    ahead = {name: p - lr * g for (name, p), g in zip(theta.items(), grads, strict=True)}
    outer = _outer_loss(criterion, model, ahead, clean)
    return outer, s, list(torch.autograd.grad(outer, _wanted(criterion, s), materialize_grads=True))


def along_direction(
    criterion: Compensated, model: nn.Module, batch: BatchParts, clean: BatchParts, lr: float
) -> Found | None:
    """The same by a pass with directions; None if the criterion needs more than logits, or a layer has no such pass."""
    if criterion.before_logits or model in _WITHOUT_DIRECTIONS:
        return None
    theta = _parameters(criterion, model)
    x, target, index, group = (*batch, None, None)[:4]
    random = torch.get_rng_state()
    u = run_with_parameters(model, theta, lambda m: m(x))
    leaf = u.detach().requires_grad_()
    try:
        s = criterion.infer(Batch(criterion, target, index, group, logits=leaf, meta=True))
    except InputError:  # a term needs the model, or the other way will raise the same error
        torch.set_rng_state(random)
        return None
    wanted = _wanted(criterion, s)
    (slope,) = torch.autograd.grad(s.loss.mean(), leaf, create_graph=True)
    grads = torch.autograd.grad(u, list(theta.values()), slope.detach(), materialize_grads=True)
    ahead = {name: p - lr * g for (name, p), g in zip(theta.items(), grads, strict=True)}
    outer = _outer_loss(criterion, model, ahead, clean)
    way = dict(zip(theta, torch.autograd.grad(outer, list(ahead.values()), materialize_grads=True), strict=True))
    with torch.no_grad(), forward_mode.dual_level(), torch.random.fork_rng(devices=()), warnings.catch_warnings():
        torch.set_rng_state(random)  # the same dropout masks
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of how it writes some of these derivatives
        duals = {name: forward_mode.make_dual(p.detach(), way[name]) for name, p in theta.items()}
        try:
            out = run_with_parameters(model, duals, lambda m: m(x))
        except (NotImplementedError, RuntimeError):
            out = None
        moved = None if out is None else forward_mode.unpack_dual(out).tangent
        moved = torch.zeros_like(u) if moved is None else moved.clone()
    if out is None:
        torch.set_rng_state(random)
        _WITHOUT_DIRECTIONS.add(model)
        return None
    along = (slope * moved).sum()
    if not along.requires_grad:
        return outer, s, [torch.zeros_like(w) for w in wanted]
    return outer, s, [-lr * g for g in torch.autograd.grad(along, wanted, materialize_grads=True)]
