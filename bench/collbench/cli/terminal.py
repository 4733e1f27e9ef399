"""Print text, with control characters made visible.

The text may quote files of others: names of hosts, failures, labels. Such a quotation must not control the terminal.
All verbs print through this module.
"""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from collbench.model.errors import BenchError
from collbench.model.notices import Notice
from collbench.model.visible import visible

if TYPE_CHECKING:
    from collbench.report.blocks import Block

# Verdicts and their colours, on a terminal with colours.
COLOURED = (
    (re.compile(r"\b(SLOWER|FAIL|WRONG|DEFECT|MISSING)\b"), "red"),
    (re.compile(r"\b(FASTER|SAME|PASS)\b"), "green"),
    (re.compile(r"\b(INCONCLUSIVE|INCOMPLETE)\b"), "yellow"),
)


def show(blocks: "Sequence[Block]", quiet: bool = False, err: bool = False) -> None:
    """Print blocks for people, not for programs, fitted to the width of the terminal. err: print to stderr.

    Verdicts are coloured on a terminal, unless NO_COLOR is set. quiet: the first line of the first block, a text.
    """
    from rich.console import Console  # deferred imports: --help needs neither

    from collbench.report.screen import fitted, plain

    text = plain(str(blocks[0]).partition("\n")[0]) if quiet else fitted(blocks, _columns())
    text, console = visible(text), Console(stderr=err)
    for pattern, colour in COLOURED if console.is_terminal and not console.no_color else ():
        text = pattern.sub(lambda match, colour=colour: typer.style(match[0], fg=colour, bold=True), text)  # type: ignore[misc]
    typer.echo(text, err=err)


def show_hanging(first: str, text: str) -> None:
    """Print `first`, then `text` with a hanging indent: its further lines begin where its first line does."""
    say(textwrap.fill(first + text, _columns(), subsequent_indent=" " * len(first), break_on_hyphens=False))


def _columns() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def error_text(error: BenchError) -> str:
    """Return the text of an error, with the sentences of its reasons."""
    from collbench.report.notices import sentence  # deferred import: most commands end without an error

    reasons = dict.fromkeys(sentence(reason) if isinstance(reason, Notice) else reason for reason in error.reasons)
    return BenchError(": ".join(filter(None, [error.text, "; ".join(reasons)]))).text if reasons else error.text


def say(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print a text, with control characters made visible. err: print to stderr. nl: end with a line break."""
    typer.echo(visible(str(text)), err=err, nl=nl)


def open_streams() -> None:
    """Open the standard streams that were closed, which ranks inherit and write to, and let none refuse a character.

    Some daemons close them; a locale without UTF-8 has no words for what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r"))
        if number and hasattr(getattr(sys, name), "reconfigure"):  # a program that calls this may have its own
            getattr(sys, name).reconfigure(errors="replace")
