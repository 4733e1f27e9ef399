"""Define the blocks that a document consists of, and tables as lists of columns.

In: texts. Out: blocks, for all renderers: `markdown` writes Markdown files, `page` an HTML file, `screen` fits a
terminal. In texts, `**` marks bold text and a backtick marks code; there are no other marks.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Generic, Literal, TypeAlias, TypeVar

from collbench.report.labels import NOTHING

Row = TypeVar("Row")
Key = TypeVar("Key")
Align = Literal["left", "right"]
# A number and its unit, which stay on one line in a cell.
UNIT = re.compile(r"(\d) (%|(?:[nµm]?s|min|h|[KMGT]?i?B|GB/s)\b)")


@dataclass(frozen=True)
class Heading:
    """A heading."""

    text: str
    # Level 1 is the heading of the document.
    level: int = 2


@dataclass(frozen=True)
class Items:
    """A list with one item per line."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table: cells of rows below their headers."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    # Alignment of each column.
    aligned: tuple[Align, ...]


@dataclass(frozen=True)
class Picture:
    """A picture by its address."""

    title: str
    address: str


@dataclass(frozen=True)
class Code:
    """Lines of a program, never broken."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Fold:
    """Blocks that only some readers need, below a line that opens them."""

    summary: str
    blocks: tuple["Block", ...]


# A plain text is a paragraph; its line breaks are kept.
Block: TypeAlias = str | Heading | Items | Table | Picture | Code | Fold
Blocks: TypeAlias = list[Block]


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table."""

    header: str
    # Text of the cell for a row.
    cell: Callable[[Row], str]
    align: Align = "right"


def in_line(text: str) -> str:
    """Return a text on one line, so that text which it quotes cannot begin a new line."""
    return " ".join(text.split("\n"))


def left(header: str, cell: Callable[[Row], str]) -> Column[Row]:
    """Return a column of words, aligned to the left."""
    return Column(header, cell, "left")


def keyed(
    headers: Iterable[tuple[str, Key]], cell: Callable[[Row, Key], str], align: Align = "right"
) -> list[Column[Row]]:
    """Return a column for each key. headers: pairs (header, key). cell: makes the text for a row and a key."""

    def column(header: str, key: Key) -> Column[Row]:
        return Column(header, lambda row: cell(row, key), align)

    return [column(header, key) for header, key in headers]


def table(rows: Iterable[Row], columns: Sequence[Column[Row]]) -> Blocks:
    """Return a table of these rows; nothing without rows."""
    cells = tuple(tuple(in_line(column.cell(row)) for column in columns) for row in rows)
    headers, aligned = tuple(column.header for column in columns), tuple(column.align for column in columns)
    return [Table(headers, cells, aligned)] if cells else []


def pivot(
    members: Iterable[Row],
    leading: Sequence[Column[Row]],
    column: tuple[Callable[[Row], str], Iterable[str]],
    cells: Sequence[Column[Row]],
) -> Blocks:
    """Return a table with a row for all members whose leading cells are equal, and columns for each header.

    column: gives the header of a member, and all headers in order. cells: the columns of each header; one without a
    header of its own gets that header. A column in which every cell is a dash is left out, as is the size of barriers.
    """
    header_of, headers = column[0], dict.fromkeys(column[1])
    grid: dict[tuple[str, ...], dict[str, Row]] = {}
    for member in members:
        grid.setdefault(tuple(part.cell(member) for part in leading), {})[header_of(member)] = member
    rows = [
        [*names, *(cell.cell(row[at]) if at in row else NOTHING for at in headers for cell in cells)]
        for names, row in grid.items()
    ]
    every = [*leading, *(replace(cell, header=cell.header or at) for at in headers for cell in cells)]
    filled = [number for number, texts in enumerate(zip(*rows, strict=True)) if {*texts} - {NOTHING, ""}]
    return table(rows, [Column(every[n].header, itemgetter(n), every[n].align) for n in filled])


def items(texts: Iterable[str]) -> Blocks:
    """Return a list of these texts; nothing without texts."""
    listed = tuple(map(in_line, texts))
    return [Items(listed)] if listed else []


def fold(summary: str, blocks: Sequence[Block]) -> Blocks:
    """Return folded blocks, which a reader opens; nothing without blocks."""
    return [Fold(summary, tuple(blocks))] if blocks else []


def below(text: str, blocks: Sequence[Block]) -> Blocks:
    """Return blocks below a sentence that introduces them; nothing without blocks."""
    return [text, *blocks] if blocks else []


def section(title: str, blocks: Sequence[Block], level: int = 2) -> Blocks:
    """Return blocks below a heading; nothing without blocks."""
    return [Heading(title, level), *blocks] if blocks else []
