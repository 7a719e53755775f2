"""The share of wrong labels, estimated from labels that a person looks at.

`draw` sorts the labels by their probability of error and cuts the list into strata. Each round takes one random label from each stratum, so any
first part of the sample is a stratified random sample. The probability of error decides only how many labels are taken from where: the interval
holds for labels of any quality, and a poor audit makes it wider, not wrong.

`recalibrate` shifts and scales the log odds of all labels toward the answers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, xlogy
from scipy.stats import t

from compensate.auditing.decisions import Correction
from compensate.auditing.noise_model import offset_of_mean
from compensate.data.dataset import Estimate, Floats, Ints, generator
from compensate.errors import InputError
from compensate.files import write_atomically

SAMPLE = "sample.json"
"""The file of a run that holds its sample."""

LOOKS = (60, 100, 200)
"""The numbers of looks after which the share is stated. An interval that is read after every answer, to stop at will, holds less often than it says."""

STRATA = 8
EVEN = 0.6
"""The share of looks that is spread evenly over all labels; the others go where the audit is unsure."""

LEVEL = 0.95
CANNOT = ("skip", "drop", "unclear")  # decisions that tell nothing about the label
SPREAD = (3.0, 0.3)  # prior standard deviations of the shift and the scale of the log odds
LEAST_GAIN = 4.0  # a recalibration shrinks by this number over the gain in deviance
MULTIPLIERS = np.exp(np.linspace(-10, 22, 1600))  # of the constraint on the share, at which its likelihood is computed


@dataclass(frozen=True, eq=False)
class Sample:
    """A stratified random sample of labels, in the order in which they are looked at."""

    index: Ints  # of the drawn labels, as in `Audit.index`
    stratum: Ints  # of the drawn labels
    sizes: Ints  # labels in each stratum

    def estimate(self, wrong: Sequence[bool | None]) -> Looks:
        """The result of looking at the first labels: True if the label is wrong, False if it is right, None if nobody can tell."""
        if len(wrong) > len(self.index):
            raise InputError(f"there are {len(wrong)} answers, and {len(self.index)} labels were drawn.")
        answers = tuple(None if one is None else bool(one) for one in wrong)
        seen = np.bincount(self.stratum[: len(answers)], minlength=len(self.sizes))
        if (seen < np.minimum(2, self.sizes)).any():
            return Looks(answers)
        kinds = (np.array([one is answer for one in answers], np.float64) for answer in (True, None))
        counts = (np.bincount(self.stratum[: len(answers)], kind, len(self.sizes)) for kind in kinds)
        return Looks(answers, *(stratified_share(found, seen, self.sizes) for found in counts))

    def looked(self, decisions: Iterable[Correction]) -> Looks:
        """The result of blind decisions, up to the first drawn label without one, at the last number of `LOOKS` that they reach."""
        made = {c.index: c for c in decisions}
        blind = [made[row] for row in itertools.takewhile(made.__contains__, self.index.tolist())]
        answers = [None if c.decision in CANNOT else c.decision == "wrong" or c.changes for c in blind]
        stops = [n for n in (*LOOKS, len(self.index)) if n <= len(answers)]
        return self.estimate(answers[: max(stops)]) if stops else Looks(tuple(answers))

    def save(self, folder: Path) -> None:
        """Writes the sample to the folder of a run."""
        fields = {name: values.tolist() for name, values in vars(self).items()}
        write_atomically(folder / SAMPLE, json.dumps(fields).encode())

    @classmethod
    def load(cls, folder: Path) -> Sample | None:
        """Reads the sample in the folder of a run, if there is one."""
        path = folder / SAMPLE
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_bytes())
            sample = cls(*(np.array(found[name], np.int64) for name in ("index", "stratum", "sizes")))
            counts = np.bincount(sample.stratum, minlength=len(sample.sizes))
            fits = (len(sample.index), len(counts)) == (len(sample.stratum), len(sample.sizes))
            if not fits or (counts > sample.sizes).any():
                raise ValueError("its strata do not fit")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(f"{path} is not a sample ({error}). Remove it to draw another one.") from error
        return sample


@dataclass(frozen=True)
class Looks:
    """The answers of a person who looked at labels, and the shares that follow; None before each stratum has two looks."""

    answers: tuple[bool | None, ...]
    wrong: Estimate | None = None  # the share of wrong labels, with a 95 % interval
    unclear: Estimate | None = None  # the share of labels that nobody can judge; they do not count as wrong

    def stored(self) -> dict[str, Any]:
        """The counts and shares as an audit stores them."""
        shares = {"wrong": self.wrong, "unclear": self.unclear}
        counts = {"looks": len(self.answers), "found": self.answers.count(True), "cannot": self.answers.count(None)}
        return counts | {name: None if share is None else list(vars(share).values()) for name, share in shares.items()}


def describe_looks(stored: Mapping[str, Any]) -> str:
    """A line about `Looks.stored`.

    >>> describe_looks({"looks": 100, "found": 9, "cannot": 0, "wrong": [0.061, 0.034, 0.102], "unclear": [0.0, 0.0, 0.03]})
    '100 labels looked at: 6.1% are wrong (3.4% to 10.2%)'
    """
    looks, wrong, unclear = f"{stored['looks']:,} labels looked at", stored["wrong"], stored["unclear"]
    if wrong is None:
        return f"{looks}; the share is stated after {', '.join(map(str, LOOKS[:-1]))} and {LOOKS[-1]}"
    cannot = f", {unclear[0]:.1%} cannot be judged ({unclear[1]:.1%} to {unclear[2]:.1%})" * (stored["cannot"] > 0)
    return f"{looks}: {wrong[0]:.1%} are wrong ({wrong[1]:.1%} to {wrong[2]:.1%}){cannot}"


def draw(p_error: Floats, index: Ints, seed: int = 0) -> Sample:
    """Draws a sample of labels.

    The strata have equal sums of a weight for each label: `EVEN` of it is the same for all labels, the rest is proportional to the standard
    deviation of an error with this probability.

    >>> sample = draw(np.linspace(0, 1, 1000) ** 4, np.arange(1000))
    >>> len(sample.index), np.bincount(sample.stratum[:40]).tolist()
    (200, [5, 5, 5, 5, 5, 5, 5, 5])
    """
    rng, labels = generator(seed, "sample"), len(p_error)
    deviation = np.sqrt(p_error * (1 - p_error)) + 1e-12
    order = np.argsort(-p_error, kind="stable")
    weight = np.cumsum((EVEN / labels + (1 - EVEN) * deviation / deviation.sum())[order])
    number = np.minimum((weight / weight[-1] * STRATA).astype(np.int64), STRATA - 1)
    _, number = np.unique(number, return_inverse=True)  # a label with a large weight may leave a stratum empty
    sizes = np.bincount(number)
    place = np.lexsort((rng.random(labels), number))
    turn = np.arange(labels) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    drawn = np.lexsort((rng.random(labels), turn))[: LOOKS[2]]
    return Sample(index[order[place[drawn]]], number[place[drawn]], sizes)


def stratified_share(found: Floats | Ints, seen: Ints, sizes: Ints) -> Estimate:
    """The share of labels of a kind in all strata together, with an interval.

    The interval holds the shares that a likelihood ratio test does not reject: the likelihood of the counts is maximized over the shares of
    the strata, given the share in all. Unlike a normal approximation, it is honest about strata in which nothing was found.

    Args:
        found: (S,) labels of the kind among the seen ones of each stratum.
        seen: (S,) labels that were looked at, at least one.
        sizes: (S,) labels of the stratum.
    """
    weight, rate = sizes / sizes.sum(), found / seen
    # Draws without replacement tell more; by this much if none is found, and by more otherwise.
    number = -sizes * np.log(np.maximum(1 - seen / sizes, 1e-9))
    hits, misses = number * rate, number * (1 - rate)
    best = (xlogy(hits, rate) + xlogy(misses, 1 - rate)).sum()
    limit = t.ppf((1 + LEVEL) / 2, max(int(seen.sum()) - len(sizes), 1)) ** 2
    ends = []
    for sign in (1, -1):
        c = sign * MULTIPLIERS[:, None] * weight  # the shares solve c share² - (number + c) share + hits = 0
        b = number + c
        root = np.sqrt(np.maximum(b * b - 4 * c * hits, 0))
        shares = np.clip(np.where(b > 0, 2 * hits / np.maximum(b + root, 1e-300), (b - root) / (2 * c)), 0, 1)
        loss = 2 * (best - (xlogy(hits, shares) + xlogy(misses, 1 - shares)).sum(1))
        ends.append(float(np.interp(limit, loss, shares @ weight)))
    value = float(weight @ rate)
    return Estimate(value, min(ends[0], value), max(ends[1], value))


def recalibrate(log_odds: Floats, looked: Ints, wrong: Sequence[bool | None], share: Estimate) -> Floats:
    """(N,) log odds of all labels in the same order, shifted and scaled toward the answers about some of them.

    The change shrinks toward none where answers hardly contradict the log odds. The mean probability is moved into the interval of the share.

    Args:
        log_odds: (N,) of all labels.
        looked: positions of the labels with answers.
        wrong: the answers; labels that nobody can judge are left out.
        share: the share of wrong labels by these answers.
    """
    known = np.array([one is not None for one in wrong])
    x = np.clip(log_odds[looked][known], -15, 15)
    answer, x = np.array(wrong)[known].astype(float), np.stack([np.ones_like(x), x], 1)
    usual, precision = np.array([0.0, 1.0]), np.diag(1 / np.square(SPREAD))
    fitted = usual
    for _ in range(30):
        p = expit(x @ fitted)
        step = np.linalg.solve((x.T * (p * (1 - p))) @ x + precision, x.T @ (answer - p) - precision @ (fitted - usual))
        fitted = fitted + step * min(1.0, 2 / max(np.abs(step).max(), 1e-12))
    fitted[1] = max(fitted[1], 0.05)

    def likelihood(change: Floats) -> float:
        return float(-np.logaddexp(0, np.where(answer > 0, -1, 1) * (x @ change)).sum())

    gain = 2 * (likelihood(fitted) - likelihood(usual))
    shift, scale = usual + max(0.0, 1 - LEAST_GAIN / max(gain, 1e-12)) * (fitted - usual)
    new = shift + scale * log_odds
    mean = float(expit(new).mean())
    allowed = min(max(mean, share.low, 1e-6), share.high, 1 - 1e-6)
    return new if allowed == mean else new + offset_of_mean(new, allowed)
