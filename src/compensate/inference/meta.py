r"""Inference with meta learning: compensation is good if a step under it helps on clean data.

.. math:: \Theta'(W) = \Theta - \eta\, \nabla_\Theta L(\Theta; W), \qquad
          W \leftarrow W - \alpha\, \nabla_W \sum_{j \in \Omega} l(S(f(x_j; \Theta'(W))), y_j)

where :math:`\Omega` is a batch of clean data, :math:`\eta` the step of the model and :math:`\alpha` that of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from compensate.errors import InputError
from compensate.forwards import traceless
from compensate.granularity import Sample, Table
from compensate.inference.lookahead import Batch, along_direction, through_graph
from compensate.state import State, Touched

if TYPE_CHECKING:
    from compensate.equation import Compensated


def meta_gradient(
    criterion: Compensated, model: nn.Module, batch: Batch, clean: Batch, *, lr: float
) -> tuple[Tensor, State, list[Tensor], list[Tensor]]:
    """The outer loss and its gradient, first for each touched table in `state.touched`, then for other parameters.

    The model's parameters, gradients and running statistics are left as they were.
    """
    own = {id(p) for p in criterion.parameters()}  # a model may hold its criterion
    named = ((name, p) for name, p in model.named_parameters() if p.requires_grad and id(p) not in own)
    theta = {name: p.detach().requires_grad_() for name, p in named}
    others = networks(criterion)
    with torch.enable_grad(), traceless(model):
        found = along_direction(criterion, model, theta, others, batch, clean, lr)
        outer, s, grads = found or through_graph(criterion, model, theta, others, batch, clean, lr)
    return outer.detach(), s, grads[: len(s.touched)], grads[len(s.touched) :]


def meta_step(
    criterion: Compensated,
    model: nn.Module,
    batch: Batch,
    clean: Batch,
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


def _as_table(touched: Touched, grad: Tensor) -> Tensor:
    """A gradient of the whole table; sparse for a table of samples, of which a batch touches few rows."""
    weight = touched.table.weight
    if isinstance(touched.table, Sample):
        return torch.sparse_coo_tensor(touched.keys[None], grad, weight.shape, check_invariants=False)
    return torch.zeros_like(weight).index_copy_(0, touched.keys, grad)


def networks(criterion: Compensated) -> list[nn.Parameter]:
    """Parameters of a criterion that belong to no table: those of networks that weigh samples, for example.

    >>> from compensate import methods
    >>> len(networks(methods.logcomp(num_samples=8, num_classes=2))), len(networks(methods.meta_weight()))
    (0, 4)
    """
    tables = {id(p) for m in criterion.modules() if isinstance(m, Table) for p in m.parameters(False)}
    return [p for p in criterion.parameters() if id(p) not in tables and p.requires_grad]
