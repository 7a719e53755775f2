"""Methods that compensate gradients: samples and classes count more or less, and losses keep their values."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor, nn

from compensate.core.batch import Batch
from compensate.core.criterion import Compensated, Weights
from compensate.core.layout import present_rows
from compensate.core.statistics import recorded
from compensate.errors import InputError
from compensate.methods.logit import by_probability, by_share
from compensate.methods.registry import Real, Space, each, method
from compensate.terms.classes import Counts, proportions
from compensate.terms.gradients import Amplify, ClipGradient

__all__ = ["gradient_clip", "lpg"]


@final
class ByClass(nn.Module):
    """Sign or radius of each sample's class: classes that are learned badly, or are rare, count more.

    Args:
        eps: None for signs; else the least radius.
        growth: what is added to it, times the distance of a class from the mean.
        class_counts: if given, the share of a class says whether it is rare; else its mean probability in the batch.
    """

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
    limits="eps = 0 with growth = 0 is cross entropy, and so is a batch of one class. A batch must hold some samples of most classes.",
    search=Space({"eps": Real(0.01, 1.0, log=True)}),
    candidates=each(eps=(0.1, 0.03, 0.3, 0.5, 1.0)),
)  # fmt: skip
def lpg(
    *,
    num_samples: int | None = None,
    class_counts: Counts | None = None,
    eps: float = 0.1,
    growth: float = 0.1,
    by: Literal["probability", "share"] = "probability",
    weight: Weights | None = None,
) -> Compensated:
    r"""Learning to perturb gradients: the gradients of a class get longer if it is learned badly or rare, else shorter.

    .. math:: \Delta g_i = \pm \epsilon_{y_i} \frac{\bar g_{y_i}}{\|\bar g_{y_i}\|_2}, \qquad
              \bar g_c = \frac{1}{n_c} \sum_{i: y_i = c} \frac{\partial l_i}{\partial u_i}

    which maximizes or minimizes :math:`\|\bar g_c + \Delta\|` in a ball; shortened to zero at most. It is to gradients what
    :func:`lpl` is to logits, and its signs and radii are found in the same way. The authors learn the radius, too, by a bound on the
    generalization error; here it is a hyper-parameter.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        class_counts: (C,) training samples of each class, for `by="share"`.
        eps: the least radius :math:`\epsilon`.
        growth: what is added to the radius, times the distance of a class from the mean: as in :func:`lpl`.
        by: what parts the classes: "probability", their mean probability in the batch, or "share", their share in the
            training set.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> u = torch.tensor([[2.0, 0.0], [1.0, 0.0]], requires_grad=True)
    >>> lpg(eps=0.1, growth=0.0)(u, torch.tensor([0, 1])).backward()
    >>> u.grad                                      # (p - y) / 2 without: the second class counts more, the first less
    tensor([[-0.0242,  0.0242],
            [ 0.4009, -0.4009]])
    """
    if by not in ("probability", "share"):
        raise InputError(f'by is "{by}"; expected "probability" or "share".')
    if by == "share" and class_counts is None:
        raise InputError('by="share" needs class_counts=..., the number of training samples of each class.')
    if eps < 0 or growth < 0:
        raise InputError(f"eps={eps}, growth={growth}; expected at least 0.")
    counts = class_counts if by == "share" else None
    term = Amplify(ByClass(eps, growth, counts), sign=ByClass(None, growth, counts), per="category")
    return Compensated(gradient=term, record=recorded(num_samples), weight=weight)


@method(
    "gradient", "positive", "tuning", "sample",
    equation="2 for gradients",
    reference="Menon et al., Can Gradient Clipping Mitigate Label Noise?, ICLR 2020",
    limits="c above the square root of 2 is cross entropy: the gradient of its logits is no longer. A small c counts samples alike.",
    search=Space({"c": Real(0.05, 1.4)}),
    candidates=each(c=(0.5, 0.25, 0.1, 0.75, 1.0)),
)  # fmt: skip
def gradient_clip(*, num_samples: int | None = None, c: float = 0.5, weight: Weights | None = None) -> Compensated:
    r"""Clipped gradients: no sample pulls at its logits harder than a bound, whatever its loss.

    .. math:: \Delta g_i = \left( \min\left(1, \frac{c}{\|g_i\|_2}\right) - 1 \right) g_i, \qquad
              g_i = \frac{\partial l_i}{\partial u_i}

    It is the gradient of cross entropy with the weight :math:`\min(1, c / \|p_i - y_i\|)`. The authors show that clipping the
    gradient of the parameters of a batch (`ClipGradient(c, at="parameters")`) does not help against wrong labels, and that
    clipping the derivative of the loss of each sample does; theirs is by :math:`p_{i,y_i}`, here by the logits.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        c: the longest gradient :math:`c`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> u = torch.tensor([[3.0, 0.8, 0.2]], requires_grad=True)
    >>> gradient_clip(c=0.5)(u, torch.tensor([1])).backward()
    >>> u.grad.norm()
    tensor(0.5000)
    """
    return Compensated(gradient=ClipGradient(c), record=recorded(num_samples), weight=weight)
