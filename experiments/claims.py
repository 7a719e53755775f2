"""What the paper says of its tables, and whether it holds for the runs made here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from compensate.training.comparison import paired
from experiments.comparing import Comparison

Answer = Literal["holds", "partly", "does not hold", "not run here"]
Tables = Mapping[str, Comparison]
OURS = ("logcomp", "mixcomp")
WORTH = 0.05
"""Differences below this many points of accuracy count as none."""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the figures behind that."""

    answer: Answer
    figures: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        where: the table or section.
        says: the claim in our words.
        judge: its verdict, from the tables that were trained.
    """

    where: str
    says: str
    judge: Callable[[Tables], Verdict]


NOT_RUN = Verdict("not run here", "")


def judged(share: float) -> Answer:
    """All, some or none of the comparisons went the paper's way.

    >>> judged(1.0), judged(0.4), judged(0.0)
    ('holds', 'partly', 'does not hold')
    """
    return "holds" if share == 1 else "does not hold" if share == 0 else "partly"


def _best(*ids: str) -> Callable[[Tables], Verdict]:
    """LogComp or MixComp has the highest accuracy of each column."""

    def judge(tables: Tables) -> Verdict:
        wins, said = 0, []
        for found in (tables[i] for i in ids if i in tables):
            for c in found.columns:
                ranks = found.ranks(c)
                if not ranks or not set(OURS) <= set(ranks):
                    continue
                winner = min(ranks, key=lambda row: ranks[row])
                wins += winner in OURS
                said.append(f"{found.table.column_name(c)}: {winner} {found.ours[winner, c].mean:.1f}")
        return Verdict(judged(wins / len(said)), "; ".join(said)) if said else NOT_RUN

    return judge


def _above(row: str, other: str, ids: tuple[str, ...], column: Callable[[str], bool] = lambda name: True) -> Callable[[Tables], Verdict]:  # fmt: skip
    """One row is above another in these columns; the figure is the paired difference over the seeds."""

    def judge(tables: Tables) -> Verdict:
        wins, said = 0, []
        for found in (tables[i] for i in ids if i in tables):
            for c in found.columns:
                a, b = found.ours.get((row, c)), found.ours.get((other, c))
                if a is None or b is None or not column(found.table.column_name(c)):
                    continue
                gap = a.mean - b.mean
                wins += gap > WORTH
                low, high = _interval(a.each, b.each)
                said.append(f"{found.table.dataset} {found.table.column_name(c)}: {gap:+.1f}{low}{high}")
        return Verdict(judged(wins / len(said)), "; ".join(said)) if said else NOT_RUN

    return judge


def _interval(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[str, str]:
    if len(a) != len(b) or len(a) < 2:
        return "", ""
    _, low, high = paired([x - y for x, y in zip(a, b, strict=True)])
    return f" ({low:+.1f}", f" to {high:+.1f})"


def _noisy(name: str) -> bool:
    return name != "0 %"


def _not_above(row: str, other: str, table: str) -> Callable[[Tables], Verdict]:
    """One row is not above another: what should not help does not."""

    def judge(tables: Tables) -> Verdict:
        found = _above(row, other, (table,))(tables)
        turned: dict[Answer, Answer] = {"holds": "does not hold", "does not hold": "holds"}
        return Verdict(turned.get(found.answer, found.answer), found.figures)

    return judge


def _trade_off(tables: Tables) -> Verdict:
    """A larger radius costs clean accuracy and gains adversarial accuracy: first column against last, and every step."""
    found = tables.get("table-4-mixcomp-eps2")
    if found is None or len(found.columns) < 2:
        return NOT_RUN
    said, holds = [], []
    for row in found.rows:
        values = [found.ours[row, c].mean for c in found.columns if (row, c) in found.ours]
        falls = row == "mixcomp-clean"
        ends = values[-1] - values[0]
        holds.append(ends < 0 if falls else ends > 0)
        said.append(f"{row}: " + ", ".join(f"{v:.1f}" for v in values))
    return Verdict(judged(sum(holds) / len(holds)), "; ".join(said))


def _slower(tables: Tables) -> Verdict:
    """The best epoch on validation labels comes later under LogComp than under the base."""
    found = tables.get("table-8-imdb")
    if found is None:
        return NOT_RUN
    pairs = [
        (found.epochs["base", c].mean, found.epochs["logcomp", c].mean, found.table.column_name(c))
        for c in found.columns
        if ("base", c) in found.epochs and ("logcomp", c) in found.epochs
    ]
    if not pairs:
        return NOT_RUN
    said = "; ".join(f"{name}: epoch {base:.1f} and {ours:.1f}" for base, ours, name in pairs)
    return Verdict(judged(sum(ours > base for base, ours, _ in pairs) / len(pairs)), said)


_IMAGES = ("table-1-cifar10", "table-2-cifar100")
_TEXTS = ("table-8-imdb", "table-9-sst2")
_DEPTHS = ("table-5-cifar10-depth", "table-6-cifar100-depth", "table-7-cifar100-depth-pair20")

CLAIMS = (
    Claim("Tables I, II", "LogComp or MixComp has the highest accuracy in every column, CIFAR", _best(*_IMAGES)),
    Claim("Tables I, II", "LogComp is above the base under noise", _above("logcomp", "base", _IMAGES, _noisy)),
    Claim("Tables I, II", "MixComp is above the base under noise", _above("mixcomp", "base", _IMAGES, _noisy)),
    Claim("Tables I, II", "MixComp is above LogComp under noise", _above("mixcomp", "logcomp", _IMAGES, _noisy)),
    Claim("Tables I, II", "LogComp is above the base without added noise",
          _above("logcomp", "base", _IMAGES, lambda n: not _noisy(n))),
    Claim("Tables I, II", "MixComp is above the base without added noise",
          _above("mixcomp", "base", _IMAGES, lambda n: not _noisy(n))),
    Claim("Table III", "positive compensation alone is above the base",
          _above("mixcomp-positive", "base", ("table-3-mixcomp-ablation-cifar10",))),
    Claim("Table III", "positive compensation alone is above both directions",
          _above("mixcomp-positive", "mixcomp", ("table-3-mixcomp-ablation-cifar10",))),
    Claim("Table III", "negative compensation alone does not raise accuracy",
          _not_above("mixcomp-negative", "base", "table-3-mixcomp-ablation-cifar10")),
    Claim("Table IV", "a larger eps2 lowers clean accuracy and raises adversarial accuracy", _trade_off),
    Claim("Tables V to VII", "LogComp or MixComp is best at every depth", _best(*_DEPTHS)),
    Claim("Tables VIII, IX", "LogComp or MixComp has the highest accuracy in every column, texts", _best(*_TEXTS)),
    Claim("Tables VIII, IX", "LogComp is above the base under noise", _above("logcomp", "base", _TEXTS, _noisy)),
    Claim("Tables VIII, IX", "MixComp is above the base under noise", _above("mixcomp", "base", _TEXTS, _noisy)),
    Claim("Tables VIII, IX", "LogComp is above the base without added noise",
          _above("logcomp", "base", _TEXTS, lambda n: not _noisy(n))),
    Claim("Tables VIII, IX", "MixComp is above the base without added noise",
          _above("mixcomp", "base", _TEXTS, lambda n: not _noisy(n))),
    Claim("Table X", "positive compensation alone is above the base, texts",
          _above("mixcomp-positive", "base", ("table-10-mixcomp-ablation-imdb",))),
    Claim("Table X", "negative compensation alone is above the base, texts",
          _above("mixcomp-negative", "base", ("table-10-mixcomp-ablation-imdb",))),
    Claim("Table X", "both directions are above positive compensation alone, texts",
          _above("mixcomp", "mixcomp-positive", ("table-10-mixcomp-ablation-imdb",))),
    Claim("Fig. 4", "LogComp reaches its best validation accuracy in a later epoch than the base, IMDB", _slower),
)  # fmt: skip
"""What the paper says about who wins where."""
