"""Divide summaries into lines, panels and pages, for figures with many panels.

In: summaries. Out: `Panel`s with their lines, and figures with axes for each panel, still empty. A panel has one
operation, backend and metric. Whatever else differs makes its lines, up to MOST_SERIES. What the panels of a page
have in common is written once, above them. Each metric begins a new page.
"""

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.catalog import metrics
from bench.model.conclusions import Summary
from bench.model.records import Run
from bench.report.labels import Words, attributes, common_words, in_words, without_usual, words_to_show
from bench.report.pictures import MOST_PAGES
from bench.report.plots.plot_style import COLOURS, MOST_SERIES, legend_entries

# Four by six: more would be too small to read.
PANELS_A_PAGE = 24
# (most panels, columns, width and height of a panel in inches). A single panel is as large as any other picture.
GRIDS = ((2, 2, 4.2, 2.6), (3, 3, 3.1, 2.3), (4, 2, 4.2, 2.3), (9, 3, 3.1, 1.8), (PANELS_A_PAGE, 4, 2.45, 1.4))
# Inches: left and right of the panels, below them for the axis label, a line of the title, a line of the legend.
LEFT, RIGHT, BELOW, TITLE_LINE, LEGEND_LINE = 0.85, 0.15, 0.6, 0.2, 0.22
# Inches between panels; a panel's title is in the gap above it.
GAP_WIDE, GAP_HIGH = 0.15, 0.42
# Entries that a legend below all panels has room for; if there are more, each panel has its own legend.
MOST_SHARED = 2 * len(COLOURS)
# Characters in a line of the figure's title, also of a figure of 10 inches; characters per inch in a panel's title.
WIDE, WIDER, NARROW = 112, 128, 13
# Inches: an entry of a legend without its text, and a letter of it.
ENTRY, LETTER = 0.6, 0.075
# Inches: width of a single panel's figure, and its height without the legend.
SINGLE = (8.5, 4.5)
NO_BREAK = "\N{NO-BREAK SPACE}"
# The space between a number and what it counts, such as that of `1 MiB` or `4 ranks`.
NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=[A-Za-zµ%])")


@dataclass(frozen=True, slots=True)
class Line:
    """Summaries that one line joins, with its name in the legend."""

    name: str
    members: list[Summary]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines that are drawn into one set of axes. words: what they have in common."""

    words: Words
    lines: list[Line]
    title: str = ""


@dataclass(slots=True)
class Page:
    """A figure. places: its axes with their panels. styles: line name → style. extra: further lines of the legend."""

    figure: Figure
    places: list[tuple[Axes, Panel]]
    styles: dict[str, int] | None
    extra: list[str] = field(default_factory=list)

    def styled(self, panel: Panel) -> list[tuple[int, Line]]:
        """(number of colour and marker, line). Equal names have equal numbers on a page unless `styles` is None."""
        numbered = enumerate(panel.lines)
        return [(number if self.styles is None else self.styles[line.name], line) for number, line in numbered]


# ── what goes where ──────────────────────────────────────────────────────────────────────────────
def panels(summaries: Sequence[Summary], split: Callable[[list[Summary]], list[Line]]) -> list[Panel]:
    """Panels in the order of the tables, metric by metric.

    split: makes lines of summaries that differ in size and ranks only.
    """
    together: dict[tuple[str, ...], dict[tuple[str, ...], list[Summary]]] = {}
    for summary in sorted(summaries, key=lambda s: metrics.order(s.case.metric)):
        words = attributes(summary.case)
        base = (words["op"], words["backend"], words["metric"])
        together.setdefault(base, {}).setdefault(tuple(words.values()), []).append(summary)
    found = []
    for families in together.values():
        for chunk in _chunks([(attributes(members[0].case), split(members)) for members in families.values()]):
            found.append(_panel(chunk))
    return found


def _chunks(families: Iterable[tuple[Words, list[Line]]]) -> list[list[tuple[Words, Line]]]:
    """The lines of each panel, with the words of their family. A family is divided only if it exceeds MOST_SERIES."""
    chunks: list[list[tuple[Words, Line]]] = []
    for words, lines in families:
        for part in (lines[start : start + MOST_SERIES] for start in range(0, len(lines), MOST_SERIES)):
            if not chunks or len(chunks[-1]) + len(part) > MOST_SERIES:
                chunks.append([])
            chunks[-1] += [(words, line) for line in part]
    return chunks


def _panel(chunk: Sequence[tuple[Words, Line]]) -> Panel:
    common = common_words([words for words, _ in chunk])
    lines = []
    for words, line in chunk:
        own = [word for name, word in words.items() if name not in common]
        lines.append(Line(", ".join([*own, *filter(None, [line.name])]), line.members))
    return Panel(common, lines)


# ── pages ────────────────────────────────────────────────────────────────────────────────────────
def pages(question: str, run: Run, found: Sequence[Panel], marks: str, left_out: Sequence[str] = ()) -> list[Page]:
    """Figures with titles for all panels. The last one says what is left out, and how many panels did not fit."""
    must = words_to_show(s.case for panel in found for line in panel.lines for s in line.members)
    spoken = [replace(panel, words=without_usual(panel.words, _op(panel), must)) for panel in found]
    parts: list[list[Panel]] = []
    for _, alike in groupby(spoken, key=lambda panel: panel.words["metric"]):
        of_one = list(alike)
        count = math.ceil(len(of_one) / PANELS_A_PAGE)
        a_page = math.ceil(len(of_one) / count) if count <= MOST_PAGES else PANELS_A_PAGE
        parts += [of_one[start : start + a_page] for start in range(0, len(of_one), a_page)]
    launches = f"{run.plan.launches} launch{'es' if run.plan.launches > 1 else ''}"
    shown = parts[:MOST_PAGES]
    made = []
    for number, part in enumerate(shown, start=1):
        place = f" ({number} of {len(shown)})" if len(shown) > 1 else ""
        made.append(_page(f"{question}{place}", f"{launches}; {marks}", part))
    missing = sum(map(len, parts[MOST_PAGES:]))
    if made:
        made[-1].extra += [*left_out, *([f"and {missing} more panels: see the tables"] if missing else [])]
    return made


def _op(panel: Panel) -> str:
    return panel.words["op"]


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most `width` characters; a number stays with its unit."""
    glued = NUMBER_AND_UNIT.sub(NO_BREAK, text)
    return "\n".join(textwrap.wrap(glued, width, break_long_words=False)).replace(NO_BREAK, " ") or text


def _page(question: str, what: str, part: Sequence[Panel]) -> Page:
    common = common_words([panel.words for panel in part])
    head = f"{question}\n{wrapped(', '.join([*in_words(common), what]), WIDE)}"
    styles = _styles(part)
    if len(part) == 1:
        figure = Figure(figsize=SINGLE, layout="constrained")
        axes = figure.subplots()
        axes.set_title(head, fontsize=10.5)
        return Page(figure, [(axes, part[0])], styles)
    figure, grid = _grid(len(part), TITLE_LINE * (1 + head.count("\n")) + GAP_HIGH)
    figure.suptitle(head, x=0.01, y=1 - 0.08 / figure.get_figheight(), ha="left", va="top", fontsize=10.5)
    columns, width = grid.shape[1], grid[0][0].get_position().width * figure.get_figwidth()
    for axes, panel in zip(grid.flat, part, strict=False):
        own = {name: word for name, word in panel.words.items() if name not in common}
        axes.set_title(wrapped(", ".join(in_words(own)), int(NARROW * width)), fontsize=8.5)
        axes.tick_params(labelsize=8)
    for number in range(len(part), grid.size):
        grid.flat[number].set_visible(False)
        grid.flat[number - columns].tick_params(labelbottom=True)  # it is the lowest of its column
    return Page(figure, list(zip(grid.flat, part, strict=False)), styles)


def _styles(part: Sequence[Panel]) -> dict[str, int] | None:
    """A number for each line name; None if there are too many names, or two lines of a panel would look alike."""
    names = list(dict.fromkeys(line.name for panel in part for line in panel.lines))
    styles = {name: number for number, name in enumerate(names)}
    alike = any(len({styles[line.name] % len(COLOURS) for line in panel.lines}) < len(panel.lines) for panel in part)
    return None if alike or len(names) > MOST_SHARED else styles


def _grid(count: int, above: float) -> tuple[Figure, Any]:
    """A figure with `count` sets of axes or some more, and `above` inches for titles.

    The layout is computed here, as all panels are of one size: that is twice as fast as matplotlib's layout engine.
    """
    _, columns, width, height = next(grid for grid in GRIDS if count <= grid[0])
    rows = math.ceil(count / columns)
    across = LEFT + columns * width + (columns - 1) * GAP_WIDE + RIGHT
    high = above + rows * height + (rows - 1) * GAP_HIGH + BELOW
    figure = Figure(figsize=(across, high))
    place = {"left": LEFT / across, "right": 1 - RIGHT / across, "top": 1 - above / high, "bottom": BELOW / high}
    figure.subplots_adjust(**place, wspace=GAP_WIDE / width, hspace=GAP_HIGH / height)
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)


def label_axes(page: Page, x: str, y: str) -> None:
    """Write what the axes show: at a single panel, or once for all panels."""
    if len(page.places) == 1:
        axes = page.places[0][0]
        axes.set_xlabel(x)
        axes.set_ylabel(y)
    else:
        bottom = page.figure.subplotpars.bottom * page.figure.get_figheight()
        page.figure.supxlabel(x, fontsize=9, y=(bottom - 0.5) / page.figure.get_figheight())
        page.figure.supylabel(y, fontsize=9, x=0.01)


def legend(page: Page) -> None:
    """One legend below all panels, where it hides nothing, or one in each if `page.styles` is None. Call it last."""
    first = page.places[0][0]
    for text in page.extra:
        first.plot([], [], " ", label=text)
    of_each = [legend_entries(axes) for axes, _ in page.places]
    entries: dict[str, Any] = {}
    for of_one in of_each:
        entries |= {name: handle for name, handle in of_one.items() if name not in entries}
    if len(page.places) == 1:
        columns = _columns(page.figure, entries)
        page.figure.set_figheight(SINGLE[1] + LEGEND_LINE * math.ceil(len(entries) / columns))
        look: Any = {"loc": "outside lower center", "ncols": columns, "fontsize": 8.5}
        page.figure.legend(list(entries.values()), list(entries), **look)
    elif page.styles is not None:
        _legend_below(page.figure, entries)
    else:
        for (axes, _), of_one in zip(page.places, of_each, strict=True):
            axes.legend(list(of_one.values()), list(of_one), loc="best", fontsize=6.5)


def _columns(figure: Figure, entries: dict[str, Any]) -> int:
    """How many columns of a legend fit side by side. matplotlib fills the first column before the second."""
    widths = np.array([ENTRY + LETTER * len(name) for name in entries])
    for columns in range(len(widths), 1, -1):
        if sum(part.max() for part in np.array_split(widths, columns)) <= figure.get_figwidth():
            return columns
    return 1


def _legend_below(figure: Figure, entries: dict[str, Any]) -> None:
    """A legend in as many columns as fit; the figure becomes higher by as much."""
    columns = _columns(figure, entries)
    more = LEGEND_LINE * math.ceil(len(entries) / columns)
    before = figure.get_figheight()
    after = before + more
    pars = figure.subplotpars
    figure.set_figheight(after)
    figure.subplots_adjust(top=1 - (1 - pars.top) * before / after, bottom=(pars.bottom * before + more) / after)
    for text in figure.texts:  # titles and axis labels
        text.set_y((text.get_position()[1] * before + more) / after)
    figure.legend(
        list(entries.values()), list(entries), loc="lower center", ncols=columns, fontsize=8.5, borderaxespad=0.1
    )
