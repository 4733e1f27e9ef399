"""Draw what each operation costs at one size: a row for each operation or variant, a panel for each metric.

In: a run and its analysis. Out: a figure; none if there are fewer than FEWEST_ROWS rows.
"""

from collections import Counter
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.catalog.metrics import order
from bench.model.conclusions import Analysis, Summary
from bench.model.records import Case, Run
from bench.report.labels import (
    Words,
    attributes,
    common_words,
    in_words,
    ranks_text,
    row_name,
    size_rows,
    title,
    without_usual,
    words_to_show,
)
from bench.report.plots.panels import WIDE, wrapped
from bench.report.plots.plot_style import COLOURS, MARKERS, log_ticks, marks, time_axis, time_label

# Fewer rows show no more than the picture of time against size; more are too small to read.
FEWEST_ROWS, MOST_ROWS = 3, 45
# World sizes whose markers can be told apart in a row.
MOST_WORLDS = 6


def operations(run: Run, analysis: Analysis) -> list[Figure]:
    """Times of all operations at the size that most of them have, and of the operations without a size."""
    of_case = {s.case: s for s in analysis.summaries if s.time_s}
    size, chosen = _at_one_size(list(of_case))
    must = words_to_show(chosen)
    words = {case: without_usual(attributes(case), case.op, must) for case in chosen}
    shared = common_words(list(words.values()))
    rows: dict[str, list[Summary]] = {}
    for case in chosen:
        rows.setdefault(_row_title(words[case], shared), []).append(of_case[case])
    if len(rows) < FEWEST_ROWS:
        return []
    left_out = len(rows) - MOST_ROWS
    shown = dict(list(rows.items())[:MOST_ROWS])
    head = ", ".join([*in_words(shared), f"at {size} (what it counts: see the tables); {marks(analysis.summaries)}"])
    more = f"; {left_out} more rows: see the tables" if left_out > 0 else ""
    return [_figure(f"What does each operation cost?\n{wrapped(head + more, WIDE)}", shown, time_label(run))]


def _row_title(words: Words, shared: Words) -> str:
    """Everything but the metric (it has panels) and what is the same in all rows."""
    return ", ".join(in_words({k: v for k, v in words.items() if k not in shared and k != "metric"}))


def _at_one_size(cases: Sequence[Case]) -> tuple[str, list[Case]]:
    """The size that most tables have (the largest of several), and the cases with this size or with none."""
    tables: dict[str, list[Case]] = {}
    for case in cases:
        tables.setdefault(title(case), []).append(case)
    rows = [row for members in tables.values() for row in size_rows(members)]
    count = Counter(_size(row) for row in rows if row[0].size_bytes)
    if not count:
        return "no size", list(cases)
    size = max(
        count, key=lambda name: (count[name], max(c.size_bytes for row in rows for c in row if _size(row) == name))
    )
    return size, [case for row in rows for case in row if _size(row) == size or not case.size_bytes]


def _size(row: Sequence[Case]) -> str:
    return row_name(row).removeprefix("≤ ")


def _figure(head: str, rows: dict[str, list[Summary]], below: str) -> Figure:
    cases = [s.case for members in rows.values() for s in members]
    metrics = sorted({case.metric for case in cases}, key=order)
    worlds = sorted({case.world_size for case in cases})[:MOST_WORLDS]
    figure = Figure(figsize=(4.2 + 3.2 * len(metrics), 1.7 + 0.27 * len(rows)), layout="constrained")
    grid = figure.subplots(1, len(metrics), squeeze=False, sharex=True, sharey=True)[0]
    figure.suptitle(head, x=0.01, ha="left", fontsize=10.5)
    for axes, metric in zip(grid, metrics, strict=True):
        for y, members in enumerate(rows.values()):
            for summary in members:
                if summary.case.metric == metric and summary.case.world_size in worlds:
                    _mark(axes, y, worlds.index(summary.case.world_size), len(worlds), summary)
        axes.set_title(metric, fontsize=9)
        axes.tick_params(labelsize=8)
    grid[0].set_xscale("log")
    log_ticks(grid[0].xaxis)
    time_axis(grid[0].xaxis)
    grid[0].set_yticks(range(len(rows)), list(rows))
    grid[0].set_ylim(len(rows) - 0.4, -0.6)
    for axes in grid:
        axes.set_xlabel(below, fontsize=9)
    for number, n in enumerate(worlds):
        look = {"marker": MARKERS[number], "color": COLOURS[number], "linestyle": ""}
        grid[0].plot([], [], label=ranks_text(n), **look)
    figure.legend(loc="outside lower center", ncols=len(worlds), fontsize=8.5)
    return figure


def _mark(axes: Axes, y: int, number: int, of: int, summary: Summary) -> None:
    """Draw a marker with its interval. number, of: which of how many world sizes; they are drawn a little apart."""
    time = summary.time_s
    assert time is not None  # noqa: S101 - the caller selects such
    place = y + 0.5 * ((number + 0.5) / of - 0.5)
    bars = [[max(time.value - time.low, 0)], [max(time.high - time.value, 0)]] if time.known else None
    axes.errorbar(
        [time.value], [place], xerr=bars, marker=MARKERS[number], color=COLOURS[number], markersize=4.5, linewidth=1.2
    )
