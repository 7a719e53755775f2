"""Sentences with a tag for each word.

Every token is judged by models that did not learn from its sentence. Their features are the words around it, their shapes and the token's
beginning and end, hashed. The judged class is the type of an entity; its boundaries (``B-``, ``I-`` and so on) follow from the types.
Neighboring tokens with the same suggestion form one suspect.

Files are CoNLL (a token a line, its tag in the last column, an empty line between sentences) or JSONL with two lists a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp

from compensate.auditing.decisions import Applied, Correction
from compensate.auditing.execution import LOCAL, Execution
from compensate.auditing.features import Progress, unused_encoder
from compensate.auditing.findings import Address, Findings
from compensate.auditing.labels.base import (
    Group,
    Judged,
    Judging,
    LabelKind,
    Reader,
    Reading,
    applied,
    check_given,
    cross_fit,
    group_findings,
    list_items,
    provenance_of,
    suggestions,
)
from compensate.auditing.learners import View, assign_folds, content_keys
from compensate.auditing.noise_model import Verdict, judge
from compensate.auditing.write_back import TextEditor
from compensate.data.dataset import UNLABELED, Dataset, Ints, Source
from compensate.data.jsonl import objects
from compensate.data.tables import LINES, table_format
from compensate.errors import InputError
from compensate.files import check_size, decode, read_bytes, read_lines

if TYPE_CHECKING:
    from compensate.auditing.content import Content
    from compensate.auditing.result import Audit

SUFFIXES = (".conll", ".conll2003", ".conll03", ".iob", ".iob2", ".bio", ".bioes")
"""Of files with a token a line."""

WORD_KEYS, TAG_KEYS = ("tokens", "words"), ("tags", "ner_tags", "labels", "pos_tags", "pos")
"""Of the lists in a JSONL file."""

OUTSIDE = "O"
BEGINNINGS = ("B", "S", "U")
"""The tag of a token outside entities, and the prefixes of a first token."""

HASHED, MIN_OCCURRENCES = 1 << 18, 3
"""Columns that features are hashed to, and the tokens that a column must occur in to be kept."""

CHUNK = 20_000
"""Sentences whose features are computed at once."""

MIN_TOKENS = 20
"""Tokens that an audit needs."""

TOKEN_BYTES = 200
"""Bytes of a token with its word and tag in memory, at least."""

_PREFIX = re.compile("([BIESLUM])-(.+)", re.DOTALL)
_FIELD = re.compile(r"\S+")
_TABBED_FIELD = re.compile(r"[^\s](?:[^\t]*[^\s])?")


class Token(NamedTuple):
    """A word, its tag, and the span of the tag in the text of the file."""

    word: str
    tag: str
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class TokenTags(LabelKind):
    """The tags of sentences. The part of an address is a range of tokens."""

    sentences: tuple[tuple[Token, ...], ...]

    form: ClassVar[str] = "tokens"
    pattern: ClassVar[re.Pattern[str]] = re.compile(r"(\d{1,15}) (\d{1,6})")
    noun: ClassVar[str] = "tags"

    @cached_property
    def tokens(self) -> list[Token]:
        """All tokens, in order."""
        return [token for sentence in self.sentences for token in sentence]

    @cached_property
    def sentence_of(self) -> Ints:
        """(N,) the sentence of each token."""
        return np.repeat(np.arange(len(self.sentences)), [len(s) for s in self.sentences])

    def describe(self, data: Dataset, name: Callable[[str], str] = str) -> str:
        types = {type_of(token.tag) for token in self.tokens} - {OUTSIDE}
        return f"{len(self.tokens):,} tokens, {len(types)} kinds of tags"

    @classmethod
    def read(cls, data: Any, labels: Any, options: Mapping[str, Any], other: Reader) -> Dataset:
        if labels is None and isinstance(data, (str, Path)) and is_tokens(Path(data)):
            odd = [name for name, value in options.items() if value is not None and name != "encoding"]
            if odd:
                raise InputError(f"{odd[0]} is not an option for tagged tokens; {data} is read as tokens and tags.")
            return read_tokens(data, **options)
        if isinstance(data, (list, tuple)) and len(data) and all(isinstance(item, (list, tuple)) for item in data):
            if labels is None:
                raise InputError("sentences have no tags of their own; pass them too: audit(words, tags).")
            return of_lists(data, labels)
        return other(data, labels, options)

    def audit(self, data: Dataset, judging: Judging) -> Findings:
        kept, classes, given, verdict, weights, notes, *_ = self.judge(judging.seed, judging.progress, judging.run)
        groups, worst = self._groups(np.flatnonzero(kept), given, verdict)
        return group_findings(
            groups,
            index=np.array([group.address.part.start for group in groups], np.int64),
            classes=classes,
            evidence={name: values[worst] for name, values in verdict.evidence(given[kept]).items()},
            noise_rate=verdict.share,
            probabilities=np.exp(verdict.log_q)[worst].astype(np.float32),
            provenance=provenance_of(verdict, given[kept], judging.seed, weights),
            notes=(*notes, *unused_encoder(judging.encoder, "tokens")),
            data=data,
        )

    def judge(self, seed: int = 0, progress: Progress | None = None, run: Execution = LOCAL) -> Judged:
        """Judges the type of each token."""
        types = np.array([type_of(token.tag) for token in self.tokens], dtype=object)
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
        view = View("words around", hashed_features(self.sentences, run))
        log_q, weights = cross_fit(view, np.where(kept, given, UNLABELED), folds, len(names), seed, progress)
        # Learned transitions assume that a tenth of all labels is wrong, more than most texts have entities: they are not used.
        verdict = judge(log_q[kept], given[kept])
        return Judged(kept, tuple(map(str, names)), given.astype(np.int64), verdict, weights, notes)

    def _groups(self, kept: Ints, given: Ints, verdict: Verdict) -> tuple[list[Group], Ints]:
        """Tokens of an entity, and neighbors with the same suggestion; and the most suspect token of each group, as a place in the verdict."""
        changed = suggestions(verdict)
        runs: list[list[int]] = []
        for k, token in enumerate(kept.tolist()):
            before = runs[-1][-1] if runs else -1
            prefix = prefix_of(self.tokens[token].tag)
            joins = (
                before >= 0
                and int(kept[before]) == token - 1
                and self.sentence_of[token] == self.sentence_of[token - 1]
                and given[token] == given[token - 1]
                and prefix not in BEGINNINGS
                and changed[k] == changed[before]
                and (changed[k] >= 0 or prefix != "")
            )
            if joins:
                runs[-1].append(k)
            else:
                runs.append([k])
        groups, worst = [], []
        for run in runs:
            p, odds = verdict.p_error[run], verdict.log_odds[run]
            # Suspect tokens count by their mean, tokens that look right by the most suspect one.
            combine = np.mean if changed[run[0]] >= 0 else np.max
            worst.append(run[int(p.argmax())])
            first = int(kept[run[0]])
            part = range(first, first + len(run))
            groups.append(
                Group(
                    Address(int(self.sentence_of[first]), part), " ".join(self.tokens[k].word for k in part), int(given[first]),
                    int(verdict.suggested[worst[-1]]), float(combine(odds)), float(combine(p)),
                )
            )  # fmt: skip
        return groups, np.array(worst)

    def show(self, content: Content, audit: Audit, row: int) -> Content:
        """The sentence with its tags; the judged words are marked."""
        sentence, part = audit.addresses[row]
        start = int(np.searchsorted(self.sentence_of, sentence))
        tokens = tuple((token.word, token.tag) for token in self.sentences[sentence])
        return replace(content, text=None, tokens=tokens, marked=(part.start - start, part.stop - start))

    @classmethod
    def address_columns(cls, addresses: Sequence[Address]) -> dict[str, list[Any]]:
        return {"token": [a.part.start for a in addresses], "tokens": [len(a.part) for a in addresses]}

    @classmethod
    def format(cls, address: Address) -> str:
        return f"{cls.form} {address.part.start} {len(address.part)}"

    @classmethod
    def address(cls, match: re.Match[str], row: int) -> Address:
        return Address(row, range(int(match[1]), int(match[1]) + int(match[2])))

    @classmethod
    def write_back(
        cls, data: Path, decided: Sequence[Correction], out: Path, reading: Reading, *, rematch: bool = False
    ) -> Applied:
        editor = TextEditor(data, reading.encoding)
        sentences = parse_tokens(editor.text, data)
        tokens = [token for sentence in sentences for token in sentence]
        types = [type_of(token.tag) for token in tokens]
        new = list(types)
        for c in decided:
            part = cls.parse(c.part).part
            if part.stop > len(tokens) or not len(part):
                raise InputError(f'a correction is about "{c.part}", and {data} has the tokens 0 to {len(tokens) - 1}.')
            check_given(data, c, " and ".join(sorted(set(types[part.start : part.stop]))))
            if c.changes:
                if re.search(r"\s", c.label.strip()):
                    raise InputError(f'"{c.label[:40]}" holds a blank, which no tag may have.')
                new[part.start : part.stop] = [c.label.strip()] * len(part)
        known, scheme, at = {token.tag for token in tokens}, Scheme.of(sentences), 0
        for sentence in sentences:
            here, tags = slice(at, at + len(sentence)), [token.tag for token in sentence]
            before, after = (scheme.write(some[here], tags, types[here]) for some in (types, new))
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
        editor.write(out)
        return applied(out, decided, len(tokens), sum(c.changes for c in decided))


# --- tags and features ----------------------------------------------------------------------------------------


def type_of(tag: str) -> str:
    """A tag without its prefix.

    >>> type_of("B-location"), type_of("O"), type_of("NOUN")
    ('location', 'O', 'NOUN')
    """
    match = _PREFIX.fullmatch(tag)
    return match[2] if match else tag


def prefix_of(tag: str) -> str:
    """The prefix of a tag, if it has one."""
    match = _PREFIX.fullmatch(tag)
    return match[1] if match else ""


@dataclass(frozen=True)
class Scheme:
    """The prefixes of a first, an inner, a last and a single token of an entity; empty if tags have none."""

    first: str = ""
    inner: str = ""
    last: str = ""
    single: str = ""

    @staticmethod
    def of(sentences: Sequence[Sequence[Token]]) -> Scheme:
        """The scheme of a file, by the prefixes of its tags.

        >>> Scheme.of([[Token("a", "B-x"), Token("b", "I-x")]])
        Scheme(first='B', inner='I', last='I', single='B')
        """
        prefixes = {prefix_of(token.tag) for sentence in sentences for token in sentence} - {""}
        if not prefixes:
            return Scheme()
        if prefixes & {"S", "E"}:
            return Scheme("B", "M" if "M" in prefixes else "I", "E", "S")
        return Scheme("B", "I", "L", "U") if prefixes & {"U", "L"} else Scheme("B", "I", "I", "B")

    def write(self, types: Sequence[str], tags: Sequence[str], before: Sequence[str]) -> list[str]:
        """Tags of these types: a token with a new type joins the entity to its left, and other beginnings stay."""
        if not self.first:
            return list(types)
        begins = [
            k == 0 or types[k - 1] != kind or (before[k] == kind and prefix_of(tags[k]) in BEGINNINGS)
            for k, kind in enumerate(types)
        ] + [True]
        written = []
        for k, kind in enumerate(types):
            ends = begins[k + 1]
            sign = (self.single if ends else self.first) if begins[k] else (self.last if ends else self.inner)
            written.append(OUTSIDE if kind == OUTSIDE else f"{sign}-{kind}")
        return written


def hashed_features(sentences: Sequence[Sequence[Token]], run: Execution = LOCAL) -> Any:
    """(N, D) sparse features of all tokens, computed in chunks of sentences."""
    chunks = [sentences[start : start + CHUNK] for start in range(0, len(sentences), CHUNK)]
    x = sp.vstack(list(run.map(_hashed_chunk, chunks)), format="csr")
    return x[:, np.flatnonzero(x.getnnz(0) >= MIN_OCCURRENCES)]


def _hashed_chunk(sentences: Sequence[Sequence[Token]]) -> Any:
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

    >>> shape("Paris"), shape("iPhone5"), shape("@user"), shape("1,000")
    ('Xx', 'xXx0', '@x', '0,0')
    """
    signs = ["x" if c.islower() else "X" if c.isupper() else "0" if c.isdigit() else c for c in word[:20]]
    return "".join([*signs[:1], *(b for a, b in pairwise(signs) if a != b)])


# --- reading --------------------------------------------------------------------------------------------------


def is_tokens(path: Path) -> bool:
    """Whether a file holds tagged tokens: by its name, or by the lists in its first line."""
    if not path.is_file() or table_format(path) not in (*SUFFIXES, *LINES):
        return False
    if table_format(path) in SUFFIXES:
        return True
    first = next((line for line in read_lines(path) if line.strip()), b"null")
    try:
        return _keys(json.loads(first)) is not None
    except (ValueError, RecursionError):
        return False  # the reader of tables reports it


def _keys(row: Any) -> tuple[str, str] | None:
    """The keys of the words and of the tags in a row."""
    if not isinstance(row, dict):
        return None
    words, tags = (
        next((key for key in keys if isinstance(row.get(key), list)), None) for keys in (WORD_KEYS, TAG_KEYS)
    )
    return None if words is None or tags is None else (words, tags)


def read_tokens(path: str | Path, *, encoding: str = "utf-8") -> Dataset:
    """Tagged sentences of a CoNLL or JSONL file."""
    path = Path(path)
    text = decode(read_bytes(path, lines=True), path, encoding)
    # A token on each line; in JSONL, a comma after each word and after each tag.
    check_size(max(text.count("\n"), text.count(",") // 2), 1, path, each=TOKEN_BYTES)
    return of_sentences(parse_tokens(text, path), str(path))


def of_sentences(sentences: Sequence[Sequence[Token]], where: str) -> Dataset:
    """Tagged sentences as data to audit."""
    if not any(sentences):
        raise InputError(f"{where} holds no token; expected a word and its tag on each line, or two lists in each row.")
    texts = np.empty(len(sentences), dtype=object)
    texts[:] = [" ".join(token.word for token in sentence) for sentence in sentences]
    tags = TokenTags(tuple(map(tuple, sentences)))
    return Dataset(texts, np.zeros(len(texts), np.int64), ("tags",), raw=texts, source=Source(kind="text"), parts=tags)


def of_lists(words: Sequence[Sequence[str]], tags: Sequence[Sequence[Any]]) -> Dataset:
    """Tagged sentences from two lists of lists."""
    if len(words) != len(tags):
        raise InputError(
            f"there are {len(words)} sentences, and tags for {len(tags)}; expected a list of tags for each."
        )
    for k, (some, their) in enumerate(zip(words, tags, strict=True)):
        if len(some) != len(their):
            raise InputError(f"sentence {k} has {len(some)} tokens and {len(their)} tags; expected one each.")
    pairs = (zip(some, their, strict=True) for some, their in zip(words, tags, strict=True))
    return of_sentences([[Token(str(word), str(tag)) for word, tag in pair] for pair in pairs], "the list")


def parse_tokens(text: str, path: Path) -> list[list[Token]]:
    """The sentences in the text of a file."""
    return _jsonl(text, path) if table_format(path) in LINES else _conll(text, path)


def _conll(text: str, where: Path) -> list[list[Token]]:
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


def _jsonl(text: str, where: Path) -> list[list[Token]]:
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
