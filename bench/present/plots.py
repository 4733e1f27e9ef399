"""Pictures of a run: PNG for slides, SVG for print. Those of several runs are in `comparison_plots`.

In: a `Run` and its analysis. Out: files, and their titles for the report. Each picture answers one question,
which is its title; every interval is drawn. What does not fit onto one page goes on to `time-2.png` and so on. The
drawing itself is in `size_plots`, `operation_plots` and `run_plots`.
"""

from collections.abc import Callable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.conclusions import Analysis
from bench.present import operation_plots, run_plots, size_plots
from bench.present.canvas import STYLE, save_pages
from bench.present.report import MOST_PAGES, PICTURES, Picture, pictures_in
from bench.records import Run

Drawing = Callable[[Run, Analysis], list[Figure]]
DRAWINGS: dict[str, Drawing] = {
    "operations": operation_plots.operations,
    "time": size_plots.time_against_size,
    "bandwidth": size_plots.bandwidth_against_size,
    "scaling": size_plots.scaling,
    "ranks": run_plots.ranks,
    "matrix": run_plots.matrix,
    "modes": run_plots.modes,
    "over-time": run_plots.over_time,
}


def draw(run: Run, analysis: Analysis, folder: Path) -> list[Picture]:
    """Draw what the run has data for; pages that an earlier drawing left behind are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        for name in PICTURES:
            save_pages(DRAWINGS[name](run, analysis), folder, name, MOST_PAGES)
    return pictures_in(folder)
