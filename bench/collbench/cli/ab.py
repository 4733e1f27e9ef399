"""The verb `ab`: measure two sides in turns, now, until it is clear whether B is slower than A."""

import secrets
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collbench.cli.app import RESULTS, Quiet, Sets, configs
from collbench.cli.comparison import IfUndecided, conclude_sides, exit_code, number
from collbench.cli.job import run_task
from collbench.cli.sides import check_in_job, measure_sides
from collbench.cli.terminal import say
from collbench.cli.trust import Difference, difference
from collbench.config import documents, models, names
from collbench.launch.side_process import check_python
from collbench.machine import host
from collbench.model import units
from collbench.model.comparisons import MIN_CHANGE
from collbench.model.errors import ConfigError, UnmeasurableError
from collbench.model.records import AbState, Side, Undecided
from collbench.model.units import format_seconds, format_share
from collbench.planning import plan as planning
from collbench.report.notices import sentence
from collbench.store import folders

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator


def ab(
    context: typer.Context,
    a: Annotated[Path, typer.Argument(help="The configuration of side A.", metavar="A", autocompletion=configs)],
    b: Annotated[
        Path | None,
        typer.Argument(help="The configuration of side B (default: A).", metavar="B", autocompletion=configs),
    ] = None,
    sets: Sets = [],  # noqa: B006 - typer reads the default
    of_a: Annotated[
        list[str],
        typer.Option(
            "--a",
            help="Change side A only: key=value, ENV_VAR=value or python=FILE.",
            metavar="KEY=VALUE",
        ),
    ] = [],  # noqa: B006
    of_b: Annotated[list[str], typer.Option("--b", help="Change side B only, likewise.", metavar="KEY=VALUE")] = [],  # noqa: B006
    budget: Annotated[str, typer.Option(help="Measure for at most this long.", metavar="TIME")] = "5min",
    min_change: Annotated[
        str, typer.Option(help="Set the smallest change of time that matters.", metavar="SHARE")
    ] = format_share(MIN_CHANGE),
    each: Annotated[bool, typer.Option("--each", help="Go on until each case is decided.", metavar="")] = False,
    same: Annotated[bool, typer.Option("--aa", help="Compare a configuration with itself.", metavar="")] = False,
    undecided: IfUndecided = Undecided.THREE,
    plots: Annotated[bool, typer.Option(help="Draw the picture at the end.", metavar="")] = True,
    quiet: Quiet = False,
) -> int:
    """Let the ranks of A and B take turns, block by block, so that changes of the machine's load cancel out.

    `ab` ends as soon as B is SLOWER or FASTER, or all cases are shown to be the SAME, or the budget is spent; with
    --each as soon as every case has a verdict. `resume RUN` goes on. RUN:a and RUN:b name its sides for other verbs.
    Exit code 1 if B is slower, or a case fails on B only; 3 if nothing was decided.
    """
    if not (same or b or of_a or of_b):
        raise ConfigError(
            f"ab {a}: both sides are the same: give B, --a or --b (such as --b OMP_NUM_THREADS=2), or --aa to see "
            "whether this machine finds a difference between identical sides"
        )
    smallest, budget_s = number("--min-change", min_change), number("--budget", budget, units.parse_seconds)
    differences = {"a": difference("--a", of_a), "b": difference("--b", of_b)}
    # If one side names an interpreter, record the interpreter of the other side too, for a resumed run.
    usual = sys.executable if any(changes.python for changes in differences.values()) else None
    sides = {
        letter: _side(f"--{letter}", names.path_of(config), sets, differences[letter], usual)
        for letter, config in {"a": a, "b": b or a}.items()
    }

    def task(coordinator: "Coordinator | None") -> int:
        if coordinator is not None:
            check_in_job(sides)
        state = AbState(smallest, budget_s, each, undecided, seed=secrets.randbelow(2**32))
        path = _create(sides, state, context.obj, coordinator)
        measure_sides(path, coordinator, quiet)
        return exit_code(conclude_sides(path, plots, quiet))

    files = [Path(side.config) for side in sides.values()]
    options = repr([sets, of_a, of_b, budget, min_change, each]).encode()
    return run_task(task, lambda: b"\0".join([*map(documents.read, files), options]))


def _side(option: str, config: Path, sets: list[str], changes: Difference, usual: str | None) -> Side:
    """Make the `Side` that the command line asks for. usual: its interpreter if the command line names none."""
    path = usual
    if changes.python is not None:
        # Absolute, for a resume in another folder. Links are kept: the link identifies a virtual environment.
        path = str(Path.cwd() / (shutil.which(changes.python) or changes.python))
        check_python(f"{option} python", path)
    settings = (*sets, *changes.sets)
    variables = [f"{name}={value}" for name, value in changes.variables.items()]
    words = [str(config), *settings, *variables, *([changes.python] if changes.python else [])]
    return Side(str(config), settings, changes.variables, path, " ".join(words))


def _create(sides: dict[str, Side], state: AbState, argv: list[str], coordinator: "Coordinator | None") -> Path:
    """Plan both sides, with one seed unless a configuration has its own, and make the folder of the run."""
    if unsupported := host.unsupported_platform():
        raise UnmeasurableError("", unsupported)
    from collbench.analyze import pairs  # deferred import: loads numpy and scipy

    raws, plans = [], []
    for side in sides.values():
        source = Path(side.config)
        raw = documents.read(source)
        config = models.parse(raw, str(source), side.sets, source.stem)
        machine = host.machine() if coordinator is None else coordinator.machine(planning.demands(config))
        seeded = state.seed if config.seed is None else config.seed
        if config.budget is not None:
            raise ConfigError("budget: ab has a budget of its own: remove the key, and use --budget")
        plan = planning.expand(config.model_copy(update={"launches": pairs.LOOKS[-1]}), machine, seeded)
        reason = planning.unmeasurable_reason(plan)
        if reason is not None:
            raise UnmeasurableError(f"{source}: nothing can be measured here", reason)
        raws.append(raw)
        plans.append(plan)
    # Raises ConfigError before any measuring.
    pairs.paired_cases(*(pairs.timed_cases([], plan) for plan in plans))
    pair_s = sum(planning.estimate_s(plan) for plan in plans) / pairs.LOOKS[-1]
    fewest_s = pair_s * pairs.FEWEST_PAIRS
    if state.budget_s < fewest_s:
        raise ConfigError(
            f"--budget {format_seconds(state.budget_s)}: a verdict needs {pairs.FEWEST_PAIRS} pairs, which "
            f"take about {format_seconds(fewest_s)}: set a longer budget, fewer cases or fewer seconds_per_case"
        )
    state.alternate = planning.reason_to_alternate(plans, machine)
    if state.alternate is not None:
        say(f"note: launches of A and B alternate: {sentence(state.alternate)}", err=True)
    facts = {
        "argv": list(argv),
        "sides": {letter: asdict(side) for letter, side in sides.items()},
        "ab": asdict(state),
    }
    return folders.create_sides(RESULTS, (plans[0], plans[1]), (raws[0], raws[1]), facts)
