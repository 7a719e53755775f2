"""Methods that compensate by views of the input, and one that compensates labels by what is said of another view."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from compensate.equation import Compensated, Weights
from compensate.inference.prior import Toward
from compensate.inference.statistics import recorded
from compensate.inference.view_terms import ExtremeView, OtherView, RandomMix
from compensate.methods.registry import method
from compensate.methods.search import Real, Space, each
from compensate.state import Value
from compensate.views import DEFAULT, Views

__all__ = ["augmix", "view_consistency", "worst_of_k"]

Transformation = Callable[[Tensor], Tensor]


@method(
    "view", "mixed", "prior", "sample",
    equation="3 with a term from views",
    reference="Hendrycks et al., AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty, ICLR 2020",
    needs=["model"],
    limits="As good as the views: they must keep the class. A small alpha leaves most inputs as they are or replaces them by one view.",
    search=Space({"alpha": Real(0.1, 2.0, log=True)}),
)  # fmt: skip
def augmix(
    *,
    num_samples: int | None = None,
    views: Sequence[Transformation] = DEFAULT,
    alpha: float = 1.0,
    weight: Weights | None = None,
) -> Compensated:
    r"""AugMix: inputs are mixed with their views at random.

    .. math:: x'_i = (1 - m_i)\, x_i + m_i \sum_k \omega_{i,k} T_k(x_i), \qquad m_i \sim \mathrm{Beta}(\alpha, \alpha), \quad
              \omega_i \sim \mathrm{Dirichlet}(\alpha)

    which is view compensation with :math:`w_i = m_i \omega_i`. The authors mix chains of random operations on images and add a
    divergence between the predictions of three mixtures; :func:`view_consistency` is the part of the latter that is
    compensation.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        views: the transformations :math:`T_k`; by default shifts, a blur and half the size along the last axis.
        alpha: :math:`\alpha`; the authors use 1.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(augmix().taxonomy)
    view · mixed · prior · sample
    """
    return Compensated(
        view=RandomMix(alpha), views=Views(*views), record=recorded(num_samples), weight=weight
    )  # fmt: skip


@method(
    "view", "negative", "adversarial", "sample",
    equation="15 with a term from views",
    reference="Engstrom et al., Exploring the Landscape of Spatial Robustness, ICML 2019",
    needs=["model"],
    limits="Costs a forward pass for each view. Turns to hard views, and a wrong label is the harder for it.",
)  # fmt: skip
def worst_of_k(
    *, num_samples: int | None = None, views: Sequence[Transformation] = DEFAULT, weight: Weights | None = None
) -> Compensated:
    r"""Worst-of-k: each input is trained on as the view with the largest loss.

    .. math:: l'_i = \max_k l(S(f(T_k(x_i))), y_i), \qquad T_0(x) = x

    The authors draw k rotations and translations anew for each image; here the views are given.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        views: the transformations :math:`T_k`; by default shifts, a blur and half the size along the last axis.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(worst_of_k().taxonomy)
    view · negative · adversarial · sample
    """
    return Compensated(view=ExtremeView(1), views=Views(*views), record=recorded(num_samples), weight=weight)


@method(
    "label", "mixed", "prior", "sample",
    equation="9 with a guess from another view",
    reference="Sajjadi et al., Regularization With Stochastic Transformations and Perturbations, NeurIPS 2016",
    needs=["model"],
    limits="lam = 0 is cross entropy, lam = 1 ignores the labels. As good as the views: they must keep the class.",
    search=Space({"lam": Real(0.05, 0.9)}),
    candidates=each(lam=(0.5, 0.1, 0.3, 0.7, 0.9)),
)  # fmt: skip
def view_consistency(
    *,
    num_samples: int | None = None,
    views: Sequence[Transformation] = DEFAULT,
    lam: Value = 0.5,
    weight: Weights | None = None,
) -> Compensated:
    r"""Consistency between views: labels give way to what the model says of other views of the same input.

    .. math:: \Delta y_i = \lambda (q_i - y_i), \qquad q_i = \frac1K \sum_k S(f(T_k(x_i)))

    where :math:`q_i` is a constant. The gradient is that of :math:`(1 - \lambda)\, l(p_i, y_i) + \lambda\, \mathrm{KL}(q_i \| p_i)`: a
    penalty on predictions that differ between views is label compensation. The authors' penalty is the squared difference.

    Args:
        num_samples: the size of the training set; given, the criterion keeps a record of each sample's plain loss.
        views: the transformations :math:`T_k`; by default shifts, a blur and half the size along the last axis.
        lam: the trust :math:`\lambda`.
        weight: (C,) class weights, as in :class:`torch.nn.CrossEntropyLoss`.

    >>> print(view_consistency().taxonomy)
    label · mixed · prior · sample
    """
    return Compensated(
        label=Toward(OtherView(), lam), views=Views(*views), record=recorded(num_samples), weight=weight
    )  # fmt: skip
