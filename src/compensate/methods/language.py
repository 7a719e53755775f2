r"""Methods for preference pairs and for the tokens of language models.

A pair is a choice between two classes. With the rewards :math:`(r_w, r_l)` of the chosen and the rejected response as logits and the chosen
one as the class, cross entropy is the Bradley-Terry loss :math:`-\log \sigma(r_w - r_l)`; `pair_logits` makes such logits. For DPO the
reward is :math:`\beta` times the log-ratio of policy and reference. A token of which only :math:`\log p` is known is a choice between this
token and all others; `token_logits` makes its logits. Hence every method of the table takes pairs and tokens, and the methods here are
defined for any number of classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from compensate.core.batch import Batch, Value
from compensate.core.criterion import Compensated
from compensate.core.layout import rowwise
from compensate.core.proximal import L1
from compensate.core.stages import full_precision
from compensate.core.tables import Sample
from compensate.errors import check
from compensate.methods.logit import DEFAULT_LAMBDA
from compensate.methods.registry import Formula, Real, Space, method
from compensate.methods.weighting import of_given, weighted

__all__ = ["cdpo", "dft", "dr_dpo", "neftune", "pair_logits", "r3m", "rdpo", "token_logcomp", "token_logits"]

_NOISE = Space({"noise_rate": Real(0.01, 0.45)})


def pair_logits(chosen: Tensor, rejected: Tensor | float = 0.0) -> Tensor:
    r"""(B, 2) the logits of preference pairs, whose target is 0: cross entropy is then :math:`-\log \sigma(r_w - r_l)`.

    `chosen` (B,) are rewards, or their margins over the rejected responses if `rejected` is left out.

    >>> from compensate import methods
    >>> u = pair_logits(torch.tensor([1.5, 0.2]), torch.tensor([0.3, 0.9]))
    >>> methods.base()(u, torch.zeros(2, dtype=torch.long))
    tensor(0.6832)
    """
    return torch.stack(
        torch.broadcast_tensors(chosen, torch.as_tensor(rejected, dtype=chosen.dtype, device=chosen.device)), -1
    )


def token_logits(logp: Tensor) -> Tensor:
    r"""(..., 2) the logits :math:`(\log p, \log(1 - p))` of target tokens, whose target is 0: cross entropy is then :math:`-\log p`.

    >>> token_logits(torch.tensor([0.25]).log()).softmax(-1)
    tensor([[0.2500, 0.7500]])
    """
    logp = full_precision(logp).clamp(max=-torch.finfo(torch.float32).eps)
    return torch.stack([logp, torch.log(-torch.expm1(logp))], -1)


def given_logit(s: Batch, d: Tensor) -> Tensor:
    """(B, C) a number for each sample, (B,), on the logit of its given class."""
    return s.y.to(d.dtype) * d[:, None]


@method(
    "logit", "positive", "regularized", "sample", equation="43, on the given class", record="loss", needs=["index"],
    reference="Bukharin et al., Robust Reinforcement Learning from Corrupted Human Feedback, NeurIPS 2024 (arXiv 2406.15568)",
    limits="lambda >= 1 means no compensation. Too small a lambda explains every pair away.",
    search=Space({"lam": Real(0.05, 0.5, log=True), "lr": Real(0.1, 5.0, log=True)}),
)  # fmt: skip
def r3m(*, num_samples: int, lam: Value = DEFAULT_LAMBDA, lr: float = 1.0) -> Compensated:
    r"""Robust reward modeling: LogComp with one number for each preference pair.

    .. math:: L = \frac1B \sum_i -\log \sigma(h_i + \delta_i) + \lambda |\delta_i|, \qquad
              \delta_i^* = \max\Bigl(0,\; \log \frac{1 - \lambda}{\lambda} - h_i\Bigr)

    where :math:`h_i = r_w - r_l` is the margin of the chosen response and :math:`\delta_i`, learned with the model, is added to the logit of
    the given class. With an index of tokens it is token LogComp with rows,
    :math:`\log p' = \log p + \delta - \log(1 + p (e^\delta - 1))`.

    Args:
        lam: the weight :math:`\lambda` of the penalty, in (0, 1) to have an effect; a smaller one compensates more.
        lr: the step of a row per sample and visit.

    >>> criterion = r3m(num_samples=10, lam=0.2)
    >>> u, y, i = pair_logits(torch.tensor([-1.0])), torch.tensor([0]), torch.tensor([3])
    >>> [round(criterion(u, y, i).item(), 4) for _ in range(3)]
    [1.3133, 1.0611, 0.9097]
    """
    return Compensated(logit=Formula(given_logit, d=Sample(num_samples, penalty=L1(lam), lr=lr)))


def flipped_label(s: Batch, noise_rate: float) -> Tensor:
    """The label term of :func:`cdpo`."""
    return noise_rate * ((1 - s.y) / max(s.y.shape[-1] - 1, 1) - s.y)


@method(
    "label", "mixed", "prior", "corpus", equation="5-i", record="loss",
    reference="Mitchell, A Note on DPO with Noisy Preferences, 2023",
    limits="noise_rate = 0 is the plain loss. Label smoothing in other numbers: it holds back confidence in right pairs too.",
    search=_NOISE,
)  # fmt: skip
def cdpo(*, noise_rate: float = 0.1) -> Compensated:
    r"""Conservative DPO: a share of the label goes to the other response.

    .. math:: l'_i = -(1 - \epsilon) \log \sigma(h_i) - \epsilon \log \sigma(-h_i)

    With more classes, the share goes to all other classes alike.

    Args:
        noise_rate: :math:`\epsilon`, the share of wrong labels.

    >>> cdpo(noise_rate=0.1)(pair_logits(torch.tensor([2.0])), torch.tensor([0]))
    tensor(0.3269)
    """
    check(0 <= noise_rate < 0.5, "a share of wrong labels in [0, 0.5)", noise_rate=noise_rate)
    return Compensated(label=Formula(flipped_label, noise_rate=noise_rate, granularity="corpus", on_simplex=True))


def unbiased_label(s: Batch, noise_rate: float) -> Tensor:
    """The label term of :func:`rdpo`: the inverse of symmetric noise, off the simplex."""
    each = noise_rate / max(s.y.shape[-1] - 1, 1)
    return (s.y - each) / (1 - noise_rate - each) - s.y


@method(
    "label", "mixed", "prior", "corpus", equation="5-i, off the simplex", record="loss",
    reference="Chowdhury, Kini and Natarajan, Provably Robust DPO, ICML 2024 (arXiv 2403.00409)",
    limits="noise_rate = 0 is the plain loss. The loss has no lower bound: a rate above the true one makes it diverge in long training.",
    search=_NOISE,
)  # fmt: skip
def rdpo(*, noise_rate: float = 0.1) -> Compensated:
    r"""Provably robust DPO: an unbiased estimate of the loss of right labels. It raises the losses of pairs that fit badly and lowers others.

    .. math:: l'_i = \frac{-(1 - \epsilon) \log \sigma(h_i) + \epsilon \log \sigma(-h_i)}{1 - 2 \epsilon}

    With C classes, errors go to all other classes alike: the label is :math:`(y_i - r) / (1 - \epsilon - r)` with
    :math:`r = \epsilon / (C - 1)`.

    Args:
        noise_rate: :math:`\epsilon`, the share of wrong labels; `audit.noise_rate.value` estimates it.

    >>> rdpo(noise_rate=0.1)(pair_logits(torch.tensor([2.0])), torch.tensor([0]))
    tensor(-0.1231)
    """
    check(0 <= noise_rate < 0.5, "a share of wrong labels in [0, 0.5)", noise_rate=noise_rate)
    return Compensated(label=Formula(unbiased_label, noise_rate=noise_rate, granularity="corpus"), onto="none")


def soft_minimum(s: Batch, beta: float) -> Tensor:
    """The loss term of :func:`dr_dpo`. Each loss has its own weight, and all share the rest, so class weights still multiply summands."""
    l = full_precision(s.l)  # noqa: E741  the letter of the paper
    counted = s.valid.sum().clamp(min=1)
    scores = torch.where(s.valid, -l / beta, -torch.inf)
    own = scores.softmax(-1) * counted * l if len(l) else l
    value = -beta * (scores.logsumexp(-1) - counted.log())
    rest = value - torch.where(s.valid, own, 0.0).sum() / counted
    return torch.where(s.valid, own + rest - l, 0.0).to(s.l.dtype)


@method(
    "loss", "mixed", "prior", "corpus", equation="7, in a nonlinear form", record="loss",
    reference="Wu et al., Towards Robust Alignment of Language Models: Distributionally Robustifying DPO, 2024 (arXiv 2407.07880)",
    limits="A large beta leaves the plain mean. A small one leaves out all but the easiest samples of a batch.",
    search=Space({"beta": Real(0.1, 10.0, log=True)}),
)  # fmt: skip
def dr_dpo(*, beta: float = 1.0) -> Compensated:
    r"""Distributionally robust DPO: the mean under the most favorable weights of the samples of a batch.

    .. math:: L = -\beta \log \frac1B \sum_i e^{-l_i / \beta} = \min_w \sum_i w_i l_i + \beta\, \mathrm{KL}(w \,\|\, 1/B)

    The inner minimum has this closed form, hence prior knowledge and not an inner loop in the taxonomy.

    Args:
        beta: :math:`\beta`, positive; the cost of weights that differ.

    >>> dr_dpo(beta=1.0)(pair_logits(torch.tensor([2.0, -2.0])), torch.tensor([0, 0]))
    tensor(0.6931)
    """
    check(beta > 0, "positive", beta=beta)
    place = {"direction": "mixed", "inference": "prior", "granularity": "corpus"}
    return Compensated(loss=Formula(soft_minimum, beta=beta, whole_batch=True, **place))


def own_probability(s: Batch) -> Tensor:
    """(B,) the weights of :func:`dft`, constants."""
    return of_given(s, s.p).detach()


@method(
    "loss", "positive", "prior", "sample", equation="2", record="loss", kind="weighting",
    reference="Wu et al., On the Generalization of SFT: A Reinforcement Learning Perspective with Reward Rectification, 2025 (arXiv 2508.05629)",
    limits="Not compensation: a weight. Its gradient is that of GCE with q = 1. A model that starts far from the data learns slowly.",
)  # fmt: skip
def dft() -> Compensated:
    r"""Dynamic fine-tuning: each token counts by its own probability.

    .. math:: l'_i = -[p_i] \log p_i

    where :math:`[p_i]` is a constant in the gradient.

    >>> dft()(token_logits(torch.tensor([0.25]).log()), torch.tensor([0]))
    tensor(0.3466)
    """
    return Compensated(loss=Formula(weighted, weight=Formula(own_probability, direction="positive")))


def logit_at_rest(s: Batch, lam: Tensor | float) -> Tensor:
    r"""The logit term of :func:`token_logcomp`, a constant, whose penalty is charged."""
    with torch.no_grad():
        u, given = full_precision(s.u), s.labels[:, None]
        odds = u.gather(1, given)[:, 0] - u.scatter(1, given, -torch.inf).logsumexp(-1)
        lam = torch.as_tensor(lam, dtype=odds.dtype, device=odds.device)
        d = (torch.log1p(-lam) - lam.log() - odds).clamp(min=0)
        s.charge(torch.where(s.valid, lam * d, 0.0).to(s.u.dtype))
        return torch.zeros_like(u).scatter_(1, given, rowwise(d, u)).to(s.u.dtype)


@method(
    "logit", "positive", "regularized", "sample", equation="43, at rest", record="loss",
    reference="Yao and Wu, Compensation Learning, 2021, Algorithm 1, with rows at their optimum",
    limits="lambda >= 1 means no compensation. Without memory of earlier epochs it protects less than `r3m` with an index; it needs no index.",
    search=Space({"lam": Real(0.05, 0.9)}),
)  # fmt: skip
def token_logcomp(*, lam: Value = 0.5) -> Compensated:
    r"""LogComp at rest: in every step each token has its best compensation, and no table is kept.

    .. math:: l'_i = \min_{\delta \ge 0} -\log p'_i(\delta) + \lambda \delta, \qquad
              \nabla l'_i = \min\Bigl(1, \frac{\lambda}{1 - p_i}\Bigr) \nabla (-\log p_i)

    where :math:`\delta` is added to the logit of the given token: the pull of a token that the model does not believe is at most
    :math:`\lambda`.

    Args:
        lam: :math:`\lambda` in (0, 1); a smaller one compensates more. The learners of an audit use 0.5 too.

    >>> token_logcomp(lam=0.5)(token_logits(torch.tensor([0.25]).log()), torch.tensor([0]))
    tensor(1.2425)
    """
    check(callable(lam) or 0 < lam <= 1, "a penalty in (0, 1]", lam=lam)
    return Compensated(logit=Formula(logit_at_rest, lam=lam, direction="positive", inference="regularized"))


def embedding_noise(s: Batch, alpha: float) -> Tensor:
    """The feature term of :func:`neftune`."""
    return (2 * torch.rand_like(s.e) - 1) * (alpha / max(s.e[:1].numel(), 1) ** 0.5)


@method(
    "feature", "mixed", "prior", "sample", equation="4", needs=["model"],
    reference="Jain et al., NEFTune: Noisy Embeddings Improve Instruction Finetuning, 2023 (arXiv 2310.05914)",
    limits="alpha = 0 leaves the plain loss. It makes models more verbose; it is no remedy for wrong labels.",
    search=Space({"alpha": Real(1.0, 15.0)}),
)  # fmt: skip
def neftune(*, alpha: float = 5.0) -> Compensated:
    r"""Uniform noise on the word vectors, drawn anew in each step.

    .. math:: \Delta x_i = \frac{\alpha}{\sqrt{L d}}\, U(-1, 1)

    where :math:`L` is the length of the text, padding included, and :math:`d` the size of a word vector.

    Args:
        alpha: the size :math:`\alpha` of the noise; the authors use 5, 10 and 15.

    >>> print(neftune().taxonomy)
    feature · mixed · prior · sample
    """
    check(alpha >= 0, "at least 0", alpha=alpha)
    return Compensated(feature=Formula(embedding_noise, alpha=alpha))
