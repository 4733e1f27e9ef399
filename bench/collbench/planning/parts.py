"""Define the part of a package in planning a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collbench.catalog.registry import PACKAGES
from collbench.config.models import Config
from collbench.model.records import Case, Machine, Plan, Settings, Skip


@dataclass(slots=True)
class Expansion:
    """Cases of a package that a configuration asks for."""

    # Cases that the package has examined itself.
    checked: list[Case] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    # Cases that the core examines like its own cases: memory, fewest ranks, operations of the backend.
    unchecked: list[Case] = field(default_factory=list)
    # Returns the plan with the settings that these cases refer to.
    complete: Callable[[Plan], Plan] = lambda plan: plan


@dataclass(frozen=True)
class PlanningPart:
    """A package's part of planning."""

    # Returns the cases of the package's section.
    expand: Callable[[Config, Machine, Mapping[str, Any]], Expansion]
    # Bytes of memory of a rank for the cases that a launch compares round by round; None if unknown.
    launch_bytes: Callable[[Sequence[Case], Settings], int | None] = lambda cases, settings: None
    # Objects of the user's code that the cases import, as "module:name".
    imports: Callable[[Sequence[Case], Settings], set[str]] = lambda cases, settings: set()


def parts() -> list[PlanningPart]:
    """Return the planning parts of all packages."""
    return [package.planning.value for package in PACKAGES if package.planning is not None]
