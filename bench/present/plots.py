"""Pictures of a run: PNG for slides, SVG for print. Those of several runs are in `comparison_plots`.

In: a `Run` and its analysis. Out: files, and their titles for the report. Each picture answers one question,
which is its title; every interval is drawn. The drawing itself is in `size_plots` and `run_plots`.
"""

from collections.abc import Callable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.conclusions import Analysis
from bench.present import run_plots, size_plots
from bench.present.canvas import STYLE, save
from bench.present.report import PICTURES
from bench.records import Run

Drawing = Callable[[Run, Analysis], Figure | None]
DRAWINGS: dict[str, Drawing] = {
    "time": size_plots.time_against_size,
    "bandwidth": size_plots.bandwidth_against_size,
    "scaling": size_plots.scaling,
    "ranks": run_plots.ranks,
    "matrix": run_plots.matrix,
    "modes": run_plots.modes,
    "over-time": run_plots.over_time,
}


def draw(run: Run, analysis: Analysis, folder: Path) -> list[tuple[str, str]]:
    """Draw what the run has data for. Returns (title, file name without suffix) of what was drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    with rc_context(STYLE):
        for name, title in PICTURES.items():
            figure = DRAWINGS[name](run, analysis)
            if figure is not None:
                save(figure, folder / name)
                drawn.append((title, name))
    return drawn
