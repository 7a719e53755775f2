"""Makes the page of all stored figures: a table and a plot for each benchmark, and whether each bar is met.

python -m benchmarks.pages [docs/performance.md]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS

HEAD = """# Performance

Every figure is a ratio of our cost to a reference, measured alternately on the same machine ({machine}); load slows both equally. The median over all
pairs is shown with its quartiles. A *bar* is the largest acceptable ratio. `make bench` repeats all measurements, `make bench QUICK=1` a small version;
`make docs` generates this page from `benchmarks/results`.

{met} of {bars} bars are met.{missed}
"""


def stored(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """All results of the common form, by name."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: form for name, form in found.items() if {"about", "ratios", "machine"} <= form.keys()}


def page(forms: dict[str, dict[str, Any]], images: dict[str, str]) -> str:
    """The page, in Markdown; `images` are the paths of the plots as seen from it."""
    barred = [(name, r) for name, form in forms.items() for r in form["ratios"] if r["bar"] is not None]
    missed = [f"{r['what']} ({name})" for name, r in barred if not met(r)]
    machines = sorted({form["machine"] for form in forms.values()})
    lines = [
        HEAD.format(
            machine=" or ".join(machines), met=len(barred) - len(missed), bars=len(barred),
            missed=f" Not met: {'; '.join(missed)}." if missed else "",
        )
    ]  # fmt: skip
    for name, form in forms.items():
        threads = "one thread" if form["threads"] == 1 else f"{form['threads']} threads"
        lines += [
            f"## {name.replace('_', ' ').capitalize()}\n",
            f"{form['about']} {threads.capitalize()} per process; `{form['command']}`.\n",
        ]
        lines += [
            "| measurement | relative to | ratio | quartiles | pairs | bar | |",
            "|---|---|---:|---:|---:|---:|---|",
        ]
        lines += [_row(r) for r in form["ratios"]]
        lines += ["", f"![{name}: ratios and bars]({images[name]})\n"] if name in images else [""]
    return "\n".join(lines).rstrip() + "\n"


def met(ratio: dict[str, Any]) -> bool:
    """True if a bar is kept."""
    return bool(ratio["ratio"] <= ratio["bar"])


def _row(r: dict[str, Any]) -> str:
    low, high = (_shown(q) for q in r["quartiles"])
    spread = "" if r["pairs"] == 1 else f"{low} to {high}"
    bar, verdict = ("", "") if r["bar"] is None else (_shown(r["bar"]), "met" if met(r) else "**not met**")
    what = f"{r['what']} (memory)" if r["quantity"] == "memory" else r["what"]
    return f"| {what} | {r['reference']} | {_shown(r['ratio'])} | {spread} | {r['pairs']} | {bar} | {verdict} |"


def _shown(ratio: float) -> str:
    """Small ratios are shares.

    >>> _shown(1.234), _shown(0.0123), _shown(12.34)
    ('1.23', '1.23 %', '12.3')
    """
    return f"{100 * ratio:.3g} %" if ratio < 0.1 else f"{ratio:.3g}"


def plot(form: dict[str, Any], path: Path) -> None:
    """Bars with quartiles, one a row, and a mark where each bar is."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    ratios = form["ratios"][::-1]
    fig, ax = plt.subplots(figsize=(8, 0.9 + 0.32 * len(ratios)), layout="constrained")
    values = [r["ratio"] for r in ratios]
    spread = [
        [max(0.0, r["ratio"] - r["quartiles"][0]) for r in ratios],
        [max(0.0, r["quartiles"][1] - r["ratio"]) for r in ratios],
    ]
    places = range(len(ratios))
    ax.barh(places, values, xerr=spread, color="#4477aa", error_kw={"ecolor": "#222222", "elinewidth": 1}, height=0.6)
    for place, r in zip(places, ratios, strict=True):
        if r["bar"] is not None:
            ax.plot([r["bar"]] * 2, [place - 0.42, place + 0.42], color="#cc3311", linewidth=2)
    if max(values) > 30 * max(min(values), 1e-9):
        ax.set_xscale("log")
    ax.set_yticks(places, [r["what"] for r in ratios], fontsize=8)
    ax.set_xlabel("ratio to the reference; the red mark is the bar")
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(fig)


def main() -> None:
    """Writes the page and its plots."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/performance.md")
    (target.parent / "img").mkdir(parents=True, exist_ok=True)
    forms = stored()
    images = {name: f"img/performance-{name}.png" for name in forms}
    for name, form in forms.items():
        plot(form, target.parent / images[name])
    target.write_text(page(forms, images))


if __name__ == "__main__":
    main()
