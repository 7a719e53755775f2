"""Images small enough to hold thousands of them in one page."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from compensate.data.arrays import as_images
from compensate.errors import InputError

EXACT = 64
"""Up to this size every pixel is kept (PNG); larger images are photographs and may lose some (JPEG)."""


def thumbnail(image: NDArray[Any], largest: int = 160) -> bytes:
    """The bytes of an image for a `Content`, its longer side at most ``largest`` pixels.

    Args:
        image: (C, H, W) with 1, 3 or 4 channels, bytes or floats in [0, 1], as the data sets hold it.
        largest: pixels of the longer side; small images are not enlarged, the page does that with hard pixels.

    >>> thumbnail(np.zeros((1, 8, 8), np.uint8))[1:4], thumbnail(np.zeros((3, 300, 200)))[:3]
    (b'PNG', b'\\xff\\xd8\\xff')
    """
    from PIL import Image

    pixels = as_images(np.asarray(image)[None], "the image")[0]
    if pixels.dtype != np.uint8:
        pixels = np.round(pixels * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    exact = max(picture.size) <= EXACT
    if max(picture.size) > largest:
        picture.thumbnail((largest, largest))
    file = io.BytesIO()
    if exact:
        picture.save(file, "PNG", optimize=True)
    else:
        picture.convert("L" if picture.mode == "L" else "RGB").save(file, "JPEG", quality=85)
    return file.getvalue()


Kind = Literal["image", "text", "table", "embedding", "regression"]
KINDS: tuple[Kind, ...] = ("image", "text", "table", "embedding", "regression")


@dataclass(frozen=True)
class Content:
    """What can be shown of a sample: any of an image, a text and named values; none of them is an edge state.

    Attributes:
        image: the bytes of a PNG, JPEG, GIF or WebP file, small (the page holds all of them).
        text: the text; long ones are folded by the page.
        fields: name and value of each cell of a table row, in the order of the columns.
        chips: the labels of a sample that has several, and whether each is given.
        tokens: the words of a sentence, each with its tag; the text is not shown then.
        votes: annotators and the label that each gave, of a sample that several people labeled.
        marked: which of the chips is judged; or the first of the judged words and the one after the last.
        missing: why there is nothing to show, for example ``"the file cats/7.png cannot be read"``.
    """

    image: bytes | None = None
    text: str | None = None
    fields: tuple[tuple[str, str], ...] = ()
    missing: str = ""
    chips: tuple[tuple[str, bool], ...] = ()
    marked: int | tuple[int, int] | None = None
    tokens: tuple[tuple[str, str], ...] = ()
    votes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Example:
    """A sample whose label is certain, for comparison; items refer to it by its ``index``.

    ``p_error`` is the probability that its label is wrong: the page calls it certain only if that is small.
    """

    index: int
    label: str
    content: Content
    id: str = ""
    p_error: float = 0.0


@dataclass(frozen=True)
class Item:
    """A suspect.

    Attributes:
        index: the 0-based row of the source before any split or filter.
        given: its label as written in the data; ``""`` if it has none.
        suggested: the label the audit would give it.
        score: how suspect it is, larger is more; any scale.
        p_error: the probability that ``given`` is wrong, in [0, 1].
        flagged: whether the audit reports it.
        content: what is shown.
        id: its name in the source, such as a file name or an id column.
        like_given, like_suggested: ``index`` of the nearest certain examples of either class, nearest first. The
            page shows three.
        digest: of the row without its label; a correction carries it.
        likely: the classes it most probably belongs to besides these two, most probable first; the page gives the first
            nine of them keys.
        part: which label of the row is meant, if it has several; a correction carries it.
        usual_error: by how much a right value usually differs from the suggested one; None for classes.
        new: whether it was no suspect in the audit before this one.
    """

    index: int
    given: str
    suggested: str
    score: float
    p_error: float
    flagged: bool
    content: Content = Content()
    id: str = ""
    like_given: tuple[int, ...] = ()
    like_suggested: tuple[int, ...] = ()
    digest: str = ""
    likely: tuple[str, ...] = ()
    usual_error: float | None = None
    new: bool = False
    part: str = ""


@dataclass(frozen=True)
class Estimate:
    """A value with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ClassPair:
    """How many flagged samples labeled ``given`` look like ``suggested``."""

    given: str
    suggested: str
    count: int


@dataclass(frozen=True)
class ClassCount:
    """How many rows carry this label, how many of them are flagged, and how many are expected to be wrong, if known."""

    label: str
    rows: int
    flagged: int
    wrong: float | None = None


@dataclass(frozen=True)
class Histogram:
    """Counts between edges.

    Attributes:
        edges: K + 1 increasing numbers.
        counts: K counts of samples.
        flagged: how many of each count are flagged; ``()`` if unknown.
        threshold: where flags begin, if it is a value on this axis.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    flagged: tuple[int, ...] = ()
    threshold: float | None = None

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1 or len(self.flagged) not in (0, len(self.counts)):
            raise InputError(
                f"a histogram has {len(self.edges)} edges, {len(self.counts)} counts and {len(self.flagged)} flagged; "
                "expected one edge more than counts, and as many flagged as counts or none."
            )


@dataclass(frozen=True)
class Curve:
    """A measure after each epoch, the first epoch first.

    Attributes:
        measure: ``"accuracy"`` or ``"loss"``; curves of one measure share a picture.
        method: ``"robust"`` for the run of the audit, ``"plain"`` for the one it is compared with.
        values: one for each epoch; not-a-number leaves a gap.
    """

    measure: Literal["accuracy", "loss"]
    method: Literal["robust", "plain"]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Values:
    """Given and predicted quantities of some rows, for a picture; equally long."""

    given: tuple[float, ...]
    predicted: tuple[float, ...]
    flagged: tuple[bool, ...]


@dataclass(frozen=True)
class PageProvenance:
    """Where the probabilities come from.

    Attributes:
        views: by name ("view: learner"), the weight of each model that judged labels it had not seen.
        agreement: the share of labels these models agree with, if known.
        encoder, license: the pretrained model that made the features, and under which terms it may be used.
        hint: what would make the evidence better.
    """

    views: tuple[tuple[str, float], ...] = ()
    agreement: float | None = None
    encoder: str = ""
    license: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Since:
    """What changed since the audit on whose page decisions were made.

    Attributes:
        corrected, confirmed: how many labels were decided on; they are taken as right.
        new: how many suspects were none before.
        gone: the rows that were suspect, were not decided on, and are suspect no longer.
    """

    corrected: int
    confirmed: int
    new: int
    gone: tuple[int, ...] = ()


@dataclass(frozen=True)
class IssueRow:
    """A row with an issue, and the row that it is compared with, if there is one."""

    index: int
    label: str
    content: Content
    score: float
    detail: str
    other: Content | None = None
    other_index: int | None = None
    other_label: str = ""
    id: str = ""
    other_id: str = ""


@dataclass(frozen=True)
class IssueGroup:
    """All issues of a kind.

    Attributes:
        title: what they are.
        advice: what to conclude.
        score: what the scores are.
        count: of all of them.
        rows: those that are shown.
        lines: name, score and detail of issues that are about a column or a class.
        cut: whether there are more than are shown.
    """

    title: str
    advice: str
    score: str
    count: int
    rows: tuple[IssueRow, ...] = ()
    lines: tuple[tuple[str, float, str], ...] = ()
    cut: bool = False


@dataclass(frozen=True)
class Page:
    """Everything on the page.

    Attributes:
        title: the name of the data, shown in the top bar.
        kind: what the samples are.
        classes: the names of the classes in the order of their numbers; ``()`` for regression.
        rows: the number of labeled samples that were audited.
        items: the suspects, most suspect first: all flagged ones, and if nothing is flagged the least certain.
        noise_rate: the estimated share of wrong labels.
        expected_precision: the share of flags that are expected to be right, if known.
        threshold: the ``p_error`` from which items are flagged, if there is one.
        examples: the certain samples that items refer to.
        confusion: the pairs with a flag; by default they are counted from the items.
        per_class: the flags of each class.
        scores, compensations: how the scores and the sizes of the compensations are spread over all samples.
        curves: accuracy and loss over the epochs.
        command: what to type once corrections.csv is saved.
        notes: sentences a reader should know, such as which rows could not be read.
        source_digest: of the audited file or folder; corrections carry it.
        all_flagged: the number of flagged rows of the data, if more are flagged than are on the page.
        predictable: whether labels can be predicted from the samples better than by chance; if not, no label can be judged.
        evidence: where the probabilities come from.
        values: for regression, given and predicted values.
        since: what changed since an earlier audit, if this one was made with decisions about its labels.
        issues: what else is wrong with the data; None if it was not looked for.

    >>> item = Item(7, "cat", "dog", 3.2, 0.97, True, Content(text="woof"))
    >>> page = Page("pets.csv", "text", ("cat", "dog"), 100, (item,), Estimate(0.01, 0.0, 0.03))
    >>> page.flagged, page.pairs
    (1, (ClassPair(given='cat', suggested='dog', count=1),))
    """

    title: str
    kind: Kind
    classes: tuple[str, ...]
    rows: int
    items: tuple[Item, ...]
    noise_rate: Estimate
    expected_precision: float | None = None
    threshold: float | None = None
    examples: tuple[Example, ...] = ()
    confusion: tuple[ClassPair, ...] = ()
    per_class: tuple[ClassCount, ...] = ()
    scores: Histogram | None = None
    compensations: Histogram | None = None
    curves: tuple[Curve, ...] = ()
    command: str = ""
    notes: tuple[str, ...] = ()
    source_digest: str = ""
    all_flagged: int | None = None
    predictable: bool = True
    evidence: PageProvenance = PageProvenance()
    values: Values | None = None
    since: Since | None = None
    issues: tuple[IssueGroup, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f'a page of kind "{self.kind}"; expected one of {", ".join(KINDS)}.')
        _unique([item.index for item in self.items], "items")
        _unique([example.index for example in self.examples], "examples")
        known = {example.index for example in self.examples}
        for item in self.items:
            if not 0 <= item.p_error <= 1:
                raise InputError(f"p_error of row {item.index} is {item.p_error}; expected a probability in [0, 1].")
            lost = [i for i in (*item.like_given, *item.like_suggested) if i not in known]
            if lost:
                raise InputError(f"row {item.index} is compared with row {lost[0]}, which is not among the examples.")

    @property
    def flagged(self) -> int:
        """The number of flagged items."""
        return sum(item.flagged for item in self.items)

    @property
    def pairs(self) -> tuple[ClassPair, ...]:
        """The confusion, largest first; counted from the flagged items unless it was given."""
        found = self.confusion
        if not found:
            counted = Counter((item.given, item.suggested) for item in self.items if item.flagged)
            found = tuple(ClassPair(given, suggested, count) for (given, suggested), count in counted.items())
        return tuple(sorted(found, key=lambda pair: -pair.count))


def _unique(indices: list[int], name: str) -> None:
    twice = [index for index, count in Counter(indices).items() if count > 1]
    if twice:
        raise InputError(f"row {twice[0]} is among the {name} of the page more than once; keep one of each.")
