"""Draw one step of each strategy: what each rank computes, and which calls are under way meanwhile.

In: a `ScenarioAnalysis` with timelines. Out: figures, each of a dozen strategies if there are two ranks; none where
nothing was recorded. All strategies share one time axis, so that a longer step is drawn longer. The waiting that is
drawn is a diagnostic and not exposed communication: it leaves out waiting in hooks, and computing that is slowed down.
"""

from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from bench.report.plots.panels import WIDER, wrapped
from bench.report.plots.plot_style import COLOURS, time_axis
from bench.report.plots.plot_style import spread as evenly
from bench.training.conclusions import ScenarioAnalysis
from bench.training.records import RankTimeline, Timeline
from bench.training.report.labels import is_reference, names, ordered, scenario_text, seconds
from bench.training.report.lanes import BACKWARD, FORWARD, UPDATE, WAITING, computing, lanes

# Colours of calls. Calls without outlines alternate between the two, so that neighbours can be told apart.
FLIGHT, DARKER = COLOURS[4], "#B37700"
PARTS = {FORWARD: COLOURS[5], BACKWARD: COLOURS[0], WAITING: COLOURS[1], UPDATE: COLOURS[2]}
# Strategies that the others are meant to improve on: they are drawn first.
BASELINES = ("naive",)
QUESTION = "When does communication overlap with computing?  One step of each strategy"
CAPTION = (
    "Of each rank, the upper bar is what it computes, and the boxes below it are its calls.\n"
    "A call is hidden where it lies below forward or backward, and exposed where the rank waits."
)
# Most ranks on one page, and of one strategy: a page with more does not fit on a screen.
MOST_ROWS, SHOWN_RANKS = 24, 4
# Heights of a compute lane, of a communication lane, and of the gap between them; a rank takes 1 on the y axis.
COMPUTE, COMMUNICATION, BETWEEN = 0.36, 0.46, 0.04
# Most ticks of ready gradients, calls with outlines, and lanes with outlines: more would hide what they mark.
MOST_TICKS, MOST_OUTLINES, MOST_OUTLINED_LANES = 400, 150, 6


def timelines(comparison: ScenarioAnalysis) -> list[Figure]:
    """Pages of strategies by place, each strategy as the first launch recorded it."""
    first: dict[str, Timeline] = {}
    for timeline in (found for found in comparison.timelines if found.ranks):
        first.setdefault(timeline.strategy, timeline)
    order = _in_order(comparison, first)
    called = names([*(o.label for o in comparison.results), *first])
    silent = {o.label for o in comparison.results if o.calls is None and not is_reference(o)}
    titles = {label: f"{called[label]}: {_in_words(first[label], label in silent)}" for label in first}
    ranks = max((min(len(timeline.ranks), SHOWN_RANKS) for timeline in first.values()), default=1)
    many = MOST_ROWS // max(1, ranks)
    pages = [order[k : k + many] for k in range(0, len(order), many)]
    last = max((line.begin_s + line.end_s for t in first.values() for line in t.ranks), default=0.0)
    return [
        _page(scenario_text(comparison.scenario), [(titles[label], first[label]) for label in page], last)
        for page in pages
    ]


def _in_order(comparison: ScenarioAnalysis, recorded: Collection[str]) -> list[str]:
    """Labels of what was recorded: the reference, then those in BASELINES, then by place.

    The plainest strategy is usually the slowest one. By place alone it would begin the second page, and the first page
    would lack what all others are meant to improve on.
    """
    every = [*(result.label for result in ordered(comparison)), *recorded]
    reference = [result.label for result in comparison.results if is_reference(result)]
    return [label for label in dict.fromkeys([*reference, *BASELINES, *every]) if label in recorded]


def _page(what: str, chosen: Sequence[tuple[str, Timeline]], last: float) -> Figure:
    ranks = [min(len(timeline.ranks), SHOWN_RANKS) for _, timeline in chosen]
    heights = [0.24 + 0.42 * count for count in ranks]
    figure = Figure(figsize=(10, 2.1 + sum(heights)), layout="constrained")
    rows = figure.subplots(len(chosen), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    figure.suptitle(
        f"{QUESTION}\n{wrapped(what, WIDER)}\n{CAPTION}",
        x=0.01, ha="left", fontsize=10.5,
    )  # fmt: skip
    for axes, (title, timeline) in zip(rows, chosen, strict=True):
        _draw(axes, title, timeline)
    rows[-1].set_xlim(0, 1.01 * last)
    time_axis(rows[-1].xaxis)
    rows[-1].set_xlabel(
        "time since the first rank began the step (recorded in detail, which takes time: not one of the timed steps)",
        fontsize=9,
    )
    handles = [Patch(**_look(name), label=_meaning(name)) for name in PARTS]
    handles += [Patch(facecolor=FLIGHT, edgecolor="black", linewidth=0.6, label="a call, from launch to completion")]
    handles += [Patch(facecolor="none", hatch="|||", edgecolor="black", linewidth=0, label="a gradient becomes ready")]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8.5)
    return figure


def _look(part: str) -> dict[str, Any]:
    """Waiting is hatched: it must stand out from updating also in black and white."""
    look: dict[str, Any] = {"facecolor": PARTS[part], "linewidth": 0}
    return look | {"hatch": "////", "edgecolor": "white"} if part == WAITING else look


def _meaning(name: str) -> str:
    return "waiting for gradients" if name == WAITING else name


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


def _draw(axes: Axes, title: str, timeline: Timeline) -> None:
    """Draw one strategy: rank under rank, each with its computing above its communication."""
    places = evenly(list(range(len(timeline.ranks))), SHOWN_RANKS)
    for row, place in enumerate(places):
        line = timeline.ranks[place]
        _compute_lane(axes, line, row)
        _communication_lane(axes, line, row + COMPUTE + BETWEEN)
    axes.set_title(title, fontsize=9, pad=2)
    axes.set_yticks(
        [row + 0.42 for row in range(len(places))], [f"rank {timeline.ranks[place].rank}" for place in places]
    )
    axes.set_ylim(len(places) - 0.06, -0.08)
    axes.tick_params(labelsize=8, length=0)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)


def _compute_lane(axes: Axes, line: RankTimeline, y: float) -> None:
    for bar in computing(line):
        width = bar.end_s - bar.begin_s
        axes.add_patch(Rectangle((line.begin_s + bar.begin_s, y), width, COMPUTE, **_look(bar.name)))
    if len(line.ready_s) <= MOST_TICKS:
        ticks = [((line.begin_s + t, y), (line.begin_s + t, y + 0.45 * COMPUTE)) for t in line.ready_s]
        axes.add_collection(LineCollection(ticks, colors="black", linewidths=min(0.7, 40 / max(1, len(ticks)))))


def _communication_lane(axes: Axes, line: RankTimeline, y: float) -> None:
    """Calls that are under way at once share the height of the lane."""
    found = lanes(line.calls)
    height = COMMUNICATION / max(1, len(found))
    bars = [
        Rectangle((line.begin_s + call.launched_s, y + number * height), call.done_s - call.launched_s, height)
        for number, lane in enumerate(found)
        for call in lane
    ]
    outlined = len(bars) <= MOST_OUTLINES and len(found) <= MOST_OUTLINED_LANES
    shades = [
        FLIGHT if outlined or (number + place) % 2 else DARKER
        for number, lane in enumerate(found)
        for place in range(len(lane))
    ]
    look = {"edgecolor": "black", "linewidth": 0.5} if outlined else {"linewidth": 0}
    axes.add_collection(PatchCollection(bars, facecolor=shades, **look))
