r"""Several annotators: who is right where they differ, how good each is, and which items to label again.

An item :math:`i` has a true class :math:`t_i`; annotator :math:`a` writes :math:`j` for class :math:`t` with probability :math:`\pi_a[t, j]`. Together with
what models of the samples predict out of fold, :math:`q(t | x)`,

.. math:: p(t | x_i, \text{votes}) \propto q(t | x_i)^w \prod_{a} \pi_a[t, v_{ia}].

The tables :math:`\pi_a` are found by expectation and maximization, each drawn to the table of all annotators, and that to one without a preference among
wrong classes: an annotator with few votes is an average one. The power :math:`w` is the one under which the votes are likeliest, so a model that knows little
says little. In the paper's taxonomy this compensates labels by prior knowledge, at the level of the sample and of the group of an annotator's votes.

Reference: Dawid and Skene, 1979, for the tables; Goh, Tkachenko and Mueller, CROWDLAB, 2022, for the use of a model beside the annotators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import beta

from compensate.auditing.labels.classes import Classes
from compensate.auditing.result import by_chance_note
from compensate.data.dataset import Floats, Ints, Source
from compensate.errors import InputError, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from compensate.auditing.page.model import Content
    from compensate.auditing.result import Audit


POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
"""Of the models' prediction, that are compared by the likelihood of the votes."""

ALIKE = 20.0
"""Votes of each class by which an annotator's table is drawn to that of all annotators."""

PLAIN = 5.0
"""Votes of each class by which the table of all is drawn to one without a preference among wrong classes."""

ACCURATE = 0.8
"""The accuracy of annotators before any vote is counted."""

ROUNDS, STILL = 100, 1e-6
"""Rounds of expectation and maximization at most, and the gain in mean log-likelihood below which they end."""

LABEL = "consensus"
"""The column that models learn."""

VOTES_ALONE = "The samples do not predict the labels better than by chance, so the votes alone decide."
"""Said where models of the samples take no part."""

LARGEST = 50_000_000
"""Entries of the tables of all annotators; beyond it they share one table."""


@dataclass(frozen=True, eq=False)
class Votes(Classes):
    """Who said what of which item, a vote each.

    Attributes:
        item, annotator, label: (V,) numbers.
        items: how many items there are.
        annotators: names.
        classes: names.
        keys: what the items are called; by default their numbers.
    """

    item: Ints
    annotator: Ints
    label: Ints
    items: int
    annotators: tuple[str, ...]
    classes: tuple[str, ...]
    keys: tuple[Any, ...] = ()

    @property
    def counts(self) -> Floats:
        """(N, C) votes for each class."""
        found = np.zeros((self.items, len(self.classes)))
        np.add.at(found, (self.item, self.label), 1.0)
        return found

    def majority(self) -> Ints:
        """(N,) the class with most votes; of several, the one that is more frequent in all votes."""
        counts = self.counts
        return np.asarray((counts + counts.sum(0) / (10 * counts.sum() + 1)).argmax(1))

    @cached_property
    def by_item(self) -> list[tuple[tuple[str, str], ...]]:
        """For each item, who voted and for which class."""
        said: list[list[tuple[str, str]]] = [[] for _ in range(self.items)]
        for i, a, c in zip(self.item.tolist(), self.annotator.tolist(), self.label.tolist(), strict=True):
            said[i].append((self.annotators[a], self.classes[c]))
        return [tuple(votes) for votes in said]

    def show(self, content: Content, audit: Audit, row: int) -> Content:
        """The item with the votes on it."""
        return replace(content, votes=self.by_item[int(audit.index[row])])

    def named(self, items: Ints) -> list[Any]:
        """What these items are called."""
        return [self.keys[i] for i in items] if self.keys else items.tolist()


@dataclass(frozen=True, eq=False)
class Consensus:
    """What several annotators and the samples say together.

    Attributes:
        votes: what it was made from.
        probabilities: (N, C) of each class.
        label: (N,) the likeliest.
        quality: a row for each annotator: votes, accuracy and its 90 % interval.
        tables: (A, C, C) what each annotator writes for each class; (1, C, C) if they share one.
        power: of the models' prediction.
    """

    votes: Votes
    probabilities: Floats
    label: Ints
    quality: pd.DataFrame
    tables: Floats
    power: float

    def p_error(self, label: Ints | None = None) -> Floats:
        """(N,) the probability that a label, by default the consensus, is wrong."""
        rows = np.arange(len(self.probabilities))
        return np.asarray(1 - self.probabilities[rows, self.label if label is None else label])

    def to_frame(self) -> pd.DataFrame:
        """A row for each item: consensus and its probability, the majority, the share of votes that agree, all votes."""
        counts = self.votes.counts
        names = np.array(self.votes.classes, dtype=object)
        total = counts.sum(1)
        agree = counts[np.arange(len(counts)), self.label] / np.maximum(total, 1)
        said = ["; ".join(f"{who}: {what}" for who, what in votes) for votes in self.votes.by_item]
        columns = {
            "item": self.votes.named(np.arange(len(counts))), "consensus": names[self.label], "probability": 1 - self.p_error(),
            "majority": np.where(total > 0, names[self.votes.majority()], ""), "agreement": agree, "votes": said,
        }  # fmt: skip
        return pd.DataFrame(columns)

    def to_label_again(self, top: int | None = None) -> pd.DataFrame:
        """Items in the order in which another vote helps most, with the best annotator who has not voted on it."""
        doubt = self.p_error()
        order = np.argsort(-doubt, kind="stable")[:top]
        voted = set(zip(self.votes.item.tolist(), self.votes.annotator.tolist(), strict=True))
        best = np.argsort(-self.quality["accuracy"].to_numpy(), kind="stable").tolist()
        by = [next((self.votes.annotators[a] for a in best if (int(i), a) not in voted), "") for i in order]
        names = [self.votes.classes[c] for c in self.label[order]]
        columns = {"item": self.votes.named(order), "consensus": names, "p_error": doubt[order], "ask": by}
        return pd.DataFrame(columns)


def find_consensus(votes: Votes, log_q: Floats | None = None) -> Consensus:
    """The classes of items, and the quality of annotators.

    Args:
        votes: of all annotators.
        log_q: (N, C) out-of-fold log probabilities of models of the samples; without them the votes speak alone.

    >>> votes = Votes(np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2] * 2), np.array([0, 0, 1, 1, 1, 0]), 2, ("a", "b", "c"), ("no", "yes"))
    >>> found = find_consensus(votes)
    >>> found.label.tolist(), found.quality["accuracy"].idxmin()
    ([0, 1], 'c')
    """
    log_q = np.zeros((votes.items, len(votes.classes))) if log_q is None else np.asarray(log_q, np.float64)
    shared = len(votes.annotators) * len(votes.classes) ** 2 > LARGEST
    fits = [_fitted(votes, log_q * power, shared) for power in (POWERS if np.ptp(log_q) > 0 else (1.0,))]
    best = int(np.argmax([likelihood for _, _, likelihood in fits]))
    log_p, tables, _ = fits[best]
    p = np.exp(log_p)
    power = POWERS[best] if len(fits) > 1 else 0.0
    return Consensus(votes, p, p.argmax(1), _quality(votes, p), tables, power)


def _fitted(votes: Votes, log_prior: Floats, shared: bool) -> tuple[Floats, Floats, float]:
    """Log probabilities of classes (N, C), the tables, and the mean log-likelihood of the votes of an item."""
    classes = len(votes.classes)
    who = np.zeros_like(votes.annotator) if shared else votes.annotator
    log_prior = log_prior - logsumexp(log_prior, 1, keepdims=True)
    plain = np.full((classes, classes), (1 - ACCURATE) / max(classes - 1, 1))
    np.fill_diagonal(plain, ACCURATE)
    tables = np.broadcast_to(plain, (1 if shared else len(votes.annotators), classes, classes))
    before = -np.inf
    frequency = np.zeros(classes)
    for _ in range(ROUNDS):
        log_p = log_prior + frequency
        log_p = log_p - logsumexp(log_p, 1, keepdims=True)
        # (V, C): what each vote says of each class.
        np.add.at(log_p, votes.item, np.log(tables[who, :, votes.label]))
        total = logsumexp(log_p, 1, keepdims=True)
        log_p -= total
        now = float(total.mean())
        if now - before < STILL:
            break
        before = now
        p = np.exp(log_p)
        tables = _tables(votes, who, p, plain, len(tables))
        if np.ptp(log_prior) == 0:  # no model: classes are as frequent as the votes say
            frequency = np.log(p.mean(0) + 1e-6)
    return log_p, tables, now


def _tables(votes: Votes, who: Ints, p: Floats, plain: Floats, count: int) -> Floats:
    counted = np.zeros((count, len(plain), len(plain)))  # (A, given, true)
    np.add.at(counted, (who, votes.label), p[votes.item])
    counted = counted.swapaxes(1, 2)
    every = counted.sum(0)
    right = np.trace(every) / max(every.sum(), 1e-9)
    even = np.full_like(plain, (1 - right) / max(len(plain) - 1, 1))
    np.fill_diagonal(even, right)
    every = (every + PLAIN * even) / (every.sum(1, keepdims=True) + PLAIN)
    tables = (counted + ALIKE * every) / (counted.sum(2, keepdims=True) + ALIKE)
    return np.asarray(np.maximum(tables, 1e-9))


def _quality(votes: Votes, p: Floats) -> pd.DataFrame:
    """How often each annotator is right, as far as the consensus tells."""
    right = np.bincount(votes.annotator, p[votes.item, votes.label], len(votes.annotators))
    count = np.bincount(votes.annotator, minlength=len(votes.annotators))
    low, high = (beta.ppf(part, right + 0.5, count - right + 0.5) for part in (0.05, 0.95))
    columns = {"votes": count, "accuracy": right / np.maximum(count, 1), "low": low, "high": high}
    return pd.DataFrame(columns, index=pd.Index(votes.annotators, name="annotator"))


# --- tables of votes --------------------------------------------------------------------------------------------


def wide_votes(frame: pd.DataFrame, columns: Sequence[str]) -> tuple[pd.DataFrame, Votes]:
    """The items (all other columns), and the votes, from a table with a column for each annotator; empty cells are no votes.

    >>> frame = pd.DataFrame({"text": ["a", "b"], "ann": ["x", "y"], "bob": ["x", None]})
    >>> items, votes = wide_votes(frame, ["ann", "bob"])
    >>> list(items.columns), votes.label.tolist()
    (['text'], [0, 1, 0])
    """
    names = _columns(frame, columns)
    if len(names) < 2:
        raise InputError(
            f"{len(names)} column of annotators is named; expected two or more, such as ann,bob or rater*."
        )
    cells = frame[names].astype("string").apply(lambda column: column.str.strip())
    parts = [(k, cells[name].to_numpy(object, na_value="")) for k, name in enumerate(names)]
    item = np.concatenate([np.flatnonzero(_said(part)) for _, part in parts])
    annotator = np.concatenate([np.full(int(_said(part).sum()), k) for k, part in parts])
    label = np.concatenate([part[_said(part)] for _, part in parts])
    votes = _votes(item, annotator, label, len(frame), [str(name) for name in names])
    return frame.drop(columns=names), votes


def long_votes(frame: pd.DataFrame, item: str, annotator: str, label: str) -> tuple[pd.DataFrame, Votes]:
    """The items (their first row each, without annotator and label), and the votes, from a table with a row for each vote.

    >>> frame = pd.DataFrame({"id": [7, 7, 8], "who": ["a", "b", "a"], "label": ["x", "y", "y"], "text": ["t", "t", "u"]})
    >>> items, votes = long_votes(frame, "id", "who", "label")
    >>> items["text"].tolist(), votes.item.tolist()
    (['t', 'u'], [0, 0, 1])
    """
    for name in (item, annotator, label):
        _columns(frame, [name])
    cells = frame[label].astype("string").str.strip().to_numpy(object, na_value="")
    said = _said(cells) & frame[annotator].notna().to_numpy()
    place, keys = pd.factorize(frame[item])
    if (place < 0).any():
        raise InputError(
            f'row {int(np.flatnonzero(place < 0)[0])} has no value in "{item}"; every vote needs its item.'
        )
    who, names = pd.factorize(frame[annotator].astype("string"))
    items = frame.drop_duplicates(item).drop(columns=[annotator, label]).reset_index(drop=True)
    votes = _votes(place[said], who[said], cells[said], len(keys), [str(name) for name in names])
    return items, replace(votes, keys=tuple(np.asarray(keys).tolist()))


def _said(cells: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(cells != "", dtype=bool)


def _columns(frame: pd.DataFrame, wanted: Sequence[str]) -> list[str]:
    """The columns of these names; a name that ends in * stands for all that begin so."""
    found: list[str] = []
    for name in wanted:
        here = [c for c in frame.columns if (str(c).startswith(name[:-1]) if name.endswith("*") else str(c) == name)]
        if not here:
            raise InputError(f'there is no column "{name}"; {nearest(name, [str(c) for c in frame.columns])}')
        found += [c for c in here if c not in found]
    return found


def _votes(item: Any, annotator: Any, label: Any, items: int, names: list[str]) -> Votes:
    if not len(label):
        raise InputError("there is no vote: the columns of the annotators are empty.")
    classes, number = np.unique(np.asarray(label, dtype=object).astype(str), return_inverse=True)
    if len(classes) < 2:
        raise InputError(f'all votes say "{classes[0]}"; with one class there is nothing to decide. Check the columns.')
    to = np.int64
    return Votes(
        np.asarray(item, to), np.asarray(annotator, to), number.astype(to), items, tuple(names), tuple(classes)
    )


# --- votes and samples together ---------------------------------------------------------------------------------


def audit_votes(
    items: Any,
    votes: Votes,
    *,
    encoder: Any = "auto",
    device: str | None = None,
    seed: int = 0,
    rounds: int = 2,
    progress: Callable[[str, int, int], None] | None = None,
    **options: Any,
) -> tuple[Any, Consensus]:
    """An `Audit` of the majority's labels, and the consensus of annotators and models.

    Models learn the consensus of the votes, out of fold; their predictions join the votes, and models learn the better consensus again. Of
    items without a vote they alone decide. Where the samples do not predict the consensus better than by chance, the votes decide alone.

    Args:
        items: samples in any form that `compensate.audit` takes: a data frame, texts, images, embeddings.
        votes: of the annotators.
        encoder, device, seed, progress, options: as of `compensate.audit`.
        rounds: how often models are fitted.
    """
    from compensate.auditing.api import audit

    if "memory" in options or "backend" in options:
        raise InputError("votes are not audited in pieces; leave memory and backend out.")
    named = np.array(votes.classes, dtype=object)
    found, consensus = None, find_consensus(votes)
    seen = np.flatnonzero(votes.counts.sum(1) > 0)
    for _ in range(rounds):
        labels = np.array([None] * votes.items, dtype=object)
        labels[seen] = named[consensus.label[seen]]
        chosen = {"encoder": encoder, "device": device, "seed": seed, "progress": progress, **options}
        if isinstance(items, pd.DataFrame):
            found = audit(items.assign(**{LABEL: labels}), label=LABEL, **chosen)
        else:
            found = audit(items, labels, **chosen)
        if found.provenance.by_chance:
            consensus = find_consensus(votes)
            break
        log_q = np.zeros((votes.items, len(named)))
        order = np.array([votes.classes.index(c) for c in found.classes])
        assert found.probabilities is not None
        log_q[np.ix_(found.index, order)] = np.log(np.maximum(found.probabilities, 1e-12))
        log_q[np.ix_(found.unlabeled.get("index", []), order)] = _predicted(found)
        consensus = find_consensus(votes, log_q)
    assert found is not None
    return _as_audit(found, votes, consensus), consensus


def _predicted(found: Audit) -> Floats:
    """(M, C) log probabilities of the rows without a label, of which an audit keeps the likeliest class alone: the others share the rest."""
    rest = len(found.classes) - 1
    if not len(found.unlabeled):
        return np.zeros((0, rest + 1))
    p = np.asarray(found.unlabeled["probability"], np.float64)
    q = np.repeat(((1 - p) / rest)[:, None], rest + 1, 1)
    q[np.arange(len(p)), found.unlabeled["suggested"]] = p
    return np.log(np.maximum(q, 1e-12))


def _as_audit(found: Audit, votes: Votes, consensus: Consensus) -> Audit:
    """The audit with the majority's labels as given, and the consensus as what is known of them."""
    to = np.array([found.classes.index(c) for c in votes.classes])
    given = votes.majority()[found.index]
    p = consensus.probabilities[found.index]
    others = p.copy()
    others[np.arange(len(p)), given] = -1
    wrong = np.clip(1 - p[np.arange(len(p)), given], 1e-9, 1 - 1e-9)
    doubted = float(wrong.mean())
    share = replace(
        found.noise_rate, value=doubted, low=float(wrong[wrong > 0.9].sum() / len(wrong)), high=min(1.0, 2 * doubted)
    )
    back = np.argsort(to)
    how, notes = found.provenance, found.notes
    if how.by_chance:  # the models have no say then
        source = Source() if found.data is None else found.data.source
        how = replace(how, views={}, agreement=None, by_chance=False)
        notes = (*(note for note in notes if note != by_chance_note("labels", source)), VOTES_ALONE)
    data = found.data if found.data is None else replace(found.data, parts=votes)
    return replace(
        found, data=data, given=to[given], suggested=to[others.argmax(1)], p_error=wrong, log_odds=np.log(wrong / (1 - wrong)),
        probabilities=p[:, back].astype(np.float32), noise_rate=share, provenance=how, notes=notes,
    )  # fmt: skip


def as_label_table(found: Audit, votes: Votes, items: pd.DataFrame, path: Path, title: str) -> tuple[Audit, bytes]:
    """The audit as one of a table of the items with the majority's labels, so that decisions can be applied to it; and that table as CSV.

    Args:
        found: by `audit_votes`.
        votes, items: as given to it.
        path: where the caller writes the table.
        title: of the page.
    """
    import io

    from compensate.auditing.digests import digest_frame, digest_text, short_digest

    column = "label" if "label" not in items.columns else LABEL
    names = np.array(votes.classes, dtype=object)
    frame = items.assign(**{column: np.where(votes.counts.sum(1) > 0, names[votes.majority()], "")})
    written = frame.to_csv(index=False).encode("utf-8", "surrogatepass")
    read = pd.read_csv(io.BytesIO(written), dtype=str, keep_default_na=False, encoding_errors="surrogatepass")
    assert found.data is not None
    return replace(
        found,
        source=replace(
            found.source, title=title, path=str(path), label=column, label_given=True,
            digest=digest_text(short_digest(written)), row_digests=None,
        ),
        data=replace(found.data, raw=frame.iloc[found.data.index], source=replace(found.data.source, label=column)),
        row_digests=digest_frame(read, column)[found.index],
    ), written  # fmt: skip
