"""Fit the Markdown of a report to the width of a terminal.

In: Markdown and a number of columns. Out: text, no line of which is wider, but for words that are, and code. Tables
lose their bars; cells and sentences are wrapped. A table that has too many columns for the width becomes one block a
row.
"""

import io
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Spaces between two columns.
GAP = 2
RULE = "─"
TABLE, CODE, PROSE = "table", "code", "prose"
# Stands for a space while lines are broken; rich breaks at every character that Unicode calls a space.
NO_BREAK = "\ue000"
_MARK = re.compile(r"^(\s*)([-*] |\d+\. )?")
# A number and its unit, which stay in one line.
_UNIT = re.compile(r"(\d) ([nµm]?s|min|h|[KMGT]?i?B|GB/s)\b")


def fitted(text: str, width: int) -> str:
    """The text with tables and sentences of at most `width` columns."""
    fitting: list[str] = []
    for kind, group in itertools.groupby(_with_kinds(text), key=lambda pair: pair[0]):
        lines = [line for _, line in group]
        if kind == TABLE:
            fitting += _table(lines, width)
        else:
            fitting += lines if kind == CODE else [part for line in lines for part in _sentence(line, width)]
    return "\n".join(fitting)


def _with_kinds(text: str) -> Iterator[tuple[str, str]]:
    """Each line, with what it is part of."""
    in_code = False
    for line in text.split("\n"):
        fence = line.startswith("```")
        yield CODE if in_code or fence else TABLE if line.startswith("|") else PROSE, line
        in_code ^= fence


def _sentence(line: str, width: int) -> list[str]:
    """A line, wrapped; what follows an item of a list is indented with it."""
    line = line.replace("**", "")
    if len(line) <= width:
        return [line]
    mark = _MARK.match(line)
    indent = " " * (len(mark[0]) if mark else 0)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(line) or [line]


def _table(lines: Sequence[str], width: int) -> list[str]:
    cells = [[_unbroken(cell.strip()) for cell in _split(line)] for line in lines if not _is_rule(line)]
    right = [mark.endswith(":") for line in lines if _is_rule(line) for mark in _split(line)]
    headers, *rows = cells
    columns = list(zip(*cells, strict=False))
    widths = _narrowed([max(map(cell_len, column)) for column in columns], list(map(_longest_word, columns)), width)
    if widths is None:
        return [line.replace(NO_BREAK, " ") for line in _records(headers, rows, width)]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    table.show_header = any(headers)
    for header, column_width, is_right in zip(headers, widths, right, strict=False):
        table.add_column(Text(header), width=column_width, justify="right" if is_right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    out = io.StringIO()
    # Wider than asked: rich must not narrow the columns again.
    Console(file=out, width=2 * width, color_system=None).print(table)
    drawn = [line.replace(NO_BREAK, " ").rstrip() for line in out.getvalue().rstrip("\n").split("\n")]
    # rich draws the rule below the headers as far as the padding goes.
    return [line[:-1] if set(line) == {RULE} else line for line in drawn]


def _split(line: str) -> list[str]:
    return line.strip().removeprefix("|").removesuffix("|").split("|")


def _is_rule(line: str) -> bool:
    """Whether it is the line below the headers, which says how columns are aligned."""
    return not line.strip("|:- ")


def _unbroken(cell: str) -> str:
    return _UNIT.sub(rf"\1{NO_BREAK}\2", cell)


def _longest_word(column: Sequence[str]) -> int:
    return max((cell_len(word) for cell in column for word in cell.split(" ")), default=0)


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
        for header, cell in zip(headers[1:], row[1:], strict=False):
            if cell:
                yield from _sentence(f"    {header}: {cell}", width)
