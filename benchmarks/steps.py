"""Cost of methods that run the model more than once or read its features, relative to plain steps and to other libraries.

python -m benchmarks.steps [--quick]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Ratio, options, report
from benchmarks.measure import alternate as in_turns
from compensate import meta_step
from compensate.core.stages import traceless
from compensate.methods import CosineHead, arcface, isda, meta_logit, pgd_at
from compensate.models import ResNet

BATCH, EPS, STEPS = 128, 8 / 255, 7
alternate = partial(in_turns, clock=time.process_time)
ABOUT = """CPU seconds. Whole training steps (forward, backward, SGD with momentum) of ResNet-20 with batches of 128
images of 32 x 32 pixels, relative to plain steps with cross-entropy. The bar of adversarial training with K inner
steps is 1.1 (K + 1) plain steps. Foolbox attacks the same model in the same loop, also with frozen batch statistics.
ISDA has 100 classes and 64 features; memory is the peak of tensors during a step. ArcFace has 512 features and 1,000
classes, forward and backward."""


def setting(depth: int, classes: int = 10, batch: int = BATCH) -> tuple[ResNet, torch.optim.Optimizer, Tensor, Tensor]:
    """A network, its optimizer and a batch."""
    torch.manual_seed(0)
    model = ResNet(depth, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    return model, optimizer, torch.rand(batch, 3, 32, 32), torch.randint(classes, (batch,))


def stepper(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """A training step."""

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def plain_step(depth: int, classes: int = 10, batch: int = BATCH) -> Callable[[], None]:
    """A step with cross entropy."""
    model, optimizer, x, y = setting(depth, classes, batch)
    return stepper(optimizer, lambda: F.cross_entropy(model(x), y))


def foolbox_attack(model: nn.Module, x: Tensor, y: Tensor, *, steps: int = STEPS, random_start: bool = True) -> Tensor:
    """The inputs that foolbox's projected gradient ascent finds, in training mode and without traces in the model."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import foolbox

        wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1), device="cpu")  # it asks for evaluation mode
        model.train()
        attack = foolbox.attacks.LinfPGD(steps=steps, abs_stepsize=2.5 * EPS / steps, random_start=random_start)
        with traceless(model):
            return attack.run(wrapped, x, foolbox.criteria.Misclassification(y), epsilon=EPS)


def adversarial(depth: int, repeats: int, batch: int = BATCH) -> list[Ratio]:
    """Adversarial training relative to plain steps and to foolbox."""
    model, optimizer, x, y = setting(depth, batch=batch)
    criterion = pgd_at(eps=EPS, steps=STEPS, bounds=(0, 1))
    ours = stepper(optimizer, lambda: criterion.evaluate(model, x, y).loss)
    theirs = stepper(optimizer, lambda: F.cross_entropy(model(foolbox_attack(model, x, y)), y))
    name = f"adversarial training, {STEPS} steps"
    return [
        Ratio(name, f"a plain step of ResNet-{depth}", *alternate(ours, plain_step(depth, batch=batch), repeats=repeats, warm_up=1), 1.1 * (STEPS + 1)),
        Ratio(name, "foolbox's in the same loop", *alternate(ours, theirs, repeats=repeats, warm_up=1), 1.0),
    ]  # fmt: skip


def meta(depth: int, repeats: int, batch: int = BATCH) -> list[Ratio]:
    """One meta step relative to a plain step."""
    model, _, x, y = setting(depth, batch=batch)
    criterion, i = meta_logit(num_samples=1000, num_classes=10), torch.randperm(1000)[:batch]
    clean = torch.rand_like(x), torch.randint(10, (batch,))
    times = alternate(
        lambda: meta_step(criterion, model, (x, y, i), clean, lr=0.1), plain_step(depth, batch=batch), repeats=repeats, warm_up=1
    )  # fmt: skip
    return [Ratio("a meta step", f"a plain step of ResNet-{depth}", *times, 3.5)]


def peak(call: Callable[[], object]) -> float:
    """By how many bytes tensors grew at most while the call ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = seen.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return float(max(accumulate(size for _, size in changes)))


def augmented(depth: int, repeats: int, batch: int = BATCH) -> list[Ratio]:
    """ISDA relative to a plain step, in time and memory."""
    model, optimizer, x, y = setting(depth, 100, batch)
    criterion = isda(num_classes=100, feature_dim=64).start(10**6)
    ours = stepper(optimizer, lambda: criterion.evaluate(model, x, y).loss)
    plain = plain_step(depth, 100, batch)
    reference = f"a plain step of ResNet-{depth}"
    ratios = [Ratio("ISDA, C=100, D=64", reference, *alternate(ours, plain, repeats=repeats, warm_up=1), 1.2)]
    grown = [(peak(ours), peak(plain)) for _ in range(2)]
    return [
        *ratios,
        Ratio("ISDA, C=100, D=64, peak", reference, [a for a, _ in grown], [b for _, b in grown], 1.2, "memory"),
    ]


def arcface_pair(classes: int, features: int, scale: float = 64.0, margin: float = 0.5) -> tuple[Any, Any]:
    """ArcFace of ours and of pytorch-metric-learning on the same weights: functions of features and classes."""
    import math

    from pytorch_metric_learning.losses import ArcFaceLoss

    head, criterion = CosineHead(features, classes, scale), arcface(margin=margin, scale=scale)
    peer = ArcFaceLoss(classes, features, margin=math.degrees(margin), scale=scale)
    peer.collect_stats = False
    peer.W.data = head.weight.data.T.clone()
    return (lambda z, y: criterion(head(z), y)), peer


def margins(repeats: int, batch: int = BATCH, classes: int = 1000, features: int = 512) -> list[Ratio]:
    """ArcFace relative to pytorch-metric-learning."""
    torch.manual_seed(0)
    ours, peer = arcface_pair(classes, features)
    z, y = torch.randn(batch, features, requires_grad=True), torch.randint(classes, (batch,))
    times = alternate(lambda: ours(z, y).backward(), lambda: peer(z, y).backward(), repeats=10 * repeats)
    return [Ratio(f"ArcFace, B={batch}, C={classes}, D={features}", "pytorch-metric-learning's", *times, 1.0)]


def main() -> None:
    """Measures, prints and stores."""
    quick = options(__doc__).quick
    torch.set_num_threads(1)
    depth, repeats = (8, 2) if quick else (20, 7)
    ratios = [*margins(repeats), *augmented(depth, repeats), *meta(depth, repeats), *adversarial(depth, repeats)]
    report("steps", ratios, about=ABOUT, quick=quick)


if __name__ == "__main__":
    main()
