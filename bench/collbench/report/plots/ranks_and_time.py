"""Draw rates between ranks, times over the run, and their distribution.

In: a run and its analysis. Out: figures; none if there is nothing to draw.
"""

import math
from collections import defaultdict
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from collbench.catalog.collectives import cycle
from collbench.model.conclusions import Analysis
from collbench.model.records import Case, Run, Samples, Timings, case_order
from collbench.model.units import first_few, format_modes, format_rate, format_seconds
from collbench.report.labels import counted, label, ranks_text
from collbench.report.plots.figures import COLOURS, MARKERS, WIDE, framed, log_ticks, time_axis, wrapped

# Rows of histograms, and ranks in a matrix with numbers: more are too small to read.
MOST_ROWS, MOST_NUMBERS = 6, 16
# Characters in a line of a histogram's title, whose letters are smaller than in the title of the figure.
ROW_TITLE = 122
# Fewer times than this show no distribution.
FEWEST_TIMES = 100
# Bars of a histogram per decade of times, and the narrowest axis: the ratio of its limits.
BARS_A_DECADE, NARROWEST = 40, 4


def over_time(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw the time of every iteration in order, as a multiple of the mean of its case in its launch."""
    good = [s for s in run.samples if s.failure is None and s.timed is not None]
    if not good:
        return []
    began = min(s.unix_s for s in run.samples)
    named = first_few(list(dict.fromkeys(s.case.op for s in good)))
    backends = ", ".join(dict.fromkeys(s.case.backend for s in good))
    cases, launches = len({s.case for s in good}), run.plan.launches
    count = f"{counted(cases, 'case')}, {counted(launches, 'launch')}"
    what = wrapped(f"{named} on {backends}, {count}", WIDE)
    figure, axes = framed("Every iteration, in the order in which it was measured", f"{what}; a dot: one iteration")
    worlds = sorted({s.case.world_size for s in good})
    for style, n in enumerate(worlds):
        parts = [_in_time(s, began) for s in good if s.case.world_size == n]
        x, y = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
        axes.plot(
            x, y, MARKERS[style % len(MARKERS)], color=COLOURS[style % len(COLOURS)], markersize=2.5, alpha=0.5,
            markeredgewidth=0, rasterized=True, label=ranks_text(n),
        )  # fmt: skip
    warm = [_in_time(s, began, warmup=True) for s in good if s.warmup is not None]
    if warm:  # drawn behind the dots, which matter more
        x, y = np.concatenate([p[0] for p in warm]), np.concatenate([p[1] for p in warm])
        options: Any = {"color": "#888888", "markersize": 3, "alpha": 0.4, "rasterized": True, "zorder": 1}
        axes.plot(x, y, "x", label="warm-up (not used)", **options)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("seconds since the first case began")
    axes.set_ylabel("time of one iteration / mean of its case")
    legend = figure.legend(loc="outside lower center", ncols=8, fontsize=9)
    for handle in legend.legend_handles:
        getattr(handle, "set_markersize", lambda _: None)(6)
        handle.set_alpha(1) if handle is not None else None
    return [figure]


def _in_time(samples: Samples, began: float, warmup: bool = False) -> tuple[Any, Any]:
    timed = samples.timed
    part: Timings | None = samples.warmup if warmup else timed
    assert timed is not None and part is not None  # noqa: S101 - the caller selects such
    first = samples.warmup.start_ns.min() if samples.warmup is not None else timed.start_ns.min()
    seconds = (part.start_ns.min(axis=1) - first) / 1e9 + samples.unix_s - began
    return seconds, part.duration_ns.max(axis=1) / timed.duration_ns.max(axis=1).mean()


def modes(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw histograms of times for the cases that stall most, else for some cases; both modes of a stall are marked.

    All share one axis of times, so that a delay that does not depend on the size shows as modes below one another.
    """
    times_by_case: dict[Case, list[Any]] = defaultdict(list)
    for samples in run.samples:
        if samples.failure is None and samples.timed is not None:
            times_by_case[samples.case].append(samples.timed.slowest_s)
    times_of = {case: np.concatenate(launches) for case, launches in times_by_case.items()}
    good = [s for s in analysis.summaries if s.time_s and not s.imported and cycle(s.case) == 1]
    good = [s for s in good if len(times_of[s.case]) >= FEWEST_TIMES]
    stalled = sorted(
        (s for s in good if s.stall), key=lambda s: -s.stall.share * (s.stall.slow_s - s.stall.fast_s) if s.stall else 0
    )
    chosen = stalled[:MOST_ROWS] or good[:: max(1, len(good) // MOST_ROWS)][:MOST_ROWS]
    if not chosen:
        return []
    chosen.sort(key=lambda s: case_order(s.case))
    figure = Figure(figsize=(8.5, 1.8 + 0.95 * len(chosen)), layout="constrained")
    rows = figure.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
    kind = "those that stall most" if len(stalled) > MOST_ROWS else "all that stall" if stalled else "none stalls"
    cases = f"{counted(len(good), 'case')} of {FEWEST_TIMES} iterations or more"
    text = f"Distribution of the times: {len(chosen)} of {cases}, {kind}"
    figure.suptitle(text, x=0.01, ha="left", fontsize=10.5)
    drawn = [times_of[summary.case] for summary in chosen]
    # The bars reach from the shortest time to nearly the longest: a single iteration must not widen the axis.
    low = 0.95 * min(times.min() for times in drawn)
    high = 1.1 * max(np.quantile(times, 0.995) for times in drawn)
    wider = max(1.0, NARROWEST * low / high) ** 0.5
    low, high = low / wider, high * wider
    bins = np.geomspace(low, high, 2 + round(BARS_A_DECADE * math.log10(high / low)))
    for axes, summary, times in zip(rows, chosen, drawn, strict=True):
        assert summary.time_s is not None  # noqa: S101 - selected above
        stall = summary.stall
        axes.hist(times, bins=bins, weights=np.full(len(times), 100 / len(times)), color=COLOURS[5], edgecolor="none")
        axes.axvline(summary.time_s.value, color="black", linewidth=1)
        text = f"{label(summary.case)}, {len(times)} iterations: mean {format_seconds(summary.time_s.value)}"
        if stall is not None:
            text += f"; {format_modes(stall.share, stall.fast_s, stall.slow_s)}"
            for time_s in (stall.fast_s, stall.slow_s):
                axes.axvline(time_s, color=COLOURS[1], linestyle="--", linewidth=1.8)
        axes.set_title(wrapped(text, ROW_TITLE), fontsize=9)
    rows[-1].set_xscale("log")
    rows[-1].set_xlim(bins[0], bins[-1])
    log_ticks(rows[-1].xaxis)
    time_axis(rows[-1].xaxis)
    rows[-1].set_xlabel("time of one iteration (slowest rank)")
    figure.supylabel("share of the iterations, %", fontsize=9)
    handles = [Line2D([], [], color="black", label="mean")]
    if stalled:
        handles.append(Line2D([], [], color=COLOURS[1], linestyle="--", linewidth=1.8, label="two typical times"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9)
    return [figure]


def matrix(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw the rate between each pair of ranks, at the largest world size with pairs, and at the largest size there."""
    if not analysis.matrices:
        return []
    chosen = max(analysis.matrices, key=lambda m: (m.case.world_size, m.case.size_bytes))
    rates = chosen.case.size_bytes / chosen.times_s / 1e9
    n = len(rates)
    side = min(9.0, 3.2 + 0.45 * n)
    figure = Figure(figsize=(side + 1.6, side), layout="constrained")
    axes = figure.subplots()
    axes.grid(False)
    drawn = axes.imshow(rates, cmap="cividis", vmin=0, vmax=float(np.nanmax(rates)))
    figure.colorbar(drawn, ax=axes, shrink=0.85, label="rate in each direction, GB/s")
    if n <= MOST_NUMBERS:
        for i, j in zip(*np.where(~np.isnan(rates)), strict=True):
            dark = rates[i, j] < 0.55 * np.nanmax(rates)
            colour = "white" if dark else "black"
            axes.text(j, i, format_rate(rates[i, j] * 1e9), ha="center", va="center", fontsize=9, color=colour)
    step = max(1, n // 16)
    axes.set_xticks(range(0, n, step))
    axes.set_yticks(range(0, n, step))
    axes.set_xlabel("rank")
    axes.set_ylabel("rank")
    slow = [f.subject for f in analysis.diagnosis.findings if f.kind in {"slow rank", "slow node", "slow link"}]
    findings = f"found: {', '.join(dict.fromkeys(slow))}" if slow else "nothing stands out"
    heading = wrapped(f"Rate between each pair of ranks; {findings}", WIDE // 2)
    what = wrapped(f"{label(chosen.case)}, both directions at once", WIDE // 2)
    axes.set_title(f"{heading}\n{what}", fontsize=10.5)
    return [figure]
