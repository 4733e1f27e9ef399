"""Write blocks for a terminal: tables and sentences of at most its width.

rich's own Markdown was tried: it centres headings, ends items with bullets of its own, and cuts the cells of tables
that are too wide. Here such a table becomes records. Loads no renderer.
"""

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from collbench.report.blocks import UNIT, Align, Block, Code, Fold, Heading, Items, Picture, Table

# Spaces between two columns.
GAP = 2
RULE = "─"
# From this level on, headings have no line below them.
HEADINGS = 3
# Replaces the space between a number and its unit while lines are broken.
NO_BREAK = "\N{NO-BREAK SPACE}"
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
    """Return the lines of a table whose columns are narrowed until it fits; if that fails, its rows as records."""
    cells = [[UNIT.sub(rf"\1{NO_BREAK}\2", cell) for cell in row] for row in (table.headers, *table.rows)]
    columns = list(zip(*cells, strict=True))
    longest_words = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in columns]
    widths = _narrowed([max(map(cell_len, column)) for column in columns], longest_words, width)
    if widths is None:
        return [line.replace(NO_BREAK, " ") for line in _records(cells[0], cells[1:], width)]
    head, *rows = ([_wrapped(cell, size) for cell, size in zip(row, widths, strict=True)] for row in cells)
    highest = max(map(len, head))
    head = [[""] * (highest - len(lines)) + lines for lines in head]
    rule = RULE * (sum(widths) + GAP * (len(widths) - 1))
    body = [line for row in rows for line in _side_by_side(row, widths, table.aligned)]
    return [*_side_by_side(head, widths, table.aligned), rule, *body] if any(table.headers) else body


def _wrapped(cell: str, width: int) -> list[str]:
    """Break a cell into lines between words, none of which is longer than the width."""
    first, *words = cell.split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        lines[-1:] = [longer] if cell_len(longer) <= width else [lines[-1], word]
    return lines


def _side_by_side(row: Sequence[Sequence[str]], widths: Sequence[int], aligned: Sequence[Align]) -> Iterator[str]:
    """Yield the lines of a row. row: the lines of each cell."""
    for texts in itertools.zip_longest(*row, fillvalue=""):
        blanks = [" " * (width - cell_len(text)) for text, width in zip(texts, widths, strict=True)]
        parts = zip(texts, blanks, aligned, strict=True)
        line = (" " * GAP).join(text + blank if align == "left" else blank + text for text, blank, align in parts)
        yield line.replace(NO_BREAK, " ").rstrip()


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
