"""Define what a package's operation has in ranks: a place, and functions that make workloads.

`catalog.operation.Operation.rank` names a function (case, settings, number of the launch, `RankPlace`) → `Workloads`.
It is called once a launch, after the ranks have joined, and keeps what the cases of the launch share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collbench.model.records import Case
from collbench.rank.group import Group
from collbench.rank.tensors import Arena
from collbench.rank.workload import Workload

# Makes the workload of one of the cases, ready to be called.
Workloads = Callable[[Case], Workload]


@dataclass(frozen=True)
class RankPlace:
    """The resources of this rank for the cases of a package."""

    group: Group
    arena: Arena
    # A private folder.
    folder: Path
    # Called as a sign of life.
    tick: Callable[[], None]
