"""Sentences with a tag for each word: which tags look wrong.

Every token is judged by models that did not learn from its sentence. They see the words around it, their shapes and the token's beginning and
end, hashed. What is judged is the type of an entity; where one begins (``B-``, ``I-`` and so on) follows from it. Neighboring tokens that
look wrong in the same way are one suspect.

Files are CoNLL (a token a line, its tag in the last column, an empty line between sentences) or JSONL with two lists a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from compensate.auditing.execution import LOCAL, Execution
from compensate.auditing.labels.base import check_given, part_of
from compensate.auditing.labels.sets import list_pieces, write_edits
from compensate.auditing.learners import FOLDS, Steps, View, assign_folds, content_keys, judge_view, steps_of
from compensate.auditing.noise_model import Verdict, judge, pool, shares
from compensate.auditing.result import Provenance, build_audit
from compensate.data.dataset import UNLABELED, Dataset, Ints, Source
from compensate.errors import InputError

if TYPE_CHECKING:
    from compensate.auditing.decisions import Correction
    from compensate.auditing.page.model import Content
    from compensate.auditing.result import Audit

SUFFIXES = (".conll", ".conll2003", ".conll03", ".iob", ".iob2", ".bio", ".bioes")
"""Of files with a token a line."""

WORD_KEYS, TAG_KEYS = ("tokens", "words"), ("tags", "ner_tags", "labels", "pos_tags", "pos")
"""Of the lists in a JSONL file."""

OUTSIDE = "O"
CHUNK = 20_000
"""Sentences whose features are computed at once."""

HASHED, SEEN = 1 << 18, 3
"""Columns that features are hashed to, and the tokens that a column must occur in: of fewer, hardly any model learns something about others."""

FEWEST = 20
"""Tokens without which there is nothing to learn from."""

CHANGED = 0.5
"""Neighbors that are wrong with at least this probability, and all in the same way, are one suspect."""

_PREFIX = re.compile("([BIESLUM])-(.+)", re.DOTALL)
_FIELD = re.compile(r"\S+")


TOKEN = 200
"""Bytes of a token with its word and tag in memory, at least."""


@dataclass(frozen=True)
class Token:
    """A word, its tag, and where the tag stands in the text of the file."""

    word: str
    tag: str
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class TokenTags:
    """The tags of sentences."""

    sentences: tuple[tuple[Token, ...], ...]

    @cached_property
    def tokens(self) -> list[Token]:
        """All of them, in order."""
        return [token for sentence in self.sentences for token in sentence]

    def described(self) -> str:
        """What was read, in a few words."""
        kinds = sorted({type_of(token.tag) for token in self.tokens} - {OUTSIDE})
        return f"{len(self.tokens):,} tokens, {len(kinds)} kinds of tags"

    def audit(self, data: Dataset, encoder: str | Path, *, seed: int, progress: Any, run: Any, **_: Any) -> Audit:
        """The audit of all tags."""
        from compensate.auditing.features import unused_encoder

        found = self.judged(seed, progress, run)
        kept, given, verdict, sentence = found.kept, found.given, found.verdict, self.sentence_of
        notes = (*found.notes, *unused_encoder(encoder, "tokens"))
        spans = self._spans(np.flatnonzero(kept), sentence, given, verdict)
        words = [token.word for token in self.tokens]
        q = np.exp(verdict.log_q)
        place = {int(token): k for k, token in enumerate(np.flatnonzero(kept))}
        rows = np.array([place[span.worst] for span in spans])
        tags = np.array([given[span.first] for span in spans], np.int64)
        return build_audit(
            data,
            data.source,
            labels="tags",
            classes=found.classes,
            index=np.array([span.first for span in spans], np.int64),
            given=tags,
            suggested=verdict.suggested[rows],
            log_odds=np.array([span.score for span in spans]),
            p_error=np.array([span.p_error for span in spans]),
            evidence={name: values[rows] for name, values in verdict.evidence(given[kept]).items()},
            noise_rate=verdict.share,
            ids=tuple(" ".join(words[span.first : span.first + span.count]) for span in spans),
            probabilities=q[rows].astype(np.float32),
            provenance=Provenance(
                seed=seed, folds=FOLDS, views=found.weights,
                agreement=float((verdict.log_q.argmax(1) == given[kept]).mean()), by_chance=verdict.by_chance,
            ),
            notes=notes,
            parts=tuple(f"tokens {span.first} {span.count}" for span in spans),
            sample=sentence[[span.first for span in spans]],
        )  # fmt: skip

    @cached_property
    def sentence_of(self) -> Ints:
        """(N,) the sentence of each token."""
        return np.repeat(np.arange(len(self.sentences)), [len(s) for s in self.sentences])

    def judged(self, seed: int = 0, progress: Any = None, run: Execution = LOCAL) -> JudgedTags:
        """The verdict on the type of each token."""
        kept, classes, given, notes = self._checked()
        view = View("words around", hashed(self.sentences, run))
        keys = content_keys([" ".join(token.word for token in s) for s in self.sentences])
        folds = assign_folds(np.zeros(len(self.sentences), np.int64), keys, seed=seed)[self.sentence_of]
        labels = np.where(kept, given, UNLABELED)
        steps = Steps(progress, steps_of(view, FOLDS))
        found = judge_view(view, labels, folds, FOLDS, len(classes), seed=seed, steps=steps)
        log_q, weights = pool(found.log_p, labels)
        # The learned transitions are of a tenth of all labels wrong, more than there are entities in most texts: no direction is taken from them.
        verdict = judge(log_q[kept], given[kept])
        return JudgedTags(
            kept,
            classes,
            given,
            verdict,
            {f"{view.name}: {name}": weight for name, weight in shares(weights).items()},
            notes,
        )

    def _checked(self) -> tuple[NDArray[np.bool_], tuple[str, ...], Ints, tuple[str, ...]]:
        """Which tokens can be judged, the types, (N,) the type of each, and a note on the others."""
        types = [type_of(token.tag) for token in self.tokens]
        names, given, counts = np.unique(np.array(types, dtype=object), return_inverse=True, return_counts=True)
        rare = counts < 2
        kept = ~rare[given]
        if kept.sum() < FEWEST or (~rare).sum() < 2:
            raise InputError(
                f"{int(kept.sum())} tokens have a tag that can be checked, of {int((~rare).sum())} kinds; an audit needs {FEWEST} or "
                "more, of two kinds. Check that tags stand in the last column."
            )
        shown = ", ".join(f'"{name[:40]}"' for name in names[rare][:5])
        notes = (f"The only token with its tag cannot be checked and is left out: {shown}.",) if rare.any() else ()
        return kept, tuple(str(name) for name in names), given.astype(np.int64), notes

    def _spans(self, kept: Ints, sentence: Ints, given: Ints, verdict: Verdict) -> list[Span]:
        """Tokens in groups: those of an entity, or next to each other, that are judged alike."""
        begins = [prefix_of(token.tag) in ("B", "S", "U") for token in self.tokens]
        changed = np.where(verdict.p_error >= CHANGED, verdict.suggested, -1)
        groups: list[list[int]] = []
        for k, token in enumerate(kept.tolist()):
            before = groups[-1][-1] if groups else -1
            joins = (
                before >= 0
                and int(kept[before]) == token - 1
                and sentence[token] == sentence[token - 1]
                and given[token] == given[token - 1]
                and not begins[token]
                and changed[k] == changed[before]
                and (changed[k] >= 0 or prefix_of(self.tokens[token].tag) != "")
            )
            if joins:
                groups[-1].append(k)
            else:
                groups.append([k])
        return [_span(group, kept, changed, verdict) for group in groups]

    def shown(self, content: Content, audit: Audit, row: int) -> Content:
        """The sentence with its tags, the judged words marked."""
        assert audit.sample is not None
        place = int(audit.sample[row])
        start = int(audit.index[row]) - sum(len(s) for s in self.sentences[:place])
        count = int(part_of(audit.parts[row])[2])
        return replace(
            content,
            text=None,
            tokens=tuple((token.word, token.tag) for token in self.sentences[place]),
            marked=(start, start + count),
        )


@dataclass(frozen=True, eq=False)
class JudgedTags:
    """What is known of each tag.

    Attributes:
        kept: (N,) which tokens are judged; the verdict is on them alone.
        classes: the types.
        given: (N,) the type of each token.
        verdict, weights, notes: of the noise model, of the learners, and on tokens that are left out.
    """

    kept: NDArray[np.bool_]
    classes: tuple[str, ...]
    given: Ints
    verdict: Verdict
    weights: dict[str, float]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """Tokens that are judged together: the first, how many, the most suspect one, and how suspect they are."""

    first: int
    count: int
    worst: int
    score: float
    p_error: float


def _span(group: list[int], kept: Ints, changed: Ints, verdict: Verdict) -> Span:
    p, odds = verdict.p_error[group], verdict.log_odds[group]
    # Tokens of a suspect share its fate; of tokens that look right, the one that looks least so.
    alike = changed[group[0]] >= 0
    worst = int(kept[group[int(p.argmax())]])
    first = int(kept[group[0]])
    return Span(
        first, len(group), worst, float(odds.mean() if alike else odds.max()), float(p.mean() if alike else p.max())
    )


# --- tags and features ----------------------------------------------------------------------------------------


def type_of(tag: str) -> str:
    """What a tag says without where it begins.

    >>> type_of("B-location"), type_of("O"), type_of("NOUN")
    ('location', 'O', 'NOUN')
    """
    found = _PREFIX.fullmatch(tag)
    return found[2] if found else tag


def prefix_of(tag: str) -> str:
    """The prefix of a tag, if it has one."""
    found = _PREFIX.fullmatch(tag)
    return found[1] if found else ""


def hashed(sentences: Sequence[Sequence[Token]], run: Execution = LOCAL) -> Any:
    """(N, D) sparse features of all tokens, computed in chunks of sentences."""
    chunks = [sentences[start : start + CHUNK] for start in range(0, len(sentences), CHUNK)]
    x = sp.vstack(list(run.map(_hashed_chunk, chunks)), format="csr")
    return x[:, np.flatnonzero(x.getnnz(0) >= SEEN)]


def _hashed_chunk(sentences: Sequence[Sequence[Token]]) -> Any:
    from sklearn.feature_extraction import FeatureHasher

    hasher = FeatureHasher(HASHED, input_type="string", alternate_sign=False, dtype=np.float32)
    return hasher.transform(f for sentence in sentences for f in _features([token.word for token in sentence]))


def _features(words: list[str]) -> Iterator[list[str]]:
    low = ["<s>", "<s>", *(word.lower()[:40] for word in words), "</s>", "</s>"]
    shapes = ["<s>", "<s>", *map(shape, words), "</s>", "</s>"]
    for k in range(2, len(low) - 2):
        word = low[k]
        found = ["bias", f"w={word}", f"s={shapes[k]}", f"s,w={shapes[k]},{word}"]
        found += [f"{d}w={low[k + d]}" for d in (-2, -1, 1, 2)]
        found += [f"{d}s={shapes[k + d]}" for d in (-2, -1, 1, 2)]
        found += [f"<{word[:n]}" for n in (1, 2, 3) if len(word) > n]
        found += [f">{word[-n:]}" for n in (1, 2, 3, 4) if len(word) > n]
        found += [f"ww={low[k - 1]} {word}", f"w+w={word} {low[k + 1]}"]
        found += [f"sss={shapes[k - 1]} {shapes[k]} {shapes[k + 1]}"]
        yield found


def shape(word: str) -> str:
    """The kinds of signs of a word, each once.

    >>> shape("Paris"), shape("iPhone5"), shape("@user"), shape("1,000")
    ('Xx', 'xXx0', '@x', '0,0')
    """
    signs = ["x" if c.islower() else "X" if c.isupper() else "0" if c.isdigit() else c for c in word[:20]]
    return "".join([*signs[:1], *(b for a, b in pairwise(signs) if a != b)])


# --- reading --------------------------------------------------------------------------------------------------


def is_tokens(path: Path) -> bool:
    """Whether a file holds tagged tokens: by its name, or by the lists in its first line."""
    from compensate.data.tables import LINES, table_format

    if not path.is_file():
        return False
    if table_format(path) in SUFFIXES:
        return True
    return table_format(path) in LINES and _keys(_first_row(path)) is not None


def _first_row(path: Path) -> Any:
    from compensate.files import read_lines

    for line in read_lines(path):
        if line.strip():
            try:
                return json.loads(line)
            except (ValueError, RecursionError):
                return None  # the reader of tables says what is wrong with it
    return None


def _keys(row: Any) -> tuple[str, str] | None:
    """The keys of the words and of the tags in a row."""
    if not isinstance(row, dict):
        return None
    words = next((key for key in WORD_KEYS if isinstance(row.get(key), list)), None)
    tags = next((key for key in TAG_KEYS if isinstance(row.get(key), list)), None)
    return None if words is None or tags is None else (words, tags)


def read_tokens(path: str | Path, *, encoding: str = "utf-8") -> Dataset:
    """Tagged sentences of a CoNLL or JSONL file."""
    from compensate.data.tables import LINES, table_format
    from compensate.files import check_size, decode, read_bytes

    path = Path(path)
    text = decode(read_bytes(path, lines=True), path, encoding)
    # A token on each line; in JSONL, a comma after each word and after each tag.
    check_size(max(text.count("\n"), text.count(",") // 2), 1, path, each=TOKEN)
    found = _jsonl(text, path) if table_format(path) in LINES else _conll(text, path)
    return of_sentences(found, str(path))


def of_sentences(sentences: Sequence[Sequence[Token]], where: str) -> Dataset:
    """Tagged sentences as data to audit."""
    kept = tuple(tuple(sentence) for sentence in sentences)
    if not any(kept):
        raise InputError(f"{where} holds no token; expected a word and its tag on each line, or two lists in each row.")
    texts = np.array([" ".join(token.word for token in sentence) for sentence in kept] + [None], dtype=object)[:-1]
    tags = TokenTags(kept)
    return Dataset(texts, np.zeros(len(kept), np.int64), ("tags",), raw=texts, source=Source(kind="text"), parts=tags)


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


def _conll(text: str, where: Path) -> list[list[Token]]:
    sentences: list[list[Token]] = [[]]
    at = 0
    for number, line in enumerate(text.split("\n"), 1):
        fields = [(found.start(), found.end()) for found in _FIELD.finditer(line)]
        if "\t" in line and fields:
            fields = _tabbed(line)
        if not fields:
            sentences.append([])
        elif len(fields) < 2:
            raise InputError(
                f'{where}, line {number}, says "{line.strip()[:40]}"; expected a token, at least one blank or tab, and its tag in the last '
                "column."
            )
        else:
            (a, b), (c, d) = fields[0], fields[-1]
            sentences[-1].append(Token(line[a:b], line[c:d], (at + c, at + d)))
        at += len(line) + 1
    return [sentence for sentence in sentences if sentence]


def _tabbed(line: str) -> list[tuple[int, int]]:
    """The columns of a line with tabs: a token may then hold blanks."""
    found, at = [], 0
    for cell in line.rstrip("\r").split("\t"):
        core = cell.strip()
        lead = len(cell) - len(cell.lstrip())
        if core:
            found.append((at + lead, at + lead + len(core)))
        at += len(cell) + 1
    return found


def _jsonl(text: str, where: Path) -> list[list[Token]]:
    from compensate.data.jsonl import objects

    sentences: list[list[Token]] = []
    for number, members in enumerate(objects(text, where)):
        row = {key: value for key, value, _ in members}
        keys = _keys(row)
        if keys is None:
            raise InputError(
                f"{where}, row {number}, has no lists of words ({' or '.join(WORD_KEYS)}) and tags ({', '.join(TAG_KEYS)}), as other rows "
                "have."
            )
        words, tags = row[keys[0]], row[keys[1]]
        if len(words) != len(tags):
            raise InputError(f"{where}, row {number}, has {len(words)} words and {len(tags)} tags; expected one each.")
        odd = [item for item in (*words, *tags) if not isinstance(item, (str, int))]
        if odd:
            raise InputError(f'{where}, row {number}, holds "{str(odd[0])[:40]}"; expected words and tags as texts.')
        start = next(span[0] for key, _, span in reversed(members) if key == keys[1])
        end = next(span[1] for key, _, span in reversed(members) if key == keys[1])
        spans = [(start + a, start + b) for a, b in list_pieces(text[start:end])]
        sentences.append([Token(str(w), str(t), s) for w, t, s in zip(words, tags, spans, strict=True)])
    return sentences


# --- writing --------------------------------------------------------------------------------------------------


def apply_tags(data: Path, decided: Sequence[Correction], out: Path, encoding: str) -> tuple[int, int]:
    """Writes the file with the decided tags changed; the number of tokens, and of decisions that changed some."""
    from compensate.auditing.write_back import exact_text
    from compensate.data.tables import LINES, table_format

    mark, text = exact_text(data, encoding)
    lines = table_format(data) in LINES
    sentences = _jsonl(text, data) if lines else _conll(text, data)
    tokens = [token for sentence in sentences for token in sentence]
    types = [type_of(token.tag) for token in tokens]
    new = list(types)
    known = {token.tag for token in tokens}
    for c in decided:
        _, start, count = part_of(c.part)
        first, last = int(start), int(start) + int(count)
        if last > len(tokens) or first == last:
            raise InputError(f'a correction is about "{c.part}", and {data} has the tokens 0 to {len(tokens) - 1}.')
        held = sorted(set(types[first:last]))
        check_given(data, c, " and ".join(held))
        if c.changes:
            if re.search(r"\s", c.label.strip()):
                raise InputError(f'"{c.label[:40]}" holds a blank, which no tag may have.')
            new[first:last] = [c.label.strip()] * (last - first)
    edits: list[tuple[int, int, str]] = []
    at = 0
    scheme = Scheme.of(sentences)
    for sentence in sentences:
        here = slice(at, at + len(sentence))
        before = scheme.write(types[here], [token.tag for token in sentence], types[here])
        after = scheme.write(new[here], [token.tag for token in sentence], types[here])
        for token, old, tag in zip(sentence, before, after, strict=True):
            if old != tag:
                number = lines and not text[slice(*token.span)].startswith('"')
                edits.append((*token.span, json.dumps(tag, ensure_ascii=False) if lines and not number else tag))
        at += len(sentence)
    odd = next((tag for *_, tag in edits if lines and not tag.startswith('"') and tag not in known), None)
    if odd is not None:
        raise InputError(
            f'"{odd[:40]}" is no tag of {data}, whose tags are numbers; choose one of {", ".join(sorted(known)[:20])}.'
        )
    write_edits(out, mark, text, edits, encoding)
    return len(tokens), sum(c.changes for c in decided)


@dataclass(frozen=True)
class Scheme:
    """How tags say where an entity begins and ends: the signs of a first, an inner, a last and a single token; none if they do not."""

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
        found = {prefix_of(token.tag) for sentence in sentences for token in sentence} - {""}
        if not found:
            return Scheme()
        if found & {"S", "E"}:
            return Scheme("B", "M" if "M" in found else "I", "E", "S")
        if found & {"U", "L"}:
            return Scheme("B", "I", "L", "U")
        return Scheme("B", "I", "I", "B")

    def write(self, types: Sequence[str], tags: Sequence[str], before: Sequence[str]) -> list[str]:
        """Tags of these types; a token that had another type before joins the entity to its left, others begin one where they did."""
        if not self.first:
            return list(types)
        begins = [
            kind != OUTSIDE
            and (k == 0 or types[k - 1] != kind or (before[k] == kind and prefix_of(tags[k]) in ("B", "S", "U")))
            for k, kind in enumerate(types)
        ]
        found = []
        for k, kind in enumerate(types):
            if kind == OUTSIDE:
                found.append(OUTSIDE)
                continue
            ends = k + 1 == len(types) or types[k + 1] != kind or begins[k + 1]
            sign = (self.single if ends else self.first) if begins[k] else (self.last if ends else self.inner)
            found.append(f"{sign}-{kind}")
        return found
