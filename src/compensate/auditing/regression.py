"""Quantities as labels: the compensation of a target takes up what the samples cannot explain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.auditing.kinds import Inputs, Recipe, inputs
from compensate.auditing.page.model import Estimate
from compensate.auditing.planting import Plants, amount
from compensate.auditing.result import Audit
from compensate.auditing.run import Progress
from compensate.auditing.scaling import subset
from compensate.auditing.verdict import judge, own_scores
from compensate.data.dataset import Data
from compensate.data.seeding import generator
from compensate.errors import InputError
from compensate.proximal import soft_threshold

Floats = NDArray[np.float64]

LAMBDA = 1.0
"""Residuals up to so many robust deviations are not compensated."""

LATE = 0.25


class Residuals:
    r"""A regression whose targets are compensated sample by sample.

    .. math:: L = \frac1B \sum_i \tfrac12 (f(x_i) - y_i - v_i)^2 + \lambda |v_i|, \qquad
              v_i = \operatorname{sign}(r_i) \max(|r_i| - \lambda, 0), \quad r_i = f(x_i) - y_i

    where :math:`v_i` is at its optimum for the present model, so that the model feels a residual beyond
    :math:`\lambda` only as :math:`\lambda`. Targets are in units of their robust deviation.

    Args:
        found: the samples.
        recipe: how to train.
        seed: of weights and order.
    """

    def __init__(self, found: Inputs, recipe: Recipe, seed: int) -> None:
        torch.manual_seed(int(generator(seed, "weights").integers(2**31)))
        self.found, self.recipe, self.seed = found, recipe, seed
        self.model: nn.Module = found.make()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
        self.loss: list[float] = []
        self.scale = 1.0

    def train(
        self, targets: Floats, rows: NDArray[np.int64], epochs: int, total: int, progress: Progress | None
    ) -> dict[str, Floats]:
        """Some epochs; the means over them of prediction, absolute residual and compensation, (N,) each."""
        size = len(targets)
        sums = {name: torch.zeros(size) for name in ("prediction", "residual", "compensation")}
        y = torch.from_numpy(targets.astype(np.float32))
        for _ in range(epochs):
            epoch = len(self.loss)
            for group in self.optimiser.param_groups:
                group["lr"] = self.recipe.lr * (1 + np.cos(np.pi * epoch / total)) / 2
            order = generator(self.seed, "order", epoch).permutation(rows)
            self.model.train()
            seen, moved, residuals = 0.0, 0.0, []
            for start in range(0, len(order), self.recipe.batch_size):
                batch = order[start : start + self.recipe.batch_size]
                place = torch.from_numpy(batch)
                f = self.model(self.found.batch(batch, epoch))[:, 0]
                r = f - y[place]
                v = soft_threshold(r.detach(), LAMBDA * self.scale)
                loss = (0.5 * (r - v) ** 2).mean()
                self.optimiser.zero_grad()
                loss.backward()
                self.optimiser.step()
                for name, value in (("prediction", f), ("residual", r.abs()), ("compensation", v.abs())):
                    sums[name][place] += value.detach()
                residuals.append(r.detach().abs())
                seen += float(loss.detach()) * len(batch)
                moved += float((v != 0).sum())
            self.loss.append(seen / len(order))
            # The deviation of the residuals themselves, by the median: wrong targets do not move it.
            self.scale = max(1.4826 * float(torch.cat(residuals).median()), 1e-3)
            if progress is not None:
                progress(len(self.loss), total, float("nan"), moved / len(order))
        return {name: (value / epochs).double().numpy() for name, value in sums.items()}

    @torch.no_grad()
    def predict(self, rows: NDArray[np.int64]) -> Floats:
        """(len(rows),) the trained model's predictions."""
        self.model.eval()
        parts: list[Tensor] = [
            self.model(self.found.batch(rows[i : i + 500], None))[:, 0] for i in range(0, len(rows), 500)
        ]
        return torch.cat(parts).double().numpy() if parts else np.empty(0)


def audit_regression(
    source: Data,
    known: Data,
    model: Any = None,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """As `compensate.audit`, for quantities: suspicious values are ranked, the suggested one is what the model says.

    Planted targets are those of other rows. Their errors are as large as quantities differ, so smaller errors have
    smaller probabilities than they deserve; the ranking is by the size of the residual.
    """
    from compensate.auditing.source import KINDS

    found = inputs(source, model, seed=seed)
    changed: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "lr": lr}
    recipe = replace(found.recipe, **{name: value for name, value in changed.items() if value is not None})
    rows = np.flatnonzero(known.labelled)
    if len(rows) < 20:
        raise InputError(f"{len(rows)} rows have a value; an audit needs 20 or more.")
    y = known.target[rows]
    centre = float(np.median(y))
    unit = float(1.4826 * np.median(np.abs(y - centre))) or float(y.std()) or 1.0
    targets = np.zeros(len(known))
    targets[rows] = (y - centre) / unit
    plants, sown = _plant(targets, rows, seed)
    late = max(1, round(recipe.epochs * LATE))
    run = Residuals(found, recipe, seed)
    main = run.train(sown, rows, max(1, recipe.epochs - late), recipe.epochs, progress)
    last = run.train(targets, rows, late, recipe.epochs, progress)
    here = Plants(np.searchsorted(rows, plants), np.zeros(len(plants), np.int64))
    zeros = np.zeros(len(rows), np.int64)
    score = np.log(main["residual"][rows] + 1e-3)
    own = own_scores(score, [np.log(last["residual"][rows] + 1e-3)], zeros, here, np.ones(len(rows)))
    verdict = judge(score, own, zeros, zeros, here, np.ones(len(rows)), 1)
    evidence = {}
    for name in ("residual", "compensation"):
        values = main[name].copy()
        values[plants] = last[name][plants]
        evidence[name] = values[rows] * unit
    prediction = main["prediction"].copy()
    prediction[plants] = last["prediction"][plants]
    lost = np.flatnonzero(~known.labelled)
    unlabelled = {}
    if len(lost):
        unlabelled = {
            "index": known.index[lost], "suggested": run.predict(lost) * unit + centre, "probability": np.full(len(lost), np.nan),
        }  # fmt: skip
    chosen = {
        name: source.info.get(name) for name in ("source", "label", "text", "label_given") if source.info.get(name)
    }
    return Audit(
        kind="regression",
        title=str(source.info.get("title", "the data")),
        classes=(),
        index=known.index[rows],
        given=y,
        suggested=prediction[rows] * unit + centre,
        score=verdict.log_odds,
        p_error=verdict.p_error,
        evidence=evidence,
        noise_rate=Estimate(verdict.rate, verdict.low, verdict.high),
        ids=() if known.ids is None else tuple(str(i) for i in known.ids[rows]),
        unlabelled=unlabelled,
        curves={"loss": run.loss},
        config={
            **chosen, "kind": found.kind, "shown": KINDS.get(str(source.info.get("kind")), "embedding"), "method": "target compensation",
            "epochs": recipe.epochs, "batch_size": recipe.batch_size, "lr": recipe.lr, "seed": seed, "planted": len(plants),
        },
        data=known.subset(rows),
        model=run.model,
        vectors=subset(found.vectors, rows),
    )  # fmt: skip


def _plant(targets: Floats, rows: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], Floats]:
    """Some rows get the target of another row, one that differs by more than a robust deviation if it can be found."""
    rng = generator(seed, "plants")
    chosen = np.sort(rng.choice(rows, size=amount(len(rows)), replace=False))
    sown = targets.copy()
    for row in chosen.tolist():
        drawn = targets[rng.choice(rows, size=20)]
        far = drawn[np.abs(drawn - targets[row]) > 1]
        sown[row] = far[0] if len(far) else drawn[np.argmax(np.abs(drawn - targets[row]))]
    return chosen, sown
