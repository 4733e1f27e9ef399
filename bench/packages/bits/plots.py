"""Draw the share of elements that differ, over the size of the message: a panel for each operation and dtype.

In: rows of comparisons. Out: a figure; none if all bits are the same.
"""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bench.model.projection import grouped
from bench.packages.bits.conclusions import BitsRow
from bench.report.labels import dtype_words, ranks_text
from bench.report.plots.figures import COLOURS, MARKERS, size_axis

# Panels beside each other, and in all: more cannot be read.
ACROSS, MOST = 3, 15


def shares_of(rows: Sequence[BitsRow], _: None) -> list[Figure]:
    """A line for each variation and world size that is not identical everywhere in its panel."""
    differing = (row for row in rows if not row.identical and not row.moves)
    panels = grouped(differing, lambda row: " ".join([row.case.op, *dtype_words(row.case), "on", row.case.backend]))
    shown = dict(list(panels.items())[:MOST])
    if not shown:
        return []
    lines = list(dict.fromkeys((row.variation, row.case.world_size) for rows in shown.values() for row in rows))
    across = min(ACROSS, len(shown))
    down = -(-len(shown) // across)
    figure = Figure(figsize=(0.6 + 3.2 * across, 1.6 + 2.4 * down), layout="constrained")
    places = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, (title, of_panel) in zip(places, shown.items(), strict=False):
        for row in of_panel:
            number = lines.index((row.variation, row.case.world_size))
            worst: dict[int, float] = {}
            for comparison in row.comparisons:
                worst[comparison.size_bytes] = max(worst.get(comparison.size_bytes, 0.0), comparison.share)
            axes.plot(
                sorted(worst),
                [worst[size] for size in sorted(worst)],
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                label=f"{row.variation}, {ranks_text(row.case.world_size)}",
            )
        axes.set_title(title, fontsize=9.5)
        size_axis(axes, sorted({comparison.size_bytes for row in of_panel for comparison in row.comparisons}), 5)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    most = max(comparison.share for rows in shown.values() for row in rows for comparison in row.comparisons)
    places[0].set_ylim(0, 1.1 * most)
    for axes in places[len(shown) :]:
        axes.set_visible(False)
    for axes in places[max(0, len(shown) - across) : len(shown)]:
        axes.set_xlabel("message size per rank", fontsize=8.5)
        axes.tick_params(labelbottom=True)
    handles: dict[str, Artist] = {}
    for axes in places[: len(shown)]:
        lines_shown, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(map(str, labels), lines_shown, strict=True))
    figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=2, fontsize=8)
    figure.suptitle("Share of elements whose bits differ", x=0.01, ha="left", fontsize=10.5)
    return [figure]
