"""Draw one step of each strategy: what each rank computes, and which calls are under way meanwhile.

In: a run and its analysis. Out: figures of each scenario with timelines, each of a dozen strategies if there are two
ranks; none where nothing was recorded. All strategies share one time axis, so that a longer step is drawn longer. The
waiting that is drawn is a diagnostic and not exposed communication: it leaves out waiting in hooks, and computing that
is slowed down.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from bench.model.conclusions import Analysis, ScenarioAnalysis
from bench.model.records import Run
from bench.model.training import RankTimeline, Timeline
from bench.report.plots.figures import COLOURS, WIDER, time_axis, wrapped
from bench.report.plots.figures import spread as evenly
from bench.report.trace import BACKWARD, FORWARD, UPDATE, WAITING, computing, lanes
from bench.report.training import is_reference, names_of, ordered, scenario_text, seconds

# Colours of calls. Calls without outlines alternate between the two, so that neighbours can be told apart.
FLIGHT, DARKER = COLOURS[4], "#B37700"
# Looks of the parts of a step. Waiting is hatched: it must stand out from updating also in black and white.
PARTS: dict[str, dict[str, Any]] = {
    FORWARD: {"facecolor": COLOURS[5], "linewidth": 0},
    BACKWARD: {"facecolor": COLOURS[0], "linewidth": 0},
    WAITING: {"facecolor": COLOURS[1], "linewidth": 0, "hatch": "////", "edgecolor": "white"},
    UPDATE: {"facecolor": COLOURS[2], "linewidth": 0},
}
# Strategies that the others are meant to improve on: they are drawn first.
BASELINES = ("naive",)
QUESTION = "When does communication overlap with computing?  One step of each strategy"
CAPTION = (
    "Of each rank, the upper bar is what it computes, and the boxes below it are its calls.\n"
    "A call is hidden where it lies below forward or backward, and exposed where the rank waits."
)
AXIS = "time since the first rank began the step (recorded in detail, which takes time: not one of the timed steps)"
# Most ranks on one page, and of one strategy: a page with more does not fit on a screen.
MOST_ROWS, SHOWN_RANKS = 24, 4
# Heights of a compute lane, of a communication lane, and of the gap between them; a rank takes 1 on the y axis.
COMPUTE, COMMUNICATION, BETWEEN = 0.36, 0.46, 0.04
# Most ticks of ready gradients, calls with outlines, and lanes with outlines: more would hide what they mark.
MOST_TICKS, MOST_OUTLINES, MOST_OUTLINED_LANES = 400, 150, 6


def timelines(_: Run, analysis: Analysis) -> list[Figure]:
    """Pages of strategies by place."""
    return [page for scenario in analysis.scenarios for page in _pages(scenario)]


def _pages(scenario: ScenarioAnalysis) -> list[Figure]:
    # The reference, then those in BASELINES, then by place. The plainest strategy is usually the slowest one: by place
    # alone it would begin the second page, and the first page would lack what all others are meant to improve on.
    first = sorted(ordered(scenario), key=lambda r: (not is_reference(r), r.label not in BASELINES))
    recorded = [(result, result.timeline) for result in first if result.timeline and result.timeline.ranks]
    names = names_of(scenario)
    strategies = [
        (f"{names[result.label]}: {_in_words(timeline, result.calls is None and not is_reference(result))}", timeline)
        for result, timeline in recorded
    ]
    ranks = max((min(len(timeline.ranks), SHOWN_RANKS) for _, timeline in recorded), default=1)
    many = MOST_ROWS // max(1, ranks)
    last = max((line.begin_s + line.end_s for _, timeline in recorded for line in timeline.ranks), default=0.0)
    what = scenario_text(scenario.scenario)
    return [_page(what, strategies[start : start + many], last) for start in range(0, len(strategies), many)]


def _in_words(timeline: Timeline, silent: bool) -> str:
    """Such as `step 21.6 ms, waits 2.42 ms, 4 calls`. silent: the library does not show its calls."""
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


def _page(what: str, strategies: Sequence[tuple[str, Timeline]], last: float) -> Figure:
    """strategies: title and timeline of each. last: when the longest step of all pages ends."""
    heights = [0.24 + 0.42 * min(len(timeline.ranks), SHOWN_RANKS) for _, timeline in strategies]
    figure = Figure(figsize=(10, 2.1 + sum(heights)), layout="constrained")
    rows = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    figure.suptitle(f"{QUESTION}\n{wrapped(what, WIDER)}\n{CAPTION}", x=0.01, ha="left", fontsize=10.5)
    for axes, (title, timeline) in zip(rows, strategies, strict=True):
        # Rank under rank, each with its computing above its communication.
        ranks = [timeline.ranks[rank] for rank in evenly(list(range(len(timeline.ranks))), SHOWN_RANKS)]
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
        Patch(**look, label="waiting for gradients" if part == WAITING else part) for part, look in PARTS.items()
    ]
    handles += [Patch(facecolor=FLIGHT, edgecolor="black", linewidth=0.6, label="a call, from launch to completion")]
    handles += [Patch(facecolor="none", hatch="|||", edgecolor="black", linewidth=0, label="a gradient becomes ready")]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8.5)
    return figure


def _compute_lane(axes: Axes, line: RankTimeline, y: float) -> None:
    for bar in computing(line):
        width = bar.end_s - bar.begin_s
        axes.add_patch(Rectangle((line.begin_s + bar.begin_s, y), width, COMPUTE, **PARTS[bar.name]))
    if len(line.ready_s) <= MOST_TICKS:
        ticks = [((line.begin_s + t, y), (line.begin_s + t, y + 0.45 * COMPUTE)) for t in line.ready_s]
        axes.add_collection(LineCollection(ticks, colors="black", linewidths=min(0.7, 40 / max(1, len(ticks)))))


def _communication_lane(axes: Axes, line: RankTimeline, y: float) -> None:
    """Calls that are under way at once share the height of the lane."""
    filled = lanes(line.calls)
    height = COMMUNICATION / max(1, len(filled))
    outlined = len(line.calls) <= MOST_OUTLINES and len(filled) <= MOST_OUTLINED_LANES
    bars, shades = [], []
    for number, lane in enumerate(filled):
        for place, call in enumerate(lane):
            corner = (line.begin_s + call.launched_s, y + number * height)
            bars.append(Rectangle(corner, call.done_s - call.launched_s, height))
            shades.append(FLIGHT if outlined or (number + place) % 2 else DARKER)
    look = {"edgecolor": "black", "linewidth": 0.5} if outlined else {"linewidth": 0}
    axes.add_collection(PatchCollection(bars, facecolor=shades, **look))
