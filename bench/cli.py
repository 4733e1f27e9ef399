"""The verbs. The only place that prints and that picks exit codes.

    0 good    1 measured, but something failed or was wrong    2 usage, configuration or file error
    3 nothing could be measured or compared here    130 interrupted

Each verb is short: it reads, calls one or two modules and prints. Modules that take long to load are loaded
where they are needed, so that `--help`, `plan` and `list` answer at once.
"""

import contextlib
import functools
import importlib
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from bench import __version__, store
from bench.errors import BenchError, StoreError, UnmeasurableError
from bench.records import Json, Plan, Run, Summary

RESULTS, PLOTS, CONFIGS = Path("results"), Path("plots"), Path("configs")
INTERRUPTED = 130
# What the end of a run needs; loaded while the fork server loads torch, so that it costs no time.
LOADED_MEANWHILE = ("bench.analyze.stats", "bench.analyze.trust", "bench.present.report", "bench.present.plots")

app = typer.Typer(
    name="collbench",
    help="Benchmarks of collective communication (torch.distributed) whose numbers say how far to trust them.",
    no_args_is_help=True,
    add_completion=False,
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

    app.command(name=function.__name__.rstrip("_"))(guarded)
    return function


class Format(StrEnum):
    """Formats of a report on stdout."""

    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


class Listing(StrEnum):
    """What `list` can list."""

    RUNS = "runs"
    OPERATIONS = "operations"
    BACKENDS = "backends"
    CONFIGS = "configs"


ConfigFile = Annotated[Path, typer.Argument(help="A YAML file, such as configs/gloo.yaml.", metavar="CONFIG")]
Sets = Annotated[
    list[str], typer.Option("--set", help="Override one setting, such as sampling.iterations=20.", metavar="KEY=VALUE")
]
RunName = Annotated[
    str | None, typer.Argument(help="A run: its folder or name; the newest if left out.", metavar="RUN")
]


# ── run ──────────────────────────────────────────────────────────────────────────────────────────
@verb
def run(
    config: Annotated[
        Path | None, typer.Argument(help="A YAML file, such as configs/gloo.yaml.", metavar="CONFIG")
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    resume: Annotated[str | None, typer.Option(help="Measure what is missing in this run.", metavar="RUN")] = None,
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.")] = True,
) -> int:
    """Measure a sweep; ends with a table, a report and plots."""
    if (config is None) == (resume is None):
        raise BenchError("run: give a configuration (run configs/gloo.yaml), or --resume RUN, not both")
    if resume is not None:
        if sets:
            raise BenchError("run --resume: goes on with the settings of the run, so --set is not possible")
        path = store.find(RESULTS, resume)
        started = store.read(path)
        return _measure(path, started.plan, started.environment, plots)
    assert config is not None  # noqa: S101 - one of the two is given
    plan, raw = _plan(config, sets)
    if plan.total == 0:
        raise UnmeasurableError(f"{config}: nothing can be measured here: {_reasons(plan)}")
    facts = {"argv": sys.argv[1:], "overrides": sets, "collbench": __version__}
    return _measure(store.create(RESULTS, plan, raw, facts), plan, [], plots)


def _plan(config: Path, sets: list[str]) -> tuple[Plan, bytes]:
    from bench import config as configuration
    from bench import plan as planning
    from bench.measure import environment

    obstacle = environment.platform_obstacle()
    if obstacle:
        raise UnmeasurableError(obstacle)
    settings, raw = configuration.load(config, sets)
    seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
    return planning.expand(settings, environment.machine(), seed), raw


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
        done = {(samples.case.key, samples.launch) for samples in store.read(path).samples} if sessions else set()
        if len(done) < plan.total:
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
    from bench.analyze import stats, trust
    from bench.present import report

    result = store.read(path)
    summaries = stats.summarize(result)
    typer.echo(report.summary_tables(summaries))
    typer.echo("\n" + report.method_line(result, summaries))
    for warning in trust.warnings_of(result, summaries):
        typer.echo(f"note: {warning}")
    written = _write_report(result, summaries, plots)
    typer.echo("\n" + "\n".join(str(file) for file in written))
    failed = sum(1 for samples in result.samples if samples.failure is not None)
    if failed:
        typer.echo(f"{failed} of {len(result.samples)} measurements failed; the report says why", err=True)
    return 1 if failed else 0


# ── plan, report, plots, compare ─────────────────────────────────────────────────────────────────
@verb
def plan(config: ConfigFile, sets: Sets = []) -> None:  # noqa: B006 - typer reads the default
    """Show what a run would do and how long it would take, without starting anything."""
    from bench.present import listings

    planned, _ = _plan(config, sets)
    typer.echo(listings.plan(planned))
    if planned.total == 0:
        raise UnmeasurableError(f"{config}: nothing can be measured here: {_reasons(planned)}")


@verb
def report(
    run: RunName = None,
    format: Annotated[Format | None, typer.Option(help="Write this to stdout instead of files.")] = None,  # noqa: A002
) -> None:
    """Rebuild a run's report from its samples, and print its tables."""
    from bench.analyze import stats, trust
    from bench.present import report as reports
    from bench.present import tables

    result = store.read(store.find(RESULTS, run))
    summaries = stats.summarize(result)
    match format:
        case Format.CSV:
            typer.echo(tables.to_csv(summaries), nl=False)
        case Format.JSON:
            typer.echo(tables.to_json(summaries))
        case Format.MARKDOWN:
            typer.echo(reports.build(result, summaries, trust.warnings_of(result, summaries), [], ""), nl=False)
        case None:
            typer.echo(reports.summary_tables(summaries))
            typer.echo("\n" + "\n".join(str(file) for file in _write_report(result, summaries, plots=False)))


@verb
def plots(runs: Annotated[list[str] | None, typer.Argument(help="One run, or several to compare.")] = None) -> None:
    """Draw a run's plots; with several runs, compare each with the first."""
    from bench.analyze import stats

    if runs and len(runs) > 1:
        for other in runs[1:]:
            _compare(runs[0], other, None)
        return
    result = store.read(store.find(RESULTS, runs[0] if runs else None))
    typer.echo("\n".join(str(file) for file in _write_report(result, stats.summarize(result), plots=True)))


@verb
def compare(
    before: Annotated[str, typer.Argument(help="The earlier run.", metavar="BEFORE")],
    after: Annotated[str, typer.Argument(help="The later run.", metavar="AFTER")],
    format: Annotated[Format | None, typer.Option(help="Only this, to stdout; no picture.")] = None,  # noqa: A002
) -> None:
    """Lay two runs side by side: the ratio of each common case with its interval."""
    _compare(before, after, format)


def _compare(before: str, after: str, format: Format | None) -> None:  # noqa: A002
    from bench.analyze import stats
    from bench.analyze.compare import compare as laid_side_by_side
    from bench.present import tables

    old, new = (store.read(store.find(RESULTS, name)) for name in (before, after))
    result = laid_side_by_side(old, new, stats.summarize(old), stats.summarize(new))
    if format is Format.JSON:
        typer.echo(json.dumps(tables.comparison_rows(result), indent=1))
        return
    if format is Format.CSV:
        typer.echo(tables.comparison_csv(result), nl=False)
        return
    typer.echo(tables.comparison_document(result))
    if format is None:
        from bench.present import plots as pictures

        typer.echo(f"\n{pictures.draw_comparison(result, PLOTS / f'{old.name}-vs-{new.name}')}")


def _write_report(result: Run, summaries: Sequence[Summary], plots: bool) -> list[Path]:
    """summary.csv, report.md and report.html, with pictures where they are drawn now or exist already."""
    from bench.analyze import trust
    from bench.present import report, tables

    folder = PLOTS / result.path.resolve().name
    if plots:
        from bench.present import plots as pictures

        drawn = pictures.draw(result, summaries, folder)
    else:
        drawn = [(title, name) for name, title in report.PICTURES.items() if (folder / f"{name}.png").is_file()]
    address = os.path.relpath(folder, result.path)
    text = report.build(result, summaries, trust.warnings_of(result, summaries), drawn, address)
    files = {f"{address}/{name}.png": folder / f"{name}.png" for _, name in drawn}
    written = {
        "summary.csv": tables.to_csv(summaries),
        "report.md": text,
        "report.html": report.page(text, result.name, files),
    }
    for name, content in written.items():
        store.write(result.path / name, content)
    return [*(result.path / name for name in written), *([folder] if drawn else [])]


# ── list, doctor, schema ─────────────────────────────────────────────────────────────────────────
@verb
def list_(what: Annotated[Listing, typer.Argument(help="What to list.")] = Listing.RUNS) -> None:
    """List runs, operations, backends or configurations."""
    from bench.present import listings

    match what:
        case Listing.RUNS:
            found = [(path, store.read_manifest(path)) for path in store.runs(RESULTS)]
            typer.echo(listings.runs(found) if found else f"no runs in {RESULTS} yet; make one: run configs/gloo.yaml")
        case Listing.OPERATIONS:
            typer.echo(listings.operations())
        case Listing.BACKENDS:
            from bench.measure import environment

            typer.echo(listings.backends(environment.machine().backends_missing))
        case Listing.CONFIGS:
            typer.echo(listings.configs(sorted(CONFIGS.glob("*.yaml"))))


@verb
def doctor() -> int:
    """Say what this machine can measure, and what stands in the way."""
    from bench.measure import doctor as examination
    from bench.measure import environment

    machine = environment.machine()
    signs = {"ok": "ok  ", "note": "note", "missing": "NO  "}
    findings = [*examination.examine(machine)]
    for finding in findings:
        typer.echo(_line_of(signs[finding.level], finding))
    if "gloo" in machine.backends_missing:
        return UnmeasurableError.exit_code
    trial = examination.trial()
    typer.echo(_line_of(signs[trial.level], trial))
    return 0 if trial.level == "ok" else 1


def _line_of(sign: str, finding: Any) -> str:
    remedy = f"  → {finding.remedy}" if finding.remedy else ""
    return f"{sign}  {finding.subject:<14} {finding.text}{remedy}"


@verb
def schema() -> None:
    """Print the JSON Schema of the configuration (make schema keeps it in configs/schema.json)."""
    from bench.config import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=1, ensure_ascii=False))


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(f"collbench {__version__}")
        raise typer.Exit
