"""Methods that compensate labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from compensate.equation import Compensated
from compensate.errors import InputError
from compensate.granularity import Category, Sample
from compensate.inference.classes import Counts, checked_counts
from compensate.inference.dimensionality import Dimensionality
from compensate.inference.distilled import Distilled, SoftTargetLoss
from compensate.inference.guesses import Blend, Decision, OfClass, ProgressiveTrust, Worst, live_prediction
from compensate.inference.memory import LastPrediction
from compensate.inference.prior import Toward, prediction, uniform
from compensate.inference.prototypes import Prototypes
from compensate.inference.regularised import Ball
from compensate.inference.statistics import ClassMean, Evidence
from compensate.inference.teachers import guess_of, logits_of
from compensate.inference.tuning import Steps
from compensate.methods.registry import method
from compensate.state import Value

__all__ = [
    "adversarial_label_smoothing",
    "bootstrap_hard",
    "bootstrap_soft",
    "d2l",
    "deep_self_learning",
    "distillation",
    "guess_label",
    "label_smoothing",
    "meta_label",
    "mix_bootstrap",
    "mix_level_label",
    "online_label_smoothing",
    "proselflc",
]

Guess = Literal["current", "previous_epoch"]


def _record(num_samples: int | None) -> Evidence | None:
    return None if num_samples is None else Evidence(num_samples)


# --- smoothing ----------------------------------------------------------------------------------------------------


@method(
    "label", "mixed", "prior", "sample",
    equation="25",
    reference="Szegedy et al., Rethinking the Inception Architecture, CVPR 2016",
    limits="lam = 0 is cross entropy. Treats all wrong classes alike, and right labels like wrong ones.",
)  # fmt: skip
def label_smoothing(*, num_samples: int | None = None, lam: Value = 0.1) -> Compensated:
    r"""Label smoothing: every label gives a little to all classes alike.

    .. math:: \Delta y_i = \lambda (I/C - y_i)

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        lam: the share :math:`\lambda`; torch calls it `label_smoothing`.

    >>> label_smoothing(lam=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.3050)
    """
    return Compensated(label=Toward(uniform, lam), record=_record(num_samples))


@method(
    "label", "negative", "adversarial", "sample",
    equation="26, 27",
    reference="Goibert and Dohmatob, Adversarial Robustness via Label-Smoothing, 2019",
    limits="lam = 0 is cross entropy. Meant for adversarial robustness; it does nothing against wrong labels.",
)  # fmt: skip
def adversarial_label_smoothing(
    *,
    num_samples: int | None = None,
    lam: Value = 0.1,
    kind: Literal["least_likely", "boltzmann", "second_best"] = "least_likely",
    temperature: float = 0.1,
    detach: bool = False,
) -> Compensated:
    r"""Label smoothing toward the worst guess: the class that the model holds least likely.

    .. math:: \Delta y_i = \lambda (p_i^* - y_i), \qquad
              p_i^* = \arg\max_{p \in \Delta} l(S(u_i), y_i + \lambda (p - y_i))

    The maximum over the simplex (which Eq. 27 leaves out) is the one-hot vector of the least likely class; tied classes
    share. If the given class is the least likely itself, nothing changes.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        lam: the share :math:`\lambda`.
        kind: "least_likely", or the authors' relatives: "boltzmann", :math:`p^*_{i,c} \propto e^{-p_{i,c}/T}` over
            the classes other than the given one; "second_best", the likeliest of them. Both go in mixed directions.
        temperature: :math:`T` of "boltzmann".
        detach: make the guess of "boltzmann" a constant in the gradient; the authors' code does not.

    >>> adversarial_label_smoothing(lam=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.4184)
    """
    return Compensated(label=Toward(Worst(kind, temperature, detach), lam), record=_record(num_samples))


@method(
    "label", "mixed", "prior", "category",
    equation="54-56 with beta = 1",
    reference="Zhang et al., Delving Deep into Label Smoothing, IEEE TIP 2021",
    needs=["epochs"],
    limits="Without end_epoch() it stays label smoothing. A class that is never predicted right keeps a uniform row.",
)  # fmt: skip
def online_label_smoothing(
    *, num_classes: int, num_samples: int | None = None, alpha: Value = 0.5, conf: Literal["all", "correct"] = "correct"
) -> Compensated:
    r"""Label smoothing toward the mean of the right predictions of the sample's class in the previous epoch.

    .. math:: \Delta y_i = \alpha (\tilde p_{y_i} - y_i), \qquad
              \tilde p_c = \frac1{Z_c} \sum_{j: y_j = c} \mathrm{conf}_j\, p_j

    In the first epoch :math:`\tilde p_c` is uniform.

    Args:
        num_classes: the number of classes.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        alpha: the share :math:`\alpha`. The authors write it as the share of the given label; at their 0.5 it is both.
        conf: which predictions count: only the "correct" ones, or "all".

    >>> online_label_smoothing(num_classes=3)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.0917)
    """
    return Compensated(label=Toward(ClassMean(num_classes, conf), alpha), record=_record(num_samples))


# --- toward the model's own prediction ----------------------------------------------------------------------------


def _own_guess(guess: Guess, num_samples: int | None, num_classes: int | None, hard: bool, detach: bool) -> Value:
    if guess == "current":
        return Decision() if hard else prediction if detach else live_prediction
    if guess != "previous_epoch":
        raise InputError(f'guess is "{guess}"; expected "current" or "previous_epoch".')
    if num_samples is None or num_classes is None:
        raise InputError('guess="previous_epoch" keeps a prediction for each sample: give num_samples and num_classes.')
    return LastPrediction(num_samples, num_classes, hard)


@method(
    "label", "mixed", "prior", "sample",
    equation="10",
    reference="Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, ICLR workshop 2015",
    limits="beta = 1 is cross entropy. A prediction that is trusted too early confirms itself.",
)  # fmt: skip
def bootstrap_soft(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    beta: float = 0.95,
    guess: Guess = "current",
    detach: bool = False,
) -> Compensated:
    r"""Soft bootstrapping: labels give way to the model's own prediction.

    .. math:: \Delta y_i = \lambda (p_i - y_i), \qquad \lambda = 1 - \beta

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for `guess="previous_epoch"`.
        beta: the share :math:`\beta` of the given label.
        guess: "current", the prediction of this step, which is the loss of Reed et al.; or "previous_epoch", the
            one of the sample's previous visit, which is the paper's text (then `num_samples` is needed).
        detach: make the current prediction a constant in the gradient. Reed et al. do not: their loss adds
            minimum-entropy regularisation.

    >>> bootstrap_soft(beta=0.95)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.2661)
    """
    q = _own_guess(guess, num_samples, num_classes, False, detach)
    return Compensated(label=Toward(q, round(1 - beta, 12)), record=_record(num_samples))


@method(
    "label", "positive", "prior", "sample",
    equation="10",
    reference="Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, ICLR workshop 2015",
    limits="beta = 1 is cross entropy. A decision that is trusted too early confirms itself.",
)  # fmt: skip
def bootstrap_hard(
    *,
    num_samples: int | None = None,
    num_classes: int | None = None,
    beta: float = 0.8,
    guess: Guess = "current",
) -> Compensated:
    r"""Hard bootstrapping: labels give way to the class that the model holds most likely.

    .. math:: \Delta y_i = \lambda (o_i - y_i), \qquad \lambda = 1 - \beta

    where :math:`o_i` is one-hot at the largest entry of the prediction.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for `guess="previous_epoch"`.
        beta: the share :math:`\beta` of the given label.
        guess: whose decision: "current" (Reed et al.) or "previous_epoch" (the paper's text; needs `num_samples`).

    >>> bootstrap_hard(beta=0.8)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.9184)
    """
    q = _own_guess(guess, num_samples, num_classes, True, True)
    return Compensated(label=Toward(q, round(1 - beta, 12)), record=_record(num_samples))


@method(
    "label", "mixed", "prior", "sample+category",
    equation="54-56",
    reference="Yao and Wu, Compensation Learning, 2021",
    needs=["epochs"],
    limits="beta = 0 is soft bootstrapping with its beta = 1 - alpha; beta = 1 is online label smoothing.",
)  # fmt: skip
def mix_bootstrap(
    *,
    num_classes: int,
    num_samples: int | None = None,
    alpha: Value = 0.2,
    beta: Value = 0.5,
    conf: Literal["all", "correct"] = "correct",
    detach: bool = False,
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

    >>> mix_bootstrap(num_classes=3, alpha=0.1)(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(2.2394)
    """
    q = Blend(ClassMean(num_classes, conf), prediction if detach else live_prediction, beta)
    return Compensated(label=Toward(q, alpha), record=_record(num_samples))


@method(
    "label", "mixed", "prior", "sample",
    equation="10 with a trust for each sample",
    reference="Wang et al., ProSelfLC: Progressive Self Label Correction, CVPR 2021",
    needs=["steps"],
    limits="Needs the length of the training: before its middle hardly anything changes.",
)  # fmt: skip
def proselflc(
    *, num_samples: int | None = None, sharpness: float = 16.0, middle: float = 0.5, detach: bool = False
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

    >>> criterion = proselflc().start(total_steps=100)
    >>> loss = criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    """
    guess = prediction if detach else live_prediction
    return Compensated(label=Toward(guess, ProgressiveTrust(sharpness, middle)), record=_record(num_samples))


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
) -> Compensated:
    r"""Dimensionality-driven learning: once the features spread in order to fit wrong labels, predictions are trusted.

    .. math:: \Delta y_i = (1 - \alpha_e)(o_i - y_i), \qquad
              \alpha_e = \exp\left( -\frac{e}{E} \frac{\mathrm{LID}_e}{\min_j \mathrm{LID}_j} \right)

    from the turning point of the local intrinsic dimensionality on, else nothing; see
    :class:`~compensate.inference.dimensionality.Dimensionality`, which also says where this differs from the authors'.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        k: the number of neighbours in the batch.
        window: epochs that the present one is compared with.
        patience: further epochs before the first comparison.
        guess: :math:`o_i`, the most likely class ("hard", the authors' code) or the prediction itself ("soft").
    """
    if guess not in ("hard", "soft"):
        raise InputError(f'guess is "{guess}"; expected "hard" or "soft".')
    q = Decision(soft=guess == "soft")
    return Compensated(label=Toward(q, Dimensionality(k, window, patience)), record=_record(num_samples))


# --- toward another guess -----------------------------------------------------------------------------------------


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
)  # fmt: skip
def guess_label(
    *,
    guess: nn.Module | Tensor,
    lam: Value = 0.5,
    num_samples: int | None = None,
    num_classes: int | None = None,
) -> Compensated:
    r"""Labels give way to the predictions of another model.

    .. math:: \Delta y_i = \lambda (y'_i - y_i)

    Args:
        guess: :math:`y'`: the other model, which is then run on each batch (and needs `criterion.evaluate`); or its
            predictions for all samples, distributions (N, C) or class numbers (N,), which need the index.
        lam: the trust :math:`\lambda`.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        num_classes: the number of classes, for class numbers.

    >>> criterion = guess_label(guess=torch.tensor([0, 2]), lam=0.5, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([0]))
    tensor(1.2584)
    """
    return Compensated(label=Toward(guess_of(guess, num_classes), lam), record=_record(num_samples))


@method(
    "label", "mixed", "prior", "sample",
    equation="34, 35",
    reference="Hinton et al., Distilling the Knowledge in a Neural Network, 2015",
    needs=["teacher", "index"],
    limits="As good as the teacher. lam = 0 is cross entropy. In the label form the loss itself may be negative.",
    example=_example_teacher,
)  # fmt: skip
def distillation(
    *,
    teacher: nn.Module | Tensor,
    lam: Value = 1.0,
    temperature: float = 4.0,
    form: Literal["label", "classic"] = "label",
    num_samples: int | None = None,
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

    >>> criterion = distillation(teacher=torch.tensor([[4.0, 0.0, 0.0]]), form="classic")
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([0]))
    tensor(2.4338)
    """
    logits, record = logits_of(teacher), _record(num_samples)
    if form == "label":
        return Compensated(label=Distilled(logits, lam, temperature), onto="none", record=record)
    if form != "classic":
        raise InputError(f'form is "{form}"; expected "label" or "classic".')
    return Compensated(loss=SoftTargetLoss(logits, lam, temperature), record=record)


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
    start: int = 1,
    count: int = 8,
    sampled: int = 1280,
    rank: float = 0.4,
    limit: float = 0.95,
) -> Compensated:
    r"""Deep self-learning: labels give way to the class whose prototypes the features are most like.

    .. math:: \Delta y_i = \alpha (\hat y_i - y_i), \qquad
              \hat y_i = \arg\max_c \frac1p \sum_{k=1}^p \cos(z_i, z_{c,k})

    where :math:`z_{c,k}` are prototypes of class c, chosen anew at the end of each epoch; see
    :class:`~compensate.inference.prototypes.Prototypes`, which also says where this differs from the authors'.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        feature_dim: the size of the features that the model's `features` returns.
        alpha: the share :math:`\alpha` of the new label.
        start: epochs before labels change.
        count: prototypes per class.
        sampled: samples per class that they are chosen from.
        rank: where the similarity that counts as near lies among all, in rising order.
        limit: the similarity past which two prototypes are too much alike.
    """
    if start < 1:
        raise InputError(f"start is {start}; prototypes are known after the first epoch, so expected at least 1.")
    q = Prototypes(num_samples, num_classes, feature_dim, count=count, sampled=sampled, rank=rank, limit=limit)
    return Compensated(label=Toward(q, Steps({0: 0.0, start: alpha})), record=Evidence(num_samples))


# --- several levels, and learned labels ---------------------------------------------------------------------------


def _head_is_smoothed_more(class_counts: Counts, head: float, tail: float) -> list[float]:
    counts = [float(count) for count in checked_counts(class_counts)]
    fewest, most = min(counts), max(counts)
    span = (most - fewest) or 1.0
    return [tail + (head - tail) * math.sin(math.pi / 2 * (count - fewest) / span) for count in counts]


@method(
    "label", "mixed", "prior", "sample+category",
    equation="19",
    reference="Yao and Wu, Compensation Learning, 2021; class terms of Zhong et al., MiSLAS, CVPR 2021",
    limits="lam = 0 leaves smoothing by class, head = tail = 0 leaves soft bootstrapping. lam + head may not exceed 1.",
)  # fmt: skip
def mix_level_label(
    *,
    class_counts: Counts,
    lam: float = 0.3,
    head: float = 0.4,
    tail: float = 0.1,
    num_samples: int | None = None,
) -> Compensated:
    r"""Label compensation at two levels: of the sample against wrong labels, of the class against imbalance.

    .. math:: \Delta y_i + \Delta y_{y_i}, \qquad \Delta y_i = \lambda (p_i - y_i), \quad
              \Delta y_c = \epsilon_c (I/C - y), \quad
              \epsilon_c = \epsilon_t + (\epsilon_h - \epsilon_t) \sin \frac{\pi (n_c - n_{\min})}{2 (n_{\max} - n_{\min})}

    where :math:`n_c` counts the samples of class c: labels of frequent classes, of which a model grows too sure, are
    smoothed most. The paper names the form only; the sample's term is soft bootstrapping with a constant prediction, the
    term of the class is label-aware smoothing.

    Args:
        class_counts: the number of training samples of each class.
        lam: :math:`\lambda`, the trust in the prediction.
        head: :math:`\epsilon_h`, of the most frequent class.
        tail: :math:`\epsilon_t`, of the rarest class.
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.

    >>> criterion = mix_level_label(class_counts=[90, 9, 1])
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]))
    tensor(1.7285)
    """
    if lam + max(head, tail) > 1:
        raise InputError(f"lam={lam} and head={head}, tail={tail}; together they may take at most the whole label, 1.")
    smoothing = OfClass(_head_is_smoothed_more(class_counts, head, tail))
    return Compensated(label=(Toward(prediction, lam), Toward(uniform, smoothing)), record=_record(num_samples))


@method(
    "label", "mixed", "meta", "sample",
    equation="5-i with 12-14",
    reference="Yao and Wu, Compensation Learning, 2021, Section III-C(4)",
    needs=["index", "clean"],
    limits="Plain cross entropy until meta_step is called. As good as the clean data.",
)  # fmt: skip
def meta_label(
    *, num_samples: int, num_classes: int, per: Literal["sample", "category"] = "sample", lr: float = 20.0
) -> Compensated:
    r"""Label compensation learned by meta steps: labels move as it helps on clean data.

    .. math:: v_i \leftarrow v_i - \alpha \frac{\partial}{\partial v_i} \sum_{j \in \Omega} l(\Theta'(v), j), \qquad
              y_i + \Delta y_i = \Pi_\Delta(y_i + v_i)

    where :math:`\Omega` is clean data, :math:`\Theta'` the model after one step under the labels, and
    :math:`\Pi_\Delta` the projection on the simplex. Entries of :math:`v_i` stay within [-1, 1]: a label needs no more.

    Args:
        num_samples: the size of the training set.
        num_classes: the number of classes.
        per: a row for each "sample", or one for each "category" (then a label of class c moves to the same mixture
            for all its samples).
        lr: the step :math:`\alpha` of `meta_step` without an optimizer. It multiplies the model's own step and one over
            the batch, so that it is large.

    >>> criterion = meta_label(num_samples=1000, num_classes=3)
    >>> criterion(torch.tensor([[3.0, 0.8, 0.2]]), torch.tensor([1]), torch.tensor([7]))
    tensor(2.3584)
    """
    if per not in ("sample", "category"):
        raise InputError(f'per is "{per}"; expected "sample" or "category".')
    bound = Ball(1.0, "linf")
    table: Sample | Category
    if per == "sample":
        table = Sample(num_samples, num_classes, update="meta", lr=lr, bound=bound)
    else:
        table = Category(num_classes, num_classes, update="meta", lr=lr, bound=bound)
    return Compensated(label=table, record=Evidence(num_samples))
