"""Methods that pull labels toward another guess: a teacher's, or that of prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.checks import checked_features
from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.inference.prior import Toward
from compensate.inference.statistics import Evidence, Statistic, recorded
from compensate.inference.teachers import Softened, guess_of, logits_of
from compensate.inference.tuning import StepSchedule
from compensate.methods.registry import method
from compensate.methods.search import Real, Space
from compensate.places import rowwise
from compensate.state import State, Value, at
from compensate.touched import put_rows

__all__ = ["deep_self_learning", "distillation", "guess_label"]


def _teacher(sizes: Mapping[str, Any], name: str, softmax: bool) -> dict[str, Tensor]:
    """Outputs of a stand-in model that knows nothing, the same each time."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(sizes["num_samples"], sizes["num_classes"], generator=generator)
    return {name: rows.softmax(-1) if softmax else rows}


def _example_guess(sizes: Mapping[str, Any]) -> dict[str, Tensor]:
    return _teacher(sizes, "guess", softmax=True)


def _example_teacher(sizes: Mapping[str, Any]) -> dict[str, Tensor]:
    return _teacher(sizes, "teacher", softmax=False)


@method(
    "label", "mixed", "prior", "sample",
    equation="9",
    reference="Yao and Wu, Compensation Learning, 2021",
    needs=["teacher", "index"],
    limits="As good as the other model: lam = 0 ignores it, lam = 1 ignores the labels.",
    example=_example_guess,
    search=Space({"lam": Real(0.05, 0.95)}),
)  # fmt: skip
def guess_label(
    *,
    guess: nn.Module | Tensor,
    lam: Value = 0.5,
    num_samples: int | None = None,
    num_classes: int | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Labels give way to the predictions of another model.

    .. math:: \Delta y_i = \lambda (y'_i - y_i)

    Args:
        guess: :math:`y'`: the other model, which is then run on each batch (and needs `criterion.evaluate`); or its
            predictions for all samples, distributions (N, C) or class numbers (N,), which need the index.
        lam: the trust :math:`\lambda`.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for class numbers.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = guess_label(guess=torch.tensor([0, 2]), lam=0.5, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([0]))
    tensor(1.2584)
    """
    return Compensated(label=Toward(guess_of(guess, num_classes), lam), record=recorded(num_samples), weight=weight)


@final
class Distilled(nn.Module):
    r"""Corrects each label by how the teacher differs from the student: :math:`\Delta y_i = \lambda (q_i - p'_i)`.

    Args:
        teacher: its logits, a callable of the state that returns (B, C).
        lam: :math:`\lambda`, a number or a callable of the state.
        temperature: :math:`T` of both distributions.

    Reference: Yao and Wu, Compensation Learning, 2021, Eqs. (34)-(35).
    """

    inference, granularity = "prior", "sample"

    def __init__(self, teacher: nn.Module, lam: Value, temperature: float) -> None:
        super().__init__()
        self.q, self.lam, self.temperature = Softened(teacher, temperature), lam, temperature

    def forward(self, s: State) -> Tensor:
        """(B, C) the label compensation, a constant."""
        own = (s.u.detach() / self.temperature).softmax(-1)
        return rowwise(at(self.lam, s), s.y) * (self.q(s) - own)


@final
class SoftTargetLoss(nn.Module):
    r"""Adds the classic loss of distillation, :math:`\Delta l_i = \lambda\, T\, \mathrm{KL}(q_i \| p'_i)`.

    Args:
        teacher, lam, temperature: as in :class:`Distilled`, whose gradient it shares.

    Reference: Hinton et al., 2015.
    """

    inference, granularity, direction, adds = "prior", "sample", "negative", True

    def __init__(self, teacher: nn.Module, lam: Value, temperature: float) -> None:
        super().__init__()
        self.q, self.lam, self.temperature = Softened(teacher, temperature), lam, temperature

    def forward(self, s: State) -> Tensor:
        """(B,) the loss compensation."""
        q, logp = self.q(s), (s.u / self.temperature).log_softmax(-1)
        divergence = (q.xlogy(q) - q * logp).sum(-1)
        return at(self.lam, s) * self.temperature * divergence * s.valid


@method(
    "label", "mixed", "prior", "sample",
    equation="34, 35",
    reference="Hinton et al., Distilling the Knowledge in a Neural Network, 2015",
    needs=["teacher", "index"],
    limits="As good as the teacher. lam = 0 is cross entropy. In the label form the loss itself may be negative.",
    example=_example_teacher,
    search=Space({"lam": Real(0.1, 4.0, log=True), "temperature": Real(1.0, 10.0)}),
)  # fmt: skip
def distillation(
    *,
    teacher: nn.Module | Tensor,
    lam: Value = 1.0,
    temperature: float = 4.0,
    form: Literal["label", "classic"] = "label",
    num_samples: int | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Knowledge distillation: labels are corrected by how the teacher differs from the student.

    .. math:: \Delta y_i = \lambda (q_i - p'_i), \qquad q_i = S(z_i / T), \quad p'_i = S(u_i / T)

    where :math:`z_i` are the teacher's logits and :math:`p'_i` is a constant in the gradient. The classic form is
    :math:`l'_i = l_i + \frac{\lambda}{T}\, T^2\, \mathrm{KL}(q_i \| p'_i)`. The two have the same gradient,
    :math:`(p_i - y_i) + \lambda (p'_i - q_i)`, but not the same value: the paper's "exactly" is meant so. The
    corrected label of the first form may have negative entries, so it is not projected (Eq. 6 is given up).

    Args:
        teacher: a model, which is then run on each batch (and needs `criterion.evaluate`); or its logits for all
            samples, (N, C), which need the index.
        lam: the weight :math:`\lambda`; it is :math:`\alpha T` where others write
            :math:`\mathrm{CE} + \alpha T^2 \mathrm{KL}`.
        temperature: :math:`T`.
        form: "label", Eq. 35, or "classic", a loss term.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = distillation(teacher=torch.tensor([[4.0, 0.0, 0.0]]), form="classic")
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([0]))
    tensor(2.4338)
    """
    logits, record = logits_of(teacher), recorded(num_samples)
    if form == "label":
        return Compensated(label=Distilled(logits, lam, temperature), onto="none", record=record, weight=weight)
    if form != "classic":
        raise InputError(f'form is "{form}"; expected "label" or "classic".')
    return Compensated(loss=SoftTargetLoss(logits, lam, temperature), record=record, weight=weight)


def choose_prototypes(z: Tensor, count: int = 8, rank: float = 0.4, limit: float = 0.95) -> Tensor:
    r"""The rows of `z` (m, D), features of one class, that are typical of it and yet unlike each other.

    .. math:: S_{ij} = \cos(z_i, z_j), \quad \rho_i = \sum_j \mathrm{sign}(S_{ij} - S_c), \quad
              \eta_i = \begin{cases} \max_{j: \rho_j > \rho_i} S_{ij} & \rho_i < \rho_{\max} \\
                       \min_j S_{ij} & \rho_i = \rho_{\max} \end{cases}

    The `count` densest rows (largest :math:`\rho`) with :math:`\eta <` `limit` are chosen; rows past the limit follow
    only if there are not enough others. :math:`S_c` is the entry of :math:`S` at `rank`, in rising order.

    Returns:
        (min(count, m),) numbers of rows, densest first.

    Reference: Han et al., Deep Self-Learning From Noisy Labels, ICCV 2019.
    """
    unit = F.normalize(z, dim=-1)
    similar = unit @ unit.T
    entries = similar.flatten()
    critical = entries.kthvalue(min(int(rank * len(entries)) + 1, len(entries))).values
    apart = similar - critical
    density = torch.sign(apart.masked_fill(apart.abs() < 1e-6, 0.0)).sum(1)  # rounding decides nothing
    denser = density[None, :] > density[:, None]
    nearest = similar.masked_fill(~denser, -torch.inf).amax(1)
    nearest = torch.where(density == density.max(), similar.amin(1), nearest)
    span = 2 * len(z) + 1  # larger than any difference of densities
    order = (density - span * (nearest >= limit)).argsort(descending=True, stable=True)
    return order[:count]


@final
class Prototypes(Statistic):
    r"""Labels from the prototypes of the previous epoch; as a value, (B, C) one-hot.

    .. math:: \hat y_i = \arg\max_c \frac1p \sum_{k=1}^p \cos(z_i, z_{c,k})

    where :math:`z_{c,k}` are the :math:`p` prototypes of class :math:`c`; see :func:`choose_prototypes`. Until the first
    epoch has ended the guess is the given label.

    The authors relabel the whole set between epochs, in a pass of its own; here a sample is relabeled when it is
    visited, by its features of that moment and the prototypes of the previous epoch, which costs no extra pass.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        feature_dim: the size of the features.
        count: prototypes per class.
        sampled: samples per class (on average) that prototypes are chosen from; always the same ones.
        rank, limit: as in :func:`choose_prototypes`.
    """

    reader = "a choice of prototypes"

    def __init__(
        self,
        num_samples: int,
        num_classes: int,
        feature_dim: int,
        *,
        count: int = 8,
        sampled: int = 1280,
        rank: float = 0.4,
        limit: float = 0.95,
    ) -> None:
        super().__init__()
        if count < 1 or sampled < 1:
            raise InputError(f"count={count}, sampled={sampled}; expected at least one prototype and one sample.")
        self.num_samples, self.num_classes, self.rolls = num_samples, num_classes, True
        self.count, self.rank, self.limit = count, rank, limit
        kept = min(num_samples, sampled * num_classes)
        # A fixed seed: all processes must agree on the samples, and a new run should too.
        chosen = torch.randperm(num_samples, generator=torch.Generator().manual_seed(0))[:kept]
        slot = torch.full((num_samples,), -1).index_copy_(0, chosen, torch.arange(kept))
        self.track("slot", slot, merge="same")
        self.track("features", torch.zeros(kept, feature_dim), merge="rows")
        self.track("given", torch.full((kept,), -1), merge="rows")
        self.track("prototypes", torch.zeros(num_classes, count, feature_dim), merge="same")
        self.track("known", torch.zeros(num_classes, count), merge="same")
        self.slot: Tensor
        self.features: Tensor
        self.given: Tensor
        self.prototypes: Tensor
        self.known: Tensor

    def forward(self, s: State) -> Tensor:
        """(B, C) the guess."""
        z = F.normalize(s.z.detach().flatten(1).to(self.prototypes.dtype), dim=-1)
        likeness = torch.einsum("bd,cpd->bcp", z, self.prototypes)  # prototypes are unit vectors, or zero if unknown
        counts = self.known.sum(-1)
        score = (likeness.sum(-1) / counts.clamp(min=1)).masked_fill(counts == 0, -torch.inf)
        guess = F.one_hot(score.argmax(-1), s.u.shape[-1]).to(s.u.dtype)
        return torch.where(counts.any(), guess, s.y)

    def check(self, s: State) -> None:
        """Features must fit, too."""
        super().check(s)
        checked_features(s, self.features.shape[-1])

    def observe(self, s: State) -> None:
        """Keeps the features of the chosen samples in the batch."""
        slots = self.slot[self.index(s)]
        kept, z = (slots >= 0) & s.valid, s.z.detach().flatten(1).to(self.features.dtype)
        put_rows(self.features, slots, z, kept)
        put_rows(self.given, slots, s.labels, kept)

    def end_epoch(self) -> None:
        """Chooses the prototypes of each class anew; a class without samples keeps its own."""
        for c in range(len(self.prototypes)):
            z = self.features[self.given == c]
            if len(z):
                best = z[choose_prototypes(z, self.count, self.rank, self.limit)]
                self.prototypes[c].zero_()[: len(best)] = F.normalize(best, dim=-1)
                self.known[c].zero_()[: len(best)] = 1
        self.given.fill_(-1)

    def extra_repr(self) -> str:
        """Size."""
        return f"{self.count} per class"


@method(
    "label", "mixed", "prior", "sample",
    equation="9 with labels from prototypes",
    reference="Han et al., Deep Self-Learning From Noisy Labels, ICCV 2019",
    needs=["model", "features", "index", "epochs"],
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
    weight: Weights | None = None,
) -> Compensated:
    r"""Deep self-learning: labels give way to the class whose prototypes the features are most like.

    .. math:: \Delta y_i = \alpha (\hat y_i - y_i), \qquad
              \hat y_i = \arg\max_c \frac1p \sum_{k=1}^p \cos(z_i, z_{c,k})

    where :math:`z_{c,k}` are prototypes of class c, chosen anew at the end of each epoch; see
    :class:`~compensate.methods.guessing.Prototypes`, which also says where this differs from the authors'.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        feature_dim: the size of the features that the model's `features` returns.
        alpha: the share :math:`\alpha` of the new label.
        start: epochs before labels change. Prototypes of a network that has learned little are poor, and labels from them may
            pull all classes into one: with ``start=1`` one of three trainings on digits collapsed.
        count: prototypes per class.
        sampled: samples per class that they are chosen from.
        rank: where the similarity that counts as near lies among all, in rising order.
        limit: the similarity past which two prototypes are too much alike.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = deep_self_learning(num_samples=100, num_classes=3, feature_dim=8)
    >>> print(criterion.taxonomy)
    label · mixed · prior · sample
    """
    if start < 1:
        raise InputError(f"start is {start}; prototypes are known after the first epoch, so expected at least 1.")
    q = Prototypes(num_samples, num_classes, feature_dim, count=count, sampled=sampled, rank=rank, limit=limit)
    return Compensated(
        label=Toward(q, StepSchedule({0: 0.0, start: alpha})), record=Evidence(num_samples), weight=weight
    )
