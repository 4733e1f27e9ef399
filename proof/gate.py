"""Judge simulated fleets by the gate: how often does it find a slow node, name a sound node, or decide nothing?

Out: a table, printed by `python -m proof.gate` (two minutes). Starts no ranks. Tests use the fleet, too.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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


# Numbers of nodes, slow nodes, their rate relative to the usual rate, and: options of the fleet, the scatter of the
# nodes' own rates ("spread"), and the rate that a table demands of every node ("least").
SCENARIOS: list[tuple[int, int, float, dict[str, float]]] = [
    *((nodes, slow, rate, {}) for nodes in (4, 8, 32)
      for slow, rate in ((0, 1.0), (1, 0.85), (1, 0.8), (1, 0.75), (1, 0.7))),
    (4, 2, 0.7, {}), (8, 3, 0.7, {}), (8, 3, 0.8, {}), (8, 4, 0.7, {}),
    (4, 0, 1.0, {"scatter": 0.05}), (4, 1, 0.8, {"scatter": 0.05}), (8, 1, 0.8, {"scatter": 0.05}),
    # Two generations.
    (64, 21, 0.75, {"scatter": 0.05}), (16, 5, 0.75, {}), (16, 8, 0.75, {}), (16, 10, 0.75, {}),
    (8, 4, 0.75, {}), (8, 5, 0.75, {}), (64, 32, 0.7, {}),
    (64, 21, 0.75, {"scatter": 0.05, "least": 0.85}), (16, 8, 0.75, {"least": 0.85}), (16, 0, 1.0, {"least": 0.85}),
    # Drift between rounds, switches, natural spread.
    (4, 0, 1.0, {"scatter": 0.03, "drift": 0.05}), (4, 1, 0.8, {"scatter": 0.03, "drift": 0.05}),
    (5, 1, 0.8, {"scatter": 0.03, "drift": 0.05}),
    (64, 0, 1.0, {"scatter": 0.05, "crossing": 0.5}), (64, 0, 1.0, {"crossing": 0.5}),
    (8, 0, 1.0, {"scatter": 0.05, "crossing": 0.5}), (64, 0, 1.0, {"scatter": 0.05, "crossing": 0.75}),
    (16, 0, 1.0, {"scatter": 0.05, "crossing": 0.5}),
    (64, 0, 1.0, {"scatter": 0.05, "spread": 0.03}), (64, 0, 1.0, {"scatter": 0.05, "spread": 0.1}),
]  # fmt: skip
WORDS = {
    "drift": "rounds drift {:.0%}", "spread": "nodes differ by {:.0%}",
    "crossing": "{:.0%} of the rate between two switches", "least": "against a table, {:.0%}",
}  # fmt: skip
HEADERS = (
    "nodes", "scatter", "slow", "fleets, % PASS / FAIL / INCONCLUSIVE", "slow nodes, %", "named a sound one",
    "named a path", "rounds",
)  # fmt: skip


def row(nodes: int, slow: int, rate: float, options: Mapping[str, float]) -> list[object]:
    """Return how often each verdict is given to fleets of a kind."""
    fleets, slow_nodes, wrong, rounds, paths = Counter[str](), Counter[str](), 0, [], 0
    of_fleet = {name: options[name] for name in ("scatter", "drift", "crossing") if name in options}
    for seed in range(FLEETS):
        own = np.exp(np.random.default_rng([seed, 1]).normal(0, options.get("spread", 0.0), nodes))
        rates = {node: (rate if node < slow else 1.0) * float(own[node]) for node in range(nodes)}
        fleet = Fleet(nodes, rates, seed, **of_fleet)
        verdict = fleet.judged(1 / options["least"] if "least" in options else None)
        fleets[verdict.verdict] += 1
        slow_nodes.update(check.verdict for check in verdict.nodes[:slow])
        sound = [check for check in verdict.nodes[slow:] if rates[check.node] >= ALLOWED]
        wrong += any(check.verdict == gate.FAIL for check in sound)
        rounds.append(fleet.rounds)
        paths += verdict.path is not None
    words = [f"{slow} at {rate:.0%}"] if slow else []
    words += [text.format(options[name]) for name, text in WORDS.items() if name in options]
    shown = [", ".join(words) or "none", _shares(fleets), _shares(slow_nodes) if slow else ""]
    return [nodes, options.get("scatter", SCATTER), *shown, wrong, paths, int(np.median(rounds))]


def _shares(counts: Counter[str]) -> str:
    verdicts = (gate.PASS, gate.FAIL, gate.INCONCLUSIVE)
    return " / ".join(f"{100 * counts[verdict] / counts.total():.0f}" for verdict in verdicts)


if __name__ == "__main__":
    print(tabulate([row(*scenario) for scenario in SCENARIOS], HEADERS, tablefmt="github"))
