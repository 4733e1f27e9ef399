"""Draw training steps: step times, exposed communication against bucket size, and one step of each strategy.

In: a run and its analysis. Out: figures for each scenario of several ranks; none if there is nothing to draw.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collbench.model.conclusions import Analysis
from collbench.model.projection import grouped
from collbench.model.records import Run
from collbench.model.units import first_few
from collbench.packages.training.conclusions import Advice, ScenarioAnalysis, StrategyResult, training_of
from collbench.packages.training.report import steps as training
from collbench.packages.training.report.steps import ends, is_reference, scenario_text
from collbench.packages.training.step_records import CallRecord, RankTimeline, Timeline
from collbench.packages.training.synchronisation import Strategy
from collbench.report.labels import seconds_text as seconds
from collbench.report.plots import figures
from collbench.report.plots.figures import (
    COLOURS,
    GREY,
    draw_intervals,
    look,
    name_rows,
    size_axis,
    size_text,
    time_axis,
)

COMPUTING, EXPOSED = COLOURS[5], COLOURS[1]
# Styles of exposed communication, by the name of the style in the legend.
MEASURED, UNRESOLVED, NEGATIVE = (
    "exposed communication, with its 95 % interval",
    "not resolved",
    "negative: faster than without synchronisation",
)
BARS: dict[str, dict[str, Any]] = {
    MEASURED: {"color": EXPOSED},
    UNRESOLVED: {"color": EXPOSED, "alpha": 0.4},
    NEGATIVE: {"facecolor": "none", "edgecolor": EXPOSED, "hatch": "////"},
}
# Smaller caps, which nobody sets, are drawn only as far as they were measured.
SMALLEST_CAP = 256 * 2**10
# Colour of calls.
CALL = COLOURS[4]
# The parts of a step that a compute lane shows, in order, with their styles. Waiting lasts until the last gradient is
# usable, and includes packing; its hatches stand out from updating also in black and white.
PARTS: dict[str, dict[str, Any]] = {
    "forward": {"facecolor": COLOURS[5]},
    "backward": {"facecolor": COLOURS[0]},
    "waiting for gradients": {"facecolor": COLOURS[1], "hatch": "////", "edgecolor": "white", "linewidth": 0},
    "update": {"facecolor": COLOURS[2]},
}
# Baseline strategies, which other strategies are meant to improve on; they are drawn first.
BASELINES = ("naive",)
TITLE = "One recorded step of each strategy: computing, and calls below it, exposed where a rank waits"
# A recorded step above this multiple of the mean of timed steps was disturbed, and is not drawn.
DISTURBED = 2
# Most strategies per page, and most ranks per strategy: a page with more does not fit on a screen.
MOST_TIMELINES, SHOWN_RANKS = 5, 4
# Inches: height of a bar, of the axes of a picture of buckets, and of a rank in a timeline.
BAR, BUCKETS, RANK = 0.32, 3.2, 0.4
# Heights of a compute lane, of a communication lane, and of the gap between them; a rank takes 1 on the y axis.
COMPUTE, COMMUNICATION, BETWEEN = 0.36, 0.46, 0.04


def _scenarios(analysis: Analysis) -> list[ScenarioAnalysis]:
    """Return the scenarios of several ranks."""
    return [scenario for scenario in training_of(analysis).scenarios if scenario.scenario.case.world_size > 1]


# ── time of a step ───────────────────────────────────────────────────────────────────────────────
def steps(_: Run, analysis: Analysis) -> list[Figure]:
    """Draw a bar per strategy, the reference on top, then by place; whiskers: interval of exposed communication."""
    return [_steps(scenario, timed) for scenario in _scenarios(analysis) if (timed := training.timed(scenario))]


def _steps(scenario: ScenarioAnalysis, timed: Sequence[StrategyResult]) -> Figure:
    title = f"Time of a step: computing and exposed communication\n{scenario_text(scenario.scenario)}"
    figure, ((axes,),) = figures.page(title, [BAR * len(timed)])
    rows, placed = [], bool(training.places(scenario))
    for row, result in enumerate(timed):
        end_s = _bar(axes, row, result)
        axes.text(end_s, row, f"  {_bar_text(result)}", va="center", fontsize="small")
        rows.append(f"{result.name} ({training.place_text(result, scenario)})" if placed else result.name)
    if scenario.compute is not None:
        axes.axvline(scenario.compute.value, color="black", linewidth=1, linestyle=":", label="without synchronisation")
    name_rows(axes, rows)
    # The texts beside the bars need room.
    axes.set_xlim(0, 1.35 * axes.get_xlim()[1])
    time_axis(axes.xaxis)
    axes.set_xlabel("time of a step (slowest rank)" + "; in brackets: place, = where it is shared" * placed)
    return figure


def _bar(axes: Axes, row: int, result: StrategyResult) -> float:
    """Draw one bar with its whisker, and return where both end.

    Computing is the step minus exposed communication: the reference with as many micro-batches. Exposed communication
    is hatched if it is negative.
    """
    exposed, step_s = result.exposed, result.step.value if result.step else 0.0
    base_s = step_s - (exposed.value if exposed else 0.0)
    axes.barh(row, min(base_s, step_s), color=COMPUTING, height=0.66, label="computing")
    if exposed is None:
        return step_s
    style = NEGATIVE if exposed.value < 0 else MEASURED if result.resolved else UNRESOLVED
    axes.barh(row, abs(exposed.value), left=min(base_s, step_s), height=0.66, label=style, **BARS[style])
    limits = ends(exposed)
    if limits is None:
        return max(step_s, base_s)
    low_s, high_s = (base_s + limit for limit in limits)
    draw_intervals(axes, [row], [(step_s, low_s, high_s)], horizontal=True, color="black", linewidth=1.1)
    return max(step_s, base_s, high_s)


def _bar_text(result: StrategyResult) -> str:
    """Return the text beside a bar, such as `2.42 ms exposed, 11.2 %`; of the reference, its step."""
    if result.exposed is None:
        return f"{seconds(result.step.value)} per step" if result.step and is_reference(result) else ""
    share = "" if result.share is None else f", {training.percent(result.share)} %"
    return f"{seconds(result.exposed.value)} exposed{share}" + ("" if result.resolved else f", {training.UNRESOLVED}")


# ── exposed communication against bucket size ────────────────────────────────────────────────────
def buckets(_: Run, analysis: Analysis) -> list[Figure]:
    """For each scenario, draw exposed communication of caps and plans; then their tails, measured and predicted."""
    made = []
    for scenario in _scenarios(analysis):
        measured = [result for result in training.timed(scenario) if result.exposed and _size(result.strategy)]
        if measured:
            made.append(_exposed(scenario, measured))
        if scenario.advice:
            made.append(_tails(scenario, scenario.advice, measured))
    return made


def _exposed(scenario: ScenarioAnalysis, measured: Sequence[StrategyResult]) -> Figure:
    """Draw a line for each kind of strategy over its caps; each plan is a point of its own."""
    title = "Exposed communication over bucket size"
    figure, axes = _over_size(scenario, title, "exposed communication per step")
    if scenario.aa_pairs:
        band: Any = {"color": GREY, "alpha": 0.15, "linewidth": 0}
        text = f"two copies of one strategy differ by up to {seconds(scenario.noise_s)}"
        axes.axhspan(-scenario.noise_s, scenario.noise_s, label=text, **band)
    series = grouped(measured, _series)
    for number, ((name, _), results) in enumerate(series.items()):
        pairs = ((_size(result.strategy), result.exposed) for result in results if result.exposed)
        points = sorted(pairs, key=lambda pair: pair[0])
        times = [(time.value, *(ends(time) or (time.value, time.value))) for _, time in points]
        draw_intervals(axes, [size for size, _ in points], times, label=name, **look(number))
    return figure


def _tails(scenario: ScenarioAnalysis, advice: Advice, measured: Sequence[StrategyResult]) -> Figure:
    """Draw the predicted tails of uniform caps and torch's default with the bound, and the measured tails."""
    title = "Tail of a step over bucket size, predicted and measured"
    figure, axes = _over_size(scenario, title, "communication after backward")
    cap, tail_s = advice.cap_bytes, advice.cap.tail_s
    least = min([SMALLEST_CAP, *(_size(result.strategy) for result in measured)])
    if caps := sorted(pair for pair in advice.caps if pair[0] >= least):
        text = f"predicted; star: the best cap, {size_text(cap)}, {seconds(tail_s)}"
        axes.plot(*zip(*caps, strict=True), color=GREY, linewidth=4, alpha=0.35, label=text, zorder=1)
        if cap >= caps[0][0]:
            axes.plot([cap], [tail_s], "*", color=COLOURS[6], markersize=15, zorder=5)
    for name, level_s, line in (
        ("torch's default, predicted", advice.default.tail_s, "--"),
        ("lower bound of any plan", advice.bound_s, ":"),
    ):
        axes.axhline(level_s, color=GREY, linewidth=1.3, linestyle=line, label=f"{name}: {seconds(level_s)}")
    tails = [(_size(r.strategy), r.split.tail_s, r.strategy.name) for r in scenario.results if r.split is not None]
    if points := sorted((size, tail_s) for size, tail_s, _ in tails if size):
        axes.plot(*zip(*points, strict=True), "x", color="black", markersize=8, label="measured", zorder=6)
    for tail_s in [tail_s for size, tail_s, name in tails if name == "ddp" and not size][:1]:
        text = f"torch's default, measured: {seconds(tail_s)}"
        axes.axhline(tail_s, color="black", linewidth=1.1, linestyle="-.", label=text)
    return figure


def _over_size(scenario: ScenarioAnalysis, title: str, y: str) -> tuple[Figure, Axes]:
    figure, ((axes,),) = figures.page(f"{title}\n{scenario_text(scenario.scenario)}", [BUCKETS])
    size_axis(axes)
    time_axis(axes.yaxis)
    axes.set_xlabel("bucket size: cap, or the largest bucket of a plan")
    axes.set_ylabel(y)
    axes.axhline(0, color="black", linewidth=0.8)
    return figure, axes


def _size(strategy: Strategy) -> int:
    """Return the position of a strategy on the x axis, in bytes; 0 if it has no buckets of a given size."""
    return strategy.cap_bytes or max(strategy.buckets, default=0)


def _series(result: StrategyResult) -> tuple[str, Strategy | None]:
    """Return the name of a line of strategies that differ only in their cap; a plan has one of its own, and follows."""
    strategy = result.strategy
    if strategy.cap_bytes is None:
        return result.name, strategy
    over = [f"over {strategy.accumulate} micro-batches"] if strategy.accumulate > 1 else []
    return " ".join(["measured:", strategy.name, *strategy.options, *over]), None


# ── one step of each strategy ────────────────────────────────────────────────────────────────────
def timelines(_: Run, analysis: Analysis) -> list[Figure]:
    """Draw a page per scenario: the reference, strategies in BASELINES, then the best of each kind of strategy."""
    return [page for scenario in _scenarios(analysis) if (page := _timelines(scenario)) is not None]


def _timelines(scenario: ScenarioAnalysis) -> Figure | None:
    """Draw one page in the order of `timelines`: no second strategy of a kind precedes the best of another kind."""
    recorded = [r for r in training.timed(scenario) if r.timeline and r.timeline.ranks]
    typical = [r for r in recorded if r.timeline and r.step and r.timeline.step_s <= DISTURBED * r.step.value]
    kinds = [result.strategy.name for result in typical]
    faster = {result.label: kinds[:place].count(kinds[place]) for place, result in enumerate(typical)}  # of its kind
    first = sorted(typical, key=lambda r: (not is_reference(r), r.label not in BASELINES, faster[r.label]))
    drawn = [
        (f"{r.name}: {_in_words(r.timeline, r.calls is None and not is_reference(r))}", r.timeline)
        for r in first[:MOST_TIMELINES]
        if r.timeline
    ]
    if not drawn:
        return None
    disturbed = [result.name for result in recorded if result not in typical]
    more = f"; {len(drawn)} of {len(recorded)} strategies" if len(drawn) < len(recorded) else ""
    more += f"; a disturbed step was recorded of {first_few(disturbed)}" if disturbed else ""
    return _page(f"{TITLE}{more}\n{scenario_text(scenario.scenario)}", drawn)


def _in_words(timeline: Timeline, silent: bool) -> str:
    """Describe a step as `step 21.6 ms, waits 2.42 ms, 4 calls`. silent: the library does not show its calls."""
    tail = max(line.usable_s - line.backward_s for line in timeline.ranks)
    calls = max(len(line.calls) for line in timeline.ranks)
    words = [f"step {seconds(timeline.step_s)}"]
    words += [f"waits {seconds(tail)}"] if tail > 0 else []
    words.append(
        "its calls cannot be seen" if silent and not calls else "1 call" if calls == 1 else f"{calls or 'no'} calls"
    )
    if len(timeline.ranks) > SHOWN_RANKS:
        words.append(f"{SHOWN_RANKS} of {len(timeline.ranks)} ranks shown")
    return ", ".join(words)


def _page(title: str, strategies: Sequence[tuple[str, Timeline]]) -> Figure:
    """Draw one page. strategies: title and timeline of each."""
    heights = [RANK * min(len(timeline.ranks), SHOWN_RANKS) for _, timeline in strategies]
    figure, grid = figures.page(title, heights, sharex=True)
    for axes, (heading, timeline) in zip(grid[:, 0], strategies, strict=True):
        # Ranks below each other, each with its computing above its communication.
        places = np.linspace(0, len(timeline.ranks) - 1, min(len(timeline.ranks), SHOWN_RANKS))
        ranks = [timeline.ranks[round(place)] for place in places]
        for row, line in enumerate(ranks):
            _compute_lane(axes, line, row - COMPUTE - BETWEEN / 2)
            _communication_lane(axes, line, row + BETWEEN / 2)
        axes.set_title(heading)
        name_rows(axes, [f"rank {line.rank}" for line in ranks])
    axes.set_xlim(0, 1.01 * max(line.begin_s + line.end_s for _, timeline in strategies for line in timeline.ranks))
    time_axis(axes.xaxis)
    axes.set_xlabel("time since the first rank began the step")
    return figure


def _compute_lane(axes: Axes, line: RankTimeline, y: float) -> None:
    stamps = (0.0, line.forward_s, line.backward_s, line.usable_s, line.end_s)
    for (begin_s, end_s), (part, style) in zip(pairwise(stamps), PARTS.items(), strict=True):
        if end_s > begin_s:
            place: Any = {"left": line.begin_s + begin_s, "height": COMPUTE, "align": "edge"}
            axes.barh(y, end_s - begin_s, label=part, **place, **style)
    ticks: Any = {"color": "black", "markeredgewidth": min(0.7, 40 / max(1, len(line.ready_s)))}
    ready_s = [line.begin_s + time_s for time_s in line.ready_s]
    axes.plot(ready_s, [y + 0.25 * COMPUTE] * len(ready_s), "|", label="a gradient becomes ready", **ticks)


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
    style: Any = {"facecolor": CALL, "edgecolor": "white", "linewidth": 0.5}
    for number, lane in enumerate(filled):
        spans = [(line.begin_s + call.launched_s, call.done_s - call.launched_s) for call in lane]
        axes.broken_barh(spans, (y + number * height, height), label="a call, from launch to completion", **style)
