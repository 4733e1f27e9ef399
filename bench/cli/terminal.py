"""Print: the only door to the terminal.

What is printed may quote files of others: names of hosts, failures, labels. None of it reaches the terminal as anything
but text.
"""

import re

import typer

from bench.model.errors import BenchError
from bench.model.notices import Notice
from bench.model.visible import visible

# Verdicts, and their colours where the terminal has them.
COLOURED = (
    (re.compile(r"\b(SLOWER|FAIL|WRONG|DEFECT|MISSING)\b"), "red"),
    (re.compile(r"\b(FASTER|SAME|PASS)\b"), "green"),
    (re.compile(r"\b(INCONCLUSIVE|INCOMPLETE)\b"), "yellow"),
)


def say_verdict(text: str) -> None:
    """Print a text on stdout whose verdicts are coloured on a terminal, unless NO_COLOR is set."""
    from rich.console import Console  # imported here: help does not wait for it

    text, console = visible(text), Console()
    for pattern, colour in COLOURED if console.is_terminal and not console.no_color else ():
        text = pattern.sub(lambda found, colour=colour: typer.style(found[0], fg=colour, bold=True), text)  # type: ignore[misc]
    typer.echo(text)


def error_text(error: BenchError) -> str:
    """What an error says, with the sentences of its reasons."""
    from bench.report.notices import sentence  # imported here: most commands end without an error

    reasons = dict.fromkeys(sentence(one) if isinstance(one, Notice) else one for one in error.reasons)
    return BenchError(": ".join(filter(None, [error.text, "; ".join(reasons)]))).text if reasons else error.text


def say(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print a text, with control characters written out. err: to stderr. nl: with a line break behind it."""
    typer.echo(visible(str(text)), err=err, nl=nl)
