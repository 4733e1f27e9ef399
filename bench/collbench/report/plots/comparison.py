"""Draw comparisons: changes between two runs or between two sides in pairs, and changes of times over many runs.

In: a `Comparison` or `Trend` values. Out: PNG files. Verdicts differ by colour *and* by marker, and markers are
filled if a verdict is decided and hollow if it is not, so that they can be distinguished in black and white. Every
interval is drawn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from collbench.model.comparisons import (
    FASTER,
    INCONCLUSIVE,
    SAME,
    SLOWER,
    Change,
    Comparison,
    ExposedChange,
    Judgement,
    Trend,
)
from collbench.model.records import case_order
from collbench.report.comparison import VERDICTS, headline, in_order, percent
from collbench.report.labels import common_parts, label_parts, parts_on_both_sides
from collbench.report.plots.figures import COLOURS, STYLE, WIDE, WIDER, save, time_axis, wrapped
from collbench.store import folders

GREY = "#666666"
# Verdict → colour and marker. Triangles point to longer or shorter times.
LOOKS = {
    SLOWER: (COLOURS[1], ">"),
    FASTER: (COLOURS[0], "<"),
    SAME: (COLOURS[2], "s"),
    INCONCLUSIVE: (GREY, "o"),
}
# Name of the row of the run as a whole, and meaning of the bars.
WHOLE = "the run as a whole (index)"
BARS = "bars: intervals, corrected for the number of cases"
# More rows or panels than this cannot be read on a page; the table has them all.
MOST_ROWS = 60
MOST_TRENDS = 12
# Round ratios that an axis may show: it shows the ratios that are within it and far enough apart.
RATIOS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 1,
    1.03, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2, 3, 5, 10, 20, 50, 100,
)  # fmt: skip
# Smallest distance of two labels, as a share of the axis.
APART = 0.055
# Smallest share of the axis on each side of 1: "faster" and "slower" are written there.
SIDE = 0.17
# Width in inches of a picture without the names of its rows, and of a letter of a name.
ROW_WIDTH, LETTER = 6.2, 0.068
# Letters in a line of the axis label, which is about as wide as the axis; inches of an entry of a legend.
AXIS_LETTERS, ENTRY = 80, 1.8
# Letters in a line of the title of a trend, and of a picture with 1, 2 or 3 trends side by side.
PANEL_WIDE, TREND_WIDE = 48, (60, 100, 140)
# Inches that the panel of exposed communication adds.
EXPOSED_WIDTH = 4.5


# ── two runs, or two sides that took turns ───────────────────────────────────────────────────────
def draw_comparison(result: Comparison, folder: Path) -> Path | None:
    """Draw the ratio of each case, and exposed communication. Returns the PNG's path; None if there is no case."""
    if not result.changes:
        return None
    with rc_context(STYLE):
        return _saved(comparison_figure(result), folder, "comparison")


def comparison_figure(result: Comparison) -> Figure:
    """Draw a row for each case, at most MOST_ROWS, in the order of the tables, with a dot for each pair of launches.

    A second panel has the exposed communication, before and after, if there is any.
    """
    shown = in_order(standing_out(result.changes))
    common, names = common_parts([parts_on_both_sides(change.case, change.other) for change in shown])
    rows = [(name, change.judgement) for name, change in zip(names, shown, strict=True)]
    if result.whole is not None:
        rows.insert(0, (WHOLE, result.whole))
    paired = any(judged.ratios for _, judged in rows)
    steps = {len(shown) - 1 - row: change.exposed for row, change in enumerate(shown) if change.exposed}
    width = max(9, ROW_WIDTH + LETTER * max(len(name) for name, _ in rows)) + EXPOSED_WIDTH * bool(steps)
    figure = Figure(figsize=(width, 2.4 + (0.42 if paired else 0.28) * len(rows)), layout="constrained")
    axes, *exposed_panels = figure.subplots(
        1, 1 + bool(steps), sharey=True, squeeze=False, width_ratios=[1.0, 0.8][: 1 + bool(steps)]
    )[0]
    for y, (_, judged) in enumerate(reversed(rows)):
        ratios = judged.ratios
        # Pairs in the order of time, from below to above the bar, so that a drift is visible.
        heights = y + np.linspace(-0.28, 0.28, len(ratios)) if len(ratios) > 1 else [y] * len(ratios)
        axes.plot(ratios, heights, ".", color=GREY, alpha=0.45, markersize=5, markeredgewidth=0, zorder=1)
    ratio_rows(axes, [judged for _, judged in rows], [name for name, _ in rows], result.min_change)
    if result.whole is not None:
        axes.axhline(len(rows) - 1.5, color=GREY, linewidth=0.8)
    ratio_axis(axes)
    drawn, before, after = "Time after / time before:", "before", "after"
    if paired:
        drawn, before, after = "Time of B / time of A:", "of A", "of B"
    elif result.across is not None:
        field = result.across.replace("_", " ")
        drawn, before, after = f"Times by {field}:", f"in {result.before}", f"in {result.after}"
        if result.values is not None:
            before, after = (f"at {field} {value}" for value in result.values)
    axes.set_xlabel(f"{wrapped(f'time {after} / time {before} (log scale)', AXIS_LETTERS)}\n{BARS}")
    letters = WIDE if not steps else WIDER
    lines = [f"{drawn}  {result.before}  →  {result.after}", headline(result), common]
    lines[1] += f"; {result.in_turns.pairs} pairs" if result.in_turns else ""
    title = "\n".join(wrapped(line, letters) for line in lines if line)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)
    directions(axes)
    dot = Line2D([], [], linestyle="", marker=".", color=GREY, label="a pair of launches, the first one lowest")
    handles = [dot] if paired else []
    for exposed_axes in exposed_panels:
        handles += _exposed_rows(exposed_axes, steps)
    verdict_legend(figure, result, len(result.changes) - len(shown), *handles)
    return figure


def _exposed_rows(axes: Axes, steps: Mapping[int, ExposedChange]) -> list[Line2D]:
    """Draw exposed communication in rows, before above after, with intervals. Returns entries of the legend."""
    for y, exposed in steps.items():
        colour = GREY
        if exposed.resolved:
            colour, _ = LOOKS[SLOWER if exposed.difference.value > 0 else FASTER]
        for interval, shift, face in ((exposed.before, 0.16, "white"), (exposed.after, -0.16, colour)):
            axes.plot([interval.low, interval.high], [y + shift] * 2, color=colour, linewidth=1.2)
            axes.plot([interval.value], [y + shift], "D", color=colour, markerfacecolor=face, markersize=5)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", left=False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    time_axis(axes.xaxis)
    axes.set_xlabel("exposed communication of a step\ngrey: the difference is not resolved")
    return [
        Line2D([], [], color=GREY, marker="D", markerfacecolor=face, markersize=5, label=f"exposed, {side}")
        for side, face in (("before", "white"), ("after", GREY))
    ]


def _saved(figure: Figure, folder: Path, name: str) -> Path:
    folders.make_folder(folder)
    save(figure, folder / name)
    return folder / f"{name}.png"


def standing_out(changes: Sequence[Change]) -> list[Change]:
    """Return at most MOST_ROWS changes in the order of VERDICTS, and for each verdict the largest changes first."""
    return sorted(
        changes, key=lambda change: (VERDICTS.index(change.verdict), -max(change.ratio.value, 1 / change.ratio.value))
    )[:MOST_ROWS]


def ratio_rows(axes: Axes, changes: Sequence[Judgement], names: Sequence[str], min_change: float) -> None:
    """Draw a row for each judgement, the first on top. The grey band has the changes that are too small to matter."""
    limit = 1 + min_change
    axes.axvspan(1 / limit, limit, color="#000000", alpha=0.08, linewidth=0)
    axes.axvline(1, color="black", linewidth=1)
    for y, change in enumerate(reversed(changes)):
        colour, marker = LOOKS[change.verdict]
        decided, ratio = change.verdict != INCONCLUSIVE, change.ratio
        width, line = (2, "-") if decided else (1, "--")
        axes.plot([ratio.low, ratio.high], [y, y], color=colour, linewidth=width, linestyle=line)
        face = colour if decided else "white"
        axes.plot([ratio.value], [y], marker, color=colour, markerfacecolor=face, markersize=7)
    axes.set_yticks(range(len(changes)), list(reversed(names)), fontsize=8)
    axes.set_ylim(-0.7, len(changes) - 0.3)
    axes.grid(visible=False, axis="y")


def directions(axes: Axes) -> None:
    """Write above the axes which side of 1 is faster and which is slower."""
    for text, side, shift in (("← faster", "right", -10), ("slower →", "left", 10)):
        axes.annotate(
            text, (1, 1), xycoords=axes.get_xaxis_transform(), xytext=(shift, 5), textcoords="offset points", ha=side
        )


def ratio_axis(axes: Axes) -> None:
    """Make x a logarithmic axis of ratios with round labels that do not touch."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    low, high = min(low, 0.88), max(high, 1.14)
    share = SIDE / (1 - SIDE)
    low, high = min(low, high**-share), max(high, low**-share)
    axes.set_xlim(low, high)
    span = math.log(high / low)
    ticks = [1.0]
    for ratio in sorted(RATIOS, key=lambda r: abs(math.log(r))):
        if low <= ratio <= high and all(abs(math.log(ratio / other)) > APART * span for other in ticks):
            ticks.append(ratio)
    axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(FixedLocator([ratio for ratio in RATIOS if ratio not in ticks]))
    axes.xaxis.set_minor_formatter(NullFormatter())


def verdict_legend(figure: Figure, result: Comparison, left_out: int, *more: Line2D) -> None:
    """Draw a legend with the verdicts that occur. left_out: number of rows not drawn. more: further entries."""
    present = {change.verdict for change in result.changes} | ({result.whole.verdict} if result.whole else set())
    handles: list[Line2D | Patch] = [*more]
    for verdict in VERDICTS:
        colour, marker = LOOKS[verdict]
        face = "white" if verdict == INCONCLUSIVE else colour
        if verdict in present:
            handles.append(Line2D([], [], color=colour, marker=marker, markerfacecolor=face, label=verdict.lower()))
    handles.append(Patch(color="#000000", alpha=0.08, label=f"too small to matter (±{result.min_change * 100:g} %)"))
    if left_out:
        handles.append(Line2D([], [], linestyle="", label=f"and {left_out} more: see the table"))
    columns = min(len(handles), int(figure.get_figwidth() / ENTRY))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=9)


# ── many runs ────────────────────────────────────────────────────────────────────────────────────
def draw_trend(trends: Sequence[Trend], runs: Sequence[str], folder: Path) -> Path:
    """Draw the times of each case over the runs, oldest first. Returns the PNG's path.

    Each trend has a panel; if there are too many trends, only trends with the largest changes of level are drawn.
    """
    step = {trend: max((abs(math.log(level.ratio)) for level in trend.changed), default=0.0) for trend in trends}
    largest = sorted(trends, key=lambda trend: -step[trend])[:MOST_TRENDS]
    shown = sorted(largest, key=lambda trend: case_order(trend.case))
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(3.6 * columns + 0.6, 2.3 * rows + 1.2), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        common, names = common_parts([label_parts(trend.case) for trend in shown])
        for axes, name, trend in zip(grid.flat, names, shown, strict=False):
            _one_trend(axes, name, trend, runs)
        for axes in list(grid.flat)[len(shown) - columns : len(shown)]:
            axes.set_xlabel("run, oldest first, as in the table", fontsize=8.5)
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_visible(False)
        changed = sum(bool(trend.changed) for trend in trends)
        text = f"Times over {len(runs)} runs: {changed} of {len(trends)} cases changed level"
        title = "\n".join(wrapped(line, TREND_WIDE[columns - 1]) for line in (text, common) if line)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        figure.supylabel("time of one operation (mean)", fontsize=9)
        handles = [
            Line2D([], [], color=COLOURS[0], marker="o", label="a run, with its 95 % interval"),
            Line2D([], [], color="black", linewidth=2, alpha=0.5, label="level"),
        ]
        if changed:
            handles.append(Line2D([], [], color=COLOURS[1], linestyle="--", label="change of level"))
        if len(trends) > len(shown):
            more = f"and {len(trends) - len(shown)} more cases: see the table"
            handles.append(Line2D([], [], linestyle="", label=more))
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), columns + 1), fontsize=9)
        return _saved(figure, folder, "trend")


def _one_trend(axes: Axes, name: str, trend: Trend, runs: Sequence[str]) -> None:
    x = [runs.index(name) + 1 for name in trend.runs]
    values = [time.value for time in trend.times_s]
    shown = [t if t.known else replace(t, low=math.nan, high=math.nan) for t in trend.times_s]
    bars = [[t.value - t.low for t in shown], [t.high - t.value for t in shown]]
    axes.errorbar(x, values, yerr=bars, fmt="o", color=COLOURS[0], markersize=4, capsize=2, linewidth=1)
    ends = [*(level.first for level in trend.changed), len(x)]
    for level, end in zip(trend.levels, ends, strict=True):
        x_of_level = [x[level.first] - 0.4, x[end - 1] + 0.4]
        axes.plot(x_of_level, [level.time_s, level.time_s], color="black", linewidth=2, alpha=0.5)
    for level in trend.changed:
        place = (x[level.first - 1] + x[level.first]) / 2
        axes.axvline(place, color=COLOURS[1], linestyle="--", linewidth=1.2)
        at: Any = {"xycoords": ("data", "axes fraction"), "xytext": (3, -10), "textcoords": "offset points"}
        axes.annotate(percent(level.ratio), (place, 1), fontsize=8, **at)
    # From 0, so that noise is not magnified, to the highest interval, but at most to twice the largest time.
    axes.set_ylim(0, 1.15 * max(min(max(time.high for time in trend.times_s), 2 * max(values)), max(values)))
    axes.set_xlim(0.4, len(runs) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    time_axis(axes.yaxis)
    axes.set_title(wrapped(name, PANEL_WIDE), fontsize=8.5)
