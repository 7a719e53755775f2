"""Claims of the paper about its tables, checked on the stored runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from compensate.training.comparison import paired
from experiments.comparing import Comparison

Answer = Literal["holds", "open", "does not hold", "not judged", "not run here"]
"""A claim about a mean over columns holds if its 95 % interval over seeds is above zero and no column's interval is below. It does not hold if the
interval is below zero, or if a column's interval is below zero and the mean's is not above. Otherwise it is open. A claim about every column holds if
all intervals are above zero and does not hold if one is below. One seed, or a table with missing rows, gives no verdict."""

Tables = Mapping[str, Comparison]
Gaps = list[tuple[str, tuple[float, ...]]]
"""Differences seed by seed, by the name of the column."""

OURS = ("logcomp", "mixcomp")


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, with its figures in short and column by column."""

    answer: Answer
    figures: str
    short: str = ""


NOT_RUN = Verdict("not run here", "")


def judged(gaps: Gaps, *, every: bool = False, pooled: bool = True, digits: int = 1) -> Verdict:
    """The verdict on differences that a claim states to be positive: over all columns, and for each column.

    Columns with one seed are shown but not judged. With `every` the claim is about each column and holds only if it holds in all of them.
    `pooled` is False for differences that have no common mean.

    >>> judged([("20 %", (1.0, 1.2, 1.1)), ("30 %", (2.0, 2.2, 1.9))]).answer
    'holds'
    >>> judged([("20 %", (0.3, -0.2, 0.1))]).answer, judged([("20 %", (0.3,))]).answer
    ('open', 'not judged')
    """
    if not gaps:
        return NOT_RUN
    figures = "; ".join(f"{name}: {_shown(each, digits)}" for name, each in gaps)
    several = [each for _, each in gaps if len(each) > 1]
    if not several:
        return Verdict("not judged", figures, f"{len(gaps)} column{'s' * (len(gaps) > 1)} with one seed")
    seeds = min(map(len, several))
    mean = tuple(np.mean([each[:seeds] for each in several], axis=0))
    lows, highs = zip(*(paired(each)[1:] for each in several), strict=True)
    below = any(high < 0 for high in highs)
    if every:
        answer = _of_each(below, min(lows) > 0, len(several) < len(gaps))
    else:
        _, low, high = paired(mean)
        answer = "does not hold" if high < 0 or (below and low <= 0) else "holds" if low > 0 and not below else "open"
    if not pooled:
        return Verdict(answer, figures, figures)
    counted = f", {len(several)} column{'s' * (len(several) > 1)}"
    counted += f" of {len(gaps)} (one seed in the others)" if len(several) < len(gaps) else ""
    return Verdict(answer, figures, _shown(mean, digits) + counted)


def _of_each(below: bool, above: bool, open_columns: bool) -> Answer:
    """The verdict on a claim about every column: one column below zero refutes it."""
    if below:
        return "does not hold"
    if not above:
        return "open"
    return "not judged" if open_columns else "holds"


def _shown(each: tuple[float, ...], digits: int) -> str:
    """A mean difference with its interval; with one more digit where rounding would hide that the interval excludes zero.

    >>> _shown((0.7, 0.86, 0.38), 1), _shown((0.7, 0.9, 0.1), 1), _shown((0.7,), 1)
    ('+0.65 (+0.04 to +1.25)', '+0.6 (-0.5 to +1.6)', '+0.7 (1 seed)')
    """
    mean, low, high = paired(each)
    if len(each) < 2:
        return f"{mean:+.{digits}f} (1 seed)"
    if low * high > 0 and 0.0 in (round(low, digits), round(high, digits)):
        digits += 1
    return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


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


def _gaps(tables: Tables, ids: tuple[str, ...], of: Callable[[Comparison, int], tuple[float, ...] | None], column: Callable[[str], bool]) -> Gaps:  # fmt: skip
    """A difference for each column that has one."""
    found = []
    for one in (tables[i] for i in ids if i in tables):
        for c in one.columns:
            name = one.table.column_name(c)
            if column(name) and (each := of(one, c)) is not None:
                found.append((f"{one.table.dataset} {one.head(c)}", each))
    return found


def _minus(found: Comparison, row: str, other: str, c: int) -> tuple[float, ...] | None:
    """Differences seed by seed of two rows, if both were trained."""
    a, b = found.ours.get((row, c)), found.ours.get((other, c))
    return None if a is None or b is None else tuple(x - y for x, y in zip(a.each, b.each, strict=False))


def _best(*ids: str) -> Callable[[Tables], Verdict]:
    """The better of LogComp and MixComp is above every other row of the paper, in each column."""

    def gap(found: Comparison, c: int) -> tuple[float, ...] | None:
        ranks = found.ranks(c)
        rivals = [row for row in ranks if row not in OURS]
        if not set(OURS) <= set(ranks) or not rivals:
            return None
        ours = min(OURS, key=lambda row: ranks[row])
        return _minus(found, ours, min(rivals, key=lambda row: ranks[row]), c)

    def judge(tables: Tables) -> Verdict:
        found = judged(_gaps(tables, ids, gap, lambda name: True), every=True)
        missing = any(not _whole(tables[i]) for i in ids if i in tables)
        if missing and found.answer == "holds":
            return Verdict("not judged", found.figures, f"{found.short}; some rows or columns were not run")
        return found

    return judge


def _whole(found: Comparison) -> bool:
    """Whether all rows of the table were run in all its columns."""
    return all((row, c) in found.ours for row in found.table.rows for c in range(len(found.table.columns)))


def _above(row: str, other: str, ids: tuple[str, ...], column: Callable[[str], bool] = lambda name: True) -> Callable[[Tables], Verdict]:  # fmt: skip
    """One row is above another in these columns."""
    return lambda tables: judged(_gaps(tables, ids, lambda found, c: _minus(found, row, other, c), column))


def _noisy(name: str) -> bool:
    return name != "0 %"


def _clean(name: str) -> bool:
    return name == "0 %"


def _not_above(row: str, other: str, table: str) -> Callable[[Tables], Verdict]:
    """One row is not above another."""

    def judge(tables: Tables) -> Verdict:
        found = _above(row, other, (table,))(tables)
        turned: dict[Answer, Answer] = {"holds": "does not hold", "does not hold": "holds"}
        return Verdict(turned.get(found.answer, found.answer), found.figures, found.short)

    return judge


def _trade_off(tables: Tables) -> Verdict:
    """A larger radius costs clean accuracy and gains adversarial accuracy: the last column against the first."""
    found = tables.get("table-4-mixcomp-eps2")
    if found is None or len(found.columns) < 2:
        return NOT_RUN
    first, last = found.columns[0], found.columns[-1]
    gaps = []
    for row in found.rows:
        a, b = found.ours.get((row, first)), found.ours.get((row, last))
        if a is not None and b is not None:
            sign = -1 if row == "mixcomp-clean" else 1
            change = "loss of" if sign < 0 else "gain of"
            gaps.append((f"{change} {row}", tuple(sign * (y - x) for x, y in zip(a.each, b.each, strict=False))))
    return judged(gaps, every=True, pooled=False)


def _slower(tables: Tables) -> Verdict:
    """The best epoch on validation labels comes later under LogComp than under the base."""
    found = tables.get("table-8-imdb")
    if found is None:
        return NOT_RUN
    gaps = []
    for c in found.columns:
        base, ours = found.epochs.get(("base", c)), found.epochs.get(("logcomp", c))
        if base is not None and ours is not None:
            each = tuple(y - x for x, y in zip(base.each, ours.each, strict=False))
            gaps.append((f"{found.table.column_name(c)}, epochs", each))
    return judged(gaps)


_IMAGES = ("table-1-cifar10", "table-2-cifar100")
_DEPTHS = (
    "table-5-cifar10-depth",
    "table-6-cifar100-depth",
    "table-7-cifar100-depth-pair20",
    "beyond-depth-cifar10-pair20",
)

CLAIMS = (
    Claim("Tables I, II", "LogComp or MixComp has the highest accuracy in every column, CIFAR", _best(*_IMAGES)),
    Claim("Tables I, II", "LogComp is above the base under noise, CIFAR", _above("logcomp", "base", _IMAGES, _noisy)),
    Claim("Tables I, II", "MixComp is above the base under noise, CIFAR", _above("mixcomp", "base", _IMAGES, _noisy)),
    Claim("Tables I, II", "MixComp is above LogComp under noise, CIFAR", _above("mixcomp", "logcomp", _IMAGES, _noisy)),
    Claim("Tables I, II", "LogComp is above the base without added noise, CIFAR",
          _above("logcomp", "base", _IMAGES, _clean)),
    Claim("Tables I, II", "MixComp is above the base without added noise, CIFAR",
          _above("mixcomp", "base", _IMAGES, _clean)),
    Claim("Table III", "positive compensation alone is above the base",
          _above("mixcomp-positive", "base", ("table-3-mixcomp-ablation-cifar10",))),
    Claim("Table III", "positive compensation alone is above both directions",
          _above("mixcomp-positive", "mixcomp", ("table-3-mixcomp-ablation-cifar10",))),
    Claim("Table III", "negative compensation alone does not raise accuracy",
          _not_above("mixcomp-negative", "base", "table-3-mixcomp-ablation-cifar10")),
    Claim("Table IV", "eps2 = 8/255 costs clean accuracy and gains adversarial accuracy, compared with eps2 = 0", _trade_off),
    Claim("Tables V to VII", "LogComp or MixComp is best at every depth", _best(*_DEPTHS)),
    *(
        claim
        for where, table, texts in (("Table VIII", "table-8-imdb", "IMDB"), ("Table IX", "table-9-sst2", "SST-2"))
        for claim in (
            Claim(where, f"LogComp or MixComp has the highest accuracy in every column, {texts}", _best(table)),
            Claim(where, f"LogComp is above the base under noise, {texts}", _above("logcomp", "base", (table,), _noisy)),
            Claim(where, f"MixComp is above the base under noise, {texts}", _above("mixcomp", "base", (table,), _noisy)),
            Claim(where, f"LogComp is above the base without added noise, {texts}", _above("logcomp", "base", (table,), _clean)),
            Claim(where, f"MixComp is above the base without added noise, {texts}", _above("mixcomp", "base", (table,), _clean)),
        )
    ),
    Claim("Table X", "positive compensation alone is above the base, texts",
          _above("mixcomp-positive", "base", ("table-10-mixcomp-ablation-imdb",))),
    Claim("Table X", "negative compensation alone is above the base, texts",
          _above("mixcomp-negative", "base", ("table-10-mixcomp-ablation-imdb",))),
    Claim("Table X", "both directions are above positive compensation alone, texts",
          _above("mixcomp", "mixcomp-positive", ("table-10-mixcomp-ablation-imdb",))),
    Claim("Fig. 4", "LogComp reaches its best validation accuracy in a later epoch than the base, IMDB", _slower),
)  # fmt: skip
"""The paper's claims about the best method of each table."""
