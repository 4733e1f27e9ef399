"""What the gate says of simulated fleets: how often it finds a slow node, names a sound one, or decides nothing.

In: nothing. Out: a table, printed by `python -m proof.gate` (two minutes). Starts no ranks; tests use the fleet, too.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tabulate import tabulate

from bench.gate.analyze import nodes as gate
from bench.gate.analyze.nodes import Group, Round, Times
from bench.gate.conclusions import GateVerdict

# Scatter of the logarithm of a pair's time from round to round, as it is on clusters that are in use.
SCATTER = 0.13
ALLOWED = 0.85
FLEETS = 200
# Nodes, of which slow, at which rate, scatter.
SCENARIOS = [
    *((nodes, slow, rate, SCATTER) for nodes in (4, 8, 32)
      for slow, rate in ((0, 1.0), (1, 0.85), (1, 0.8), (1, 0.75), (1, 0.7))),
    (4, 2, 0.7, SCATTER), (8, 3, 0.7, SCATTER), (8, 3, 0.8, SCATTER), (8, 4, 0.7, SCATTER),
    (4, 0, 1.0, 0.05), (4, 1, 0.8, 0.05), (8, 1, 0.8, 0.05),
]  # fmt: skip


class Fleet:
    """Nodes and pairs take as long as their slowest member lets them; who is dead fails the rounds that it is in.

    slow: node → its rate, 1 is usual; slow_inside: likewise of its ranks among themselves. dead: nodes that are
    dropped when they are first measured. failing: stages whose rounds all fail, and nobody knows why.
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
    ) -> None:
        self.nodes, self.several = nodes, several
        self.slow, self.slow_inside = dict(slow or {}), dict(slow_inside or {})
        self.dead, self.failing, self.scatter = set(dead), failing, scatter
        self.dice = np.random.default_rng(seed)
        self.dropped: dict[int, str] = {}
        self.broken: list[str] = []
        self.stages: list[str] = []
        self.rounds = 0

    def measured(
        self, stage: str, nodes: Sequence[int], rounds_of: Callable[[Sequence[int]], list[Round]]
    ) -> list[Times]:
        live = [node for node in nodes if node not in self.dropped]
        if dead := self.dead & {node for groups in rounds_of(live) for group in groups for node in group}:
            self.dropped |= dict.fromkeys(dead, "it does not answer")
            live = [node for node in live if node not in dead]
        rounds = rounds_of(live)
        self.stages.append(stage)
        self.rounds += len(rounds)
        if stage in self.failing:
            self.broken.append(f"{stage}: all ranks wait for each other")
            return []
        return [{group: self._time_s(group) for group in groups} for groups in rounds]

    def _time_s(self, group: Group) -> float:
        rates = self.slow_inside if len(group) == 1 else self.slow
        slowest = min(rates.get(node, 1.0) for node in group)
        return math.exp(self.dice.normal(0, self.scatter)) / slowest

    def judged(self, least_s: float | None = None) -> GateVerdict:
        return gate.examine(self, ALLOWED, least_s)


def main() -> None:
    """Print how often each verdict is given."""
    rows = []
    for nodes, slow, rate, scatter in SCENARIOS:
        fleets, of_slow, others, rounds = Counter[str](), Counter[str](), 0, []
        for seed in range(FLEETS):
            fleet = Fleet(nodes, dict.fromkeys(range(slow), rate), seed, scatter)
            verdict = fleet.judged()
            fleets[verdict.verdict] += 1
            of_slow.update(check.verdict for check in verdict.nodes[:slow])
            others += any(check.verdict == gate.FAIL for check in verdict.nodes[slow:])
            rounds.append(fleet.rounds)
        given, told = (
            " / ".join(
                f"{100 * counts[word] / max(1, counts.total()):.0f}"
                for word in (gate.PASS, gate.FAIL, gate.INCONCLUSIVE)
            )
            for counts in (fleets, of_slow)
        )
        shown = f"{slow} at {rate:.0%}" if slow else "none"
        rows.append([nodes, scatter, shown, given, told if slow else "", others, int(np.median(rounds))])
    headers = [
        "nodes",
        "scatter",
        "slow",
        "fleets, % PASS / FAIL / INCONCLUSIVE",
        "slow nodes, %",
        "named a sound one",
        "rounds",
    ]
    print(tabulate(rows, headers, tablefmt="github"))


if __name__ == "__main__":
    main()
