"""Draw rates between ranks, times over the run, and their distribution.

In: a run and its analysis. Out: figures; none if there is nothing to draw.
"""

from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure

from collbench.catalog.collectives import cycle
from collbench.model.conclusions import Analysis
from collbench.model.projection import grouped
from collbench.model.records import Run, Samples, Timings, case_order
from collbench.model.units import first_few, format_modes, format_rate, format_seconds
from collbench.report.labels import common_parts, counted, label, label_parts, ranks_text
from collbench.report.plots import figures
from collbench.report.plots.figures import COLOURS, GREY, draw_matrix, log_axis, look, time_text

# Rows of histograms, and ranks in a matrix with numbers: more are too small to read.
MOST_ROWS, MOST_NUMBERS = 6, 16
# Fewer times than this show no distribution.
FEWEST_TIMES = 100
# Bars of a histogram.
BARS = 80


def over_time(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw the time of every iteration in order, as a multiple of the mean of its case in its launch."""
    good = [s for s in run.samples if s.failure is None and s.timed is not None]
    if not good:
        return []
    began = min(s.unix_s for s in run.samples)
    named = first_few(list(dict.fromkeys(s.case.op for s in good)))
    backends = ", ".join(dict.fromkeys(s.case.backend for s in good))
    count = f"{counted(len({s.case for s in good}), 'case')}, {counted(run.plan.launches, 'launch')}"
    title = f"Every iteration, in the order in which it was measured\n{named} on {backends}, {count}"
    figure, ((axes,),) = figures.page(title, [3.6])
    dots: Any = {"markersize": rcParams["lines.markersize"] / 2, "alpha": 0.5, "rasterized": True}
    for number, n in enumerate(sorted({s.case.world_size for s in good})):
        parts = [_in_time(s, began) for s in good if s.case.world_size == n]
        options = look(number) | {"linestyle": ""}
        axes.plot(*np.concatenate(parts, axis=1), markeredgewidth=0, **options, **dots)
        axes.plot([], [], label=ranks_text(n), **options)
    if warm := [_in_time(s, began, warmup=True) for s in good if s.warmup is not None]:
        # Drawn behind the dots, which matter more.
        axes.plot(*np.concatenate(warm, axis=1), "x", color=GREY, zorder=1, **dots | {"alpha": 0.25})
        axes.plot([], [], "x", color=GREY, label="warm-up (not used)")
    axes.axhline(1, color="black", linewidth=0.8)
    log_axis(axes, "y", lambda value: f"{value:g}×")
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds since the first case began")
    axes.set_ylabel("time of one iteration / mean of its case")
    return [figure]


def _in_time(samples: Samples, began: float, warmup: bool = False) -> tuple[Any, Any]:
    timed = samples.timed
    part: Timings | None = samples.warmup if warmup else timed
    assert timed is not None and part is not None  # noqa: S101 - the caller selects such
    first = samples.warmup.start_ns.min() if samples.warmup is not None else timed.start_ns.min()
    seconds = (part.start_ns.min(axis=1) - first) / 1e9 + samples.unix_s - began
    return seconds, part.duration_ns.max(axis=1) / timed.duration_ns.max(axis=1).mean()


def modes(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw histograms of times with means, for the cases that stall most, else for some cases.

    All share one axis of times, so that a delay that does not depend on the size shows as modes below one another.
    """
    launches = grouped((s for s in run.samples if s.failure is None and s.timed is not None), lambda s: s.case)
    times_of = {case: np.concatenate([s.timed.slowest_s for s in of if s.timed]) for case, of in launches.items()}
    good = [s for s in analysis.summaries if s.time_s and not s.imported and cycle(s.case) == 1]
    good = [s for s in good if len(times_of[s.case]) >= FEWEST_TIMES]
    stalled = sorted(
        (s for s in good if s.stall), key=lambda s: -s.stall.share * (s.stall.slow_s - s.stall.fast_s) if s.stall else 0
    )
    chosen = stalled[:MOST_ROWS] or good[:: max(1, len(good) // MOST_ROWS)][:MOST_ROWS]
    if not chosen:
        return []
    chosen.sort(key=lambda s: case_order(s.case))
    kind = "those that stall most" if len(stalled) > MOST_ROWS else "all that stall" if stalled else "none stalls"
    cases = f"{counted(len(good), 'case')} of {FEWEST_TIMES} iterations or more"
    common, names = common_parts([label_parts(summary.case) for summary in chosen])
    title = f"Distribution of the times: {len(chosen)} of {cases}, {kind}\n{common}"
    figure, grid = figures.page(title.rstrip(), [0.65] * len(chosen), sharex=True)
    drawn = [times_of[summary.case] for summary in chosen]
    # The axis reaches from the shortest time to nearly the longest, which a single iteration must not determine, and at
    # least to twice the shortest.
    low = min(times.min() for times in drawn)
    bins = np.geomspace(low, max(2 * low, *(np.quantile(times, 0.995) for times in drawn)), BARS)
    for axes, name, summary, times in zip(grid[:, 0], names, chosen, drawn, strict=True):
        assert summary.time_s is not None  # noqa: S101 - selected above
        axes.hist(times, bins=bins, weights=np.full(len(times), 100 / len(times)), color=COLOURS[5], edgecolor="none")
        axes.axvline(summary.time_s.value, color="black", linewidth=1, label="mean")
        text = f"{name}: mean {format_seconds(summary.time_s.value)}"
        stall = summary.stall
        axes.set_title(text if stall is None else f"{text}; {format_modes(stall.share, stall.fast_s, stall.slow_s)}")
    log_axis(axes, "x", time_text)
    axes.set_xlim(bins[0], bins[-1])
    axes.set_xlabel("time of one iteration (slowest rank)")
    figure.supylabel("share, %")
    return [figure]


def matrix(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw the rate between each pair of ranks, at the largest world size with pairs, and at the largest size there."""
    if not analysis.matrices:
        return []
    chosen = max(analysis.matrices, key=lambda m: (m.case.world_size, m.case.size_bytes))
    rates = chosen.case.size_bytes / chosen.times_s / 1e9
    slow = [f.subject for f in analysis.diagnosis.findings if f.kind in {"slow rank", "slow node", "slow link"}]
    findings = f"found: {', '.join(dict.fromkeys(slow))}" if slow else "nothing stands out"
    what = f"{label(chosen.case)}, both directions at once"
    figure, ((axes,),) = figures.page(
        f"Rate between each pair of ranks; {findings}\n{what}", [min(7, 2 + 0.4 * len(rates))]
    )
    draw_matrix(axes, rates, "rate in each direction, GB/s")
    for i, j in zip(*np.where(~np.isnan(rates)), strict=True) if len(rates) <= MOST_NUMBERS else ():
        colour = "white" if rates[i, j] < 0.55 * np.nanmax(rates) else "black"
        axes.text(j, i, format_rate(rates[i, j] * 1e9), ha="center", va="center", fontsize="small", color=colour)
    axes.set_xlabel("rank")
    axes.set_ylabel("rank")
    return [figure]
