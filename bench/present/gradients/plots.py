"""Pictures of a run of the gradient benchmark: PNG for slides, SVG for print.

In: what follows from the run. Out: files, and their titles for the report. Each picture answers one question, which
is its title; every interval is drawn. The drawing itself is in `step_plots`, `timeline_plots` and `size_plots`.
"""

from collections.abc import Callable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.gradients.conclusions import Comparison, TrainingAnalysis
from bench.present.canvas import STYLE, save_pages
from bench.present.gradients import size_plots, step_plots, timeline_plots
from bench.present.gradients.report import MOST_PAGES, PICTURES, pictures_in
from bench.present.report import Picture


def _of_each(drawn: Callable[[Comparison], list[Figure]]) -> Callable[[TrainingAnalysis], list[Figure]]:
    return lambda analysis: [figure for comparison in analysis.comparisons for figure in drawn(comparison)]


DRAWINGS: dict[str, Callable[[TrainingAnalysis], list[Figure]]] = {
    "gradient-steps": _of_each(step_plots.steps),
    "gradient-timeline": _of_each(timeline_plots.timelines),
    "gradient-buckets": _of_each(size_plots.buckets),
    "gradient-ladder": lambda analysis: size_plots.ladder(analysis.rungs),
}


def draw(analysis: TrainingAnalysis, folder: Path) -> list[Picture]:
    """Draw what the run has data for; pages that an earlier drawing left behind are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        for name in PICTURES:
            save_pages(DRAWINGS[name](analysis)[:MOST_PAGES], folder, name, MOST_PAGES)
    return pictures_in(folder)
