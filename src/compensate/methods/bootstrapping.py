"""Methods that pull labels toward the model's own prediction."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from compensate.equation import BinaryBase, Compensated, Weights
from compensate.errors import InputError
from compensate.forwards import full_precision
from compensate.inference.guesses import Blend, Decision, ProgressiveTrust, decided, live_prediction
from compensate.inference.prior import Toward, prediction
from compensate.inference.statistics import ClassMean, Statistic, labels_of, recorded
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.state import State, Value
from compensate.touched import put_rows

__all__ = ["bootstrap_hard", "bootstrap_soft", "d2l", "mix_bootstrap", "proselflc"]


Guess = Literal["current", "previous_epoch"]


@final
class LastPrediction(Statistic):
    r"""The prediction of the model at the previous visit of each sample: in the previous epoch, where each sample comes
    once an epoch. As a value, (B, C); the given label where there was no visit yet.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        hard: return the most likely class, one-hot, instead of the distribution.
    """

    reader, binary = "the memory of the previous epoch", True

    def __init__(self, num_samples: int, num_classes: int, hard: bool = False) -> None:
        super().__init__()
        self.num_samples, self.num_classes, self.hard = num_samples, num_classes, hard
        self.track("rows", torch.zeros(num_samples, num_classes), merge="rows")
        self.rows: Tensor

    def forward(self, s: State) -> Tensor:
        """(B, C) the guess."""
        rows = self.rows[self.index(s)].to(s.u.dtype)
        guess = decided(rows, 0.5 if s.places.binary else None) if self.hard else rows
        return torch.where(rows.sum(-1, keepdim=True) > 0, guess, s.y)

    def observe(self, s: State) -> None:
        """Keeps the predictions of the batch."""
        p = s.plain.sigmoid() if s.places.binary else s.plain.softmax(-1)
        padded = s.places.dense and not s.complete  # padding has no row
        put_rows(self.rows, self.index(s), p.to(self.rows.dtype), s.valid if padded else None)

    def extra_repr(self) -> str:
        """Size."""
        return f"{self.num_samples} samples"


def _own_guess(
    guess: Guess, num_samples: int | None, num_classes: int | None, hard: bool, detach: bool, base: BinaryBase = None
) -> Value:
    if guess == "current":
        return Decision() if hard else prediction if detach else live_prediction
    if guess != "previous_epoch":
        raise InputError(f'guess is "{guess}"; expected "current" or "previous_epoch".')
    if num_samples is None or num_classes is None:
        raise InputError('guess="previous_epoch" keeps a prediction for each sample: give num_samples and num_classes.')
    if base == "bce":
        return LastPrediction(num_samples * num_classes, 1, hard)
    return LastPrediction(num_samples, num_classes, hard)


@method(
    "label", "mixed", "prior", "sample",
    equation="10",
    reference="Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, ICLR workshop 2015",
    limits="beta = 1 is cross entropy. A prediction that is trusted too early confirms itself.",
    search=Space({"beta": Real(0.3, 1.0)}),
    candidates=each(beta=(0.95, 0.9, 0.8, 0.6, 0.4)),
)  # fmt: skip
def bootstrap_soft(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    beta: float = 0.95,
    guess: Guess = "current",
    detach: bool = False,
    base: BinaryBase = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Soft bootstrapping: labels give way to the model's own prediction.

    .. math:: \Delta y_i = \lambda (p_i - y_i), \qquad \lambda = 1 - \beta

    With several labels, :math:`\Delta y_{i,c} = \lambda (\sigma(u_{i,c}) - y_{i,c})`.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for `guess="previous_epoch"`.
        beta: the share :math:`\beta` of the given label.
        guess: "current", the prediction of this step, which is the loss of Reed et al.; or "previous_epoch", the
            one of the sample's previous visit, which is the paper's text (then `num_samples` is needed).
        detach: make the current prediction a constant in the gradient. Reed et al. do not: their loss adds
            minimum-entropy regularization.
        base: "bce" for several labels a sample; then `num_samples` needs `num_classes`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> bootstrap_soft(beta=0.95)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.2661)
    """
    q = _own_guess(guess, num_samples, num_classes, False, detach, base)
    record = recorded(num_samples, num_labels=labels_of(base, num_samples, num_classes))
    return Compensated(label=Toward(q, round(1 - beta, 12)), base=base, record=record, weight=weight)


@method(
    "label", "positive", "prior", "sample",
    equation="10",
    reference="Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, ICLR workshop 2015",
    limits="beta = 1 is cross entropy. A decision that is trusted too early confirms itself.",
    search=Space({"beta": Real(0.3, 1.0)}),
    candidates=each(beta=(0.9, 0.8, 0.6, 0.4, 0.3)),
)  # fmt: skip
def bootstrap_hard(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    beta: float = 0.8,
    guess: Guess = "current",
    base: BinaryBase = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Hard bootstrapping: labels give way to the class that the model holds most likely.

    .. math:: \Delta y_i = \lambda (o_i - y_i), \qquad \lambda = 1 - \beta

    where :math:`o_i` is one-hot at the largest entry of the prediction. With several labels, :math:`o_{i,c}` is 1 where
    :math:`u_{i,c} > 0`.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for `guess="previous_epoch"`.
        beta: the share :math:`\beta` of the given label.
        guess: whose decision: "current" (Reed et al.) or "previous_epoch" (the paper's text; needs `num_samples`).
        base: "bce" for several labels a sample; then `num_samples` needs `num_classes`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> bootstrap_hard(beta=0.8)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.9184)
    """
    q = _own_guess(guess, num_samples, num_classes, True, True, base)
    record = recorded(num_samples, num_labels=labels_of(base, num_samples, num_classes))
    return Compensated(label=Toward(q, round(1 - beta, 12)), base=base, record=record, weight=weight)


@method(
    "label", "mixed", "prior", "sample+category",
    equation="54-56",
    reference="Yao and Wu, Compensation Learning, 2021",
    needs=["epochs"],
    limits="beta = 0 is soft bootstrapping with its beta = 1 - alpha; beta = 1 is online label smoothing.",
    search=Space({"alpha": Real(0.05, 0.8), "beta": Real(0.0, 1.0)}),
)  # fmt: skip
def mix_bootstrap(
    *,
    num_classes: int,
    num_samples: int | None = None,
    alpha: Value = 0.2,
    beta: Value = 0.5,
    conf: Literal["all", "correct"] = "correct",
    detach: bool = False,
    weight: Weights | None = None,
) -> Compensated:
    r"""mixBootstrapping: labels give way to the prediction of the sample and to the mean prediction of its class.

    .. math:: \Delta y_i = \alpha (\beta \tilde p_{y_i} + (1 - \beta) p_i - y_i)

    where :math:`\tilde p_c` is the mean prediction of class c in the previous epoch.

    Args:
        num_classes: the number of classes.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        alpha: how far labels give way. The paper names no number, neither for this nor for `beta`.
        beta: the share :math:`\beta` of the class.
        conf: the two definitions of Eq. 56: "all" predictions count, or only "correct" ones.
        detach: make :math:`p_i` a constant in the gradient; soft bootstrapping does not.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> mix_bootstrap(num_classes=3, alpha=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.2394)
    """
    q = Blend(ClassMean(num_classes, conf), prediction if detach else live_prediction, beta)
    return Compensated(label=Toward(q, alpha), record=recorded(num_samples), weight=weight)


@method(
    "label", "mixed", "prior", "sample",
    equation="10 with a trust for each sample",
    reference="Wang et al., ProSelfLC: Progressive Self Label Correction, CVPR 2021",
    needs=["steps"],
    limits="Needs the length of the training: before its middle hardly anything changes.",
    search=Space({"sharpness": Real(4.0, 32.0), "middle": Real(0.2, 0.8)}),
    candidates=each(sharpness=(16.0, 8.0, 24.0, 16.0, 16.0), middle=(0.5, 0.5, 0.5, 0.3, 0.15)),
)  # fmt: skip
def proselflc(
    *,
    num_samples: int | None = None,
    sharpness: float = 16.0,
    middle: float = 0.5,
    detach: bool = False,
    weight: Weights | None = None,
) -> Compensated:
    r"""Progressive self label correction: trust in the prediction grows with time and with its certainty.

    .. math:: \Delta y_i = \epsilon_i (p_i - y_i), \qquad
              \epsilon_i = \frac{1}{1 + e^{-b(t - t_0)}} \left(1 - \frac{H(p_i)}{\log C}\right)

    where :math:`t \in [0, 1]` is the progress of the training.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        sharpness: :math:`b`.
        middle: :math:`t_0`, when trust has grown by half.
        detach: make :math:`p_i` in the label a constant in the gradient; the authors' code does not. :math:`\epsilon_i`
            is a constant in both.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> import torch
    >>> criterion = proselflc().start(total_steps=100)
    >>> loss = criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    """
    guess = prediction if detach else live_prediction
    return Compensated(
        label=Toward(guess, ProgressiveTrust(sharpness, middle)), record=recorded(num_samples), weight=weight
    )


SMALL = 1e-8
"""Keeps the logarithm of a ratio of distances finite."""


def local_dimensionality(z: Tensor, k: int = 20) -> Tensor:
    r"""(B,) the maximum-likelihood estimate of the dimension around each row of `z`, from its neighbors in the batch.

    .. math:: \mathrm{LID}_i = -\left( \frac1k \sum_{j=1}^k \log \frac{r_{ij}}{r_{ik}} \right)^{-1}

    where :math:`r_{i1} \le \dots \le r_{ik}` are the distances to the `k` nearest other rows.

    Reference: Amsaleg et al., Estimating Local Intrinsic Dimensionality, KDD 2015.
    """
    k = min(k, len(z) - 1)
    if k < 2:
        return z.new_full((len(z),), torch.nan)
    z = full_precision(z)  # distances are not defined for half precision
    distances = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
    r = distances.topk(k + 1, largest=False).values[:, 1:]  # the nearest row is the row itself
    return -k / torch.log(r / r[:, -1:] + SMALL).sum(-1)


@final
class Dimensionality(Statistic):
    r"""Watches the dimensionality of the features; as a value, how far to trust the predictions of the model.

    .. math:: \lambda = 1 - \exp\left( -\frac{e}{E} \frac{\mathrm{LID}_e}{\min_{j \le e} \mathrm{LID}_j} \right)

    from the turning point on and 0 before, where :math:`\mathrm{LID}_e` is the mean over epoch :math:`e` of the
    :math:`E` epochs. The turning point is the first epoch whose LID exceeds the mean of the `window` epochs before it
    by two of their standard deviations, counted after `patience + window` epochs: from there the model spreads its
    features in order to fit wrong labels.

    The authors measure on 1,280 samples at the start of each epoch, and go back to the weights of the turning point;
    here all batches of an epoch are measured while it trains, and the weights are left to the training loop.

    Args:
        k: the number of neighbors in the batch.
        window: epochs that the present one is compared with.
        patience: further epochs before the first comparison.
    """

    direction = "positive"  # of trust in the likeliest class; a guess of another direction says so itself
    whole_batch = True  # neighbors are looked for in the batch

    def __init__(self, k: int = 20, window: int = 5, patience: int = 5) -> None:
        super().__init__()
        if k < 2 or window < 1 or patience < 0:
            raise InputError(
                f"k={k}, window={window}, patience={patience}; expected k >= 2, window >= 1, patience >= 0."
            )
        self.k, self.window, self.patience, self.rolls = k, window, patience, True
        self.track("total", torch.zeros(()), merge="sum")
        self.track("count", torch.zeros(()), merge="sum")
        self.track("recent", torch.zeros(window + 1), merge="same")
        self.track("lowest", torch.tensor(torch.inf), merge="same")
        for name, start in (("epochs", 0), ("turned", -1), ("seen", 0), ("begun", 0)):
            self.track(name, torch.tensor(start), merge="same")
        self.total: Tensor
        self.count: Tensor
        self.recent: Tensor
        self.lowest: Tensor
        self.epochs: Tensor
        self.turned: Tensor
        self.seen: Tensor
        self.begun: Tensor

    def forward(self, s: State) -> Tensor:
        """The trust now, a scalar tensor."""
        s.criterion.require_total()
        time = self.begun / s.criterion.total
        trust = 1 - torch.exp(-time * self.recent[-1] / self.lowest)
        return torch.where(self.turned >= 0, trust, 0.0).to(s.u.dtype)

    def check(self, s: State) -> None:
        """There must be features."""
        super().check(s)
        _ = s.z

    def observe(self, s: State) -> None:
        """Adds the dimensionality of the batch."""
        if not len(s.target):
            return
        lid = local_dimensionality(s.z.detach().flatten(1), self.k)
        usable = lid.isfinite() & (lid > 0)
        self.total += torch.where(usable, lid, 0.0).sum()
        self.count += usable.sum()
        self.seen += 1

    def end_epoch(self) -> None:
        """The epoch joins the others, and is compared with those before it."""
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

    def extra_repr(self) -> str:
        """Neighbors and window."""
        return f"k={self.k}, window={self.window}"


@method(
    "label", "positive", "prior", "sample",
    equation="10 with a trust from the dimensionality",
    reference="Ma et al., Dimensionality-Driven Learning with Noisy Labels, ICML 2018",
    needs=["model", "features", "epochs", "steps"],
    limits="Cross entropy until the features begin to spread, at the earliest after window + patience epochs.",
)  # fmt: skip
def d2l(
    *,
    num_samples: int | None = None,
    k: int = 20,
    window: int = 5,
    patience: int = 5,
    guess: Literal["hard", "soft"] = "hard",
    weight: Weights | None = None,
) -> Compensated:
    r"""Dimensionality-driven learning: once the features spread in order to fit wrong labels, predictions are trusted.

    .. math:: \Delta y_i = (1 - \alpha_e)(o_i - y_i), \qquad
              \alpha_e = \exp\left( -\frac{e}{E} \frac{\mathrm{LID}_e}{\min_j \mathrm{LID}_j} \right)

    from the turning point of the local intrinsic dimensionality on, else nothing; see
    :class:`~compensate.methods.bootstrapping.Dimensionality`, which also says where this differs from the authors'.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        k: the number of neighbors in the batch.
        window: epochs that the present one is compared with.
        patience: further epochs before the first comparison.
        guess: :math:`o_i`, the most likely class ("hard", the authors' code) or the prediction itself ("soft").
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> criterion = d2l(num_samples=100)
    >>> print(criterion.taxonomy)
    label · positive · prior · sample
    """
    if guess not in ("hard", "soft"):
        raise InputError(f'guess is "{guess}"; expected "hard" or "soft".')
    q = Decision(soft=guess == "soft")
    return Compensated(
        label=Toward(q, Dimensionality(k, window, patience)), record=recorded(num_samples), weight=weight
    )
