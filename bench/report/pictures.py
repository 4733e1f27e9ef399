"""The table of pictures: file name, title and drawing function of each, in the order of the report.

In: a run and its analysis. Out: PNG and SVG files. To add a picture: a line in CATALOGUE and a function
(run, analysis) → figures, one per page. matplotlib is loaded when something is drawn.
"""

from dataclasses import dataclass
from pathlib import Path

from bench.model.conclusions import Analysis
from bench.model.deferred import Deferred
from bench.model.records import Run
from bench.report.training import without_steps

Picture = tuple[str, str]  # (title, file name without suffix) of a page that has been drawn
DRAW = Deferred("report.plots.figures:draw_pages")
# Pages of one picture; readers do not look through more. Of training steps a page shows one scenario, or a dozen
# strategies of it.
MOST_PAGES, MOST_TRAINING_PAGES = 4, 12


@dataclass(frozen=True)
class PictureKind:
    """One picture. name: file name without suffix. drawn_by: function (run, analysis) → figures, one per page.

    trains: whether it shows training steps; what the others are given has none.
    """

    name: str
    title: str
    drawn_by: Deferred
    trains: bool = False

    @property
    def pages(self) -> list[str]:
        """File names of all its pages, without suffix; most runs draw only the first."""
        most = MOST_TRAINING_PAGES if self.trains else MOST_PAGES
        return [self.name, *(f"{self.name}-{number}" for number in range(2, most + 1))]


@dataclass(frozen=True)
class Catalogue:
    """All pictures, in the order of the report."""

    kinds: tuple[PictureKind, ...]

    def draw(self, run: Run, analysis: Analysis, folder: Path) -> list[Picture]:
        """Draw what the run has data for, as PNG for slides and SVG for print; remove pages left from before."""
        folder.mkdir(parents=True, exist_ok=True)
        of_calls = without_steps(run, analysis)
        for kind in self.kinds:
            DRAW(kind.drawn_by, *((run, analysis) if kind.trains else of_calls), [folder / page for page in kind.pages])
        return self.drawn(folder)

    def drawn(self, folder: Path) -> list[Picture]:
        """The pictures in a folder, page by page."""
        return [
            (kind.title if number == 1 else f"{kind.title}, page {number}", page)
            for kind in self.kinds
            for number, page in enumerate(kind.pages, start=1)
            if (folder / f"{page}.png").is_file()
        ]


def _kind(name: str, title: str, drawn_by: str, trains: bool = False) -> PictureKind:
    return PictureKind(name, title, Deferred(f"report.plots.{drawn_by}"), trains)


CATALOGUE = Catalogue(
    (
        _kind("replay", "The calls of a recorded step, recorded and made again", "operations:replayed_steps"),
        _kind("splits", "What each rank sends to each", "operations:split_matrices"),
        _kind("training-steps", "Step time: computing and exposed communication", "training_steps:steps", trains=True),
        _kind("training-buckets", "Exposed communication against bucket size", "training_steps:buckets", trains=True),
        _kind(
            "training-timeline",
            "One step of each strategy: when communication overlaps with computing",
            "timelines:timelines",
            trains=True,
        ),
        _kind("training-call-sizes", "The same bytes in more and more calls", "training_steps:call_sizes", trains=True),
        _kind("operations", "Time of each operation", "operations:operations"),
        _kind("time", "Time against size", "sizes:time_against_size"),
        _kind("bandwidth", "Bus bandwidth against size", "sizes:bandwidth_against_size"),
        _kind("scaling", "Time against world size", "sizes:scaling"),
        _kind("ranks", "Arrival and duration of each rank", "ranks_and_time:ranks"),
        _kind("matrix", "Rate between each two ranks", "ranks_and_time:matrix"),
        _kind("modes", "Distribution of the times", "ranks_and_time:modes"),
        _kind("over-time", "Every sample in the order in which it was taken", "ranks_and_time:over_time"),
    )
)
