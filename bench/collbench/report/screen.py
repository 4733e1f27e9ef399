"""Write blocks for a terminal: tables and sentences of at most its width.

rich's own Markdown was tried: it centres headings, ends items with bullets of its own, and cuts the cells of tables
that are too wide. Here such a table becomes records. Loads no renderer of Markdown.
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

from collbench.report.blocks import UNIT, Block, Code, Fold, Heading, Items, Picture, Table

# Spaces between two columns.
GAP = 2
RULE = "─"
# From this level on, headings have no line below them.
HEADINGS = 3
# Replaces a space while lines are broken, because rich breaks at every character that Unicode calls a space.
NO_BREAK = "\ue000"
# Beginning of an item or of an indented line: the lines that follow get the same indent.
_MARK = re.compile(r"^(\s*)([-*] |\d+\. )?")


def fitted(blocks: Sequence[Block], width: int) -> str:
    """Write the blocks in at most `width` columns; code and words that are longer stay whole."""
    return "\n\n".join("\n".join(_lines(block, width)) for block in blocks)


def plain(text: str) -> str:
    """Return the text without marks of emphasis."""
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
    """Wrap a line; the further lines of a list's item are indented with the item."""
    line = plain(line)
    if len(line) <= width:
        return [line]
    mark = _MARK.match(line)
    indent = " " * (len(mark[0]) if mark else 0)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(line) or [line]


def _table(table: Table, width: int) -> list[str]:
    """Return the lines of a table whose columns are narrowed until it fits; if that fails, its rows as records.

    A number and its unit stay on one line: NO_BREAK replaces the space between them while rich wraps cells.
    """
    cells = [[UNIT.sub(rf"\1{NO_BREAK}\2", cell) for cell in row] for row in (table.headers, *table.rows)]
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
    # Wider than necessary: rich must not narrow the columns again.
    Console(file=out, width=2 * width, color_system=None).print(drawn)
    lines = [line.replace(NO_BREAK, " ").rstrip() for line in out.getvalue().rstrip("\n").split("\n")]
    # rich draws the rule below the headers into the padding, one character too far.
    return [line[:-1] if set(line) == {RULE} else line for line in lines]


def _narrowed(widths: list[int], least: Sequence[int], width: int) -> list[int] | None:
    """Return widths of columns that fit: the widest are narrowed first, to their longest word. None if that fails."""
    available = width - GAP * (len(widths) - 1)
    while sum(widths) > available:
        wide = [number for number, column_width in enumerate(widths) if column_width > least[number]]
        if not wide:
            return None
        widths[max(wide, key=lambda number: widths[number])] -= 1
    return widths


def _records(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield the lines of each row as a record: its first cell, and below it the other cells with their headers."""
    for row in rows:
        yield from _sentence(row[0], width)
        for header, cell in zip(headers[1:], row[1:], strict=True):
            if cell:
                yield from _sentence(f"    {header}: {cell}", width)
