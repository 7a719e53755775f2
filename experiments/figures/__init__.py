"""The paper's figures, drawn from the code, from stored runs or from a short training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from compensate.errors import InputError, nearest
from compensate.files import make_folder, write_atomically
from experiments.figures import curves, trained, tree
from experiments.figures.request import Request
from experiments.figures.weights import weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "Drawing", "Request", "draw", "find_figure"]

SUFFIXES = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class Drawing:
    """A figure of the paper.

    Attributes:
        summary: a one-line description.
        paper: which of the paper's figures it is.
        make: draws it.
        data: the default data set; None if the figure needs none.
        caption: text below the stored picture on the page of figures.
        elsewhere: captions of stored pictures of other data.
    """

    summary: str
    paper: str
    make: Callable[[Request], Figure]
    data: str | None
    caption: str
    elsewhere: Mapping[str, str] = field(default_factory=dict)


FIGURES: dict[str, Drawing] = {
    "taxonomy": Drawing(
        "the tree of the taxonomy, with every method as a leaf",
        "Fig. 1",
        tree.taxonomy,
        None,
        "Generated from the table of methods: target, inference and granularity; the sign before a method is its direction.",
    ),
    "logit-adjustment": Drawing(
        "relative change of the loss of each class under logit adjustment",
        "Fig. 2",
        trained.logit_adjustment,
        "digits",
        "Long-tailed digits, the largest class 50 times the smallest. Losses of head classes fall and losses of tail classes "
        "rise. (The paper's text calls the tail “small class ids”; its caption has it on the right, as here.)",
        {"cifar10": "CIFAR-10, 16 × 16 pixels, the largest class 50 times the smallest."},
    ),
    "samples": Drawing(
        "samples with the largest logit compensation, with given and suggested label",
        "Fig. 3",
        trained.samples,
        "digits",
        "Digits with their original labels: the 24 with the largest mean |v| under LogComp.",
        {
            "cifar10_auto": "CIFAR-10 with its original labels: 10,000 images, 8,000 for training, a network on the features of a pretrained encoder, the "
            "default λ = 0.25. Most doubts are understandable: an airplane low on gray ground (suggested: ship), an owl's face (cat), an ostrich seen "
            "from a car (airplane), a swimming dog (bird). Few of these labels should change: the horse in the first row (deer) and two cats in the "
            "last (dog) are hard to recognize at this size, and none is clearly wrong. A clearly wrong one, a “truck” with two faces, has rank 63, "
            "and rank 19 with λ = 0.05 (`--set hyper.lam=0.05`). The two settings share 88 of their top 100. The paper shows two samples that seem "
            "wrong, found among 50,000. On clean data, compensation ranks samples that are unlike their class; few of them are errors.",
        },
    ),
    "validation": Drawing(
        "validation accuracy in the first six epochs under noise, plain and with LogComp",
        "Fig. 4",
        curves.validation,
        "imdb",
        "Read from the stored runs of the paper's tables at the small scale; bands are the standard deviation over seeds. Validation labels "
        "are as noisy as the training labels.",
        {
            "sst2": "SST-2: without compensation, accuracy falls from the third or fourth epoch on; with LogComp it stays nearly constant."
        },
    ),
    "self-paced-weights": Drawing(
        "weights of self-paced learning over the loss",
        "Fig. 5",
        curves.self_paced_weights,
        None,
        "Four weightings of a sample by its loss; “hard” is the original one.",
    ),
    "self-paced-ratio": Drawing(
        "the share of each loss that remains under self-paced logit compensation",
        "Fig. 6",
        curves.self_paced_ratio,
        "digits",
        "A short plain training on digits with 20 % random labels; each mark is a training sample. Losses below τ do not change. "
        "If η is twice the largest norm of the logits, the paper's condition, losses above τ vanish, as if weighted by 0; with a tenth of that "
        "η about half of each loss remains. η must be large in absolute terms: for small logits the condition holds for an η that leaves "
        "much of the loss.",
    ),
    "distribution": Drawing(
        "distribution of the l1 norm of the logit compensation",
        "Figs. A-1 and A-2",
        trained.distribution,
        "digits",
        "LogComp on digits with 20 % random labels. Nearly all correct labels are at zero; the median of wrong labels is 4.9. The "
        "paper shows data without noise: `--noise none`.",
        {
            "cifar10_auto": "CIFAR-10 with its original labels, a network on the features of a pretrained encoder, the default λ = 0.25: a long tail "
            "from zero, as in the paper. 7,373 of 8,000 samples are at zero; the median of the others is 0.6, the largest 5.6. With λ = 0.05 (`--set "
            "hyper.lam=0.05`) the tail is longer, with 4,938 samples at zero.",
            "cifar10": "A small network on 16 × 16 pixels, which predicts 80 % of its training labels after 12 epochs: the peak is at zero, but only "
            "1,138 of 5,000 samples are there, and the others form a plateau up to |v| = 2 instead of a tail. With λ = 0.05 one sample is at zero, "
            "and the peak is at |v| = 2.9. This differs from the paper's figure because the network does not yet explain its labels, not because "
            "of the data.",
            "cifar100": "The same network on 5,000 images of CIFAR-100 with their original labels (Fig. A-2): two samples are near zero and the peak is "
            "at |v| = 3.7. With 50 images a class the network explains few of its labels, hence no tail from zero as in the paper.",
        },
    ),
    "strength": Drawing(
        "compensated samples, accuracy and detection of LogComp, over the strength of its penalty",
        "beyond the paper",
        trained.strength,
        "digits",
        "**Does LogComp compensate clean samples early in training?** Yes, with any λ: a row is zero only if the label has a probability of at least "
        "1 − λ (for fixed logits), and in the second epoch 98 to 100 % of the clean digits are compensated. λ determines how soon their rows return to "
        "zero: with 0.25, the default, half of them by the sixth epoch and all but 0.1 % at the end; with 0.05 a quarter remains. **Which λ gives the "
        "paper's figure?** 0.25, if the network explains its labels (on features of CIFAR-10 also 0.05; the paper chooses between 0.25 and 0.35 "
        "there). A network that does not explain them has a peak at zero with 0.25 and none with 0.05. **Is that better?** On clean digits 0.25 is "
        "level with plain training (−0.3 points, 95 % interval −1.5 to +0.9) and 0.05 is below it (−0.7, −1.2 to −0.3); three seeds show no "
        "difference between the two. With 20 % random labels the mean gains are 0.7 to 1.3 points, and 0.05 equals 0.25 in accuracy and in "
        "finding errors (average precision 0.998 and 0.999). Bars are the standard deviation over three seeds.",
        {
            "cifar10_auto": "CIFAR-10, a network on the features of a pretrained encoder, three seeds. In the second epoch 25 % (λ = 0.5) to 68 % (0.02) of "
            "the clean samples are compensated, at the end 1 % to 51 %, without an effect on accuracy on clean labels: 0.1 to 0.4 points above plain "
            "training, all level. With 20 % random labels a small λ is better: 0.05 gains 0.8 points more than 0.25 (0.4 to 1.2) and 0.003 more of "
            "average precision (0.002 to 0.004). The paper's figure shows that clean samples are released; it does not indicate a better training "
            "under noise.",
        },
    ),
    "measured-strength": Drawing(
        "the strength of the method robust over the epochs",
        "beyond the paper",
        trained.measured_strength,
        "digits",
        "Digits with their original labels and with 30 % random labels. The strength rises once learning has slowed down and withheld labels are predicted "
        "well; the distance between the probabilities of trained and of withheld labels is what the model memorizes.",
        {
            "cifar10": "CIFAR-10, a small network on 16 × 16 pixels without augmentation. Withheld labels are hardly predicted, and the strength rises "
            "with the memorized share.",
        },
    ),
    "weights": Drawing(
        "effective weight of a sample under each method, over its loss",
        "beyond the paper",
        weights,
        None,
        "The length of a sample's gradient at the logits relative to cross-entropy (black), and the cosine between the two (green). From left to "
        "right, the prediction moves from the given label to one other class; both are equally likely at a loss of about 0.7. Tables have seen "
        "the sample 150 times. Default settings, ten classes. [Research](research.md#weighting-and-compensating) has the derivations.",
    ),
}
"""All figures by name."""


def find_figure(name: str) -> Drawing:
    """A figure by its name; `_` in a name equals `-`.

    >>> find_figure("self_paced_weights").paper
    'Fig. 5'
    """
    key = name.lower().replace("_", "-")
    if key not in FIGURES:
        raise InputError(f'unknown figure "{name}"; {nearest(key, FIGURES)}')
    return FIGURES[key]


def draw(name: str, path: Path, request: Request | None = None) -> Path:
    """Draws a figure into a .png, .pdf or .svg file.

    >>> import tempfile
    >>> draw("self-paced-weights", Path(tempfile.mkdtemp()) / "weights.svg").name
    'weights.svg'
    """
    import io

    found = find_figure(name)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f'{path} ends in "{path.suffix}"; expected .png, .pdf or .svg.')
    request = request or Request()
    if found.data is None and request.data is not None:
        raise InputError(f"the figure {name} needs no data; leave out --data.")
    figure = found.make(request.on(found.data))
    drawn = io.BytesIO()
    # Without a date the same figure gives the same file.
    plain = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[path.suffix.lower()]
    figure.savefig(drawn, dpi=110, format=path.suffix[1:].lower(), metadata=plain)
    make_folder(path.parent)
    write_atomically(path, drawn.getvalue())
    return path
