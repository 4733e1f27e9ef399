"""Draw time and bandwidth against size, with bounds, and time against world size.

In: a run and its analysis. Out: figures, one per page; none if there is nothing to draw.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from collbench.model.conclusions import LINK_AS_GIVEN, Analysis, Bound, Summary
from collbench.model.projection import grouped
from collbench.model.records import Run
from collbench.model.units import first_few, format_rate
from collbench.report.labels import counted, ranks_text, size_text
from collbench.report.plots import figures
from collbench.report.plots.figures import COLOURS, Line, Page, Panel, log_time_axis, marks, spread, time_label
from collbench.report.tables import size_rows

# A bound above this many times the best bandwidth is named in the legend and not drawn.
FAR_BOUND = 4
# Bandwidths that span more than this factor are on a logarithmic axis: on a linear one the smallest would lie on zero.
LINEAR_WITHIN = 20
# Lines in the picture of scaling: sizes from the smallest to the largest, fewer than there are colours.
MOST_SIZES = 4
# A line through two numbers of ranks says no more than the table.
FEWEST_WORLDS = 3
# Labels of world sizes that fit below a panel.
MOST_WORLDS = 8
# Labels of sizes that fit below a single panel, and below each of several panels.
MOST_SIZES_ALONE, MOST_SIZES_BESIDE = 10, 5
# An interval that reaches further beyond all values is cut at the edge of the picture: with two or three launches,
# intervals of the mean can span decades, and the axis would show nothing else.
FAR_INTERVAL = 10
BOUND_DASHES = ((6, 2), (2, 2), (8, 2, 2, 2))


def time_against_size(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw mean times with intervals, one line per world size."""
    shown, left_out = _over_sizes([s for s in analysis.summaries if s.time_s])
    made = figures.pages("Time over message size", _properties(run, analysis), shown, left_out)
    return [_times_drawn(page, _size, run) for page in made]


def scaling(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw time against world size, at a few sizes."""
    shown = [panel for panel in figures.panels([s for s in analysis.summaries if s.time_s], _by_size) if panel.lines]
    made = figures.pages("Time over the number of ranks", _properties(run, analysis), shown)
    return [_times_drawn(page, _world, run) for page in made]


def _times_drawn(page: Page, x_of: Callable[[Summary], int], run: Run) -> Figure:
    """Draw the times of a page with their intervals, and NCCL's choices. x_of: `_size` or `_world`."""
    for axes, style, line, x in _placed(page, x_of):
        times = [s.time_s for s in line.members if s.time_s]
        values = [time.value for time in times]
        limits = [time.low for time in times], [time.high for time in times]
        figures.with_intervals(axes, x, values, limits, style, line.name)
        if x_of is _size:
            _draw_choices(axes, line, x, values, style)
    log_time_axis(page.places[0][0])
    _finish(page, x_of, time_label(run))
    return page.figure


def bandwidth_against_size(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw bus bandwidth, its interval and bounds, on a logarithmic axis if it spans more than LINEAR_WITHIN."""
    shown, left_out = _over_sizes([s for s in analysis.summaries if s.time_s and s.busbw])
    made = figures.pages("Bus bandwidth over message size", _properties(run, analysis), shown, left_out)
    for page in made:
        rates = [s.busbw / 1e9 for _, panel in page.places for s in panel.members if s.busbw]
        for axes, style, line, x in _placed(page, _size):
            _draw_rates(axes, line, x, style)
        for axes, panel in page.places:
            _draw_bounds(axes, analysis.bounds, panel, max(rates))
        axes = page.places[0][0]
        if max(rates) > LINEAR_WITHIN * min(rates):
            axes.set_yscale("log")
            figures.log_ticks(axes.yaxis)
        else:
            axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        _finish(page, _size, "bus bandwidth, GB/s")
    return [page.figure for page in made]


def _properties(run: Run, analysis: Analysis) -> str:
    return f"{counted(run.plan.launches, 'launch')}; {marks(analysis.summaries)}"


# ── lines and axes ───────────────────────────────────────────────────────────────────────────────
def _over_sizes(summaries: Sequence[Summary]) -> tuple[list[Panel], list[str]]:
    """Return panels with a line per world size, and a text on the operations that are left out.

    If there are several panels, panels with only one size are left out: a single point is not a picture.
    """
    every = figures.panels([s for s in summaries if s.case.size_bytes], by_ranks)
    alone = len(every) == 1 and len(every[0].members) > 1
    kept = every if alone else [p for p in every if any(len(line.members) > 1 for line in p.lines)]
    drawn = {s.case.op for panel in kept for s in panel.members}
    missing = list(dict.fromkeys(s.case.op for s in summaries if s.case.op not in drawn))
    return kept, [f"without two sizes: {first_few(missing)}"] if missing else []


def by_ranks(members: list[Summary]) -> list[Line]:
    """Return a line for each world size."""
    return [Line(ranks_text(n), group) for n, group in grouped(members, lambda s: s.case.world_size).items()]


def _by_size(members: list[Summary]) -> list[Line]:
    """Return lines of at most MOST_SIZES sizes, the largest first; only sizes with FEWEST_WORLDS world sizes."""
    summary_by_case = {summary.case: summary for summary in members}
    rows = [row for row in size_rows(list(summary_by_case)) if len(row) >= FEWEST_WORLDS]
    lines = []
    for place in reversed(spread(list(range(len(rows))), MOST_SIZES)):
        row = sorted(rows[place], key=lambda case: case.world_size)
        name = size_text(row[0].asked) if row[0].size_bytes else "no size"
        lines.append(Line(name, [summary_by_case[case] for case in row]))
    return lines


def _size(summary: Summary) -> int:
    return summary.case.size_bytes


def _world(summary: Summary) -> int:
    return summary.case.world_size


def _placed(page: Page, x_of: Callable[[Summary], int]) -> Iterator[tuple[Axes, int, Line, list[float]]]:
    """Yield (axes, style, line, its x values) for each line of a page."""
    for axes, panel in page.places:
        for style, line in page.styled(panel):
            yield axes, style, line, [x_of(s) for s in line.members]


def _finish(page: Page, x_of: Callable[[Summary], int], y: str) -> None:
    """Label the axes and the lines. x_of: `_size` or `_world`; y: the label of the y axis."""
    axes = page.places[0][0]
    members = [s for _, panel in page.places for s in panel.members]
    if x_of is _world:
        figures.size_axis(axes, sorted({*map(_world, members)}), MOST_WORLDS, str)
    else:
        most = MOST_SIZES_ALONE if len(page.places) == 1 else MOST_SIZES_BESIDE
        figures.size_axis(axes, sorted({s.case.asked for s in members}), most)
    # An interval that reaches further than FAR_INTERVAL beyond all values is cut, and the legend states it.
    series = [drawn[0] for axes, _ in page.places for drawn in axes.containers]
    values = [float(value) for line in series for value in line.get_ydata()]
    low, high = axes.get_ylim()
    lowest, highest = min(values) / FAR_INTERVAL, max(values) * FAR_INTERVAL
    if low < lowest or high > highest:
        axes.set_ylim(max(low, lowest), min(high, highest))
        page.extra.append("an interval extends beyond the picture")
    x = "number of ranks" if x_of is _world else "message size per rank"
    figures.label_axes(page, x, y)
    figures.legend(page)


# ── drawing ──────────────────────────────────────────────────────────────────────────────────────
def _draw_rates(axes: Axes, line: Line, x: Sequence[float], style: int) -> None:
    busbw = np.array([s.busbw for s in line.members], dtype=float) / 1e9
    times = [s.time_s for s in line.members if s.time_s]
    low = [b * t.value / t.high for b, t in zip(busbw, times, strict=True)]
    high = [b * t.value / t.low for b, t in zip(busbw, times, strict=True)]
    figures.with_intervals(axes, x, busbw.tolist(), (low, high), style, line.name)
    _draw_choices(axes, line, x, busbw.tolist(), style)


def _draw_choices(axes: Axes, line: Line, x: Sequence[float], values: Sequence[float], style: int) -> None:
    """Write NCCL's choice at the smallest size, and at each size from which on the choice is different."""
    chosen = [(at, value, s.chosen) for s, at, value in zip(line.members, x, values, strict=True) if s.chosen]
    begins = [point for place, point in enumerate(chosen) if not place or point[2] != chosen[place - 1][2]]
    if len(begins) < 2:
        return
    colour = COLOURS[style % len(COLOURS)]
    for at, value, choice in begins:
        axes.plot([at], [value], "o", markersize=9, markerfacecolor="none", markeredgecolor=colour, zorder=4)
        # There is room below and to the right of a rising curve.
        options: Any = {"xytext": (4, -6), "textcoords": "offset points", "rotation": -35, "va": "top"}
        axes.annotate(choice.split(",")[0], (at, value), fontsize=7, color=colour, **options)
    circle: Any = {"markersize": 9, "markerfacecolor": "none", "markeredgecolor": "#888888"}
    axes.plot([], [], "o", label="NCCL chooses otherwise", **circle)


def _draw_bounds(axes: Axes, bounds: Sequence[Bound], panel: Panel, best: float) -> None:
    """Draw the bounds of bandwidth. best: the highest bandwidth on the page, GB/s."""
    backend_bounds = (bound for bound in bounds if bound.backend == panel.members[0].case.backend)
    limits = grouped(backend_bounds, lambda bound: (bound.name, round(bound.busbw, -3)))
    for number, ((name, busbw), equal) in enumerate(limits.items()):
        rate = busbw / 1e9
        ranks = "" if name == LINK_AS_GIVEN else f", {' and '.join(str(bound.world_size) for bound in equal)} ranks"
        text = f"{name}{ranks}: {format_rate(busbw)} GB/s"
        if rate > FAR_BOUND * best:  # drawing it would flatten everything else
            axes.plot([], [], " ", label=f"far above the picture: {text}")
            continue
        dashes = BOUND_DASHES[number % len(BOUND_DASHES)]
        axes.axhline(rate, color="black", linewidth=1.2, linestyle=(0, dashes), label=text)
