"""Show several runs of `ab` in one table and one picture: `python -m tools.verdict_table NAME=RUN… [--picture FILE]`.

In: the folders of runs of `collbench ab --each` with the same cases, each with a name. Out: a Markdown table with the
ratio B/A of each case, undecided cases in brackets; the number of decided cases; a picture of the ratios over the size
with their intervals; with --cpu, the CPU time of a rank per call, next to the time of the call.
"""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from tabulate import tabulate

from collbench.cli.comparison import compare_sides
from collbench.model.comparisons import INCONCLUSIVE, Change
from collbench.model.records import Case
from collbench.model.units import format_bytes, format_seconds
from collbench.report.labels import ranks_text
from collbench.report.plots.figures import COLOURS, LINES, MARKERS, STYLE, size_axis
from collbench.store import folders

# Panels per row.
ACROSS = 3
# Operation → name of the run and its ranks → size in bytes → change.
Ratios = dict[str, dict[str, dict[int, Change]]]


def ratios_of(runs: Mapping[str, Path]) -> Ratios:
    """Return the changes of all runs, in the order of the runs."""
    ratios: Ratios = {}
    for name, path in runs.items():
        changes = compare_sides(path).changes
        several = len({change.case.world_size for change in changes}) > 1
        for change in sorted(changes, key=lambda change: (change.case.op, change.case.world_size)):
            words = [name, *([ranks_text(change.case.world_size)] if several else [])]
            line = ratios.setdefault(change.case.op, {}).setdefault(", ".join(filter(None, words)), {})
            line[change.case.size_bytes] = change
    return ratios


def table(ratios: Ratios) -> str:
    """Return a table with a row for each operation and run, and a column for each size."""
    sizes = sorted({size for lines in ratios.values() for line in lines.values() for size in line})
    rows = [
        [operation, name, *(_cell(line[size]) if size in line else "" for size in sizes)]
        for operation, lines in ratios.items()
        for name, line in lines.items()
    ]
    return tabulate(rows, ["operation", "", *map(format_bytes, sizes)], "github", disable_numparse=True)


def _cell(change: Change) -> str:
    text = f"{change.ratio.value:.2g}"
    return f"({text})" if change.verdict == INCONCLUSIVE else text


def decided(ratios: Ratios) -> str:
    """Return a text such as `39 of 40 cases are decided: 30 SAME, 9 SLOWER, 1 INCONCLUSIVE`."""
    verdicts = [change.verdict for lines in ratios.values() for line in lines.values() for change in line.values()]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    return f"{len(verdicts) - verdicts.count(INCONCLUSIVE)} of {len(verdicts)} cases are decided: {counts}"


def picture(ratios: Ratios, words: str) -> Figure:
    """Draw a panel for each operation; undecided points are hollow. words: label of the axis of the ratios."""
    across = min(ACROSS, len(ratios))
    down = math.ceil(len(ratios) / across)
    figure = Figure(figsize=(0.4 + 3.1 * across, 0.8 + 2.3 * down), layout="constrained")
    places = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    panels = places.flatten()
    names = list(dict.fromkeys(name for lines in ratios.values() for name in lines))
    for axes, (operation, lines) in zip(panels, ratios.items(), strict=False):
        axes.axhline(1, color="black", linewidth=1)
        for name, line in lines.items():
            number = names.index(name)
            colour, sizes = COLOURS[number % len(COLOURS)], sorted(line)
            values = [line[size].ratio.value for size in sizes]
            below = [line[size].ratio.value - line[size].ratio.low for size in sizes]
            above = [line[size].ratio.high - line[size].ratio.value for size in sizes]
            style = LINES[number % len(LINES)]
            axes.errorbar(sizes, values, [below, above], color=colour, linestyle=style, label=name, capsize=2)
            for size, value in zip(sizes, values, strict=True):
                inside = "white" if line[size].verdict == INCONCLUSIVE else colour
                axes.plot([size], [value], MARKERS[number % len(MARKERS)], color=colour, markerfacecolor=inside)
        axes.set_title(operation, fontsize=10.5)
        size_axis(axes, sorted({size for line in lines.values() for size in line}), 4)
    for number, axes in enumerate(panels):
        axes.set_visible(number < len(ratios))
        if number + across >= len(ratios):
            axes.set_xlabel("message size per rank", fontsize=9)
            axes.tick_params(labelbottom=True)
    panels[0].set_yscale("log")
    panels[0].yaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=20))
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0].yaxis.set_minor_formatter(NullFormatter())
    for axes in places[:, 0]:
        axes.set_ylabel(words, fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=9)
    return figure


def cpu_table(runs: Mapping[str, Path], operation: str) -> str:
    """Return a row per run and side, a column per size: CPU time of a rank per call with its barrier / time of a call.

    Medians over launches. The CPU time includes all calls of a case, also of the warm-up, and the verification.
    """
    rows = []
    for name, path in runs.items():
        for side in folders.SIDES:
            cells: dict[Case, list[tuple[float, float]]] = {}
            for samples in folders.read(path / side).samples:
                if samples.case.op == operation and samples.timed is not None and samples.usage is not None:
                    calls = samples.timed.duration_ns.shape[0]
                    calls += 0 if samples.warmup is None else samples.warmup.duration_ns.shape[0]
                    cpu_s = float(np.mean(samples.usage.cpu_s)) / calls
                    cells.setdefault(samples.case, []).append((cpu_s, float(samples.timed.slowest_s.mean())))
            ordered = sorted(cells, key=lambda case: (case.world_size, case.size_bytes))
            for ranks in dict.fromkeys(case.world_size for case in ordered):
                medians = [np.median(cells[case], axis=0) for case in ordered if case.world_size == ranks]
                texts = [f"{format_seconds(cpu_s)} / {format_seconds(time_s)}" for cpu_s, time_s in medians]
                rows.append([name, side.upper(), ranks_text(ranks), *texts])
    sizes = sorted({case.size_bytes for case in cells})
    return tabulate(rows, ["", "side", "", *map(format_bytes, sizes)], "github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN", help="RUN: a folder; NAME may be empty")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--cpu", metavar="OPERATION")
    parser.add_argument("--words", default="time of B / time of A", help="on the axis of the picture")
    args = parser.parse_args()
    runs = {name: Path(path) for name, _, path in (run.partition("=") for run in args.runs)}
    ratios = ratios_of(runs)
    print(table(ratios), decided(ratios), sep="\n\n")
    if args.cpu is not None:
        print("", cpu_table(runs, args.cpu), sep="\n")
    if args.picture is not None:
        with rc_context(STYLE):
            picture(ratios, args.words).savefig(args.picture, dpi=120)


if __name__ == "__main__":
    main()
