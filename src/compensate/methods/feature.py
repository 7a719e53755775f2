"""Methods that compensate features, a value for each sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import Compensated, Weights
from compensate.core.layout import present_rows, rowwise
from compensate.core.proximal import Norm
from compensate.core.stages import ModelStages, full_precision
from compensate.core.statistics import Statistic, recorded
from compensate.core.tables import Category, Corpus, Table
from compensate.core.validation import checked_keys
from compensate.errors import InputError
from compensate.methods.registry import Choice, PaperData, Real, Space, each, method
from compensate.methods.weighting import of_given
from compensate.terms.adversarial import Adversarial
from compensate.terms.gates import Where, above
from compensate.terms.schedules import Top

__all__ = [
    "adversarial_feature",
    "causal_logit",
    "center_feature",
    "classwise_universal_at",
    "mixed_universal_at",
    "pgd_at",
    "universal_at",
    "universal_perturbation",
]

_TEXT = Space({"eps": Choice((0.005, 0.01, 0.015))})
_PAPER_SEARCH: dict[PaperData, Space] = {
    "image": Space({"eps": Choice((8 / 255, 10 / 255, 12 / 255))}),
    "imdb": _TEXT,
    "sst2": _TEXT,
}


@method(
    "feature", "negative", "adversarial", "sample",
    equation="15",
    reference="Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018",
    needs=["model"],
    limits="eps = 0 leaves cross entropy. Each step of the attack costs a forward and a backward pass; clean accuracy falls.",
    search=Space({"eps": Real(0.001, 0.1, log=True)}),
    paper_search=_PAPER_SEARCH,
    candidates=each(eps=(1 / 255, 2 / 255, 4 / 255, 8 / 255, 10 / 255)) | {"text": each(eps=(0.005, 0.01, 0.015, 0.05, 0.1))["text"]},
)  # fmt: skip
def pgd_at(
    *,
    eps: Value = 8 / 255,
    norm: Norm = "linf",
    steps: int = 7,
    step_size: float | None = None,
    random_start: bool = True,
    bounds: tuple[float, float] | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Adversarial training: each input is replaced by the worst one nearby.

    .. math:: L = \frac1B \sum_i \max_{\|\Delta x_i\| \le \epsilon} l(S(f(x_i + \Delta x_i)), y_i)

    where the maximum is sought by projected gradient ascent.

    Args:
        eps: the radius :math:`\epsilon`, in pixels of [0, 1] for images; for text it acts on `embed(x)`.
        norm: "linf" or "l2".
        steps: the number of steps.
        step_size: their size; 2.5 eps / steps if not given (the reference: 2/255 for 7 steps at 8/255).
        random_start: start at a random point of the ball.
        bounds: the smallest and largest value of an input, (0, 1) for images.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(pgd_at(eps=8 / 255, bounds=(0, 1)).taxonomy)
    feature · negative · adversarial · sample
    """
    attack = Adversarial(
        eps, sign=1, norm=norm, steps=steps, step_size=step_size, random_start=random_start, bounds=bounds
    )
    return Compensated(feature=attack, weight=weight)


@method(
    "feature", "positive", "adversarial", "sample",
    equation="15, 16",
    reference="Yao and Wu, Compensation Learning, 2021, Sec. III-C(5)",
    needs=["model"],
    limits="eps = 0 leaves cross entropy. A large eps lets the input explain every label, and the model learns little.",
    search=Space({"eps": Real(0.001, 0.1, log=True)}),
)  # fmt: skip
def adversarial_feature(
    *,
    eps: Value = 8 / 255,
    sign: Literal[1, -1] = -1,
    norm: Norm = "linf",
    steps: int = 7,
    step_size: float | None = None,
    bounds: tuple[float, float] | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Feature compensation by an inner loop: the best input nearby, or the worst.

    .. math:: \Delta x_i^* = \arg\min_{\|\Delta x_i\| \le \epsilon} l(S(f(x_i + \Delta x_i)), y_i)
              \quad\text{or}\quad \arg\max

    The minimum (Eq. 16, positive compensation) takes the edge off samples that fit badly, a maximum (Eq. 15, negative)
    is adversarial training without its random start.

    Args:
        eps: the radius :math:`\epsilon`.
        sign: -1 lowers the loss, +1 raises it.
        norm, steps, step_size, bounds: of the inner loop, as in :func:`pgd_at`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(adversarial_feature(sign=1).taxonomy)
    feature · negative · adversarial · sample
    """
    loop = Adversarial(eps, sign=sign, norm=norm, steps=steps, step_size=step_size, random_start=False, bounds=bounds)
    return Compensated(feature=loop, weight=weight)


@final
class ClassCenter(Statistic):
    r"""The mean input of each class over all batches so far; as a value, that of the given class, (B, \*shape).

    .. math:: m_c = \frac1{n_c} \sum_{j: y_j = c} x_j

    Args:
        num_classes: the number of classes.
        feature_shape: the shape of an input (or of the model's `embed(x)`).
    """

    granularity, reader = "category", "a center of each class"

    def __init__(self, num_classes: int, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.track("count", torch.zeros(num_classes), merge="sum")
        self.track("total", torch.zeros(num_classes, *feature_shape), merge="sum")
        self.count: Tensor
        self.total: Tensor

    def forward(self, s: Batch) -> Tensor:
        """(B, *shape) the center of each sample's given class, zeros for a class not seen yet."""
        s.places.one_class_each(self.reader)
        checked_keys(s.labels, len(self.total), self.reader, "class", s.check)  # outputs are not known yet
        self._check_shape(s)
        return self.total[s.labels] / rowwise(self.count[s.labels].clamp(min=1), self.total)

    def _check_shape(self, s: Batch) -> None:
        if s.e.shape[1:] != self.total.shape[1:]:
            raise InputError(
                f"inputs have shape {tuple(s.e.shape[1:])}, but feature_shape is {tuple(self.total.shape[1:])}; give the "
                "shape of one sample."
            )

    def check(self, s: Batch) -> None:
        """Inputs must fit, too."""
        super().check(s)
        s.places.one_class_each(self.reader)
        self._check_shape(s)

    def known(self, s: Batch) -> Tensor:
        """(B,) true where the class of the sample has been seen."""
        return self.count[s.labels] > 0

    def observe(self, s: Batch) -> None:
        """Adds the inputs of the batch."""
        x = s.e.detach().to(self.total.dtype)
        x = x if s.complete else torch.where(rowwise(s.valid, x), x, 0.0)
        self.total.index_add_(0, s.labels, x)
        self.count.index_add_(0, s.labels, s.valid.to(self.count.dtype))

    def extra_repr(self) -> str:
        """Sizes."""
        return " x ".join(str(size) for size in self.total.shape)


@final
class ToCenter(nn.Module):
    r"""Pulls each input toward the center of its class.

    .. math:: \Delta x_i = \lambda (m_{y_i} - x_i)

    where :math:`m_c` is the center of class :math:`c`. With :math:`\lambda = 1` nothing is left of the sample itself. A class
    that has not been seen yet leaves its samples alone.

    Args:
        center: :math:`m`, a :class:`ClassCenter`.
        lam: :math:`\lambda` in [0, 1], a number or a callable of the state.

    Reference: Yao and Wu, Compensation Learning, 2021, remark after Eq. (8).
    """

    direction, inference, granularity = "mixed", "prior", "sample"

    def __init__(self, center: ClassCenter, lam: Value) -> None:
        super().__init__()
        if not callable(lam) and not 0 <= lam <= 1:
            raise InputError(f"lambda is {lam}; expected a share of the way to the center, from 0 to 1.")
        self.center, self.lam = center, lam

    def forward(self, s: Batch) -> Tensor:
        """The feature compensation, a constant shaped like the input."""
        x = s.e.detach()
        pull = rowwise(at(self.lam, s), x) * (self.center(s).to(x.dtype) - x)
        return torch.where(rowwise(self.center.known(s), x), pull, 0.0)

    def extra_repr(self) -> str:
        """How far."""
        return "" if isinstance(self.lam, nn.Module) else f"lambda={self.lam}"


@method(
    "feature", "mixed", "prior", "sample",
    equation="remark after 8",
    reference="Yao and Wu, Compensation Learning, 2021, remark after Eq. (8)",
    needs=["model"],
    limits="lam = 0 leaves cross entropy, lam = 1 trains on the centers alone. A center in raw inputs suits roughly convex classes.",
    search=Space({"lam": Real(0.0, 0.6)}),
)  # fmt: skip
def center_feature(
    *,
    num_classes: int,
    feature_shape: tuple[int, ...],
    lam: Value = 0.2,
    pro: Value | None = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Feature compensation toward the class: each input moves toward the center of its class.

    .. math:: \Delta x_i = \lambda (m_{y_i} - x_i)

    where :math:`m_c` is the mean input of class :math:`c` over all batches so far. At :math:`\lambda = 1` a sample counts no more than
    the center of its class does, which is what a wrong sample should do.

    Args:
        num_classes: the number of classes.
        feature_shape: the shape of an input (or of the model's `embed(x)`).
        lam: the share :math:`\lambda` of the way, a number or a callable of the state.
        pro: percent of samples, those of the largest plain losses, that move; all of them if not given.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(center_feature(num_classes=10, feature_shape=(1, 8, 8)).taxonomy)
    feature · mixed · prior · sample
    """
    pull = ToCenter(ClassCenter(num_classes, feature_shape), lam)
    return Compensated(feature=pull if pro is None else Where(above(Top(pro)), pull), weight=weight)


Bounds = tuple[float, float] | None


def _shared(eps: float, per: Table, norm: Norm, step: float, bounds: Bounds, sign: Literal[1, -1] = 1) -> Any:
    """An attack whose rows are kept: one step a batch, as the batches of an epoch together make many."""
    return Adversarial(eps, sign=sign, norm=norm, steps=1, step_size=step, bounds=bounds, per=per)


@method(
    "feature", "negative", "adversarial", "corpus",
    equation="22",
    reference="Shafahi et al., Universal Adversarial Training, AAAI 2020",
    needs=["model"],
    limits="eps = 0 leaves cross entropy. A bias at the input can absorb one perturbation for all instead of resisting it.",
    search=Space({"eps": Real(0.001, 0.1, log=True)}),
)  # fmt: skip
def universal_at(
    *,
    feature_shape: tuple[int, ...],
    eps: float = 8 / 255,
    norm: Norm = "linf",
    step_size: float | None = None,
    bounds: Bounds = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Universal adversarial training: one perturbation for the whole corpus, kept and raised from batch to batch.

    .. math:: L = \max_{\|\delta\| \le \epsilon} \sum_i l(S(f(x_i + \delta)), y_i)

    Args:
        feature_shape: the shape of an input; for text, that of a word vector.
        eps: the radius :math:`\epsilon`.
        norm: "linf" or "l2".
        step_size: the step that a batch takes; eps if not given. The model keeps pace with a perturbation that moves in small steps, and then resists that
            one alone: under the worst perturbation (held-out digits, eps = 0.2, three seeds, `python -m experiments choices`) accuracy is 0.72 with eps,
            0.53 with eps / 5 and 0.69 with plain training.
        bounds: the smallest and largest value of an input, (0, 1) for images.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(universal_at(feature_shape=(3, 32, 32)).taxonomy)
    feature · negative · adversarial · corpus
    """
    return Compensated(
        feature=_shared(eps, Corpus(*feature_shape), norm, eps if step_size is None else step_size, bounds),
        weight=weight,
    )


@method(
    "feature", "negative", "adversarial", "category",
    equation="23",
    reference="Benz et al., Universal Adversarial Training with Class-Wise Perturbations, ICME 2021",
    needs=["model"],
    limits="eps = 0 leaves cross entropy. Holds an input for each class; with many classes a row is renewed seldom.",
    search=Space({"eps": Real(0.001, 0.1, log=True)}),
)  # fmt: skip
def classwise_universal_at(
    *,
    num_classes: int,
    feature_shape: tuple[int, ...],
    eps: float = 8 / 255,
    norm: Norm = "linf",
    step_size: float | None = None,
    bounds: Bounds = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Class-wise universal adversarial training: one perturbation for each class.

    .. math:: L = \max_{\|\delta_c\| \le \epsilon} \sum_i l(S(f(x_i + \delta_{y_i})), y_i)

    Args:
        num_classes: the number of classes.
        feature_shape: the shape of an input; for text, that of a word vector.
        eps, norm, bounds: as in :func:`universal_at`.
        step_size: the step that a batch takes; eps / 2 if not given.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(classwise_universal_at(num_classes=10, feature_shape=(3, 32, 32)).taxonomy)
    feature · negative · adversarial · category
    """
    return Compensated(
        feature=_shared(
            eps, Category(num_classes, *feature_shape), norm, eps / 2 if step_size is None else step_size, bounds
        ),
        weight=weight,
    )


@method(
    "feature", "negative", "adversarial", "corpus+sample",
    equation="24",
    reference="Yao and Wu, Compensation Learning, 2021, Eq. (24)",
    needs=["model"],
    limits="A level with eps = 0 is left out. One level alone is universal_at, classwise_universal_at or pgd_at.",
)  # fmt: skip
def mixed_universal_at(
    *,
    num_classes: int,
    feature_shape: tuple[int, ...],
    eps_corpus: float = 4 / 255,
    eps_category: float = 0.0,
    eps_sample: float = 4 / 255,
    norm: Norm = "linf",
    steps: int = 7,
    step_size: float | None = None,
    bounds: Bounds = None,
    weight: Weights | None = None,
) -> Compensated:
    r"""Mixed-level adversarial training: a perturbation for all, one for the class and one for the sample, added up.

    .. math:: \delta^* = \arg\max_{\|\delta\| \le \epsilon_c} \sum_i l(S(f(x_i + \delta)), y_i), \qquad
              L = \sum_i \max_{\|\delta_i\| \le \epsilon_s} l(S(f(x_i + \delta^* + \delta_i)), y_i)

    Each level is inferred with the coarser ones in place. The paper's Eq. 24 has no bounds, and without them no maximum.

    Args:
        num_classes: the number of classes.
        feature_shape: the shape of an input.
        eps_corpus, eps_category, eps_sample: the radius of each level; 0 leaves it out.
        norm: "linf" or "l2".
        steps: of the inner loop of the sample level; the other two take one step a batch and are kept.
        step_size: of the two that are kept; a fifth of their radius if not given.
        bounds: the smallest and largest value of an input, (0, 1) for images.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> all_three = mixed_universal_at(num_classes=10, feature_shape=(3, 32, 32), eps_category=2 / 255)
    >>> print(all_three.taxonomy)
    feature · negative · adversarial · corpus+category+sample
    """
    tables = ((eps_corpus, Corpus(*feature_shape)), (eps_category, Category(num_classes, *feature_shape)))
    levels = [
        _shared(eps, table, norm, eps / 5 if step_size is None else step_size, bounds) for eps, table in tables if eps
    ]
    if eps_sample:
        levels.append(Adversarial(eps_sample, sign=1, norm=norm, steps=steps, bounds=bounds))
    return Compensated(feature=tuple(levels) or None, weight=weight)


def universal_perturbation(
    model: nn.Module,
    loader: Iterable[Sequence[Tensor]],
    *,
    eps: float = 8 / 255,
    sign: Literal[1, -1] = 1,
    norm: Norm = "linf",
    epochs: int = 5,
    step_size: float | None = None,
    bounds: Bounds = None,
) -> Tensor:
    r"""The one perturbation that raises (or lowers) the loss of a fixed model over all inputs the most.

    .. math:: \Delta x^* = \arg\max_{\|\Delta x\| \le \epsilon} \sum_i l(S(f(x_i + \Delta x)), y_i)

    found by projected ascent over the batches of a loader. The paper's Eq. 18 leaves out the sum. The model is run in
    evaluation mode and left as it was.

    Args:
        model: maps inputs to logits; for text, one with `embed`, `features` and `head`.
        loader: batches `(x, target, ...)`; anything after the first two is not looked at.
        eps: the radius :math:`\epsilon`.
        sign: +1 raises the loss, -1 lowers it.
        norm: "linf" or "l2".
        epochs: passes over the loader.
        step_size: the step that a batch takes; eps / 5 if not given.
        bounds: the smallest and largest value of an input, (0, 1) for images.

    Returns:
        A tensor of the shape of one input (for text, of a word vector).

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
    >>> universal_perturbation(model, [(torch.zeros(4, 2), torch.zeros(4).long())], eps=0.1)
    tensor([-0.1000,  0.1000])

    Reference: Yao and Wu, Compensation Learning, 2021, Eq. (18); Moosavi-Dezfooli et al., CVPR 2017.
    """
    table: Corpus | None = None
    step = eps / 5 if step_size is None else step_size
    mode = model.training
    model.eval()
    try:
        for _ in range(epochs):
            for x, target, *_rest in loader:
                if table is None:
                    table = _row(model, x)
                    criterion = Compensated(feature=_shared(eps, table, norm, step, bounds, sign))
                with torch.enable_grad():
                    criterion.evaluate(model, x, target)
    finally:
        model.train(mode)
    if table is None:
        raise InputError(
            "The loader gave no batch; expected at least one (x, target). A generator can be run through only once."
        )
    return table.weight[0].clone()


def _row(model: nn.Module, x: Any) -> Corpus:
    """The row to learn, shaped like an input, or like a word vector where the model embeds words."""
    stages = ModelStages.of(model)
    e = stages.embed(x) if stages.embed else x
    return Corpus(*(e.shape[2:] if stages.padding is not None and e.ndim == 3 else e.shape[1:])).to(e)


DYNAMICS = (
    "loss", "margin", "norm of the gradient", "entropy", "mean loss of the class", "loss beside that mean",
    "mean margin of the class", "margin beside that mean", "share of the class in the batch",
)  # fmt: skip
"""What the network is shown of a sample, in order."""


def dynamics(s: Batch) -> Tensor:
    """(B, 9) how the training of each sample stands, constants of about unit size; see `DYNAMICS`.

    Losses are shown as log(1 + l): a loss may be as large as a logit.
    """
    with torch.no_grad():
        logp = full_precision(s.u.detach()).log_softmax(-1)
        p = logp.exp()
        given = of_given(s, p)
        loss = torch.log1p(-of_given(s, logp))
        margin = given - p.scatter(1, s.labels[:, None], 0.0).amax(-1)
        slope = (p - s.y.to(p.dtype)).norm(dim=-1)
        entropy = torch.special.entr(p).sum(-1) / math.log(max(p.shape[-1], 2))
        mean_loss, share = _class_means(s, loss)
        mean_margin, _ = _class_means(s, margin)
        columns = (loss, margin, slope, entropy, mean_loss, loss - mean_loss, mean_margin, margin - mean_margin, share)
        return torch.stack(columns, -1)


def _class_means(s: Batch, values: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) the mean over the batch of the samples with the same label, and their share in the batch."""
    distinct, which = present_rows(s.labels, s.u.shape[-1])
    counts = s.valid.to(values.dtype)
    size = values.new_zeros(len(distinct)).index_add_(0, which, counts)
    total = values.new_zeros(len(distinct)).index_add_(0, which, values * counts)
    return (total / size.clamp(min=1))[which], (size / counts.sum().clamp(min=1))[which]


@final
class PerturbationNet(nn.Module):
    r"""Rows from a network, :math:`\Delta u_{i,c} = b \tanh(g(t_i, p_{i,c}, y_{i,c}) / b)`, with :math:`t_i` the dynamics of the sample.

    One network serves all classes, so that permuting them permutes the row. Its last layer starts at zero: nothing is
    compensated before the first meta step.

    Args:
        hidden: units of its one hidden layer.
        bound: :math:`b`, the largest entry.
    """

    inference, granularity, direction = "meta", "sample", "mixed"

    def __init__(self, hidden: int = 32, bound: float = 5.0) -> None:
        super().__init__()
        if bound <= 0:
            raise InputError(f"bound is {bound}; expected the largest entry of a row, a positive number.")
        self.bound = bound
        last = nn.Linear(hidden, 1, bias=False)  # what is added to all logits of a sample changes nothing
        nn.init.zeros_(last.weight)
        self.layers = nn.Sequential(nn.Linear(len(DYNAMICS) + 2, hidden), nn.ReLU(), last)

    def forward(self, s: Batch) -> Tensor:
        """(B, C) the rows; constants but in a meta step, so that the training step does not move the network."""
        first = next(self.layers.parameters())
        of_sample = dynamics(s)[:, None].expand(-1, s.u.shape[-1], -1)
        of_class = torch.stack([s.p.detach().to(of_sample.dtype), s.y.to(of_sample.dtype)], -1)
        g = self.layers(torch.cat([of_sample, of_class], -1).to(first.dtype))[..., 0]
        v: Tensor = (self.bound * torch.tanh(g / self.bound)).to(s.u.dtype)
        return v if s.meta else v.detach()

    def extra_repr(self) -> str:
        """The bound."""
        return f"bound={self.bound:g}"


@method(
    "logit", "mixed", "meta", "sample",
    equation="4 with 12-14",
    reference="Zhou et al., Mitigating Spurious Correlations with Causal Logit Perturbation, 2025 (arXiv 2505.15246)",
    needs=["clean"],
    limits="Cross entropy until the first meta_step, which needs an optimizer for the network, such as Adam with a step of 1e-3.",
)  # fmt: skip
def causal_logit(
    *, num_samples: int | None = None, hidden: int = 32, bound: float = 5.0, weight: Weights | None = None
) -> Compensated:
    r"""Causal logit perturbation: a small network, learned on clean data, compensates each logit; there is no table.

    .. math:: \Delta u_{i,c} = b \tanh(g(t_i, p_{i,c}, y_{i,c}; \Phi) / b)

    where :math:`t_i` are nine numbers about the sample in this step: loss, margin, norm of the gradient, entropy, the first two
    relative to the means of its class in the batch, those means, and the share of the class. Rows are therefore known for samples that
    were never trained on: `criterion.evaluate(model, x, y).du`. Learn :math:`\Phi` by
    `meta_step(criterion, model, batch, clean, lr=..., optimizer=torch.optim.Adam(criterion.parameters(), 1e-3))`.

    The authors show ten numbers, some of them from earlier epochs, which would need a table; their network has an output for
    each class, here it is run for each class, with its probability and whether it is the given one; and they enlarge the
    clean data by images whose object or background is replaced, which is left to the caller: it is another `clean` batch. Their
    penalty on the saliency of the inputs is left out: no term here reads saliency.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        hidden: units of the hidden layer.
        bound: :math:`b`, the largest entry of a row.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(causal_logit().taxonomy)
    logit · mixed · meta · sample
    """
    return Compensated(logit=PerturbationNet(hidden, bound), record=recorded(num_samples), weight=weight)
