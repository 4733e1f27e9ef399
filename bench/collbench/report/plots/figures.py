"""Make figures: one style for two media, axes with units, values with intervals, and pages that matplotlib lays out.

Series differ by colour *and* marker, variants of a series by line, so that they can be distinguished in black and
white. The colours are the palette of Okabe and Ito, which colour-blind people can distinguish. Figures use `Figure`
and not pyplot, because `Figure` has no global state, opens no window and loads faster.

A drawing function says how high the axes of a page are; `lay_out` adds what the title, labels and legend need.
"""

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from collbench.model.units import format_rounded_bytes, format_seconds
from collbench.store import folders

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# One more than colours, so that two lines of one colour have different markers.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
GREY = "#666666"
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": "medium",
    "figure.titlesize": "medium",
    "figure.labelsize": "medium",
    "text.usetex": False,
    "text.parse_math": False,  # dollar signs in a name do not begin a formula
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "errorbar.capsize": 3,
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # text is kept as text: files are small and can be searched
}
# Publishers ask for fonts of type 42.
PAPER_STYLE: Any = {
    "font.size": 8,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1,
    "lines.markersize": 3.5,
    "errorbar.capsize": 2,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}
# A value and the limits of its interval.
Point = tuple[float, float, float]
# Letters of the name of a row in one line.
ROW_NAME = 56
# The space between a number and its unit, as in `1 MiB` or `4 ranks`.
NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=[A-Za-zµ%])")
NO_BREAK = "\N{NO-BREAK SPACE}"


# ── pages ────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Medium:
    """A medium for which pictures are drawn."""

    # Inches: for a column of axes, and for several columns, or for axes whose labels take a third of the first width.
    widths: tuple[float, float]
    # Heights of axes, relative to a report.
    scale: float
    suffixes: tuple[str, ...]
    # Settings of matplotlib.
    style: Any
    # False if the caption has the words of the title.
    titled: bool = True


REPORT = Medium((9, 9), 1, (".png",), STYLE)
# For one and for two columns of a paper.
PAPER = Medium((3.3, 6.9), 0.6, (".pdf", ".svg"), STYLE | PAPER_STYLE, titled=False)


def draw_pages(
    paths: Sequence[Path], drawn_by: Callable[..., Sequence[Figure]], *arguments: Any, paper: bool = False
) -> None:
    """Draw the pages of a picture into the first of these paths (without suffix), after removing all old files.

    Raises StoreError with the file that cannot be written.
    """
    medium = PAPER if paper else REPORT
    folders.make_folder(paths[0].parent)
    for file in (path.with_suffix(suffix) for path in paths for suffix in medium.suffixes):
        file.unlink(missing_ok=True)
    with rc_context(medium.style):
        for figure, path in zip(drawn_by(*arguments), paths, strict=False):
            lay_out(figure, medium)
            for file in map(path.with_suffix, medium.suffixes):
                with folders.naming(file):
                    figure.savefig(file)


def page(title: str, heights: Sequence[float], columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Make a figure and its axes, an array of rows × columns. heights: inches of each row of axes in a report.

    options: of `Figure.subplots`.
    """
    figure = Figure(layout="constrained", figsize=(REPORT.widths[0], 4 + 2 * sum(heights)))
    figure.suptitle(NUMBER_AND_UNIT.sub(NO_BREAK, title), x=0.01, ha="left", wrap=True)
    return figure, figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights, **options)


def name_axes(figure: Figure, x: str, y: str, spare: Sequence[Axes] = ()) -> None:
    """Name x below the lowest axes of each column, and y once, after removing spare axes."""
    for axes in spare:
        axes.remove()
    lowest = {spec.colspan.start: axes for axes in figure.axes if (spec := axes.get_subplotspec()) is not None}
    for axes in lowest.values():
        axes.set_xlabel(x)
        axes.tick_params(labelbottom=True)
    figure.supylabel(y)


def lay_out(figure: Figure, medium: Medium) -> None:
    """Give a figure its width, one legend below all axes, and the height that its axes are to have."""
    engine: Any = figure.get_layout_engine()
    placed = [(axes, spec) for axes in figure.axes if (spec := axes.get_subplotspec()) is not None]
    grid = placed[0][1].get_gridspec()
    if not medium.titled:
        figure.suptitle("")
    labels = max((box.width for axes, _ in placed if (box := axes.yaxis.get_tightbbox())), default=0)
    wide = grid.ncols > 1 or labels > medium.widths[0] / 3 * figure.dpi
    figure.set_figwidth(medium.widths[int(wide)])
    engine.execute(figure)
    for axes, _ in placed:
        # Its title is broken into lines that are as wide as the axes.
        text = axes.get_title(loc="left")
        share = axes.set_title(text).get_window_extent().width / axes.bbox.width
        if share > 1:
            axes.set_title(wrapped(text, int(len(text) / share)))
    _legend(figure)
    engine.execute(figure)
    height = figure.get_figheight()
    column = sum(axes.get_position(original=True).height for axes, spec in placed if spec.colspan.start == 0)
    figure.set_figheight(height * (1 - column) + medium.scale * float(np.sum(grid.get_height_ratios())))
    engine.execute(figure)
    figure.set_layout_engine(None)  # with any engine, also "none", savefig draws everything twice


def _legend(figure: Figure) -> None:
    """Draw a legend with each name once, in as many columns as fit. Axes that have a legend of their own have no part.

    The measured series come first: matplotlib lists lines without intervals before them.
    """
    named: dict[str, Any] = {}
    for axes in (axes for axes in figure.axes if axes.get_legend() is None):
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    entries = dict(sorted(named.items(), key=lambda entry: not isinstance(entry[1], Container)))
    for rows in range(1, len(entries) + 1):
        columns = math.ceil(len(entries) / rows)
        legend = figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
        share = legend.get_window_extent().width / figure.bbox.width
        if share <= 1:
            return
        if columns == 1:
            letters = int(max(map(len, entries)) / share) - 2
            for text in legend.get_texts():
                text.set_text(wrapped(text.get_text(), letters))
            return
        legend.remove()


def wrapped(text: str, letters: int) -> str:
    """Wrap a text into lines of at most this many letters; a number stays with its unit."""
    glued = NUMBER_AND_UNIT.sub(NO_BREAK, text)
    return "\n".join(textwrap.wrap(glued, letters, break_long_words=False)).replace(NO_BREAK, " ")


# ── axes ─────────────────────────────────────────────────────────────────────────────────────────
class RoundLocator(LogLocator):
    """Ticks of a logarithmic axis at as many round numbers of each decade as have room; on a short axis at others."""

    def tick_values(self, vmin: Any, vmax: Any) -> Any:
        room = labels_on(self.axis)
        if vmax / vmin < 3:
            ticks: Any = MaxNLocator(max(1, min(6, int(room) - 1)), steps=[1, 2, 5, 10]).tick_values(vmin, vmax)
            return np.extract(ticks > 0, ticks)
        decades = math.log10(vmax / vmin)
        subs = next((subs for subs in ((1, 2, 5), (1, 3)) if len(subs) * decades <= room), (1,))
        self.set_params(subs=subs, numticks=12)
        return super().tick_values(vmin, vmax)


class SizeLocator(LogLocator):
    """Ticks at powers of two: at each, or at each second, fourth, fifth or tenth, if their labels would not fit."""

    def __call__(self) -> Any:
        axis: Any = self.axis
        low, high = np.log2(axis.get_view_interval())
        step = next((step for step in (1, 2, 4, 5) if (high - low) / step <= labels_on(axis)), 10)
        return 2.0 ** np.arange(max(0, np.ceil(low / step) * step), high, step)


def labels_on(axis: Any) -> float:
    """Return how many labels such as `500 µs` an axis has room for: on x, matplotlib counts labels of three letters."""
    return float(axis.get_tick_space() / (1.6 if axis.axis_name == "x" else 1))


def size_axis(axes: Axes) -> None:
    """Make x a logarithmic axis of sizes in bytes."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(SizeLocator(base=2))
    axes.xaxis.set_major_formatter(lambda value, _: size_text(value))
    axes.xaxis.set_minor_locator(LogLocator(base=2, numticks=100))
    axes.xaxis.set_minor_formatter(NullFormatter())


def log_axis(axes: Axes, name: str, text: Callable[[float], str]) -> None:
    """Make an axis logarithmic, with labels at round numbers. name: x or y. text: formats a label."""
    axes.set(**{f"{name}scale": "log"})
    axis = {"x": axes.xaxis, "y": axes.yaxis}[name]
    axis.set_major_locator(RoundLocator())
    axis.set_major_formatter(lambda value, _: text(value))
    axis.set_minor_formatter(NullFormatter())


def time_axis(axis: Axis) -> None:
    """Label a linear axis of times with numbers and units."""
    axis.set_major_formatter(lambda value, _: time_text(value))


def time_text(seconds: float) -> str:
    """Format a time as a label: `1 ms` and not `1.00 ms`."""
    return _without_zeros(format_seconds(seconds)) if seconds else "0"


def size_text(size: float) -> str:
    """Format a size as a label: `4 KiB` and not `4.00 KiB`; other sizes are rounded, such as `1.15 MiB`."""
    return _without_zeros(format_rounded_bytes(size))


def _without_zeros(text: str) -> str:
    number, unit = text.split()
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Make y an axis of rows 0, 1, … with names, the first on top."""
    axes.set_yticks(range(len(names)), [wrapped(name, ROW_NAME) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def look(series: int, variant: int = 0) -> dict[str, Any]:
    """Return colour and marker of a series, and the line of a variant of it."""
    return {
        "color": COLOURS[series % len(COLOURS)],
        "marker": MARKERS[series % len(MARKERS)],
        "linestyle": LINES[variant % len(LINES)],
    }


def draw_intervals(
    axes: Axes, places: Sequence[float], points: Sequence[Point], horizontal: bool = False, **options: Any
) -> None:
    """Draw a line of values with bars for their intervals.

    places: on x; if horizontal, on y. points: each a value and the limits of its interval; limits that equal the value
    mean that no interval is known. options: of `Axes.errorbar`.
    """
    values, low, high = np.reshape(points, (-1, 3)).T
    bars = [np.where(side == values, np.nan, np.abs(side - values)) for side in (low, high)]
    if horizontal:
        axes.errorbar(values, places, xerr=bars, **options)
    else:
        axes.errorbar(places, values, yerr=bars, **options)


def draw_matrix(axes: Axes, values: Any, label: str) -> None:
    """Draw values, ranks × ranks, as colours from zero. label: of the scale of colours."""
    axes.grid(visible=False)
    image = axes.imshow(values, cmap="cividis", vmin=0, aspect="auto")
    axes.figure.colorbar(image, ax=axes, label=label)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))
