"""Draws the pictures of the review page: ``python docs/screenshots.py [FOLDER]`` (needs playwright and chromium).

The pages are those of audits of digits, of invented reviews and of wines, in which some labels were changed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

from compensate import audit
from compensate.demo import Setting, audit_digits

KEPT = {  # what the documentation shows: page, view, width, height, scheme
    "page-overview": ("digits", "overview", 1280, 860, "light"),
    "page-review": ("digits", "review", 1280, 800, "light"),
    "page-review-text-dark": ("reviews", "review", 1280, 800, "dark"),
    "page-review-phone": ("digits", "review", 360, 780, "light"),
}


def digits(page: Path) -> None:
    """Images of digits."""
    audit_digits(page, Setting(rate=0.083))


def wines(page: Path) -> None:
    """Rows of a table."""
    found = datasets.load_wine(as_frame=True)
    _audit(found.data.assign(wine=np.array(["Barolo", "Grignolino", "Barbera"])[found.target]), "wine", 0.1, page)


def reviews(page: Path) -> None:
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
    rows = [
        ("neg", "pos")[c] + "|" + " ".join(rng.permutation(np.array((bad, good)[c]))[: rng.integers(2, 4)])
        for c in rng.integers(0, 2, 1500)
    ]
    frame = pd.DataFrame([row.split("|") for row in dict.fromkeys(rows)], columns=["sentiment", "review"])
    _audit(frame, "sentiment", 0.06, page)


def _audit(frame: pd.DataFrame, label: str, noise: float, page: Path) -> None:
    """Audits a table, of whose labels a share was exchanged, and writes the review page."""
    rng = np.random.default_rng(0)
    changed = rng.choice(len(frame), round(noise * len(frame)), replace=False)
    names = sorted(set(frame[label]))
    wrong = [names[(names.index(name) + 1) % len(names)] for name in frame[label].iloc[changed]]
    frame.iloc[changed, frame.columns.get_loc(label)] = wrong
    audit(frame, label=label, encoder="none").report(page)


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
            make(Path(run) / f"{make.__name__}.html")
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
                for key in "AANA":
                    tab.keyboard.press(key)
            tab.wait_for_timeout(150)
            tab.screenshot(path=folder / f"{name}.png", full_page=every and name not in KEPT)
            tab.close()
        browser.close()


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--all"]
    main(Path(arguments[0]) if arguments else Path(__file__).parent / "img", "--all" in sys.argv)
