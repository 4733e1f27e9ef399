"""Draw operations: the cost of each at one size, and the parts of uneven all-to-alls.

In: a run and its analysis. Out: figures; none if there is nothing to draw.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from collbench.catalog import splits
from collbench.catalog.collectives import ranks_together
from collbench.catalog.dtypes import dtype_named
from collbench.catalog.metrics import order
from collbench.model.conclusions import Analysis, Summary
from collbench.model.projection import KINDS
from collbench.model.records import Case, Run
from collbench.model.units import format_rounded_bytes
from collbench.report import labels
from collbench.report.labels import case_parts, divide, in_words, ranks_text, without_usual
from collbench.report.plots.figures import COLOURS, MARKERS, WIDE, log_ticks, marks, time_axis, time_label, wrapped
from collbench.report.tables import size_rows

# Fewer rows show no more than the picture of time against size; more are too small to read.
FEWEST_ROWS, MOST_ROWS = 3, 45
# Distributions in one picture, and letters in a line of a distribution's title.
MOST_SPLITS, SPLIT_TITLE = 4, 34
# Letters in a line of a title of the pictures of splits.
SPLITS_WIDE = 100


# ── the cost of each operation ───────────────────────────────────────────────────────────────────
def operations(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw the times of all operations at the size that most of them have, and of the operations without a size.

    There is a row for each operation or variant, and a panel for each metric.
    """
    summary_by_case = {s.case: s for s in analysis.summaries if s.time_s}
    size, chosen = _at_one_size(list(summary_by_case))
    described = [without_usual(parts) for parts in case_parts([KINDS.residue(case) for case in chosen])]
    common, own = divide(described)
    rows: dict[str, list[Summary]] = {}
    for case, parts in zip(chosen, own, strict=True):
        # All parts except the metric, which has panels, and except the parts that all rows have in common.
        words = in_words([part for part in parts if part.name != "metric"])
        rows.setdefault(", ".join(words), []).append(summary_by_case[case])
    if len(rows) < FEWEST_ROWS:
        return []
    left_out = len(rows) - MOST_ROWS
    shown = dict(list(rows.items())[:MOST_ROWS])
    head = ", ".join([*in_words(common), f"at {size} per rank; {marks(analysis.summaries)}"])
    more = f"; {left_out} more rows: see the tables" if left_out > 0 else ""
    return [_operations_figure(f"Time of each operation\n{wrapped(head + more, WIDE)}", shown, time_label(run))]


def _at_one_size(cases: Sequence[Case]) -> tuple[str, list[Case]]:
    """Return the size that most tables have (the largest of several), and the cases with this size or with none."""
    kinds = KINDS.tables(cases, lambda case: case).values()
    rows = [(labels.size_text(row[0].asked), row) for members in kinds for row in size_rows(members)]
    count = Counter(name for name, row in rows if row[0].size_bytes)
    if not count:
        return "no size", list(cases)
    largest = {name: max(case.size_bytes for other, row in rows if other == name for case in row) for name in count}
    size = max(count, key=lambda name: (count[name], largest[name]))
    return size, [case for name, row in rows for case in row if name == size or not case.size_bytes]


def _operations_figure(head: str, rows: dict[str, list[Summary]], below: str) -> Figure:
    cases = [s.case for members in rows.values() for s in members]
    metrics = sorted({case.metric for case in cases}, key=order)
    worlds = sorted({case.world_size for case in cases})
    looks: Any = [{"marker": m, "color": c} for m, c in zip(MARKERS, COLOURS, strict=True)] * len(worlds)
    figure = Figure(figsize=(4.2 + 3.2 * len(metrics), 1.7 + 0.27 * len(rows)), layout="constrained")
    grid = figure.subplots(1, len(metrics), squeeze=False, sharex=True, sharey=True)[0]
    figure.suptitle(head, x=0.01, ha="left", fontsize=10.5)
    for axes, metric in zip(grid, metrics, strict=True):
        for y, summary in ((y, s) for y, members in enumerate(rows.values()) for s in members):
            number, time = worlds.index(summary.case.world_size), summary.time_s
            if time is None or summary.case.metric != metric:
                continue
            place = y + 0.5 * ((number + 0.5) / len(worlds) - 0.5)  # the markers of a row are slightly apart
            bars = [[max(time.value - time.low, 0)], [max(time.high - time.value, 0)]] if time.known else None
            axes.errorbar([time.value], [place], xerr=bars, markersize=4.5, linewidth=1.2, **looks[number])
        axes.set_title(metric, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.set_xlabel(below, fontsize=9)
    grid[0].set_xscale("log")
    log_ticks(grid[0].xaxis)
    time_axis(grid[0].xaxis)
    grid[0].set_yticks(range(len(rows)), list(rows))
    grid[0].set_ylim(len(rows) - 0.4, -0.6)
    for n, look in zip(worlds, looks, strict=False):
        grid[0].plot([], [], label=ranks_text(n), linestyle="", **look)
    figure.legend(loc="outside lower center", ncols=min(len(worlds), 6), fontsize=8.5)
    return figure


# ── uneven all-to-alls ───────────────────────────────────────────────────────────────────────────
def split_matrices(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw the bytes from each rank to each rank: a matrix per distribution, at the largest world size and size."""
    summaries: dict[str, Summary] = {}
    for summary in sorted(analysis.summaries, key=lambda s: (s.case.world_size, s.case.size_bytes)):
        if summary.case.splits:
            summaries[str(summary.case.splits)] = summary
    chosen = list(summaries.values())[:MOST_SPLITS]
    if not chosen:
        return []
    figure = Figure(figsize=(1.2 + 3.6 * len(chosen), 4.2), layout="constrained")
    for axes, summary in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        case, n = summary.case, ranks_together(summary.case)
        itemsize = dtype_named(case.dtype).itemsize
        assert case.splits is not None  # noqa: S101 - chosen above
        matrix = splits.matrix(case.splits, n, case.size_bytes // itemsize)
        axes.grid(False)
        drawn = axes.imshow(np.array(matrix) * itemsize / 2**20, cmap="cividis", vmin=0)
        figure.colorbar(drawn, ax=axes, shrink=0.75, label="MiB")
        step = max(1, n // 8)
        axes.set_xticks(range(0, n, step))
        axes.set_yticks(range(0, n, step))
        axes.set_xlabel("receiving rank")
        axes.set_ylabel("sending rank")
        heaviest, even = itemsize * splits.heaviest(matrix), case.size_bytes * (n - 1) / n
        text = f"parts {labels.short(str(case.splits))}: the busiest rank moves {format_rounded_bytes(heaviest)}, "
        text += f"{heaviest / even:.1f} times as much as with equal parts"
        axes.set_title(wrapped(text, SPLIT_TITLE), fontsize=9)
    text = "What each rank sends to each in one all_to_all; the busiest rank bounds the time"
    figure.suptitle(wrapped(text, SPLITS_WIDE), x=0.01, ha="left", fontsize=10.5)
    return [figure]
