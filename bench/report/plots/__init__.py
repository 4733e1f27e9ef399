"""Draw pictures of runs: the table of all pictures, with file name, title and drawing function of each.

In: a run and its analysis. Out: PNG and SVG files. To add a picture: a line in PICTURES and a function
(run, analysis) → figures, one per page. matplotlib is loaded when something is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.model.comparisons import BitsRow
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
    """One picture. name: file name without suffix. function: "module:name" in this folder.

    trains: whether it shows training steps; what the others are given has none.
    """

    name: str
    title: str
    function: str
    trains: bool = False

    @property
    def drawn_by(self) -> Deferred:
        """The function (run, analysis) → figures, one per page."""
        return Deferred(f"report.plots.{self.function}")

    @property
    def pages(self) -> list[str]:
        """File names of all its pages, without suffix; most runs draw only the first."""
        most = MOST_TRAINING_PAGES if self.trains else MOST_PAGES
        return [self.name, *(f"{self.name}-{number}" for number in range(2, most + 1))]


# In the order of the report.
PICTURES = (
    PictureKind("recorded", "Where the recorded job's time in calls went", "operations:recorded"),
    PictureKind("replay", "The calls of a recorded step, recorded and made again", "operations:replayed_steps"),
    PictureKind("splits", "What each rank sends to each", "operations:split_matrices"),
    PictureKind("training-steps", "Step time: computing and exposed communication", "training:steps", trains=True),
    PictureKind("training-buckets", "Exposed communication against bucket size", "training:buckets", trains=True),
    PictureKind(
        "training-timeline",
        "One step of each strategy: when communication overlaps with computing",
        "training:timelines",
        trains=True,
    ),
    PictureKind("training-call-sizes", "The same bytes in more and more calls", "training:call_sizes", trains=True),
    PictureKind("operations", "Time of each operation", "operations:operations"),
    PictureKind("time", "Time against size", "sizes:time_against_size"),
    PictureKind("bandwidth", "Bus bandwidth against size", "sizes:bandwidth_against_size"),
    PictureKind("scaling", "Time against number of ranks", "sizes:scaling"),
    PictureKind("ranks", "Arrival and duration of each rank", "ranks_and_time:ranks"),
    PictureKind("matrix", "Rate between each two ranks", "ranks_and_time:matrix"),
    PictureKind("modes", "Distribution of the times", "ranks_and_time:modes"),
    PictureKind("over-time", "Every sample in the order in which it was taken", "ranks_and_time:over_time"),
)


def draw(run: Run, analysis: Analysis, folder: Path) -> list[Picture]:
    """Draw what the run has data for, as PNG and SVG; remove pages left from before."""
    folder.mkdir(parents=True, exist_ok=True)
    of_calls = without_steps(run, analysis)
    for kind in PICTURES:
        shown = (run, analysis) if kind.trains else of_calls
        DRAW(kind.drawn_by, *shown, [folder / page for page in kind.pages])
    return drawn(folder)


def draw_recorded(analysis: Analysis, folder: Path) -> Path:
    """Draw where a recorded job's time in calls went, without a run; the picture's path."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = PICTURES[0]
    DRAW(kind.drawn_by, None, analysis, [folder / page for page in kind.pages])
    return folder / f"{kind.name}.png"


def draw_bits(rows: Sequence[BitsRow], folder: Path) -> Path | None:
    """Draw which share of elements differs, over size; None if all are the same bits."""
    path = folder / "bits"
    DRAW(Deferred("report.plots.bits:shares_of"), rows, None, [path])
    return path.with_suffix(".png") if path.with_suffix(".png").is_file() else None


def drawn(folder: Path) -> list[Picture]:
    """The pictures in a folder, page by page."""
    return [
        (kind.title if number == 1 else f"{kind.title}, page {number}", page)
        for kind in PICTURES
        for number, page in enumerate(kind.pages, start=1)
        if (folder / f"{page}.png").is_file()
    ]
