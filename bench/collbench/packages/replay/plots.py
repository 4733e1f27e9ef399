"""Draw recorded jobs: where their time in calls went, and the calls of a step, recorded and made again."""

import numpy as np
from matplotlib.figure import Figure

from collbench.model.conclusions import Analysis
from collbench.model.records import Run
from collbench.model.units import format_seconds
from collbench.packages.replay.conclusions import ReplayedStep, replays_of
from collbench.packages.replay.report import kind_name, rank_named, recorded_kind, recorded_sentence
from collbench.report.plots.figures import COLOURS, time_axis, wrapped

# Most characters per line of a title, and of the name of a row.
TITLE, ROW_NAME = 115, 44
# Most rows of a panel: more rows would be too small to read.
MOST_ROWS = 45
# Colour of the kinds of calls that have no colour of their own.
OTHERS = "#BBBBBB"


def recorded(run: Run | None, analysis: Analysis) -> list[Figure]:
    """Draw the time in calls by kind, divided into moving and waiting, and the waiting time for each rank."""
    job = replays_of(analysis).recorded
    if job is None or job.total is None or not job.total.in_calls_s:
        return []
    shown = job.kinds[: len(COLOURS)]
    names = [wrapped(recorded_kind(kind), ROW_NAME) for kind in shown]
    times = [kind.time for kind in shown]
    ranks = sorted(job.ranks) if job.total.waited_for and len(job.ranks) <= MOST_ROWS else []
    heights = [1 + 0.32 * len(shown), *([1 + 0.26 * len(ranks)] if ranks else [])]
    figure = Figure(figsize=(9, 1.1 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    begins = np.zeros(len(shown))
    rows = np.arange(len(shown))
    for name, colour, values in (
        ("moving data", COLOURS[0], [time.moved_s for time in times]),
        ("waiting for others", COLOURS[1], [time.waited_s for time in times]),
        ("moving or waiting, unknown", OTHERS, [time.unsplit_s for time in times]),
    ):
        if any(values):
            panels[0].barh(rows, values, left=begins, color=colour, label=name, height=0.7)
            begins += values
    panels[0].set_yticks(rows, names)
    panels[0].invert_yaxis()
    panels[0].legend(loc="lower right", fontsize=8)
    panels[0].set_title("time in calls per step, mean over ranks", fontsize=9.5)
    if ranks:
        waited = [job.total.waited_for.get(rank, 0.0) for rank in ranks]
        panels[1].barh(range(len(ranks)), waited, color=COLOURS[1], height=0.7)
        panels[1].set_yticks(range(len(ranks)), [rank_named(job, rank) for rank in ranks])
        panels[1].invert_yaxis()
        panels[1].set_title("how long others waited for each rank per step, mean over ranks", fontsize=9.5)
    for axes in panels:
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", labelsize=8, length=0)
        axes.set_xlim(left=0)
        time_axis(axes.xaxis)
    text = wrapped(recorded_sentence(job), TITLE)
    figure.suptitle(f"Time in calls of a recorded step, by kind\n{text}", x=0.01, ha="left", fontsize=10.5)
    return [figure]


def steps(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw the calls of a step on a time axis: one page per replay, the recording above and the median step below."""
    return [_replay_figure(step) for step in replays_of(analysis).steps if step.bars]


def _replay_figure(step: ReplayedStep) -> Figure:
    """Draw a row per kind of call, so that overlapping calls are visible. Kinds without a colour share the last row."""
    kinds = [kind.case for kind in step.kinds]
    # A name next to each row is clearer than a legend of colours.
    names = [wrapped(kind_name(kind), ROW_NAME) for kind in step.kinds[: len(COLOURS)]]
    if len(kinds) > len(COLOURS):
        names.append(f"{len(kinds) - len(COLOURS)} further kinds")
    rows = len(names)
    shown = [("recorded", step.recorded_bars)] if step.recorded_bars else []
    shown.append(("here", step.bars))
    figure = Figure(figsize=(9, 1.5 + len(shown) * (0.5 + 0.28 * rows)), layout="constrained")
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (heading, bars) in zip(panels, shown, strict=True):
        for bar in bars:
            place = min(kinds.index(bar.kind), len(COLOURS))
            colour = COLOURS[place] if place < len(COLOURS) else OTHERS
            reach = [(bar.start_s, bar.duration_s)]
            axes.broken_barh(reach, (rows - place - 0.9, 0.8), facecolor=colour, edgecolor="white", linewidth=0.3)
        axes.set_ylim(0, rows)
        axes.tick_params(axis="y", labelsize=8, length=0)
        axes.grid(visible=False, axis="y")
        axes.set_axisbelow(True)
        axes.set_yticks([rows - place - 0.5 for place in range(rows)], names)
        axes.set_title(heading, fontsize=9.5)
    panels[-1].set_xlabel("time since the first call of the step")
    time_axis(panels[-1].xaxis)
    recorded_s = step.recorded.in_calls_s if step.recorded is not None else None
    before = "" if recorded_s is None else f"{format_seconds(recorded_s)} recorded, "
    text = f"Calls of one step on rank 0, along time; {before}{format_seconds(step.time.value)} here, mean over ranks"
    figure.suptitle(wrapped(text, TITLE), x=0.01, ha="left", fontsize=10.5)
    return figure
