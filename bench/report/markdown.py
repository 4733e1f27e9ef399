"""Markdown: tables and lists, which every text of a report is made of.

In: rows and items that are text already. Out: Markdown. Loads no pandas, so that verbs which only list things answer
quickly. `screen` fits the same Markdown to a terminal.
"""

from collections.abc import Iterable, Sequence

from tabulate import tabulate


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], align: Sequence[str] | None = None) -> str:
    """A table, its columns to the right unless `align` says so. Cells are text: no number is rounded again."""
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=align or ["right"] * len(headers))


def lines(items: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {item}" for item in items)


# A part that a reader opens, as GitHub shows it; each mark is a line of its own.
OPENED, CLOSED = "<details><summary>{}</summary>", "</details>"


def folded(summary: str, parts: Sequence[str]) -> list[str]:
    """Parts below a line that opens them; nothing if there are no parts."""
    return [OPENED.format(summary), *parts, CLOSED] if parts else []
