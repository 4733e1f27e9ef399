"""Pictures of a run of the training benchmark: PNG for slides, SVG for print.

In: what follows from the run. Out: files, and their titles for the report. Each picture answers one question, which
is its title; every interval is drawn. The drawing itself is in `step_plots`, `timeline_plots` and `size_plots`.
"""

from collections.abc import Callable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.report.document import Picture
from bench.report.plots.plot_style import STYLE, save_pages
from bench.training.conclusions import ScenarioAnalysis, TrainingAnalysis
from bench.training.records import TrainingRun
from bench.training.report.document import MOST_PAGES, PICTURES, pictures_in
from bench.training.report.plots import sizes, steps, timelines


def _of_each(drawn: Callable[[ScenarioAnalysis], list[Figure]]) -> Callable[[TrainingAnalysis], list[Figure]]:
    return lambda analysis: [figure for comparison in analysis.scenarios for figure in drawn(comparison)]


DRAWINGS: dict[str, Callable[[TrainingAnalysis], list[Figure]]] = {
    "training-steps": _of_each(steps.steps),
    "training-timeline": _of_each(timelines.timelines),
    "training-buckets": _of_each(sizes.buckets),
    "training-call-sizes": lambda analysis: sizes.call_sizes(analysis.call_sizes),
}


def draw(run: TrainingRun, analysis: TrainingAnalysis, folder: Path) -> list[Picture]:
    """Draw what the run has data for; pages that an earlier drawing left behind are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        for name in PICTURES:
            save_pages(DRAWINGS[name](analysis)[:MOST_PAGES], folder, name, MOST_PAGES)
    return pictures_in(folder)
