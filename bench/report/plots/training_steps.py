"""Draw what steps cost: their times, exposed communication against bucket size, the same bytes in more calls.

In: a run and its analysis. Out: figures, one for each scenario; none where there is nothing to draw.
"""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.model.conclusions import Advice, Analysis, CallSize, Interval, ScenarioAnalysis, StrategyResult
from bench.model.records import Run
from bench.model.training import Strategy
from bench.model.units import format_bytes, format_rounded_bytes
from bench.report.labels import ranks_text
from bench.report.plots.figures import (
    COLOURS,
    WIDER,
    dodged,
    fitting_columns,
    framed,
    legend_entries,
    log_time_axis,
    size_axis,
    time_axis,
    with_intervals,
    wrapped,
)
from bench.report.training import (
    UNRESOLVED,
    ends,
    is_reference,
    names_of,
    ordered,
    percent,
    place_text,
    scenario_text,
    seconds,
    short_names,
)

# More rows than this are too small to read; the tables have all.
MOST_ROWS = 40
COMPUTING, EXPOSED = COLOURS[5], COLOURS[1]
# Opacity of exposed communication that is not resolved.
PALE = 0.4
# Most sizes that are labelled on the x axis.
MOST_SIZES = 10
# The labels of two sizes that are closer than this factor would overlap.
NEIGHBOURS = 1.9
# Most lines of the call-size sweep that can be told apart.
MOST_LINES = 6


# ── time of a step ───────────────────────────────────────────────────────────────────────────────
def steps(_: Run, analysis: Analysis) -> list[Figure]:
    """A bar for each strategy, the reference on top, then by place; whiskers: interval of exposed communication.

    Exposed communication is hatched where it is negative.
    """
    timed = [scenario for scenario in analysis.scenarios if any(result.step for result in scenario.results)]
    return list(map(_steps, timed))


def _steps(scenario: ScenarioAnalysis) -> Figure:
    timed = [(result, result.step.value) for result in ordered(scenario) if result.step is not None]
    shown = timed[:MOST_ROWS]
    names = names_of(scenario)
    figure = Figure(figsize=(10, 1.9 + 0.34 * len(shown)), layout="constrained")
    axes = figure.subplots()
    more = f" · the fastest {len(shown)} of {len(timed)}" if len(shown) < len(timed) else ""
    what = wrapped(scenario_text(scenario.scenario) + more, WIDER)
    figure.suptitle(f"How much of a step is communication?\n{what}", x=0.01, ha="left", fontsize=10.5)
    right = max(_right(step_s, result.exposed) for result, step_s in shown)
    rows = []
    for row, (result, step_s) in enumerate(shown):
        _bar(axes, row, result, step_s)
        place = place_text(result, scenario).removesuffix(f", {UNRESOLVED}")
        rows.append(f"{names[result.label]} ({place})")
        text = f"{seconds(step_s)} a step" if is_reference(result) else ""
        if result.exposed is not None:  # such as `2.42 ms exposed, 11.2 %`
            share = "" if result.share is None else f", {percent(result.share)} %"
            text = f"{seconds(result.exposed.value)} exposed{share}" + ("" if result.resolved else f", {UNRESOLVED}")
        axes.text(1.02 * _right(step_s, result.exposed) + 0.004 * right, row, text, va="center", fontsize=8.5)
    if scenario.compute is not None:
        axes.axvline(scenario.compute.value, color="black", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(shown)), rows, fontsize=8.5)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    # Room for the text to the right of the longest bar.
    axes.set_xlim(0, 1.42 * right)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    time_axis(axes.xaxis)
    axes.set_xlabel(
        "time of a step (slowest rank); dotted: without synchronisation; in brackets: place, = where it is shared",
        fontsize=9,
    )
    handles = [
        Patch(color=COMPUTING, label="computing"),
        Patch(color=EXPOSED, label="exposed communication, with its 95 % interval"),
    ]
    if any(result.exposed is not None and not result.resolved for result, _ in shown):
        handles.append(Patch(color=EXPOSED, alpha=PALE, label="not resolved"))
    if any(result.exposed.value < 0 for result, _ in shown if result.exposed):
        label = "negative: faster than without synchronisation"
        handles.append(Patch(facecolor="none", edgecolor=EXPOSED, hatch="////", label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5)
    return figure


def _right(step_s: float, exposed: Interval | None) -> float:
    """The point at which the bar and its whisker end."""
    if exposed is None:
        return step_s
    _, high = ends(exposed) or (0.0, exposed.value)
    base = step_s - exposed.value
    return max(step_s, base, base + high)


def _bar(axes: Axes, row: int, result: StrategyResult, step_s: float) -> None:
    """Draw one bar. Computing is the step less what is exposed: the reference's step with as many micro-batches."""
    exposed = result.exposed
    base = step_s - (exposed.value if exposed else 0.0)
    axes.barh(row, min(base, step_s), color=COMPUTING, height=0.66)
    if exposed is None:
        return
    if exposed.value >= 0:
        alpha = 1.0 if result.resolved else PALE
        axes.barh(row, exposed.value, left=base, color=EXPOSED, alpha=alpha, height=0.66)
    else:
        axes.barh(row, -exposed.value, left=step_s, facecolor="none", edgecolor=EXPOSED, hatch="////", height=0.66)
    limits = ends(exposed)
    if limits is not None:
        arms = [[max(exposed.value - limits[0], 0)], [max(limits[1] - exposed.value, 0)]]
        axes.errorbar([step_s], [row], xerr=arms, color="black", capsize=3, linewidth=1.1, linestyle="")


# ── exposed communication against bucket size ────────────────────────────────────────────────────
def buckets(_: Run, analysis: Analysis) -> list[Figure]:
    """Measured caps and plans, and what the advisor predicts for uniform caps."""
    return [figure for scenario in analysis.scenarios if (figure := _buckets(scenario)) is not None]


def _buckets(scenario: ScenarioAnalysis) -> Figure | None:
    measured = [(result, result.exposed) for result in scenario.results if result.exposed and _size(result.strategy)]
    advice = scenario.advice
    caps = advice.caps if advice else ()
    if not measured and not caps:
        return None
    figure, axes = framed("Which bucket size is best?", wrapped(scenario_text(scenario.scenario), WIDER))
    figure.set_size_inches(9.5, 5.4)
    noise = scenario.noise_s
    if scenario.aa_pairs and math.isfinite(noise):
        label = f"two copies of one strategy: ± {seconds(noise)}"
        axes.axhspan(-noise, noise, color="#888888", alpha=0.15, linewidth=0, label=label)
    # A line for each kind of strategy over its caps; each plan is a point of its own.
    names = short_names(result.label for result, _ in measured)
    series: dict[str, list[tuple[int, Interval]]] = {}
    for result, exposed in measured:
        name = _series(result.strategy, names[result.label])
        series.setdefault(name, []).append((_size(result.strategy), exposed))
    every_size = [size for points in series.values() for size, _ in points]
    for style, (name, points) in enumerate(series.items()):
        points.sort(key=lambda point: point[0])
        values = [interval.value for _, interval in points]
        limits = [ends(interval) or (interval.value, interval.value) for _, interval in points]
        sides = ([low for low, _ in limits], [high for _, high in limits])
        x = dodged(axes, [size for size, _ in points], every_size, style, len(series))
        with_intervals(axes, x, values, sides, style, name)
    if advice:
        _predicted(axes, advice)
    of_plans = [] if caps else [_size(result.strategy) for result, _ in measured]
    of_caps = [result.strategy.cap_bytes or 0 for result, _ in measured]
    size_axis(axes, _labelled(of_caps, [*(cap for cap, _ in caps), *of_plans]), MOST_SIZES)
    time_axis(axes.yaxis)
    axes.set_xlabel("bucket size: cap, or the largest bucket of a plan")
    axes.set_ylabel("exposed communication of a step")
    axes.axhline(0, color="black", linewidth=0.8)
    entries = legend_entries(axes)
    columns = fitting_columns(figure, entries)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns, fontsize=8.5)
    return figure


def _size(strategy: Strategy) -> int:
    """Position of a strategy on the x axis, in bytes; 0 if it has no buckets of a given size."""
    return strategy.cap_bytes or max(strategy.buckets, default=0)


def _labelled(measured: Sequence[int], predicted: Sequence[int]) -> list[int]:
    """Sizes to label on the axis: measured sizes go before predicted ones, and labels do not overlap."""
    sizes = [size for size in [*sorted(set(measured)), *sorted(set(predicted))] if size]
    apart = max(NEIGHBOURS, (max(sizes) / min(sizes)) ** (1 / MOST_SIZES))
    labelled: list[int] = []
    for size in sizes:
        if all(max(size, other) >= apart * min(size, other) for other in labelled):
            labelled.append(size)
    return sorted(labelled)


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
        label = f"cap with the least worst regret, {format_bytes(cap)}: {seconds(advice.cap.exposed_s)}"
        axes.plot([cap], [advice.cap.exposed_s], "*", color=COLOURS[6], markersize=15, zorder=5, label=label)
    for name, level, line in (
        (f"predicted: plan {seconds(advice.plan.exposed_s)}", advice.plan.exposed_s, "-"),
        (f"predicted: torch's default {seconds(advice.default.exposed_s)}", advice.default.exposed_s, "--"),
        (f"bound, no plan beats it: {seconds(advice.bound_s)}", advice.bound_s, ":"),
    ):
        axes.axhline(level, color=grey, linewidth=1.3, linestyle=line, label=name)


# ── the call-size ladder ─────────────────────────────────────────────────────────────────────────
def call_sizes(_: Run, analysis: Analysis) -> list[Figure]:
    """The same bytes in more and more calls: time of all calls against bytes a call."""
    lines: dict[str, list[tuple[int, CallSize]]] = {}
    for point in analysis.call_sizes:
        name = f"{format_bytes(point.total_bytes)}, {point.backend}, {ranks_text(point.world_size)}"
        lines.setdefault(name, []).append((point.total_bytes // point.calls, point))
    shown = dict(list(lines.items())[:MOST_LINES])
    if not shown:
        return []
    more = f"; {len(lines) - len(shown)} more: see the table" if len(lines) > len(shown) else ""
    figure, axes = framed(
        "What do many small calls cost?",
        f"The same bytes in more and more all-reduces, one after the other; bars: 95 % intervals{more}",
    )
    every_size = sorted({size for points in shown.values() for size, _ in points})
    for style, (name, points) in enumerate(shown.items()):
        points.sort(key=lambda pair: pair[0])
        values = [point.time.value for _, point in points]
        limits = [ends(point.time) or (point.time.value, point.time.value) for _, point in points]
        sides = ([low for low, _ in limits], [high for _, high in limits])
        x = dodged(axes, [size for size, _ in points], every_size, style, len(shown))
        with_intervals(axes, x, values, sides, style, name)
    size_axis(axes, every_size, MOST_SIZES, format_rounded_bytes)
    log_time_axis(axes)
    axes.set_xlabel("bytes a call")
    axes.set_ylabel("time of all calls together")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    return [figure]
