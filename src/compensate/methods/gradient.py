"""Methods that compensate gradients: samples and classes count more or less, and losses keep their values."""

from __future__ import annotations

import torch
from torch import Tensor

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.core.layout import present_rows
from compensate.errors import check
from compensate.methods.logit import By, by_probability, by_share, shares_for
from compensate.methods.registry import Formula, Real, Space, each, method
from compensate.terms.classes import Counts
from compensate.terms.gradients import Amplify, ClipGradient

__all__ = ["gradient_clip", "lpg"]


def by_class(s: Batch, eps: float | None, growth: float, shares: Tensor | None) -> Tensor:
    """(B,) the sign (without `eps`) or the radius (with it) of each sample's class, as in :func:`lpg`, constants."""
    if shares is not None:
        which = s.labels
        sign, far = by_share(shares.to(s.logp.dtype))
    else:
        classes, which = present_rows(s.labels, s.u.shape[-1])
        p = s.p.detach().gather(1, s.labels[:, None])[:, 0]
        counts = s.valid.to(p.dtype)
        size, likely = p.new_zeros(2, len(classes)).index_add_(1, which, torch.stack([counts, p * counts]))
        sign, far = by_probability(likely / size.clamp(min=1), size > 0)
    return sign[which] if eps is None else (eps + growth * far)[which]


@method(
    "gradient", "mixed", "adversarial", "category", equation="17 for gradients", record="loss",
    reference="Li, Gradient Perturbation: Learning to Perturb Gradients for Adaptive Training, 2026 (arXiv 2605.29494)",
    limits="eps = 0 with growth = 0 is cross entropy, and so is a batch of one class. A batch must hold some samples of most classes.",
    search=Space({"eps": Real(0.01, 1.0, log=True)}), candidates=each(eps=(0.1, 0.03, 0.3, 0.5, 1.0)),
)  # fmt: skip
def lpg(
    *, class_counts: Counts | None = None, eps: float = 0.1, growth: float = 0.1, by: By = "probability"
) -> Compensated:
    r"""Learning to perturb gradients: the gradients of a class get longer if it is learned badly or rare, else shorter.

    .. math:: \Delta g_i = \pm \epsilon_{y_i} \frac{\bar g_{y_i}}{\|\bar g_{y_i}\|_2}, \qquad
              \bar g_c = \frac{1}{n_c} \sum_{i: y_i = c} \frac{\partial l_i}{\partial u_i}

    which maximizes or minimizes :math:`\|\bar g_c + \Delta\|` in a ball, down to zero at most, with the signs and radii of :func:`lpl`.
    The authors also learn the radius, by a bound on the generalization error; here it is a hyper-parameter.

    Args:
        eps, growth, by: the least radius :math:`\epsilon`, its increase, and the measure of a class, as in :func:`lpl`.

    >>> u = torch.tensor([[2.0, 0.0], [1.0, 0.0]], requires_grad=True)
    >>> lpg(eps=0.1, growth=0.0)(u, torch.tensor([0, 1])).backward()
    >>> u.grad                                      # (p - y) / 2 without: the second class counts more, the first less
    tensor([[-0.0242,  0.0242],
            [ 0.4009, -0.4009]])
    """
    shares = shares_for(by, class_counts)
    check(eps >= 0 and growth >= 0, "at least 0", eps=eps, growth=growth)
    radius, sign = (Formula(by_class, eps=size, growth=growth, shares=shares, whole_batch=True) for size in (eps, None))
    return Compensated(gradient=Amplify(radius, sign=sign, per="category"))


@method(
    "gradient", "positive", "tuning", "sample", equation="2 for gradients", record="loss",
    reference="Menon et al., Can Gradient Clipping Mitigate Label Noise?, ICLR 2020",
    limits="c above the square root of 2 is cross entropy, whose gradients are never longer. A small c gives samples equal weight.",
    search=Space({"c": Real(0.05, 1.4)}), candidates=each(c=(0.5, 0.25, 0.1, 0.75, 1.0)),
)  # fmt: skip
def gradient_clip(*, c: float = 0.5) -> Compensated:
    r"""Clipped gradients: the gradient of every sample by its logits has a maximum length.

    .. math:: \Delta g_i = \left( \min\left(1, \frac{c}{\|g_i\|_2}\right) - 1 \right) g_i, \qquad
              g_i = \frac{\partial l_i}{\partial u_i}

    It is the gradient of cross entropy with the weight :math:`\min(1, c / \|p_i - y_i\|)`. The authors clip the derivative by
    :math:`p_{i,y_i}`, this method by the logits; clipping the gradient of the parameters does not help against wrong labels.

    Args:
        c: the maximum length :math:`c`.

    >>> u = torch.tensor([[3.0, 0.8, 0.2]], requires_grad=True)
    >>> gradient_clip(c=0.5)(u, torch.tensor([1])).backward()
    >>> u.grad.norm()
    tensor(0.5000)
    """
    return Compensated(gradient=ClipGradient(c))
