"""Methods that compensate gradients: samples and classes count more or less, and losses keep their values."""

from __future__ import annotations

from typing import final

from torch import Tensor

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated
from compensate.core.layout import present_rows
from compensate.errors import InputError
from compensate.methods.logit import By, by_probability, by_share, checked_by
from compensate.methods.registry import Block, Real, Space, each, method
from compensate.terms.classes import Counts, proportions
from compensate.terms.gradients import Amplify, ClipGradient

__all__ = ["gradient_clip", "lpg"]


@final
class ByClass(Block):
    """The sign (without `eps`) or the radius (with it) of each sample's class, as in :func:`lpg`."""

    whole_batch = True
    shares: Tensor | None

    def __init__(self, eps: float | None, growth: float, class_counts: Counts | None) -> None:
        super().__init__()
        self.eps, self.growth = eps, growth
        self.register_buffer("shares", None if class_counts is None else proportions(class_counts))

    def forward(self, s: Batch) -> Tensor:
        """(B,) signs or radii, constants."""
        if self.shares is not None:
            which = s.labels
            sign, far = by_share(self.shares.to(s.logp.dtype))
        else:
            classes, which = present_rows(s.labels, s.u.shape[-1])
            p = s.p.detach().gather(1, s.labels[:, None])[:, 0]
            counts = s.valid.to(p.dtype)
            size = p.new_zeros(len(classes)).index_add_(0, which, counts)
            likely = p.new_zeros(len(classes)).index_add_(0, which, p * counts) / size.clamp(min=1)
            sign, far = by_probability(likely, size > 0)
        return sign[which] if self.eps is None else (self.eps + self.growth * far)[which]


@method(
    "gradient", "mixed", "adversarial", "category",
    equation="17 for gradients",
    reference="Li, Gradient Perturbation: Learning to Perturb Gradients for Adaptive Training, 2026 (arXiv 2605.29494)",
    record="loss",
    limits="eps = 0 with growth = 0 is cross entropy, and so is a batch of one class. A batch must hold some samples of most classes.",
    search=Space({"eps": Real(0.01, 1.0, log=True)}),
    candidates=each(eps=(0.1, 0.03, 0.3, 0.5, 1.0)),
)  # fmt: skip
def lpg(
    *, class_counts: Counts | None = None, eps: float = 0.1, growth: float = 0.1, by: By = "probability"
) -> Compensated:
    r"""Learning to perturb gradients: the gradients of a class get longer if it is learned badly or rare, else shorter.

    .. math:: \Delta g_i = \pm \epsilon_{y_i} \frac{\bar g_{y_i}}{\|\bar g_{y_i}\|_2}, \qquad
              \bar g_c = \frac{1}{n_c} \sum_{i: y_i = c} \frac{\partial l_i}{\partial u_i}

    which maximizes or minimizes :math:`\|\bar g_c + \Delta\|` in a ball, down to zero at most. It is the counterpart of :func:`lpl` for
    gradients, with the same signs and radii. The authors also learn the radius, by a bound on the generalization error; here it is
    a hyper-parameter.

    Args:
        class_counts: (C,) the number of training samples of each class, for `by="share"`.
        eps: the least radius :math:`\epsilon`.
        growth: the increase of the radius with the distance of a class from the mean, as in :func:`lpl`.
        by: the measure of a class: "probability", its mean probability in the batch, or "share", its share in the training set.

    >>> import torch
    >>> u = torch.tensor([[2.0, 0.0], [1.0, 0.0]], requires_grad=True)
    >>> lpg(eps=0.1, growth=0.0)(u, torch.tensor([0, 1])).backward()
    >>> u.grad                                      # (p - y) / 2 without: the second class counts more, the first less
    tensor([[-0.0242,  0.0242],
            [ 0.4009, -0.4009]])
    """
    counts = checked_by(by, class_counts)
    if eps < 0 or growth < 0:
        raise InputError(f"eps={eps}, growth={growth}; expected at least 0.")
    return Compensated(
        gradient=Amplify(ByClass(eps, growth, counts), sign=ByClass(None, growth, counts), per="category")
    )


@method(
    "gradient", "positive", "tuning", "sample",
    equation="2 for gradients",
    reference="Menon et al., Can Gradient Clipping Mitigate Label Noise?, ICLR 2020",
    record="loss",
    limits="c above the square root of 2 is cross entropy, whose gradients are never longer. A small c gives samples equal weight.",
    search=Space({"c": Real(0.05, 1.4)}),
    candidates=each(c=(0.5, 0.25, 0.1, 0.75, 1.0)),
)  # fmt: skip
def gradient_clip(*, c: float = 0.5) -> Compensated:
    r"""Clipped gradients: the gradient of every sample by its logits has a maximum length.

    .. math:: \Delta g_i = \left( \min\left(1, \frac{c}{\|g_i\|_2}\right) - 1 \right) g_i, \qquad
              g_i = \frac{\partial l_i}{\partial u_i}

    It is the gradient of cross entropy with the weight :math:`\min(1, c / \|p_i - y_i\|)`. The authors show that clipping the
    gradient of the parameters of a batch (`ClipGradient(c, at="parameters")`) does not help against wrong labels, and that
    clipping the derivative of each sample's loss does; they clip the derivative by :math:`p_{i,y_i}`, this method by the logits.

    Args:
        c: the maximum length :math:`c`.

    >>> import torch
    >>> u = torch.tensor([[3.0, 0.8, 0.2]], requires_grad=True)
    >>> gradient_clip(c=0.5)(u, torch.tensor([1])).backward()
    >>> u.grad.norm()
    tensor(0.5000)
    """
    return Compensated(gradient=ClipGradient(c))
