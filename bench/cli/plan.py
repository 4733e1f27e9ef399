"""The verb `plan`: print what a run would do, without starting ranks."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.cli import benchmarks
from bench.cli.app import RESULTS, Sets
from bench.cli.launch_file import launch_file_for
from bench.cli.nccl_tests_options import NO_FLAGS, ConfigSource, Given, source, with_flags
from bench.cli.screen import show
from bench.machine import host
from bench.model.errors import BenchError, UnmeasurableError
from bench.model.records import Plan
from bench.model.units import parse_share
from bench.report.launch_files import LauncherName
from bench.store import folders, ledger
from bench.store.ledger import LedgerEntry


@with_flags
def plan(
    config: Annotated[
        Path | None, typer.Argument(help="A YAML file, or the name of one that comes along: gloo.", metavar="CONFIG")
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    pilot: Annotated[
        str | None, typer.Option("--from", help="A run: print what such a run needs for --precision.", metavar="RUN")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="With --from: wanted half-width of the intervals.", metavar="SHARE")
    ] = "5%",
    launcher: Annotated[
        LauncherName | None, typer.Option(help="Print the file that starts the run on several hosts with this one.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="With --launcher: how many hosts.", metavar="N")] = 2,
    ranks_per_node: Annotated[
        int | None, typer.Option(help="With --launcher; left out: as many as the largest world size needs.")
    ] = None,
    given: Given = NO_FLAGS,
) -> int:
    """With --from RUN: how many launches and iterations a run like that one needs."""
    if (config is None and not given) == (pilot is None):
        raise BenchError(
            "plan: give a configuration (plan configs/gloo.yaml), or nccl-tests' flags (plan -b 8 -e 128M -f 2 -g 2), "
            "or --from RUN, not both"
        )
    if pilot is not None:
        return _needs(pilot, precision)
    if launcher is not None:
        if config is None:
            raise BenchError("plan --launcher: the file names a configuration; keep the flags in one with --save first")
        typer.echo(launch_file_for(config, sets, launcher, nodes, ranks_per_node), nl=False)
        return 0
    asked = source("plan", config, given)
    typer.echo(asked.shown, nl=bool(asked.shown))
    return _describe(asked, sets)


def _describe(asked: ConfigSource, sets: list[str]) -> int:
    """Print what a run would do here."""
    benchmark, settings = benchmarks.read_config(asked.raw, asked.name, sets, asked.default_name)
    unsupported = host.unsupported_platform()
    if unsupported:
        raise UnmeasurableError(unsupported)
    machine = host.machine()
    planned = benchmark.expand(settings, machine, _seed(settings.seed))
    show(benchmark.describe(planned, machine))
    if benchmark is benchmarks.COLLECTIVES and (entries := ledger.read(RESULTS)):
        show(_smallest_change(planned, entries).rstrip("\n"))
    reason = benchmark.unmeasurable_reason(planned)
    if reason is not None:
        raise UnmeasurableError(f"{asked.name}: nothing can be measured here: {reason}")
    return 0


def _smallest_change(planned: Plan, entries: Sequence[LedgerEntry]) -> str:
    """A line on what two such runs could show; empty if the noise ledger has none of these cases."""
    from bench.analyze.noise import smallest_changes  # here: loads numpy and scipy
    from bench.analyze.sessions import machine_of_sessions
    from bench.report import listings

    here = machine_of_sessions([{"host": host.facts()}])
    changes = smallest_changes(entries, here, planned.launches, [case.key for case in planned.cases])
    return listings.smallest_change(sorted(changes.values()), len(planned.cases))


def _seed(chosen: int | None) -> int:
    return chosen if chosen is not None else secrets.randbelow(2**32)


def _needs(name: str, precision: str) -> int:
    """Print how many launches and iterations a run like this one needs."""
    # Imported here: it loads pandas and scipy, which the rest of this verb does not need.
    from bench.analyze.noise import in_all, needs
    from bench.analyze.summaries import summarize
    from bench.report import findings
    from bench.store.encoding import CODEC

    try:
        wanted = parse_share(precision)
    except ValueError as error:
        raise BenchError(f"--precision: {error}") from None
    path = folders.find(RESULTS, name)
    benchmarks.collectives_only([path], "plan --from")
    run = folders.read(path, CODEC)
    of_cases = needs(run, summarize(run), wanted)
    show(findings.needs(of_cases, in_all(of_cases), wanted))
    return 0
