"""Draw operations: the cost of each at one size, and the parts of uneven all-to-alls.

In: a run and its analysis. Out: figures; none if there is nothing to draw.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
from matplotlib.figure import Figure

from collbench.catalog import splits
from collbench.catalog.collectives import ranks_together
from collbench.catalog.dtypes import dtype_named
from collbench.catalog.metrics import order
from collbench.model.conclusions import Analysis, Summary
from collbench.model.projection import KINDS
from collbench.model.records import Case, Run
from collbench.report import labels
from collbench.report.labels import case_parts, divide, in_words, ranks_text, without_usual
from collbench.report.plots import figures
from collbench.report.plots.figures import draw_intervals, draw_matrix, log_axis, look, name_rows, size_text, time_text
from collbench.report.plots.sizes import bars, time_label
from collbench.report.tables import size_rows

# Fewer rows show no more than the picture of time against size; more are too small to read.
FEWEST_ROWS, MOST_ROWS = 3, 45
# Inches: height of a row, and of a matrix.
ROW, MATRIX = 0.27, 2.4
# Distributions in one picture.
MOST_SPLITS = 4


# ── the cost of each operation ───────────────────────────────────────────────────────────────────
def operations(run: Run, analysis: Analysis) -> list[Figure]:
    """Draw the times of all operations at the size that most of them have, and of the operations without a size.

    There is a row for each operation or variant, and a panel for each metric.
    """
    summary_by_case = {s.case: s for s in analysis.summaries if s.time_s}
    size, chosen = _at_one_size(list(summary_by_case))
    common, differing = divide([without_usual(parts) for parts in case_parts([KINDS.residue(case) for case in chosen])])
    rows: dict[str, list[Summary]] = {}
    for case, parts in zip(chosen, differing, strict=True):
        # All parts except the metric, which has panels, and except the parts that all rows have in common.
        words = in_words([part for part in parts if part.name != "metric"])
        rows.setdefault(", ".join(words) or "default", []).append(summary_by_case[case])
    if len(rows) < FEWEST_ROWS:
        return []
    what = ", ".join([*in_words(common), f"at {size} per rank; {bars(analysis.summaries)}"])
    more = f"; {len(rows) - MOST_ROWS} more rows: see the tables" if len(rows) > MOST_ROWS else ""
    drawn = dict(islice(rows.items(), MOST_ROWS))
    return [_operations_figure(f"Time of each operation\n{what}{more}", drawn, time_label(run))]


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


def _operations_figure(title: str, rows: Mapping[str, Sequence[Summary]], x: str) -> Figure:
    summaries = [(y, s, s.time_s) for y, members in enumerate(rows.values()) for s in members]
    metrics = sorted({s.case.metric for _, s, _ in summaries}, key=order)
    worlds = sorted({s.case.world_size for _, s, _ in summaries})
    figure, ((first, *_),) = figures.page(title, [ROW * len(rows)], len(metrics), sharex=True, sharey=True)
    for axes, metric in zip(figure.axes, metrics, strict=True):
        name_rows(axes, list(rows))
        axes.set_title(metric if len(metrics) > 1 else "")
        for number, n in enumerate(worlds):
            cells = [(y, t) for y, s, t in summaries if t and (s.case.metric, s.case.world_size) == (metric, n)]
            # The markers of a row are slightly apart.
            places = [y + 0.5 * ((number + 0.5) / len(worlds) - 0.5) for y, _ in cells]
            points = [(time.value, time.low, time.high) for _, time in cells]
            options = look(number) | {"linestyle": "", "label": ranks_text(n)}
            draw_intervals(axes, places, points, horizontal=True, **options)
    log_axis(first, "x", time_text)
    figures.name_axes(figure, x, "")
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
    title = "What each rank sends to each in one all_to_all; the busiest rank bounds the time"
    columns = min(2, len(chosen))
    figure, grid = figures.page(title, [MATRIX] * math.ceil(len(chosen) / columns), columns)
    for axes, summary in zip(grid.flat, chosen, strict=False):
        case, n = summary.case, ranks_together(summary.case)
        itemsize = dtype_named(case.dtype).itemsize
        assert case.splits is not None  # noqa: S101 - chosen above
        matrix = splits.matrix(case.splits, n, case.size_bytes // itemsize)
        draw_matrix(axes, np.array(matrix) * itemsize / 2**20, "MiB")
        heaviest, even = itemsize * splits.heaviest(matrix), case.size_bytes * (n - 1) / n
        text = f"parts {labels.short(str(case.splits))}:\nthe busiest rank moves {size_text(heaviest)},"
        axes.set_title(f"{text}\n{heaviest / even:.1f} times as much as with equal parts")
    figures.name_axes(figure, "receiving rank", "sending rank", grid.flat[len(chosen) :])
    return [figure]
