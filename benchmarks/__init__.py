"""What things cost, as ratios: `python -m benchmarks [--quick]` or `make bench [QUICK=1]`.

A benchmark is a module of this package with a function `main()`. It times two things in turns in one process
(`measure.alternate`), which makes a busy machine slow both alike, and passes a list of `measure.Ratio` to `measure.report`:

    def main() -> None:
        quick = options(__doc__).quick
        ratios = [Ratio("lookup, sparse store", "dense table", ours, theirs, bar=1.5)]
        report("store", ratios, about="A sentence for the page.", quick=quick)

which stores `results/NAME.json` in the common form (`results/quick/NAME.json` for a quick run, which git ignores):

    {"about": ..., "command": ..., "machine": "2 cores, CPU", "threads": 1, "versions": {...},
     "ratios": [{"what": ..., "reference": ..., "quantity": "time" | "memory", "ratio": median,
                 "quartiles": [low, high], "pairs": n, "bar": largest ratio promised, or null}, ...]}

`python -m benchmarks.pages` makes docs/performance.md of every file of that form: a table, a plot, and for each bar
whether it is met. A new benchmark needs nothing else.
"""
