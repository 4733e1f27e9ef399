"""Print: the only door to the terminal.

What is printed may quote files of others: names of hosts, failures, labels. None of it reaches the terminal as anything
but text.
"""

import typer

from bench.model.visible import visible


def say(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print a text, with control characters written out. err: to stderr. nl: with a line break behind it."""
    typer.echo(visible(str(text)), err=err, nl=nl)
