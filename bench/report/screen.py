"""Write blocks for a terminal: tables and sentences of at most its width.

rich's own Markdown was tried: it centres headings, ends items with bullets of its own, and cuts cells of tables that
are too wide, which here become records. Loads no renderer of Markdown.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from bench.report.blocks import Block, Code, Fold, Heading, Items, Picture, Table

# Spaces between two columns.
GAP = 2
RULE = "─"
# From this level on, headings have no line below them.
HEADINGS = 3
# Stands for a space while lines are broken; rich breaks at every character that Unicode calls a space.
NO_BREAK = "\ue000"
# What begins an item or an indented line: the lines that follow are indented with it.
_MARK = re.compile(r"^(\s*)([-*] |\d+\. )?")
# A number and its unit, which stay in one line.
_UNIT = re.compile(r"(\d) ([nµm]?s|min|h|[KMGT]?i?B|GB/s)\b")


def fitted(blocks: Sequence[Block], width: int) -> str:
    """The blocks in at most `width` columns; code and words that are longer stay whole."""
    return "\n\n".join("\n".join(_lines(block, width)) for block in blocks)


def plain(text: str) -> str:
    """The text without marks of emphasis."""
    return text.replace("**", "")


def _lines(block: Block, width: int) -> list[str]:
    match block:
        case Heading(text, level):
            return [*_sentence(text, width), *([RULE * min(len(text), width)] if level < HEADINGS else [])]
        case Items(texts):
            return [line for text in texts for line in _sentence(f"- {text}", width)]
        case Table():
            return _table(block, width)
        case Picture(title, address):
            return [f"{title}: {address}"]
        case Code(text, language):
            return [f"```{language}", *text.split("\n"), "```"]
        case Fold(summary, inner):
            return [*_sentence(summary, width), "", *fitted(inner, width).split("\n")]
        case str():
            return [part for line in block.split("\n") for part in _sentence(line, width)]


def _sentence(line: str, width: int) -> list[str]:
    """A line, wrapped; what follows an item of a list is indented with it."""
    line = plain(line)
    if len(line) <= width:
        return [line]
    mark = _MARK.match(line)
    indent = " " * (len(mark[0]) if mark else 0)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(line) or [line]


def _table(table: Table, width: int) -> list[str]:
    """The lines of a table whose columns are narrowed until it fits; else its rows one below the other.

    A number and its unit stay on one line: a character that is no space stands between them while rich wraps cells.
    """
    cells = [[_UNIT.sub(rf"\1{NO_BREAK}\2", cell) for cell in row] for row in (table.headers, *table.rows)]
    columns = list(zip(*cells, strict=True))
    longest_words = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in columns]
    widths = _narrowed([max(map(cell_len, column)) for column in columns], longest_words, width)
    if widths is None:
        return [line.replace(NO_BREAK, " ") for line in _records(cells[0], cells[1:], width)]
    drawn = Drawn(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    drawn.show_header = any(table.headers)
    for header, column_width, align in zip(cells[0], widths, table.aligned, strict=True):
        drawn.add_column(Text(header), width=column_width, justify=align)
    for row in cells[1:]:
        drawn.add_row(*map(Text, row))
    out = io.StringIO()
    # Wider than asked: rich must not narrow the columns again.
    Console(file=out, width=2 * width, color_system=None).print(drawn)
    lines = [line.replace(NO_BREAK, " ").rstrip() for line in out.getvalue().rstrip("\n").split("\n")]
    # rich draws the rule below the headers as far as the padding goes.
    return [line[:-1] if set(line) == {RULE} else line for line in lines]


def _narrowed(widths: list[int], least: Sequence[int], width: int) -> list[int] | None:
    """Widths of columns that fit: the widest are narrowed first, down to their longest word. None if that fails."""
    available = width - GAP * (len(widths) - 1)
    while sum(widths) > available:
        wide = [number for number, column_width in enumerate(widths) if column_width > least[number]]
        if not wide:
            return None
        widths[max(wide, key=lambda number: widths[number])] -= 1
    return widths


def _records(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Each row by itself: its first cell, and the others with their headers below it."""
    for row in rows:
        yield from _sentence(row[0], width)
        for header, cell in zip(headers[1:], row[1:], strict=True):
            if cell:
                yield from _sentence(f"    {header}: {cell}", width)
