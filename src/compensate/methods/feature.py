"""Methods that compensate features: adversarial training at every level, and features moved toward their class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value, at
from compensate.core.criterion import Compensated
from compensate.core.layout import rowwise
from compensate.core.proximal import Norm
from compensate.core.stages import ModelStages
from compensate.core.statistics import Statistic
from compensate.core.tables import Category, Corpus, Table
from compensate.core.validation import checked_keys
from compensate.errors import InputError
from compensate.methods.registry import Block, Choice, PaperData, Real, Space, each, method
from compensate.terms.adversarial import Adversarial
from compensate.terms.gates import Where, above
from compensate.terms.schedules import Top

__all__ = [
    "adversarial_feature",
    "center_feature",
    "classwise_universal_at",
    "mixed_universal_at",
    "pgd_at",
    "universal_at",
    "universal_perturbation",
]

Bounds = tuple[float, float] | None

_TEXT = Space({"eps": Choice((0.005, 0.01, 0.015))})
_PAPER_SEARCH: dict[PaperData, Space] = {
    "image": Space({"eps": Choice((8 / 255, 10 / 255, 12 / 255))}),
    "imdb": _TEXT,
    "sst2": _TEXT,
}
_SEARCH = Space({"eps": Real(0.001, 0.1, log=True)})


@method(
    "feature", "negative", "adversarial", "sample",
    equation="15",
    reference="Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018",
    needs=["model"],
    limits="eps = 0 leaves cross entropy. Each step of the attack costs a forward and a backward pass; clean accuracy falls.",
    search=_SEARCH,
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
    bounds: Bounds = None,
) -> Compensated:
    r"""Adversarial training: each input is replaced by the worst one nearby.

    .. math:: L = \frac1B \sum_i \max_{\|\Delta x_i\| \le \epsilon} l(S(f(x_i + \Delta x_i)), y_i)

    where projected gradient ascent approximates the maximum.

    Args:
        eps: the radius :math:`\epsilon`, in pixels of [0, 1] for images; for text it acts on `embed(x)`.
        step_size: the size of a step; 2.5 eps / steps if not given (the reference: 2/255 for 7 steps at 8/255).

    >>> print(pgd_at(eps=8 / 255, bounds=(0, 1)).taxonomy)
    feature · negative · adversarial · sample
    """
    return Compensated(
        feature=Adversarial(
            eps, sign=1, norm=norm, steps=steps, step_size=step_size, random_start=random_start, bounds=bounds
        )
    )


@method(
    "feature", "positive", "adversarial", "sample",
    equation="15, 16",
    reference="Yao and Wu, Compensation Learning, 2021, Sec. III-C(5)",
    needs=["model"],
    limits="eps = 0 leaves cross entropy. A large eps lets the input explain every label, and the model learns little.",
    search=_SEARCH,
)  # fmt: skip
def adversarial_feature(
    *,
    eps: Value = 8 / 255,
    sign: Literal[1, -1] = -1,
    norm: Norm = "linf",
    steps: int = 7,
    step_size: float | None = None,
    bounds: Bounds = None,
) -> Compensated:
    r"""Feature compensation by an inner loop: the best input nearby, or the worst.

    .. math:: \Delta x_i^* = \arg\min_{\|\Delta x_i\| \le \epsilon} l(S(f(x_i + \Delta x_i)), y_i)
              \quad\text{or}\quad \arg\max

    The minimum (Eq. 16, positive compensation) reduces the effect of samples that fit badly; the maximum (Eq. 15, negative)
    is adversarial training without its random start.

    Args:
        eps: the radius :math:`\epsilon`.
        sign: -1 lowers the loss, +1 raises it.

    >>> print(adversarial_feature(sign=1).taxonomy)
    feature · negative · adversarial · sample
    """
    return Compensated(
        feature=Adversarial(
            eps, sign=sign, norm=norm, steps=steps, step_size=step_size, random_start=False, bounds=bounds
        )
    )


@final
class ClassCenter(Statistic):
    r"""The mean input of each class over all batches; as a value, the mean of the given class, (B, \*shape)."""

    granularity, reader = "category", "a center of each class"

    def __init__(self, num_classes: int, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.track("count", torch.zeros(num_classes), merge="sum")
        self.track("total", torch.zeros(num_classes, *feature_shape), merge="sum")
        self.count: Tensor
        self.total: Tensor

    def forward(self, s: Batch) -> Tensor:
        """(B, *shape) the center of each sample's given class, zeros for a class without samples yet."""
        checked_keys(s.labels, len(self.total), self.reader, "class", s.check)  # outputs are not known yet
        self._check_inputs(s)
        return self.total[s.labels] / rowwise(self.count[s.labels].clamp(min=1), self.total)

    def _check_inputs(self, s: Batch) -> None:
        s.places.one_class_each(self.reader)
        if s.e.shape[1:] != self.total.shape[1:]:
            raise InputError(
                f"inputs have shape {tuple(s.e.shape[1:])}, but feature_shape is {tuple(self.total.shape[1:])}; give the "
                "shape of one sample."
            )

    def check(self, s: Batch) -> None:
        """Also checks the inputs."""
        super().check(s)
        self._check_inputs(s)

    def observe(self, s: Batch) -> None:
        """Adds the inputs of the batch."""
        x = s.e.detach().to(self.total.dtype)
        x = x if s.complete else torch.where(rowwise(s.valid, x), x, 0.0)
        self.total.index_add_(0, s.labels, x)
        self.count.index_add_(0, s.labels, s.valid.to(self.count.dtype))


@final
class ToCenter(Block):
    """The feature term of :func:`center_feature`; zero for classes without samples yet."""

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
        return torch.where(rowwise(self.center.count[s.labels] > 0, x), pull, 0.0)


@method(
    "feature", "mixed", "prior", "sample",
    equation="remark after 8",
    reference="Yao and Wu, Compensation Learning, 2021, remark after Eq. (8)",
    needs=["model"],
    limits="lam = 0 leaves cross entropy, lam = 1 trains on the centers alone. A center in raw inputs suits roughly convex classes.",
    search=Space({"lam": Real(0.0, 0.6)}),
)  # fmt: skip
def center_feature(
    *, num_classes: int, feature_shape: tuple[int, ...], lam: Value = 0.2, pro: Value | None = None
) -> Compensated:
    r"""Feature compensation toward the class: each input moves toward the center of its class.

    .. math:: \Delta x_i = \lambda (m_{y_i} - x_i)

    where :math:`m_c` is the mean input of class :math:`c` over all batches. At :math:`\lambda = 1` only the center of the class
    is left, which is the right effect for a wrong sample.

    Args:
        lam: the share :math:`\lambda` of the way, a number or a callable of the batch.
        pro: the percentage of samples that move, by the largest plain losses; all if not given.

    >>> print(center_feature(num_classes=10, feature_shape=(1, 8, 8)).taxonomy)
    feature · mixed · prior · sample
    """
    pull = ToCenter(ClassCenter(num_classes, feature_shape), lam)
    return Compensated(feature=pull if pro is None else Where(above(Top(pro)), pull))


def _shared(
    eps: float, per: Table, norm: Norm, step_size: float | None, share: float, bounds: Bounds, sign: Literal[1, -1] = 1
) -> Adversarial:
    """An attack that keeps its rows and takes one step per batch: of `step_size`, or of a share of eps."""
    step = share * eps if step_size is None else step_size
    return Adversarial(eps, sign=sign, norm=norm, steps=1, step_size=step, bounds=bounds, per=per)


@method(
    "feature", "negative", "adversarial", "corpus",
    equation="22",
    reference="Shafahi et al., Universal Adversarial Training, AAAI 2020",
    needs=["model"],
    limits="eps = 0 leaves cross entropy. A bias at the input can absorb one perturbation for all instead of resisting it.",
    search=_SEARCH,
)  # fmt: skip
def universal_at(
    *,
    feature_shape: tuple[int, ...],
    eps: float = 8 / 255,
    norm: Norm = "linf",
    step_size: float | None = None,
    bounds: Bounds = None,
) -> Compensated:
    r"""Universal adversarial training: one perturbation for the whole corpus, kept and updated from batch to batch.

    .. math:: L = \max_{\|\delta\| \le \epsilon} \sum_i l(S(f(x_i + \delta)), y_i)

    Args:
        feature_shape: the shape of an input; for text, of a word vector.
        eps: the radius :math:`\epsilon`.
        step_size: the step per batch; eps if not given. A model keeps pace with a perturbation that moves in small steps, and then
            resists only that one: under the worst perturbation (held-out digits, eps = 0.2, three seeds,
            `python -m experiments choices`) accuracy is 0.72 with eps, 0.53 with eps / 5 and 0.69 with plain training.

    >>> print(universal_at(feature_shape=(3, 32, 32)).taxonomy)
    feature · negative · adversarial · corpus
    """
    return Compensated(feature=_shared(eps, Corpus(*feature_shape), norm, step_size, 1, bounds))


@method(
    "feature", "negative", "adversarial", "category",
    equation="23",
    reference="Benz et al., Universal Adversarial Training with Class-Wise Perturbations, ICME 2021",
    needs=["model"],
    limits="eps = 0 leaves cross entropy. Holds an input for each class; with many classes a row is updated rarely.",
    search=_SEARCH,
)  # fmt: skip
def classwise_universal_at(
    *,
    num_classes: int,
    feature_shape: tuple[int, ...],
    eps: float = 8 / 255,
    norm: Norm = "linf",
    step_size: float | None = None,
    bounds: Bounds = None,
) -> Compensated:
    r"""Class-wise universal adversarial training: one perturbation for each class.

    .. math:: L = \max_{\|\delta_c\| \le \epsilon} \sum_i l(S(f(x_i + \delta_{y_i})), y_i)

    Args:
        feature_shape: the shape of an input; for text, of a word vector.
        eps: the radius :math:`\epsilon`.
        step_size: the step per batch; eps / 2 if not given.

    >>> print(classwise_universal_at(num_classes=10, feature_shape=(3, 32, 32)).taxonomy)
    feature · negative · adversarial · category
    """
    return Compensated(feature=_shared(eps, Category(num_classes, *feature_shape), norm, step_size, 1 / 2, bounds))


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
) -> Compensated:
    r"""Mixed-level adversarial training: the sum of a perturbation for all, one for the class and one for the sample.

    .. math:: \delta^* = \arg\max_{\|\delta\| \le \epsilon_c} \sum_i l(S(f(x_i + \delta)), y_i), \qquad
              L = \sum_i \max_{\|\delta_i\| \le \epsilon_s} l(S(f(x_i + \delta^* + \delta_i)), y_i)

    Each level is inferred after the coarser ones. The paper's Eq. 24 has no bounds, and without them no maximum.

    Args:
        eps_corpus, eps_category, eps_sample: the radius of each level; 0 leaves it out.
        steps: the steps of the inner loop of the sample level; the other two take one step per batch and are kept.
        step_size: the step of these two; a fifth of their radius if not given.

    >>> all_three = mixed_universal_at(num_classes=10, feature_shape=(3, 32, 32), eps_category=2 / 255)
    >>> print(all_three.taxonomy)
    feature · negative · adversarial · corpus+category+sample
    """
    tables = ((eps_corpus, Corpus(*feature_shape)), (eps_category, Category(num_classes, *feature_shape)))
    levels = [_shared(eps, table, norm, step_size, 1 / 5, bounds) for eps, table in tables if eps]
    if eps_sample:
        levels.append(Adversarial(eps_sample, sign=1, norm=norm, steps=steps, bounds=bounds))
    return Compensated(feature=tuple(levels) or None)


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

    found by projected ascent over the batches of a loader. The paper's Eq. 18 leaves out the sum. The model runs in
    evaluation mode and is not changed.

    Args:
        model: maps inputs to logits; for text, one with `embed`, `features` and `head`.
        loader: batches `(x, target, ...)`; anything after the first two is ignored.
        eps: the radius :math:`\epsilon`.
        sign: +1 raises the loss, -1 lowers it.
        norm: "linf" or "l2".
        epochs: passes over the loader.
        step_size: the step per batch; eps / 5 if not given.
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
    mode = model.training
    model.eval()
    try:
        for _ in range(epochs):
            for x, target, *_rest in loader:
                if table is None:
                    table = _row(model, x)
                    criterion = Compensated(feature=_shared(eps, table, norm, step_size, 1 / 5, bounds, sign))
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
    """A table with one row, shaped like an input, or like a word vector if the model embeds words."""
    stages = ModelStages.of(model)
    e = stages.embed(x) if stages.embed else x
    return Corpus(*(e.shape[2:] if stages.padding is not None and e.ndim == 3 else e.shape[1:])).to(e)
