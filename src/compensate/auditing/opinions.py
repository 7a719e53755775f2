"""Second opinions: predictions of the classes that were made without the labels.

An opinion is a description of each class, which is compared with the samples by the text encoder, or a file with labels or probabilities by a
language model, rules or another annotator. It is (N, C) log probabilities; a row of zeros has no opinion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compensate.auditing.features import FeatureViews, Words
from compensate.auditing.learners import View
from compensate.auditing.noise_model import normalized
from compensate.data.dataset import UNLABELED, Dataset, Floats, Ints
from compensate.data.label_files import read_labels
from compensate.data.labels import encode_labels
from compensate.data.tables import is_table, read_frame
from compensate.errors import InputError, nearest
from compensate.files import read_array, read_text

SURE = 3.0  # log odds of a label without a probability; the pool rescales them
SMALLEST = 1e-6  # probability


def described(
    descriptions: Mapping[str, str] | str | Path,
    classes: Sequence[str],
    features: FeatureViews,
    chunks: Iterable[Sequence[View]],
    device: Any = None,
) -> Floats:
    """(N, C) similarities of samples to a description of each class, with mean 0 for each sample and class, and variance 1.

    The views of ``chunks`` are those of ``features``, of all rows in their order.
    """
    said = descriptions if isinstance(descriptions, Mapping) else read_descriptions(descriptions)
    missing = [name for name in classes if name not in said]
    if missing:
        raise InputError(
            f'there is no description of the class "{missing[0][:40]}"; give a sentence for each class: {", ".join(classes)[:200]}.'
        )
    texts = [str(said[name]) for name in classes]
    words = next((maker for maker in features.makers if isinstance(maker, Words)), None)
    if features.encoder is not None:
        from compensate.encoders import encode

        encoded = encode(texts, features.encoder.encoder, "text", device=device)
        if encoded is None or encoded.values.shape[1] != features.encoder.width:
            raise InputError(
                f"{features.encoder.name} does not encode descriptions; choose an encoder of texts, or a CLIP model."
            )
        place, axes = features.makers.index(features.encoder), encoded.values.T
    elif words is not None:
        place, axes = features.makers.index(words), words.vectorizer.transform(texts).T.toarray()
    else:
        raise InputError(
            "descriptions of classes need texts, or images and a CLIP encoder; for other data give an opinion (--opinion)."
        )
    similar = np.concatenate([views[place].x @ axes for views in chunks])
    centered = similar - similar.mean(1, keepdims=True)
    centered -= centered.mean(0)
    return np.asarray(centered / max(float(centered.std()), SMALLEST), np.float64)


def read_descriptions(path: str | Path) -> dict[str, str]:
    r"""Descriptions by class: a YAML file of lines ``class: sentence``, JSON, or a table whose first two columns are class and sentence.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "classes.yaml"
    >>> _ = file.write_text("# two classes\ncat: a small animal\n  that purrs\ndog: 'it barks'\n")
    >>> read_descriptions(file)
    {'cat': 'a small animal that purrs', 'dog': 'it barks'}
    """
    path = Path(path)
    if is_table(path) and path.suffix.lower() not in (".json", ".jsonl"):
        frame = read_frame(path)
        if frame.shape[1] < 2:
            raise InputError(f"{path} has one column; expected two: the class, and a sentence about it.")
        return dict(zip(frame.iloc[:, 0].astype(str).str.strip(), frame.iloc[:, 1].astype(str), strict=True))
    text = read_text(path)
    found: dict[str, str] = {}
    if path.suffix.lower() == ".json":
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path} is not JSON ({error}).") from error
    else:
        name = ""
        for line in (line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")):
            match = re.fullmatch(r"(?:\"([^\"]*)\"|'([^']*)'|([^\s:][^:]*))\s*:\s*(.*)", line)
            if match is not None:
                name = (match[1] or match[2] or match[3] or "").strip()
                found[name] = "" if match[4] in (">", "|", ">-", "|-") else match[4].strip("'\"")
            elif name and line[0] in " \t":
                found[name] = f"{found[name]} {line.strip()}".strip().strip("'\"")
            else:
                raise InputError(
                    f'{path} has the line "{line[:60]}"; expected lines such as "cat: a small animal that purrs".'
                )
    if not isinstance(found, dict) or not found or not all(isinstance(one, str) and one for one in found.values()):
        raise InputError(
            f'{path} does not have a sentence for each class; expected lines such as "cat: a small animal".'
        )
    return found


def opinion_of(given: ArrayLike | str | Path, data: Dataset) -> Floats:
    """(N, C) log probabilities of a given opinion: a file or array of labels (N,) or probabilities (N, C).

    The columns of probabilities are the classes in their order, or named in the header of a table. Missing labels have no opinion.
    """
    cells: NDArray[Any]
    if isinstance(given, (str, Path)):
        path = Path(given)
        frame = read_frame(path) if is_table(path) else None
        if frame is not None and set(data.classes) <= set(frame.columns):
            cells = frame[list(data.classes)].to_numpy(np.float64)
        else:
            cells = read_array(path) if path.suffix == ".npy" else read_labels(path).cells
    else:
        cells = np.asarray(given)
    if len(cells) == data.rows:
        cells = cells[data.index]
    if len(cells) != len(data):
        raise InputError(
            f"the opinion has {len(cells):,} rows, and the data has {data.rows:,}; give one for each row, in their order."
        )
    if cells.ndim == 2:
        p = cells.astype(np.float64)
        if p.shape[1] != data.num_classes or (p < 0).any() or not np.isfinite(p).all():
            raise InputError(
                f"the opinion has shape {p.shape}; expected probabilities of {data.num_classes} classes ({', '.join(data.classes)[:200]})."
            )
        total = p.sum(1, keepdims=True)
        p = np.where(total > 0, p / np.maximum(total, SMALLEST), 1 / data.num_classes)
        return np.where(total > 0, np.log(np.maximum(p, SMALLEST)), 0.0)
    return _of_labels(cells, data.classes)


def _of_labels(cells: NDArray[Any], classes: Sequence[str]) -> Floats:
    """(N, C) log odds of labels: `SURE` for the named class."""
    if cells.dtype.kind in "iu":
        numbers = cells.astype(np.int64)
        if set(map(str, np.unique(numbers[numbers >= 0]))) <= set(classes):
            numbers = np.array([classes.index(str(n)) if n >= 0 else UNLABELED for n in numbers])
    else:
        numbers, names = encode_labels(cells)
        odd = [name for name in names if name not in classes]
        if odd:
            raise InputError(
                f'the opinion names the class "{odd[0][:40]}", which the data does not have; {nearest(odd[0], classes)}'
            )
        place = np.array([classes.index(name) for name in names] + [UNLABELED])
        numbers = place[numbers]
    if numbers.max(initial=0) >= len(classes):
        raise InputError(
            f"the opinion has the class number {numbers.max()}; there are {len(classes)} classes, counted from 0."
        )
    odds = np.zeros((len(numbers), len(classes)))
    known = np.flatnonzero(numbers >= 0)
    odds[known, numbers[known]] = SURE
    return odds


def second_opinion(log_q: Floats, opinion: Floats, labels: Ints) -> tuple[Floats, float]:
    """(N, C) predictions multiplied by an opinion that was made without the labels, and the weight of the opinion.

    Learners that saw the labels predict their systematic errors too, so a log loss would give the opinion hardly any weight. Its weight is
    the square of the information about the given labels that it has by itself, as a share of that of the learners: about zero for a poor
    opinion. Without the square, bare class names cost .016 of average precision on SST-2.

    >>> log_q = np.log([[0.9, 0.1], [0.1, 0.9]])
    >>> second_opinion(log_q, log_q, np.array([0, 1]))[1], second_opinion(log_q, log_q[::-1], np.array([0, 1]))[1]
    (1.0, 0.0)
    """
    rows = np.flatnonzero(labels >= 0)
    frequency = np.bincount(labels[rows], minlength=log_q.shape[1]) / len(rows)
    by_chance = np.log(frequency[labels[rows]]).mean()
    known, own = (float(one[rows, labels[rows]].mean() - by_chance) for one in (log_q, opinion))
    weight = float(np.clip(own / max(known, SMALLEST), 0, 1)) ** 2
    return normalized(log_q + weight * opinion), weight
