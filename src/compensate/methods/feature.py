"""Methods that compensate features: adversarial training at every level, features moved toward their class, and views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from compensate.core.batch import Batch, Value
from compensate.core.criterion import Compensated
from compensate.core.layout import rowwise
from compensate.core.proximal import Norm
from compensate.core.stages import ModelStages
from compensate.core.statistics import Statistic
from compensate.core.tables import Category, Corpus, Table
from compensate.core.validation import checked_keys
from compensate.errors import InputError, check
from compensate.methods.registry import Choice, Formula, PaperData, Real, Space, each, method
from compensate.terms.adversarial import Adversarial
from compensate.terms.prior import Toward
from compensate.terms.schedules import Top, Where, above
from compensate.terms.views import DEFAULT, ExtremeView, OtherView, RandomMix, Views

__all__ = [
    "adversarial_feature", "augmix", "center_feature", "classwise_universal_at", "mixed_universal_at", "pgd_at",
    "universal_at", "universal_perturbation", "view_consistency", "worst_of_k",
]  # fmt: skip

Shape = tuple[int, ...]
Bounds = tuple[float, float] | None

_IMAGE, _TEXT = (Space({"eps": Choice(radii)}) for radii in ((8 / 255, 10 / 255, 12 / 255), (0.005, 0.01, 0.015)))
_PAPER_SEARCH: dict[PaperData, Space] = {"image": _IMAGE, "imdb": _TEXT, "sst2": _TEXT}
_SEARCH = Space({"eps": Real(0.001, 0.1, log=True)})


@method(
    "feature", "negative", "adversarial", "sample", equation="15", needs=["model"],
    reference="Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018",
    limits="eps = 0 leaves cross entropy. Each step of the attack costs a forward and a backward pass; clean accuracy falls.",
    search=_SEARCH, paper_search=_PAPER_SEARCH,
    candidates=each(eps=(1 / 255, 2 / 255, 4 / 255, 8 / 255, 10 / 255)) | {"text": each(eps=(0.005, 0.01, 0.015, 0.05, 0.1))["text"]},
)  # fmt: skip
def pgd_at(*, eps: Value = 8 / 255, **loop: Any) -> Compensated:
    r"""Adversarial training: each input is replaced by the worst one nearby.

    .. math:: L = \frac1B \sum_i \max_{\|\Delta x_i\| \le \epsilon} l(S(f(x_i + \Delta x_i)), y_i)

    where projected gradient ascent approximates the maximum.

    Args:
        eps: the radius :math:`\epsilon`, in pixels of [0, 1] for images; for text it acts on `embed(x)`.
        step_size: the size of a step; 2.5 eps / steps if not given (the reference: 2/255 for 7 steps at 8/255).

    >>> print(pgd_at(eps=8 / 255, bounds=(0, 1)).taxonomy)
    feature · negative · adversarial · sample
    """
    return Compensated(feature=Adversarial(eps, **loop))


@method(
    "feature", "positive", "adversarial", "sample", equation="15, 16", needs=["model"],
    reference="Yao and Wu, Compensation Learning, 2021, Sec. III-C(5)",
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
    attack = Adversarial(eps, sign=sign, norm=norm, steps=steps, step_size=step_size, random_start=False, bounds=bounds)
    return Compensated(feature=attack)


@final
class ClassCenter(Statistic):
    r"""The mean input of each class over all batches; as a value, the mean of the given class, (B, \*shape)."""

    granularity, reader = "category", "a center of each class"

    def __init__(self, num_classes: int, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.count = self.track("count", torch.zeros(num_classes), merge="sum")
        self.total = self.track("total", torch.zeros(num_classes, *feature_shape), merge="sum")

    def forward(self, s: Batch) -> Tensor:
        """(B, *shape) the center of each sample's given class; the input itself if the class has no samples yet."""
        labels = checked_keys(s.labels, len(self.total), self.reader, "class", s.check)  # outputs are not known yet
        self._check_inputs(s)
        x, count = s.e.detach(), rowwise(self.count[labels], self.total)
        return torch.where(count > 0, (self.total[labels] / count.clamp(min=1)).to(x.dtype), x)

    def _check_inputs(self, s: Batch) -> None:
        s.places.one_class_each(self.reader)
        if s.e.shape[1:] != self.total.shape[1:]:
            raise InputError(
                f"inputs have shape {tuple(s.e.shape[1:])}, but feature_shape is {tuple(self.total.shape[1:])}; give the "
                "shape of one sample."
            )

    def check(self, s: Batch) -> None:
        super().check(s)
        self._check_inputs(s)

    def observe(self, s: Batch) -> None:
        x = s.e.detach().to(self.total.dtype)
        x = x if s.complete else torch.where(rowwise(s.valid, x), x, 0.0)
        self.total.index_add_(0, s.labels, x)
        self.count.index_add_(0, s.labels, s.valid.to(self.count.dtype))


def center_term(s: Batch, center: Tensor, lam: Tensor | float) -> Tensor:
    """The feature term of :func:`center_feature`, a constant."""
    x = s.e.detach()
    return rowwise(lam, x) * (center - x)


@method(
    "feature", "mixed", "prior", "sample", equation="remark after 8", needs=["model"],
    reference="Yao and Wu, Compensation Learning, 2021, remark after Eq. (8)",
    limits="lam = 0 leaves cross entropy, lam = 1 trains on the centers alone. A center in raw inputs suits roughly convex classes.",
    search=Space({"lam": Real(0.0, 0.6)}),
)  # fmt: skip
def center_feature(
    *, num_classes: int, feature_shape: Shape, lam: Value = 0.2, pro: Value | None = None
) -> Compensated:
    r"""Feature compensation toward the class: each input moves toward the center of its class.

    .. math:: \Delta x_i = \lambda (m_{y_i} - x_i)

    where :math:`m_c` is the mean input of class :math:`c` over all batches.

    Args:
        lam: the share :math:`\lambda` of the way, a number or a callable of the batch.
        pro: the percentage of samples that move, by the largest plain losses; all if not given.

    >>> print(center_feature(num_classes=10, feature_shape=(1, 8, 8)).taxonomy)
    feature · mixed · prior · sample
    """
    check(callable(lam) or 0 <= lam <= 1, "a share of the way to the center, from 0 to 1", lam=lam)
    pull = Formula(center_term, center=ClassCenter(num_classes, feature_shape), lam=lam, granularity="sample")
    return Compensated(feature=pull if pro is None else Where(above(Top(pro)), pull))


def _shared(
    eps: float, per: Table, norm: Norm, step_size: float | None, share: float, bounds: Bounds, sign: Literal[1, -1] = 1
) -> Adversarial:
    """An attack that keeps its rows and takes one step per batch: of `step_size`, or of a share of eps."""
    step = share * eps if step_size is None else step_size
    return Adversarial(eps, sign=sign, norm=norm, steps=1, step_size=step, bounds=bounds, per=per)


@method(
    "feature", "negative", "adversarial", "corpus", equation="22", needs=["model"],
    reference="Shafahi et al., Universal Adversarial Training, AAAI 2020",
    limits="eps = 0 leaves cross entropy. A bias at the input can absorb one perturbation for all instead of resisting it.",
    search=_SEARCH,
)  # fmt: skip
def universal_at(
    *,
    feature_shape: Shape,
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
        step_size: the step per batch; eps if not given. A model keeps pace with small steps, and resists only the last perturbation:
            on held-out digits (`python -m experiments choices`) accuracy is 0.72 with eps, 0.53 with eps / 5.

    >>> print(universal_at(feature_shape=(3, 32, 32)).taxonomy)
    feature · negative · adversarial · corpus
    """
    return Compensated(feature=_shared(eps, Corpus(*feature_shape), norm, step_size, 1, bounds))


@method(
    "feature", "negative", "adversarial", "category", equation="23", needs=["model"],
    reference="Benz et al., Universal Adversarial Training with Class-Wise Perturbations, ICME 2021",
    limits="eps = 0 leaves cross entropy. Holds an input for each class; with many classes a row is updated rarely.",
    search=_SEARCH,
)  # fmt: skip
def classwise_universal_at(
    *,
    num_classes: int,
    feature_shape: Shape,
    eps: float = 8 / 255,
    norm: Norm = "linf",
    step_size: float | None = None,
    bounds: Bounds = None,
) -> Compensated:
    r"""Class-wise universal adversarial training: one perturbation for each class.

    .. math:: L = \max_{\|\delta_c\| \le \epsilon} \sum_i l(S(f(x_i + \delta_{y_i})), y_i)

    Args:
        feature_shape, eps: as in :func:`universal_at`.
        step_size: the step per batch; eps / 2 if not given.

    >>> print(classwise_universal_at(num_classes=10, feature_shape=(3, 32, 32)).taxonomy)
    feature · negative · adversarial · category
    """
    return Compensated(feature=_shared(eps, Category(num_classes, *feature_shape), norm, step_size, 1 / 2, bounds))


@method(
    "feature", "negative", "adversarial", "corpus+sample", equation="24", needs=["model"],
    reference="Yao and Wu, Compensation Learning, 2021, Eq. (24)",
    limits="A level with eps = 0 is left out. One level alone is universal_at, classwise_universal_at or pgd_at.",
)  # fmt: skip
def mixed_universal_at(
    *,
    num_classes: int,
    feature_shape: Shape,
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
        steps: the steps of the sample level; the other two take one per batch, of `step_size` or a fifth of their radius.

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

    found by projected ascent over the batches of a loader. The model runs in evaluation mode and is not changed.

    Args:
        model: maps inputs to logits; for text, one with `embed`, `features` and `head`.
        loader: batches `(x, target, ...)`; anything after the first two is ignored.
        eps, norm: the radius :math:`\epsilon` and the norm, "linf" or "l2", of the ball.
        sign: +1 raises the loss, -1 lowers it.
        epochs: passes over the loader.
        step_size: the step per batch; eps / 5 if not given.
        bounds: the smallest and largest value of an input, (0, 1) for images.

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
                if table is None:  # one row, shaped like an input, or like a word vector if the model embeds words
                    stages = ModelStages.of(model)
                    e = stages.embed(x) if stages.embed else x
                    words = stages.padding is not None and e.ndim == 3
                    table = Corpus(*e.shape[2 if words else 1 :]).to(e)
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


Transformations = Sequence[Callable[[Tensor], Tensor]]


@method(
    "view", "mixed", "prior", "sample", equation="3 with a term from views", record="loss", needs=["model"],
    reference="Hendrycks et al., AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty, ICLR 2020",
    limits="As good as the views: they must keep the class. A small alpha leaves most inputs as they are or replaces them by one view.",
    search=Space({"alpha": Real(0.1, 2.0, log=True)}),
)  # fmt: skip
def augmix(*, views: Transformations = DEFAULT, alpha: float = 1.0) -> Compensated:
    r"""AugMix: inputs are mixed with their views at random.

    .. math:: x'_i = (1 - m_i)\, x_i + m_i \sum_k \omega_{i,k} T_k(x_i), \qquad m_i \sim \mathrm{Beta}(\alpha, \alpha), \quad
              \omega_i \sim \mathrm{Dirichlet}(\alpha)

    which is view compensation with :math:`w_i = m_i \omega_i`. The authors mix chains of random operations on images and add a
    divergence between the predictions of three mixtures; :func:`view_consistency` is its part that is compensation.

    Args:
        alpha: :math:`\alpha`; the authors use 1.

    >>> print(augmix().taxonomy)
    view · mixed · prior · sample
    """
    return Compensated(view=RandomMix(alpha), views=Views(*views))


@method(
    "view", "negative", "adversarial", "sample", equation="15 with a term from views", record="loss", needs=["model"],
    reference="Engstrom et al., Exploring the Landscape of Spatial Robustness, ICML 2019",
    limits="Costs a forward pass for each view. Favors hard views, which makes a wrong label harder.",
)  # fmt: skip
def worst_of_k(*, views: Transformations = DEFAULT) -> Compensated:
    r"""Worst-of-k: each input is replaced by its view with the largest loss.

    .. math:: l'_i = \max_k l(S(f(T_k(x_i))), y_i), \qquad T_0(x) = x

    The authors draw k rotations and translations for each image; here the views are fixed.

    >>> print(worst_of_k().taxonomy)
    view · negative · adversarial · sample
    """
    return Compensated(view=ExtremeView(1), views=Views(*views))


@method(
    "label", "mixed", "prior", "sample", equation="9 with a guess from another view", record="loss", needs=["model"],
    reference="Sajjadi et al., Regularization With Stochastic Transformations and Perturbations, NeurIPS 2016",
    limits="lam = 0 is cross entropy, lam = 1 ignores the labels. As good as the views: they must keep the class.",
    search=Space({"lam": Real(0.05, 0.9)}), candidates=each(lam=(0.5, 0.1, 0.3, 0.7, 0.9)),
)  # fmt: skip
def view_consistency(*, views: Transformations = DEFAULT, lam: Value = 0.5) -> Compensated:
    r"""Consistency between views: labels move toward the predictions for other views of the same input.

    .. math:: \Delta y_i = \lambda (q_i - y_i), \qquad q_i = \frac1K \sum_k S(f(T_k(x_i)))

    where :math:`q_i` is a constant. The gradient is the gradient of :math:`(1 - \lambda)\, l(p_i, y_i) + \lambda\, \mathrm{KL}(q_i \| p_i)`:
    a penalty on predictions that differ between views is label compensation. The authors' penalty is the squared difference.

    Args:
        lam: the trust :math:`\lambda`.

    >>> print(view_consistency().taxonomy)
    label · mixed · prior · sample
    """
    return Compensated(label=Toward(OtherView(), lam), views=Views(*views))
