"""Draw training steps: step times, exposed communication against bucket size, and one step of each strategy.

In: a run and its analysis. Out: figures for each scenario; none if there is nothing to draw.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from collbench.model.conclusions import Analysis, Interval
from collbench.model.records import Run
from collbench.model.units import format_bytes
from collbench.packages.training.conclusions import Advice, ScenarioAnalysis, StrategyResult, training_of
from collbench.packages.training.report import steps as training
from collbench.packages.training.report.steps import ends, is_reference, names_of, ordered, scenario_text, seconds
from collbench.packages.training.step_records import CallRecord, RankTimeline, Timeline
from collbench.packages.training.synchronisation import Strategy
from collbench.report.plots import figures
from collbench.report.plots.figures import COLOURS, WIDER, time_axis, wrapped

# More rows than this are too small to read; the tables have all rows.
MOST_ROWS = 40
COMPUTING, EXPOSED = COLOURS[5], COLOURS[1]
# Characters per line in the title of the picture of buckets.
BUCKETS_WIDE = 118
# Opacity of exposed communication that is not resolved.
PALE = 0.4
# Most sizes that are labelled on the x axis.
MOST_SIZES = 10
# The labels of two sizes that are closer than this factor would overlap.
NEIGHBOURS = 1.9
# Smaller caps, which nobody sets, are drawn only as far as they were measured.
SMALLEST_CAP = 256 * 2**10
# Colours of calls. Calls without outlines alternate between the two, so that neighbours can be distinguished.
FLIGHT, DARKER = COLOURS[4], "#B37700"
# The parts of a step that a compute lane shows, in order. Waiting lasts until the last gradient is usable, and
# includes packing.
FORWARD, BACKWARD, WAITING, UPDATE = "forward", "backward", "waiting", "update"
# Styles of these parts. Waiting is hatched: it must stand out from updating also in black and white.
PARTS: dict[str, dict[str, Any]] = {
    FORWARD: {"facecolor": COLOURS[5], "linewidth": 0},
    BACKWARD: {"facecolor": COLOURS[0], "linewidth": 0},
    WAITING: {"facecolor": COLOURS[1], "linewidth": 0, "hatch": "////", "edgecolor": "white"},
    UPDATE: {"facecolor": COLOURS[2], "linewidth": 0},
}
# Baseline strategies, which other strategies are meant to improve on; they are drawn first.
BASELINES = ("naive",)
TITLE = "One step of each strategy along time: computing, and calls below it"
CAPTION = (
    "For each rank, the upper bar is its computing, and the boxes below it are its calls.\n"
    "A call is hidden where it lies below forward or backward, and exposed where the rank waits."
)
AXIS = "time since the first rank began the step (recorded in detail, which takes time: not one of the timed steps)"
# Most strategies per page, and most ranks per strategy: a page with more does not fit on a screen.
MOST_TIMELINES, SHOWN_RANKS = 5, 4
# Heights of a compute lane, of a communication lane, and of the gap between them; a rank takes 1 on the y axis.
COMPUTE, COMMUNICATION, BETWEEN = 0.36, 0.46, 0.04
# Most ticks of ready gradients, calls with outlines, and lanes with outlines: more would hide the bars.
MOST_TICKS, MOST_OUTLINES, MOST_OUTLINED_LANES = 400, 150, 6


# ── time of a step ───────────────────────────────────────────────────────────────────────────────
def steps(_: Run, analysis: Analysis) -> list[Figure]:
    """Draw a bar per strategy, the reference on top, then by place; whiskers: interval of exposed communication.

    Exposed communication is hatched if it is negative.
    """
    timed = [
        scenario for scenario in training_of(analysis).scenarios if any(result.step for result in scenario.results)
    ]
    return list(map(_steps, timed))


def _steps(scenario: ScenarioAnalysis) -> Figure:
    timed = [(result, result.step.value) for result in ordered(scenario) if result.step is not None]
    shown = timed[:MOST_ROWS]
    names = names_of(scenario)
    figure = Figure(figsize=(10, 1.9 + 0.34 * len(shown)), layout="constrained")
    axes = figure.subplots()
    more = f" · the fastest {len(shown)} of {len(timed)}" if len(shown) < len(timed) else ""
    what = wrapped(scenario_text(scenario.scenario) + more, WIDER)
    figure.suptitle(f"Time of a step: computing and exposed communication\n{what}", x=0.01, ha="left", fontsize=10.5)
    right = max(_right(step_s, result.exposed) for result, step_s in shown)
    rows = []
    for row, (result, step_s) in enumerate(shown):
        _bar(axes, row, result, step_s)
        place = training.place_text(result, scenario).removesuffix(f", {training.UNRESOLVED}")
        rows.append(f"{names[result.label]} ({place})")
        text = f"{seconds(step_s)} per step" if is_reference(result) else ""
        if result.exposed is not None:  # such as `2.42 ms exposed, 11.2 %`
            share = "" if result.share is None else f", {training.percent(result.share)} %"
            text = f"{seconds(result.exposed.value)} exposed{share}" + (
                "" if result.resolved else f", {training.UNRESOLVED}"
            )
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
    """Return the position at which the bar and its whisker end."""
    if exposed is None:
        return step_s
    _, high = ends(exposed) or (0.0, exposed.value)
    base = step_s - exposed.value
    return max(step_s, base, base + high)


def _bar(axes: Axes, row: int, result: StrategyResult, step_s: float) -> None:
    """Draw one bar. Computing is the step minus exposed communication: the reference with as many micro-batches."""
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
    """For each scenario, draw exposed communication of caps and plans; then their tails, measured and predicted."""
    return [figure for scenario in training_of(analysis).scenarios for figure in _buckets(scenario)]


def _buckets(scenario: ScenarioAnalysis) -> list[Figure]:
    measured = [(result, result.exposed) for result in scenario.results if result.exposed and _size(result.strategy)]
    advice = scenario.advice
    least = min([SMALLEST_CAP, *(_size(result.strategy) for result, _ in measured)])
    caps = [(cap, tail_s) for cap, tail_s in advice.caps if cap >= least] if advice else []
    plan_sizes = [_size(result.strategy) for result, _ in measured]
    cap_sizes = [result.strategy.cap_bytes or 0 for result, _ in measured]
    made = []
    if measured:
        figure, axes = _over_size(scenario, "Exposed communication over bucket size")
        if scenario.aa_pairs and math.isfinite(noise := scenario.noise_s):
            label = f"two copies of one strategy differ by up to {seconds(noise)}"
            axes.axhspan(-noise, noise, color="#888888", alpha=0.15, linewidth=0, label=label)
        # A line for each kind of strategy over its caps; each plan is a point of its own.
        names = training.short_names(result.strategy for result, _ in measured)
        series: dict[str, list[tuple[int, Interval]]] = {}
        for result, exposed in measured:
            name = _series(result.strategy, names[result.label])
            series.setdefault(name, []).append((_size(result.strategy), exposed))
        _lines(axes, series)
        made.append(_finished(figure, axes, _labelled(cap_sizes, plan_sizes), "exposed communication per step"))
    if advice:
        figure, axes = _over_size(scenario, "Tail of a step over bucket size, predicted and measured")
        _predicted(axes, advice, caps)
        _tails(axes, scenario)
        # Predicted caps have every size; powers of two are labelled.
        powers = range(math.ceil(math.log2(least)), math.ceil(math.log2(max([least, *(cap for cap, _ in caps)]) + 1)))
        sizes = _labelled(cap_sizes, [2**power for power in powers] if caps else plan_sizes)
        made.append(_finished(figure, axes, sizes, "communication after backward, per step"))
    return made


def _over_size(scenario: ScenarioAnalysis, title: str) -> tuple[Figure, Axes]:
    figure, axes = figures.framed(title, wrapped(scenario_text(scenario.scenario), BUCKETS_WIDE))
    figure.set_size_inches(9.5, 5.0)
    return figure, axes


def _finished(figure: Figure, axes: Axes, sizes: Sequence[int], label: str) -> Figure:
    figures.size_axis(axes, sizes, MOST_SIZES)
    time_axis(axes.yaxis)
    axes.set_xlabel("bucket size: cap, or the largest bucket of a plan")
    axes.set_ylabel(label)
    axes.axhline(0, color="black", linewidth=0.8)
    entries = figures.legend_entries(axes)
    columns = figures.fitting_columns(figure.get_figwidth(), entries)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns, fontsize=8.5)
    return figure


def _lines(axes: Axes, series: Mapping[str, list[tuple[int, Interval]]]) -> None:
    """Draw a line of times with their intervals for each name. series: name → (bytes, time)."""
    for style, (name, points) in enumerate(series.items()):
        points.sort(key=lambda point: point[0])
        values = [interval.value for _, interval in points]
        limits = [ends(interval) or (interval.value, interval.value) for _, interval in points]
        sides = ([low for low, _ in limits], [high for _, high in limits])
        figures.with_intervals(axes, [size for size, _ in points], values, sides, style, name)


def _size(strategy: Strategy) -> int:
    """Return the position of a strategy on the x axis, in bytes; 0 if it has no buckets of a given size."""
    return strategy.cap_bytes or max(strategy.buckets, default=0)


def _labelled(measured: Sequence[int], predicted: Sequence[int]) -> list[int]:
    """Return the sizes to label on the axis: measured sizes before predicted sizes, and labels do not overlap."""
    sizes = [size for size in [*sorted(set(measured)), *sorted(set(predicted))] if size]
    ratio = max(NEIGHBOURS, (max(sizes) / min(sizes)) ** (1 / MOST_SIZES))
    labelled: list[int] = []
    for size in sizes:
        if all(max(size, other) >= ratio * min(size, other) for other in labelled):
            labelled.append(size)
    return sorted(labelled)


def _series(strategy: Strategy, name: str) -> str:
    """Return the name of a line: the part of the name that strategies share if they differ only in their cap."""
    if strategy.cap_bytes is None:
        return name
    over = [f"over {strategy.accumulate} micro-batches"] if strategy.accumulate > 1 else []
    again = ["again"] if strategy.again else []
    return " ".join(["measured:", strategy.name, *strategy.options, *over, *again])


def _predicted(axes: Axes, advice: Advice, caps: Sequence[tuple[int, float]]) -> None:
    """Draw the predicted tails of uniform caps and torch's default, and the bound. caps: (bytes, seconds) to draw."""
    grey, cap, tail_s = "#555555", advice.cap_bytes, advice.cap.tail_s
    if caps:
        sizes, times = zip(*sorted(caps), strict=True)
        text = f"predicted; star: the best cap, {format_bytes(cap)}, {seconds(tail_s)}"
        axes.plot(sizes, times, color=grey, linewidth=4, alpha=0.35, label=text, zorder=1)
        if cap >= sizes[0]:
            axes.plot([cap], [tail_s], "*", color=COLOURS[6], markersize=15, zorder=5)
    default_s = advice.default.tail_s
    for name, level, line in (
        (f"torch's default, predicted: {seconds(default_s)}", default_s, "--"),
        (f"lower bound of any plan: {seconds(advice.bound_s)}", advice.bound_s, ":"),
    ):
        axes.axhline(level, color=grey, linewidth=1.3, linestyle=line, label=name)


def _tails(axes: Axes, scenario: ScenarioAnalysis) -> None:
    """Draw the measured tails of caps and of torch's DDP, to compare them with predictions."""
    tails = [(_size(r.strategy), r.split.tail_s, r.strategy.name) for r in scenario.results if r.split is not None]
    if points := sorted((size, tail_s) for size, tail_s, _ in tails if size):
        axes.plot(*zip(*points, strict=True), "x", color="black", markersize=8, label="measured", zorder=6)
    for tail_s in [tail_s for size, tail_s, name in tails if name == "ddp" and not size][:1]:
        text = f"torch's default, measured: {seconds(tail_s)}"
        axes.axhline(tail_s, color="black", linewidth=1.1, linestyle="-.", label=text)


# ── one step of each strategy ────────────────────────────────────────────────────────────────────
def timelines(_: Run, analysis: Analysis) -> list[Figure]:
    """Draw a page per scenario: the reference, strategies in BASELINES, then the best of each kind of strategy."""
    return [page for scenario in training_of(analysis).scenarios if (page := _timelines(scenario)) is not None]


def _timelines(scenario: ScenarioAnalysis) -> Figure | None:
    """Draw one page in the order of `timelines`: no second strategy of a kind precedes the best of another kind."""
    recorded = [result for result in ordered(scenario) if result.timeline and result.timeline.ranks]
    kinds = [result.strategy.name for result in recorded]
    faster = {result.label: kinds[:place].count(kinds[place]) for place, result in enumerate(recorded)}  # of its kind
    first = sorted(
        recorded, key=lambda r: (not is_reference(r), r.label not in BASELINES, r.strategy.again, faster[r.label])
    )
    names = names_of(scenario)
    shown = [
        (
            f"{names[result.label]}: {_in_words(timeline, result.calls is None and not is_reference(result))}",
            timeline,
        )
        for result in first[:MOST_TIMELINES]
        if (timeline := result.timeline)
    ]
    if not shown:
        return None
    last = max(line.begin_s + line.end_s for _, timeline in shown for line in timeline.ranks)
    more = f"; {len(shown)} of {len(recorded)} strategies" if len(shown) < len(recorded) else ""
    return _page(f"{TITLE}{more}\n{wrapped(scenario_text(scenario.scenario), WIDER)}", shown, last)


def _in_words(timeline: Timeline, silent: bool) -> str:
    """Describe a step as `step 21.6 ms, waits 2.42 ms, 4 calls`. silent: the library does not show its calls."""
    tail = max(line.usable_s - line.backward_s for line in timeline.ranks)
    calls = max(len(line.calls) for line in timeline.ranks)
    words = [f"step {seconds(max(line.end_s for line in timeline.ranks))}"]
    words += [f"waits {seconds(tail)}"] if tail > 0 else []
    words.append(
        "its calls cannot be seen" if silent and not calls else "1 call" if calls == 1 else f"{calls or 'no'} calls"
    )
    if len(timeline.ranks) > SHOWN_RANKS:
        words.append(f"{SHOWN_RANKS} of {len(timeline.ranks)} ranks shown")
    return ", ".join(words)


def _page(heading: str, strategies: Sequence[tuple[str, Timeline]], last: float) -> Figure:
    """Draw one page. strategies: title and timeline of each. last: end of the longest step."""
    heights = [0.24 + 0.42 * min(len(timeline.ranks), SHOWN_RANKS) for _, timeline in strategies]
    figure = Figure(figsize=(10, 2.1 + sum(heights)), layout="constrained")
    rows = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    figure.suptitle(f"{heading}\n{CAPTION}", x=0.01, ha="left", fontsize=10.5)
    for axes, (title, timeline) in zip(rows, strategies, strict=True):
        # Ranks below each other, each with its computing above its communication.
        ranks = [timeline.ranks[rank] for rank in figures.spread(list(range(len(timeline.ranks))), SHOWN_RANKS)]
        for row, line in enumerate(ranks):
            _compute_lane(axes, line, row)
            _communication_lane(axes, line, row + COMPUTE + BETWEEN)
        axes.set_title(title, fontsize=9, pad=2)
        axes.set_yticks([row + 0.42 for row in range(len(ranks))], [f"rank {line.rank}" for line in ranks])
        axes.set_ylim(len(ranks) - 0.06, -0.08)
        axes.tick_params(labelsize=8, length=0)
        axes.grid(visible=False, axis="y")
        axes.set_axisbelow(True)
    rows[-1].set_xlim(0, 1.01 * last)
    time_axis(rows[-1].xaxis)
    rows[-1].set_xlabel(AXIS, fontsize=9)
    handles = [
        Patch(**style, label="waiting for gradients" if part == WAITING else part) for part, style in PARTS.items()
    ]
    handles += [Patch(facecolor=FLIGHT, edgecolor="black", linewidth=0.6, label="a call, from launch to completion")]
    handles += [Patch(facecolor="none", hatch="|||", edgecolor="black", linewidth=0, label="a gradient becomes ready")]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8.5)
    return figure


def _compute_lane(axes: Axes, line: RankTimeline, y: float) -> None:
    stamps = (0.0, line.forward_s, line.backward_s, line.usable_s, line.end_s)
    for (begin_s, end_s), style in zip(pairwise(stamps), PARTS.values(), strict=True):
        if end_s > begin_s:
            axes.add_patch(Rectangle((line.begin_s + begin_s, y), end_s - begin_s, COMPUTE, **style))
    if len(line.ready_s) <= MOST_TICKS:
        ticks = [((line.begin_s + t, y), (line.begin_s + t, y + 0.45 * COMPUTE)) for t in line.ready_s]
        axes.add_collection(LineCollection(ticks, colors="black", linewidths=min(0.7, 40 / max(1, len(ticks)))))


def lanes(calls: Sequence[CallRecord]) -> list[list[CallRecord]]:
    """Put each call, by launch time, into the first free lane: as many lanes as the most calls in flight."""
    filled: list[list[CallRecord]] = []
    for call in sorted(calls, key=lambda call: (call.launched_s, call.done_s)):
        free = next((lane for lane in filled if lane[-1].done_s <= call.launched_s), None)
        if free is None:
            filled.append([call])
        else:
            free.append(call)
    return filled


def _communication_lane(axes: Axes, line: RankTimeline, y: float) -> None:
    """Draw the calls of a rank; calls in flight at once share the height of the lane."""
    filled = lanes(line.calls)
    height = COMMUNICATION / max(1, len(filled))
    outlined = len(line.calls) <= MOST_OUTLINES and len(filled) <= MOST_OUTLINED_LANES
    bars, shades = [], []
    for number, lane in enumerate(filled):
        for place, call in enumerate(lane):
            corner = (line.begin_s + call.launched_s, y + number * height)
            bars.append(Rectangle(corner, call.done_s - call.launched_s, height))
            shades.append(FLIGHT if outlined or (number + place) % 2 else DARKER)
    outline = {"edgecolor": "black", "linewidth": 0.5} if outlined else {"linewidth": 0}
    axes.add_collection(PatchCollection(bars, facecolor=shades, **outline))
