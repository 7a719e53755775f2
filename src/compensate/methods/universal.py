"""Methods that compensate features by a value that many samples share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.forwards import ModelStages
from compensate.granularity import Category, Corpus, Table
from compensate.inference.adversarial import Adversarial
from compensate.methods.registry import method
from compensate.methods.search import Real, Space
from compensate.proximal import Norm

__all__ = ["classwise_universal_at", "mixed_universal_at", "universal_at", "universal_perturbation"]

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
