"""Judge simulated fleets by the gate: how often does it find a slow node, name a sound node, or decide nothing?

Out: a table, printed by `python -m proof.gate` (two minutes). Starts no ranks. Tests use the fleet, too.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tabulate import tabulate

from collbench.model.notices import Notice, notice
from collbench.packages.gate.analyze import nodes as gate
from collbench.packages.gate.analyze.nodes import Group, Round, Times
from collbench.packages.gate.conclusions import GateNotice, GateVerdict

# Scatter of the logarithm of a pair's time from round to round, as on clusters that are in use.
SCATTER = 0.13
ALLOWED = 0.85
FLEETS = 200


@dataclass(frozen=True)
class Scenario:
    """A kind of fleet, with `slow` nodes at `rate`. Rates are relative to the usual rate."""

    nodes: int
    slow: int = 0
    rate: float = 1.0
    scatter: float = SCATTER
    # Scatter that all groups of a round have in common; scatter of the nodes' own rates; rate between two switches.
    drift: float = 0.0
    spread: float = 0.0
    crossing: float = 1.0
    # The rate that a table demands of every node.
    least: float | None = None

    def __str__(self) -> str:
        parts = [f"{self.slow} at {self.rate:.0%}"] if self.slow else []
        parts += [f"rounds drift {self.drift:.0%}"] if self.drift else []
        parts += [f"nodes differ by {self.spread:.0%}"] if self.spread else []
        parts += [f"{self.crossing:.0%} of the rate between two switches"] if self.crossing < 1 else []
        parts += [f"against a table, {self.least:.0%}"] if self.least else []
        return ", ".join(parts) or "none"


SCENARIOS = [
    *(Scenario(nodes, slow, rate) for nodes in (4, 8, 32)
      for slow, rate in ((0, 1.0), (1, 0.85), (1, 0.8), (1, 0.75), (1, 0.7))),
    Scenario(4, 2, 0.7), Scenario(8, 3, 0.7), Scenario(8, 3, 0.8), Scenario(8, 4, 0.7),
    Scenario(4, 0, scatter=0.05), Scenario(4, 1, 0.8, 0.05), Scenario(8, 1, 0.8, 0.05),
    # Two generations.
    Scenario(64, 21, 0.75, 0.05), Scenario(16, 5, 0.75), Scenario(16, 8, 0.75), Scenario(16, 10, 0.75),
    Scenario(8, 4, 0.75), Scenario(8, 5, 0.75), Scenario(64, 32, 0.7),
    Scenario(64, 21, 0.75, 0.05, least=0.85), Scenario(16, 8, 0.75, least=0.85), Scenario(16, 0, least=0.85),
    # Drift between rounds, switches, natural spread.
    Scenario(4, 0, scatter=0.03, drift=0.05), Scenario(4, 1, 0.8, 0.03, drift=0.05),
    Scenario(5, 1, 0.8, 0.03, drift=0.05),
    Scenario(64, scatter=0.05, crossing=0.5), Scenario(64, crossing=0.5), Scenario(8, scatter=0.05, crossing=0.5),
    Scenario(64, scatter=0.05, crossing=0.75), Scenario(16, scatter=0.05, crossing=0.5),
    Scenario(64, scatter=0.05, spread=0.03), Scenario(64, scatter=0.05, spread=0.1),
]  # fmt: skip


class Fleet:
    """A simulated fleet. The slowest member sets the time of a node or pair; a dead node fails its rounds.

    slow: node → its rate, 1 is usual. slow_inside: the same for the ranks inside a node. dead: nodes that are dropped
    when they are first measured. failing: stages in which all rounds fail for an unknown reason. drift: scatter that
    all groups of a round have in common. crossing: the rate between different switches; nodes are at them in turn.
    """

    def __init__(
        self,
        nodes: int,
        slow: Mapping[int, float] | None = None,
        seed: int = 0,
        scatter: float = SCATTER,
        several: Sequence[int] = (),
        slow_inside: Mapping[int, float] | None = None,
        dead: Sequence[int] = (),
        failing: Sequence[str] = (),
        drift: float = 0.0,
        crossing: float = 1.0,
        switches: int = 2,
    ) -> None:
        self.nodes, self.several = nodes, several
        self.slow, self.slow_inside = dict(slow or {}), dict(slow_inside or {})
        self.dead, self.failing, self.scatter = set(dead), failing, scatter
        self.drift, self.crossing, self.switches = drift, crossing, switches
        self.dice = np.random.default_rng(seed)
        self.dropped: dict[int, Notice] = {}
        self.broken: list[Notice] = []
        self.stages: list[str] = []
        self.rounds = 0

    def measured(
        self, stage: str, nodes: Sequence[int], rounds_of: Callable[[Sequence[int]], list[Round]]
    ) -> list[Times]:
        live = [node for node in nodes if node not in self.dropped]
        if dead := self.dead & {node for groups in rounds_of(live) for group in groups for node in group}:
            self.dropped |= dict.fromkeys(dead, notice(GateNotice.NO_ANSWER, stage=stage))
            live = [node for node in live if node not in dead]
        rounds = rounds_of(live)
        self.stages.append(stage)
        self.rounds += len(rounds)
        if stage in self.failing:
            self.broken.append(notice(GateNotice.STAGE_FAILED, stage=stage, text="all ranks wait for each other"))
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


def main() -> None:
    """Print how often each verdict is given, per scenario."""
    rows = []
    for at in SCENARIOS:
        fleets, slow_nodes, wrong, rounds, paths = Counter[str](), Counter[str](), 0, [], 0
        for seed in range(FLEETS):
            own = np.exp(np.random.default_rng([seed, 1]).normal(0, at.spread, at.nodes))
            rates = {node: (at.rate if node < at.slow else 1.0) * float(own[node]) for node in range(at.nodes)}
            fleet = Fleet(at.nodes, rates, seed, at.scatter, drift=at.drift, crossing=at.crossing)
            verdict = fleet.judged(1 / at.least if at.least else None)
            fleets[verdict.verdict] += 1
            slow_nodes.update(check.verdict for check in verdict.nodes[: at.slow])
            sound = [check for check in verdict.nodes[at.slow :] if rates[check.node] >= ALLOWED]
            wrong += any(check.verdict == gate.FAIL for check in sound)
            rounds.append(fleet.rounds)
            paths += verdict.path is not None
        all_pct, slow_pct = (
            " / ".join(
                f"{100 * counts[word] / max(1, counts.total()):.0f}"
                for word in (gate.PASS, gate.FAIL, gate.INCONCLUSIVE)
            )
            for counts in (fleets, slow_nodes)
        )
        rows.append(
            [at.nodes, at.scatter, str(at), all_pct, slow_pct if at.slow else "", wrong, paths, int(np.median(rounds))]
        )
    headers = [
        "nodes",
        "scatter",
        "slow",
        "fleets, % PASS / FAIL / INCONCLUSIVE",
        "slow nodes, %",
        "named a sound one",
        "named a path",
        "rounds",
    ]
    print(tabulate(rows, headers, tablefmt="github"))


if __name__ == "__main__":
    main()
