"""Draw arrivals and durations of ranks, rates between ranks, times over the run, and their distribution.

In: a run and its analysis. Out: figures; none if there is nothing to draw.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from bench.catalog.operations import cycle
from bench.model.conclusions import Analysis, Finding
from bench.model.records import Case, Run, Samples, Timings, case_order
from bench.model.units import first_few, format_modes, format_rate, format_seconds
from bench.report.labels import counted, label, ranks_text
from bench.report.plots.figures import COLOURS, MARKERS, WIDE, framed, log_ticks, log_time_axis, time_axis, wrapped

# Rows of histograms (and names of late ranks), and ranks in a matrix with numbers: more are too small to read.
MOST_ROWS, MOST_NUMBERS = 6, 16
# Iterations below which a rank has a dot for each: quartiles and a 5th percentile of fewer say nothing.
FEWEST_BOXED = 20
# More boxes than this cannot be told apart, and take seconds to draw.
MOST_BOXES = 32
# What is drawn of each rank, for the picture of ranks.
BOXES = "Box: quartiles, with the median; whiskers: 5th to 95th percentile."
DOTS = "Dot: one iteration."
BANDS = "Dot: median; bar: 5th to 95th percentile."
# Quantile of the times above 0 from which down the axis is linear: few of them are below it.
LINEAR_BELOW = 0.1
# Characters in the title of a histogram, which is smaller than the figure's.
ROW_TITLE = 122
# Bars of a histogram in a decade of times, and the narrowest axis: the ratio of its ends.
BARS_A_DECADE, NARROWEST = 40, 4


def ranks(run: Run, analysis: Analysis) -> list[Figure]:
    """Arrival and duration of each rank in the case where arrival mattered most."""
    several = [s for s in analysis.summaries if s.time_s and s.skew_s is not None and s.case.world_size > 1]
    # Prefer cases in which groups or pairs do not take turns: with turns, a rank's iterations differ.
    candidates = [s for s in several if cycle(s.case) == 1] or several
    if not candidates:
        return []
    chosen = max(candidates, key=lambda s: (s.skew_s or 0.0) / (s.time_s.value if s.time_s else 1.0))
    launches = [s.timed for s in run.samples if s.case.key == chosen.case.key and s.failure is None and s.timed]
    known = [(timings.duration_ns, timings.arrivals_ns) for timings in launches if timings.arrivals_ns is not None]
    if not known:
        return []
    durations, arrivals = (np.concatenate(parts) for parts in zip(*known, strict=True))
    took, late = durations / 1e9, (arrivals - arrivals.min(axis=1, keepdims=True)) / 1e9
    late_findings = [
        f for f in analysis.diagnosis.findings if f.kind in {"late rank", "late node"} and chosen.case in f.cases
    ]
    figure = Figure(figsize=(8.5, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    many, few = late.shape[1] > MOST_BOXES, len(late) < FEWEST_BOXED
    name = label(chosen.case)
    which = f"Of {len(candidates)} cases, arrivals matter most in {name}" if len(candidates) > 1 else f"This is {name}"
    text = f"{which}: {counted(len(took), 'iteration')} of {counted(len(known), 'launch')}."
    text = wrapped(f"{text} {DOTS if few else BANDS if many else BOXES}", WIDE)
    figure.suptitle(f"Arrival of each rank, and its time in the call\n{text}", x=0.01, ha="left", fontsize=10.5)
    for axes, data, title in (
        (left, late, "arrives after the first rank by"),
        (right, took, "spends in the call (the last to arrive spends least)"),
    ):
        if few:
            axes.plot(np.tile(np.arange(data.shape[1]), len(data)), data.ravel(), "o", color=COLOURS[0], alpha=0.5)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=16, integer=True))
        elif many:
            _bands(axes, data, late_findings)
        else:
            _boxes(axes, data)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("rank")
        _log_from_zero(axes, data)
    return [figure]


def _log_from_zero(axes: Axes, data: Any) -> None:
    """Logarithmic times along y; linear from 0 to a tenth or less of what is usual where 0 occurs, so that 0 is seen.

    Arrivals differ by decades, and the rank that arrives first is 0 late: its median is often 0.
    """
    if data.min() > 0:
        log_time_axis(axes)
        return
    positive = data[data > 0]
    linear = 10.0 ** math.floor(math.log10(np.quantile(positive, LINEAR_BELOW))) if positive.size else 1e-6
    axes.set_yscale("symlog", linthresh=linear, linscale=0.5, subs=range(2, 10))
    # 0 itself is above the lower edge, and the name of the latest rank is below the upper one.
    axes.set_ylim(-0.3 * linear, max(2 * float(data.max()), linear))
    axes.axhline(0, color="black", linewidth=0.8, zorder=1)
    time_axis(axes.yaxis)


def _boxes(axes: Axes, data: Any) -> None:
    """Boxes: quartiles and median; whiskers: 5th to 95th percentile; values beyond are drawn as dots."""
    ranks = data.shape[1]
    axes.boxplot(
        [data[:, rank] for rank in range(ranks)],
        positions=range(ranks),
        whis=(5, 95),
        widths=0.6,
        flierprops={"marker": ".", "markersize": 3, "alpha": 0.4},
        medianprops={"color": COLOURS[1], "linewidth": 2},
        boxprops={"color": COLOURS[0]},
        whiskerprops={"color": COLOURS[0]},
        capprops={"color": COLOURS[0]},
    )
    if ranks > 16:
        axes.set_xticks(range(0, ranks, max(1, ranks // 8)), [str(r) for r in range(0, ranks, max(1, ranks // 8))])


def _bands(axes: Axes, data: Any, late: Sequence[Finding]) -> None:
    """Many ranks: 5th to 95th percentile as a line, the median as a dot; late ranks in another colour, with names."""
    low, middle, high = np.quantile(data, [0.05, 0.5, 0.95], axis=0)
    of_late = sorted({rank for finding in late for rank in finding.ranks})
    others = np.setdiff1d(np.arange(data.shape[1]), of_late)
    for ranks, style, width in ((others, 0, 1), (np.array(of_late, dtype=int), 1, 2)):
        colour = COLOURS[style]
        axes.vlines(ranks, low[ranks], high[ranks], color=colour, alpha=0.35, linewidth=width, rasterized=True)
        axes.plot(ranks, middle[ranks], MARKERS[style], color=colour, markersize=2 + style, markeredgewidth=0)
    for finding in late[:MOST_ROWS]:
        at = int(np.median(finding.ranks))
        right_half = at > data.shape[1] / 2
        axes.annotate(
            finding.subject, (at, middle[at]), xytext=(-8 if right_half else 8, 0), textcoords="offset points",
            ha="right" if right_half else "left", va="center", fontsize=9, color=COLOURS[1],
            bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1},
        )  # fmt: skip
    if len(late) > MOST_ROWS:
        axes.text(0.98, 0.98, f"and {len(late) - MOST_ROWS} more", transform=axes.transAxes, ha="right", va="top")
    axes.set_xlim(-1, data.shape[1])


def over_time(run: Run, analysis: Analysis) -> list[Figure]:
    """The time of every iteration in order, as a multiple of its case's mean in its launch."""
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
        look: Any = {"color": "#888888", "markersize": 3, "alpha": 0.4, "rasterized": True, "zorder": 1}
        axes.plot(x, y, "x", label="warm-up (not used)", **look)
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
    """Histograms of times, for the cases that stall most, else for some; both modes of those that stall are marked.

    All share one axis of times, because a delay that does not depend on the size shows as modes below one another.
    """
    good = [s for s in analysis.summaries if s.time_s and not s.imported and cycle(s.case) == 1]
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
    text = f"Distribution of the times: {len(chosen)} of {counted(len(good), 'case')}, {kind}"
    figure.suptitle(text, x=0.01, ha="left", fontsize=10.5)
    launches: dict[Case, list[Any]] = {s.case: [] for s in chosen}
    for samples in run.samples:
        if samples.case in launches and samples.failure is None and samples.timed is not None:
            launches[samples.case].append(samples.timed.slowest_s)
    times_of = {case: np.concatenate(parts) for case, parts in launches.items()}
    # The bars reach from the shortest time to nearly the longest: a single iteration must not widen the axis.
    low = 0.95 * min(times.min() for times in times_of.values())
    high = 1.1 * max(np.quantile(times, 0.995) for times in times_of.values())
    wider = max(1.0, NARROWEST * low / high) ** 0.5
    low, high = low / wider, high * wider
    bins = np.geomspace(low, high, 2 + round(BARS_A_DECADE * math.log10(high / low)))
    for axes, summary in zip(rows, chosen, strict=True):
        assert summary.time_s is not None  # noqa: S101 - selected above
        times, stall = times_of[summary.case], summary.stall
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
    """The rate between each pair of ranks, at the largest world size with pairs, and the largest size there."""
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
