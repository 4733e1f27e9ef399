"""The command line: a table of verbs; an error becomes one line and an exit code.

    0 good    1 measured, but something failed, was wrong or got slower    2 usage, configuration or file error
    3 nothing could be measured or compared here    70 internal error: nothing was concluded    130 interrupted

A verb's module is loaded only when that verb is called, so `--help` and the verbs that load little answer quickly.
Verbs are short: they read, call one or two modules and print.
"""

import errno
import functools
import glob
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from collbench import __version__
from collbench.catalog.package import JobKind, Verb
from collbench.catalog.registry import PACKAGES
from collbench.cli.terminal import error_text, open_streams, say
from collbench.config import names
from collbench.machine import environment
from collbench.model.deferred import Deferred
from collbench.model.errors import INTERRUPTED, UNEXPECTED, BenchError, reason_of

RESULTS, PLOTS = Path("results"), Path("plots")
NAME = "collbench"
HELP = {"help_option_names": ["--help", "-h"]}
DESCRIPTION = "Benchmarks of collective communication (torch.distributed) whose numbers say how far to trust them."
EXIT_CODES = (
    "Exit codes: 0 good, 1 something failed, 2 usage or file error, 3 nothing measured or decided, 70 internal "
    "error (please report), 130 interrupted."
)


def configs(incomplete: str) -> list[str]:
    """Complete the name or the path of a configuration."""
    shipped = [path.stem for path in names.files()]
    pattern = Path(f"{glob.escape(incomplete)}*.yaml")
    return shipped + sorted(str(path) for path in Path(f"{incomplete}*").parent.glob(pattern.name))


def _runs() -> list[str]:
    """Return the names of the runs in results/."""
    return sorted(path.parent.name for path in RESULTS.glob("*/manifest.json"))


Sets = Annotated[
    list[str], typer.Option("--set", help="Override one setting, such as sampling.iterations=20.", metavar="KEY=VALUE")
]
ConfigName = Annotated[
    Path,
    typer.Argument(help="A YAML file, or the name of a built-in one: gloo.", metavar="CONFIG", autocompletion=configs),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print one line only: the answer or the verdict.", metavar="")
]
RunName = Annotated[
    str | None,
    typer.Argument(help="A run: its folder or name (default: the newest).", metavar="RUN", autocompletion=_runs),
]


# Verbs, in the order in which they are used.
VERBS = {
    "run": Verb(
        "cli.run:run",
        "Measure",
        "Measure a configuration; ends with a table, a report and plots.",
        "run gloo",
        JobKind(
            "results are in results/",
            "The signal ends the run in order before its time is over; go on with: collbench resume RUN.",
        ),
        resumes=Deferred("cli.run:resume_run"),
    ),
    "resume": Verb(
        "cli.run:resume",
        "Measure",
        "Measure the missing cases of a run.",
        "resume docs/example/gloo",
    ),
    "ab": Verb(
        "cli.ab:ab",
        "Measure",
        "Is B slower than A? Two configurations, environments or Pythons, in turn.",
        "ab smoke --b OMP_NUM_THREADS=2 --budget 30s",
        resumes=Deferred("cli.run:resume_sides"),
    ),
    "report": Verb(
        "cli.look:report",
        "Look",
        "Print a run's tables; write its report and draw its pictures from its samples.",
        "report docs/example/gloo",
    ),
    "compare": Verb(
        "cli.compare:compare",
        "Look",
        "Did it change? Two runs, several runs, or two sides of one.",
        "compare docs/example/gloo --across world_size=2,4",
    ),
    "diagnose": Verb(
        "cli.look:diagnose",
        "Look",
        "Print which rank, node or link is slow, or that none can be named.",
        "diagnose docs/example/gloo",
    ),
    "list": Verb(
        "cli.look:list_",
        "Look",
        "List runs, operations, backends, configs, models, tables, variables or notices.",
        "list configs",
    ),
    "doctor": Verb(
        "cli.look:doctor", "Prepare", "Report what this machine can measure, and what prevents the rest.", "doctor"
    ),
    "plan": Verb(
        "cli.plan:plan", "Prepare", "Show the work and the duration of a run, without starting it.", "plan gloo"
    ),
    "show": Verb("cli.shipped:show", "Prepare", "Print a configuration, to begin one of your own.", "show gloo"),
    "schema": Verb("cli.shipped:schema", "Prepare", "Print the JSON Schema of configurations, for editors.", "schema"),
    "docs": Verb("cli.shipped:docs", "Look", "Print a page of the documentation, or list the pages.", "docs reading"),
    **{name: verb for package in PACKAGES for name, verb in package.verbs.items()},
}


class Verbs(TyperGroup):
    """The table of verbs in --help, under the headings of `VERBS`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs under each heading, with their help."""
        for panel in dict.fromkeys(verb.panel for verb in VERBS.values()):
            with formatter.section(panel):
                formatter.write_dl([(name, verb.help) for name, verb in VERBS.items() if verb.panel == panel])


def call(arguments: Sequence[str]) -> int:
    """Run the command line with these arguments and return the exit code."""
    backend = environment.take("MPLBACKEND")  # notebooks set it for programs that lack its package
    words = [*arguments, *environment.words_to_complete()]
    named = next((word for word in words if word in VERBS), None)
    open_streams()
    try:
        # With standalone_mode=False, exit codes are returned, including the code for Ctrl-C during parsing.
        app, given = _app(named), list(arguments)
        return int(app(given or ["--help"], prog_name=NAME, obj=given, standalone_mode=False))
    except typer.TyperException as error:
        say(f"error: {_usage(error, named)}", err=True)
        return BenchError.exit_code
    finally:
        environment.apply([("MPLBACKEND", backend)])


def _usage(error: Any, named: str | None) -> str:
    """Format a usage error as one line, with the verbs that are allowed or a pointer to --help. named: the verb."""
    text = " ".join(error.format_message().split()).rstrip(".")
    if unknown := re.match("No such command '(.*?)'", text):
        return f"{unknown[1]}: no such verb{names.allowed(unknown[1], [*VERBS])}"
    text = text.replace("Value error, ", "").replace("Input should", "it should")
    command = error.ctx.command_path if error.ctx else " ".join(filter(None, [NAME, named]))
    return f"{text[0].lower()}{text[1:]} (see: {command} --help)"


def _app(named: str | None) -> typer.Typer:
    """Make the app with all verbs. The verbs that are not called have only their name and help."""
    app = typer.Typer(
        name=NAME,
        cls=Verbs,
        help=DESCRIPTION,
        context_settings=HELP,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # loading rich alone would use up the time that --help may take
        epilog=EXIT_CODES,
    )
    app.callback(invoke_without_command=True)(_version)
    for name, verb in VERBS.items():
        function = verb.load() if name == named else lambda: None
        # Join the lines of each paragraph: line breaks of the source must not appear in --help.
        paragraphs = (" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n"))
        text = "\n\n".join(filter(None, [verb.help, *paragraphs]))
        example = f"Example: {NAME} {verb.example}"
        register = app.command(name, help=text, epilog=example, context_settings=HELP)
        register(_guarded(function))
    return app


def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", metavar="")] = False,
) -> None:
    if version:
        say(f"{NAME} {__version__}")
        raise typer.Exit


def _guarded(function: Callable[..., int | None]) -> Callable[..., None]:
    """Wrap a verb so that its errors become one line and an exit code."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        text, code = "", BenchError.exit_code
        try:
            code = function(*args, **kwargs) or 0
        except BenchError as error:
            text, code = error_text(error), error.exit_code
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:  # the reader has closed our stdout, as `head` does
            _print_no_more()
            code = 0
        except MemoryError:
            text = "a limit of memory is too low for this (ulimit -v, or the memory limit of a job)"
        except Exception as error:
            if isinstance(error, OSError) and error.filename is not None:
                text = str(BenchError(f"{error.filename}: {reason_of(error)}"))
            elif isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EIO}:
                _print_no_more()  # an error on a file names the file, so this is stdout
                text = f"stdout: {error.strerror}"
            else:
                text, code = _unexpected(error), UNEXPECTED
        if text:
            say(f"error: {text}", err=True)
        raise typer.Exit(code)

    return guarded


def _print_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(error: Exception) -> str:
    """Describe an unexpected error in one line, and write its traceback to a file if the disk has space."""
    text = f"internal error: {BenchError(type(error).__name__ + ': ' + str(error))}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="collbench-error-", suffix=".txt", delete=False
        ) as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError as full:
        return f"{text}; its traceback could not be written: {full}"
    return f"{text}; the traceback is in {file.name}: please report it"
