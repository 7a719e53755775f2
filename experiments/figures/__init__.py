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
        data: the data set that it is drawn on unless another is asked for; None if it needs none.
        caption: what to see in the stored picture, for the page of figures.
        elsewhere: what to see in stored pictures of other data.
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
        "Read from the table of methods: what is compensated, who sets the value, who shares it; the sign before a method is its "
        "direction.",
    ),
    "logit-adjustment": Drawing(
        "relative change of the loss of each class under logit adjustment",
        "Fig. 2",
        trained.logit_adjustment,
        "digits",
        "Long-tailed digits, the largest class 50 times the smallest. The losses of the head fall, those of the tail rise. (The "
        "paper's text calls the tail “small class ids”; its caption has it on the right, as here.)",
        {"cifar10": "CIFAR-10, 16 × 16 pixels, the largest class 50 times the smallest."},
    ),
    "samples": Drawing(
        "samples with the largest logit compensation, with given and suggested label",
        "Fig. 3",
        trained.samples,
        "digits",
        "The digits as they come, no label changed: the 24 with the largest mean |v| under LogComp.",
        {
            "cifar10_auto": "CIFAR-10 as it comes: 10,000 images, of which 8,000 are trained on, a network on the features of a pretrained encoder, the "
            "default λ = 0.25. A person understands nearly every doubt: an airplane that lies low on gray ground (suggested: ship), an owl's "
            "face (cat), an ostrich seen from a car (airplane), a dog that swims (bird). But a person would change few of these labels: the "
            "horse in the first row (deer) and two cats in the last (dog) are hard to tell at this size, and none is plainly wrong. One that "
            "is, a “truck” with two faces, has rank 63 here; with λ = 0.05 (`--set hyper.lam=0.05`) it has rank 19. Of the first 100 the two "
            "have 88 in common. The paper shows two that seem wrong, found among 50,000. So the compensation of clean data ranks what is "
            "unlike its class; errors are among that, and are few of it.",
        },
    ),
    "validation": Drawing(
        "validation accuracy in the first six epochs under noise, plain and with LogComp",
        "Fig. 4",
        curves.validation,
        "imdb",
        "Read from the stored runs of the paper's tables at the small scale; bands are the deviation over seeds. Validation labels "
        "are as noisy as the training labels.",
        {
            "sst2": "SST-2: without compensation accuracy falls from the third or fourth epoch on; with LogComp it stays nearly where it was."
        },
    ),
    "self-paced-weights": Drawing(
        "weights of self-paced learning over the loss",
        "Fig. 5",
        curves.self_paced_weights,
        None,
        "Four ways to weigh a sample by its loss; “hard” is the original one.",
    ),
    "self-paced-ratio": Drawing(
        "what self-paced logit compensation leaves of each loss",
        "Fig. 6",
        curves.self_paced_ratio,
        "digits",
        "A short plain training on digits with 20 % random labels; each mark is a training sample. Losses below τ stay as they are. "
        "With η at twice the largest norm of the logits, the paper's condition, those above vanish, as if weighted by 0; with a "
        "tenth of it about half of each is left. What counts is that η is large in itself: where logits are small, the condition holds "
        "for an η that leaves much.",
    ),
    "distribution": Drawing(
        "distribution of the l1 norm of the logit compensation",
        "Figs. A-1 and A-2",
        trained.distribution,
        "digits",
        "LogComp on digits with 20 % random labels. Right labels are at zero but for a few, wrong ones take 4.9 (median). The paper "
        "shows it without noise: `--noise none`.",
        {
            "cifar10_auto": "CIFAR-10 as it comes, a network on the features of a pretrained encoder, the default λ = 0.25: a long tail from zero, as in the "
            "paper. 7,373 of 8,000 samples are at zero; the median of the others is 0.6, the largest 5.6. With λ = 0.05 (`--set "
            "hyper.lam=0.05`) it is a longer tail of the same form, with 4,938 samples at zero.",
            "cifar10": "The same from a small network on 16 × 16 pixels, which has 80 % of its training labels right after 12 epochs: the peak is at "
            "zero, but only 1,138 of 5,000 samples are there, and the others make no tail, but a plateau up to |v| = 2. With λ = 0.05 one "
            "sample is at zero, and the peak is at |v| = 2.9. That is not the paper's picture. It does not come from the data, but from a "
            "network that does not explain its labels yet.",
        },
    ),
    "strength": Drawing(
        "how many samples LogComp compensates, what it gains and what it finds, over the strength of its penalty",
        "beyond the paper",
        trained.strength,
        "digits",
        "**Does LogComp compensate clean samples while a network is young?** Yes, with any λ: a row stays at zero only once the label has a "
        "probability of 1 − λ (for fixed logits), and in the second epoch 98 to 100 % of the clean digits are compensated. λ decides how soon they "
        "are let go: with 0.25, the default, half of them by the sixth epoch, and 0.1 % are left at the end; with 0.05 a quarter is. **With which λ "
        "does the paper's picture come out?** With 0.25, if the network explains its labels (on features of CIFAR-10 with 0.05 too; the paper chooses"
        " among 0.25 and 0.35 there). A network that does not explain them has a peak at zero with 0.25, and none with 0.05. **Is that better?** On "
        "clean digits 0.25 is level with plain training (−0.3 points, 95 % interval −1.5 to +0.9) and 0.05 is below it (−0.7, −1.2 to −0.3); between "
        "the two, three seeds show no difference. With 20 % random labels the mean gains are 0.7 to 1.3 points, and 0.05 is level with 0.25 in "
        "accuracy and in finding errors (average precision 0.998 and 0.999). Bars are the deviation over three seeds.",
        {
            "cifar10_auto": "CIFAR-10, a network on the features of a pretrained encoder, three seeds. In the second epoch 25 % (λ = 0.5) to 68 % (0.02) of "
            "the clean samples are compensated, at the end 1 % to 51 %, and accuracy on clean labels does not show it: 0.1 to 0.4 points "
            "above plain training, all level. With 20 % random labels a small λ is better: 0.05 gains 0.8 points more than 0.25 (0.4 to 1.2),"
            " with 0.003 more of average precision (0.002 to 0.004). So the paper's picture tells that clean samples are let go; it is no "
            "sign of a better training under noise.",
        },
    ),
    "weights": Drawing(
        "how much a sample counts under each method, over its loss",
        "beyond the paper",
        weights,
        None,
        "The length of a sample's gradient at the logits beside that of cross entropy (black), and whether it still points the same way (green: 1 if "
        "it does). From left to right a sample goes from sure of its label to sure of one other class, at a loss of about 0.7; tables have "
        "seen it 150 times. Default settings, ten classes. [Research](research.md#weighting-and-compensating) has the derivations.",
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
        raise InputError(f'there is no figure "{name}"; {nearest(key, FIGURES)}')
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
