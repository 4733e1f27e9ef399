"""The verb `bits`: compare results bit by bit when calls are repeated, in other processes or in larger messages."""

import json
import secrets
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from collbench.analyze.sessions import is_virtual_gpu
from collbench.catalog.backends import BACKENDS
from collbench.cli.app import PLOTS, Sets
from collbench.cli.job import run_task
from collbench.cli.measuring import parsed, source
from collbench.cli.output import give
from collbench.cli.terminal import say
from collbench.cli.trust import Difference, difference
from collbench.launch import mpirun
from collbench.launch.launcher import RendezvousFolder, preload
from collbench.launch.ranks import Starter
from collbench.launch.side_process import SideProcess, check_python
from collbench.launch.supervisor import ask
from collbench.machine import gpus, host
from collbench.model.errors import ConfigError, RankError, UnmeasurableError
from collbench.model.projection import grouped
from collbench.model.records import Job, Json, Plan
from collbench.model.units import counted
from collbench.packages.bits import report
from collbench.packages.bits.analyze import compared
from collbench.packages.bits.conclusions import BitsRow
from collbench.packages.bits.planning import BitsJob, uncomparable
from collbench.planning import plan as plans
from collbench.planning.footprint import arena_bytes

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator

# Limit of the raw results of all launches on disk; a configuration with more data is for timing, not for this verb.
MOST_BYTES = 8 * 2**30
EVERYTHING = "all"
RANK = "collbench.packages.bits.rank:main"  # what ranks run


def bits(
    config: Annotated[Path, typer.Argument(help="Its cases, and its options that must not matter.", metavar="CONFIG")],
    sets: Sets = [],  # noqa: B006 - typer reads the default
    require: Annotated[
        list[str],
        typer.Option(help="Require a variation to be identical, or all; may be repeated.", metavar="VARIATION"),
    ] = [],  # noqa: B006
    of_b: Annotated[
        list[str],
        typer.Option(
            "--b", help="Compare with a side B: python=FILE, another torch; or VARIABLE=VALUE.", metavar="KEY=VALUE"
        ),
    ] = [],  # noqa: B006
) -> int:
    """Repeat calls: in fresh processes, as part of larger messages, with other alignment, placement or algorithms.

    Exit code 1 if a variation of --require is not identical, or data that are only moved differ from the sent data.
    """

    def task(coordinator: "Coordinator | None") -> int:
        if coordinator is not None:
            raise UnmeasurableError("bits compares on one machine: start it once, outside the job")
        side_b = difference("--b", of_b)
        if side_b.sets:
            raise ConfigError(
                f"--b {side_b.sets[0]}: side B has the same settings; write python=FILE or VARIABLE=VALUE"
            )
        plan = _comparable(config, sets)
        rows = _compared(plan, side_b)
        _written(rows, plan.name)
        broken = _broken(rows, require)
        for row in broken:
            where = f"{row.case.op} {row.case.dtype}, {counted(row.case.world_size, 'rank')}"
            say(f"not identical: {where}, {row.variation}", err=True)
        return 1 if broken else 0

    return run_task(task, lambda: b"")


def _comparable(config: Path, sets: list[str]) -> Plan:
    """Return a plan with only the cases whose bits can be compared, without empty launches; print omitted cases."""
    chosen = source(config)
    settings = parsed(chosen, sets)
    seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
    plan = plans.expand(settings, host.machine(), seed)
    reasons = {case: uncomparable(case) for case in plan.cases}
    for reason, cases in grouped(reasons, lambda case: reasons[case]).items():
        if reason is not None:
            say(f"note: {', '.join(sorted({case.op for case in cases}))} left out: {reason}", err=True)
    launches = [replace(launch, cases=tuple(c for c in launch.cases if reasons[c] is None)) for launch in plan.order]
    order = tuple(launch for launch in launches if launch.cases)
    if not order:
        why = plans.unmeasurable_reason(plan) or "no case has bits that could be compared"
        raise UnmeasurableError(chosen.name, why)
    nbytes = sum(arena_bytes(launch.cases, 0) * launch.world_size for launch in order)
    if nbytes > MOST_BYTES:
        raise ConfigError(
            f"{chosen.name}: sizes: results of all launches would take {nbytes / 2**30:.1f} GiB of disk, and at most "
            f"{MOST_BYTES // 2**30} are allowed: use fewer or smaller sizes"
        )
    return replace(plan, order=order)


def _compared(plan: Plan, side_b: Difference) -> list[BitsRow]:
    """Run the ranks of one side or of both, and compare their results."""
    if side_b.python is not None:
        check_python("--b python", side_b.python)
    modules = preload([plan])
    with RendezvousFolder() as private, Console(stderr=True).status("starting ranks") as status:
        with mpirun.ByBackend(modules) as launcher:
            sides = [called(plan, launcher, private.place(), status.update)]
        if side_b.python or side_b.variables:
            with SideProcess("side B", side_b.python or sys.executable, side_b.variables, modules) as process:
                process.wait_until_ready()
                sides.append(called(plan, process, private.place(), lambda text: status.update(f"side B: {text}")))
        return compared(plan, sides)


def called(plan: Plan, launcher: Starter, folder: Path, begun: Callable[[str], None]) -> list[list[list[Json]]]:
    """Have ranks make the calls of a plan, and write the raw results into `folder`.

    Return the facts of each rank, by launch and case. Raises UnmeasurableError, with the reason, if a launch fails.
    begun: called with a description of each launch before it starts.
    """
    facts = []
    for position, launch in enumerate(plan.order):
        where = f"{launch.backend}, {counted(launch.world_size, 'rank')}"
        begun(f"{where}, launch {launch.number}")
        (place := folder / f"launch-{position}").mkdir()
        settings = plan.settings.needed_by(launch.cases)
        job = BitsJob(Job(launch, settings), str(place))
        try:
            lines, problem = ask(launcher, launch.world_size, RANK, job, settings.timeout_s)
        except RankError as error:
            problem = str(error)
        if problem is not None:
            raise UnmeasurableError(f"{where}: {problem}")
        facts.append([json.loads(line) for line in lines])
    return facts


def _written(rows: list[BitsRow], name: str) -> None:
    """Print the table of differences and the headline; write the documents below plots/."""
    folder = PLOTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-bits-{name}"
    on_gpus = any(BACKENDS[row.case.backend].device == "cuda" for row in rows)
    virtual = on_gpus and any(is_virtual_gpu(str(gpus.facts(gpu)["name"])) for gpu in host.visible_gpus())
    files = {
        folder / "bits.md": report.document(rows, name, virtual),
        folder / "bits.json": json.dumps(report.as_json(rows), indent=1) + "\n",
    }
    give([*report.brief(rows), report.headline(rows, virtual)], files)


def _broken(rows: list[BitsRow], require: list[str]) -> list[BitsRow]:
    """Return the results that must be identical and are not. Raises ConfigError if a variation has no result."""
    variations = dict.fromkeys(row.variation for row in rows)
    for name in require:
        if name != EVERYTHING and name not in variations:
            raise ConfigError(f"--require {name}: not a variation of this run; allowed: {', '.join(variations)}, all")
    demanded = [row for row in rows if row.moves or EVERYTHING in require or row.variation in require]
    return [row for row in demanded if row.wrong or not row.identical]
