"""Draw exposed communication against bucket size with the advised optimum, and the call-size sweep.

In: a `ScenarioAnalysis`, or the call-size points of a run. Out: figures; none where there is nothing to draw.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from bench.model.conclusions import Interval
from bench.model.units import format_bytes
from bench.report.labels import ranks_text
from bench.report.plots.panels import WIDER, wrapped
from bench.report.plots.plot_style import (
    COLOURS,
    dodged,
    framed,
    legend_entries,
    log_ticks,
    log_time_axis,
    size_axis,
    time_axis,
    with_intervals,
)
from bench.training.conclusions import Advice, ScenarioAnalysis, StrategyResult, TrainingAnalysis
from bench.training.records import Strategy
from bench.training.report.labels import ends, names, scenario_text, seconds

# Most sizes that are labelled on the x axis.
MOST_SIZES = 10
# The labels of two sizes that are closer than this factor would overlap.
NEIGHBOURS = 1.9
# Most lines of the call-size sweep that can be told apart.
MOST_LINES = 6


def buckets(comparison: ScenarioAnalysis) -> list[Figure]:
    """Measured caps and plans, and what the advisor predicts for uniform caps."""
    measured = [o for o in comparison.results if o.exposed is not None and _size(o.strategy)]
    advice = comparison.advice
    caps = advice.caps if advice else ()
    if not measured and not caps:
        return []
    figure, axes = framed("Which bucket size is best?", wrapped(scenario_text(comparison.scenario), WIDER))
    figure.set_size_inches(9.5, 5.4)
    noise = comparison.noise_s
    if comparison.aa_pairs and math.isfinite(noise):
        label = f"two copies of one strategy: ± {seconds(noise)}"
        axes.axhspan(-noise, noise, color="#888888", alpha=0.15, linewidth=0, label=label)
    _measured(axes, measured)
    if advice:
        _predicted(axes, advice)
    of_plans = [] if caps else [_size(o.strategy) for o in measured]
    written = _written([o.strategy.cap_bytes or 0 for o in measured], [*(cap for cap, _ in caps), *of_plans])
    size_axis(axes, written, MOST_SIZES)
    time_axis(axes.yaxis)
    axes.set_xlabel("bucket size: cap, or the largest bucket of a plan")
    axes.set_ylabel("exposed communication of a step")
    axes.axhline(0, color="black", linewidth=0.8)
    entries = legend_entries(axes)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=3, fontsize=8.5)
    return [figure]


def _size(strategy: Strategy) -> int:
    """Position of a strategy on the x axis, in bytes; 0 if it has no buckets of a given size."""
    return strategy.cap_bytes or max(strategy.buckets, default=0)


def _written(measured: Sequence[int], predicted: Sequence[int]) -> list[int]:
    """Sizes to label on the axis: measured sizes go before predicted ones, and labels do not overlap."""
    sizes = [size for size in [*sorted(set(measured)), *sorted(set(predicted))] if size]
    apart = max(NEIGHBOURS, (max(sizes) / min(sizes)) ** (1 / MOST_SIZES))
    found: list[int] = []
    for size in sizes:
        if all(max(size, other) >= apart * min(size, other) for other in found):
            found.append(size)
    return sorted(found)


def _measured(axes: Axes, measured: Sequence[StrategyResult]) -> None:
    """A line for each kind of strategy over its caps; each plan is a point of its own."""
    series: dict[str, list[tuple[int, Interval]]] = {}
    called = names([o.label for o in measured])
    for result in measured:
        if result.exposed is not None:
            series.setdefault(_series(result.strategy, called[result.label]), []).append(
                (_size(result.strategy), result.exposed)
            )
    every = [size for points in series.values() for size, _ in points]
    for style, (name, points) in enumerate(series.items()):
        points.sort(key=lambda point: point[0])
        values = [interval for _, interval in points]
        known = [ends(i) or (i.value, i.value) for i in values]
        sides = ([low for low, _ in known], [high for _, high in known])
        x = dodged(axes, [size for size, _ in points], every, style, len(series))
        with_intervals(axes, x, [i.value for i in values], sides, style, name)


def _series(strategy: Strategy, name: str) -> str:
    """Name of a line: what strategies that differ only in their cap have in common."""
    if strategy.cap_bytes is None:
        return name
    boundary = [f"bucket ends {strategy.bucket_boundary} the cap"] if strategy.bucket_boundary != "after" else []
    over = [f"over {strategy.accumulate} micro-batches"] if strategy.accumulate > 1 else []
    again = ["again"] if strategy.again else []
    return " ".join(["measured:", strategy.name, *boundary, *strategy.options, *over, *again])


def _predicted(axes: Axes, advice: Advice) -> None:
    grey, cap = "#555555", advice.cap.cap or 0
    if advice.caps:
        sizes, times = zip(*sorted(advice.caps), strict=True)
        axes.plot(sizes, times, color=grey, linewidth=4, alpha=0.35, label="predicted: uniform caps", zorder=1)
        axes.plot(
            [cap], [advice.cap.exposed_s], "*", color=COLOURS[6], markersize=15, zorder=5,
            label=f"cap with the least worst regret, {format_bytes(cap)}: {seconds(advice.cap.exposed_s)}",
        )  # fmt: skip
    levels = (
        (f"predicted: plan {seconds(advice.plan.exposed_s)}", advice.plan.exposed_s, "-"),
        (f"predicted: torch's default {seconds(advice.default.exposed_s)}", advice.default.exposed_s, "--"),
        (f"bound, no plan beats it: {seconds(advice.bound_s)}", advice.bound_s, ":"),
    )
    for name, level, line in levels:
        axes.axhline(level, color=grey, linewidth=1.3, linestyle=line, label=name)


# ── the call-size sweep ──────────────────────────────────────────────────────────────────────────
def call_sizes(run: Any, analysis: TrainingAnalysis) -> list[Figure]:
    """The same parameters in more and more calls: time against parameters a call."""
    lines: dict[str, dict[float, list[float]]] = {}
    for point in analysis.call_sizes:
        name = f"{_count(point.parameters)} parameters, {point.backend}, {ranks_text(point.world_size)}"
        lines.setdefault(name, {}).setdefault(point.parameters / point.calls, []).extend(point.times_s)
    shown = dict(list(lines.items())[:MOST_LINES])
    if not shown:
        return []
    more = f"; {len(lines) - len(shown)} more: see the table" if len(lines) > len(shown) else ""
    figure, axes = framed(
        "What do many small calls cost?",
        f"The same parameters in more and more calls; median, bars: fastest to slowest repetition{more}",
    )
    every = [size for points in shown.values() for size, times in points.items() if times]
    for style, (name, points) in enumerate(shown.items()):
        sizes = sorted(size for size, times in points.items() if times)
        sides = ([min(points[size]) for size in sizes], [max(points[size]) for size in sizes])
        x = dodged(axes, sizes, every, style, len(shown))
        with_intervals(axes, x, [median(points[size]) for size in sizes], sides, style, name)
    axes.set_xscale("log")
    log_ticks(axes.xaxis)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _count(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    log_time_axis(axes)
    axes.set_xlabel("parameters a call")
    axes.set_ylabel("time of all calls together")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return [figure]


def _count(number: float) -> str:
    """`6 M`, `10 k`, `250`."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.3g}"
