"""Sentences with a tag for each word.

The features of a token are the words around it, their shapes and the token's beginning and end, hashed. The judged class is the type of an
entity; its boundaries (``B-``, ``I-`` and so on) follow from the types. Neighboring tokens with the same suggestion form one suspect.

Files are CoNLL (a token a line, its tag in the last column, an empty line between sentences) or JSONL with two lists a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from compensate.auditing.content import Content, short_digest
from compensate.auditing.decisions import Correction
from compensate.auditing.execution import LOCAL, Execution
from compensate.auditing.features import MAKERS, Progress, StoredFields
from compensate.auditing.findings import Address, Findings
from compensate.auditing.labels.base import (
    SUSPECT,
    Judged,
    NeighboringLabels,
    NewRows,
    Reader,
    Reading,
    Scored,
    check_given,
    list_items,
)
from compensate.auditing.learners import View, assign_folds, content_keys
from compensate.auditing.noise_model import judge
from compensate.auditing.write_back import TextEditor
from compensate.data.dataset import UNLABELED, Dataset, Ints, Source
from compensate.data.jsonl import objects
from compensate.data.tables import LINES, table_format
from compensate.errors import InputError
from compensate.files import check_size, decode, read_bytes, read_lines

SUFFIXES = (".conll", ".conll2003", ".conll03", ".iob", ".iob2", ".bio", ".bioes")  # of files with a token a line
WORD_KEYS, TAG_KEYS = ("tokens", "words"), ("tags", "ner_tags", "labels", "pos_tags", "pos")  # of lists in JSONL
OUTSIDE, BEGINNINGS = "O", ("B", "S", "U")  # the tag of a token outside entities, and prefixes of a first token
HASHED, MIN_OCCURRENCES = 1 << 18, 3  # columns of hashed features, and the tokens that a kept column occurs in
CHUNK = 20_000  # sentences whose features are computed at once
MIN_TOKENS = 20  # tokens that an audit needs
TOKEN_BYTES = 200  # of a token with its word and tag in memory, at least
_PREFIX = re.compile("([BIESLUM])-(.+)", re.DOTALL)
_FIELD = re.compile(r"\S+")
_TABBED_FIELD = re.compile(r"[^\s](?:[^\t]*[^\s])?")


class Token(NamedTuple):
    """A word, its tag, and the span of the tag in the text of the file."""

    word: str
    tag: str
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class TokenTags(NeighboringLabels):
    """The tags of sentences. The part of an address is a range of tokens."""

    sentences: tuple[tuple[Token, ...], ...]

    form = "tokens"
    pattern = re.compile(r"(\d{1,15}) (\d{1,6})")
    noun = "tags"
    units = "tokens"
    answer = "spans"
    digests_labels = True
    part_columns = (("token", attrgetter("start")), ("tokens", len))

    @cached_property
    def tokens(self) -> list[Token]:
        """All tokens, in order."""
        return [token for sentence in self.sentences for token in sentence]

    @cached_property
    def sentence_of(self) -> Ints:
        """(N,) the sentence of each token."""
        return np.repeat(np.arange(len(self.sentences)), [len(s) for s in self.sentences])

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        types = {split_tag(token.tag)[1] for token in self.tokens} - {OUTSIDE}
        return f"{len(self.tokens):,} tokens, {len(types)} kinds of tags"

    @classmethod
    def read(cls, data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
        if labels is None and isinstance(data, (str, Path)) and is_tokens(Path(data)):
            odd = [name for name, value in options.items() if value is not None and name != "encoding"]
            if odd:
                raise InputError(f"{odd[0]} is not an option for tagged tokens; {data} is read as tokens and tags.")
            path = Path(data)
            text = decode(read_bytes(path, lines=True), path, options.get("encoding") or "utf-8")
            # A token on each line; in JSONL, a comma after each word and after each tag.
            check_size(max(text.count("\n"), text.count(",") // 2), 1, path, each=TOKEN_BYTES)
            sentences, where = parse_tokens(text, path), str(path)
        elif isinstance(data, (list, tuple)) and len(data) and all(isinstance(item, (list, tuple)) for item in data):
            if labels is None:
                raise InputError("sentences have no tags of their own; pass them too: audit(words, tags).")
            if len(data) != len(labels):
                raise InputError(
                    f"there are {len(data)} sentences, and tags for {len(labels)}; expected a list of tags for each."
                )
            pairs = list(zip(data, labels, strict=True))
            for k, (words, tags) in enumerate(pairs):
                if len(words) != len(tags):
                    raise InputError(f"sentence {k} has {len(words)} tokens and {len(tags)} tags; expected one each.")
            sentences = [[Token(str(w), str(t)) for w, t in zip(*pair, strict=True)] for pair in pairs]
            where = "the list"
        else:
            return other(data, labels, options)
        if not any(sentences):
            raise InputError(
                f"{where} holds no token; expected a word and its tag on each line, or two lists in each row."
            )
        x = np.empty(len(sentences), dtype=object)
        x[:] = [" ".join(token.word for token in sentence) for sentence in sentences]
        parts = cls(tuple(map(tuple, sentences)))
        return Dataset(x, np.zeros(len(x), np.int64), ("tags",), raw=x, source=Source(kind="text"), parts=parts)

    def judge(self, seed: int = 0, progress: Progress | None = None, run: Execution = LOCAL) -> Judged:
        """Judges the type of each token."""
        types = np.array([split_tag(token.tag)[1] for token in self.tokens], dtype=object)
        names, given, counts = np.unique(types, return_inverse=True, return_counts=True)
        rare = counts < 2
        kept = ~rare[given]
        if kept.sum() < MIN_TOKENS or (~rare).sum() < 2:
            raise InputError(
                f"{int(kept.sum())} tokens have a tag that can be checked, of {int((~rare).sum())} kinds; an audit needs {MIN_TOKENS} or "
                "more, of two kinds. Check that tags stand in the last column."
            )
        listed = ", ".join(f'"{name[:40]}"' for name in names[rare][:5])
        notes = (f"The only token with its tag cannot be checked and is left out: {listed}.",) if rare.any() else ()
        keys = content_keys([" ".join(token.word for token in sentence) for sentence in self.sentences])
        folds = assign_folds(np.zeros(len(self.sentences), np.int64), keys, seed=seed)[self.sentence_of]
        x = self.features(run)
        maker = WordsAround(np.flatnonzero(x.getnnz(0) >= MIN_OCCURRENCES))
        view = View("words around", x[:, maker.columns])
        log_q, weights, learned = self.cross_fit(
            view, np.where(kept, given, UNLABELED), folds, len(names), seed, progress
        )
        verdict = judge(log_q[kept], given[kept])
        return Judged(
            kept, tuple(map(str, names)), given.astype(np.int64), verdict, weights, notes, ((maker,), *learned)
        )

    def features(self, run: Execution = LOCAL) -> Any:
        """(N, D) sparse features of all tokens."""
        chunks = [self.sentences[start : start + CHUNK] for start in range(0, len(self.sentences), CHUNK)]
        return sp.vstack(list(run.map(hashed_features, chunks)), format="csr")

    def score(self, new: NewRows, audit: Findings, judge: Any) -> Scored:
        number = {name: k for k, name in enumerate(audit.classes)}
        given = np.array([number.get(split_tag(token.tag)[1], UNLABELED) for token in self.tokens], np.int64)
        log_q, kept, groups = judge.predict(new.data), given != UNLABELED, list[Any]()
        if kept.any():
            verdict = judge.noise.verdict(log_q[kept], given[kept])
            judged = Judged(kept, audit.classes, given, verdict, {})
            groups, _ = self.group(judged, np.where(verdict.p_error >= SUSPECT, verdict.suggested, -1))
        found = [(address.row, words, audit.classes[old], best, *odds) for address, words, old, best, *odds in groups]
        for k in np.flatnonzero(~kept).tolist():  # a type that the audited data have not
            word, tag, _ = self.tokens[k]
            found.append((int(self.sentence_of[k]), word, split_tag(tag)[1], int(log_q[k].argmax()), np.inf, 1.0))
        rows, words, types, best, odds, p = zip(*found, strict=True)
        most = np.minimum(p, 0.5 if judge.noise.by_chance else 1.0)
        return Scored(np.array(rows), words, types, [audit.classes[c] for c in best], np.array(odds), most)

    def row_digests(self, digests: Any) -> Any:
        """Of the words and tags of each sentence."""
        contents = (repr([token[:2] for token in sentence]).encode("utf-8", "replace") for sentence in self.sentences)
        return np.fromiter(map(short_digest, contents), np.uint64)

    def group(self, judged: Judged, changed: Ints) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
        kept, given, verdict = np.flatnonzero(judged.kept), judged.given, judged.verdict
        prefixes = np.array([split_tag(self.tokens[k].tag)[0] for k in kept], dtype=object)
        alike = np.stack([kept - np.arange(len(kept)), self.sentence_of[kept], given[kept], changed])
        joins = (np.diff(alike) == 0).all(0) & ~np.isin(prefixes[1:], BEGINNINGS)
        joins &= (changed[1:] >= 0) | (prefixes[1:] != "")
        runs = np.split(np.arange(len(kept)), np.flatnonzero(~joins) + 1)
        groups, worst = [], []
        for run in runs:
            p, odds = verdict.p_error[run], verdict.log_odds[run]
            # Suspect tokens count by their mean, tokens that look right by the most suspect one.
            combine = np.mean if changed[run[0]] >= 0 else np.max
            worst.append(int(run[p.argmax()]))
            first = int(kept[run[0]])
            part = range(first, first + len(run))
            words = " ".join(self.tokens[k].word for k in part)
            best = int(verdict.suggested[worst[-1]])
            address = Address(int(self.sentence_of[first]), part)
            groups.append((address, words, int(given[first]), best, float(combine(odds)), float(combine(p))))
        return groups, {
            "index": np.array([int(kept[run[0]]) for run in runs], np.int64),
            "evidence": {name: values[worst] for name, values in verdict.evidence(given[kept]).items()},
            "probabilities": np.exp(verdict.log_q)[worst].astype(np.float32),
        }

    def show(self, content: Content, audit: Findings, row: int) -> Content:
        """The sentence with its tags; the judged words are marked."""
        sentence, part = audit.addresses[row]
        start = int(np.searchsorted(self.sentence_of, sentence))
        tokens = tuple((token.word, token.tag) for token in self.sentences[sentence])
        return replace(content, text=None, tokens=tokens, marked=(part.start - start, part.stop - start))

    @classmethod
    def choices(cls, audit: Findings) -> Sequence[str]:
        return [name for name in audit.classes if name != OUTSIDE]

    def ask(self, audit: Any, labels: Sequence[int], flagged: Sequence[int]) -> tuple[Any, Any, dict[str, Any]]:
        """The entities of the sentence as spans of its text; the record holds each word with its type."""
        row = audit.addresses[labels[0]].row
        sentence, start = self.sentences[row], int(np.searchsorted(self.sentence_of, row))
        types = [split_tag(token.tag)[1] for token in sentence]
        wanted = list(types)
        for i in flagged:
            part = audit.addresses[i].part
            wanted[part.start - start : part.stop - start] = [audit.classes[audit.suggested[i]]] * len(part)
        about = {"row": row, "part": self.format(Address(row, range(start, start + len(sentence))))}
        about["given"] = json.dumps([(token.word, kind) for token, kind in zip(sentence, types, strict=True)])
        return spans_of(sentence, types), spans_of(sentence, wanted), about

    @classmethod
    def decide(cls, about: Mapping[str, Any], answer: Any, suggested: Any) -> Iterable[tuple[Any, str, str, str, str]]:
        """Neighboring tokens with the same given and new type are one decision; without a change, one keeps the first of them."""
        at, tokens, first = 0, [], cls.parse(about["part"]).part.start
        for word, given in json.loads(about["given"]) if isinstance(answer, list) else ():
            here = ([kind for i, j, kind in some if i < at + len(word) and at < j] for some in (answer, suggested))
            tokens.append((given, *((kinds or [OUTSIDE])[0] for kinds in here)))
            at += len(word) + 1
        ends = np.cumsum([0, *(len([*same]) for _, same in groupby(tokens))]).tolist()
        runs = [(first + a, *tokens[a], f"{cls.form} {first + a} {b - a}") for a, b in pairwise(ends)]
        return [run for run in runs if run[1] != run[2]] or runs[:1]

    @classmethod
    def format(cls, address: Address) -> str:
        return f"{cls.form} {address.part.start} {len(address.part)}"

    @classmethod
    def parse(cls, text: str, row: int = -1) -> Address:
        first, count = map(int, cls.match(text).groups())
        return Address(row, range(first, first + count))

    @classmethod
    def write(cls, data: Path, decided: Sequence[tuple[Correction, Address]], out: Path, reading: Reading) -> int:
        editor = TextEditor(data, reading.encoding)
        sentences = parse_tokens(editor.text, data)
        tokens = [token for sentence in sentences for token in sentence]
        types = [split_tag(token.tag)[1] for token in tokens]
        new = list(types)
        for c, (_, part) in decided:
            if part.stop > len(tokens) or not len(part):
                raise InputError(f'a correction is about "{c.part}", and {data} has the tokens 0 to {len(tokens) - 1}.')
            check_given(data, c, " and ".join(sorted(set(types[part.start : part.stop]))))
            if c.changes:
                if re.search(r"\s", c.label.strip()):
                    raise InputError(f'"{c.label[:40]}" holds a blank, which no tag may have.')
                new[part.start : part.stop] = [c.label.strip()] * len(part)
        known, at = {token.tag for token in tokens}, 0
        scheme = prefix_scheme(known)
        for sentence in sentences:
            here, tags = slice(at, at + len(sentence)), [token.tag for token in sentence]
            before, after = (with_prefixes(scheme, some[here], tags, types[here]) for some in (types, new))
            for token, old, tag in zip(sentence, before, after, strict=True):
                quoted = editor.text[slice(*token.span)].startswith('"')
                if old == tag:
                    continue
                if editor.lines and not quoted and tag not in known:
                    listed = ", ".join(sorted(known)[:20])
                    raise InputError(
                        f'"{tag[:40]}" is not a tag of {data}, whose tags are numbers; choose one of {listed}.'
                    )
                editor.replace(token.span, json.dumps(tag, ensure_ascii=False) if editor.lines and quoted else tag)
            at += len(sentence)
        filled = [sentence for sentence in sentences if sentence]
        starts = [editor.text.rfind("\n", 0, sentence[0].span[0]) + 1 for sentence in filled]
        firsts = np.cumsum([0, *map(len, filled)])
        dropped = {part.start for c, (_, part) in decided if c.decision == "drop"}
        editor.drop_parts(starts, {int(np.searchsorted(firsts, first, "right")) - 1 for first in dropped})
        editor.write(out)
        return len(tokens)


@dataclass(frozen=True, eq=False)
class WordsAround(StoredFields):
    """The features of tokens; `columns` are those that occur often enough."""

    columns: Ints

    def view(self, data: Dataset, device: Any = None, progress: Progress | None = None) -> View:
        return View("words around", data.parts.features()[:, self.columns])


MAKERS["WordsAround"] = WordsAround  # type: ignore[assignment]


def spans_of(sentence: Sequence[Token], types: Sequence[str]) -> list[tuple[int, int, str]]:
    """Start, end and type of the entities in the words of a sentence, joined by blanks.

    >>> spans_of([Token("in", "O"), Token("New", "B-place"), Token("York", "I-place")], ["O", "place", "place"])
    [(3, 11, 'place')]
    """
    spans: list[tuple[int, int, str]] = []
    at, before = 0, OUTSIDE
    for token, kind in zip(sentence, types, strict=True):
        joins = kind == before and split_tag(token.tag)[0] not in BEGINNINGS
        if kind != OUTSIDE:
            spans.append((spans.pop()[0] if joins else at, at + len(token.word), kind))
        at, before = at + len(token.word) + 1, kind
    return spans


def split_tag(tag: str) -> tuple[str, str]:
    """The prefix of a tag, if it has one, and the type.

    >>> split_tag("B-location"), split_tag("O")
    (('B', 'location'), ('', 'O'))
    """
    match = _PREFIX.fullmatch(tag)
    return (match[1], match[2]) if match else ("", tag)


def prefix_scheme(tags: Iterable[str]) -> str:
    """The prefixes of a first, an inner, a last and a single token of an entity; empty if tags have none.

    >>> prefix_scheme(["O", "B-x", "I-x"]), prefix_scheme(["O", "S-x"]), prefix_scheme(["NOUN"])
    ('BIIB', 'BIES', '')
    """
    prefixes = {split_tag(tag)[0] for tag in tags} - {""}
    if prefixes & {"S", "E"}:
        return "BMES" if "M" in prefixes else "BIES"
    return ("BILU" if prefixes & {"U", "L"} else "BIIB") if prefixes else ""


def with_prefixes(scheme: str, types: Sequence[str], tags: Sequence[str], before: Sequence[str]) -> list[str]:
    """Tags of these types in a scheme; `tags` and `before` are the old tags and their types.

    A token with a new type joins the entity to its left, and other beginnings stay.
    """
    if not scheme:
        return list(types)
    begins = [
        k == 0 or types[k - 1] != kind or (before[k] == kind and split_tag(tags[k])[0] in BEGINNINGS)
        for k, kind in enumerate(types)
    ] + [True]
    places = {(True, False): 0, (False, False): 1, (False, True): 2, (True, True): 3}
    chosen = [scheme[places[pair]] for pair in pairwise(begins)]
    return [OUTSIDE if kind == OUTSIDE else f"{prefix}-{kind}" for prefix, kind in zip(chosen, types, strict=True)]


def hashed_features(sentences: Sequence[Sequence[Token]]) -> Any:
    """(N, D) sparse features of all tokens."""
    from sklearn.feature_extraction import FeatureHasher

    hasher = FeatureHasher(HASHED, input_type="string", alternate_sign=False, dtype=np.float32)
    return hasher.transform(names for sentence in sentences for names in _features([token.word for token in sentence]))


def _features(words: list[str]) -> Iterator[list[str]]:
    low = ["<s>", "<s>", *(word.lower()[:40] for word in words), "</s>", "</s>"]
    shapes = ["<s>", "<s>", *map(shape, words), "</s>", "</s>"]
    for k in range(2, len(low) - 2):
        word = low[k]
        yield [
            "bias", f"w={word}", f"s={shapes[k]}", f"s,w={shapes[k]},{word}",
            *(f"{d}w={low[k + d]}" for d in (-2, -1, 1, 2)),
            *(f"{d}s={shapes[k + d]}" for d in (-2, -1, 1, 2)),
            *(f"<{word[:n]}" for n in (1, 2, 3) if len(word) > n),
            *(f">{word[-n:]}" for n in (1, 2, 3, 4) if len(word) > n),
            f"ww={low[k - 1]} {word}", f"w+w={word} {low[k + 1]}",
            f"sss={shapes[k - 1]} {shapes[k]} {shapes[k + 1]}",
        ]  # fmt: skip


def shape(word: str) -> str:
    """The kinds of characters of a word, without repetitions.

    >>> shape("Paris"), shape("HELLO"), shape("iPhone5"), shape("@user"), shape("1,000"), shape("")
    ('Xx', 'X', 'xXx0', '@x', '0,0', '')
    """
    signs = ["x" if c.islower() else "X" if c.isupper() else "0" if c.isdigit() else c for c in word[:20]]
    return "".join([*signs[:1], *(b for a, b in pairwise(signs) if a != b)])


def is_tokens(path: Path) -> bool:
    """Whether a file holds tagged tokens: by its name, or by the lists in its first line."""
    if not path.is_file() or table_format(path) not in LINES:
        return path.is_file() and table_format(path) in SUFFIXES
    first = next((line for line in read_lines(path) if line.strip()), b"null")
    try:
        return _keys(json.loads(first)) is not None
    except (ValueError, RecursionError):
        return False  # the reader of tables reports it


def _keys(row: Any) -> tuple[str, str] | None:
    """The keys of the words and of the tags in a row."""
    lists = [name for name, value in row.items() if isinstance(value, list)] if isinstance(row, dict) else []
    words, tags = (next((key for key in keys if key in lists), None) for keys in (WORD_KEYS, TAG_KEYS))
    return None if words is None or tags is None else (words, tags)


def parse_tokens(text: str, where: Path) -> list[list[Token]]:
    """The sentences in the text of a file."""
    if table_format(where) in LINES:
        return _parse_lists(text, where)
    sentences: list[list[Token]] = [[]]
    at = 0
    for number, line in enumerate(text.split("\n"), 1):
        # A token may hold blanks where tabs separate the columns.
        fields = list((_TABBED_FIELD if "\t" in line else _FIELD).finditer(line))
        if not fields:
            sentences.append([])
        elif len(fields) < 2:
            raise InputError(
                f'{where}, line {number}, says "{line.strip()[:40]}"; expected a token, at least one blank or tab, and its tag in the last '
                "column."
            )
        else:
            start, end = fields[-1].span()
            sentences[-1].append(Token(fields[0][0], fields[-1][0], (at + start, at + end)))
        at += len(line) + 1
    return [sentence for sentence in sentences if sentence]


def _parse_lists(text: str, where: Path) -> list[list[Token]]:
    sentences: list[list[Token]] = []
    for number, members in enumerate(objects(text, where)):
        row = {key: (value, span) for key, value, span in members}
        keys = _keys({key: value for key, (value, _) in row.items()})
        if keys is None:
            raise InputError(
                f"{where}, row {number}, has no lists of words ({' or '.join(WORD_KEYS)}) and tags ({', '.join(TAG_KEYS)}), as other rows "
                "have."
            )
        (words, _), (tags, (start, end)) = row[keys[0]], row[keys[1]]
        if len(words) != len(tags):
            raise InputError(f"{where}, row {number}, has {len(words)} words and {len(tags)} tags; expected one each.")
        odd = [item for item in (*words, *tags) if not isinstance(item, (str, int))]
        if odd:
            raise InputError(f'{where}, row {number}, holds "{str(odd[0])[:40]}"; expected words and tags as texts.')
        spans = [(start + a, start + b) for a, b in list_items(text[start:end])]
        sentences.append([Token(str(w), str(t), s) for w, t, s in zip(words, tags, spans, strict=True)])
    return sentences
