r"""Several annotators: consensus labels, the quality of each annotator, and which items to label again.

Item :math:`i` has a true class :math:`t_i`; annotator :math:`a` writes :math:`j` for class :math:`t` with probability :math:`\pi_a[t, j]`. With the
out-of-fold prediction of models of the samples, :math:`q(t | x)`,

.. math:: p(t | x_i, \text{votes}) \propto q(t | x_i)^w \prod_{a} \pi_a[t, v_{ia}].

The tables :math:`\pi_a` are fitted by expectation-maximization (EM). Each is shrunk toward the table of all annotators, which is shrunk toward equally
likely errors. The power :math:`w` maximizes the likelihood of the votes.

Reference: Dawid and Skene, 1979, for the tables; Goh, Tkachenko and Mueller, CROWDLAB, 2022, for combining a model with annotators.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import beta

from compensate.auditing.content import Content, digest_frame, digest_text, short_digest
from compensate.auditing.findings import Findings
from compensate.auditing.labels.base import Classes, Judging, Reader
from compensate.auditing.write_back import write_csv
from compensate.data.columns import is_nested, numbers
from compensate.data.dataset import UNLABELED, Dataset, Estimate, Floats, Ints
from compensate.data.label_column import label_sign
from compensate.data.pairs import read_pairs, table_names
from compensate.errors import InputError, nearest
from compensate.files import write_atomically

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)  # candidate powers of the models' prediction
OWN_VOTES = 20.0  # pseudo-votes of each class that shrink an annotator's table to the table of all
SHARED_VOTES = 5.0  # pseudo-votes of each class that shrink the table of all to one with equally likely errors
START_ACCURACY = 0.8  # of annotators in the first step of EM
MAX_STEPS, MIN_GAIN = 100, 1e-6  # EM stops after as many steps, or if the mean log-likelihood rises by less
LEVELS = 3  # levels of a stated confidence, each with as many votes
LEVEL = ": "  # between the name of an annotator and a level of confidence
PEOPLE = frozenset({"human", "person", "expert", "manual", "gold", "crowd"})
MODELS = frozenset({"llm", "gpt", "claude", "gemini", "llama", "mistral", "model", "ai", "machine"})
CONFIDENCE = frozenset({"confidence", "certainty", "probability", "prob", "score"})
"""Words in the names of columns with labels by people, labels by models, and stated confidences."""
_RATER = re.compile(r"(?:.*[\W_])?(?:annotator|rater|coder|judge|worker|labeler|reviewer|vote)[ _-]?(?!id$)\w+")
ROUNDS = 2  # times that models are fitted to the consensus, which their predictions improve
TOP = 100  # items that are listed for another vote
VOTES_ALONE = "The samples do not predict the labels better than by chance, so the votes alone decide."
MAX_ENTRIES = 50_000_000  # entries of the tables of all annotators; with more, annotators share one table


@dataclass(frozen=True, eq=False)
class Votes(Classes):
    """Votes of annotators on items: (V,) numbers of the item, the annotator and the label."""

    item: Ints
    annotator: Ints
    label: Ints
    items: int
    annotators: tuple[str, ...]
    classes: tuple[str, ...]
    keys: tuple[Any, ...] = ()  # names of the items; by default their numbers
    stated: Mapping[str, str] = field(default_factory=dict)  # columns of stated confidences, by annotator
    table: pd.DataFrame | None = None  # the items with the label of the majority, if they are rows of a table
    consensus: Consensus | None = None  # once they were audited

    refused: ClassVar[Mapping[str, str]] = {
        "decisions": "decisions are about the labels of the majority, and votes are audited without them. Apply them (compensate apply RUN "
        "-o labels.csv), and audit the corrected table."
    }

    @classmethod
    def read(cls, data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
        named = any(options.get(name) is not None for name in ("label", "task"))
        names = [] if labels is not None or named else table_names(data)
        if not named_like_votes(names) and not {"annotations", "responses"} & {*names}:  # of tables and of exports
            return other(data, labels, options)
        frame = read_pairs(data, options.get("encoding") or "utf-8", options.get("delimiter"))
        voters, stated = vote_columns(frame)
        if not voters:
            return other(data, labels, options)
        items, votes = wide_votes(frame, voters, stated)
        rest = {name: value for name, value in options.items() if name not in ("encoding", "delimiter", "several")}
        found = votes.dataset(items, rest, other)
        title = Path(data).name if isinstance(data, (str, Path)) else "the data"
        return replace(found, source=replace(found.source, title=title))

    def dataset(self, items: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
        """The items, as the `other` reader reads them, with the labels of the majority."""
        if isinstance(items, pd.DataFrame):
            label = "label" if "label" not in items.columns else "consensus"
            table = items.assign(**{label: self.majority_names})
            data = other(table, None, {**options, "label": label, "task": "classification"})
            written = table.to_csv(index=False).encode("utf-8", "surrogatepass")
            again = pd.read_csv(io.BytesIO(written), dtype=str, keep_default_na=False, encoding_errors="surrogatepass")
            source = replace(
                data.source, columns=tuple(c for c in data.source.columns if c.name != label), label_given=True,
                digest=digest_text(short_digest(written)), row_digests=digest_frame(again, label),
            )  # fmt: skip
        else:
            table, data = None, other(items, self.majority_names, options)
            source = data.source
        given = np.where(self.counts.sum(1) > 0, self.majority(), UNLABELED)[data.index]
        return replace(data, target=given, classes=self.classes, parts=replace(self, table=table), source=source)

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        people = list(dict.fromkeys(who.split(LEVEL)[0] for who in self.annotators))
        listed = ", ".join(map(name, people[:4])) + f" and {len(people) - 4:,} more" * (len(people) > 4)
        sure = "".join(f'; "{name(column)}" is the confidence of "{name(who)}"' for who, column in self.stated.items())
        votes = f"{len(self.label):,} votes of {len(people):,} annotators: {listed}{sure} (one label alone: --label)"
        return f"{votes}, {len(self.classes)} classes"

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        """Judges the labels of the majority by the consensus of votes and models, which learn the consensus of the votes."""
        voted, consensus = self.counts.sum(1) > 0, find_consensus(self)
        for _ in range(ROUNDS):
            found = judging.judge_classes(data.relabel(np.where(voted, consensus.label, UNLABELED)[data.index]))
            if found.provenance.by_chance:
                consensus = find_consensus(self)
                break
            assert found.probabilities is not None
            q = np.ones((self.items, len(self.classes)))
            q[found.index] = found.probabilities
            if len(found.unlabeled):  # only the probability of their likeliest class is kept; the others share the rest
                rows, p = found.unlabeled["index"], np.asarray(found.unlabeled["probability"], np.float64)
                q[rows] = ((1 - p) / (len(self.classes) - 1))[:, None]
                q[rows, found.unlabeled["suggested"]] = p
            consensus = find_consensus(self, np.log(np.maximum(q, 1e-12)))
        given, rows = self.majority()[found.index], np.arange(len(found.index))
        p = consensus.probabilities[found.index]
        others = p.copy()
        others[rows, given] = -1
        provenance, notes = replace(found.provenance, annotators=self.annotators), found.notes
        if provenance.by_chance:  # the votes decided alone
            provenance = replace(provenance, views={}, agreement=None, by_chance=False)
            notes = (*notes, VOTES_ALONE)
        assert found.data is not None
        return replace(
            found, data=replace(found.data, parts=replace(self, consensus=consensus)), given=given, suggested=others.argmax(1),
            probabilities=p.astype(np.float32), provenance=provenance, notes=notes, **consensus.judged(found.index, given),
        )  # fmt: skip

    def files(self, audit: Any, folder: Path, top: int = TOP) -> tuple[Any, Callable[[Path], None] | None]:
        """Decisions are applied to the table of the items with the labels of the majority."""
        if self.table is None or self.consensus is None:
            return audit, None
        table, agreed = self.table, self.consensus

        def write(new: Path) -> None:
            write_atomically(new / "labels.csv", table.to_csv(index=False).encode("utf-8", "surrogatepass"))
            write_csv(new / "consensus.csv", agreed.to_frame())
            write_csv(new / "annotators.csv", agreed.quality.reset_index())
            write_csv(new / "label_again.csv", agreed.to_label_again(top))

        return replace(audit, source=replace(audit.source, path=str(folder / "labels.csv"))), write

    @cached_property
    def counts(self) -> Floats:
        """(N, C) votes for each class."""
        counts = np.zeros((self.items, len(self.classes)))
        np.add.at(counts, (self.item, self.label), 1.0)
        return counts

    @property
    def names(self) -> NDArray[Any]:
        """(C,) the names of the classes."""
        return np.array(self.classes, dtype=object)

    def majority(self) -> Ints:
        """(N,) the class with most votes; ties go to the first annotator of two, and else to the class with more votes on all items."""
        counts = self.counts + self.counts.sum(0) / (10 * self.counts.sum() + 1)
        first = (self.annotator == 0) & (len({name.split(LEVEL)[0] for name in self.annotators}) == 2)
        np.add.at(counts, (self.item[first], self.label[first]), 0.5)
        return np.asarray(counts.argmax(1))

    @property
    def majority_names(self) -> NDArray[Any]:
        """(N,) the name of the majority's class; empty without a vote."""
        return np.where(self.counts.sum(1) > 0, self.names[self.majority()], "")

    @cached_property
    def by_item(self) -> list[tuple[tuple[str, str], ...]]:
        """For each item, annotators and their classes."""
        votes: list[list[tuple[str, str]]] = [[] for _ in range(self.items)]
        for i, a, c in zip(self.item.tolist(), self.annotator.tolist(), self.label.tolist(), strict=True):
            votes[i].append((self.annotators[a], self.classes[c]))
        return [tuple(pairs) for pairs in votes]

    def show(self, content: Content, audit: Findings, row: int) -> Content:
        """The item with its votes."""
        return replace(content, votes=self.by_item[int(audit.index[row])])

    def named(self, items: Ints) -> list[Any]:
        """The names of items."""
        return [self.keys[i] for i in items] if self.keys else items.tolist()


@dataclass(frozen=True, eq=False)
class Consensus:
    """The consensus of annotators and models."""

    votes: Votes
    probabilities: Floats  # (N, C) of each class
    label: Ints  # (N,) the most likely class
    quality: pd.DataFrame  # a row for each annotator: votes, accuracy and its 90 % interval
    tables: Floats  # (A, C, C) the votes of each annotator by true class; (1, C, C) if they share one
    power: float  # of the models' prediction

    def p_error(self, label: Ints | None = None) -> Floats:
        """(N,) the probability that a label, by default the consensus, is wrong."""
        rows = np.arange(len(self.probabilities))
        return np.asarray(1 - self.probabilities[rows, self.label if label is None else label])

    @property
    def changed(self) -> int:
        """The number of items with votes whose consensus is not the majority's class."""
        return int(((self.label != self.votes.majority()) & (self.votes.counts.sum(1) > 0)).sum())

    def judged(self, items: Ints, label: Ints) -> dict[str, Any]:
        """Fields of `Findings` about labels of some items: error probabilities and their log odds, and the share of wrong labels."""
        wrong = np.clip(1 - self.probabilities[items, label], 1e-9, 1 - 1e-9)
        mean = float(wrong.mean())
        share = Estimate(mean, float(wrong[wrong > 0.9].sum() / len(wrong)), min(1.0, 2 * mean))
        return {"p_error": wrong, "log_odds": np.log(wrong / (1 - wrong)), "noise_rate": share}

    def to_frame(self) -> pd.DataFrame:
        """A row for each item: consensus and its probability, the majority, the share of votes that agree, all votes."""
        rows, total = np.arange(self.votes.items), self.votes.counts.sum(1)
        return pd.DataFrame({
            "item": self.votes.named(rows), "consensus": self.votes.names[self.label], "probability": 1 - self.p_error(),
            "majority": self.votes.majority_names,
            "agreement": self.votes.counts[rows, self.label] / np.maximum(total, 1),
            "votes": ["; ".join(f"{name}: {label}" for name, label in votes) for votes in self.votes.by_item],
        })  # fmt: skip

    def to_label_again(self, top: int | None = None) -> pd.DataFrame:
        """Items in falling order of doubt, each with the best annotator who has not voted on it."""
        doubt = self.p_error()
        order = np.argsort(-doubt, kind="stable")[:top]
        voted = set(zip(self.votes.item.tolist(), self.votes.annotator.tolist(), strict=True))
        best = np.argsort(-self.quality["accuracy"].to_numpy(), kind="stable").tolist()
        # Levels of confidence of one annotator cannot be asked.
        best = [a for a in best if LEVEL not in self.votes.annotators[a]]
        ask = [next((self.votes.annotators[a] for a in best if (int(i), a) not in voted), "") for i in order]
        names = self.votes.names[self.label[order]]
        return pd.DataFrame({"item": self.votes.named(order), "consensus": names, "p_error": doubt[order], "ask": ask})


def find_consensus(votes: Votes, log_q: Floats | None = None) -> Consensus:
    """The classes of items, and the quality of annotators.

    `log_q` (N, C) are out-of-fold log probabilities of models of the samples; by default the votes decide alone.

    >>> votes = Votes(np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2] * 2), np.array([0, 0, 1, 1, 1, 0]), 2, ("a", "b", "c"), ("no", "yes"))
    >>> found = find_consensus(votes)
    >>> found.label.tolist(), found.quality["accuracy"].idxmin()
    ([0, 1], 'c')
    """
    log_q = np.zeros((votes.items, len(votes.classes))) if log_q is None else np.asarray(log_q, np.float64)
    powers = POWERS if np.ptp(log_q) > 0 else (0.0,)
    fits = [_fit_tables(votes, log_q * power) for power in powers]
    best = int(np.argmax([likelihood for _, _, likelihood in fits]))
    p, tables, _ = fits[best]
    right = np.bincount(votes.annotator, p[votes.item, votes.label], len(votes.annotators))
    count = np.bincount(votes.annotator, minlength=len(votes.annotators))
    low, high = (beta.ppf(level, right + 0.5, count - right + 0.5) for level in (0.05, 0.95))
    names = pd.Index(votes.annotators, name="annotator")
    quality = pd.DataFrame({"votes": count, "accuracy": right / np.maximum(count, 1), "low": low, "high": high}, names)
    return Consensus(votes, p, p.argmax(1), quality, tables, powers[best])


def _fit_tables(votes: Votes, log_prior: Floats) -> tuple[Floats, Floats, float]:
    """(N, C) probabilities of classes, the tables, and the mean log-likelihood of the votes of an item."""
    classes = len(votes.classes)
    shared = len(votes.annotators) * classes**2 > MAX_ENTRIES
    who = np.zeros_like(votes.annotator) if shared else votes.annotator
    log_prior = log_prior - logsumexp(log_prior, 1, keepdims=True)

    def even(accuracy: float) -> Floats:
        """A table with equally likely errors."""
        return np.where(np.eye(classes, dtype=bool), accuracy, (1 - accuracy) / max(classes - 1, 1))

    tables = np.broadcast_to(even(START_ACCURACY), (1 if shared else len(votes.annotators), classes, classes))
    before, frequency = -np.inf, np.zeros(classes)
    for _ in range(MAX_STEPS):
        log_p = log_prior + frequency
        log_p = log_p - logsumexp(log_p, 1, keepdims=True)
        np.add.at(log_p, votes.item, np.log(tables[who, :, votes.label]))
        total = logsumexp(log_p, 1, keepdims=True)
        log_p -= total
        likelihood = float(total.mean())
        if likelihood - before < MIN_GAIN:
            break
        before, p = likelihood, np.exp(log_p)
        counted = np.zeros((len(tables), classes, classes))  # (A, given, true)
        np.add.at(counted, (who, votes.label), p[votes.item])
        counted = counted.swapaxes(1, 2)
        every = counted.sum(0)
        start = even(float(np.trace(every) / max(every.sum(), 1e-9)))
        every = (every + SHARED_VOTES * start) / (every.sum(1, keepdims=True) + SHARED_VOTES)
        tables = np.maximum((counted + OWN_VOTES * every) / (counted.sum(2, keepdims=True) + OWN_VOTES), 1e-9)
        if np.ptp(log_prior) == 0:  # without a model, classes are as frequent as the votes
            frequency = np.log(p.mean(0) + 1e-6)
    return np.exp(log_p), tables, likelihood


def _words(name: str) -> set[str]:
    """The words of a name in lower case, without numbers of versions."""
    return set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))


def named_like_votes(names: Iterable[str]) -> bool:
    """Whether a name is that of a column with labels by a model, or by one of several annotators."""
    return any(_words(name) & MODELS or _RATER.fullmatch(name.strip().lower()) for name in names)


def vote_columns(frame: pd.DataFrame) -> tuple[list[str], dict[str, str]]:
    """The columns of annotators, people before models, and the column with the stated confidence of an annotator; empty without any.

    Annotators are columns such as rater_1 and rater_2 in a table without a label column, or a label by a person and one by a model.

    >>> frame = pd.DataFrame({"llm_label": ["a", "b"], "llm_confidence": [0.9, 0.6], "label": ["a", "a"]})
    >>> vote_columns(frame)
    (['label', 'llm_label'], {'llm_label': 'llm_confidence'})
    """
    flat = [str(name) for name in frame.columns if not is_nested(frame[name])]
    values = {name: {str(v).strip() for v in frame[name].dropna()} - {""} for name in flat}
    words = {name: _words(name) for name, said in values.items() if 0 < len(said) <= max(5, min(100, len(frame) // 2))}
    models = [name for name in words if words[name] & MODELS and not words[name] & CONFIDENCE]
    people = [name for name in words if name not in models and (label_sign(name) in (0, 1) or words[name] & PEOPLE)]
    raters = [name for name in words if _RATER.fullmatch(name.strip().lower())]
    if len(raters) > 1 and not any(label_sign(name) == 0 for name in values):
        people = raters
    elif not models:
        people = []
    found = [*people, *models] if people else []
    said = Counter(value for name in found for value in values[name])
    shared = {value for value, count in said.items() if count > 1}
    if len(found) < 2 or any(len(values[name] & shared) < len(said) / 2 for name in found):
        return [], {}
    stated: dict[str, str] = {}
    for name in (n for n in values if _words(n) & CONFIDENCE and np.isfinite(numbers(frame[n])).any()):
        about = [m for m in found if _words(name) - CONFIDENCE <= _words(m)]
        stated |= {(models or about)[0] if about == found else about[0]: name} if about else {}
    return found, stated


def wide_votes(
    frame: pd.DataFrame, columns: Sequence[str], stated: Mapping[str, str] | None = None
) -> tuple[pd.DataFrame, Votes]:
    """The items (all other columns), and the votes, from a table with a column for each annotator; empty cells are not votes.

    `stated` names the column with the stated confidence of an annotator, whose votes then count as those of an annotator for each of
    `LEVELS` levels: how much a stated confidence is worth is estimated, and not believed.

    >>> frame = pd.DataFrame({"text": ["a", "b"], "ann": ["x", "y"], "bob": ["x", None]})
    >>> items, votes = wide_votes(frame, ["ann", "bob"])
    >>> list(items.columns), votes.label.tolist()
    (['text'], [0, 1, 0])
    """
    names = _columns(frame, columns)
    if (count := len(names)) < 2:
        raise InputError(f"{count} column of annotators is named; expected two or more, such as ann,bob or rater*.")
    cells = np.stack([frame[name].astype("string").str.strip().to_numpy(object, na_value="") for name in names])
    annotator, item = np.nonzero(cells != "")
    voters, who = list(map(str, names)), annotator.copy()
    for name, column in (stated or {}).items():
        level = pd.qcut(pd.Series(numbers(frame[column])), LEVELS, duplicates="drop")
        own = (annotator == names.index(name)) & (level.cat.codes.to_numpy()[item] >= 0)
        who[own] = len(voters) + level.cat.codes.to_numpy()[item[own]]
        voters += [f"{name}{LEVEL}{column} {i.left:.2g} to {i.right:.2g}" for i in level.cat.categories]
    used, who = np.unique(who, return_inverse=True)
    items = frame.drop(columns=[*names, *(stated or {}).values()])
    votes = _votes(item, who, cells[annotator, item], len(frame), [voters[a] for a in used])
    return items, replace(votes, stated=dict(stated or {}))


def long_votes(frame: pd.DataFrame, item: str, annotator: str, label: str) -> tuple[pd.DataFrame, Votes]:
    """The items (their first row each, without annotator and label), and the votes, from a table with a row for each vote.

    >>> frame = pd.DataFrame({"id": [7, 7, 8], "who": ["a", "b", "a"], "label": ["x", "y", "y"], "text": ["t", "t", "u"]})
    >>> items, votes = long_votes(frame, "id", "who", "label")
    >>> items["text"].tolist(), votes.item.tolist()
    (['t', 'u'], [0, 0, 1])
    """
    _columns(frame, [item, annotator, label])
    cells = frame[label].astype("string").str.strip().to_numpy(object, na_value="")
    voted = (cells != "") & frame[annotator].notna().to_numpy()
    place, keys = pd.factorize(frame[item])
    unnamed = np.flatnonzero(place < 0)
    if len(unnamed):
        raise InputError(f'row {unnamed[0]} has no value in "{item}"; every vote needs its item.')
    who, names = pd.factorize(frame[annotator].astype("string"))
    items = frame.drop_duplicates(item).drop(columns=[annotator, label]).reset_index(drop=True)
    votes = _votes(place[voted], who[voted], cells[voted], len(keys), list(names))
    return items, replace(votes, keys=tuple(np.asarray(keys).tolist()))


def _columns(frame: pd.DataFrame, wanted: Sequence[str]) -> list[str]:
    """The columns of these names; a name that ends in * stands for all columns with this prefix."""
    names: list[str] = []
    for name in wanted:
        here = [c for c in frame.columns if (str(c).startswith(name[:-1]) if name.endswith("*") else str(c) == name)]
        if not here:
            raise InputError(f'there is no column "{name}"; {nearest(name, [str(c) for c in frame.columns])}')
        names += [c for c in here if c not in names]
    return names


def _votes(item: Any, annotator: Any, label: Any, items: int, names: Sequence[Any]) -> Votes:
    if not len(label):
        raise InputError("there is no vote: the columns of the annotators are empty.")
    classes, numbers = np.unique(np.asarray(label, dtype=object).astype(str), return_inverse=True)
    if len(classes) < 2:
        raise InputError(f'all votes say "{classes[0]}"; an audit needs at least two classes. Check the columns.')
    item, annotator, numbers = (np.asarray(values, np.int64) for values in (item, annotator, numbers))
    return Votes(item, annotator, numbers, items, tuple(map(str, names)), tuple(classes))
