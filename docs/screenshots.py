"""Draws the pictures of the review page: ``python docs/screenshots.py [FOLDER]`` (needs playwright and chromium).

The suspects are made up on real or invented samples: digits with some labels changed, short reviews, and wines. Their
probabilities come from the votes of the nearest neighbors, not from an audit, which is enough to see the page.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

from compensate.auditing.content import Content, thumbnail
from compensate.auditing.page import write_page

KEPT = {  # what the documentation shows: page, view, width, height, scheme
    "page-overview": ("digits", "overview", 1280, 860, "light"),
    "page-review": ("digits", "review", 1280, 800, "light"),
    "page-review-text-dark": ("reviews", "review", 1280, 800, "dark"),
    "page-review-phone": ("digits", "review", 360, 780, "light"),
}


def digits() -> dict[str, Any]:
    """Images of digits, one in twelve with another label."""
    found = datasets.load_digits()
    contents = [Content(image=thumbnail(1 - image[None] / 16)) for image in found.images]
    names = tuple(str(c) for c in range(10))
    return _page("digits", "image", found.data, found.target, names, contents, 0.083)


def wines() -> dict[str, Any]:
    """Rows of a table."""
    found = datasets.load_wine()
    x = (found.data - found.data.mean(0)) / found.data.std(0)
    contents = [
        Content(
            fields=tuple((name.replace("_", " "), f"{v:g}") for name, v in zip(found.feature_names, row, strict=True))
        )
        for row in found.data
    ]
    return _page("wine.csv", "table", x, found.target, ("Barolo", "Grignolino", "Barbera"), contents, 0.1)


def reviews() -> dict[str, Any]:
    """Texts of one to three sentences."""
    rng = np.random.default_rng(4)
    good = (
        "The first hour takes its time, and by the end I was in tears.",
        "A small film with a big heart.",
        "Every scene earns its place.",
        "I would watch it again tomorrow, and I rarely say that.",
        "The two leads could read a phone book and hold the room.",
        "Funny where it needs to be and quiet where it matters.",
        "My father, who sleeps through everything, stayed awake.",
        "It trusts its audience, and that is rare enough.",
        "The last shot alone is worth the ticket.",
        "A debut that already knows what to leave out.",
        "The score does half the acting, and does it well.",
    )
    bad = (
        "Two hours that I will not get back.",
        "The jokes were old when the studio was young.",
        "Nobody on the screen seems to want to be there.",
        "It looks expensive and says nothing.",
        "I checked my watch more often than the plot checked itself.",
        "The ending arrives late and explains the wrong thing.",
        "Every line sounds like a first draft.",
        "The camera shakes so that nobody sees the sets.",
        "A sequel to a film that did not need the first one.",
        "By the second song I had picked my seat on the bus home.",
        "The villain has one mood and the hero has none.",
    )
    drawn = [
        (c, " ".join(rng.permutation(np.array((bad, good)[c]))[: rng.integers(2, 4)])) for c in rng.integers(0, 2, 1500)
    ]
    drawn = list(dict.fromkeys(drawn))
    target, texts = np.array([c for c, _ in drawn]), [text for _, text in drawn]
    words = sorted({w for text in texts for w in text.lower().split()})
    place = {w: k for k, w in enumerate(words)}
    x = np.zeros((len(texts), len(words)))
    for row, text in enumerate(texts):
        x[row, [place[w] for w in text.lower().split()]] = 1
    contents = [Content(text=text) for text in texts]
    return _page("reviews.csv", "text", x, target, ("neg", "pos"), contents, 0.06)


def _page(
    title: str,
    kind: str,
    x: NDArray[np.float64],
    target: NDArray[np.int64],
    names: tuple[str, ...],
    contents: list[Content],
    noise: float,
) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    n, c = len(target), len(names)
    near = np.argsort(((x[:, None] - x[None]) ** 2).sum(-1), axis=1)[:, 1:16] if n < 2000 else _near(x)
    votes = np.stack([(target[near] == k).mean(1) for k in range(c)], axis=1) + rng.uniform(0, 1e-3, (n, c))
    given = target.copy()
    changed = rng.choice(n, int(n * noise), replace=False)
    runner_up = np.where(np.eye(c, dtype=bool)[target], -1, votes).argmax(1)
    given[changed] = np.where(rng.random(len(changed)) < 0.7, runner_up[changed], (target[changed] + 1) % c)
    votes = np.stack([(given[near] == k).mean(1) for k in range(c)], axis=1)
    best = np.where(np.eye(c, dtype=bool)[given], -1, votes).argmax(1)
    score = votes[np.arange(n), best] - votes[np.arange(n), given] + rng.normal(0, 0.06, n)
    p = 1 / (1 + np.exp(-6 * score))
    flagged = p > 0.5
    order = np.argsort(-p)
    suspects = order[: int(flagged.sum())]
    certain = [i for i in range(n) if not flagged[i] and p[i] < 0.02]
    by_class = {k: [i for i in certain if given[i] == k] for k in range(c)}

    def like(i: int, k: int) -> tuple[int, ...]:
        pool = np.array(by_class[k])
        return tuple(int(j) for j in pool[np.argsort(((x[pool] - x[i]) ** 2).sum(1))[:3]])

    likes = [(like(i, given[i]), like(i, best[i])) for i in suspects]
    used = sorted({j for sides in likes for side in sides for j in side})
    position = {j: k for k, j in enumerate(used)}
    share = float(p.mean())
    counts = (np.bincount(given, weights, minlength=c) for weights in (None, flagged, p))
    pairs = Counter((names[given[i]], names[best[i]]) for i in suspects)
    edges = np.linspace(0, 1, 21)
    empty = {name: [""] * len(suspects) for name in ("id", "digest", "part")}
    return {
        "title": title,
        "kind": kind,
        "rows": n,
        "allFlagged": len(suspects),
        "predictable": True,
        "noise": [share, share * 0.88, share * 1.13],
        "precision": float(p[flagged].mean()),
        "threshold": 0.5,
        "command": f"compensate apply {title} corrections.csv -o {Path(title).stem}.fixed.csv",
        "notes": [],
        "source": "",
        "since": None,
        "classes": names,
        "items": {
            "index": [int(i) for i in suspects],
            **empty,
            "given": [names[given[i]] for i in suspects],
            "suggested": [names[best[i]] for i in suspects],
            "score": [float(score[i]) for i in suspects],
            "p": [float(p[i]) for i in suspects],
            "flagged": [1] * len(suspects),
            "new": [0] * len(suspects),
            "content": [contents[i] for i in suspects],
            "likely": [[]] * len(suspects),
            "usual": [None] * len(suspects),
            "likeGiven": [[position[j] for j in sides[0]] for sides in likes],
            "likeSuggested": [[position[j] for j in sides[1]] for sides in likes],
        },
        "examples": {
            "index": used,
            "id": [""] * len(used),
            "label": [names[given[j]] for j in used],
            "content": [contents[j] for j in used],
            "p": [float(p[j]) for j in used],
        },
        "pairs": [(*pair, count) for pair, count in pairs.most_common()],
        "perClass": [(name, int(r), int(f), float(w)) for name, r, f, w in zip(names, *counts, strict=True)],
        "evidence": {
            "views": [["samples: neighbors", 1.0]],
            "agreement": float((votes.argmax(1) == given).mean()),
            "encoder": "",
            "license": "",
            "hint": "",
        },
        "values": None,
        "issues": None,
        "scores": {
            "edges": edges.tolist(),
            "counts": np.histogram(p, edges)[0].tolist(),
            "flagged": np.histogram(p[flagged], edges)[0].tolist(),
            "threshold": 0.5,
        },
        "curves": [],
    }


def _near(x: NDArray[np.float64]) -> NDArray[np.int64]:
    squares = (x**2).sum(1)
    return np.argsort(squares[:, None] + squares[None] - 2 * x @ x.T, axis=1)[:, 1:16]


def main(folder: Path, every: bool) -> None:
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    wanted = dict(KEPT)
    if every:
        wanted |= {
            f"{page}-{view}-{width}-{scheme}": (page, view, width, height, scheme)
            for page in ("digits", "reviews", "wines")
            for view in ("overview", "review")
            for width, height in ((1280, 800), (390, 844))
            for scheme in ("light", "dark")
        }
    with tempfile.TemporaryDirectory() as run, sync_playwright() as playwright:
        for make in (digits, reviews, wines):
            write_page(make(), Path(run) / f"{make.__name__}.html")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (page, view, width, height, scheme) in wanted.items():
            tab = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
                has_touch=width < 500,
                is_mobile=width < 500,
            )
            tab.goto((Path(run) / f"{page}.html").as_uri() + f"#{view}")
            if view == "review":
                for key in "AAKA":
                    tab.keyboard.press(key)
            tab.wait_for_timeout(150)
            tab.screenshot(path=folder / f"{name}.png", full_page=every and name not in KEPT)
            tab.close()
        browser.close()


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--all"]
    main(Path(arguments[0]) if arguments else Path(__file__).parent / "img", "--all" in sys.argv)
