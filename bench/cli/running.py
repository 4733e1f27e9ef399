"""Verbs that measure or plan to: `run`, `plan`."""

import contextlib
import importlib
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bench import __version__, store
from bench.cli.app import RESULTS, Sets, verb
from bench.cli.flags import Given, Source, source, with_flags
from bench.cli.reading import write_report
from bench.errors import BenchError, StoreError, UnmeasurableError
from bench.records import Json, Plan
from bench.shorthand import Asked
from bench.units import parse_share

NO_FLAGS = Given(Asked({}))
# What the end of a run needs; loaded while the fork server loads torch, so that it costs no time.
LOADED_MEANWHILE = ("bench.analyze.conclude", "ruptures", "bench.present.report", "bench.present.plots")


@verb
@with_flags
def run(
    config: Annotated[
        Path | None, typer.Argument(help="A YAML file, such as configs/gloo.yaml.", metavar="CONFIG")
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    resume: Annotated[str | None, typer.Option(help="Measure what is missing in this run.", metavar="RUN")] = None,
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.")] = True,
    given: Given = NO_FLAGS,
) -> int:
    """Measure a sweep; ends with a table, a report and plots. Flags of nccl-tests are taken in place of a CONFIG."""
    if (config is None and not given) == (resume is None):
        raise BenchError(
            "run: give a configuration (run configs/gloo.yaml), or nccl-tests' flags (run -b 8 -e 128M -f 2 -g 2), "
            "or --resume RUN, not both"
        )
    if resume is not None:
        if sets:
            raise BenchError("run --resume: goes on with the settings of the run, so --set is not possible")
        path = store.find(RESULTS, resume)
        started = store.read(path)
        return _measure(path, started.plan, started.environment, plots)
    asked = source("run", config, given)
    typer.echo(asked.shown, nl=bool(asked.shown))
    plan = _plan(asked, sets)
    if plan.total == 0:
        raise UnmeasurableError(f"{asked.name}: nothing can be measured here: {_reasons(plan)}")
    facts = {"argv": sys.argv[1:], "overrides": sets, "collbench": __version__}
    return _measure(store.create(RESULTS, plan, asked.raw, facts), plan, [], plots)


def _plan(asked: Source, sets: list[str]) -> Plan:
    from bench import config as configuration
    from bench import plan as planning
    from bench.measure import environment

    obstacle = environment.platform_obstacle()
    if obstacle:
        raise UnmeasurableError(obstacle)
    settings = configuration.parse(asked.raw, asked.name, sets, asked.default_name)
    seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
    return planning.expand(settings, environment.machine(), seed)


def _reasons(plan: Plan) -> str:
    distinct = list(dict.fromkeys(skip.reason for skip in plan.skips))
    return distinct[0] + (f" (and {len(distinct) - 1} other reasons: see plan)" if len(distinct) > 1 else "")


def _measure(path: Path, plan: Plan, sessions: list[Json], plots: bool) -> int:
    from rich.console import Console

    from bench.measure import environment
    from bench.measure.launcher import Launcher
    from bench.measure.sweep import sweep
    from bench.present.progress import Bar

    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, _as_interrupt)
    with store.Journal(path) as journal:
        done = store.read(path).samples if sessions else []
        if len(done) < plan.total or plan.budget_s is not None:
            with _marked(path), Launcher() as launcher, Bar(console, plan.total, len(done)) as bar:
                loading = threading.Thread(target=_load_meanwhile, daemon=True)
                loading.start()
                session: Json = {"host": environment.host(), "before": environment.state()}
                store.write_environment(path, [*sessions, session])
                launches: list[Json] = []
                try:
                    sweep(plan, done, launcher, journal.append, path / store.LOG, launches.append, bar, loading.join)
                finally:
                    session |= {"after": environment.state(), "launches": launches}
                    with contextlib.suppress(StoreError):  # a full disk has been said already
                        store.write_environment(path, [*sessions, session])
    return _conclude(path, plots)


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _marked(path: Path) -> Iterator[None]:
    """Say in the manifest how the run ended, and to the user what can be done about it."""

    def mark(status: str) -> None:
        store.update_manifest(path, status=status, finished=datetime.now(UTC).isoformat(timespec="seconds"))

    try:
        store.update_manifest(path, status="running")
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(StoreError):
            mark("interrupted")
        typer.echo(f"interrupted; what was measured is kept, go on with: run --resume {path}", err=True)
        raise
    except BaseException:
        with contextlib.suppress(StoreError):
            mark("failed")
        raise
    mark("complete")


def _load_meanwhile() -> None:
    for name in LOADED_MEANWHILE:
        importlib.import_module(name)


def _conclude(path: Path, plots: bool) -> int:
    """Table, plots, report of a run that has ended; the exit code."""
    from bench.analyze.conclude import conclude
    from bench.present import report

    result = store.read(path)
    analysis = conclude(result)
    typer.echo(report.summary_tables(analysis.summaries))
    typer.echo("\n" + report.method_line(result, analysis.summaries))
    for note in (*analysis.warnings, *(f.text for f in (*analysis.diagnosis.findings, *analysis.inconsistencies))):
        typer.echo(f"note: {note}")
    written = write_report(result, analysis, plots)
    typer.echo("\n" + "\n".join(str(file) for file in written))
    failed = sum(1 for samples in result.samples if samples.failure is not None)
    if failed:
        typer.echo(f"{failed} of {len(result.samples)} measurements failed; the report says why", err=True)
    return 1 if failed else 0


@verb
@with_flags
def plan(
    config: Annotated[
        Path | None, typer.Argument(help="A YAML file, such as configs/gloo.yaml.", metavar="CONFIG")
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    pilot: Annotated[
        str | None, typer.Option("--from", help="A run: say what one like it needs to be precise.", metavar="RUN")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="With --from: wanted half-width of the intervals.", metavar="SHARE")
    ] = "5%",
    given: Given = NO_FLAGS,
) -> None:
    """Show what a run would do and how long it would take, without starting anything; or --from RUN what it needs."""
    from bench.present import listings

    if (config is None and not given) == (pilot is None):
        raise BenchError(
            "plan: give a configuration (plan configs/gloo.yaml), or nccl-tests' flags (plan -b 8 -e 128M -f 2 -g 2), "
            "or --from RUN, not both"
        )
    if pilot is not None:
        _needs(pilot, precision)
        return
    asked = source("plan", config, given)
    typer.echo(asked.shown, nl=bool(asked.shown))
    planned = _plan(asked, sets)
    typer.echo(listings.plan(planned))
    if planned.total == 0:
        raise UnmeasurableError(f"{asked.name}: nothing can be measured here: {_reasons(planned)}")


def _needs(name: str, precision: str) -> None:
    """How many launches and iterations a run like this one needs."""
    from bench.analyze.pilot import needs
    from bench.analyze.stats import summarize
    from bench.present import findings

    try:
        wanted = parse_share(precision)
    except ValueError as error:
        raise BenchError(f"--precision: {error}") from None
    run = store.read(store.find(RESULTS, name))
    typer.echo(findings.needs(needs(run, summarize(run), wanted), wanted))
