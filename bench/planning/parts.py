"""What a package does while a run is planned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.catalog.registry import PACKAGES
from bench.config.models import Config
from bench.model.records import Case, Machine, Plan, Settings, Skip


@dataclass(slots=True)
class Expansion:
    """What a configuration asks of a package. calls: cases that the core examines and plans like its own.

    complete: from the plan, the plan with what these cases name.
    """

    cases: list[Case] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    calls: list[Case] = field(default_factory=list)
    complete: Callable[[Plan], Plan] = lambda plan: plan


@dataclass(frozen=True)
class PlanningPart:
    """A package's part of planning.

    expand: the cases of its section. operations: those that the core cannot plan by itself.
    launch_bytes: memory of a rank for the cases of a launch; None if it is not known. case_s: seconds that a case takes
    besides its calls, of which nothing is known. same_process: of a case, what those have in common that share
    processes. imports: what a user's cases
    import, as "module:name".
    """

    expand: Callable[[Config, Machine, Mapping[str, Any]], Expansion]
    operations: tuple[str, ...] = ()
    launch_bytes: Callable[[Sequence[Case], Settings], int | None] = lambda cases, settings: None
    case_s: float = 0.0
    same_process: Callable[[Case], Case] = lambda case: case
    imports: Callable[[Sequence[Case], Settings], set[str]] = lambda cases, settings: set()


def parts() -> list[PlanningPart]:
    """Those of all packages."""
    return [package.planning.value for package in PACKAGES if package.planning is not None]


def part_of(case: Case) -> PlanningPart | None:
    """That of the package which plans the case's operation; None if the core does."""
    return next((part for part in parts() if case.op in part.operations), None)
