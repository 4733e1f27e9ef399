"""Draw time over the default by size: a panel for each operation and number of ranks, with rules as coloured bands.

In: the outcome of `tune`. Out: a figure; none if nothing was compared.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from collbench.model.projection import grouped
from collbench.model.units import format_rounded_bytes
from collbench.packages.tune.rules import DEFAULT, CellResult, SizeRule, Tuned
from collbench.report.labels import ranks_text
from collbench.report.plots.figures import COLOURS, size_axis

# Most panels per row, and in total: more panels would be unreadable.
ACROSS, MOST = 3, 18
# Hatches, used if there are more choices than colours.
HATCHES = ("", "//", "..")
# Factor by which the band of a rule for a single size extends on either side.
MARGIN = 1.08


def ratios(tuned: Tuned, _: None) -> list[Figure]:
    """Draw each cell that was compared with the default, with its interval; the marker is filled if it has a rule."""
    panels = grouped(tuned.results, lambda result: (result.cell.op, result.cell.ranks))
    shown = {key: cells for key, cells in panels.items() if any(cell.ratio for cell in cells)}
    shown = dict(list(shown.items())[:MOST])
    if not shown:
        return []
    across, names = min(ACROSS, len(shown)), list(dict.fromkeys(str(result.choice) for result in tuned.changed))
    styles = {name: (COLOURS[n % len(COLOURS)], HATCHES[n // len(COLOURS) % 3]) for n, name in enumerate(names)}
    down = -(-len(shown) // across)
    figure = Figure(figsize=(0.8 + 3.2 * across, 1.4 + 2.2 * down), layout="constrained")
    places = figure.subplots(down, across, sharey=True, squeeze=False).flatten()
    for axes, ((op, ranks), cells) in zip(places, shown.items(), strict=False):
        _panel(axes, cells, tuned.rules, styles)
        axes.set_title(f"{op}, {ranks_text(ranks)}", fontsize=9.5)
    for axes in places[len(shown) :]:
        axes.set_visible(False)
    for axes in places[::across]:
        axes.set_ylabel("time / default", fontsize=8.5)
    handles = [Patch(color=c, alpha=0.35, hatch=hatch, label=name) for name, (c, hatch) in styles.items()]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle("Time over the default in fresh launches; bands: rules", x=0.01, ha="left", fontsize=10.5)
    return [figure]


def _panel(axes: Axes, cells: list[CellResult], rules: Sequence[SizeRule], styles: dict[str, tuple[str, str]]) -> None:
    sizes = [cell.cell.size for cell in cells]
    axes.axhline(1, color="grey", linewidth=0.8)
    drawn: set[SizeRule] = set()
    for cell in cells:
        colour, hatch = styles.get(str(cell.choice), ("grey", ""))
        cell_rules = [r for r in rules if r.choice == cell.choice and r.holds(cell.cell.op, cell.cell.size)]
        # A rule file that is checked may have no rule for exactly this number of ranks.
        rule = min(cell_rules, key=lambda r: r.ranks != cell.cell.ranks, default=None)
        if rule is not None and cell.choice != DEFAULT and rule not in drawn:
            drawn.add(rule)
            low, high = max(rule.low, sizes[0]), min(rule.high or sizes[-1], sizes[-1])
            margin = MARGIN if low == high else 1
            axes.axvspan(low / margin, high * margin, color=colour, alpha=0.25, linewidth=0, hatch=hatch)
        if cell.ratio is not None:
            error = [[cell.ratio.value - cell.ratio.low], [cell.ratio.high - cell.ratio.value]]
            face = colour if cell.choice != DEFAULT else "white"
            axes.errorbar(
                [cell.cell.size], [cell.ratio.value], error, fmt="o", markersize=4, capsize=2, color=colour,
                markerfacecolor=face,
            )  # fmt: skip
    size_axis(axes, sizes, 4, format_rounded_bytes)
