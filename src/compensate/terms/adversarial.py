r"""Inference with adversarial learning: an inner loop searches a ball for the worst, or the best, value.

.. math:: \Delta^* = \arg\max_{\|\Delta\| \le \epsilon} \pm \sum_i l_i(\Delta)
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import THROUGH, Batch, Value, at
from compensate.core.layout import distinct_rows, present_rows, rowwise
from compensate.core.proximal import TINY, Norm, project_ball, row_norm
from compensate.core.tables import Fresh, Table
from compensate.errors import InputError, check, one_of


@final
class Adversarial(nn.Module):
    r"""Projected gradient steps on the loss of the batch, for any target and any granularity.

    .. math:: W \leftarrow \Pi_{\epsilon}\bigl( W \pm \alpha\, n(\nabla_W \textstyle\sum_i l_i) \bigr), \qquad
              \Delta_i = W[k_i]

    where :math:`\Pi_\epsilon` projects each row on its ball and :math:`n` is the sign (linf) or the direction (l2) of each
    row. The gradient is taken with respect to the rows :math:`W`, so the samples that share a row add up.

    Args:
        eps: the radius :math:`\epsilon`, a number or a callable of the batch that returns a scalar or (B,).
        sign: +1 raises the loss (negative compensation), -1 lowers it (positive compensation).
        norm: "linf" or "l2".
        steps: the number of steps.
        step_size: :math:`\alpha`; 2.5 eps / steps if not given.
        random_start: start at a random point of the ball, for rows that are not kept.
        bounds: the smallest and largest value that the compensated target may take, such as (0, 1) for images.
        per: `Fresh()`, a new row for each sample, or a table, which keeps its rows between steps.

    >>> from compensate import Compensated
    >>> from compensate.terms import Corpus
    >>> pgd_training = Compensated(feature=Adversarial(8 / 255, bounds=(0, 1)))
    >>> universal = Compensated(feature=Adversarial(8 / 255, per=Corpus(3, 32, 32), steps=1))

    References: Madry et al., ICLR 2018; Yao and Wu, Compensation Learning, 2021, Eqs. (15), (16), (18), (22)-(24).
    """

    inference = "adversarial"

    def __init__(
        self,
        eps: Value,
        *,
        sign: Literal[1, -1] = 1,
        norm: Norm = "linf",
        steps: int = 7,
        step_size: float | None = None,
        random_start: bool = True,
        bounds: tuple[float, float] | None = None,
        per: Table | Fresh | None = None,
    ) -> None:
        super().__init__()
        check(callable(eps) or eps >= 0, "a radius of at least 0", eps=eps)
        check(sign in (1, -1), "+1 (raise the loss) or -1 (lower it)", sign=sign)
        one_of("norm", norm, "l2", "linf")
        check(steps >= 1, "at least 1", steps=steps)
        self.eps, self.sign, self.steps, self.step_size = eps, sign, steps, step_size
        self.norm: Norm = norm
        self.random_start, self.bounds = random_start, bounds
        self.per = Fresh() if per is None else per
        if isinstance(self.per, Table):
            self.per.update = "inner"
        self.direction, self.granularity = "negative" if sign > 0 else "positive", self.per.granularity

    def forward(self, s: Batch) -> Tensor:
        """The compensation of the batch, a constant shaped like its target."""
        s.require_gradients()
        slot, so_far = s.slot, getattr(s, s.slot or "dx")
        if slot not in (*THROUGH, "du", "dp", "dy"):
            raise InputError(
                "Adversarial can be attached to structure, view, feature, logit, label and prediction. On the loss itself the "
                "worst value is a constant, and a constant has no gradient; on the gradient it is known: terms.Amplify."
            )
        origin = s.like.detach() if so_far is None else (s.like + so_far).detach()
        keys: tuple[Tensor, Tensor] | None = None
        """Distinct rows of a table, and the place of each sample's row among them."""
        if isinstance(self.per, Table):
            key = self.per.key(s)
            if self.per.granularity == "sample":
                distinct, which = distinct_rows(key, s.index)
                keys = distinct, torch.arange(len(key), device=key.device) if which is None else which
            else:
                keys = present_rows(key, self.per.shape[0])
            w = self.per.gather(keys[0]).detach().to(origin.dtype)
        else:
            w = torch.zeros_like(origin)
            if self.random_start and self.norm == "linf":
                w = rowwise(at(self.eps, s), w) * (torch.rand_like(w) * 2 - 1)
            elif self.random_start:  # uniformly from the ball
                way, size = torch.randn_like(w), w[0].numel() if len(w) else 1
                length = torch.rand(len(w), device=w.device, dtype=w.dtype) ** (1 / size)
                w = rowwise(at(self.eps, s), w) * (rowwise(length, w) * way / row_norm(way).clamp(min=TINY))
            w = self._within(w, origin)
        active = rowwise(s.acting, origin)

        def spread(w: Tensor) -> Tensor:
            """Each sample's compensation: its row, within bounds, nothing where gated out."""
            delta = rowwise(w if keys is None else w[keys[1]], origin)
            delta = s.forward_pass.unpadded(delta) if slot == "dx" else delta
            return torch.where(active, self._within(delta, origin), 0.0)

        eps = at(self.eps, s)
        radius = eps if not isinstance(eps, Tensor) or eps.ndim == 0 or keys is None else eps.max()
        alpha = self.step_size if self.step_size is not None else 2.5 * radius / self.steps
        for _ in range(self.steps):
            w = w.detach().requires_grad_()
            with torch.enable_grad():
                delta = spread(w)
                losses = s.loss_at(**{slot: delta if so_far is None else so_far.detach() + delta})
                (grad,) = torch.autograd.grad((losses * s.active).sum(), w)
            way = grad.sign() if self.norm == "linf" else grad / row_norm(grad).clamp(min=TINY)
            w = project_ball(w.detach() + self.sign * rowwise(alpha, grad) * way, radius, self.norm)
            if keys is None:
                w = self._within(w, origin)
        if keys is not None and s.learn:
            assert isinstance(self.per, Table)
            table, (rows, which), values = self.per, keys, w
            if len(rows) == len(which):  # of samples that share a row one moved, for all of them
                rows, values = table.key(s), w[which]
            s.later(lambda: table.write(rows, values))
        return spread(w).detach()

    def _within(self, delta: Tensor, origin: Tensor) -> Tensor:
        return delta if self.bounds is None else (origin + delta).clamp(*self.bounds) - origin

    def extra_repr(self) -> str:
        eps = f"{self.eps:g}" if isinstance(self.eps, int | float) else "eps(s)"
        return f"{'max' if self.sign > 0 else 'min'}, eps={eps}, {self.norm}, {self.steps} steps"


@final
class Pull(nn.Module):
    r"""Pulls logits toward their labels: one plain step down the loss, solved in closed form.

    .. math:: v_i = \eta\, (y_i - S(u_i))

    where :math:`\eta` bounds :math:`\|v_i\|_\infty = \eta (1 - p_{i,y_i})`; :math:`v_i` is a constant in the gradient of the model.

    Args:
        eta: the step, a number or a callable of the batch.

    >>> from compensate import Compensated
    >>> s = Compensated(logit=Pull(3.0)).evaluate(torch.nn.Identity(), torch.zeros(1, 3), torch.tensor([1]))
    >>> s.du.round(decimals=3)
    tensor([[-1.,  2., -1.]])

    Reference: Yao and Wu, Compensation Learning, 2021, Eqs. (46)-(49).
    """

    inference, granularity, direction = "adversarial", "sample", "positive"
    gated = True

    def __init__(self, eta: Value) -> None:
        super().__init__()
        check(callable(eta) or eta >= 0, "a step of at least 0", eta=eta)
        self.eta = eta

    def forward(self, s: Batch) -> Tensor:
        step = (s.active.unsqueeze(1) * rowwise(at(self.eta, s), s.u)).to(s.u.dtype)
        if not s.hard:
            return step * (s.y - s.p.detach())
        # Without an array of labels: large batches have many classes.
        return (s.p.detach() * -step).scatter_add_(1, s.labels.unsqueeze(1), step)

    def extra_repr(self) -> str:
        return "" if isinstance(self.eta, nn.Module) else f"eta={self.eta}"
