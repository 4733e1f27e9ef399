"""What a package does while a run is planned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.catalog.packages import PACKAGES
from bench.config.models import Config
from bench.model.records import Case, Machine, Plan, Settings, Skip


@dataclass(slots=True)
class Expansion:
    """What a configuration asks of a package. calls: cases of operations of the core, which the core examines."""

    cases: list[Case] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    calls: list[Case] = field(default_factory=list)


@dataclass(frozen=True)
class PlanningPart:
    """A package's part of planning.

    expand: the cases of its section. complete: the plan, with what its cases name. launch_bytes: memory of a rank for
    the cases of a launch; None if it is not known. case_s: seconds that a case takes besides its calls, of which
    nothing is known. same_process: of a case, what those have in common that share processes. check: raises ValueError
    for a case that no plan of this package can hold. imports: what a user's cases import, as "module:name".
    """

    operations: tuple[str, ...]
    expand: Callable[[Config, Machine], Expansion]
    complete: Callable[[Config, Machine, Plan], Plan]
    launch_bytes: Callable[[Sequence[Case], Settings], int | None]
    case_s: float
    same_process: Callable[[Case], Case]
    imports: Callable[[Sequence[Case], Settings], set[str]]
    check: Callable[[Case], object]


def parts() -> list[PlanningPart]:
    """Those of all packages."""
    return [package.planning.value for package in PACKAGES if package.planning is not None]


def part_of(case: Case) -> PlanningPart | None:
    """That of the package which has the case's operation; None if the core has it."""
    return next((part for part in parts() if case.op in part.operations), None)
