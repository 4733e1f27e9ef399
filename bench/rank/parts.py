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
    """Where the cases of a package run on this rank. folder: a private one. tick: called as a sign of life."""

    group: Group
    arena: Arena
    folder: Path
    tick: Callable[[], None]


@dataclass(frozen=True)
class RankPart:
    """What a package's operation does in ranks.

    stage: from a case, settings, the number of the launch and a place. prepare: sets up the process for a case and a
    rank, before the ranks join. waits_in: modules in which a rank that waits for others may be. plain: whether ranks
    send each other nothing but byte strings; others may send objects of a user's classes.
    """

    stage: Callable[[Case, Settings, int, RankPlace], Stage]
    prepare: Callable[[Case, int], None] = lambda case, rank: None
    waits_in: tuple[ModuleType, ...] = ()
    plain: bool = True
