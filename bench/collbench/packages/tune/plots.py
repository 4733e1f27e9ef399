"""Draw time over the default by size: a panel for each operation and number of ranks, with rules as coloured bands.

In: the outcome of `tune`. Out: a figure; none if nothing was compared.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collbench.model.projection import grouped
from collbench.packages.tune.rules import DEFAULT, CellResult, SizeRule, Tuned
from collbench.report.labels import ranks_text
from collbench.report.plots.figures import COLOURS, GREY, draw_intervals, log_axis, name_axes, page, size_axis

# Most panels per row, and in total: more panels would be unreadable. Inches: height of a panel.
ACROSS, MOST, HEIGHT = 3, 18, 1.6
# Hatches, used if there are more choices than colours.
HATCHES = ("", "//", "..")
# Factor by which the band of a rule for a single size extends on either side.
MARGIN = 1.08


def ratios(tuned: Tuned) -> list[Figure]:
    """Draw each cell that was compared with the default, with its interval; the marker is filled if it has a rule."""
    panels = grouped(tuned.results, lambda result: (result.cell.op, result.cell.ranks))
    compared = [(key, cells) for key, cells in panels.items() if any(cell.ratio for cell in cells)][:MOST]
    if not compared:
        return []
    names = list(dict.fromkeys(str(result.choice) for result in tuned.changed))
    styles = {name: (COLOURS[n % len(COLOURS)], HATCHES[n // len(COLOURS) % 3]) for n, name in enumerate(names)}
    columns = min(ACROSS, len(compared))
    title = "Time over the default in fresh launches, with intervals; bands: rules"
    figure, grid = page(title, [HEIGHT] * -(-len(compared) // columns), columns, sharex=True, sharey=True)
    for axes, ((op, ranks), cells) in zip(grid.flat, compared, strict=False):
        _panel(axes, cells, tuned.rules, styles)
        axes.set_title(f"{op}, {ranks_text(ranks)}")
    size_axis(grid[0, 0])
    log_axis(grid[0, 0], "y", "{:g}".format)
    name_axes(figure, "message size per rank", "time / default", grid.flat[len(compared) :])
    return [figure]


def _panel(axes: Axes, cells: list[CellResult], rules: Sequence[SizeRule], styles: dict[str, tuple[str, str]]) -> None:
    sizes = [cell.cell.size for cell in cells]
    axes.axhline(1, color=GREY, linewidth=0.8)
    drawn: set[SizeRule] = set()
    for cell in cells:
        colour, hatch = styles.get(str(cell.choice), (GREY, ""))
        cell_rules = [r for r in rules if r.choice == cell.choice and r.holds(cell.cell.op, cell.cell.size)]
        # A rule file that is checked may have no rule for exactly this number of ranks.
        rule = min(cell_rules, key=lambda r: r.ranks != cell.cell.ranks, default=None)
        if rule is not None and cell.choice != DEFAULT and rule not in drawn:
            drawn.add(rule)
            low, high = max(rule.low, sizes[0]), min(rule.high or sizes[-1], sizes[-1])
            margin = MARGIN if low == high else 1
            band: Any = {"color": colour, "alpha": 0.25, "linewidth": 0, "hatch": hatch, "label": str(cell.choice)}
            axes.axvspan(low / margin, high * margin, **band)
        if cell.ratio is not None:
            face = colour if cell.choice != DEFAULT else "white"
            point = (cell.ratio.value, cell.ratio.low, cell.ratio.high)
            draw_intervals(axes, [cell.cell.size], [point], fmt="o", color=colour, markerfacecolor=face)
