"""Draw recorded jobs: where their time in calls went, and the calls of a step, recorded and made again."""

import numpy as np
from matplotlib.figure import Figure

from collbench.model.conclusions import Analysis
from collbench.model.records import Run
from collbench.model.units import format_seconds
from collbench.packages.replay.conclusions import ReplayedStep, replays_of
from collbench.packages.replay.report import kind_name, rank_named, recorded_kind, recorded_sentence
from collbench.report.plots.figures import COLOURS, GREY, name_rows, page, size_text, time_axis

# Most rows of kinds and of ranks: more rows would be too small to read. Inches: height of a row.
MOST_KINDS, MOST_RANKS, ROW = 7, 45, 0.27
# A call has this colour in all pictures along time.
CALL = COLOURS[4]


def recorded(run: Run | None, analysis: Analysis) -> list[Figure]:
    """Draw the time in calls by kind, divided into moving and waiting, and the waiting time for each rank."""
    job = replays_of(analysis).recorded
    if job is None or job.total is None or not job.total.in_calls_s:
        return []
    kinds, waited_for = job.kinds[:MOST_KINDS], job.total.waited_for
    ranks = sorted(job.ranks) if waited_for and len(job.ranks) <= MOST_RANKS else []
    title = f"Time in calls of a recorded step, by kind\n{recorded_sentence(job)}"
    figure, grid = page(title, [ROW * len(names) for names in (kinds, ranks) if names], sharex=True)
    upper, *lower = grid[:, 0]
    begins = np.zeros(len(kinds))
    for name, colour, values in (
        ("moving data", COLOURS[0], [kind.time.moved_s for kind in kinds]),
        ("waiting for others", COLOURS[1], [kind.time.waited_s for kind in kinds]),
        ("moving or waiting, unknown", GREY, [kind.time.unsplit_s for kind in kinds]),
    ):
        if any(values):
            upper.barh(range(len(kinds)), values, left=begins, color=colour, label=name, height=0.7)
            begins += values
    name_rows(upper, [recorded_kind(kind, size_text) for kind in kinds])
    upper.set_title("time in calls per step, mean over ranks")
    for axes in lower:
        axes.barh(range(len(ranks)), [waited_for.get(rank, 0.0) for rank in ranks], color=COLOURS[1], height=0.7)
        name_rows(axes, [rank_named(job, rank) for rank in ranks])
        axes.set_title("how long others waited for each rank per step, mean over ranks")
    upper.set_xlim(left=0)
    time_axis(upper.xaxis)
    return [figure]


def steps(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw the calls of a step on a time axis: one page per replay, the recording above and the median step below."""
    return [_replay_figure(step) for step in replays_of(analysis).steps if step.bars]


def _replay_figure(step: ReplayedStep) -> Figure:
    """Draw a row per kind of call, so that overlapping calls are visible. Further kinds share the last row."""
    kinds = [kind.case for kind in step.kinds]
    names = [kind_name(kind, size_text) for kind in step.kinds[:MOST_KINDS]]
    if len(kinds) > MOST_KINDS:
        names.append(f"{len(kinds) - MOST_KINDS} further kinds")
    panels = [("recorded", step.recorded_bars)] if step.recorded_bars else []
    panels.append(("here", step.bars))
    recorded_s = step.recorded.in_calls_s if step.recorded is not None else None
    before = "" if recorded_s is None else f"{format_seconds(recorded_s)} recorded, "
    title = f"Calls of one step on rank 0, along time; {before}{format_seconds(step.time.value)} here, mean over ranks"
    figure, grid = page(title, [ROW * len(names)] * len(panels), sharex=True)
    for axes, (heading, bars) in zip(grid[:, 0], panels, strict=True):
        rows = [min(kinds.index(bar.kind), MOST_KINDS) for bar in bars]
        begins = [bar.start_s for bar in bars]
        axes.barh(rows, [bar.duration_s for bar in bars], left=begins, color=CALL, edgecolor="white", linewidth=0.3)
        name_rows(axes, names)
        axes.set_title(heading)
    axes.set_xlabel("time since the first call of the step")
    time_axis(axes.xaxis)
    return figure
