"""Draw pictures of runs: the table of all pictures, with file name, title and drawing function of each.

In: a run and its analysis. Out: PNG files, for a paper SVG and PDF. To add a picture, add a line to PICTURES and
a function (run, analysis) → figures, one per page. matplotlib is loaded when something is drawn.
"""

from pathlib import Path

from collbench.catalog.package import PictureKind
from collbench.catalog.registry import PACKAGES
from collbench.model.deferred import Deferred
from collbench.report.view import View, is_call

Picture = tuple[str, str]  # (title, file name without suffix) of a page that has been drawn
DRAW = Deferred("report.plots.figures:draw_pages")
# Folder of the pictures for a paper, in the folder of pictures.
PAPER = "paper"


OF_PACKAGES = tuple(kind for package in PACKAGES for kind in package.pictures)
# Kinds of pictures, in the order of the report.
PICTURES = (
    *OF_PACKAGES,
    PictureKind("splits", "What each rank sends to each", "report.plots.operations:split_matrices"),
    PictureKind("operations", "Time of each operation", "report.plots.operations:operations"),
    PictureKind("time", "Time against size", "report.plots.sizes:time_against_size"),
    PictureKind("bandwidth", "Bus bandwidth against size", "report.plots.sizes:bandwidth_against_size"),
    PictureKind("scaling", "Time against number of ranks", "report.plots.sizes:scaling"),
    PictureKind("matrix", "Rate between each pair of ranks", "report.plots.ranks_and_time:matrix", unfolded=True),
    PictureKind("modes", "Distribution of the times", "report.plots.ranks_and_time:modes"),
    PictureKind(
        "over-time", "Every sample in the order in which it was taken", "report.plots.ranks_and_time:over_time"
    ),
)


def draw(view: View, folder: Path, paper: bool = False) -> list[Picture]:
    """Draw the pictures for which the run has data; remove old pages. paper: also draw pictures for a paper.

    Those fit columns, and are in a folder of their own, because a report shows the others.
    """
    calls = view.select(is_call)
    for kind in PICTURES:
        drawn_view = view if kind in OF_PACKAGES else calls
        for of_paper in (False, True)[: 1 + paper]:
            paths = [folder / (PAPER if of_paper else "") / page for page in kind.pages]
            DRAW(paths, kind.drawn_by, drawn_view.run, drawn_view.analysis, paper=of_paper)
    return drawn(folder)


def drawn(folder: Path) -> list[Picture]:
    """Return the pictures in a folder, page by page."""
    return [
        (kind.title if number == 1 else f"{kind.title}, page {number}", page)
        for kind in PICTURES
        for number, page in enumerate(kind.pages, start=1)
        if (folder / f"{page}.png").is_file()
    ]
