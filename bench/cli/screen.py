"""Print text for people as wide as the terminal is; 80 columns where nobody tells."""

import shutil
import textwrap

import typer

from bench.report.screen import fitted


def show(text: str) -> None:
    """Print Markdown. What programs read is printed as it is, without this."""
    typer.echo(fitted(text, _columns()))


def show_hanging(first: str, text: str) -> None:
    """Print a word or two, and behind them a text whose further lines begin where its first line does."""
    typer.echo(textwrap.fill(first + text, _columns(), subsequent_indent=" " * len(first), break_on_hyphens=False))


def _columns() -> int:
    return shutil.get_terminal_size((80, 24)).columns
