"""Label cells: which of them are missing, and the class that each of the others names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compensate.data.dataset import UNLABELED
from compensate.errors import InputError, nearest

MAX_LABEL_LENGTH = 10_000  # Characters of a class name. A longer text is not a class.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "<na>"})  # cells, in lower case, that stand for a missing value
# Members of `MISSING` that may also name a class: Namibia, North America, "not applicable"
NOT_APPLICABLE = frozenset({"na", "n/a"})


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN or one of `MISSING`."""
    return has_no_label(value) or str(value).strip().lower() in MISSING


def is_number(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def is_quantity(cells: NDArray[Any]) -> bool:
    """Whether labels in an array are quantities: floats, some with a fractional part."""
    return cells.dtype.kind == "f" and bool((np.mod(cells[np.isfinite(cells)], 1) != 0).any())


def has_no_label(cell: Any, missing: frozenset[str] = frozenset()) -> bool:
    """Whether a cell of a label column is None, NaN, or one of the texts in ``missing``."""
    if cell is None or (isinstance(cell, (float, np.floating)) and np.isnan(cell)):
        return True
    return bool(missing) and str(cell).strip() in missing


def missing_labels(
    cells: Sequence[Any] | NDArray[Any], given: Sequence[str] | None = None, classes: Sequence[str] | None = None
) -> frozenset[str]:
    """The texts that stand for a missing label among the cells of a label column.

    These are the cells in `MISSING` that are not in ``classes``. A single "NA" or "N/A" counts as a class if other cells are empty, or if
    all other labels are codes of two or three letters, such as countries. ``given`` overrides the rule; an empty cell is always missing.

    >>> sorted(missing_labels(["cat", "NA"])), sorted(missing_labels(["cat", "NA", ""])), sorted(missing_labels(["DE", "NA", "FR"]))
    (['NA'], [''], [])
    """
    if given is not None:
        return frozenset({"", *(text.strip() for text in given)})
    texts = {str(cell).strip() for cell in cells if not has_no_label(cell)}
    missing = {text for text in texts if text.lower() in MISSING} - {name.strip() for name in classes or ()}
    named, others = {text for text in missing if text.lower() in NOT_APPLICABLE}, texts - missing
    if classes is None and len(named) == 1 and others and not all(map(is_number, others)):
        code = "[A-Z]{2,3}" if next(iter(named)).isupper() else "[a-z]{2}"
        answers = {label.lower() for label in others} & {"yes", "no", "ok"}
        if any(map(has_no_label, cells)) or "" in texts or (all(re.fullmatch(code, t) for t in others) and not answers):
            missing -= named
    return frozenset(missing)


def encode_labels(
    values: Sequence[Any] | NDArray[Any], classes: Sequence[str] | None = None, missing: Sequence[str] | None = None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class numbers and class names of label cells; a missing label (see `missing_labels`) is `UNLABELED`.

    The classes are sorted, by value if all are numbers, unless ``classes`` is given; then all cells are names of these classes, or all are
    class numbers. Blanks around a name are ignored. Tabs and line ends around it are kept only if every cell of the class has them.

    >>> encode_labels(["dog", "cat", "", "dog"])
    (array([ 1,  0, -1,  1]), ('cat', 'dog'))
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and classes is None and missing is None:
        distinct, positions = np.unique(values, return_inverse=True)  # millions of rows, few classes
        numbers, names = encode_labels(distinct.tolist())
        return numbers[positions], names
    check_lengths(values)
    texts = missing_labels(values, missing, classes)
    cells = [None if has_no_label(value, texts) else label_name(value) for value in values]
    spellings: dict[str, set[str]] = {}
    for cell in cells:
        if cell is not None:
            spellings.setdefault(cell.strip(), set()).add(cell)
    name_of = {bare: next(iter(found)) if len(found) == 1 else bare for bare, found in spellings.items()}
    if classes is None:
        names = tuple(sorted(set(name_of.values())))
        if all(map(is_number, names)):
            names = tuple(sorted(names, key=float))
    else:
        names = tuple(classes)
        name_of = {bare: name if name in names else bare for bare, name in name_of.items()}
    number_of = {name: i for i, name in enumerate(names)}
    present = set(name_of.values())
    if not present <= number_of.keys() and present <= {str(i) for i in range(len(names))}:
        number_of = {str(i): i for i in range(len(names))}  # all cells or none: "1" among the classes 1 and 3 is a name
    target = np.full(len(cells), UNLABELED, dtype=np.int64)
    for row, cell in enumerate(cells):
        if cell is not None:
            name = name_of[cell.strip()]
            if name not in number_of:
                raise InputError(f'the label "{name[:80]}" of row {row} is not a known class; {nearest(name, names)}')
            target[row] = number_of[name]
    return target, names


def check_lengths(cells: Sequence[Any] | NDArray[Any]) -> None:
    """Raise for a label that is longer than `MAX_LABEL_LENGTH`."""
    for row, cell in enumerate(cells):
        if isinstance(cell, (str, bytes)) and len(cell) > MAX_LABEL_LENGTH:
            found = f"the label of row {row} has {len(cell):,} characters"
            raise InputError(f"{found}; a class has {MAX_LABEL_LENGTH:,} at most. Check which column holds the labels.")


def label_name(value: Any) -> str:
    """The class name of a label cell: without blanks around it; whole numbers without a decimal point."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    return str(value).strip(" ")
