"""Draw what each rank sends to each in an uneven all-to-all.

In: a run and its analysis. Out: a figure; none if every all-to-all is even.
"""

import numpy as np
from matplotlib.figure import Figure

from bench.catalog import splits
from bench.catalog.dtypes import dtype_named
from bench.catalog.operations import ranks_together
from bench.model.conclusions import Analysis, Summary
from bench.model.records import Run
from bench.model.units import format_rounded_bytes
from bench.report.labels import WORDS
from bench.report.plots.panels import wrapped

# Distributions in one picture.
MOST = 4
WIDE = 100


def matrices(run: Run, analysis: Analysis) -> list[Figure]:
    """A matrix for each distribution, at the largest world size and size that it was measured with."""
    found: dict[str, Summary] = {}
    for summary in sorted(analysis.summaries, key=lambda one: (one.case.world_size, one.case.size_bytes)):
        if summary.case.splits:
            found[summary.case.splits] = summary
    chosen = list(found.values())[:MOST]
    if not chosen:
        return []
    figure = Figure(figsize=(1.2 + 3.6 * len(chosen), 4.2), layout="constrained")
    every = figure.subplots(1, len(chosen), squeeze=False)[0]
    for axes, summary in zip(every, chosen, strict=True):
        case, n = summary.case, ranks_together(summary.case)
        itemsize = dtype_named(case.dtype).itemsize
        rows = splits.matrix(case.splits, n, case.size_bytes // itemsize)
        axes.grid(False)
        drawn = axes.imshow(np.array(rows) * itemsize / 2**20, cmap="cividis", vmin=0)
        figure.colorbar(drawn, ax=axes, shrink=0.75, label="MiB")
        step = max(1, n // 8)
        axes.set_xticks(range(0, n, step))
        axes.set_yticks(range(0, n, step))
        axes.set_xlabel("receiving rank")
        axes.set_ylabel("sending rank")
        heaviest, even = itemsize * splits.heaviest(rows), case.size_bytes * (n - 1) / n
        text = f"{WORDS['splits'](case.splits)}: the busiest rank moves {format_rounded_bytes(heaviest)}, "
        axes.set_title(wrapped(f"{text}{heaviest / even:.1f} times as much as with equal parts", 34), fontsize=9)
    text = "Who sends how much to whom?  all_to_all, one call; the busiest rank bounds the time"
    figure.suptitle(wrapped(text, WIDE), x=0.01, ha="left", fontsize=10.5)
    return [figure]
