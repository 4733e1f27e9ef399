"""Draw comparisons: changes between two runs or between two sides in pairs, and changes of times over many runs.

In: a `Comparison` or `Trend` values. Out: PNG files. Verdicts differ by colour *and* by marker, and markers are
filled if a verdict is decided and hollow if it is not, so that they can be distinguished in black and white. Every
interval is drawn.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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
from collbench.model.conclusions import IntervalKind
from collbench.model.records import case_order
from collbench.report.comparison import VERDICTS, WORDS, in_order, percent
from collbench.report.labels import between, common_parts, counted, label_parts, parts_on_both_sides
from collbench.report.plots import figures
from collbench.report.plots.figures import COLOURS, GREY, Point, draw_intervals, log_axis, name_rows, time_axis

# Verdict → colour and marker. Triangles point to longer or shorter times.
LOOKS = {
    SLOWER: (COLOURS[1], ">"),
    FASTER: (COLOURS[0], "<"),
    SAME: (COLOURS[2], "s"),
    INCONCLUSIVE: (GREY, "o"),
}
# Name of the row of the run as a whole.
WHOLE = "the run as a whole (index)"
# More rows or panels than this cannot be read on a page; the table has them all.
MOST_ROWS = 60
MOST_TRENDS = 12
# Inches: height of a row, also of a row with a dot for each pair of launches, and of a panel of a trend.
ROW, PAIRED_ROW, TREND = 0.27, 0.4, 1.6


# ── two runs, or two sides that took turns ───────────────────────────────────────────────────────
def draw_comparison(result: Comparison, folder: Path) -> Path | None:
    """Draw each case's ratio, and the time over the reference. Returns the PNG's path; None without a case."""
    if not result.changes:
        return None
    figures.draw_pages([folder / "comparison"], _comparison, result)
    return folder / "comparison.png"


def _comparison(result: Comparison) -> list[Figure]:
    """Draw a row for each case, at most MOST_ROWS, in the order of the tables, with a dot for each pair of launches.

    A second panel has the time over the reference, before and after, if there is any.
    """
    drawn = in_order(standing_out(result.changes))
    common, names = common_parts([parts_on_both_sides(change.case, change.other) for change in drawn])
    rows = [(name, change.judgement) for name, change in zip(names, drawn, strict=True)]
    if result.whole is not None:
        rows.insert(0, (WHOLE, result.whole))
    exposed = {len(rows) - len(drawn) + row: change.exposed for row, change in enumerate(drawn) if change.exposed}
    paired = any(judged.ratios for _, judged in rows)
    what, before, after = _sides(result, paired)
    counts = Counter(change.verdict for change in result.changes)
    verdicts = [f"{counts[verdict]} {WORDS[verdict]}" for verdict in VERDICTS if counts[verdict]]
    verdict = f"{result.verdict}: of {counted(len(result.changes), 'case')}, {', '.join(verdicts)}"
    title = [
        f"{what}: {result.before} → {result.after}",
        verdict + (f"; {result.in_turns.pairs} pairs" if result.in_turns else ""),
    ]
    height = (PAIRED_ROW if paired else ROW) * len(rows)
    options: Any = {"sharey": True, "width_ratios": [5, 4][: 1 + bool(exposed)]}
    figure, grid = figures.page("\n".join(filter(None, [*title, common])), [height], 1 + bool(exposed), **options)
    axes = grid[0, 0]
    _ratio_rows(axes, rows, result.min_change)
    if len(drawn) < len(result.changes):
        axes.plot([], [], " ", label=f"and {len(result.changes) - len(drawn)} more: see the table")
    axes.set_xlabel(f"time {after} / time {before}\n{_bars(rows)}")
    for exposed_axes in grid[0, 1:]:
        _exposed_rows(exposed_axes, exposed)
    return [figure]


def _sides(result: Comparison, paired: bool) -> tuple[str, str, str]:
    """Return words for the ratio, and for the times before and after."""
    if paired:
        return "Time of B / time of A", "of A", "of B"
    if result.across is None:
        return "Time after / time before", "before", "after"
    field = result.across.replace("_", " ")
    if result.values is None:
        return f"Times by {field}", f"in {result.before}", f"in {result.after}"
    before, after = result.values
    return f"Times by {field}", f"at {field} {before}", f"at {field} {after}"


def _bars(rows: Sequence[tuple[str, Judgement]]) -> str:
    """State the confidence of the intervals."""
    levels = sorted(judged.level for _, judged in rows if judged.level is not None)
    ends = dict.fromkeys(f"{100 * level:.4g} %" for level in [*levels[:1], *levels[-1:]])
    return f"bars: {between(*ends) if len(ends) > 1 else ''.join(ends)} intervals, corrected for the number of cases"


def _exposed_rows(axes: Axes, rows: Mapping[int, ExposedChange]) -> None:
    """Draw the time over the reference in rows, before above after, with intervals."""
    for y, exposed in rows.items():
        colour = GREY
        if exposed.resolved:
            colour, _ = LOOKS[SLOWER if exposed.difference.value > 0 else FASTER]
        for side, time, shift, face in (
            ("before", exposed.before, -0.16, "white"),
            ("after", exposed.after, 0.16, colour),
        ):
            look: Any = {"fmt": "D", "color": colour, "markerfacecolor": face, "label": f"over reference, {side}"}
            draw_intervals(axes, [y + shift], [(time.value, time.low, time.high)], horizontal=True, **look)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    time_axis(axes.xaxis)
    axes.set_xlabel("time over the reference\ngrey: the difference is not resolved")


def standing_out(changes: Sequence[Change]) -> list[Change]:
    """Return at most MOST_ROWS changes in the order of VERDICTS, and for each verdict the largest changes first."""
    return sorted(
        changes, key=lambda change: (VERDICTS.index(change.verdict), -max(change.ratio.value, 1 / change.ratio.value))
    )[:MOST_ROWS]


def _ratio_rows(axes: Axes, rows: Sequence[tuple[str, Judgement]], min_change: float) -> None:
    """Draw a row for each judgement on a logarithmic axis. The grey band has changes that are too small to matter."""
    limit = 1 + min_change
    band: Any = {"color": "black", "alpha": 0.08, "linewidth": 0}
    axes.axvspan(1 / limit, limit, label=f"too small to matter (±{min_change * 100:g} %)", **band)
    axes.axvline(1, color="black", linewidth=1)
    dots: Any = {"color": GREY, "alpha": 0.45, "markeredgewidth": 0, "zorder": 1}
    for y, (_, judged) in enumerate(rows):
        # Pairs in the order of time, from above to below the bar, so that a drift is visible.
        heights = (
            y + np.linspace(-0.28, 0.28, len(judged.ratios)) if len(judged.ratios) > 1 else [y] * len(judged.ratios)
        )
        axes.plot(judged.ratios, heights, ".", **dots)
        decided = judged.verdict != INCONCLUSIVE
        colour, marker = LOOKS[judged.verdict]
        look: Any = {"fmt": marker, "color": colour, "label": WORDS[judged.verdict], "capsize": 0}
        look |= {"elinewidth": 2} if decided else {"markerfacecolor": "white"}
        ratio = judged.ratio
        draw_intervals(axes, [y], [(ratio.value, ratio.low, ratio.high)], horizontal=True, **look)
    if any(judged.ratios for _, judged in rows):
        axes.plot([], [], ".", label="a pair of launches, the first one on top", **dots)
    if rows[0][0] == WHOLE:
        axes.axhline(0.5, color=GREY, linewidth=0.8)
    name_rows(axes, [name for name, _ in rows])
    log_axis(axes, "x", "{:g}".format)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.9), max(high, 1.1))
    axes.set_title("← faster")
    axes.set_title("slower →", loc="right")


# ── many runs ────────────────────────────────────────────────────────────────────────────────────
def draw_trend(trends: Sequence[Trend], runs: Sequence[str], folder: Path) -> Path:
    """Draw the times of each case over the runs, oldest first. Returns the PNG's path.

    Each trend has a panel; if there are too many trends, only trends with the largest changes of level are drawn.
    """
    figures.draw_pages([folder / "trend"], _trends, trends, runs)
    return folder / "trend.png"


def _trends(trends: Sequence[Trend], runs: Sequence[str]) -> list[Figure]:
    step = {trend: max((abs(math.log(level.ratio)) for level in trend.changed), default=0.0) for trend in trends}
    largest = sorted(trends, key=lambda trend: -step[trend])[:MOST_TRENDS]
    drawn = sorted(largest, key=lambda trend: case_order(trend.case))
    common, names = common_parts([label_parts(trend.case) for trend in drawn])
    changed = sum(bool(trend.changed) for trend in trends)
    title = f"Times over {len(runs)} runs: {changed} of {len(trends)} cases changed level\n{common}"
    columns = min(3, len(drawn))
    figure, grid = figures.page(title.rstrip(), [TREND] * math.ceil(len(drawn) / columns), columns, sharex=True)
    for axes, name, trend in zip(grid.flat, names, drawn, strict=False):
        _one_trend(axes, trend, runs)
        axes.set_title(name)
    if len(trends) > len(drawn):
        grid[0, 0].plot([], [], " ", label=f"and {len(trends) - len(drawn)} more cases: see the table")
    figures.name_axes(figure, "run, oldest first", "time of one operation (mean)", grid.flat[len(drawn) :])
    return [figure]


def _one_trend(axes: Axes, trend: Trend, runs: Sequence[str]) -> None:
    """Draw the time of each run and the levels, on an axis from zero, so that noise is not magnified."""
    x = [runs.index(name) + 1 for name in trend.runs]
    points: list[Point] = [(time.value, time.low, time.high) for time in trend.times_s]
    ranges = any(time.kind == IntervalKind.RANGE for time in trend.times_s)
    label = f"a run, with its {'range of launches' if ranges else '95 % interval'}"
    draw_intervals(axes, x, points, fmt="o", color=COLOURS[0], label=label)
    ends = [*(level.first for level in trend.changed), len(x)]
    for level, end in zip(trend.levels, ends, strict=True):
        reach = [x[level.first] - 0.4, x[end - 1] + 0.4]
        axes.plot(reach, [level.time_s] * 2, color="black", linewidth=2, alpha=0.5, label="level")
    for level in trend.changed:
        place = (x[level.first - 1] + x[level.first]) / 2
        axes.axvline(place, color=COLOURS[1], linestyle="--", label="change of level")
        at: Any = {"xycoords": ("data", "axes fraction"), "xytext": (3, -10), "textcoords": "offset points"}
        axes.annotate(percent(level.ratio), (place, 1), fontsize="small", **at)
    # To the highest interval, but at most to twice the largest time.
    value, _, high = np.array(points).max(axis=0)
    axes.set_ylim(0, 1.15 * min(high, 2 * value))
    axes.set_xlim(0.4, len(runs) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    time_axis(axes.yaxis)
