"""Define a package's part in ranks: set up the process, and make the workloads of the package's operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

from collbench.model.records import Case, Settings
from collbench.rank.group import Group
from collbench.rank.tensors import Arena
from collbench.rank.workload import Workload


class Stage(Protocol):
    """The state that the cases of a package's launch share on this rank."""

    def workload(self, case: Case) -> Workload:
        """Return the workload of one of the cases, ready to be called."""


@dataclass(frozen=True)
class RankPlace:
    """The resources of this rank for the cases of a package."""

    group: Group
    arena: Arena
    # A private folder.
    folder: Path
    # Called as a sign of life.
    tick: Callable[[], None]


@dataclass(frozen=True)
class RankPart:
    """A package's part in ranks."""

    # Makes the stage of a launch from a case, settings, the number of the launch and a place.
    stage: Callable[[Case, Settings, int, RankPlace], Stage]
    # Sets up the process for a case and a rank, before the ranks join.
    prepare: Callable[[Case, int], None] = lambda case, rank: None
    # Modules in which a rank may wait for other ranks.
    waits_in: tuple[ModuleType, ...] = ()
