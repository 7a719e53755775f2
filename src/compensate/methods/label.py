"""Methods that compensate labels: smoothing, meta-learned labels, and labels from plausible classes."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import BinaryBase, Compensated
from compensate.core.layout import rowwise
from compensate.core.proximal import Ball
from compensate.core.stages import full_precision
from compensate.core.statistics import ClassMean
from compensate.core.tables import Category, Sample
from compensate.errors import InputError
from compensate.methods.registry import Block, Real, Space, each, method, one_of
from compensate.terms.classes import Counts, checked_counts
from compensate.terms.guesses import OfClass, Worst
from compensate.terms.prior import Toward, prediction, uniform
from compensate.terms.schedules import Ramp

__all__ = [
    "adversarial_label_smoothing",
    "data_ambiguation",
    "label_smoothing",
    "meta_label",
    "mix_level_label",
    "online_label_smoothing",
]


@method(
    "label", "mixed", "prior", "sample+category",
    equation="19",
    reference="Yao and Wu, Compensation Learning, 2021; class terms of Zhong et al., MiSLAS, CVPR 2021",
    record="loss",
    limits="lam = 0 leaves smoothing by class, head = tail = 0 leaves soft bootstrapping. lam + head may not exceed 1.",
    search=Space({"lam": Real(0.01, 0.5), "head": Real(0.0, 0.5), "tail": Real(0.0, 0.5)}),
)  # fmt: skip
def mix_level_label(*, class_counts: Counts, lam: float = 0.3, head: float = 0.4, tail: float = 0.1) -> Compensated:
    r"""Label compensation at two levels: of the sample against wrong labels, of the class against imbalance.

    .. math:: \Delta y_i + \Delta y_{y_i}, \qquad \Delta y_i = \lambda (p_i - y_i), \quad
              \Delta y_c = \epsilon_c (I/C - y), \quad
              \epsilon_c = \epsilon_t + (\epsilon_h - \epsilon_t) \sin \frac{\pi (n_c - n_{\min})}{2 (n_{\max} - n_{\min})}

    where :math:`n_c` counts the samples of class c: the labels of frequent classes, where models are overconfident, are smoothed
    most. The paper gives the form only; the term of the sample is soft bootstrapping with a constant prediction, the term of the
    class is label-aware smoothing.

    Args:
        lam: :math:`\lambda`, the trust in the prediction.
        head: :math:`\epsilon_h` of the most frequent class.
        tail: :math:`\epsilon_t` of the rarest class.

    >>> criterion = mix_level_label(class_counts=[90, 9, 1])
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.7285)
    """
    if lam + max(head, tail) > 1:
        raise InputError(f"lam={lam} and head={head}, tail={tail}; together they may take at most the whole label, 1.")
    counts = [float(count) for count in checked_counts(class_counts)]
    fewest, span = min(counts), (max(counts) - min(counts)) or 1.0
    smoothing = [tail + (head - tail) * math.sin(math.pi / 2 * (count - fewest) / span) for count in counts]
    return Compensated(label=(Toward(prediction, lam), Toward(uniform, OfClass(smoothing))))


@method(
    "label", "mixed", "meta", "sample",
    equation="5-i with 12-14",
    reference="Yao and Wu, Compensation Learning, 2021, Section III-C(4)",
    record="loss",
    needs=["index", "clean"],
    limits="Plain cross entropy until meta_step is called. As good as the clean data.",
    search=Space({"lr": Real(5.0, 1000.0, log=True)}),
)  # fmt: skip
def meta_label(
    *, num_samples: int, num_classes: int, per: Literal["sample", "category"] = "sample", lr: float = 20.0
) -> Compensated:
    r"""Label compensation learned by meta steps: labels move to reduce the loss on clean data.

    .. math:: v_i \leftarrow v_i - \alpha \frac{\partial}{\partial v_i} \sum_{j \in \Omega} l(\Theta'(v), j), \qquad
              y_i + \Delta y_i = \Pi_\Delta(y_i + v_i)

    where :math:`\Omega` is clean data, :math:`\Theta'` the model after one step with the labels, and
    :math:`\Pi_\Delta` the projection on the simplex. Entries of :math:`v_i` stay within [-1, 1]: a label needs no more.

    Args:
        per: a row for each "sample", or one for each "category", which all samples of a class share.
        lr: the step :math:`\alpha` of `meta_step` without an optimizer. It is large, because it multiplies the model's own step
            and one over the batch size.

    >>> criterion = meta_label(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(2.3584)
    """
    one_of("per", per, "sample", "category")
    rows, table = (num_samples, Sample) if per == "sample" else (num_classes, Category)
    return Compensated(label=table(rows, num_classes, update="meta", lr=lr, bound=Ball(1.0, "linf")))


@method(
    "label", "mixed", "prior", "sample",
    equation="25",
    reference="Szegedy et al., Rethinking the Inception Architecture, CVPR 2016",
    record="loss",
    limits="lam = 0 is cross entropy. Treats all wrong classes alike, and right labels like wrong ones.",
    search=Space({"lam": Real(0.01, 0.6)}),
    candidates=each(lam=(0.1, 0.2, 0.3, 0.45, 0.6)),
)  # fmt: skip
def label_smoothing(*, num_classes: int | None = None, lam: Value = 0.1, base: BinaryBase = None) -> Compensated:
    r"""Label smoothing: every label gives a share to all classes alike.

    .. math:: \Delta y_i = \lambda (I/C - y_i)

    With several labels per sample, :math:`\Delta y_{i,c} = \lambda (1/2 - y_{i,c})`.

    Args:
        num_classes: the number of classes, for a record with `base="bce"`.
        lam: the share :math:`\lambda`; torch calls it `label_smoothing`.

    >>> label_smoothing(lam=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3050)
    """
    return Compensated(label=Toward(uniform, lam), base=base)


@method(
    "label", "negative", "adversarial", "sample",
    equation="26, 27",
    reference="Goibert and Dohmatob, Adversarial Robustness via Label-Smoothing, 2019",
    record="loss",
    limits="lam = 0 is cross entropy. Meant for adversarial robustness; it has no effect against wrong labels.",
    search=Space({"lam": Real(0.01, 0.6)}),
)  # fmt: skip
def adversarial_label_smoothing(
    *,
    lam: Value = 0.1,
    kind: Literal["least_likely", "boltzmann", "second_best"] = "least_likely",
    temperature: float = 0.1,
    detach: bool = False,
) -> Compensated:
    r"""Label smoothing toward the worst guess: the least likely class.

    .. math:: \Delta y_i = \lambda (p_i^* - y_i), \qquad
              p_i^* = \arg\max_{p \in \Delta} l(S(u_i), y_i + \lambda (p - y_i))

    The maximum over the simplex (which Eq. 27 leaves out) is the one-hot vector of the least likely class; tied classes
    share it. If the given class is itself the least likely, nothing changes.

    Args:
        lam: the share :math:`\lambda`.
        kind: "least_likely", or a variant of the authors: "boltzmann", :math:`p^*_{i,c} \propto e^{-p_{i,c}/T}` over the classes
            other than the given one; "second_best", the likeliest of them. Both have mixed directions.
        temperature: :math:`T` of "boltzmann".
        detach: treat the guess of "boltzmann" as a constant in the gradient; the authors' code does not.

    >>> adversarial_label_smoothing(lam=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.4184)
    """
    return Compensated(label=Toward(Worst(kind, temperature, detach), lam))


@method(
    "label", "mixed", "prior", "category",
    equation="54-56 with beta = 1",
    reference="Zhang et al., Delving Deep into Label Smoothing, IEEE TIP 2021",
    record="loss",
    needs=["epochs"],
    limits="Without end_epoch() it stays label smoothing. A class that is never predicted right keeps a uniform row.",
    search=Space({"alpha": Real(0.05, 0.95)}),
    candidates=each(alpha=(0.5, 0.3, 0.1, 0.7, 0.9)),
)  # fmt: skip
def online_label_smoothing(
    *, num_classes: int, alpha: Value = 0.5, conf: Literal["all", "correct"] = "correct"
) -> Compensated:
    r"""Label smoothing toward the mean of the right predictions of the sample's class in the previous epoch.

    .. math:: \Delta y_i = \alpha (\tilde p_{y_i} - y_i), \qquad
              \tilde p_c = \frac1{Z_c} \sum_{j: y_j = c} \mathrm{conf}_j\, p_j

    In the first epoch :math:`\tilde p_c` is uniform.

    Args:
        alpha: the share :math:`\alpha`. The authors write it as the share of the given label; at their 0.5 it is both.
        conf: which predictions count: only the "correct" ones, or "all".

    >>> online_label_smoothing(num_classes=3)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.0917)
    """
    return Compensated(label=Toward(ClassMean(num_classes, conf), alpha))


def divergence(u: Tensor, y: Tensor) -> Tensor:
    """(B,) the Kullback-Leibler divergence between labels and predictions; for class numbers it is cross entropy.

    >>> divergence(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]))
    tensor([0.])
    """
    losses = F.cross_entropy(u, y, reduction="none")
    return losses if y.ndim == 1 else losses - torch.special.entr(y).sum(-1)


def largest_scale(p: Tensor, y: Tensor, excess: float) -> Tensor:
    r"""(B, 1) the scale :math:`k` at which :math:`k p` exceeds :math:`y` by a given mass, :math:`\sum_c (k p_c - y_c)_+`.

    The mass is the largest of the sums :math:`k p_S - y_S` over sets of classes, hence :math:`k` is the smallest of the
    quotients (excess + :math:`y_S`) / :math:`p_S`; only sets of the classes with the least :math:`y_c / p_c` matter.

    >>> largest_scale(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[1.0, 0.0, 0.0]]), 0.1)
    tensor([[0.2000]])
    """
    tiny = torch.finfo(p.dtype).tiny
    order = (y / p.clamp(min=tiny)).argsort(-1)
    p, y = (values.gather(-1, order).cumsum(-1) for values in (p, y))
    return ((excess + y) / p.clamp(min=tiny)).amin(-1, keepdim=True)


def capped_scale(p: Tensor, cap: Tensor) -> Tensor:
    r"""(B, 1) the scale :math:`k` at which :math:`\min(k p_c, \mathrm{cap}_c)` sums to 1, if the caps sum to at least 1.

    >>> capped_scale(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[1.0, 0.06, 0.04]]))
    tensor([[1.8000]])
    """
    tiny = torch.finfo(p.dtype).tiny
    order = (cap / p.clamp(min=tiny)).argsort(-1)
    p, cap = p.gather(-1, order), cap.gather(-1, order)
    capped = F.pad(cap[:, :-1].cumsum(-1), (1, 0))
    free = p.flip(-1).cumsum(-1).flip(-1)
    return ((1 - capped) / free.clamp(min=tiny)).amax(-1, keepdim=True)


@final
class Ambiguate(Block):
    r"""The label term of :func:`data_ambiguation`, a constant.

    If the prediction is in the set, it is the minimizer; else each class has a multiple of its probability, or its share of the label:

    .. math:: q_{i,c} = \min(k\, p_{i,c}, \max(y_{i,c}, k'\, p_{i,c})) \;(p_{i,c} < \beta), \quad k\, p_{i,c} \;(p_{i,c} \ge \beta)

    For class numbers :math:`k = (1 - \alpha) / \sum_{c \in Y_i} p_{i,c}` and :math:`k' = \alpha / \sum_{c \notin Y_i} p_{i,c}`.
    """

    direction, on_simplex = "positive", True
    inference, granularity = "prior", "sample"

    def __init__(self, alpha: float, beta: Value) -> None:
        super().__init__()
        if not 0 <= alpha < 1:
            raise InputError(f"alpha is {alpha}; expected a share of the probability, in [0, 1).")
        if not callable(beta) and not 0 <= beta <= 1:
            raise InputError(f"beta is {beta}; expected a probability.")
        self.alpha, self.beta = alpha, beta

    @torch.no_grad()
    def forward(self, s: Batch) -> Tensor:
        """(B, C) the label compensation."""
        p = full_precision(s.u.detach()).softmax(-1)
        y = s.y.to(p.dtype)
        plausible = p >= rowwise(at(self.beta, s), p)
        excess = ((p - y).clamp(min=0) * ~plausible).sum(-1, keepdim=True)
        scaled = torch.where(
            y > 0, p.clamp(min=torch.finfo(p.dtype).tiny), p
        )  # a given class of probability 0 keeps its share
        cap = torch.maximum(y, largest_scale(scaled * ~plausible, y * ~plausible, self.alpha) * scaled)
        cap = torch.where(plausible, torch.inf, cap)
        q = torch.minimum(capped_scale(scaled, cap) * scaled, cap)
        return (torch.where(excess <= self.alpha, p, q) - y).to(s.y.dtype)


@method(
    "label", "positive", "prior", "sample",
    equation="9 with a guess from plausible classes",
    reference="Lienen and Huellermeier, Mitigating Label Noise through Data Ambiguation, AAAI 2024",
    record="loss",
    needs=["steps"],
    limits="beta = 1 and alpha = 0 is cross entropy. A low beta trusts decisions early, and those confirm themselves.",
    search=Space({"alpha": Real(0.0, 0.3), "beta": Real(0.5, 0.95)}),
    candidates=each(alpha=(0.05, 0.05, 0.1, 0.2, 0.0), beta=(0.75, 0.6, 0.75, 0.6, 0.75)),
)  # fmt: skip
def data_ambiguation(*, alpha: float = 0.05, beta: float = 0.75, beta_end: float | None = 0.6) -> Compensated:
    r"""Robust data ambiguation: if the model is sure of another class, the label allows both, and the model may choose.

    .. math:: l'_i = \min_{q \in Q_i} \mathrm{KL}(q \,\|\, p_i), \qquad
              Q_i = \Bigl\{ q : \textstyle\sum_{c \notin Y_i} q_c \le \alpha \Bigr\}, \quad
              Y_i = \{y_i\} \cup \{c : p_{i,c} \ge \beta\}

    As compensation: :math:`\Delta y_i = q_i - y_i` with the minimizer :math:`q_i`, a constant, and the divergence as base loss, which
    is cross entropy for class numbers. No loss is raised, because :math:`y_i` itself is in the set. The authors define the set for
    class numbers; for a soft label it is :math:`Q_i = \{ q : \sum_{c : p_{i,c} < \beta} (q_c - y_{i,c})_+ \le \alpha \}`, the same set
    if the label is a class number. See :class:`~compensate.methods.label.Ambiguate`.

    Args:
        alpha: the probability :math:`\alpha` that implausible classes may have; the authors use 0.05.
        beta: the least probability :math:`\beta` of a plausible class, at the start.
        beta_end: the same at the end of the training, along a cosine as in the authors' code, but with each step instead of each
            epoch. None for a constant.

    >>> criterion = data_ambiguation(beta_end=None)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))         # 2.3584 without: the first class is plausible, too
    tensor(3.7253e-05)
    """
    constant = beta_end is None or beta_end == beta
    moving: Value = beta if constant or beta_end is None else Ramp(beta, beta_end, shape="cosine")
    return Compensated(label=Ambiguate(alpha, moving), base=divergence)
