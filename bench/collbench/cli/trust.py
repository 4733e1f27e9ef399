"""Refuse unsafe requests of a run's folder or a configuration, unless the command line confirms them.

In: a run's folder, its plans, variables. Out: nothing, or an error of one line that names the requests and the option
that allows them. Imports nothing, and starts only interpreters that were confirmed.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from collbench.catalog.variables import leaves_loopback, unsettable
from collbench.launch.side_process import check_python
from collbench.model.errors import ConfigError, StoreError
from collbench.model.records import Plan, Side
from collbench.store import encoding

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Start interpreters, import models, set variables that the run's folder names.",
        metavar="",
    ),
]


@dataclass(frozen=True, slots=True)
class Difference:
    """Settings, environment variables and an interpreter that only one of two sides has."""

    sets: tuple[str, ...]
    variables: dict[str, str]
    # Interpreter; None means the usual one.
    python: str | None


def difference(option: str, pairs: Sequence[str]) -> Difference:
    """Parse the KEY=VALUE pairs of one side. option: their option, such as `--b`, which a ConfigError names.

    A key that begins with a capital letter is a variable, `python` is the interpreter, and all others are settings.
    """
    sets, variables, python = [], {}, None
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option} {pair}: write a setting, a VARIABLE or python, each followed by =VALUE")
        if key == "python":
            python = value
        elif not key[0].isupper():
            sets.append(pair)
        elif reason := unsettable(key, value, fresh=True):
            raise ConfigError(f"{option} {pair}: {reason}")
        else:
            variables[key] = value
    return Difference(tuple(sets), variables, python)


def check_resumed(path: Path, plans: Sequence[Plan], sides: Mapping[str, Side], trusted: bool) -> None:
    """Raise StoreError if a run's folder, perhaps somebody else's, contains settings that need --trust."""
    plan_variables = [(pair, False) for plan in plans for pair in encoding.variables_of(plan)]
    side_variables = [(pair, True) for side in sides.values() for pair in side.variables.items()]
    for (name, value), fresh in [*plan_variables, *side_variables]:
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
        *sorted(
            {
                f"sets {name}={value}, which may open ports to others"
                for (name, value), _ in plan_variables
                if leaves_loopback(name, value)
            }
        ),
    ]
    if wanted and not trusted:
        raise StoreError(f"{path}: going on {', '.join(wanted)}: if that is what you want, add --trust")
    for python in pythons:
        check_python(str(path), str(python))
