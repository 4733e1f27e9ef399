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
from bench.records import Run
from bench.report.document import MOST_PAGES, PICTURES, Picture, pictures_in
from bench.report.plots import operations, ranks_and_time, sizes
from bench.report.plots.plot_style import STYLE, save_pages

Drawing = Callable[[Run, Analysis], list[Figure]]
DRAWINGS: dict[str, Drawing] = {
    "operations": operations.operations,
    "time": sizes.time_against_size,
    "bandwidth": sizes.bandwidth_against_size,
    "scaling": sizes.scaling,
    "ranks": ranks_and_time.ranks,
    "matrix": ranks_and_time.matrix,
    "modes": ranks_and_time.modes,
    "over-time": ranks_and_time.over_time,
}


def draw(run: Run, analysis: Analysis, folder: Path) -> list[Picture]:
    """Draw what the run has data for; pages that an earlier drawing left behind are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        for name in PICTURES:
            save_pages(DRAWINGS[name](run, analysis), folder, name, MOST_PAGES)
    return pictures_in(folder)
