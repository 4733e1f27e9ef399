"""Draw the calls of a step of a recorded job along time: as recorded, and as made again.

In: a run and its analysis. Out: a figure for each replay; none without one.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.model.conclusions import Analysis, ReplayedStep, StepBar
from bench.model.records import Case, Run
from bench.model.units import format_seconds
from bench.report.findings import kind_name
from bench.report.plots.panels import wrapped
from bench.report.plots.plot_style import COLOURS, time_axis

# Kinds that have a colour of their own; the rest are grey.
OTHERS = "#BBBBBB"
WIDE = 115
# Letters in a line of a row's name.
NAME = 44


def timelines(run: Run, analysis: Analysis) -> list[Figure]:
    """A page for each replay, the recording above and the median step below."""
    return [_page(step) for step in analysis.replayed if step.bars]


def _page(step: ReplayedStep) -> Figure:
    kinds = [kind.case for kind in step.kinds]
    shown = [("recorded", step.recorded_bars)] if step.recorded_bars else []
    shown.append(("here", step.bars))
    rows = min(len(kinds), len(COLOURS)) + (len(kinds) > len(COLOURS))
    figure = Figure(figsize=(9, 1.5 + len(shown) * (0.5 + 0.28 * rows)), layout="constrained")
    every = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, bars) in zip(every, shown, strict=True):
        _draw(axes, bars, kinds)
        axes.set_yticks([rows - place - 0.5 for place in range(rows)], _row_names(step))
        axes.set_title(title, fontsize=9.5)
    every[-1].set_xlabel("time since the first call of the step")
    time_axis(every[-1].xaxis)
    recorded = f"{format_seconds(step.recorded_s)} recorded, " if step.recorded_s is not None else ""
    text = f"What does the job's communication cost here?  {recorded}{format_seconds(step.time.value)} here, a step"
    figure.suptitle(wrapped(text, WIDE), x=0.01, ha="left", fontsize=10.5)
    return figure


def _row_names(step: ReplayedStep) -> list[str]:
    """A name beside each row says more than a legend of colours. Kinds without a colour share the last row."""
    names = [wrapped(kind_name(kind), NAME) for kind in step.kinds[: len(COLOURS)]]
    further = len(step.kinds) - len(COLOURS)
    return [*names, *([f"{further} further kinds"] if further > 0 else [])]


def _draw(axes: Axes, bars: Sequence[StepBar], kinds: Sequence[Case]) -> None:
    """A row for each kind, so that calls that overlap are seen."""
    rows = min(len(kinds), len(COLOURS)) + (len(kinds) > len(COLOURS))
    for bar in bars:
        place = min(kinds.index(bar.kind), len(COLOURS))
        span = [(bar.start_s, bar.duration_s)]
        axes.broken_barh(span, (rows - place - 0.9, 0.8), facecolor=_colour(place), edgecolor="white", linewidth=0.3)
    axes.set_ylim(0, rows)
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)


def _colour(place: int) -> str:
    return COLOURS[place] if place < len(COLOURS) else OTHERS
