"""Draw the comparison of two sides of a run: the ratio of each pair of launches, and what follows from all of them.

In: a `PairedComparison`. Out: PNG and SVG.
"""

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.model.comparisons import PairedComparison
from bench.report.comparison import headline
from bench.report.plots.comparison import BARS, GREY, MOST_ROWS, directions, ratio_axis, ratio_rows, verdict_legend
from bench.report.plots.panels import wrapped
from bench.report.plots.plot_style import STYLE, save

WIDE = 115


def draw(result: PairedComparison, folder: Path) -> Path:
    """A row for each case, with a dot for each pair. Returns the PNG's path."""
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        save(_figure(result), folder / "ab")
    return folder / "ab.png"


def _figure(result: PairedComparison) -> Figure:
    rows = [(change.name, change.judgement, change.ratios) for change in result.changes[:MOST_ROWS]]
    if result.whole is not None:
        rows.insert(0, ("the run as a whole (index)", result.whole, result.ratios))
    figure = Figure(figsize=(9, 2.4 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for y, (_, _, ratios) in enumerate(reversed(rows)):
        # In the order of time from below to above the bar, so that a drift shows.
        heights = y + np.linspace(-0.28, 0.28, len(ratios)) if len(ratios) > 1 else [y]
        axes.plot(ratios, heights, ".", color=GREY, alpha=0.45, markersize=5, markeredgewidth=0, zorder=1)
    ratio_rows(axes, [judged for _, judged, _ in rows], [name for name, _, _ in rows], result.min_change)
    if result.whole is not None:
        axes.axhline(len(rows) - 1.5, color=GREY, linewidth=0.8)
    ratio_axis(axes)
    axes.set_xlabel(f"time of B / time of A (log scale)\n{BARS}")
    title = wrapped(f"Is B slower?  {result.before}  →  {result.after}", WIDE)
    text = f"{title}\n{headline(result)}; {result.pairs} pairs"
    figure.suptitle(text, x=0.01, ha="left", fontsize=10.5)
    directions(axes)
    dot = Line2D([], [], linestyle="", marker=".", color=GREY, label="a pair of launches, the first one lowest")
    verdict_legend(figure, result, len(result.changes) - len(result.changes[:MOST_ROWS]), dot)
    return figure
