"""Class-level logit perturbation: classes that are learned badly get harder, the others easier."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from compensate.equation import BinaryBase, Compensated, Weights
from compensate.errors import InputError
from compensate.forwards import full_precision
from compensate.inference.classes import Counts, label_shares, proportions
from compensate.inference.statistics import labels_of, recorded
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.proximal import TINY, row_norm
from compensate.state import State
from compensate.touched import present_rows

__all__ = ["lpl"]


def harder_or_easier(
    likely: Tensor, present: Tensor, shares: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    r"""What parts the classes of a batch: +1 for those below the mean and -1 above it, and how far from it, in [0, 1].

    Args:
        likely: (R,) the mean probability of each class in the batch.
        present: (R,) false for classes without a sample that counts.
        shares: if given, the share of every class (C,) takes the place of the former, and (R,) says which classes these are.

    >>> harder_or_easier(torch.tensor([0.9, 0.5, 0.4]), torch.ones(3, dtype=torch.bool))
    (tensor([-1.,  1.,  1.]), tensor([1.0000, 0.5000, 1.0000]))
    """
    if shares is None:
        gap = ((likely * present).sum() / present.sum().clamp(min=1) - likely) * present
    else:
        gap = (shares[0].mean() - shares[0].to(likely.dtype)[shares[1]]) * present
    # Equal classes differ by rounding alone, which is no reason to part them.
    gap = torch.where(gap.abs() < 1e-6, 0.0, gap)
    if not len(gap):
        return gap, gap
    widest = torch.where(gap > 0, gap.clamp(min=0).max(), (-gap).clamp(min=0).max()).clamp(min=TINY)
    return gap.sign(), gap.abs() / widest


@final
class ClassPerturbation(nn.Module):
    r"""A shift of the logits for each class of the batch, by unit steps up or down the mean loss of the class.

    .. math:: d_c \leftarrow d_c + s_c\, \alpha \frac{g_c}{\|g_c\|_2}, \qquad
              g_c = \frac{1}{n_c} \sum_{i: y_i = c} S(u_i + d_c) - y_i, \qquad s_c = \mathrm{sign}(\tau - q_c)

    where :math:`q_c` says how well off class :math:`c` is and :math:`\tau` is the mean of the :math:`q_c`. A class takes
    :math:`\epsilon_c / \alpha` steps, so that it stays within :math:`\epsilon_c = \epsilon (1 + \rho\, |\tau - q_c| / m)`,
    :math:`m` being the largest :math:`|\tau - q|` on its side of :math:`\tau`.

    Args:
        eps: the radius :math:`\epsilon`.
        step: :math:`\alpha`.
        growth: :math:`\rho`.
        class_counts: if given, :math:`q_c` is the share of the class in the training set; else the mean probability that the
            batch gives to it.
        total: training samples in all, for several labels a sample: each label then is two classes, of the samples that have it and
            of those that do not, and :math:`S` is the sigmoid.
    """

    inference, granularity, direction = "adversarial", "category", "mixed"
    whole_batch = True
    binary = True
    shares: Tensor | None

    def __init__(
        self, eps: float, step: float, growth: float, class_counts: Counts | None = None, total: int | None = None
    ) -> None:
        super().__init__()
        if eps < 0 or step <= 0 or growth < 0:
            raise InputError(f"eps={eps}, step={step}, growth={growth}; expected eps >= 0, step > 0 and growth >= 0.")
        self.eps, self.step, self.growth = eps, step, growth
        shares = None
        if class_counts is not None and total is None:
            shares = proportions(class_counts)
        elif class_counts is not None:
            assert total is not None
            having = label_shares(class_counts, total)
            shares = torch.stack([1 - having, having], -1).flatten()
        self.register_buffer("shares", shares)

    @torch.no_grad()
    def forward(self, s: State) -> Tensor:
        """(B, C) the shift of each sample's class, a constant."""
        u = full_precision(s.u.detach())
        binary = s.places.binary
        labels = 2 * s.places.classes(s.target) + s.labels if binary else s.labels
        classes, which = present_rows(labels, 2 * s.places.labels if binary else u.shape[-1])
        counts = s.valid.to(u.dtype)
        size = u.new_zeros(len(classes)).index_add_(0, which, counts)
        if binary:
            corner = (classes % 2)[:, None].to(u.dtype)
        else:
            corner = u.new_zeros(len(classes), u.shape[-1]).scatter_(1, classes[:, None], 1.0)

        def gradients(d: Tensor) -> Tensor:
            moved = u + d[which]
            p = (moved.sigmoid() if binary else moved.softmax(-1)) * counts[:, None]
            return torch.zeros_like(d).index_add_(0, which, p) / size.clamp(min=1)[:, None] - corner

        d = torch.zeros_like(corner)
        g = gradients(d)
        likely = 1 - g[:, 0].abs() if binary else 1 + g.gather(1, classes[:, None])[:, 0]
        sign, far = harder_or_easier(likely, size > 0, None if self.shares is None else (self.shares, classes))
        steps = (self.eps * (1 + self.growth * far) / self.step).round()
        for k in range(round(self.eps * (1 + self.growth) / self.step)):
            g = gradients(d)
            moves = (sign * (k < steps))[:, None]
            d = d + moves * self.step * g / row_norm(g).clamp(min=TINY)
        return d[which].to(s.u.dtype)

    def extra_repr(self) -> str:
        """The radius."""
        return f"eps={self.eps:g}, step={self.step:g}"


@method(
    "logit", "mixed", "adversarial", "category",
    equation="17 with 15 and 16",
    reference="Li et al., Logit Perturbation, AAAI 2022; Class-Level Logit Perturbation, TNNLS 2022 (arXiv 2209.05668)",
    limits="eps = 0 is cross entropy, and so is a batch of one class. A batch must hold some samples of most classes.",
    search=Space({"eps": Real(0.05, 3.0, log=True)}),
    candidates=each(eps=(0.5, 0.1, 0.25, 1.0, 2.0)),
)  # fmt: skip
def lpl(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    class_counts: Counts | None = None,
    eps: float = 0.5,
    step: float = 0.05,
    growth: float = 0.1,
    by: str = "probability",
    base: BinaryBase = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Logit perturbation learning: the logits of a class are shifted up the loss if it is learned badly or rare, else down.

    .. math:: \Delta u_i = d_{y_i}, \qquad d_c = \arg\max_{\|d\| \le \epsilon_c} \pm \sum_{i: y_i = c} l(S(u_i + d), y_i)

    by unit steps, anew for each batch: see :class:`~compensate.methods.class_perturbation.ClassPerturbation`. The authors take 40 steps of
    0.01, each of them twice, divide by the norm of the columns of the gradients instead of the rows, and cut the number of
    steps by one; here the radius is what it says. Their threshold is a hyper-parameter on skewed data, here the mean share.
    With several labels, each is two classes, of the samples that have it and of those that do not, and their shifts
    :math:`d_{c,y} = \pm \epsilon_{c,y} (1 - 2y)` are numbers, as a loss of one logit is monotone.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for a record under `base="bce"`.
        class_counts: (C,) training samples of each class, for `by="share"`.
        eps: the radius :math:`\epsilon` of a class that lies at the mean.
        step: the length of a step.
        growth: by how much the radius of the class farthest from the mean is larger.
        by: what parts the classes: "probability", their mean probability in the batch (for balanced data), or "share",
            their share in the training set (for skewed data; with several labels it needs `num_samples`).
        base: "bce" for several labels a sample.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> u = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    >>> s = lpl(eps=0.5).evaluate(nn.Identity(), u, torch.tensor([0, 1]))
    >>> s.du.round(decimals=3)          # the first class is learned and gets easier, the second harder
    tensor([[ 0.3890, -0.3890],
            [ 0.3890, -0.3890]])
    """
    if by not in ("probability", "share"):
        raise InputError(f'by is "{by}"; expected "probability" or "share".')
    if by == "share" and class_counts is None:
        raise InputError('by="share" needs class_counts=..., the number of training samples of each class.')
    if by == "share" and base == "bce" and num_samples is None:
        raise InputError('by="share" with base="bce" needs num_samples=...: the share of a label is its count over it.')
    total = num_samples if base == "bce" else None
    term = ClassPerturbation(eps, step, growth, class_counts if by == "share" else None, total)
    record = recorded(num_samples, num_labels=labels_of(base, num_samples, num_classes))
    return Compensated(logit=term, base=base, record=record, weight=weight)
