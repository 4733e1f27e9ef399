"""Pictures over sizes and world sizes: time, bandwidth with what bounds it, scaling.

In: a run and its analysis. Out: a figure, or None where there is nothing to draw.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.conclusions import Analysis, Fit, Summary
from bench.present.canvas import (
    COLOURS,
    MOST_SERIES,
    framed,
    log_time_axis,
    series_of,
    shown,
    size_axis,
    spread,
    time_label,
    with_intervals,
)
from bench.records import Run
from bench.units import format_bytes, format_rate

# A bound that is so many times the best bandwidth is named and not drawn.
FAR_BOUND = 4


def time_against_size(run: Run, analysis: Analysis) -> Figure | None:
    """Median time with its interval, one line a world size, and the fitted model behind it."""
    series = series_of(analysis.summaries)
    if not series:
        return None
    figure, axes = framed("How long does it take?", run, analysis.summaries)
    for style, (name, members) in enumerate(shown(axes, series)):
        times = [s.time_s for s in members if s.time_s]
        with_intervals(
            axes,
            [s.case.size_bytes for s in members],
            [t.value for t in times],
            ([t.low for t in times], [t.high for t in times]),
            style,
            name,
        )
    _draw_models(axes, analysis.fits, series)
    log_time_axis(axes)
    axes.set_ylabel(time_label(run))
    size_axis(axes, analysis.summaries)
    return figure


def bandwidth_against_size(run: Run, analysis: Analysis) -> Figure | None:
    """Bus bandwidth with its interval, and what it cannot exceed."""
    series = [(name, [s for s in members if s.busbw]) for name, members in series_of(analysis.summaries)]
    series = [(name, members) for name, members in series if members]
    if not series:
        return None
    figure, axes = framed("How much of the bus does it use?", run, analysis.summaries)
    for style, (name, members) in enumerate(shown(axes, series)):
        busbw = np.array([s.busbw for s in members], dtype=float) / 1e9
        times = [s.time_s for s in members if s.time_s]
        low = [b * t.value / t.high for b, t in zip(busbw, times, strict=True)]
        high = [b * t.value / t.low for b, t in zip(busbw, times, strict=True)]
        with_intervals(axes, [s.case.size_bytes for s in members], busbw.tolist(), (low, high), style, name)
    best = max((s.busbw or 0.0) for _, members in series for s in members) / 1e9
    best = _draw_bounds(axes, analysis, best)
    # One wide interval must not flatten everything else: it is cut where it leaves the picture.
    axes.set_ylim(0, min(axes.get_ylim()[1], 1.6 * best))
    axes.set_ylabel("bus bandwidth, GB/s")
    size_axis(axes, analysis.summaries)
    return figure


def scaling(run: Run, analysis: Analysis) -> Figure | None:
    """Time against world size, at a few sizes."""
    good = [s for s in analysis.summaries if s.time_s]
    worlds = sorted({s.case.world_size for s in good})
    if len(worlds) < 2:
        return None
    sizes = spread(sorted({s.case.size_bytes for s in good}), 4)
    figure, axes = framed("What do more ranks cost?", run, analysis.summaries)
    for style, size in enumerate(reversed(sizes)):
        members = sorted((s for s in good if s.case.size_bytes == size), key=lambda s: s.case.world_size)
        members = [s for s in members if s.case.op == members[0].case.op and s.case.backend == members[0].case.backend]
        times = [s.time_s for s in members if s.time_s]
        interval = ([t.low for t in times], [t.high for t in times])
        xs = [s.case.world_size for s in members]
        with_intervals(axes, xs, [t.value for t in times], interval, style, format_bytes(size))
    log_time_axis(axes)
    axes.set_xticks(worlds)
    axes.set_xlim(worlds[0] - 0.3, worlds[-1] + 0.3)
    axes.set_xlabel("world size (ranks)")
    axes.set_ylabel(time_label(run))
    figure.legend(loc="outside right upper", fontsize=9)
    return figure


def _draw_models(axes: Axes, fits: Sequence[Fit], series: Sequence[tuple[str, list[Summary]]]) -> None:
    """Thin lines in the colour of the series that they model."""
    colours = {
        members[0].case: COLOURS[style % len(COLOURS)] for style, (_, members) in enumerate(series[:MOST_SERIES])
    }
    drawn = False
    for fit in fits:
        colour = colours.get(fit.case)
        for segment in fit.segments if colour else ():
            sizes = np.geomspace(segment.low, segment.high, 50)
            times = segment.alpha_s + sizes * segment.beta_s_per_byte
            axes.plot(sizes, times, color=colour, linewidth=4, alpha=0.25, solid_capstyle="butt", zorder=1)
            drawn = True
    if drawn:
        axes.plot([], [], color="#888888", linewidth=4, alpha=0.4, label="model: α + size·β, piecewise")


def _draw_bounds(axes: Axes, analysis: Analysis, best: float) -> float:
    """Lines that no case can exceed; returns the largest bandwidth that must be in the picture, GB/s."""
    marks: dict[tuple[str, float], list[int]] = {}
    for bound in analysis.bounds:
        marks.setdefault((bound.name, round(bound.busbw, -3)), []).append(bound.world_size)
    for number, ((name, busbw), worlds) in enumerate(marks.items()):
        rate = busbw / 1e9
        ranks = "" if name == "link as given" else f", {' and '.join(map(str, worlds))} ranks"
        text = f"{name}{ranks}: {format_rate(busbw)}"
        if rate > FAR_BOUND * best:  # drawing it would flatten everything else
            axes.plot([], [], " ", label=f"far above: {text}")
            continue
        axes.axhline(rate, color="black", linewidth=1.2, linestyle=(0, (6 - number % 3, 2)), label=text)
        best = max(best, rate / 1.5)
    return best
