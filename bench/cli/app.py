"""The command line itself: how a verb is registered, how its errors become one line and an exit code.

    0 good    1 measured, but something failed, was wrong or got slower    2 usage, configuration or file error
    3 nothing could be measured or compared here    130 interrupted

Verbs are short: they read, call one or two modules and print. Modules that take long to load are loaded
where they are needed, so that `--help`, `plan` and `list` answer at once.
"""

import functools
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from bench import __version__
from bench.errors import BenchError

RESULTS, PLOTS, CONFIGS = Path("results"), Path("plots"), Path("configs")
INTERRUPTED = 130
HELP = {"help_option_names": ["--help", "-h"]}

app = typer.Typer(
    name="collbench",
    help="Benchmarks of collective communication (torch.distributed) whose numbers say how far to trust them.",
    no_args_is_help=True,
    add_completion=False,
    context_settings=HELP,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 good, 1 something failed, 2 usage or file error, 3 nothing to measure here, 130 interrupted.",
)

F = TypeVar("F", bound=Callable[..., Any])


def verb(function: F) -> F:
    """Register a verb; its errors become one line and an exit code."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            code = function(*args, **kwargs) or 0
        except BenchError as error:
            typer.echo(f"error: {error}", err=True)
            code = error.exit_code
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:  # the reader of our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        raise typer.Exit(code)

    app.command(name=function.__name__.rstrip("_"), context_settings=HELP)(guarded)
    return function


class Format(StrEnum):
    """Formats of a report on stdout."""

    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"
    NCCL_TESTS = "nccl-tests"
    COVERAGE = "coverage"


Sets = Annotated[
    list[str], typer.Option("--set", help="Override one setting, such as sampling.iterations=20.", metavar="KEY=VALUE")
]
RunName = Annotated[
    str | None, typer.Argument(help="A run: its folder or name; the newest if left out.", metavar="RUN")
]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(f"collbench {__version__}")
        raise typer.Exit
