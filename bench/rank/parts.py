"""What a package does in ranks: set up the process, and make the workloads of its operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

from bench.model.records import Case, Settings
from bench.rank.group import Group
from bench.rank.tensors import Arena
from bench.rank.workload import Workload


class Stage(Protocol):
    """What the cases of a package's launch share on this rank."""

    def workload(self, case: Case) -> Workload:
        """The workload of one of the cases, ready to be called."""


@dataclass(frozen=True)
class RankPlace:
    """Where the cases of a package run on this rank."""

    group: Group
    arena: Arena
    # A private folder.
    folder: Path
    # Called as a sign of life.
    tick: Callable[[], None]


@dataclass(frozen=True)
class RankPart:
    """What a package's operation does in ranks."""

    # The stage of a launch, from a case, settings, the number of the launch and a place.
    stage: Callable[[Case, Settings, int, RankPlace], Stage]
    # Sets up the process for a case and a rank, before the ranks join.
    prepare: Callable[[Case, int], None] = lambda case, rank: None
    # Modules in which a rank that waits for others may be.
    waits_in: tuple[ModuleType, ...] = ()
    # True if ranks send each other byte strings only; others may send objects of a user's classes.
    plain: bool = True
