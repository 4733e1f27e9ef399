"""Define what all pictures share: colours, styles, axes with units, intervals, and saving.

Series differ by colour *and* marker *and* line, so that they can be told apart in black and white; the colours are
those of Okabe and Ito, which colour-blind people can tell apart. Pictures use `Figure` and not pyplot: that has no
global state, opens no window and loads faster.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from bench.model.conclusions import Summary
from bench.model.records import Run
from bench.model.units import format_bytes, format_seconds

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
STYLE: Any = {
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "figure.dpi": 110,
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "legend.frameon": False,
}
# Ratio of largest to smallest value on an axis below which labels at 1, 2 and 5 are too few.
NARROW = 5
# Ratio of neighbouring sizes below which they count as one: operations round the same size down differently.
ALIKE = 1.2
# Points between neighbouring series at one x value: a marker is 5 wide, and the cap of an interval 6.
BESIDE = 7
# Largest share of the distance to the next x value that the series at one x value take together.
TOGETHER = 0.6
# More lines than this in one picture cannot be told apart.
MOST_SERIES = 6


def save(figure: Figure, path: Path) -> None:
    """Save a figure as PNG and as SVG."""
    figure.savefig(path.with_suffix(".png"))
    figure.set_layout_engine("none")  # laid out already; doing it again would take as long as drawing
    figure.savefig(path.with_suffix(".svg"))


def draw_pages(
    drawn_by: Callable[[Any, Any], Sequence[Figure]], run: Any, analysis: Any, paths: Sequence[Path]
) -> None:
    """Draw the pages of a picture into the first of these paths (without suffix); remove files at the others."""
    with rc_context(STYLE):
        figures = drawn_by(run, analysis)[: len(paths)]
        for figure, path in zip(figures, paths, strict=False):
            save(figure, path)
    for path in paths[len(figures) :]:
        for suffix in (".png", ".svg"):
            path.with_suffix(suffix).unlink(missing_ok=True)


def framed(question: str, what: str) -> tuple[Figure, Axes]:
    """A figure with one set of axes. Its title has two lines: a question, and what is shown."""
    figure = Figure(figsize=(8.5, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"{question}\n{what}", fontsize=10.5)
    return figure, axes


def size_axis(axes: Axes, sizes: Sequence[int], most: int, text: Callable[[int], str] = format_bytes) -> None:
    """Sizes (or numbers of ranks) along x, which doubles from one tick to the next. most: largest number of labels."""
    # Labels of sizes that were rounded down from one size would overlap.
    apart = [size for size, following in zip(sizes, [*sizes[1:], math.inf], strict=True) if following > ALIKE * size]
    shown = apart[:: math.ceil(len(apart) / most)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [text(size) for size in shown])
    powers = range(math.ceil(math.log2(sizes[0])), math.floor(math.log2(sizes[-1])) + 1)
    axes.xaxis.set_minor_locator(FixedLocator([2.0**power for power in powers]))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if len(apart) == 1:  # without this the axis would be as wide as the shift of the series
        axes.set_xlim(sizes[0] / 2, 2 * sizes[-1])


def dodged(axes: Axes, x: Sequence[float], every: Sequence[float], number: int, of: int) -> list[float]:
    """The x values of one of several series on a logarithmic axis, moved a little so that intervals do not overlap.

    every: the x values of all series. number, of: which of how many series this is.
    """
    places = sorted(set(every))
    across = math.log(places[-1] / places[0]) or math.log(4)  # one x value alone: see size_axis
    nearest = min((math.log(b / a) for a, b in pairwise(places) if b > ALIKE * a), default=across)
    points = 72 * axes.bbox.width / axes.figure.dpi
    step = min(BESIDE / points * across, TOGETHER * nearest / of)
    return [value * math.exp(step * (number - (of - 1) / 2)) for value in x]


def legend_entries(axes: Axes) -> dict[str, Any]:
    """Name → handle, the measured series first: matplotlib lists models and bounds before them."""
    handles, names = axes.get_legend_handles_labels()
    ordered = sorted(zip(names, handles, strict=True), key=lambda entry: not isinstance(entry[1], Container))
    return dict(ordered)


def log_time_axis(axes: Axes) -> None:
    """Logarithmic times along y, with labels also if they span less than a decade."""
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    time_axis(axes.yaxis)


def log_ticks(axis: Any) -> None:
    """Add labels to a logarithmic axis of less than two decades: labels at decades alone would be one or none."""
    low, high = axis.get_view_interval()
    if high / low < 100:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low > NARROW else range(1, 10), numticks=12))


def log_rate_axis(axes: Axes) -> None:
    """Logarithmic bandwidths along y, as plain numbers."""
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def marks(summaries: Sequence[Summary]) -> str:
    """What the bars show, or that no intervals are known."""
    known = any(s.time_s is not None and s.time_s.known for s in summaries)
    return "bars: 95 % intervals" if known else "no intervals are known"


def time_label(run: Run) -> str:
    """The label of an axis of times."""
    return "time of one operation " + ("(median)" if run.imported is None else "(as imported)")


def time_axis(axis: Any) -> None:
    """Label an axis of times with numbers and units."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axis.set_minor_formatter(NullFormatter())


def tick(seconds: float) -> str:
    """A time as a tick label, without trailing zeros: `1 ms` and not `1.00 ms`."""
    number, unit = format_seconds(seconds).split()
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}" if seconds else "0"


def spread(values: list[int], most: int) -> list[int]:
    """At most `most` of the values, evenly spaced from first to last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def with_intervals(
    axes: Axes, x: Sequence[float], y: Sequence[float], interval: tuple[list[float], list[float]], style: int, name: str
) -> None:
    """Draw one line of values with their intervals. interval: lower and upper limits. style: number of the line."""
    values = np.array(y)
    # A limit equal to the value means that no interval is known: no bar is drawn.
    low, high = (np.where(np.array(side) == values, np.nan, np.array(side)) for side in interval)
    axes.errorbar(
        x,
        values,
        yerr=[np.maximum(values - low, 0), np.maximum(high - values, 0)],
        label=name,
        color=COLOURS[style % len(COLOURS)],
        marker=MARKERS[style % len(MARKERS)],
        linestyle=LINES[style % len(LINES)],
        capsize=3,
        markersize=5,
        linewidth=1.5,
    )
