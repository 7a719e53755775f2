"""Methods that compensate logits: by tables of samples and classes, networks, and inner loops."""

from __future__ import annotations

import math
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch, Value
from compensate.core.criterion import BinaryBase, Compensated
from compensate.core.layout import present_rows
from compensate.core.proximal import L1, L2, TINY, Norm, row_norm, soft_threshold
from compensate.core.stages import full_precision
from compensate.core.statistics import Evidence
from compensate.core.stores import Store
from compensate.core.tables import Category, Sample, Table, TouchedRows
from compensate.core.validation import checked_classes, checked_keys
from compensate.errors import InputError, check, one_of
from compensate.methods.registry import Block, Choice, Formula, PaperData, Real, Space, each, method
from compensate.methods.weighting import of_given
from compensate.terms.adversarial import Adversarial
from compensate.terms.classes import Counts, label_shares, proportions
from compensate.terms.schedules import Warmup
from compensate.terms.strength import Scaled, Strength

__all__ = ["adversarial_logit", "category_logit", "causal_logit", "gated_category", "logcomp", "lpl", "meta_logit"]

DEFAULT_LAMBDA = 0.25
"""The only candidate of 0.05, 0.1 and 0.25 that was never worse than cross entropy on five data sets, with and without wrong labels
(`experiments/defaults.py`). With 0.05 clean digits lost a point; under many wrong labels it gains more."""

MAX_FULL_RECORD = 1_000_000
"""The number of samples above which a record is lean by default."""


_SUBGRADIENT = {"update": "subgradient"}
_PAPER_SEARCH: dict[PaperData, Space] = {
    "image": Space({"lam": Choice((0.25, 0.35)), "lr": Choice((1.5, 3, 4.5, 6))}, _SUBGRADIENT, ("lr",)),
    "imdb": Space({"lam": Choice((0.75, 1)), "lr": Choice((0.6, 0.7, 0.8, 0.9, 1))}, _SUBGRADIENT, ("lr",)),
    "sst2": Space({"lam": Choice((0.75, 1)), "lr": Choice((0.02, 0.025, 0.03, 0.035, 0.04))}, _SUBGRADIENT, ("lr",)),
}


@method(
    "logit", "positive", "regularized", "sample", equation="43", needs=["index"],
    reference="Yao and Wu, Compensation Learning, 2021, Algorithm 1",
    limits="lambda >= 1 means no compensation at all. Too large a step hurts while the model is still learning: where it explains few labels to the end "
    "(short training, strong augmentation), the default costs accuracy; take lambda 0.5 or more there, or MixComp.",
    search=Space({"lam": Real(0.01, 0.5, log=True), "lr": Real(0.02, 5.0, log=True)}), paper_search=_PAPER_SEARCH,
    candidates=each(lam=(0.1, 0.05, 0.05, 0.03, 0.25), lr=(1.0, 1.0, 3.0, 1.0, 0.25)),
)  # fmt: skip
def logcomp(
    *,
    num_samples: int,
    num_classes: int,
    lam: Value | None = None,
    lr: float | None = None,
    update: Literal["prox", "subgradient"] | None = None,
    preset: Literal["paper", "paper-per-sample"] | None = None,
    batch_size: int = 128,
    warmup: float | None = None,
    strength: Literal["auto"] | None = None,
    table: Store = "auto",
    record: Literal["auto", "full", "lean", "none"] = "auto",
    base: BinaryBase = None,
) -> Compensated:
    r"""Logit compensation with an l1 penalty: each sample has a logit vector that absorbs the part of the loss its label cannot explain.

    .. math:: L = \frac1B \sum_i l(S(u_i + v_i), y_i) + \lambda \|v_i\|_1

    where :math:`v_i`, learned with the model, is a row of a table that persists over the epochs. Rows take proximal steps, hence
    samples without doubt keep exact zeros. For fixed logits the optimum moves only the given class, by
    :math:`\max(0, \mathrm{logit}(1-\lambda) - \mathrm{logit}(p_{y}))`.

    With several labels per sample, each (sample, label) has its own number,

    .. math:: L = \frac1{BC} \sum_{i,c} l(\sigma(u_{i,c} + v_{i,c}), y_{i,c}) + \lambda |v_{i,c}|

    Args:
        lam: the weight :math:`\lambda` of the penalty, in [0, 1) to have an effect; 0.25 if not given. A smaller one compensates more.
        lr: the step of a row per sample and visit; 1 if not given.
        update: "prox", with exact zeros (the default), or "subgradient", as written in the paper.
        preset, batch_size: the paper's values for arguments not given: "paper" applies its learning rate to the mean over a batch
            (divided by `batch_size`), "paper-per-sample" to each sample; both by subgradient.
        warmup: epochs over which `lam`, a number, falls from 1, where nothing is compensated, to its value.
        strength: "auto" moves `lam` from 1 to its value only as far as the model memorizes labels, or predicts withheld ones well; see
            :class:`~compensate.terms.Strength`.
        table: the storage of the rows: "auto" (in full up to a gigabyte), "dense", "sparse", or the name of a file, such as
            "rows.tab"; with the suffix ":float16", in 16 bits. See :class:`~compensate.terms.Sample`.
        record: the record for `suspects`: "full", 24 bytes a sample; "lean", 8; "none"; "auto", full up to a million samples.
        base: "bce" for several labels per sample: targets (B, C) in {0, 1}.

    >>> criterion = logcomp(num_samples=1000, num_classes=3)
    >>> loss = criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    """
    one_of("preset", preset, None, "paper", "paper-per-sample")
    one_of("record", record, "auto", "full", "lean", "none")
    # The paper's Appendix B searches {0.25, 0.35} and {1.5, 3, 4.5, 6}.
    weight: Value = lam if lam is not None else DEFAULT_LAMBDA if preset is None else 0.25
    rate = {None: 1.0, "paper": 3.0 / batch_size, "paper-per-sample": 3.0}[preset]
    moves = update or ("prox" if preset is None else "subgradient")
    labels = num_classes if base == "bce" else 1
    classes = 2 if base == "bce" else num_classes
    one_of("strength", strength, None, "auto")
    if callable(weight) and (warmup is not None or strength is not None):
        raise InputError(
            f"lam is a schedule, with warmup={warmup} and strength={strength}; expected a number, or a schedule without them."
        )
    if warmup is not None:
        weight = Warmup(1.0, float(weight), epochs=warmup, num_samples=num_samples * labels)
    measured = None if strength is None else Strength(num_samples * labels, classes, several=base is not None)
    weight = weight if measured is None else Scaled(weight, measured, rest=1.0)
    size = (num_samples * labels, num_classes // labels)
    rows = Sample(*size, penalty=L1(weight), lr=rate if lr is None else lr, update=moves, store=table)
    lean = record == "lean" or (record == "auto" and num_samples * labels > MAX_FULL_RECORD)
    kept = Evidence(num_samples, score="margin", lean=lean, num_classes=classes, num_labels=labels)
    return Compensated(logit=rows, base=base, record=None if record == "none" else kept)


@method(
    "logit", "positive", "regularized", "category", equation="17",
    reference="Yao and Wu, Compensation Learning, 2021, Eq. (17)",
    limits="A large lambda leaves cross entropy; a small one lets a class explain its samples away, the large classes first.",
    search=Space({"lam": Real(0.01, 1.0, log=True), "lr": Real(0.01, 1.0, log=True)}),
)  # fmt: skip
def category_logit(*, num_classes: int, lam: Value = 1.0, lr: float = 0.1) -> Compensated:
    r"""Category-level logit compensation: the samples of a class share a logit vector, learned with the model.

    .. math:: L = \frac1B \sum_i l(S(u_i + \Delta u_{y_i}), y_i) + \frac\lambda2 \|\Delta u_{y_i}\|_2^2

    where :math:`\Delta u_c` is a row of a table. The paper leaves the regularizer open; many samples share a row, and it need not
    be sparse, hence the square.

    It is a building block rather than a remedy: a row lowers the losses of its whole class, and the model learns less of that class. On
    held-out skewed digits the mean accuracy of the classes falls with the penalty: 0.879 with 1, 0.809 with 0.01, against 0.878 for
    cross entropy (three seeds, `python -m experiments choices`). For skew use :func:`~compensate.methods.imbalance.logit_adjustment`.

    Args:
        lam: the weight :math:`\lambda` of the penalty.
        lr: the step of a row, by the mean gradient of its samples.

    >>> print(category_logit(num_classes=10).taxonomy)
    logit · positive · regularized · category
    """
    return Compensated(logit=Category(num_classes, num_classes, penalty=L2(lam), lr=lr))


def gate_of(s: Batch) -> Tensor:
    """(B,) the gate of each row, from the last output of the model."""
    return s.u[:, -1].sigmoid()


@final
class GatedL1(nn.Module):
    r"""The penalty :math:`\beta\, g_i \|b_{y_i}\|_1 / (C - 1)` of :func:`gated_category`."""

    def __init__(self, balance: float) -> None:
        super().__init__()
        check(balance >= 0, "the weight of a penalty, at least 0", balance=balance)
        self.balance = balance

    def forward(self, v: Tensor, s: Batch) -> Tensor:
        """(B,) the penalty of each row of the batch."""
        return self.balance / max(v.shape[-1] - 1, 1) * gate_of(s) * v.abs().sum(-1)

    def prox(self, v: Tensor, step: float, s: Batch) -> Tensor:
        """Soft thresholding of the matrix (C, C)."""
        return soft_threshold(v, step * self._weights(v, s))

    def subgradient(self, v: Tensor, s: Batch) -> Tensor:
        """The sign, zero at zero, of the matrix (C, C)."""
        return self._weights(v, s) * v.sign()

    def _weights(self, v: Tensor, s: Batch) -> Tensor:
        """(C, C) for each pair of classes, the mean over their rows of the batch."""
        counts = s.active.to(v.dtype)
        values = torch.stack([gate_of(s).detach().to(v.dtype) * counts, counts])
        totals = v.new_zeros(2, len(v)).index_add_(1, s.labels, values)
        gates, number = totals[:, :, None] + totals[:, None, :]
        return self.balance / max(len(v) - 1, 1) * gates / number.clamp(min=1)

    def __repr__(self) -> str:
        return f"GatedL1({self.balance:g})"


@final
class Pairs(Table):
    r"""A symmetric matrix with zero diagonal, a number for each pair of classes; a sample reads the row of its class, :math:`b_{y_i}`.

    A number moves by the mean gradient of the samples of its two classes.
    """

    granularity = "category"

    def __init__(self, num_classes: int, **settings: Any) -> None:
        super().__init__(num_classes, num_classes, **settings)

    def key(self, s: Batch) -> Tensor:
        return checked_keys(s.labels, self.shape[0], "a table of pairs", "class", s.check)

    def descend(self, touched: TouchedRows, grad: Tensor, s: Batch) -> None:
        """One step of all pairs that have a sample in the batch; `grad` is summed over the samples of each class."""
        slopes = torch.zeros_like(self.weight).index_copy_(0, touched.keys, grad.to(self.weight.dtype))
        number = slopes.new_zeros(len(slopes))
        number[touched.keys] = 1.0 if touched.count is None else touched.count.to(number.dtype)
        pairs = number[:, None] + number
        slopes = ((slopes + slopes.T) / pairs.clamp(min=1)).fill_diagonal_(0.0)
        rows = torch.where(pairs > 0, self.stepped(self.weight, slopes, s), self.weight)
        self.write(torch.arange(len(rows), device=rows.device), rows)


def gated(s: Batch, table: Tensor) -> Tensor:
    """(B, C + 1) the logit term of :func:`gated_category`; the gate is not compensated."""
    checked_classes(s, table.shape[-1] + 1, "gated compensation with one more output, the gate,")
    return F.pad(gate_of(s)[:, None] * table, (0, 1))


def without_gate(u: Tensor, y: Tensor) -> Tensor:
    """(B,) cross entropies over all outputs but the last."""
    return F.cross_entropy(u[:, :-1], y if y.ndim == 1 else y[:, :-1], reduction="none")


@method(
    "logit", "positive", "regularized", "category", equation="17, gated", extra_outputs=1,
    reference="Kaiser et al., Compensation Learning in Semantic Segmentation, CVPR workshops 2023 (arXiv 2304.13428)",
    limits="The model has one more output, the gate. A large balance leaves cross entropy; a small one lets biases explain labels away.",
    search=Space({"balance": Real(0.001, 1.0, log=True), "lr": Real(0.01, 1.0, log=True)}),
)  # fmt: skip
def gated_category(
    *, num_classes: int, num_samples: int | None = None, balance: float = 0.2, lr: float = 0.1
) -> Compensated:
    r"""Gated category-level compensation for segmentation: a bias for the given class that acts where the model doubts the label.

    .. math:: L = \frac1R \sum_i l(S(u_i + g_i\, b_{y_i}), y_i) + \frac{\beta}{C - 1}\, g_i \|b_{y_i}\|_1, \qquad
              g_i = \sigma(u_{i,C+1})

    where :math:`i` runs over places (or samples), :math:`b` is a symmetric matrix with zero diagonal, a number for each pair of
    classes, and the gate :math:`g_i \in [0, 1]` is the model's last output, logits (B, C + 1, d1, ...), as of
    :class:`compensate.models.GatedHead`; leave it out for predictions. Sort places by their gate to find labels that look wrong. The
    authors' matrix moves with the optimizer of the model; here it moves by proximal steps, with exact zeros.

    Args:
        balance: the weight :math:`\beta` of the penalty; the authors use 0.01 for 19 and more classes, which opens all gates for two.
        lr: the step of a number, by the mean gradient of the places of its two classes in the batch.

    >>> criterion = gated_category(num_classes=3)
    >>> u, y = torch.zeros(1, 4, 2, 2), torch.tensor([[[0, 1], [2, 2]]])
    >>> round(criterion(u, y).item(), 4)            # log 3: all numbers are zero at first
    1.0986
    """
    table = Pairs(num_classes, penalty=GatedL1(balance), lr=lr)
    record = None if num_samples is None else Evidence(num_samples, num_classes=num_classes)
    return Compensated(logit=Formula(gated, table=table), base=without_gate, record=record)


@method(
    "logit", "mixed", "meta", "sample", equation="12, 13, 14, on logits", needs=["index", "clean"],
    reference="Yao and Wu, Compensation Learning, 2021, Sec. III-C(4)",
    limits="Without meta steps all rows stay zero and this is cross entropy. A row moves only when its sample is drawn.",
    search=Space({"lr": Real(0.5, 100.0, log=True)}),
)  # fmt: skip
def meta_logit(*, num_samples: int, num_classes: int, lr: float = 100.0, lam: Value = 0.0) -> Compensated:
    r"""Logit compensation learned on clean data: each sample has a logit vector that makes its training step help.

    .. math:: L(v) = \frac1B \sum_i l(S(u_i + v_i), y_i), \qquad
              v^* = \arg\min_v \sum_{j \in \Omega} l(S(f(x_j; \Theta^*(v))), y_j)

    where :math:`\Omega` is the clean set and :math:`\Theta^*(v)` is one step ahead of the model.

    Args:
        lr: the step of a row in :func:`compensate.meta_step`; large, because the outer gradient of one sample is small.
        lam: the weight of an l1 penalty; 0 for none.

    >>> print(meta_logit(num_samples=100, num_classes=10).taxonomy)
    logit · mixed · meta · sample
    """
    penalty = L1(lam) if callable(lam) or lam else None
    return Compensated(logit=Sample(num_samples, num_classes, update="meta", lr=lr, penalty=penalty))


@method(
    "logit", "negative", "adversarial", "sample", equation="15, 16, on logits",
    reference="Yao and Wu, Compensation Learning, 2021, Sec. III-C(5)",
    limits="eps = 0 leaves cross entropy. In the linf ball it is a margin of 2 eps (or, with sign=-1, a lead) for every sample.",
    search=Space({"eps": Real(0.05, 2.0, log=True)}),
)  # fmt: skip
def adversarial_logit(
    *, eps: Value = 0.5, sign: Literal[1, -1] = 1, norm: Norm = "linf", steps: int = 7, step_size: float | None = None
) -> Compensated:
    r"""Logit compensation by an inner loop: the worst logits nearby, or the best.

    .. math:: v_i^* = \arg\max_{\|v_i\| \le \epsilon} l(S(u_i + v_i), y_i) \quad\text{or}\quad \arg\min

    In the linf ball the solution is :math:`\epsilon (1 - 2 y_i)` for the maximum and its negative for the minimum. It needs no pass
    through the model.

    Args:
        eps: the radius :math:`\epsilon`.
        sign: +1 raises the loss (negative compensation), -1 lowers it.

    >>> s = adversarial_logit(eps=0.5).evaluate(torch.nn.Identity(), torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    >>> s.du
    tensor([[ 0.5000, -0.5000,  0.5000]])
    """
    attack = Adversarial(eps, sign=sign, norm=norm, steps=steps, step_size=step_size, random_start=False)
    return Compensated(logit=attack)


By = Literal["probability", "share"]


def shares_for(by: str, class_counts: Counts | None, total: int | None = None) -> Tensor | None:
    """The shares of the classes for `by="share"`, None for `by="probability"`; with a total, of each label's absence and presence."""
    one_of("by", by, "probability", "share")
    if by == "probability":
        return None
    if class_counts is None:
        raise InputError('by="share" needs class_counts=..., the number of training samples of each class.')
    if total is None:
        return proportions(class_counts)
    present = label_shares(class_counts, total)
    return torch.stack([1 - present, present], -1).flatten()


def _below_mean(scores: Tensor, counts: Tensor) -> Tensor:
    """(R,) the distance of each score below the mean of the classes that count; 0 for the others."""
    mean = (scores * counts).sum() / counts.sum().clamp(min=1)
    equal = (mean - scores).abs() <= 1e-5 * mean  # up to rounding
    return torch.where(counts & ~equal, mean - scores, 0.0)


def by_probability(likely: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """(R,) the sign of each class, by its mean probability in the batch, and its distance from the mean; 0 for absent classes."""
    gap = _below_mean(likely, present)
    return gap.sign(), gap.abs()


def by_share(shares: Tensor) -> tuple[Tensor, Tensor]:
    """(C,) the sign of each class, by its share in the training set, and that share relative to the extreme of its side."""
    gap = _below_mean(shares, torch.ones_like(shares, dtype=torch.bool))
    return gap.sign(), torch.where(gap < 0, shares / shares.max(), shares.min() / shares)


@torch.no_grad()
def class_perturbation(s: Batch, eps: float, step: float, growth: float, shares: Tensor | None) -> Tensor:
    """(B, C) the logit term of :func:`lpl`, a constant: unit steps up or down the mean loss of each class of the batch."""
    u = full_precision(s.u.detach())
    binary = s.places.binary
    labels = 2 * s.places.classes(s.target) + s.labels if binary else s.labels
    classes, which = present_rows(labels, 2 * s.places.labels if binary else u.shape[-1])
    counts = s.valid.to(u.dtype)
    size = u.new_zeros(len(classes)).index_add_(0, which, counts)

    def means(values: Tensor) -> Tensor:
        total = values.new_zeros(len(classes), values.shape[-1]).index_add_(0, which, values * counts[:, None])
        return total / size.clamp(min=1)[:, None]

    def predicted(d: Tensor) -> Tensor:
        moved = u + d[which]
        return means(moved.sigmoid() if binary else moved.softmax(-1))

    given = means(s.y.to(u.dtype))
    d = torch.zeros_like(given)
    p = predicted(d)
    if shares is not None:
        sign, far = (values[classes] for values in by_share(shares.to(p.dtype)))
    elif binary:
        sign, far = by_probability(torch.where(classes % 2 > 0, p[:, 0], 1 - p[:, 0]), size > 0)
    else:
        sign, far = by_probability(p.gather(1, classes[:, None])[:, 0], size > 0)
    # Rounding must not lose a step of a whole quotient.
    steps = ((eps + growth * far) / step * (1 + 1e-6)).floor()
    for k in range(int((eps + growth) / step * (1 + 1e-6))):
        g = (predicted(d) if k else p) - given
        moves = (sign * (k < steps))[:, None]
        d = d + moves * step * g / row_norm(g).clamp(min=TINY)
    return d[which].to(s.u.dtype)


@method(
    "logit", "mixed", "adversarial", "category", equation="17 with 15 and 16", record="loss",
    reference="Li et al., Logit Perturbation, AAAI 2022; Class-Level Logit Perturbation, TNNLS 2022 (arXiv 2209.05668)",
    limits="eps = 0 with growth = 0 is cross entropy, and so is a batch of one class. A batch must hold some samples of most classes.",
    search=Space({"eps": Real(0.05, 3.0, log=True)}), candidates=each(eps=(0.5, 0.1, 0.25, 1.0, 2.0)),
)  # fmt: skip
def lpl(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    class_counts: Counts | None = None,
    eps: float = 0.5,
    step: float = 0.05,
    growth: float = 0.1,
    by: By = "probability",
    base: BinaryBase = None,
) -> Compensated:
    r"""Logit perturbation learning: the logits of a class are shifted up the loss if it is learned badly or rare, else down.

    .. math:: \Delta u_i = d_{y_i}, \qquad d_c = \arg\max_{\|d\| \le \epsilon_c} \pm \sum_{i: y_i = c} l(S(u_i + d), y_i)

    by :math:`\lfloor \epsilon_c / \alpha \rfloor` unit steps of length :math:`\alpha`, from zero in each batch (the authors' Algorithm 1),
    within the radius :math:`\epsilon_c = \epsilon + D\, r_c`, where :math:`r_c` is the distance of a class from the mean, by `by`. On
    skewed data the authors choose the rare classes by hand; here they are the classes below the mean share. A soft label counts for its
    likeliest class. With several labels per sample, each is two classes, present and absent, and their shifts
    :math:`d_{c,y} = \pm \epsilon_{c,y} (1 - 2y)` are numbers. The authors' code differs from their paper, which is followed here.

    Args:
        eps: the least radius :math:`\epsilon`.
        step: the length :math:`\alpha` of a step.
        growth: :math:`D`, the increase of the radius with the distance of a class. A growth far below `step` has no effect.
        by: "probability", the mean probability of a class in the batch (for balanced data), or "share", its share in the training set
            (for skewed data; with several labels it needs `num_samples`).

    >>> u = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    >>> s = lpl(eps=0.5).evaluate(nn.Identity(), u, torch.tensor([0, 1]))
    >>> s.du.round(decimals=3)          # the first class is learned and gets easier, the second harder
    tensor([[ 0.3540, -0.3540],
            [ 0.3540, -0.3540]])
    """
    if by == "share" and base == "bce" and num_samples is None:
        raise InputError('by="share" with base="bce" needs num_samples=...: the share of a label is its count over it.')
    numbers = {"eps": eps, "step": step, "growth": growth}
    check(eps >= 0 and step > 0 and growth >= 0, "eps >= 0, step > 0 and growth >= 0", **numbers)
    shares = shares_for(by, class_counts, num_samples if base == "bce" else None)
    place = {"inference": "adversarial", "granularity": "category"}
    term = Formula(class_perturbation, **numbers, shares=shares, **place, whole_batch=True, binary=True)
    return Compensated(logit=term, base=base)


DYNAMICS = (
    "loss", "margin", "norm of the gradient", "entropy", "mean loss of the class", "loss minus that mean",
    "mean margin of the class", "margin minus that mean", "share of the class in the batch",
)  # fmt: skip
"""The inputs of the network about each sample, in order."""


def dynamics(s: Batch) -> Tensor:
    """(B, 9) the training state of each sample, constants; see `DYNAMICS`. Losses enter as log(1 + l)."""
    with torch.no_grad():
        logp = full_precision(s.u.detach()).log_softmax(-1)
        p = logp.exp()
        given = of_given(s, p)
        loss = torch.log1p(-of_given(s, logp))
        margin = given - p.scatter(1, s.labels[:, None], 0.0).amax(-1)
        slope = (p - s.y.to(p.dtype)).norm(dim=-1)
        entropy = torch.special.entr(p).sum(-1) / math.log(max(p.shape[-1], 2))
        distinct, which = present_rows(s.labels, s.u.shape[-1])
        counts = s.valid.to(p.dtype)
        sums = torch.stack([counts, loss * counts, margin * counts])
        size, *totals = p.new_zeros(3, len(distinct)).index_add_(1, which, sums)
        mean_loss, mean_margin = ((total / size.clamp(min=1))[which] for total in totals)
        share = (size / counts.sum().clamp(min=1))[which]
        columns = (loss, margin, slope, entropy, mean_loss, loss - mean_loss, mean_margin, margin - mean_margin, share)
        return torch.stack(columns, -1)


@final
class PerturbationNet(Block):
    """The network of :func:`causal_logit`; its last layer starts at zero, and nothing is compensated before the first meta step."""

    inference, granularity, direction = "meta", "sample", "mixed"

    def __init__(self, hidden: int = 32, bound: float = 5.0) -> None:
        super().__init__()
        check(bound > 0, "the largest entry of a row, a positive number", bound=bound)
        self.bound = bound
        last = nn.Linear(hidden, 1, bias=False)  # a constant added to all logits of a sample has no effect
        nn.init.zeros_(last.weight)
        self.layers = nn.Sequential(nn.Linear(len(DYNAMICS) + 2, hidden), nn.ReLU(), last)

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the rows; constants outside a meta step, because the training step must not move the network."""
        first = next(self.layers.parameters())
        of_sample = dynamics(s)[:, None].expand(-1, s.u.shape[-1], -1)
        of_class = torch.stack([s.p.detach().to(of_sample.dtype), s.y.to(of_sample.dtype)], -1)
        g = self.layers(torch.cat([of_sample, of_class], -1).to(first.dtype))[..., 0]
        v: Tensor = (self.bound * torch.tanh(g / self.bound)).to(s.u.dtype)
        return v if s.meta else v.detach()


@method(
    "logit", "mixed", "meta", "sample", equation="4 with 12-14", record="loss", needs=["clean"],
    reference="Zhou et al., Mitigating Spurious Correlations with Causal Logit Perturbation, 2025 (arXiv 2505.15246)",
    limits="Cross entropy until the first meta_step, which needs an optimizer for the network, such as Adam with a step of 1e-3.",
)  # fmt: skip
def causal_logit(*, hidden: int = 32, bound: float = 5.0) -> Compensated:
    r"""Causal logit perturbation: a small network, learned on clean data, compensates each logit without a table.

    .. math:: \Delta u_{i,c} = b \tanh(g(t_i, p_{i,c}, y_{i,c}; \Phi) / b)

    where :math:`t_i` are nine numbers about the sample in this step (`DYNAMICS`). Hence rows also exist for samples that were never
    trained on: `criterion.evaluate(model, x, y).du`. Learn :math:`\Phi` by
    `meta_step(criterion, model, batch, clean, lr=..., optimizer=torch.optim.Adam(criterion.parameters(), 1e-3))`.

    The authors use ten numbers, some from earlier epochs, and a network with an output for each class; this one is run for each class.
    Their images with replaced objects or backgrounds may be added to `clean`; their penalty on the saliency of inputs is left out.

    Args:
        hidden: the number of hidden units.
        bound: :math:`b`, the largest entry of a row.

    >>> print(causal_logit().taxonomy)
    logit · mixed · meta · sample
    """
    return Compensated(logit=PerturbationNet(hidden, bound))
