"""A turned cloud with 30 % clutter on one side: plain ICP gives way to it, robust ICP compensates it.

Run:  python examples/estimators/registration.py [picture.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from compensate.estimators import RobustICP

PICTURE = Path(__file__).parents[2] / "docs" / "img" / "estimator-registration.png"


def curve(angle: np.ndarray) -> np.ndarray:
    radius = 1 + 0.3 * np.cos(2 * angle) + 0.25 * np.sin(3 * angle)
    return radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])


def main(picture: Path = PICTURE) -> None:
    rng = np.random.default_rng(1)
    target = curve(rng.uniform(0, 2 * np.pi, 500))
    source = curve(rng.uniform(0, 2 * np.pi, 250)) + 0.01 * rng.normal(size=(250, 2))
    source[:75] = rng.uniform([1.2, -0.8], [2.8, 0.8], size=(75, 2))
    turn = np.deg2rad(25)
    R = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    source = (source - 0.15) @ R

    figure, panels = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
    errors = []
    for ax, title, model in zip(
        panels[:2], ("plain ICP", "robust ICP"), (RobustICP(lam=np.inf), RobustICP()), strict=True
    ):
        model.fit(source, target).plot(source, target, ax)
        rest = model.rotation_.T @ R
        left = np.arctan2(rest[1, 0], rest[0, 0])
        errors.append(abs(np.degrees(left)))
        ax.set_title(f"{title}: {errors[-1]:.1f} degrees off", fontsize=10, loc="left")

    bent = target + 0.15 * np.column_stack([np.zeros(len(target)), target[:, 0] ** 2])
    smooth = RobustICP("nonrigid", smoothness=0.1).fit(source, bent)
    smooth.plot(source, bent, panels[2])
    panels[2].set_title("non-rigid, onto a bent target", fontsize=10, loc="left")
    figure.savefig(picture, dpi=75)
    print(f"rotation error: plain {errors[0]:.2f} degrees, robust {errors[1]:.2f} degrees; saved {picture}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
