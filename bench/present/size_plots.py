"""Pictures over sizes and world sizes: time, bandwidth with what bounds it, scaling.

In: a run and its analysis. Out: a figure, or None where there is nothing to draw.
"""

import numpy as np
from matplotlib.figure import Figure

from bench.conclusions import Analysis
from bench.present.canvas import framed, log_time_axis, series_of, shown, size_axis, spread, with_intervals
from bench.records import Run
from bench.units import format_bytes


def time_against_size(run: Run, analysis: Analysis) -> Figure | None:
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
    log_time_axis(axes)
    axes.set_ylabel("time of one operation (median)")
    size_axis(axes, analysis.summaries)
    return figure


def bandwidth_against_size(run: Run, analysis: Analysis) -> Figure | None:
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
    # One wide interval must not flatten everything else: it is cut where it leaves the picture.
    axes.set_ylim(0, min(axes.get_ylim()[1], 1.6 * best))
    axes.set_ylabel("bus bandwidth, GB/s")
    size_axis(axes, analysis.summaries)
    return figure


def scaling(run: Run, analysis: Analysis) -> Figure | None:
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
    axes.set_ylabel("time of one operation (median)")
    figure.legend(loc="outside right upper", fontsize=9)
    return figure
