"""Define what a package reads from a run, and read it once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from collbench.catalog.registry import PACKAGES
from collbench.model.notices import Notice
from collbench.model.records import Run

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Reading:
    """What a package concludes from a run."""

    # Its conclusions, in a type of its own; a `model.results.RunRecord` if programs get them.
    value: object = None
    notices: Sequence[Notice] = ()
    # Facts that `compare` and `ab` show if they differ.
    facts: Mapping[str, str] = field(default_factory=dict)


def once(conclude: Callable[Concatenate[Run, P], R]) -> Callable[Concatenate[Run, P], R]:
    """Return a function that draws a conclusion from a run only once, because several analyses of a report need it."""

    @functools.wraps(conclude)
    def concluded(run: Run, /, *arguments: P.args, **named: P.kwargs) -> R:
        asked = conclude, arguments, tuple(named.items())
        if asked not in run.concluded:
            run.concluded[asked] = conclude(run, *arguments, **named)
        result: R = run.concluded[asked]
        return result

    return concluded


@once
def readings(run: Run) -> dict[str, Reading]:
    """Return what each package that reads runs concludes from this run, by the name of the package."""
    return {package.name: package.reads(run) for package in PACKAGES if package.reads is not None}
