"""A simulated fleet, which the gate judges in tests: how often does it find a slow node, or name a sound one?"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from collbench.model.notices import Notice
from collbench.packages.gate.analyze import nodes as gate
from collbench.packages.gate.analyze.nodes import Group, Round, Times
from collbench.packages.gate.cli.gate import FAILED, STAGE_FAILED
from collbench.packages.gate.conclusions import GateVerdict

# Scatter of the logarithm of a pair's time from round to round, as on clusters that are in use.
SCATTER = 0.13
ALLOWED = 0.85


@dataclass
class Fleet:
    """A simulated fleet. The slowest member sets the time of a node or pair; a dead node fails its rounds."""

    nodes: int
    # Node → its rate, 1 is usual; the same for the ranks inside a node.
    slow: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    scatter: float = SCATTER
    several: Sequence[int] = ()
    slow_inside: Mapping[int, float] = field(default_factory=dict)
    # Nodes that are dropped when they are first measured; stages in which all rounds fail for an unknown reason.
    dead: Sequence[int] = ()
    failing: Sequence[str] = ()
    # Scatter that all groups of a round have in common.
    drift: float = 0.0
    # The rate between different switches; nodes are at them in turn.
    crossing: float = 1.0
    switches: int = 2
    dropped: dict[int, Notice] = field(default_factory=dict)
    broken: list[Notice] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.dice = np.random.default_rng(self.seed)

    def measured(
        self, stage: str, nodes: Sequence[int], rounds_of: Callable[[Sequence[int]], list[Round]]
    ) -> list[Times]:
        live = [node for node in nodes if node not in self.dropped]
        if dead := set(self.dead) & {node for groups in rounds_of(live) for group in groups for node in group}:
            self.dropped |= dict.fromkeys(dead, FAILED["lost"](stage=stage))
            live = [node for node in live if node not in dead]
        rounds = rounds_of(live)
        self.stages.append(stage)
        self.rounds += len(rounds)
        if stage in self.failing:
            self.broken.append(STAGE_FAILED(stage=stage, text="all ranks wait for each other"))
            return []
        drifts = np.exp(self.dice.normal(0, self.drift, len(rounds))) if self.drift else np.ones(len(rounds))
        return [
            {group: self._time_s(group) * drift for group in groups}
            for groups, drift in zip(rounds, drifts.tolist(), strict=True)
        ]

    def _time_s(self, group: Group) -> float:
        rates = self.slow_inside if len(group) == 1 else self.slow
        slowest = min(rates.get(node, 1.0) for node in group)
        if len({node % self.switches for node in group}) > 1:
            slowest = min(slowest, self.crossing)
        return math.exp(self.dice.normal(0, self.scatter)) / slowest

    def judged(self, least_s: float | None = None) -> GateVerdict:
        return gate.examine(self, ALLOWED, least_s)
