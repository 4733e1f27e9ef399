"""What a package does while a run is planned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.catalog.registry import PACKAGES
from bench.config.models import Config
from bench.model.records import Case, Machine, Plan, Settings, Skip


@dataclass(slots=True)
class Expansion:
    """What a configuration asks of a package."""

    # Cases that the package has examined itself.
    checked: list[Case] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    # Cases that the core examines like its own: memory, fewest ranks, what the backend has.
    unchecked: list[Case] = field(default_factory=list)
    # From the plan, the plan with what these cases name.
    complete: Callable[[Plan], Plan] = lambda plan: plan


@dataclass(frozen=True)
class PlanningPart:
    """A package's part of planning."""

    # The cases of its section.
    expand: Callable[[Config, Machine, Mapping[str, Any]], Expansion]
    # Memory of a rank for those of its cases that a launch compares round by round; None if it is not known.
    launch_bytes: Callable[[Sequence[Case], Settings], int | None] = lambda cases, settings: None
    # What its cases import of the user's, as "module:name".
    imports: Callable[[Sequence[Case], Settings], set[str]] = lambda cases, settings: set()


def parts() -> list[PlanningPart]:
    """Those of all packages."""
    return [package.planning.value for package in PACKAGES if package.planning is not None]
