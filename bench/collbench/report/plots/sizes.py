"""Draw time and bandwidth against size, with bounds, and time against world size.

In: a run and its analysis. Out: figures, one per page; none if there is nothing to draw.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collbench.model.conclusions import LINK_AS_GIVEN, Analysis, Bound, Summary
from collbench.model.projection import grouped
from collbench.model.records import Run
from collbench.model.units import first_few, format_rate
from collbench.report.labels import counted, ranks_text, size_text
from collbench.report.plots import panels
from collbench.report.plots.figures import LINES, Point, draw_intervals, log_axis, name_axes, size_axis, time_text
from collbench.report.plots.panels import Line, Page, Panel
from collbench.report.tables import size_rows, width

# Intervals and bounds that reach this many times beyond all values are cut or named: they would flatten the values.
FAR = 3
# Lines in the picture of scaling: sizes from the smallest to the largest, fewer than there are colours.
MOST_SIZES = 4
# A line through two numbers of ranks says no more than the table.
FEWEST_WORLDS = 3
# Labels of world sizes that fit below a panel.
MOST_WORLDS = 8
# The two x axes: size, and number of ranks.
_size, _world = attrgetter("case.size_bytes"), attrgetter("case.world_size")


def time_against_size(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw mean times with intervals, one line per world size."""
    drawn, left_out = _over_sizes([s for s in analysis.summaries if s.time_s])
    pages = panels.pages("Time over message size", _properties(run, analysis), drawn, left_out)
    return [_times_drawn(page, _size, run) for page in pages]


def scaling(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw time against world size, at a few sizes."""
    drawn = [panel for panel in panels.panels([s for s in analysis.summaries if s.time_s], _by_size) if panel.lines]
    pages = panels.pages("Time over the number of ranks", _properties(run, analysis), drawn)
    return [_times_drawn(page, _world, run) for page in pages]


def _times_drawn(page: Page, place_of: Callable[[Summary], int], run: Run) -> Figure:
    points = _draw_lines(page, place_of, _times)
    log_axis(page.places[0][0], "y", time_text)
    return _finished(page, place_of, time_label(run), points, min(points)[0] / FAR)


def bandwidth_against_size(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw bus bandwidth, its interval and bounds, on a linear axis: the highest rates matter."""
    drawn, left_out = _over_sizes([s for s in analysis.summaries if s.time_s and s.busbw])
    pages = panels.pages("Bus bandwidth over message size", _properties(run, analysis), drawn, left_out)
    made = []
    for page in pages:
        points = _draw_lines(page, _size, _rates)
        for axes, panel in page.places:
            _draw_bounds(axes, analysis.bounds, panel, max(points)[0])
        page.places[0][0].set_ylim(bottom=0)
        made.append(_finished(page, _size, "bus bandwidth, GB/s", points))
    return made


def _properties(run: Run, analysis: Analysis) -> str:
    return f"{counted(run.plan.launches, 'launch')}; {bars(analysis.summaries)}"


def bars(summaries: Sequence[Summary]) -> str:
    """State the meaning of bars, or that no intervals are known."""
    known = any(s.time_s is not None and s.time_s.known for s in summaries)
    return f"bars: {width(summaries)}" if known else "no intervals are known"


def time_label(run: Run) -> str:
    """Return the label of an axis of times."""
    return "time of one operation " + ("(mean)" if run.imported is None else "(as imported)")


# ── lines and axes ───────────────────────────────────────────────────────────────────────────────
def _over_sizes(summaries: Sequence[Summary]) -> tuple[list[Panel], list[str]]:
    """Return panels with a line per world size, and a text on the operations that are left out.

    If there are several panels, panels with only one size are left out: a single point is not a picture.
    """
    every = panels.panels([s for s in summaries if s.case.size_bytes], by_ranks)
    alone = len(every) == 1 and len(every[0].members) > 1
    kept = every if alone else [p for p in every if any(len(line.members) > 1 for line in p.lines)]
    drawn = {s.case.op for panel in kept for s in panel.members}
    missing = list(dict.fromkeys(s.case.op for s in summaries if s.case.op not in drawn))
    return kept, [f"without two sizes: {first_few(missing)}"] if missing else []


def by_ranks(members: list[Summary]) -> dict[str, list[Summary]]:
    """Divide summaries by world size."""
    return grouped(members, lambda s: ranks_text(s.case.world_size))


def _by_size(members: list[Summary]) -> Mapping[str, list[Summary]]:
    """Return summaries of at most MOST_SIZES sizes, the largest first; only sizes with FEWEST_WORLDS world sizes."""
    summary_by_case = {summary.case: summary for summary in members}
    rows = [row for row in size_rows(list(summary_by_case)) if len(row) >= FEWEST_WORLDS]
    places = {round(place) for place in np.linspace(0, len(rows) - 1, MOST_SIZES)} if rows else ()
    return {
        size_text(rows[place][0].asked) if rows[place][0].size_bytes else "no size": [
            summary_by_case[case] for case in sorted(rows[place], key=lambda case: case.world_size)
        ]
        for place in sorted(places, reverse=True)
    }


def _times(line: Line) -> list[Point]:
    return [(s.time_s.value, s.time_s.low, s.time_s.high) for s in line.members if s.time_s]


def _rates(line: Line) -> list[Point]:
    """Return bus bandwidths in GB/s."""
    known = [(s.busbw / 1e9, s.time_s) for s in line.members if s.busbw and s.time_s]
    return [(rate, rate * time.value / time.high, rate * time.value / time.low) for rate, time in known]


def _draw_lines(
    page: Page, place_of: Callable[[Summary], int], points_of: Callable[[Line], list[Point]]
) -> list[Point]:
    """Draw the lines of a page, over sizes with NCCL's choices. Returns the points of all lines."""
    drawn = []
    for axes, line, look in page.drawn_lines():
        points = points_of(line)
        draw_intervals(axes, [place_of(s) for s in line.members], points, label=line.name, **look)
        if place_of is _size:
            _draw_choices(axes, line, points, look["color"])
        drawn += points
    return drawn


def _finished(
    page: Page, place_of: Callable[[Summary], int], y: str, points: Sequence[Point], lowest: float = 0.0
) -> Figure:
    """Return the figure of a page with its axes labelled, and intervals cut that reach far beyond the values.

    points: all that were drawn. lowest: the limit at which intervals are cut.
    """
    axes, highest = page.places[0][0], FAR * max(points)[0]
    if place_of is _size:
        size_axis(axes)
    else:
        worlds = sorted({_world(s) for _, panel in page.places for s in panel.members})
        labelled = worlds[:: -(-len(worlds) // MOST_WORLDS)]
        axes.set_xscale("log", base=2)
        axes.set_xticks(labelled, map(str, labelled))
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, lowest), min(top, highest))
    if any(low < lowest or high > highest for _, low, high in points):
        page.note("an interval extends beyond the picture")
    x = "message size per rank" if place_of is _size else "number of ranks"
    name_axes(page.figure, x, y, page.spare)
    for axes, _ in page.places if page.looks is None and len(page.places) > 1 else ():
        axes.legend(fontsize="small")
    return page.figure


# ── drawing ──────────────────────────────────────────────────────────────────────────────────────
def _draw_choices(axes: Axes, line: Line, points: Sequence[Point], colour: str) -> None:
    """Write NCCL's choice at the smallest size, and at each size from which on the choice is different."""
    chosen = [(s.case.size_bytes, value, s.chosen) for s, (value, *_) in zip(line.members, points, strict=True)]
    chosen = [point for point in chosen if point[2]]
    begins = [point for place, point in enumerate(chosen) if not place or point[2] != chosen[place - 1][2]]
    if len(begins) < 2:
        return
    for size, value, choice in begins:
        axes.plot([size], [value], "o", markersize=9, markerfacecolor="none", markeredgecolor=colour, zorder=4)
        # There is room below and to the right of a rising curve.
        options: Any = {"xytext": (4, -6), "textcoords": "offset points", "rotation": -35, "va": "top"}
        axes.annotate(choice.split(",")[0], (size, value), fontsize="x-small", color=colour, **options)
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
        if rate > FAR * best:  # drawing it would flatten everything else
            axes.plot([], [], " ", label=f"far above the picture: {text}")
            continue
        axes.axhline(rate, color="black", linewidth=1.2, linestyle=LINES[1 + number % 3], label=text)
