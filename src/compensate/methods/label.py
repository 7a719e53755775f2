"""Methods that compensate labels: smoothing, guesses of the model or a teacher, meta steps, plausible classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.batch import Batch, Value
from compensate.core.criterion import BinaryBase, Compensated
from compensate.core.layout import put_rows, rowwise
from compensate.core.proximal import Ball
from compensate.core.stages import full_precision
from compensate.core.statistics import ClassMean, Statistic
from compensate.core.tables import Category, Sample
from compensate.core.validation import checked_features
from compensate.errors import InputError, check, one_of
from compensate.methods.registry import Formula, Real, Space, each, method
from compensate.terms import guesses
from compensate.terms.classes import Counts, checked_counts
from compensate.terms.guesses import Decision, Kind, live_prediction
from compensate.terms.prior import Toward, prediction, uniform
from compensate.terms.schedules import Ramp, StepSchedule

__all__ = [
    "adversarial_label_smoothing", "bootstrap_hard", "bootstrap_soft", "d2l", "data_ambiguation",
    "deep_self_learning", "distillation", "guess_label", "label_smoothing", "meta_label", "mix_bootstrap",
    "mix_level_label", "online_label_smoothing", "proselflc",
]  # fmt: skip

Conf = Literal["all", "correct"]
Form = Literal["label", "classic"]
Guess = Literal["current", "previous_epoch"]


@method(
    "label", "mixed", "prior", "sample+category", equation="19", record="loss",
    reference="Yao and Wu, Compensation Learning, 2021; class terms of Zhong et al., MiSLAS, CVPR 2021",
    limits="lam = 0 leaves smoothing by class, head = tail = 0 leaves soft bootstrapping. lam + head may not exceed 1.",
    search=Space({"lam": Real(0.01, 0.5), "head": Real(0.0, 0.5), "tail": Real(0.0, 0.5)}),
)  # fmt: skip
def mix_level_label(*, class_counts: Counts, lam: float = 0.3, head: float = 0.4, tail: float = 0.1) -> Compensated:
    r"""Label compensation at two levels: of the sample against wrong labels, of the class against imbalance.

    .. math:: \Delta y_i + \Delta y_{y_i}, \qquad \Delta y_i = \lambda (p_i - y_i), \quad
              \Delta y_c = \epsilon_c (I/C - y), \quad
              \epsilon_c = \epsilon_t + (\epsilon_h - \epsilon_t) \sin \frac{\pi (n_c - n_{\min})}{2 (n_{\max} - n_{\min})}

    where :math:`n_c` counts the samples of class c: the labels of frequent classes are smoothed most. The paper gives the form only;
    the term of the sample is soft bootstrapping with a constant prediction, the term of the class is label-aware smoothing.

    Args:
        lam: :math:`\lambda`, the trust in the prediction.
        head, tail: :math:`\epsilon_h` of the most frequent class and :math:`\epsilon_t` of the rarest.

    >>> criterion = mix_level_label(class_counts=[90, 9, 1])
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.7285)
    """
    check(lam + max(head, tail) <= 1, "at most the whole label, 1, together", lam=lam, head=head, tail=tail)
    counts = [float(count) for count in checked_counts(class_counts)]
    fewest, span = min(counts), (max(counts) - min(counts)) or 1.0
    smoothing = [tail + (head - tail) * math.sin(math.pi / 2 * (count - fewest) / span) for count in counts]
    return Compensated(label=(Toward(prediction, lam), Toward(uniform, guesses.OfClass(smoothing))))


@method(
    "label", "mixed", "meta", "sample", equation="5-i with 12-14", record="loss", needs=["index", "clean"],
    reference="Yao and Wu, Compensation Learning, 2021, Section III-C(4)",
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
        lr: the step :math:`\alpha` of `meta_step`, large, because it multiplies the model's own step and one over the batch size.

    >>> criterion = meta_label(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(2.3584)
    """
    one_of("per", per, "sample", "category")
    rows, table = (num_samples, Sample) if per == "sample" else (num_classes, Category)
    return Compensated(label=table(rows, num_classes, update="meta", lr=lr, bound=Ball(1.0, "linf")))


@method(
    "label", "mixed", "prior", "sample", equation="25", record="loss",
    reference="Szegedy et al., Rethinking the Inception Architecture, CVPR 2016",
    limits="lam = 0 is cross entropy. Treats all wrong classes alike, and right labels like wrong ones.",
    search=Space({"lam": Real(0.01, 0.6)}), candidates=each(lam=(0.1, 0.2, 0.3, 0.45, 0.6)),
)  # fmt: skip
def label_smoothing(*, num_classes: int | None = None, lam: Value = 0.1, base: BinaryBase = None) -> Compensated:
    r"""Label smoothing: every label gives a share to all classes alike.

    .. math:: \Delta y_i = \lambda (I/C - y_i)

    With several labels per sample, :math:`\Delta y_{i,c} = \lambda (1/2 - y_{i,c})`.

    Args:
        lam: the share :math:`\lambda`; torch calls it `label_smoothing`.

    >>> label_smoothing(lam=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3050)
    """
    return Compensated(label=Toward(uniform, lam), base=base)


@method(
    "label", "negative", "adversarial", "sample", equation="26, 27", record="loss",
    reference="Goibert and Dohmatob, Adversarial Robustness via Label-Smoothing, 2019",
    limits="lam = 0 is cross entropy. Meant for adversarial robustness; it has no effect against wrong labels.",
    search=Space({"lam": Real(0.01, 0.6)}),
)  # fmt: skip
def adversarial_label_smoothing(
    *, lam: Value = 0.1, kind: Kind = "least_likely", temperature: float = 0.1, detach: bool = False
) -> Compensated:
    r"""Label smoothing toward the worst guess: the least likely class.

    .. math:: \Delta y_i = \lambda (p_i^* - y_i), \qquad
              p_i^* = \arg\max_{p \in \Delta} l(S(u_i), y_i + \lambda (p - y_i))

    The maximum over the simplex (which Eq. 27 leaves out) is the one-hot vector of the least likely class; tied classes
    share it. If the given class is itself the least likely, nothing changes.

    Args:
        lam: the share :math:`\lambda`.
        kind: "least_likely"; or, of the other classes, "boltzmann", :math:`p^*_{i,c} \propto e^{-p_{i,c}/T}`, or "second_best".
        temperature: :math:`T` of "boltzmann".
        detach: treat the guess of "boltzmann" as a constant in the gradient; the authors' code does not.

    >>> adversarial_label_smoothing(lam=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.4184)
    """
    return Compensated(label=Toward(guesses.Worst(kind, temperature, detach), lam))


@method(
    "label", "mixed", "prior", "category", equation="54-56 with beta = 1", record="loss", needs=["epochs"],
    reference="Zhang et al., Delving Deep into Label Smoothing, IEEE TIP 2021",
    limits="Without end_epoch() it stays label smoothing. A class that is never predicted right keeps a uniform row.",
    search=Space({"alpha": Real(0.05, 0.95)}), candidates=each(alpha=(0.5, 0.3, 0.1, 0.7, 0.9)),
)  # fmt: skip
def online_label_smoothing(*, num_classes: int, alpha: Value = 0.5, conf: Conf = "correct") -> Compensated:
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
    """(B,) the Kullback-Leibler divergence between labels and predictions; for class numbers it is cross entropy."""
    losses = F.cross_entropy(u, y, reduction="none")
    return losses if y.ndim == 1 else losses - torch.special.entr(y).sum(-1)


@torch.no_grad()
def ambiguation_term(s: Batch, alpha: float, beta: float) -> Tensor:
    r"""The label term of :func:`data_ambiguation`, a constant.

    If the prediction is in the set, it is the minimizer; else each class has a multiple of its probability, or its share of the label:

    .. math:: q_{i,c} = \min(k\, p_{i,c}, \max(y_{i,c}, k'\, p_{i,c})) \;(p_{i,c} < \beta), \quad k\, p_{i,c} \;(p_{i,c} \ge \beta)

    For class numbers :math:`k = (1 - \alpha) / \sum_{c \in Y_i} p_{i,c}` and :math:`k' = \alpha / \sum_{c \notin Y_i} p_{i,c}`.
    """
    p = full_precision(s.u.detach()).softmax(-1)
    y = s.y.to(p.dtype)
    plausible = p >= rowwise(beta, p)
    excess = ((p - y).clamp(min=0) * ~plausible).sum(-1, keepdim=True)
    tiny = torch.finfo(p.dtype).tiny
    scaled = torch.where(y > 0, p.clamp(min=tiny), p)  # a given class of probability 0 keeps its share
    # k': sum (k' p - y)+ over the implausible classes is alpha. It is the smallest quotient over the sets of classes with least y / p.
    free, held = scaled * ~plausible, y * ~plausible
    order = (held / free.clamp(min=tiny)).argsort(-1)
    below, above = (values.gather(-1, order).cumsum(-1) for values in (free, held))
    cap = torch.maximum(y, ((alpha + above) / below.clamp(min=tiny)).amin(-1, keepdim=True) * scaled)
    cap = torch.where(plausible, torch.inf, cap)
    # k: the entries min(k p, cap) sum to 1.
    order = (cap / scaled.clamp(min=tiny)).argsort(-1)
    capped = F.pad(cap.gather(-1, order)[:, :-1].cumsum(-1), (1, 0))
    rest = scaled.gather(-1, order).flip(-1).cumsum(-1).flip(-1)
    k = ((1 - capped) / rest.clamp(min=tiny)).amax(-1, keepdim=True)
    return (torch.where(excess <= alpha, p, torch.minimum(k * scaled, cap)) - y).to(s.y.dtype)


@method(
    "label", "positive", "prior", "sample", equation="9 with a guess from plausible classes", record="loss", needs=["steps"],
    reference="Lienen and Huellermeier, Mitigating Label Noise through Data Ambiguation, AAAI 2024",
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
    class numbers; for a soft label it is :math:`Q_i = \{ q : \sum_{c : p_{i,c} < \beta} (q_c - y_{i,c})_+ \le \alpha \}`.

    Args:
        alpha: the probability :math:`\alpha` that implausible classes may have; the authors use 0.05.
        beta: the least probability :math:`\beta` of a plausible class, at the start.
        beta_end: the same at the end of the training, along a cosine; None for a constant.

    >>> criterion = data_ambiguation(beta_end=None)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))         # 2.3584 without: the first class is plausible, too
    tensor(3.7253e-05)
    """
    check(0 <= alpha < 1, "a share of the probability, in [0, 1)", alpha=alpha)
    check(0 <= beta <= 1, "a probability", beta=beta)
    threshold = beta if beta_end in (None, beta) else Ramp(beta, beta_end, shape="cosine")
    place = {"direction": "positive", "granularity": "sample"}
    term = Formula(ambiguation_term, alpha=alpha, beta=threshold, on_simplex=True, **place)
    return Compensated(label=term, base=divergence)


def _random_logits(sizes: Mapping[str, Any]) -> Tensor:
    """Outputs of a teacher without knowledge, the same each time."""
    return torch.randn(sizes["num_samples"], sizes["num_classes"], generator=torch.Generator().manual_seed(0))


@method(
    "label", "mixed", "prior", "sample", equation="9", record="loss", needs=["teacher", "index"],
    reference="Yao and Wu, Compensation Learning, 2021",
    limits="As good as the other model: lam = 0 ignores it, lam = 1 ignores the labels.",
    example=lambda sizes: {"guess": _random_logits(sizes).softmax(-1)},
    search=Space({"lam": Real(0.05, 0.95)}),
)  # fmt: skip
def guess_label(*, guess: nn.Module | Tensor, lam: Value = 0.5, num_classes: int | None = None) -> Compensated:
    r"""Labels move toward the predictions of another model.

    .. math:: \Delta y_i = \lambda (y'_i - y_i)

    Args:
        guess: the other model, which needs `criterion.evaluate`; or its distributions (N, C) or class numbers (N,), which need the index.
        lam: the trust :math:`\lambda`.
        num_classes: the number of classes, for class numbers.

    >>> criterion = guess_label(guess=torch.tensor([0, 2]), lam=0.5, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([0]))
    tensor(1.2584)
    """
    return Compensated(label=Toward(guesses.guess_of(guess, num_classes), lam))


def distilled(s: Batch, q: Tensor, lam: Tensor | float, temperature: float) -> Tensor:
    """The label term of :func:`distillation`, a constant."""
    return rowwise(lam, s.y) * (q - (s.u.detach() / temperature).softmax(-1))


def soft_target_loss(s: Batch, q: Tensor, lam: Tensor | float, temperature: float) -> Tensor:
    """The loss term of :func:`distillation` in its classic form."""
    logp = (s.u / temperature).log_softmax(-1)
    return lam * temperature * (q.xlogy(q) - q * logp).sum(-1) * s.valid


@method(
    "label", "mixed", "prior", "sample", equation="34, 35", record="loss", needs=["teacher", "index"],
    reference="Hinton et al., Distilling the Knowledge in a Neural Network, 2015",
    limits="As good as the teacher. lam = 0 is cross entropy. In the label form the loss itself may be negative.",
    example=lambda sizes: {"teacher": _random_logits(sizes)},
    search=Space({"lam": Real(0.1, 4.0, log=True), "temperature": Real(1.0, 10.0)}),
)  # fmt: skip
def distillation(
    *, teacher: nn.Module | Tensor, lam: Value = 1.0, temperature: float = 4.0, form: Form = "label"
) -> Compensated:
    r"""Knowledge distillation: labels are corrected by the difference between teacher and student.

    .. math:: \Delta y_i = \lambda (q_i - p'_i), \qquad q_i = S(z_i / T), \quad p'_i = S(u_i / T)

    where :math:`z_i` are the teacher's logits and :math:`p'_i` is a constant in the gradient. The corrected label may have negative
    entries and is not projected. The classic form :math:`l'_i = l_i + \lambda T\, \mathrm{KL}(q_i \| p'_i)` has the same gradient,
    :math:`(p_i - y_i) + \lambda (p'_i - q_i)`, but another value.

    Args:
        teacher: a model, which needs `criterion.evaluate`; or its logits for all samples, (N, C), which need the index.
        lam: the weight :math:`\lambda`; it is :math:`\alpha T` where others write :math:`\mathrm{CE} + \alpha T^2 \mathrm{KL}`.
        temperature: :math:`T`.
        form: "label", Eq. 35, or "classic", a loss term.

    >>> criterion = distillation(teacher=torch.tensor([[4.0, 0.0, 0.0]]), form="classic")
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([0]))
    tensor(2.4338)
    """
    one_of("form", form, "label", "classic")
    q = guesses.Softened(guesses.logits_of(teacher), temperature)
    settings = {"q": q, "lam": lam, "temperature": temperature, "granularity": "sample"}
    if form == "label":
        return Compensated(label=Formula(distilled, **settings), onto="none")
    return Compensated(loss=Formula(soft_target_loss, **settings, direction="negative", adds=True))


def choose_prototypes(z: Tensor, count: int = 8, rank: float = 0.4, limit: float = 0.95) -> Tensor:
    r"""The rows of `z` (m, D), features of one class, that are typical of it but differ from each other.

    .. math:: S_{ij} = \cos(z_i, z_j), \quad \rho_i = \sum_j \mathrm{sign}(S_{ij} - S_c), \quad
              \eta_i = \begin{cases} \max_{j: \rho_j > \rho_i} S_{ij} & \rho_i < \rho_{\max} \\
                       \min_j S_{ij} & \rho_i = \rho_{\max} \end{cases}

    The `count` densest rows (largest :math:`\rho`) with :math:`\eta <` `limit` are chosen, densest first, and rows beyond the limit only
    if others do not suffice. :math:`S_c` is the entry of :math:`S` at `rank`, in ascending order.
    """
    unit = F.normalize(z, dim=-1)
    similar = unit @ unit.T
    entries = similar.flatten()
    above = similar - entries.kthvalue(min(int(rank * len(entries)) + 1, len(entries))).values
    density = torch.sign(above.masked_fill(above.abs() < 1e-6, 0.0)).sum(1)  # differences by rounding do not count
    denser = density[None, :] > density[:, None]
    nearest = similar.masked_fill(~denser, -torch.inf).amax(1)
    nearest = torch.where(density == density.max(), similar.amin(1), nearest)
    span = 2 * len(z) + 1  # larger than any difference of densities
    return (density - span * (nearest >= limit)).argsort(descending=True, stable=True)[:count]


@final
class Prototypes(Statistic):
    r"""Labels from the prototypes of the previous epoch, as in :func:`deep_self_learning`; as a value, (B, C) one-hot.

    Until the first epoch has ended the guess is the given label. The authors relabel the whole set between epochs; this class relabels
    a sample at its visit, by its current features.
    """

    reader = "a choice of prototypes"

    def __init__(
        self, num_samples: int, num_classes: int, feature_dim: int, count: int, sampled: int, rank: float, limit: float
    ) -> None:
        super().__init__()
        check(count >= 1 and sampled >= 1, "at least one prototype and one sample", count=count, sampled=sampled)
        self.num_samples, self.num_classes, self.rolls = num_samples, num_classes, True
        self.count, self.rank, self.limit = count, rank, limit
        kept = min(num_samples, sampled * num_classes)
        # A fixed seed: all processes must agree on the samples, and a new run too.
        chosen = torch.randperm(num_samples, generator=torch.Generator().manual_seed(0))[:kept]
        slot = torch.full((num_samples,), -1).index_copy_(0, chosen, torch.arange(kept))
        self.slot = self.track("slot", slot, merge="same")
        self.features = self.track("features", torch.zeros(kept, feature_dim), merge="rows")
        self.given = self.track("given", torch.full((kept,), -1), merge="rows")
        self.prototypes = self.track("prototypes", torch.zeros(num_classes, count, feature_dim), merge="same")
        self.known = self.track("known", torch.zeros(num_classes, count), merge="same")

    def forward(self, s: Batch) -> Tensor:
        z = F.normalize(s.z.detach().flatten(1).to(self.prototypes.dtype), dim=-1)
        similar = torch.einsum("bd,cpd->bcp", z, self.prototypes)  # prototypes are unit vectors, or zero if unknown
        counts = self.known.sum(-1)
        score = (similar.sum(-1) / counts.clamp(min=1)).masked_fill(counts == 0, -torch.inf)
        guess = F.one_hot(score.argmax(-1), s.u.shape[-1]).to(s.u.dtype)
        return torch.where(counts.any(), guess, s.y)

    def check(self, s: Batch) -> None:
        super().check(s)
        checked_features(s, self.features.shape[-1])

    def observe(self, s: Batch) -> None:
        slots = self.slot[self.index(s)]
        kept, z = (slots >= 0) & s.valid, s.z.detach().flatten(1).to(self.features.dtype)
        put_rows(self.features, slots, z, kept)
        put_rows(self.given, slots, s.labels, kept)

    def end_epoch(self) -> None:
        """Chooses the prototypes of each class; a class without samples keeps the old ones."""
        for c in range(len(self.prototypes)):
            z = self.features[self.given == c]
            if len(z):
                best = z[choose_prototypes(z, self.count, self.rank, self.limit)]
                self.prototypes[c].zero_()[: len(best)] = F.normalize(best, dim=-1)
                self.known[c].zero_()[: len(best)] = 1
        self.given.fill_(-1)


@method(
    "label", "mixed", "prior", "sample", equation="9 with labels from prototypes", record="loss", needs=["model", "features", "index", "epochs"],
    reference="Han et al., Deep Self-Learning From Noisy Labels, ICCV 2019",
    limits="Cross entropy until epoch `start`. Keeps features of up to `sampled` samples per class.",
)  # fmt: skip
def deep_self_learning(
    *,
    num_samples: int,
    num_classes: int,
    feature_dim: int,
    alpha: float = 0.5,
    start: int = 3,
    count: int = 8,
    sampled: int = 1280,
    rank: float = 0.4,
    limit: float = 0.95,
) -> Compensated:
    r"""Deep self-learning: labels move toward the class whose prototypes are most similar to the features.

    .. math:: \Delta y_i = \alpha (\hat y_i - y_i), \qquad
              \hat y_i = \arg\max_c \frac1p \sum_{k=1}^p \cos(z_i, z_{c,k})

    where :math:`z_{c,k}` are the :math:`p` prototypes of class c, chosen again at the end of each epoch. The authors relabel the whole
    set between epochs; here a sample is relabeled at its visit.

    Args:
        alpha: the share :math:`\alpha` of the new label.
        start: epochs before labels change; with ``start=1`` one of three trainings on digits collapsed into one class.
        count, sampled: prototypes per class, and samples per class (on average) that they are chosen from.
        rank: the position of the similarity threshold among all similarities, in ascending order.
        limit: the similarity beyond which two prototypes are too much alike.

    >>> criterion = deep_self_learning(num_samples=100, num_classes=3, feature_dim=8)
    >>> print(criterion.taxonomy)
    label · mixed · prior · sample
    """
    check(start >= 1, "at least 1, as prototypes are known after the first epoch", start=start)
    q = Prototypes(num_samples, num_classes, feature_dim, count=count, sampled=sampled, rank=rank, limit=limit)
    return Compensated(label=Toward(q, StepSchedule({0: 0.0, start: alpha})))


@final
class LastPrediction(Statistic):
    """The prediction at the previous visit of each sample; as a value, (B, C), the given label before the first visit.

    With `hard` the value is the most likely class, one-hot, instead of the distribution.
    """

    reader, binary = "the memory of the previous epoch", True

    def __init__(self, num_samples: int, num_classes: int, hard: bool = False) -> None:
        super().__init__()
        self.num_samples, self.num_classes, self.hard = num_samples, num_classes, hard
        self.rows = self.track("rows", torch.zeros(num_samples, num_classes), merge="rows")

    def forward(self, s: Batch) -> Tensor:
        rows = self.rows[self.index(s)].to(s.u.dtype)
        guess = guesses.decided(rows, 0.5 if s.places.binary else None) if self.hard else rows
        return torch.where(rows.sum(-1, keepdim=True) > 0, guess, s.y)

    def observe(self, s: Batch) -> None:
        p = s.plain.sigmoid() if s.places.binary else s.plain.softmax(-1)
        padded = s.places.dense and not s.complete  # padding has no row
        put_rows(self.rows, self.index(s), p.to(self.rows.dtype), s.valid if padded else None)


def _bootstrap(
    q: Value, beta: float, guess: Guess, num_samples: int | None, num_classes: int | None, base: BinaryBase
) -> Compensated:
    """Labels move toward the guess `q`, or toward the prediction of the previous epoch."""
    one_of("guess", guess, "current", "previous_epoch")
    if guess == "previous_epoch":
        if num_samples is None or num_classes is None:
            raise InputError(
                'guess="previous_epoch" keeps a prediction for each sample: give num_samples and num_classes.'
            )
        rows, columns = (num_samples * num_classes, 1) if base == "bce" else (num_samples, num_classes)
        q = LastPrediction(rows, columns, hard=isinstance(q, Decision))
    return Compensated(label=Toward(q, round(1 - beta, 12)), base=base)


@method(
    "label", "mixed", "prior", "sample", equation="10", record="loss",
    reference="Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, ICLR workshop 2015",
    limits="beta = 1 is cross entropy. A prediction that is trusted too early confirms itself.",
    search=Space({"beta": Real(0.3, 1.0)}), candidates=each(beta=(0.95, 0.9, 0.8, 0.6, 0.4)),
)  # fmt: skip
def bootstrap_soft(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    beta: float = 0.95,
    guess: Guess = "current",
    detach: bool = False,
    base: BinaryBase = None,
) -> Compensated:
    r"""Soft bootstrapping: labels move toward the model's own prediction.

    .. math:: \Delta y_i = \lambda (p_i - y_i), \qquad \lambda = 1 - \beta

    With several labels per sample, :math:`\Delta y_{i,c} = \lambda (\sigma(u_{i,c}) - y_{i,c})`.

    Args:
        beta: the share :math:`\beta` of the given label.
        guess: "current" (Reed et al.) or "previous_epoch" (the paper's text; needs `num_samples` and `num_classes`).
        detach: treat the current prediction as a constant in the gradient; Reed et al. do not, which adds minimum-entropy regularization.

    >>> bootstrap_soft(beta=0.95)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.2661)
    """
    return _bootstrap(prediction if detach else live_prediction, beta, guess, num_samples, num_classes, base)


@method(
    "label", "positive", "prior", "sample", equation="10", record="loss",
    reference="Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, ICLR workshop 2015",
    limits="beta = 1 is cross entropy. A decision that is trusted too early confirms itself.",
    search=Space({"beta": Real(0.3, 1.0)}), candidates=each(beta=(0.9, 0.8, 0.6, 0.4, 0.3)),
)  # fmt: skip
def bootstrap_hard(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    beta: float = 0.8,
    guess: Guess = "current",
    base: BinaryBase = None,
) -> Compensated:
    r"""Hard bootstrapping: labels move toward the model's most likely class.

    .. math:: \Delta y_i = \lambda (o_i - y_i), \qquad \lambda = 1 - \beta

    where :math:`o_i` is one-hot at the largest entry of the prediction. With several labels per sample, :math:`o_{i,c}` is 1 if
    :math:`u_{i,c} > 0`.

    Args:
        beta: the share :math:`\beta` of the given label.
        guess: "current" (Reed et al.) or "previous_epoch" (the paper's text; needs `num_samples` and `num_classes`).

    >>> bootstrap_hard(beta=0.8)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.9184)
    """
    return _bootstrap(Decision(), beta, guess, num_samples, num_classes, base)


@method(
    "label", "mixed", "prior", "sample+category", equation="54-56", record="loss", needs=["epochs"],
    reference="Yao and Wu, Compensation Learning, 2021",
    limits="beta = 0 is soft bootstrapping with its beta = 1 - alpha; beta = 1 is online label smoothing.",
    search=Space({"alpha": Real(0.05, 0.8), "beta": Real(0.0, 1.0)}),
)  # fmt: skip
def mix_bootstrap(
    *, num_classes: int, alpha: Value = 0.2, beta: Value = 0.5, conf: Conf = "correct", detach: bool = False
) -> Compensated:
    r"""mixBootstrapping: labels move toward the prediction of the sample and the mean prediction of its class.

    .. math:: \Delta y_i = \alpha (\beta \tilde p_{y_i} + (1 - \beta) p_i - y_i)

    where :math:`\tilde p_c` is the mean prediction of class c in the previous epoch.

    Args:
        alpha, beta: the shares of the guess and of the class. The paper gives no values.
        conf: the two definitions of Eq. 56: "all" predictions count, or only "correct" ones.
        detach: treat :math:`p_i` as a constant in the gradient; soft bootstrapping does not.

    >>> mix_bootstrap(num_classes=3, alpha=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.2394)
    """
    q = guesses.Blend(ClassMean(num_classes, conf), prediction if detach else live_prediction, beta)
    return Compensated(label=Toward(q, alpha))


@method(
    "label", "mixed", "prior", "sample", equation="10 with a trust for each sample", record="loss", needs=["steps"],
    reference="Wang et al., ProSelfLC: Progressive Self Label Correction, CVPR 2021",
    limits="Needs the length of the training: before its middle hardly anything changes.",
    search=Space({"sharpness": Real(4.0, 32.0), "middle": Real(0.2, 0.8)}),
    candidates=each(sharpness=(16.0, 8.0, 24.0, 16.0, 16.0), middle=(0.5, 0.5, 0.5, 0.3, 0.15)),
)  # fmt: skip
def proselflc(*, sharpness: float = 16.0, middle: float = 0.5, detach: bool = False) -> Compensated:
    r"""Progressive self label correction: trust in the prediction grows with time and with its certainty.

    .. math:: \Delta y_i = \epsilon_i (p_i - y_i), \qquad
              \epsilon_i = \frac{1}{1 + e^{-b(t - t_0)}} \left(1 - \frac{H(p_i)}{\log C}\right)

    where :math:`t \in [0, 1]` is the progress of the training.

    Args:
        sharpness, middle: :math:`b`, and :math:`t_0`, the time of half trust.
        detach: treat :math:`p_i` in the label as a constant in the gradient; the authors' code does not.

    >>> criterion = proselflc().start(total_steps=100)
    >>> loss = criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    """
    q = prediction if detach else live_prediction
    return Compensated(label=Toward(q, guesses.ProgressiveTrust(sharpness, middle)))


def local_dimensionality(z: Tensor, k: int = 20) -> Tensor:
    r"""(B,) the maximum-likelihood estimate of the dimension around each row of `z`, from its neighbors in the batch.

    .. math:: \mathrm{LID}_i = -\left( \frac1k \sum_{j=1}^k \log \frac{r_{ij}}{r_{ik}} \right)^{-1}

    where :math:`r_{i1} \le \dots \le r_{ik}` are the distances to the `k` nearest other rows (Amsaleg et al., KDD 2015).
    """
    k = min(k, len(z) - 1)
    if k < 2:
        return z.new_full((len(z),), torch.nan)
    z = full_precision(z)  # distances are not defined for half precision
    distances = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
    r = distances.topk(k + 1, largest=False).values[:, 1:]  # the nearest row is the row itself
    return -k / torch.log(r / r[:, -1:] + 1e-8).sum(-1)  # duplicates have a distance of 0


@final
class Dimensionality(Statistic):
    r"""Observes the dimensionality of the features; as a value, the trust :math:`1 - \alpha_e` of :func:`d2l`.

    The turning point is the first epoch, after `patience + window` epochs, whose mean dimensionality exceeds the mean of the `window`
    epochs before it by two of their standard deviations.
    """

    direction = "positive"  # for the most likely class; a guess with another direction declares it
    whole_batch = True  # neighbors come from the batch

    def __init__(self, k: int = 20, window: int = 5, patience: int = 5) -> None:
        super().__init__()
        numbers = {"k": k, "window": window, "patience": patience}
        check(k >= 2 and window >= 1 and patience >= 0, "k >= 2, window >= 1, patience >= 0", **numbers)
        self.k, self.window, self.patience, self.rolls = k, window, patience, True
        self.total = self.track("total", torch.zeros(()), merge="sum")
        self.count = self.track("count", torch.zeros(()), merge="sum")
        self.recent = self.track("recent", torch.zeros(window + 1), merge="same")
        self.lowest = self.track("lowest", torch.tensor(torch.inf), merge="same")
        self.epochs = self.track("epochs", torch.tensor(0), merge="same")
        self.turned = self.track("turned", torch.tensor(-1), merge="same")
        self.seen = self.track("seen", torch.tensor(0), merge="same")
        self.begun = self.track("begun", torch.tensor(0), merge="same")

    def forward(self, s: Batch) -> Tensor:
        s.criterion.require_total()
        time = self.begun / s.criterion.total
        trust = 1 - torch.exp(-time * self.recent[-1] / self.lowest)
        return torch.where(self.turned >= 0, trust, 0.0).to(s.u.dtype)

    def check(self, s: Batch) -> None:
        super().check(s)
        _ = s.z

    def observe(self, s: Batch) -> None:
        if not len(s.target):
            return
        lid = local_dimensionality(s.z.detach().flatten(1), self.k)
        usable = lid.isfinite() & (lid > 0)
        self.total += torch.where(usable, lid, 0.0).sum()
        self.count += usable.sum()
        self.seen += 1

    def end_epoch(self) -> None:
        now = torch.where(self.count > 0, self.total / self.count, self.recent[-1])
        self.recent.copy_(torch.cat([self.recent[1:], now[None]]))
        self.lowest.copy_(torch.where(now > 0, torch.minimum(self.lowest, now), self.lowest))
        self.epochs += 1
        before = self.recent[:-1]
        spreads = now - before.mean() > 2 * before.std(correction=0)
        turns = (self.turned < 0) & (self.epochs > self.patience + self.window) & spreads
        self.turned.copy_(torch.where(turns, self.epochs - 2, self.turned))
        self.begun.copy_(self.seen)
        self.total.zero_()
        self.count.zero_()


@method(
    "label", "positive", "prior", "sample", equation="10 with a trust from the dimensionality", record="loss", needs=["model", "features", "epochs", "steps"],
    reference="Ma et al., Dimensionality-Driven Learning with Noisy Labels, ICML 2018",
    limits="Cross entropy until the features begin to spread, at the earliest after window + patience epochs.",
)  # fmt: skip
def d2l(*, k: int = 20, window: int = 5, patience: int = 5, guess: Literal["hard", "soft"] = "hard") -> Compensated:
    r"""Dimensionality-driven learning: predictions are trusted once the features spread to fit wrong labels.

    .. math:: \Delta y_i = (1 - \alpha_e)(o_i - y_i), \qquad
              \alpha_e = \exp\left( -\frac{e}{E} \frac{\mathrm{LID}_e}{\min_j \mathrm{LID}_j} \right)

    from the turning point of the local intrinsic dimensionality on, where the model spreads its features to fit wrong labels, and zero
    before. The authors measure 1,280 samples at the start of each epoch, and return to the weights of the turning point; here all
    batches are measured during the epoch, and the weights are left to the training loop.

    Args:
        k: the number of neighbors in the batch.
        window, patience: earlier epochs that the current one is compared with, and further epochs before the first comparison.
        guess: :math:`o_i`, the most likely class ("hard", the authors' code) or the prediction itself ("soft").

    >>> print(d2l(num_samples=100).taxonomy)
    label · positive · prior · sample
    """
    one_of("guess", guess, "hard", "soft")
    return Compensated(label=Toward(Decision(soft=guess == "soft"), Dimensionality(k, window, patience)))
