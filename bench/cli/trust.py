"""Refuse what a run's folder or a configuration may not ask for by itself, unless the command line confirms it.

In: a run's folder, its plans, variables. Out: nothing, or an error of one line that names what would run and the option
that allows it. Starts and imports nothing but an interpreter that was confirmed.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.catalog.variables import leaves_loopback, unsettable
from bench.launch.side_process import check_python
from bench.model.errors import BenchError, ConfigError, StoreError
from bench.model.records import Plan, Side
from bench.store import encoding

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="With --resume: start the interpreters and import the models that the run's folder names, and set its "
        "sides' variables.",
    ),
]
LeaveLoopback = Annotated[
    bool,
    typer.Option("--leave-loopback", help="Let variables open ports beyond loopback, with all ranks on one machine."),
]


def side_variables(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """The variables that the command line gives one side. option: such as `--b-env`; raises ConfigError with it."""
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"{option} {name}: write NAME=VALUE")
        if reason := unsettable(name, value, fresh=True):
            raise ConfigError(f"{option} {pair}: {reason}")
        variables[name] = value
    return variables


def check_variables(
    variables: Iterable[tuple[str, str]], coordinator: "Coordinator | None", leave_loopback: bool
) -> None:
    """Raise BenchError for variables that leave loopback where all ranks are on one machine, unless that is wanted."""
    if leave_loopback or not (coordinator is None or coordinator.place.one_host):
        return
    leaving = [f"{name}={value}" for name, value in variables if leaves_loopback(name, value)]
    if leaving:
        raise BenchError(
            f"{' '.join(leaving)}: all ranks are on this machine, and this may open ports to others: "
            "--leave-loopback allows it"
        )


def check_resumed(path: Path, plans: Sequence[Plan], sides: Mapping[str, Side], trusted: bool) -> None:
    """Raise StoreError if a run's folder, which may be somebody else's, asks for what was not confirmed."""
    of_plans = [(pair, False) for plan in plans for pair in encoding.variables_of(plan)]
    of_sides = [(pair, True) for side in sides.values() for pair in side.variables.items()]
    for (name, value), fresh in [*of_plans, *of_sides]:
        if reason := unsettable(name, value, fresh):
            raise StoreError(f"{path}: it sets {name}={value}: {reason}")
    pythons = sorted({side.python for side in sides.values() if side.python not in {None, sys.executable}}, key=str)
    wanted = [
        *(f"starts {python}" for python in pythons),
        *(f"imports {name}" for name in sorted({name for plan in plans for name in encoding.imports_of(plan)})),
        *(
            f"sets {name}={value} on side {side.upper()}"
            for side in sides
            for name, value in sides[side].variables.items()
        ),
    ]
    if wanted and not trusted:
        raise StoreError(f"{path}: going on {', '.join(wanted)}: if that is what you want, add --trust")
    for python in pythons:
        check_python(str(path), str(python))
