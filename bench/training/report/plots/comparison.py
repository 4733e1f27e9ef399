"""Draw the comparison of two training runs: did the time of a step change?

In: a `TrainingComparison`. Out: PNG and SVG. A panel for each scenario, a row for each strategy: the ratio of the times
of a step with its interval, in the style of the comparison of collectives.
"""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.report.comparison import headline
from bench.report.plots.comparison import BARS, directions, ratio_axis, ratio_rows, standing_out, verdict_legend
from bench.report.plots.panels import WIDE, wrapped
from bench.report.plots.plot_style import STYLE, save
from bench.training.conclusions import StepChange, TrainingComparison
from bench.training.records import Scenario
from bench.training.report.comparison import scenarios
from bench.training.report.labels import names, scenario_text

NO_BREAK = "\N{NO-BREAK SPACE}"
# Heights in inches: of a row, of a panel without its rows, of title, axis and legend together.
ROW, PANEL, REST = 0.28, 0.55, 1.9


def draw_comparison(result: TrainingComparison, folder: Path) -> Path | None:
    """Draw the comparison. Returns the PNG's path; None where no strategy was timed in both runs."""
    if not result.changes:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        save(_figure(result), folder / "comparison")
    return folder / "comparison.png"


def _figure(result: TrainingComparison) -> Figure:
    chosen = {id(change) for change in standing_out(result.changes)}
    shown = scenarios([change for change in result.changes if id(change) in chosen])
    rows = [len(changes) for _, changes in shown]
    figure = Figure(figsize=(9, REST + PANEL * len(rows) + ROW * sum(rows)), layout="constrained")
    grid = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=[count + 0.4 for count in rows])
    for axes, (scenario, changes) in zip(grid.flat, shown, strict=True):
        ratio_rows(axes, [change.judgement for change in changes], _names(changes), result.min_change)
        # above the words "faster" and "slower"
        axes.set_title(_title(scenario), fontsize=9, pad=6 if axes is not grid[0, 0] else 20)
    ratio_axis(grid[-1, 0])
    directions(grid[0, 0])
    grid[-1, 0].set_xlabel(f"time of a step after / before (log scale)\n{BARS}")
    title = f"Did a training step change?  {result.before}  →  {result.after}"
    figure.suptitle(f"{title}\n{headline(result)}", x=0.01, ha="left", fontsize=10.5)
    verdict_legend(figure, result, len(result.changes) - sum(rows))
    return figure


def _title(scenario: Scenario) -> str:
    """Title of a panel, on as many lines as it needs; lines break only between the parts of the scenario."""
    words = scenario_text(scenario).split(" · ")
    return wrapped(" · ".join(word.replace(" ", NO_BREAK) for word in words), WIDE)


def _names(changes: list[StepChange]) -> list[str]:
    called = names([change.label for change in changes])
    return [called[change.label] for change in changes]
