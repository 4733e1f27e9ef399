"""Draw comparisons: what changed between two runs or two sides in pairs, and how times changed over many runs.

In: a `Comparison`, a `PairedComparison` or `Trend` values. Out: PNG and SVG. Verdicts differ by colour *and* by
marker, decided ones are filled and undecided ones hollow, so that they can be told apart in black and white. Every
interval is drawn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from bench.model.comparisons import Comparison, Judgement, PairedComparison, Trend
from bench.model.records import Case, case_order
from bench.report.comparison import VERDICTS, Judged, JudgedRuns, headline, percent
from bench.report.labels import SEPARATOR, dtype_words, extras, label, ranks_text, size_text
from bench.report.plots.figures import COLOURS, STYLE, WIDE, save, tick, wrapped

C = TypeVar("C", bound=Judged)
GREY = "#666666"
# Verdict → colour and marker. Triangles point to longer or shorter times.
LOOKS = {
    "SLOWER": (COLOURS[1], ">"),
    "FASTER": (COLOURS[0], "<"),
    "SAME": (COLOURS[2], "s"),
    "INCONCLUSIVE": (GREY, "o"),
}
# The row of the run as a whole, and what the bars are.
WHOLE = "the run as a whole (index)"
BARS = "bars: intervals, corrected for the number of cases"
# More rows or panels than this cannot be read on a page; the table has them all.
MOST_ROWS = 60
MOST_TRENDS = 12
# Round ratios that an axis may show: those are taken that lie within it and are far enough apart.
RATIOS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 1,
    1.03, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2, 3, 5, 10, 20, 50, 100,
)  # fmt: skip
# Smallest distance of two labels, as a share of the axis.
APART = 0.055
# Smallest share of the axis on each side of 1: "faster" and "slower" are written there.
SIDE = 0.17
# Inches of a picture without the names of its rows, and of a letter of a name.
ROW_WIDTH, LETTER = 6.2, 0.068
# Letters in a line of the axis label, which is about as wide as the axis; entries of a legend in a line.
AXIS_LETTERS, MOST_ENTRIES = 80, 5
# Letters in a line of the title of a picture of pairs.
PAIRS_WIDE = 115


# ── two runs ─────────────────────────────────────────────────────────────────────────────────────
def draw_comparison(result: Comparison, folder: Path) -> Path:
    """The ratio of each common case with its interval. Returns the PNG's path."""
    with rc_context(STYLE):
        return _saved(comparison_figure(result), folder, "comparison")


def comparison_figure(result: Comparison) -> Figure:
    """A row for each case, at most MOST_ROWS of them, in the order of the tables."""
    shown = sorted(standing_out(result.changes), key=lambda change: case_order(change.case))
    rows = [(_row_label(change.case, result.across), change.judgement) for change in shown]
    if result.whole is not None:
        rows.insert(0, (WHOLE, result.whole))
    width = max(9, ROW_WIDTH + LETTER * max((len(name) for name, _ in rows), default=0))
    figure = Figure(figsize=(width, 2.4 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    ratio_rows(axes, [judged for _, judged in rows], [name for name, _ in rows], result.min_change)
    if result.whole is not None:
        axes.axhline(len(rows) - 1.5, color=GREY, linewidth=0.8)
    ratio_axis(axes)
    question, before, after = "Did it change?", "before", "after"
    if result.across is not None:
        field = result.across.replace("_", " ")
        question, before, after = f"Which {field} is faster?", f"in {result.before}", f"in {result.after}"
        (run, _, value), (other_run, _, other) = result.before.rpartition(": "), result.after.rpartition(": ")
        if run and run == other_run:
            before, after = f"at {field} {value}", f"at {field} {other}"
    axes.set_xlabel(f"{wrapped(f'time {after} / time {before} (log scale)', AXIS_LETTERS)}\n{BARS}")
    title = wrapped(f"{question}  {result.before}  →  {result.after}", WIDE)
    figure.suptitle(f"{title}\n{wrapped(headline(result), WIDE)}", x=0.01, ha="left", fontsize=10.5)
    directions(axes)
    verdict_legend(figure, result, len(result.changes) - len(shown))
    return figure


def _row_label(case: Case, across: str | None) -> str:
    """The case in words, without the field in which the sides differ: its value is true of one side only."""
    if across is None:
        return label(case)
    if across in ("op", "backend", "dtype", "world_size"):
        value = ranks_text(case.world_size) if across == "world_size" else getattr(case, across)
        return SEPARATOR.join(word for word in label(case).split(SEPARATOR) if word != value)
    names = ("metric", "depth") if across == "metric" else (across,)
    defaults: Any = {name: Case.__dataclass_fields__[name].default for name in names}
    return label(replace(case, **defaults))


def draw_pairs(result: PairedComparison, folder: Path) -> Path:
    """The two sides of a run: a row for each case, with a dot for each pair of launches. Returns the PNG's path."""
    shown = result.changes[:MOST_ROWS]
    rows = [(change.name, change.judgement, change.ratios) for change in shown]
    if result.whole is not None:
        rows.insert(0, (WHOLE, result.whole, result.ratios))
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 2.4 + 0.42 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for y, (_, _, ratios) in enumerate(reversed(rows)):
            # In the order of time from below to above the bar, so that a drift shows.
            heights = y + np.linspace(-0.28, 0.28, len(ratios)) if len(ratios) > 1 else [y]
            axes.plot(ratios, heights, ".", color=GREY, alpha=0.45, markersize=5, markeredgewidth=0, zorder=1)
        ratio_rows(axes, [judged for _, judged, _ in rows], [name for name, _, _ in rows], result.min_change)
        if result.whole is not None:
            axes.axhline(len(rows) - 1.5, color=GREY, linewidth=0.8)
        ratio_axis(axes)
        axes.set_xlabel(f"time of B / time of A (log scale)\n{BARS}")
        title = wrapped(f"Is B slower?  {result.before}  →  {result.after}", PAIRS_WIDE)
        figure.suptitle(f"{title}\n{headline(result)}; {result.pairs} pairs", x=0.01, ha="left", fontsize=10.5)
        directions(axes)
        dot = Line2D([], [], linestyle="", marker=".", color=GREY, label="a pair of launches, the first one lowest")
        verdict_legend(figure, result, len(result.changes) - len(shown), dot)
        return _saved(figure, folder, "ab")


def _saved(figure: Figure, folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save(figure, folder / name)
    return folder / f"{name}.png"


def standing_out(changes: Sequence[C]) -> list[C]:
    """At most MOST_ROWS changes: in the order of VERDICTS, and for each verdict those with the largest ratios first."""
    weight: Callable[[C], float] = lambda change: max(change.ratio.value, 1 / change.ratio.value)  # noqa: E731
    return sorted(changes, key=lambda change: (VERDICTS.index(change.verdict), -weight(change)))[:MOST_ROWS]


def ratio_rows(axes: Axes, changes: Sequence[Judgement], names: Sequence[str], min_change: float) -> None:
    """Draw a row for each judgement, the first on top. The grey band has the ratios that are too small to matter."""
    limit = 1 + min_change
    axes.axvspan(1 / limit, limit, color="#000000", alpha=0.08, linewidth=0)
    axes.axvline(1, color="black", linewidth=1)
    for y, change in enumerate(reversed(changes)):
        colour, marker = LOOKS[change.verdict]
        decided, ratio = change.verdict != "INCONCLUSIVE", change.ratio
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


def verdict_legend(figure: Figure, result: JudgedRuns, left_out: int, *more: Line2D) -> None:
    """A legend with the verdicts that occur. left_out: number of rows that are not drawn. more: further entries."""
    present = {change.verdict for change in result.changes} | ({result.whole.verdict} if result.whole else set())
    handles: list[Line2D | Patch] = [*more]
    for verdict in VERDICTS:
        colour, marker = LOOKS[verdict]
        face = "white" if verdict == "INCONCLUSIVE" else colour
        if verdict in present:
            handles.append(Line2D([], [], color=colour, marker=marker, markerfacecolor=face, label=verdict.lower()))
    handles.append(Patch(color="#000000", alpha=0.08, label=f"too small to matter (±{result.min_change * 100:g} %)"))
    if left_out:
        handles.append(Line2D([], [], linestyle="", label=f"and {left_out} more: see the table"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), MOST_ENTRIES), fontsize=9)


# ── many runs ────────────────────────────────────────────────────────────────────────────────────
def draw_trend(trends: Sequence[Trend], runs: Sequence[str], folder: Path) -> Path:
    """The times of each case over the runs, oldest first. Returns the PNG's path.

    A panel for each trend; if there are too many, only those with the largest changes of level.
    """
    step = {trend: max((abs(math.log(level.ratio)) for level in trend.changed), default=0.0) for trend in trends}
    largest = sorted(trends, key=lambda trend: -step[trend])[:MOST_TRENDS]
    shown = sorted(largest, key=lambda trend: case_order(trend.case))
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(3.6 * columns + 0.6, 2.3 * rows + 1.2), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, trend in zip(grid.flat, shown, strict=False):
            _one_trend(axes, trend, runs)
        for axes in list(grid.flat)[len(shown) - columns : len(shown)]:
            axes.set_xlabel("run, oldest first, as in the table", fontsize=8.5)
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_visible(False)
        changed = sum(bool(trend.changed) for trend in trends)
        text = f"When did it change?  {changed} of {len(trends)} cases changed level over {len(runs)} runs"
        figure.suptitle(text, x=0.01, ha="left", fontsize=11)
        figure.supylabel("time of one operation (median)", fontsize=9)
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


def _one_trend(axes: Axes, trend: Trend, runs: Sequence[str]) -> None:
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
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    case = trend.case
    words = SEPARATOR.join([*dtype_words(case), ranks_text(case.world_size), *extras(case)])
    axes.set_title(f"{case.op} · {case.backend} · {size_text(case.size_bytes)}\n{words}", fontsize=8.5)
