"""The label and the text of a table: which columns hold them, and whether labels are classes, quantities or several a row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compensate.data.columns import (
    ID_NAMES,
    LABEL_NAMES,
    TEXT_WORDS,
    TableEncoder,
    analyze,
    are_lists,
    is_nested,
    median_words,
    row_texts,
    text_columns,
)
from compensate.data.labels import check_lengths, encode_labels, has_no_label, is_missing, missing_labels
from compensate.data.text import Tfidf
from compensate.errors import InputError, nearest

# A column of fewer than six words is the text only if at most three others could be features (or the label)
MIN_WORDS, MAX_OTHER_COLUMNS = 6, 3
# Names of two columns whose texts are judged together: the label says how they relate
PAIRED_TEXTS = (
    *(("instruction", "input", "output"), ("instruction", "output"), ("prompt", "response")),
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("text1", "text2")),
    *(("text_a", "text_b"), ("question1", "question2"), ("question", "answer"), ("question", "passage")),
    *(("query", "document"), ("query", "passage"), ("claim", "evidence"), ("prompt", "completion")),
)
# Names of columns of lists that hold the labels if no column is named as in `LABEL_NAMES`
LABEL_SETS = ("labels", "tags", "topics", "categories", "genres", "classes")
# Words in the name of a label column, such as label_text or target_class
LABEL_WORDS = frozenset({"label", "labels", "target", "gold", "annotation"})
TOPICS = {
    *("category", "sentiment", "emotion", "intent", "topic", "outcome", "diagnosis", "species", "survived", "churn"),
    *("churned", "preferred", "preference", "relevance", "spam", "toxic", "toxicity", "stance", "polarity", "variety"),
    *("genre", "verdict", "answer", "response"),
}
"""Names that labels often have."""

QUANTITIES = frozenset({"price", "score"})  # names of quantities that are labels in some tables and features in others
MAX_RUNNERS_UP = 3  # other candidates that are reported when the label column was not named as in `LABEL_NAMES`
MAX_INTEGER_CLASSES = 20  # up to this many distinct whole numbers are classes; more are classes only if they count up from 0 or 1 without a gap
MIN_LABEL_COLUMNS = 3  # columns of 0 and 1 that together are taken for label sets
MAX_ROWS_PREDICTED = 1000  # rows on which candidates are predicted from the other columns
_BY_NAME = "label=... (--label on the command line)"  # how to name the label column, for errors


class UnclearLabel(InputError):
    """Several columns could be the label, or none; ``candidates`` has the likeliest first.

    >>> UnclearLabel("which?", ("a", "b")).candidates
    ('a', 'b')
    """

    def __init__(self, message: str, candidates: Sequence[str]) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


@dataclass(frozen=True)
class LabelChoice:
    """The label of a table."""

    columns: tuple[str, ...] = ()  # the label column; for form "columns" one column of 0 and 1 per label
    form: str = "single"  # one label per row; "joined" or "lists": several in a cell; "columns"; "unclear"
    error: InputError | None = None  # of a reader that needs one label per row
    runners_up: tuple[str, ...] = ()  # other columns that could be the label
    passed_over: Mapping[str, str] = field(default_factory=dict)  # columns named like a label, and why they are not

    @property
    def several(self) -> bool:
        """Whether rows have several labels."""
        return self.form in ("joined", "lists", "columns")

    @property
    def column(self) -> str:
        """The column of a single label; raises `error` for any other form."""
        if self.error is not None:
            raise self.error
        return self.columns[0]


def decide_label(
    frame: pd.DataFrame,
    where: str,
    *,
    label: str | None = None,
    text: str | None = None,
    lists: Sequence[str] = (),
    missing: Sequence[str] | None = None,
    single: bool = False,
) -> LabelChoice:
    """The label of a table, and whether a row has one or several.

    ``frame`` is the table without the columns ``lists``, ``label`` and ``text`` are columns that the user named, ``missing`` are cells
    that stand for a missing label. With ``single``, cells are known to hold one label each.
    """
    names = [str(c) for c in frame.columns]
    plain = any(label_sign(name) == 0 for name in (*names, *lists))
    for name in lists:
        usual = LABEL_NAMES if plain else (*LABEL_NAMES, *LABEL_SETS)
        if name == label or (label is None and name.strip().lower() in usual):
            problem = f'the column "{name}" of {where} holds lists; expected one label a row'
            error = InputError(f"{problem}. Keep one label of each list, or name another column: {_BY_NAME}.")
            return LabelChoice((name,), "lists", error)
    runners_up: list[str] = []
    passed_over: dict[str, str] = {}
    try:
        column = choose_label(frame, label, where, text)
    except UnclearLabel as unclear:
        binary = tuple(n for n in names if {v.strip() for v in _values(frame[n], 5)} == {"0", "1"})
        if len(binary) >= MIN_LABEL_COLUMNS and set(unclear.candidates) <= set(binary):
            return LabelChoice(binary, "columns", unclear)
        if lists:
            unread = f"The columns {', '.join(lists)} hold lists or objects, which are not read: move their fields to columns of their own."
            unclear = UnclearLabel(f"{unclear} {unread}", unclear.candidates)
        return LabelChoice((), "unclear", unclear)
    if label is None:
        known = {column, *text_columns(text, names)}
        others = [n for n in names if n not in known and n.strip().lower() not in (*ID_NAMES, "split")]
        if label_sign(column) is None:
            runners_up = [n for n in others if _few_values(frame, n)]
        elif label_sign(column) != 0:
            runners_up = [n for n in others if label_sign(n) is not None and _could_be_label(frame[n])]
        counts = {n: len(_values(frame[n], 2)) for n in names if n != column and label_sign(n) is not None}
        passed_over = {n: "has one value" if count else "is empty" for n, count in counts.items() if count < 2}
    joined = None if single else _several(frame[column], where, missing)
    form = "single" if joined is None else "joined"
    return LabelChoice((column,), form, joined, tuple(runners_up[:MAX_RUNNERS_UP]), passed_over)


def choose_label(frame: pd.DataFrame, label: str | None, where: str, text: str | None = None) -> str:
    """The label column: as given, or as `find_label` finds it; else `UnclearLabel` lists the candidates.

    >>> frame = pd.DataFrame({"size": ["1", "2", "3"], "Label": ["a", "b", "a"]})
    >>> choose_label(frame, None, "the table")
    'Label'
    """
    names = [str(c) for c in frame.columns]
    if label is not None:
        if label not in names:
            raise InputError(f'{where} has no column "{label}"; {nearest(label, names)}')
        return label
    candidates = find_label(frame, text)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        problem = f"{where} has no column named {', '.join(LABEL_NAMES)} and none with few values"
        named = [name for name in names if label_sign(name) is not None]
        if len(named) == 1 and len(_values(frame[named[0]], 2)) < 2:
            problem = f'the label column "{named[0]}" of {where} has fewer than 2 values'
        message = f"{problem}; its columns are {', '.join(names)}. Say which holds the label: {_BY_NAME}."
        raise UnclearLabel(message, names)
    counts = {name: len(_values(frame[name])) for name in candidates}
    # Labels are mostly in the last column, else in the first.
    ranked = sorted(candidates, key=lambda name: (name != names[-1], name != names[0], counts[name]))
    shown = []
    for name in ranked[:8]:
        present = frame[name][[not is_missing(v) for v in frame[name]]].astype(str)
        values = ", ".join(value[:20] for value in present.value_counts().index[:3])
        shown.append(f"{name} ({counts[name]} values: {values}{', ...' if counts[name] > 3 else ''})")
    found = f"any of {len(ranked)} columns: {'; '.join(shown)}{' ...' if len(ranked) > 8 else ''}"
    option = f'label="{ranked[0]}" (--label {ranked[0]} on the command line)'
    votes = " If each holds the labels of one annotator: compensate consensus --annotators."
    alike = all(_values(frame[name]) == _values(frame[ranked[0]]) for name in ranked)
    raise UnclearLabel(f"the label of {where} could be {found}. Say which: {option}.{votes * alike}", ranked)


def find_label(frame: pd.DataFrame, text: str | None = None) -> list[str]:
    """The columns that could be the label by their names, else the predictable ones of few values. A single one is the label."""
    names = [str(c) for c in frame.columns if str(c).strip().lower() not in (*ID_NAMES, "split")]
    names = [name for name in names if name not in text_columns(text, map(str, frame.columns))]
    signs = {name: label_sign(name) for name in names}
    plain = [name for name in names if signs[name] == 0]
    if len(plain) == 1:  # even with one value: the error then names this column
        return plain
    for rank in range(4):
        candidates = [name for name in names if signs[name] == rank and _could_be_label(frame[name])]
        if candidates:
            return candidates
    candidates = [name for name in names if _few_values(frame, name)]
    return (_predictable(frame, candidates, text) or candidates) if len(candidates) > 1 else candidates


def choose_text(frame: pd.DataFrame, text: str | None, where: str, label: str | None = None) -> str | None:
    """The text columns, as `text_columns` reads them: as given, or all that have sentences, or a pair of `PAIRED_TEXTS`; None without any.

    A column of a few words among several numbers and categories, such as the names of people, is not the text.
    """
    names = [str(c) for c in frame.columns]
    if text is not None:
        for name in text_columns(text, names):
            if name not in names:
                raise InputError(f'{where} has no column "{name}"; {nearest(name, names)}')
        return text or None
    lower = {name.strip().lower(): name for name in names if name != label}
    for pair in PAIRED_TEXTS:
        # The input of an instruction is often empty.
        if all(name in lower and (name == "input" or _holds_texts(frame[lower[name]])) for name in pair):
            return ",".join(lower[name] for name in pair)
    sample = frame.iloc[:: max(1, len(frame) // 2000)]
    lengths, words = {}, {}
    for name in (n for n in names if n != label and n.strip().lower() not in LABEL_NAMES):
        values = [str(v) for v in sample[name] if not is_missing(v)]
        words[name] = median_words(values)
        distinct = len(set(values)) > len(values) / (
            20 if words[name] >= MIN_WORDS else 2
        )  # sentences may occur several times
        if words[name] >= TEXT_WORDS and distinct and not are_lists(v.strip() for v in values):
            lengths[name] = np.mean([len(v) for v in values])
    text = max(lengths, key=lengths.__getitem__, default=None)
    if text is not None and words[text] < MIN_WORDS:
        others = sample.drop(columns=[text, *([label] if label in names else [])])
        if sum(c.used and c.name.strip().lower() not in LABEL_NAMES for c in analyze(others)) > MAX_OTHER_COLUMNS:
            return None
    long = [name for name in lengths if words[name] >= MIN_WORDS and "," not in name]
    return ",".join(long) if text in long else text


def targets(
    cells: NDArray[Any],
    task: str | None,
    where: str,
    label: str,
    missing: frozenset[str] | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[NDArray[Any], tuple[str, ...], str]:
    """Class numbers or quantities of the label cells, the class names (none for quantities), and the reason."""
    if task not in (None, "classification", "regression"):
        raise InputError(
            f'task is "{task}"; choose classification, regression or, for pairs of responses in an audit, preference.'
        )
    missing = missing_labels(cells) if missing is None else missing
    if classes is not None:
        return *encode_labels(cells, classes, tuple(missing)), f"{len(classes)} classes"
    present = np.array([not has_no_label(v, missing) for v in cells])
    if not present.any():
        raise InputError(f'the label column "{label}" of {where} is empty. If another holds the labels: {_BY_NAME}.')
    numbers = _numbers(cells[present])
    numeric = bool(np.isfinite(numbers).all())
    if task == "regression" and not numeric:
        bad = cells[present][~np.isfinite(numbers)][0]
        raise InputError(f'the label column "{label}" of {where} holds "{str(bad)[:80]}", which is not a number.')
    reason = "a quantity, as chosen" if task == "regression" else None
    if numeric and task is None:
        distinct = np.unique(numbers)
        count = len(distinct)
        if not (numbers == np.round(numbers)).all():
            reason = f"a quantity: {count:,} distinct numbers with decimals" if count > 10 else None
        elif count > MAX_INTEGER_CLASSES:
            counts_up = distinct[0] in (0, 1) and count == distinct[-1] - distinct[0] + 1
            if not counts_up or count > max(MAX_INTEGER_CLASSES, len(numbers) // 10):
                reason = f"a quantity: {count:,} distinct whole numbers"
    if reason is not None:
        target = np.full(len(cells), np.nan)
        target[present] = numbers
        return target, (), reason
    target, names = encode_labels(cells, missing=tuple(missing))
    if len(names) < 2:
        problem = f'the label column "{label}" of {where} has the one value "{names[0]}"; expected 2 or more'
        raise InputError(f"{problem}. If another column holds the labels: {_BY_NAME}.")
    return target, names, f"{len(names)} classes"


SIGNS = (";", "|", ",", "+", " / ")  # between labels in a cell


def joined_labels(cells: Sequence[Any] | NDArray[Any]) -> str | None:
    """The separator of labels, if the cells hold several labels each; ``"list"`` if they are lists.

    Cells are joined labels if most of their parts occur in other cells too: "action|comedy" and "comedy|drama" are,
    "Paris, France" and "Lima, Peru" are not.
    """
    counts = Counter(_cell(cell) for cell in cells)
    listed = sum(count for cell, count in counts.items() if cell.startswith(("[", "{")) and cell.endswith(("]", "}")))
    if listed > len(cells) / 2:
        return "list"
    for sign in SIGNS:
        parts = {cell: [part.strip() for part in cell.split(sign)] for cell in counts}
        joined = [cell for cell in counts if len(parts[cell]) > 1]
        if len(joined) < 2 or sum(counts[cell] for cell in joined) < 0.02 * len(cells):
            continue
        holders = Counter(part for cell in counts for part in set(parts[cell]))
        labels = {part for cell in joined for part in parts[cell]}
        if all(labels) and np.mean([holders[part] > 1 for part in labels]) >= 0.8:
            return sign
    return None


def _several(column: pd.Series, where: str, missing: Sequence[str] | None) -> InputError | None:
    """The error about cells that hold several labels each; None if they hold one."""
    distinct = np.asarray(column.unique(), dtype=object)
    texts = missing_labels(distinct, missing)
    if np.isfinite(_numbers([v for v in distinct if not has_no_label(v, texts)])).all():
        return None
    check_lengths(column.to_numpy(object))
    cells = [v for v in column if not has_no_label(v, texts)]
    sign = joined_labels(cells)
    if sign is None:
        return None
    example = next(c for c in map(_cell, cells) if sign == "list" or sign in c)
    how = "as lists" if sign == "list" else f'joined by "{sign.strip()}"'
    dummies = "" if sign == "list" else f', in pandas frame["{column.name}"].str.get_dummies("{sign}")'
    return InputError(
        f'the label column "{column.name}" of {where} gives each row several labels {how}, such as "{example[:60]}"; one label a '
        f"row is expected. Make a column of 0 and 1 for each label{dummies}, and look at one of them at a time with {_BY_NAME}; "
        'or take every combination for a class of its own: task="classification".'
    )


def _predictable(frame: pd.DataFrame, candidates: list[str], text: str | None) -> list[str]:
    """The candidates that the other columns predict better than the most frequent value does, by two standard errors."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.model_selection import cross_val_predict

    rows = np.random.default_rng(0).permutation(len(frame))[:MAX_ROWS_PREDICTED]
    sample = frame.iloc[np.sort(rows)].reset_index(drop=True)
    if text:
        texts = list(row_texts(sample, text))
        try:
            x = Tfidf.fit(texts, dims=20)(texts)
        except InputError:  # no word occurs twice
            return []
    else:
        encoder = TableEncoder.fit(sample, [c for c in analyze(sample) if c.name not in candidates])
        if not encoder.names:
            return []
        x = encoder.trees(sample)
    predictable = []
    for name in candidates:
        y, classes = encode_labels(sample[name].to_numpy(object))
        kept = (y >= 0) & (np.bincount(y[y >= 0], minlength=len(classes))[y] >= 3)
        y = y[kept]
        if len(np.unique(y)) >= 2:
            model = ExtraTreesClassifier(30, min_samples_leaf=3, random_state=0)
            accuracy = np.mean(cross_val_predict(model, x[kept], y, cv=3) == y)
            chance = np.bincount(y).max() / len(y)
            if accuracy > chance + 2 * np.sqrt(chance * (1 - chance) / len(y)):
                predictable.append(name)
    return predictable


def label_sign(name: str) -> int | None:
    """How surely a name is that of a label: 0 (in `LABEL_NAMES`) to 3 (energy_class and response_a may be features); None if it is not."""
    if name.strip().lower() in LABEL_NAMES:
        return 0
    words = set(re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower().replace("_", " ").replace("-", " ").split())
    about_label = not words & {"id", "count", "confidence"}
    if about_label and words & LABEL_WORDS:
        return 1
    if len(words - {"is", "has"}) == 1 and words - {"is", "has"} <= TOPICS:
        return 2
    return 3 if about_label and words and (words & (TOPICS | {"class"}) or words <= QUANTITIES) else None


def _could_be_label(column: pd.Series) -> bool:
    """Whether a column has two values or more, and is not made of mostly distinct sentences."""
    if len(_values(column, 2)) < 2:
        return False
    cells = [str(v) for v in column.iloc[:: max(1, len(column) // 2000)] if not is_missing(v)]
    return median_words(cells) < TEXT_WORDS or len(set(cells)) <= len(cells) / 2


def _holds_texts(column: pd.Series) -> bool:
    """Whether many cells differ, and most have several words."""
    cells = [str(v) for v in column.iloc[:: max(1, len(column) // 2000)] if not is_missing(v)]
    return median_words(cells) >= TEXT_WORDS and len(set(cells)) > len(cells) / 20


def _few_values(frame: pd.DataFrame, name: str) -> bool:
    few = max(5, min(100, len(frame) // 10))
    return 2 <= len(_values(frame[name], few)) <= few


def _values(column: pd.Series, most: int | None = None) -> set[str]:
    """The distinct values; if there are more than ``most``, some of them."""
    values = np.asarray((column.map(_cell) if is_nested(column) else column).unique(), dtype=object)
    values = values if most is None else values[: most + 21]  # there are fewer ways than 20 to write a missing value
    return {str(v) for v in values if not is_missing(v)}


def _numbers(cells: Sequence[Any] | NDArray[Any]) -> NDArray[np.float64]:
    return pd.to_numeric(pd.Series([str(v) for v in cells]), errors="coerce").to_numpy(float)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple, set, np.ndarray)):
        return f"[{', '.join(map(str, value))}]"
    return str(value).strip()
