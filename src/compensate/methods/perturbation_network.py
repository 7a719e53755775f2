"""Logit compensation without a table: a small network turns what is seen of a sample into its row."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from compensate.equation import Compensated, Weights
from compensate.errors import InputError
from compensate.forwards import full_precision
from compensate.inference.statistics import recorded
from compensate.methods.registry import method
from compensate.methods.weighting import of_given
from compensate.state import State
from compensate.touched import present_rows

__all__ = ["causal_logit"]

DYNAMICS = (
    "loss", "margin", "norm of the gradient", "entropy", "mean loss of the class", "loss beside that mean",
    "mean margin of the class", "margin beside that mean", "share of the class in the batch",
)  # fmt: skip
"""What the network is shown of a sample, in order."""


def dynamics(s: State) -> Tensor:
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


def _class_means(s: State, values: Tensor) -> tuple[Tensor, Tensor]:
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

    def forward(self, s: State) -> Tensor:
        """(B, C) the rows; constants but in a meta step, so that the training step does not move the network."""
        first = next(self.layers.parameters())
        of_sample = dynamics(s)[:, None].expand(-1, s.u.shape[-1], -1)
        of_class = torch.stack([s.logq.exp().to(of_sample.dtype), s.y.to(of_sample.dtype)], -1)
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
