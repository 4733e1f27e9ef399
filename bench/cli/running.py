"""Verbs that measure or plan to: `run`, `plan`."""

import contextlib
import secrets
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench import __version__, store
from bench.backends import BACKENDS
from bench.cli.app import RESULTS, Sets, verb
from bench.cli.flags import Given, Source, fingerprint, source, with_flags
from bench.cli.joining import together
from bench.cli.keeping import kept_session, load_all
from bench.cli.reading import write_report
from bench.cli.training import asks_for_training, plan_of_training, resume_training, run_training
from bench.errors import BenchError, UnmeasurableError
from bench.nccl_tests_flags import Asked
from bench.records import Json, Plan
from bench.report.launch_files import Launcher
from bench.units import parse_share

if TYPE_CHECKING:
    from bench.launch.coordinator import Lead

NO_FLAGS = Given(Asked({}))
# What the end of a run needs; loaded while the fork server loads torch, so that it costs no time.
LOADED_MEANWHILE = ("bench.analyze.analyze_run", "bench.report.document")


@verb
@with_flags
def run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(help="A YAML file, such as configs/gloo.yaml.", metavar="CONFIG")
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    resume: Annotated[str | None, typer.Option(help="Measure what is missing in this run.", metavar="RUN")] = None,
    plots: Annotated[bool, typer.Option(help="Draw the plots at the end.")] = True,
    given: Given = NO_FLAGS,
) -> int:
    """Measure a sweep; ends with a table, a report and plots. Under torchrun, srun or mpirun: all ranks together.

    In place of a CONFIG, flags of nccl-tests are taken.
    """
    if (config is None and not given) == (resume is None):
        raise BenchError(
            "run: give a configuration (run configs/gloo.yaml), or nccl-tests' flags (run -b 8 -e 128M -f 2 -g 2), "
            "or --resume RUN, not both"
        )
    if resume is not None:
        if sets:
            raise BenchError("run --resume: goes on with the settings of the run, so --set is not possible")
        name = resume
        return together(lambda lead: _resume(name, plots, lead), lambda: f"resume {name}".encode())
    return together(
        lambda lead: _run(source("run", config, given, lead), sets, plots, lead, context.obj),
        lambda: b"\0".join([fingerprint(config, given), *map(str.encode, sets)]),
    )


def _run(asked: Source, sets: list[str], plots: bool, lead: "Lead | None", argv: list[str]) -> int:
    typer.echo(asked.shown, nl=bool(asked.shown))
    if asks_for_training(asked):
        return run_training(asked, sets, plots, lead, argv)
    plan = _plan(asked, sets, lead)
    if plan.total == 0:
        raise UnmeasurableError(f"{asked.name}: nothing can be measured here: {_reasons(plan)}")
    facts = {"argv": argv, "overrides": sets, "collbench": __version__}
    return _measure(store.create(RESULTS, plan, asked.raw, facts), plan, [], plots, lead)


def _resume(name: str, plots: bool, lead: "Lead | None") -> int:
    path = store.find(RESULTS, name)
    if store.is_training(store.read_manifest(path)):
        return resume_training(path, plots, lead)
    started = store.read(path)
    if lead is not None:
        cases = started.plan.cases
        on_gpus = any(BACKENDS[case.backend].device == "cuda" for case in cases)
        machine = lead.machine(on_gpus, any(case.oversubscribed for case in cases))
        largest = max(case.world_size for case in cases)
        if largest > (machine.ranks or 0):
            raise BenchError(f"{path}: has world sizes up to {largest}, and this job has {machine.ranks} ranks only")
    return _measure(path, started.plan, started.environment, plots, lead)


def _plan(asked: Source, sets: list[str], lead: "Lead | None" = None) -> Plan:
    from bench import config as configuration
    from bench import plan as planning
    from bench.machine import environment

    obstacle = environment.platform_obstacle()
    if obstacle:
        raise UnmeasurableError(obstacle)
    settings = configuration.parse(asked.raw, asked.name, sets, asked.default_name)
    seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
    on_gpus = any(BACKENDS[name].device == "cuda" for name in settings.backends)
    machine = environment.machine() if lead is None else lead.machine(on_gpus, settings.oversubscribe_gpu)
    return planning.expand(settings, machine, seed)


def _reasons(plan: Plan) -> str:
    distinct = list(dict.fromkeys(skip.reason for skip in plan.skips))
    return distinct[0] + (f" (and {len(distinct) - 1} other reasons: see plan)" if len(distinct) > 1 else "")


def _measure(path: Path, plan: Plan, sessions: list[Json], plots: bool, lead: "Lead | None") -> int:
    from rich.console import Console

    from bench.launch.starters import ByBackend
    from bench.launch.sweep import sweep
    from bench.report.progress import Bar

    console = Console(stderr=True)
    with store.Journal(path) as journal:
        done = store.read(path).samples if sessions else []
        if len(done) < plan.total or plan.budget_s is not None:
            starter = ByBackend() if lead is None else contextlib.nullcontext(lead.launcher)
            session = kept_session(path, sessions, lead.facts() if lead else {})
            with session as launches, starter as entered, Bar(console, plan.total, len(done)) as bar:
                loading = threading.Thread(target=_load, args=(plan, plots), daemon=True)
                loading.start()
                sweep(plan, done, entered, journal.append, path / store.LOG, launches.append, bar, loading.join)
    return _conclude(path, plots)


def _load(plan: Plan, plots: bool) -> None:
    """What the end of this run needs, and no more: a core that the fork server could use may be all there is."""
    load_all(LOADED_MEANWHILE)
    from bench.analyze.steady import FEWEST

    times = plan.sampling.iterations
    load_all(["ruptures"] * (times is None or times >= FEWEST) + ["bench.report.plots.catalogue"] * plots)


def _conclude(path: Path, plots: bool) -> int:
    """Table, plots, report of a run that has ended; the exit code."""
    from bench.analyze.analyze_run import conclude
    from bench.report import document

    result = store.read(path)
    analysis = conclude(result)
    typer.echo(document.summary_tables(analysis.summaries))
    typer.echo("\n" + document.method_line(result, analysis.summaries))
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
    launcher: Annotated[
        Launcher | None, typer.Option(help="Print the file that starts the run on several hosts with this one.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="With --launcher: how many hosts.", metavar="N")] = 2,
    ranks_per_node: Annotated[
        int | None, typer.Option(help="With --launcher; left out: as many as the largest world size needs.")
    ] = None,
    simulate: Annotated[
        int | None, typer.Option(help="Make every call once on paper, in a world of so many ranks.", metavar="RANKS")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="With --simulate: be this rank; else the first, a middle and the last one.")
    ] = None,
    given: Given = NO_FLAGS,
) -> int:
    """Show what a run would do and how long it would take, without starting anything; or --from RUN what it needs."""
    from bench.report import listings

    if (config is None and not given) == (pilot is None):
        raise BenchError(
            "plan: give a configuration (plan configs/gloo.yaml), or nccl-tests' flags (plan -b 8 -e 128M -f 2 -g 2), "
            "or --from RUN, not both"
        )
    if pilot is not None:
        _needs(pilot, precision)
        return 0
    if launcher is not None:
        from bench.cli.launching import launch_file_for

        if config is None:
            raise BenchError("plan --launcher: the file names a configuration; keep the flags in one with --save first")
        typer.echo(launch_file_for(config, sets, launcher, nodes, ranks_per_node), nl=False)
        return 0
    asked = source("plan", config, given)
    typer.echo(asked.shown, nl=bool(asked.shown))
    if simulate is not None:
        return _simulate(asked, sets, simulate, rank)
    if asks_for_training(asked):
        typer.echo(plan_of_training(asked, sets))
        return 0
    planned = _plan(asked, sets)
    typer.echo(listings.plan(planned))
    if planned.total == 0:
        raise UnmeasurableError(f"{asked.name}: nothing can be measured here: {_reasons(planned)}")
    return 0


def _simulate(asked: Source, sets: list[str], world_size: int, rank: int | None) -> int:
    """A dry run as some ranks of a world that does not exist; 1 if a call does not fit the table of operations."""
    began = time.perf_counter()
    from bench import config as configuration
    from bench import plan as planning
    from bench.machine import environment
    from bench.rank import dry_run
    from bench.report import listings

    if not 1 <= world_size <= configuration.MOST_RANKS:
        raise BenchError(f"--simulate {world_size}: a world has 1 to {configuration.MOST_RANKS} ranks")
    if rank is not None and not 0 <= rank < world_size:
        raise BenchError(f"--rank {rank}: a world of {world_size} has ranks 0 to {world_size - 1}")
    settings = configuration.parse(asked.raw, asked.name, sets, asked.default_name)
    planned = planning.on_paper(settings, environment.machine(), world_size, settings.seed or 0)
    ranks = sorted({0, world_size // 2, world_size - 1}) if rank is None else [rank]
    result = dry_run.rehearse(planned, world_size, ranks)
    typer.echo(listings.simulation(replace(result, wall_s=time.perf_counter() - began)))
    if not result.rehearsals:
        raise UnmeasurableError(f"{asked.name}: nothing can be measured at {world_size} ranks: {_reasons(planned)}")
    return 1 if any(one.misfits for one in result.rehearsals) else 0


def _needs(name: str, precision: str) -> None:
    """How many launches and iterations a run like this one needs."""
    from bench.analyze.pilot import needs
    from bench.analyze.stats import summarize
    from bench.report import findings

    try:
        wanted = parse_share(precision)
    except ValueError as error:
        raise BenchError(f"--precision: {error}") from None
    run = store.read(store.find(RESULTS, name))
    typer.echo(findings.needs(needs(run, summarize(run), wanted), wanted))
