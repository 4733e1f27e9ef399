"""The table of pictures: file name, title and drawing function of each, in the order of the report.

In: a run and its analysis. Out: PNG and SVG files. To add a picture: a line in CATALOGUE and a function
(run, analysis) → figures, one per page. matplotlib is loaded when something is drawn.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.model.deferred import Deferred

Picture = tuple[str, str]  # (title, file name without suffix) of a page that has been drawn
DRAW = Deferred("report.plots.figures:draw_pages")
# Pages of one picture; readers do not look through more.
MOST_PAGES = 4


@dataclass(frozen=True)
class PictureKind:
    """One picture. name: file name without suffix. drawn_by: function (run, analysis) → figures, one per page."""

    name: str
    title: str
    drawn_by: Deferred


@dataclass(frozen=True)
class Catalogue:
    """The pictures of a benchmark, in the order of its report. most_pages: of one picture."""

    kinds: tuple[PictureKind, ...]
    most_pages: int

    def draw(self, run: Any, analysis: Any, folder: Path) -> list[Picture]:
        """Draw what the run has data for, as PNG for slides and SVG for print; remove pages left from before."""
        folder.mkdir(parents=True, exist_ok=True)
        for kind in self.kinds:
            DRAW(kind.drawn_by, run, analysis, [folder / page_name(kind.name, n + 1) for n in range(self.most_pages)])
        return self.drawn(folder)

    def drawn(self, folder: Path) -> list[Picture]:
        """The pictures in a folder, page by page."""
        return [
            (kind.title if number == 1 else f"{kind.title}, page {number}", page_name(kind.name, number))
            for kind in self.kinds
            for number in range(1, self.most_pages + 1)
            if (folder / f"{page_name(kind.name, number)}.png").is_file()
        ]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that drawing loads."""
        return tuple(dict.fromkeys((DRAW.module, *(kind.drawn_by.module for kind in self.kinds))))


def page_name(name: str, number: int) -> str:
    """File name of a page of a picture, without suffix."""
    return name if number == 1 else f"{name}-{number}"


def _kind(name: str, title: str, drawn_by: str) -> PictureKind:
    return PictureKind(name, title, Deferred(f"report.plots.{drawn_by}"))


CATALOGUE = Catalogue(
    (
        _kind("replay", "The calls of a recorded step, recorded and made again", "operations:replayed_steps"),
        _kind("splits", "What each rank sends to each", "operations:split_matrices"),
        _kind("operations", "Time of each operation", "operations:operations"),
        _kind("time", "Time against size", "sizes:time_against_size"),
        _kind("bandwidth", "Bus bandwidth against size", "sizes:bandwidth_against_size"),
        _kind("scaling", "Time against world size", "sizes:scaling"),
        _kind("ranks", "Arrival and duration of each rank", "ranks_and_time:ranks"),
        _kind("matrix", "Rate between each two ranks", "ranks_and_time:matrix"),
        _kind("modes", "Distribution of the times", "ranks_and_time:modes"),
        _kind("over-time", "Every sample in the order in which it was taken", "ranks_and_time:over_time"),
    ),
    MOST_PAGES,
)
