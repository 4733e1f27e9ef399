"""Arrange many series on pages: lines in panels, panels on pages, and the words that they have in common.

A panel has one operation, backend and metric. For all other differences it has lines, up to MOST_SERIES. Each metric
begins a new page. The axes of a page are empty here: `sizes` draws into them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collbench.catalog import metrics
from collbench.model.conclusions import Summary
from collbench.model.projection import KINDS
from collbench.report.labels import Parts, case_parts, divide, in_words, metric_name, without_usual
from collbench.report.plots import figures
from collbench.report.plots.figures import LINES, look

T = TypeVar("T")
# Properties of a kind of case, and the name and summaries of a series of it.
Series = tuple[Parts, str, list[Summary]]
# More lines than this in one panel cannot be distinguished.
MOST_SERIES = 6
# Panels on a page, in up to three columns: more would be too small to read.
PANELS_A_PAGE = 24
# Readers do not look through more pages of panels.
MOST_PAGES = 4
# Inches: height of a panel on a page with one, two and three columns.
HEIGHTS = (3.6, 2.6, 2.0)
# Most entries of a legend below all panels; if there are more, each panel has its own legend.
MOST_SHARED = 28


@dataclass(frozen=True, slots=True)
class Line:
    """The summaries that one line joins."""

    # Properties apart from other lines of the panel, such as `batch`; empty if there are none.
    variant: str
    # The number of ranks or the size, such as `2 ranks`.
    series: str
    members: list[Summary]

    @property
    def name(self) -> str:
        """Return the name in the legend."""
        return ", ".join(filter(None, (self.variant, self.series)))


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines that are drawn into one set of axes."""

    # Parts that the lines have in common.
    common: Parts
    lines: list[Line]

    @property
    def members(self) -> list[Summary]:
        """The summaries of all lines."""
        return [summary for line in self.lines for summary in line.members]


@dataclass(frozen=True, slots=True)
class Page:
    """A figure, and the panels in it."""

    figure: Figure
    # Axes of the figure with their panels.
    places: list[tuple[Axes, Panel]]
    # Name of a line → its look; None if names are so many that each panel has its own looks and legend.
    looks: Mapping[str, dict[str, Any]] | None
    # Axes without a panel.
    spare: Sequence[Axes]

    def drawn_lines(self) -> Iterator[tuple[Axes, Line, dict[str, Any]]]:
        """Yield the axes, the line and its look for each line."""
        for axes, panel in self.places:
            for number, line in enumerate(panel.lines):
                yield axes, line, look(number) if self.looks is None else self.looks[line.name]

    def note(self, text: str) -> None:
        """Add a text to the legend."""
        self.places[0][0].plot([], [], " ", label=text)


def panels(summaries: Sequence[Summary], split: Callable[[list[Summary]], Mapping[str, list[Summary]]]) -> list[Panel]:
    """Make panels in the order of the tables, metric by metric.

    split: divides summaries that differ in size and ranks only into series with names.
    """
    by_kind = KINDS.tables(sorted(summaries, key=lambda s: metrics.order(s.case.metric)), lambda s: s.case)
    together: dict[tuple[str, str, str], list[list[Series]]] = {}
    for case, parts in zip(by_kind, case_parts(list(by_kind)), strict=True):
        series = [(parts, name, members) for name, members in split(by_kind[case]).items()]
        together.setdefault((case.op, case.backend, metric_name(case)), []).append(series)
    made = []
    for chunk in (chunk for kinds in together.values() for chunk in _chunks(kinds)):
        common, differing = divide([parts for parts, _, _ in chunk])
        variants = (", ".join(part.words for part in parts) for parts in differing)
        lines = [Line(variant, name, members) for variant, (_, name, members) in zip(variants, chunk, strict=True)]
        made.append(Panel(common, lines))
    return made


def _chunks(kinds: Iterable[list[Series]]) -> list[list[Series]]:
    """Return the series of each panel. Only a kind above MOST_SERIES is divided."""
    chunks: list[list[Series]] = []
    for part in (part for series in kinds for part in _divided(series, MOST_SERIES)):
        if not chunks or len(chunks[-1]) + len(part) > MOST_SERIES:
            chunks.append([])
        chunks[-1] += part
    return chunks


def _divided(values: list[T], most: int) -> list[list[T]]:
    """Divide values into as few lists as possible."""
    return [values[start : start + most] for start in range(0, len(values), most)]


def pages(quantity: str, properties: str, drawn: Sequence[Panel], left_out: Sequence[str] = ()) -> list[Page]:
    """Make pages with titles for all panels. The last page notes `left_out` and how many panels did not fit.

    quantity: text for the title. properties: properties of all panels for the title, in addition to common parts.
    """
    parts: list[list[Panel]] = []
    for _, group in groupby(drawn, key=lambda panel: metric_name(panel.members[0].case)):
        of_metric = list(group)
        count = math.ceil(len(of_metric) / PANELS_A_PAGE)
        parts += _divided(of_metric, math.ceil(len(of_metric) / count) if count <= MOST_PAGES else PANELS_A_PAGE)
    made = []
    for number, part in enumerate(parts[:MOST_PAGES], start=1):
        place = f" ({number} of {min(len(parts), MOST_PAGES)})" if len(parts) > 1 else ""
        made.append(_page(f"{quantity}{place}", properties, part))
    missing = sum(map(len, parts[MOST_PAGES:]))
    for text in [*left_out, *([f"and {missing} more panels: see the tables"] if missing else [])] if made else []:
        made[-1].note(text)
    return made


def _page(quantity: str, properties: str, part: Sequence[Panel]) -> Page:
    common, differing = divide([without_usual(panel.common) for panel in part])
    columns = min(len(HEIGHTS), math.ceil(math.sqrt(len(part))))
    heights = [HEIGHTS[columns - 1]] * math.ceil(len(part) / columns)
    title = f"{quantity}\n{', '.join([*in_words(common), properties])}"
    figure, grid = figures.page(title, heights, columns, sharex=True, sharey=True)
    for axes, parts in zip(grid.flat, differing if len(part) > 1 else [], strict=False):
        axes.set_title(", ".join(in_words(parts)))
    return Page(figure, list(zip(grid.flat, part, strict=False)), _looks(part), grid.flat[len(part) :])


def _looks(part: Sequence[Panel]) -> dict[str, dict[str, Any]] | None:
    """Return a look for each name of a line: the fewer of variants and series have dashes, the others colours."""
    lines = {line.name: line for panel in part for line in panel.lines}
    variants = sorted({line.variant for line in lines.values()}, key=lambda variant: (variant != "normal", variant))
    series = list(dict.fromkeys(line.series for line in lines.values()))
    if min(len(variants), len(series)) > len(LINES) or len(lines) > MOST_SHARED:
        return None
    places = {name: (series.index(line.series), variants.index(line.variant)) for name, line in lines.items()}
    return {name: look(*place if len(series) >= len(variants) else place[::-1]) for name, place in places.items()}
