"""Make figures: colours and styles, axes with units, intervals, figures of many panels, and saving.

Series differ by colour *and* marker *and* line, so that they can be distinguished in black and white. The colours are
the palette of Okabe and Ito, which colour-blind people can distinguish. Figures use `Figure` and not pyplot, because
`Figure` has no global state, opens no window and loads faster.

A panel has one operation, backend and metric. For all other differences it has lines, up to MOST_SERIES. Common parts
of the panels of a page are written once, above them. Each metric begins a new page. The axes of a page are empty here:
`sizes` draws into them.
"""

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from collbench.catalog import metrics
from collbench.catalog.package import MOST_PAGES
from collbench.model.conclusions import Summary
from collbench.model.projection import KINDS
from collbench.model.records import Run
from collbench.model.units import format_bytes, format_seconds
from collbench.report.labels import (
    CasePart,
    case_parts,
    divide,
    in_words,
    metric_name,
    without_usual,
)
from collbench.report.tables import width
from collbench.store import folders

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
STYLE: Any = {
    "text.usetex": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # text is kept as text: files are small and can be searched
    "legend.frameon": False,
    "text.parse_math": False,  # dollar signs in a name do not begin a formula
}


# PNG for the report; the style `paper` has the others, too.
SUFFIXES = (".png", ".svg", ".pdf")
# Style `paper`, for one and for two columns: width in inches; letter size; height without legend.
PAPER_INCHES, PAPER_POINTS, PAPER_HEIGHT = (3.3, 6.9), 8, 2.3
# Smallest distance of two labels of the x axis in this style, as a share of the axis.
PAPER_APART = 0.18
# Ratio of largest to smallest value on an axis below which labels at 1, 2 and 5 are too few.
NARROW = 5
# Sizes that are closer than this share of their axis have one label, because two labels would overlap.
CLOSE = 0.02
# More lines than this in one picture cannot be distinguished.
MOST_SERIES = 6
# Four by six panels: more would be too small to read.
PANELS_A_PAGE = 24
# (most panels, columns, width and height of a panel with its titles and labels in inches). A single panel is as large
# as any other picture.
GRIDS = (
    (1, 1, 8.5, 3.5),
    (2, 2, 4.6, 2.9),
    (3, 3, 3.4, 2.6),
    (4, 2, 4.6, 2.6),
    (9, 3, 3.4, 2.1),
    (PANELS_A_PAGE, 4, 2.7, 1.75),
)
# Inches: the title and the label of the x axis, and a line of the legend.
AROUND, LEGEND_LINE = 1.1, 0.22
# Entries that a legend below all panels has room for; if there are more, each panel has its own legend.
MOST_SHARED = 2 * len(COLOURS)
# Characters in a line of the figure's title, also of a figure of 10 inches; characters per inch in a panel's title.
WIDE, WIDER, LETTERS_AN_INCH = 112, 128, 13
# Inches: an entry of a legend without its text, and a letter of the text.
ENTRY, LETTER = 0.6, 0.075
NO_BREAK = "\N{NO-BREAK SPACE}"
# The space between a number and its unit, as in `1 MiB` or `4 ranks`.
NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=[A-Za-zµ%])")


# ── one figure ───────────────────────────────────────────────────────────────────────────────────
def save(figure: Figure, path: Path, paper: bool = False) -> None:
    """Save a figure as PNG, for a paper also as SVG and PDF. Raises StoreError with the file that cannot be written."""
    if paper:
        _fit_paper(figure)
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)  # with any engine, also "none", savefig draws everything twice
    for suffix in SUFFIXES if paper else SUFFIXES[:1]:
        with folders.naming(path.with_suffix(suffix)):
            figure.savefig(path.with_suffix(suffix))


def _fit_paper(figure: Figure) -> None:
    """Fit a figure into a column of a paper, or several panels into two columns. The title is left to the caption."""
    several = len(figure.axes) > 1
    figure.suptitle("")
    if not several:
        figure.axes[0].set_title("")
    for text in figure.findobj(Text):
        text.set_fontsize(PAPER_POINTS - several)
    width, height = figure.get_size_inches()
    inches = PAPER_INCHES[several]
    high = inches * height / width if several else PAPER_HEIGHT
    for legend in [] if several else list(figure.legends):
        shown = zip(legend.texts, legend.legend_handles, strict=True)
        entries: dict[str, Any] = {text.get_text(): handle for text, handle in shown}
        entries |= {name: handle for name, handle in legend_entries(figure.axes[0]).items() if name in entries}
        columns = fitting_columns(inches, entries)
        legend.remove()
        options: Any = {"ncols": columns, "fontsize": PAPER_POINTS}
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", **options)
        high += LEGEND_LINE * math.ceil(len(entries) / columns)
    figure.set_size_inches(inches, high)
    if not several:
        _thin_labels(figure.axes[0], PAPER_APART)


def _thin_labels(axes: Axes, apart: float) -> None:
    """Remove each label of x whose distance from the previous label is below this share of the axis."""
    kept: dict[float, str] = {}
    last = -math.inf
    for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
        at = axes.transLimits.transform(axes.transScale.transform((place, 1)))[0]
        if label.get_text() and at - last >= apart:
            kept[place], last = label.get_text(), at
    if kept:
        axes.set_xticks(list(kept), list(kept.values()))


def draw_pages(
    drawn_by: Callable[[Any, Any], Sequence[Figure]],
    run: Any,
    analysis: Any,
    paths: Sequence[Path],
    paper: bool = False,
) -> None:
    """Draw the pages of a picture into the first of these paths (without suffix), after removing all old files."""
    for path in paths:
        for suffix in SUFFIXES:
            path.with_suffix(suffix).unlink(missing_ok=True)
    with rc_context(STYLE):
        for figure, path in zip(drawn_by(run, analysis), paths, strict=False):
            save(figure, path, paper)


def framed(quantity: str, cases: str) -> tuple[Figure, Axes]:
    """Make a figure with one set of axes. Its title has two lines: `quantity` and `cases`."""
    figure = Figure(figsize=(8.5, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"{quantity}\n{cases}", fontsize=10.5)
    return figure, axes


def size_axis(axes: Axes, sizes: Sequence[int], most: int, text: Callable[[int], str] = format_bytes) -> None:
    """Make x a logarithmic axis of sizes (or numbers of ranks), which doubles from one tick to the next.

    sizes: the requested sizes, ascending. most: largest number of labels.
    """
    close = (sizes[-1] / sizes[0]) ** CLOSE
    apart = [size for size, following in zip(sizes, [*sizes[1:], math.inf], strict=True) if following > close * size]
    shown = apart[:: math.ceil(len(apart) / most)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [text(size) for size in shown])
    powers = range(math.ceil(math.log2(sizes[0])), math.floor(math.log2(sizes[-1])) + 1)
    axes.xaxis.set_minor_locator(FixedLocator([2.0**power for power in powers]))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if len(apart) == 1:
        axes.set_xlim(sizes[0] / 2, 2 * sizes[-1])


def wrapped(text: str, width: int) -> str:
    """Wrap the text into lines of at most `width` characters; a number stays with its unit."""
    glued = NUMBER_AND_UNIT.sub(NO_BREAK, text)
    return "\n".join(textwrap.wrap(glued, width, break_long_words=False)).replace(NO_BREAK, " ") or text


def legend_entries(axes: Axes) -> dict[str, Any]:
    """Return name → handle, the measured series first: matplotlib lists models and bounds before them."""
    handles, names = axes.get_legend_handles_labels()
    ordered = sorted(zip(names, handles, strict=True), key=lambda entry: not isinstance(entry[1], Container))
    return dict(ordered)


def log_time_axis(axes: Axes) -> None:
    """Make y a logarithmic axis of times, with labels also if they span less than a decade."""
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    time_axis(axes.yaxis)


def log_ticks(axis: Any) -> None:
    """Label 2 and 5 as well on a logarithmic axis of less than three decades: labels at decades alone would be few."""
    low, high = axis.get_view_interval()
    if high / low < 1000:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low > NARROW else range(1, 10), numticks=12))


def marks(summaries: Sequence[Summary]) -> str:
    """State the meaning of bands and bars, or that no intervals are known."""
    known = any(s.time_s is not None and s.time_s.known for s in summaries)
    return f"bands and bars: {width(summaries)}" if known else "no intervals are known"


def time_label(run: Run) -> str:
    """Return the label of an axis of times."""
    return "time of one operation " + ("(mean)" if run.imported is None else "(as imported)")


def time_axis(axis: Any) -> None:
    """Label an axis of times with numbers and units."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axis.set_minor_formatter(NullFormatter())


def tick(seconds: float) -> str:
    """Format a time as a tick label, without trailing zeros: `1 ms` and not `1.00 ms`."""
    number, unit = format_seconds(seconds).split()
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}" if seconds else "0"


def spread(values: list[int], most: int) -> list[int]:
    """Return at most `most` of the values, evenly spaced from first to last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def with_intervals(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    interval: tuple[list[float], list[float]],
    style: int,
    name: str,
) -> None:
    """Draw one line of values with their intervals: a band if all of several values have an interval, else bars.

    interval: lower and upper limits. style: number of the line.
    """
    values = np.array(y)
    # A limit equal to the value means that no interval is known: nothing is drawn.
    low, high = (np.where(np.array(side) == values, np.nan, np.array(side)) for side in interval)
    colour = COLOURS[style % len(COLOURS)]
    band = len(values) > 1 and not np.isnan(low).any() and not np.isnan(high).any()
    if band:
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.errorbar(
        x,
        values,
        yerr=None if band else [np.maximum(values - low, 0), np.maximum(high - values, 0)],
        label=name,
        color=colour,
        marker=MARKERS[style % len(MARKERS)],
        # With more lines than colours, each dash is used with all colours.
        linestyle=LINES[style % len(LINES) if style < len(COLOURS) else style // len(COLOURS) - 1],
        capsize=3,
        markersize=5,
        linewidth=1.5,
    )


# ── panels and pages ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Line:
    """The summaries that one line joins."""

    # Name of the line in the legend.
    name: str
    members: list[Summary]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines that are drawn into one set of axes."""

    # Parts that the lines have in common.
    common: list[CasePart]
    lines: list[Line]

    @property
    def members(self) -> list[Summary]:
        """The summaries of all lines."""
        return [summary for line in self.lines for summary in line.members]


@dataclass(slots=True)
class Page:
    """A figure, and the panels in it."""

    figure: Figure
    # Axes of the figure with their panels.
    places: list[tuple[Axes, Panel]]
    # Maps the name of a line to its style.
    styles: dict[str, int] | None
    # Further entries of the legend.
    extra: list[str] = field(default_factory=list)

    def styled(self, panel: Panel) -> list[tuple[int, Line]]:
        """Return pairs (style number, line). Equal names have equal numbers on a page unless `styles` is None."""
        numbered = enumerate(panel.lines)
        return [(number if self.styles is None else self.styles[line.name], line) for number, line in numbered]


def panels(summaries: Sequence[Summary], split: Callable[[list[Summary]], list[Line]]) -> list[Panel]:
    """Make panels in the order of the tables, metric by metric.

    split: makes lines from summaries that differ in size and ranks only.
    """
    by_kind = KINDS.tables(sorted(summaries, key=lambda s: metrics.order(s.case.metric)), lambda s: s.case)
    together: dict[tuple[str, str, str], list[tuple[list[CasePart], list[Line]]]] = {}
    for case, parts in zip(by_kind, case_parts(list(by_kind)), strict=True):
        base = (case.op, case.backend, metric_name(case))
        together.setdefault(base, []).append((parts, split(by_kind[case])))
    made = []
    for chunk in (chunk for families in together.values() for chunk in _chunks(families)):
        common, own = divide([parts for parts, _ in chunk])
        lines = []
        for parts, (_, line) in zip(own, chunk, strict=True):
            words = [*(part.words for part in parts), *filter(None, [line.name])]
            lines.append(Line(", ".join(words), line.members))
        made.append(Panel(common, lines))
    return made


def _chunks(families: Iterable[tuple[list[CasePart], list[Line]]]) -> list[list[tuple[list[CasePart], Line]]]:
    """Return the lines of each panel, with the parts of their kind. Only a kind above MOST_SERIES lines is divided."""
    chunks: list[list[tuple[list[CasePart], Line]]] = []
    for parts, lines in families:
        for some in (lines[start : start + MOST_SERIES] for start in range(0, len(lines), MOST_SERIES)):
            if not chunks or len(chunks[-1]) + len(some) > MOST_SERIES:
                chunks.append([])
            chunks[-1] += [(parts, line) for line in some]
    return chunks


def pages(quantity: str, properties: str, shown: Sequence[Panel], left_out: Sequence[str] = ()) -> list[Page]:
    """Make figures with titles for all panels. The last figure lists `left_out` and how many panels did not fit.

    quantity: text for the title. properties: properties of all panels for the title, in addition to common parts.
    """
    parts: list[list[Panel]] = []
    for _, group in groupby(shown, key=lambda panel: metric_name(panel.members[0].case)):
        metric_panels = list(group)
        count = math.ceil(len(metric_panels) / PANELS_A_PAGE)
        a_page = math.ceil(len(metric_panels) / count) if count <= MOST_PAGES else PANELS_A_PAGE
        parts += [metric_panels[start : start + a_page] for start in range(0, len(metric_panels), a_page)]
    made = []
    for number, part in enumerate(parts[:MOST_PAGES], start=1):
        place = f" ({number} of {min(len(parts), MOST_PAGES)})" if len(parts) > 1 else ""
        made.append(_page(f"{quantity}{place}", properties, part))
    missing = sum(map(len, parts[MOST_PAGES:]))
    if made:
        made[-1].extra += [*left_out, *([f"and {missing} more panels: see the tables"] if missing else [])]
    return made


def _page(quantity: str, properties: str, part: Sequence[Panel]) -> Page:
    common, own = divide([without_usual(panel.common) for panel in part])
    head = f"{quantity}\n{wrapped(', '.join([*in_words(common), properties]), WIDE)}"
    _, columns, width, height = next(grid for grid in GRIDS if len(part) <= grid[0])
    rows = math.ceil(len(part) / columns)
    figure = Figure(figsize=(columns * width, AROUND + rows * height), layout="constrained")
    figure.suptitle(head, x=0.01, ha="left", fontsize=10.5)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, panel_parts in zip(grid.flat, own if len(part) > 1 else [], strict=False):
        axes.set_title(wrapped(", ".join(in_words(panel_parts)), int(LETTERS_AN_INCH * width)), fontsize=8.5)
        axes.tick_params(labelsize=8)
    for number in range(len(part), grid.size):
        grid.flat[number].set_visible(False)
        grid.flat[number - columns].tick_params(labelbottom=True)  # this panel is now the lowest of its column
    return Page(figure, list(zip(grid.flat, part, strict=False)), _styles(part))


def _styles(part: Sequence[Panel]) -> dict[str, int] | None:
    """Return a style number per line name; None with too many names, or if two lines of a panel would look the same."""
    names = list(dict.fromkeys(line.name for panel in part for line in panel.lines))
    styles = {name: number for number, name in enumerate(names)}
    # `normal, 2 ranks`: if all names have two parts, the first selects the dash and the second the colour.
    pairs = [name.rpartition(", ") for name in names]
    dashes = sorted({first for first, _, _ in pairs}, key=lambda first: (first != "normal", first))
    colours = list(dict.fromkeys(last for _, _, last in pairs))
    if 1 < len(dashes) <= len(LINES) and len(colours) <= len(COLOURS) and "" not in dashes:
        n = len(COLOURS)
        styles = {
            name: colours.index(last) + n * (1 + dashes.index(first))
            for name, (first, _, last) in zip(names, pairs, strict=True)
        }
        return styles if len(names) <= MOST_SHARED else None
    clash = any(len({styles[line.name] % len(COLOURS) for line in panel.lines}) < len(panel.lines) for panel in part)
    return None if clash or len(names) > MOST_SHARED else styles


def label_axes(page: Page, x: str, y: str) -> None:
    """Write the label of x below the lowest panel of each column, and the label of y once."""
    first = page.places[0][0].get_subplotspec()
    for axes, _ in page.places[-first.get_gridspec().ncols :] if first else ():
        axes.set_xlabel(x, fontsize=9)
    page.figure.supylabel(y, fontsize=9)


def legend(page: Page) -> None:
    """Draw one legend below all panels, where it hides nothing; one in each if `page.styles` is None. Call it last."""
    for entry in page.extra:
        page.places[0][0].plot([], [], " ", label=entry)
    entries_by_panel = [legend_entries(axes) for axes, _ in page.places]
    if page.styles is None and len(page.places) > 1:
        for (axes, _), panel_entries in zip(page.places, entries_by_panel, strict=True):
            axes.legend(list(panel_entries.values()), list(panel_entries), loc="best", fontsize=6.5)
        return
    entries: dict[str, Any] = {}
    for panel_entries in entries_by_panel:
        entries |= {name: handle for name, handle in panel_entries.items() if name not in entries}
    figure = page.figure
    columns = fitting_columns(figure.get_figwidth(), entries)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * math.ceil(len(entries) / columns))
    options: Any = {"ncols": columns, "fontsize": 8.5}
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", **options)


def fitting_columns(inches: float, entries: Iterable[str]) -> int:
    """Return how many columns of a legend fit side by side. matplotlib fills the first column before the second."""
    widths = np.array([ENTRY + LETTER * len(name) for name in entries])
    for columns in range(len(widths), 1, -1):
        if sum(part.max() for part in np.array_split(widths, columns)) <= inches:
            return columns
    return 1
