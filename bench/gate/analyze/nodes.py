"""Find the nodes of a fleet that are too slow, from a few rounds in which groups of nodes are measured at once.

In: a `Fleet`, which measures groups of nodes, and drops the nodes that fail meanwhile. Out: a `GateVerdict`. Starts
nothing.

    inside     the ranks of each node among themselves, all nodes at the same time
    look       LOOKS matchings: every node is measured with as many partners at the same time as all others
    retest     suspects, each with partners that passed, in up to TURNS turns; only these decide

A slow node is slow with every partner, and its partners are slow with it alone: so a node's score is the median of its
pairs. All times are taken as logarithms, relative to the usual group of the same round. A suspect has an interval from
its retests: Student's t with what sound groups scatter by, and the error rate shared among all suspects and turns. It
fails if the whole interval is slower than allowed, passes if none of it is, and is INCONCLUSIVE else. Who was not
measured is INCONCLUSIVE, too.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy.special import stdtrit

from bench.catalog import operations
from bench.catalog.operations import OPERATIONS
from bench.catalog.subgroups import in_text, rounds
from bench.config.models import Config
from bench.gate.conclusions import CheckVerdict, GateVerdict, NodeCheck
from bench.model.conclusions import Interval, IntervalKind
from bench.model.errors import BenchError, ConfigError
from bench.model.records import Case, Machine
from bench.planning import plan
from bench.stats.intervals import without_interval

PASS, FAIL, INCONCLUSIVE, _ = CheckVerdict
LOOKS = 4
# Launches of the inside of all nodes at once, and further ones in a turn of retests: each is one value of each node.
LOOKS_INSIDE, RETESTS_INSIDE = 2, 4
# Matchings in a turn of retests. More cost little, but a launch does.
RETESTS = 8
# Whoever is undecided after these turns stays so. At a scatter of 0.13, 24 retests tell 85 % of the rate from 75 %.
TURNS = 3
# Retest a node whose score is 2 standard deviations above the median (2 % of a sound fleet), but never for less than
# half of the allowed slowdown.
SUSPICIOUS, SUSPICIOUS_PART = 2.0, 0.5
# Chance that any node of a sound fleet is named: a half for each of inside and pairs.
ERROR_RATE, STAGES = 0.02, 2
# Of a normal distribution, the standard deviation over the median absolute deviation; and by number of values, that of
# their median over that of one (Monte Carlo, 10⁷ draws).
MAD_TO_SD = 1.4826
SD_OF_MEDIAN = {1: 1.0, 2: 0.7071, 3: 0.6698, 4: 0.5455}
# Variance of the median of many values, over that of their mean.
OF_MEDIAN = math.pi / 2
# A smaller scatter than clocks and counters have would make chance significant.
LEAST_SD = 0.01
# Of three nodes, two are in every slow pair of the third: nobody can say what is usual.
FEWEST_NODES = 4
# One look does not tell a node from its partner.
FEWEST_LOOKS = 2
# Of fewer pairs in a round, half may have a slow node by chance: the usual one is then that of all rounds.
FEWEST_PAIRS = 8
# If the fastest 5 % deviate from the median by more than the slowest 5 % do (plus the limit), the median itself is
# slow: about a third of the nodes are bad.
FASTEST = 0.05

Group = tuple[int, ...]
# Groups that are measured at the same time; no node is in two of them.
Round = list[Group]
Times = Mapping[Group, float]


class Fleet(Protocol):
    """Nodes 0, 1, … that can be measured in groups.

    several: the nodes with several ranks. dropped: node → why it is measured no more, because it failed.
    broken: sentences on what failed while it was measured and could be ascribed to no node.
    """

    @property
    def nodes(self) -> int: ...

    @property
    def several(self) -> Sequence[int]: ...

    @property
    def dropped(self) -> Mapping[int, str]: ...

    @property
    def broken(self) -> Sequence[str]: ...

    def measured(
        self, stage: str, nodes: Sequence[int], rounds_of: Callable[[Sequence[int]], list[Round]]
    ) -> list[Times]:
        """Seconds of each group in each round of `rounds_of(nodes)`, a round that occurs again in another launch.

        Nodes that fail are dropped, and the rounds are made and measured again without them; what could not be measured
        in a bounded number of attempts is missing.
        """


# ── rounds ───────────────────────────────────────────────────────────────────────────────────────
def looks(nodes: Sequence[int]) -> list[Round]:
    """LOOKS matchings of these nodes; of few nodes, all that there are, again and again."""
    every: list[Round] = []
    if len(nodes) > 1:
        every = [[(nodes[a], nodes[b]) for a, b in pairs] for pairs in rounds(len(nodes))]
    chosen = every[:: max(1, len(every) // LOOKS)][:LOOKS]
    return chosen * math.ceil(LOOKS / len(chosen)) if chosen else []


def retests(suspected: Sequence[int], nodes: Sequence[int]) -> list[Round]:
    """Matchings in which each suspect has another partner that is none, and the others measure what is usual."""
    suspected = [node for node in suspected if node in nodes]
    sound = [node for node in nodes if node not in suspected]
    if not suspected or len(sound) < len(suspected):
        return []
    matchings: list[Round] = []
    turns = min(RETESTS, len(sound))
    for turn in range(turns):
        shift = turn * len(sound) // turns
        partners = sound[shift:] + sound[:shift]
        left = partners[len(suspected) :]
        pairs = [*zip(suspected, partners, strict=False), *zip(left[::2], left[1::2], strict=False)]
        matchings.append([*pairs])
    return matchings


def _alone(nodes: Sequence[int], launches: int) -> list[Round]:
    """Each node alone, all at the same time, in this many launches."""
    return [[(node,) for node in nodes]] * launches if nodes else []


@dataclass(frozen=True, slots=True)
class _Stage:
    """How nodes are examined. retests: takes the suspects first. most: suspects in a turn, by the number of nodes."""

    name: str
    looks: Callable[[Sequence[int]], list[Round]]
    retests: Callable[[Sequence[int], Sequence[int]], list[Round]]
    most: Callable[[int], int]
    partners: str


# Most nodes must remain to say what is usual; with pairs, at least one without suspects.
INSIDE = _Stage(
    "inside", partial(_alone, launches=LOOKS_INSIDE), lambda _, nodes: _alone(nodes, RETESTS_INSIDE),
    lambda nodes: nodes // 2, "among its own ranks",
)  # fmt: skip
PAIRS = _Stage("look", looks, retests, lambda nodes: nodes // 2 - 1, "with sound partners")


def schedule(nodes: int, inside: int) -> tuple[list[list[Round]], list[list[Round]]]:
    """The rounds of each stage of a sound fleet, and those that suspects may add at most. inside: nodes with several
    ranks."""
    every = range(nodes)
    usual = [INSIDE.looks(range(inside)), looks(every)]
    further = [_alone(range(inside), RETESTS_INSIDE), retests([0], every)] * TURNS
    return [stage for stage in usual if stage], [stage for stage in further if stage]


# ── what is measured, and how long it takes ──────────────────────────────────────────────────────
def check(settings: Config, path: Path) -> None:
    """Raise ConfigError unless the configuration begins with a collective on buffers."""
    operation = next(iter(settings.operations), None)
    if operation is None or not OPERATIONS[operation].typed or not OPERATIONS[operation].sized:
        raise ConfigError(f"{path}: operations: gate needs a collective on buffers first, not {operation or 'none'}")


def estimate_s(settings: Config, path: Path, machine: Machine, nodes: int) -> float:
    """Seconds that a gate takes at most, of nodes that are alike. Raises BenchError where nothing can be compared."""
    check(settings, path)
    if nodes < 2:
        raise BenchError("plan --verb gate: it compares nodes: --nodes 2 or more")
    return estimates_s(settings, machine, [machine.ranks_a_host or 1] * nodes)[1]


def estimates_s(settings: Config, machine: Machine, ranks: Sequence[int]) -> tuple[float, float]:
    """Seconds that a gate takes of a sound fleet, and with suspects, from rough rates. ranks: of each node."""
    several = [count for count in ranks if count > 1]

    def stage_s(rounds: Sequence[Round]) -> float:
        each = min(several) if all(len(group) == 1 for groups in rounds for group in groups) else min(ranks)
        world = sum(several) if each != min(ranks) else sum(ranks)
        cases = [
            case(settings, world, [[node * each + rank for node in group for rank in range(each)] for group in groups])
            for groups in rounds
        ]
        return plan.estimate_s(plan.plan_cases(settings, machine, 0, "gate", cases))

    usual, further = (sum(map(stage_s, stages)) for stages in schedule(len(ranks), len(several)))
    return usual, usual + further


def case(settings: Config, world_size: int, groups: Sequence[Sequence[int]]) -> Case:
    """The call that is measured, by these groups of ranks at the same time."""
    asked = Case(
        settings.operations[0],
        settings.backends[0],
        world_size,
        settings.dtypes[0],
        max(settings.size_list, default=0),
        buffers=settings.buffers,
        groups=in_text(groups),
    )
    return operations.usual(asked)


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
def examine(fleet: Fleet, allowed: float, least_s: float | None = None) -> GateVerdict:
    """Measure a fleet as far as needed, and judge it.

    allowed: share of the usual rate that a node must reach. least_s: seconds of a pair that is just good enough, from
    a table; without it, nodes are compared with each other only.
    """
    limit, nodes = -math.log(allowed), range(fleet.nodes)
    inside = _examined(INSIDE, fleet, fleet.several, limit).checks
    sound = [node for node in nodes if node not in inside or inside[node].verdict != FAIL]
    pairs = _examined(PAIRS, fleet, sound, limit)
    between = pairs.checks if least_s is None else _against_table(pairs, least_s)
    checks = []
    for node in nodes:
        if node in fleet.dropped:
            checks.append(NodeCheck(node, FAIL, None, fleet.dropped[node]))
        else:
            own = [stage[node] for stage in (inside, between) if node in stage]
            checks.append(min(own, key=lambda check: (FAIL, INCONCLUSIVE, PASS).index(check.verdict)))
    single, remarks = fleet.nodes - len(fleet.several), []
    if single:
        which = "every node has" if single == fleet.nodes else f"{single} of {fleet.nodes} nodes have"
        remarks.append(f"{which} one rank, so that nothing was measured inside: no link between GPUs of one node")
    verdicts = {check.verdict for check in checks}
    if fleet.broken:
        verdicts.add(INCONCLUSIVE)
    verdict = next(worst for worst in (FAIL, INCONCLUSIVE, PASS) if worst in verdicts)
    return GateVerdict(verdict, tuple(checks), tuple(remarks), tuple(fleet.broken))


@dataclass(frozen=True, slots=True)
class _Examined:
    """The verdicts of a stage, and the times of all its rounds. comparable: whether it is known what is usual."""

    checks: Mapping[int, NodeCheck]
    taken: Sequence[Times] = ()
    comparable: bool = True


def _examined(stage: _Stage, fleet: Fleet, nodes: Sequence[int], limit: float) -> _Examined:
    """A verdict on each of these nodes, from its retests where it is suspected.

    limit: logarithm of the largest time that is allowed over the usual one.
    """
    taken = fleet.measured(stage.name, nodes, stage.looks)
    counts = {node: sum(node in group for times in taken for group in times) for node in nodes}
    checks = {node: NodeCheck(node, INCONCLUSIVE, None, "the rounds that it was in failed") for node in nodes}
    tested = [node for node in nodes if counts[node] >= FEWEST_LOOKS and node not in fleet.dropped]
    if not tested:
        return _Examined(checks)
    residuals = _from_usual(taken)
    fast, slow = np.quantile([residual for _, residual in residuals], [FASTEST, 1 - FASTEST], method="lower")
    why = None
    if len(tested) < FEWEST_NODES:
        why = f"of fewer than {FEWEST_NODES} nodes nobody can say what is usual"
    elif -fast > limit + slow:
        why = "so many nodes differ that nobody can say what is usual"
    if why is not None:
        note = f"{why}: give the rate by --against"
        checks |= {node: NodeCheck(node, INCONCLUSIVE, None, note) for node in tested}
        return _Examined(checks, taken, comparable=False)
    scores, suspected = suspects(residuals, tested, limit)
    for node in tested:
        checks[node] = NodeCheck(node, PASS, without_interval(math.exp(-scores[node])), "")
    for node in suspected:
        note = "suspected; too few others are sound to retest it with"
        checks[node] = NodeCheck(node, INCONCLUSIVE, without_interval(math.exp(-scores[node])), note)
    turns, again = Counter[int](), list[Times]()
    while waiting := [
        node
        for node in suspected
        if checks[node].verdict == INCONCLUSIVE and turns[node] < TURNS and node not in fleet.dropped
    ]:
        batch, later = waiting[: stage.most(len(tested))], waiting[stage.most(len(tested)) :]
        able = [node for node in tested if checks[node].verdict != FAIL and node not in later]
        again += fleet.measured(f"{stage.name}-retest", able, partial(stage.retests, batch))
        compared = _compare(again, lambda group: not set(suspected).isdisjoint(group))
        for node in batch:
            checks[node] = _retested(node, compared, len(suspected) * TURNS, limit, stage.partners) or checks[node]
        turns.update(batch)
    return _Examined(checks, [*taken, *again])


def _from_usual(taken: Sequence[Times]) -> list[tuple[Group, float]]:
    """Logarithm of the time of each group over that of the usual group of its round; of few groups, of all rounds."""
    rounds = [list(times.items()) for times in taken if times]
    if any(len(entries) < FEWEST_PAIRS for entries in rounds):
        rounds = [list(itertools.chain(*rounds))]
    residuals: list[tuple[Group, float]] = []
    for entries in rounds:
        logs = np.log([seconds for _, seconds in entries])
        usual = np.sort(logs)[(len(logs) - 1) // 2]  # not between two: of 4 nodes, half of all pairs have the slow one
        residuals += zip((group for group, _ in entries), (logs - usual).tolist(), strict=True)
    return residuals


def suspects(
    residuals: Sequence[tuple[Group, float]], nodes: Sequence[int], limit: float
) -> tuple[dict[int, float], list[int]]:
    """The score of each node, the median of its residuals; and the nodes to retest, the most suspicious first."""
    spread = np.array([residual for _, residual in residuals])
    sd = max(LEAST_SD, MAD_TO_SD * float(np.median(np.abs(spread - np.median(spread)))))
    scores, suspicious = {}, []
    for node in nodes:
        own = [residual for group, residual in residuals if node in group]
        scores[node] = float(np.median(own))
        by_scatter = SUSPICIOUS * SD_OF_MEDIAN[min(len(own), max(SD_OF_MEDIAN))] * sd
        if scores[node] > min(limit, max(SUSPICIOUS_PART * limit, by_scatter)):
            suspicious.append(node)
    return scores, sorted(suspicious, key=lambda node: -scores[node])


@dataclass(frozen=True, slots=True)
class _Compared:
    """Groups beside what is usual. residuals: group, logarithm of its time over the usual, number of usual groups.

    sd, freedom: what usual groups scatter by, with its degrees of freedom; 0 where nothing is known of it.
    """

    residuals: list[tuple[Group, float, float]]
    sd: float
    freedom: int


def _compare(taken: Sequence[Times], apart: Callable[[Group], bool]) -> _Compared:
    """Compare each group with those that are not apart, of its round; of few nodes, with those of all rounds."""
    rounds = [[(group, math.log(seconds)) for group, seconds in times.items()] for times in taken if times]
    if any(sum(not apart(group) for group, _ in entries) < 2 for entries in rounds):
        rounds = [list(itertools.chain(*rounds))]
    residuals: list[tuple[Group, float, float]] = []
    squares, freedom = 0.0, 0
    for entries in rounds:
        usual = [log for group, log in entries if not apart(group)]
        if usual:
            middle = float(np.median(usual))
            residuals += [(group, log - middle, len(usual)) for group, log in entries]
            squares += float(np.var(usual)) * len(usual)
            freedom += len(usual) - 1
    return _Compared(residuals, max(LEAST_SD, math.sqrt(squares / freedom)) if freedom else 0.0, freedom)


def _rate(compared: _Compared, concerns: Callable[[Group], bool], shares: int) -> Interval | None:
    """The rate of some groups as a share of the usual one, with its interval; None where it is not known.

    shares: of the error rate. The usual rate, a median over the groups, is itself uncertain; a table's is not.
    """
    values = [(residual, usual) for group, residual, usual in compared.residuals if concerns(group)]
    if not values or not compared.freedom:
        return None
    score = float(np.mean([residual for residual, _ in values]))
    error = compared.sd * math.sqrt(sum(1 + OF_MEDIAN / usual for _, usual in values)) / len(values)
    half = float(stdtrit(compared.freedom, 1 - ERROR_RATE / STAGES / shares)) * error
    return Interval(math.exp(-score), math.exp(-score - half), math.exp(-score + half), IntervalKind.OVER_RETESTS)


def _retested(node: int, compared: _Compared, shares: int, limit: float, partners: str) -> NodeCheck | None:
    """A verdict from the retests of a node; None if they say nothing."""
    rate = _rate(compared, lambda group: node in group, shares)
    if rate is None:
        return None
    count = sum(node in group for group, _, _ in compared.residuals)
    if rate.high < math.exp(-limit):
        return NodeCheck(node, FAIL, rate, f"too slow {partners}, in {count} retests")
    if rate.low > math.exp(-limit):
        return NodeCheck(node, PASS, rate, "suspected at first, sound in its retests")
    return NodeCheck(node, INCONCLUSIVE, rate, f"suspected; {count} retests do not tell")


def _against_table(pairs: _Examined, least_s: float) -> dict[int, NodeCheck]:
    """Hold against the table whoever did not fail among its fellows, by the mean of its pairs with others such."""
    checks = pairs.checks
    failed = {node for node, check in checks.items() if check.verdict == FAIL}
    sound = [{group: s for group, s in times.items() if failed.isdisjoint(group)} for times in pairs.taken]
    scatter = _compare(sound, lambda _: False)
    held = dict(checks)
    for node, check in checks.items():
        logs = [math.log(s / least_s) for times in sound for group, s in times.items() if node in group]
        if check.verdict == FAIL or not logs or not scatter.freedom:
            continue
        compared = _Compared([((node,), log, math.inf) for log in logs], scatter.sd, scatter.freedom)
        rate = _rate(compared, lambda _: True, len(checks))
        assert rate is not None  # noqa: S101 - there are times and a scatter
        if rate.high < 1:
            partner = "; with one partner, either may be it" if len(checks) == 2 else ""
            held[node] = NodeCheck(node, FAIL, rate, f"too slow for the table{partner}")
        elif rate.low < 1:
            held[node] = NodeCheck(node, INCONCLUSIVE, rate, "its pairs do not tell whether it reaches the table")
        elif not pairs.comparable:
            held[node] = NodeCheck(node, PASS, rate, "reaches the table; nobody can say what is usual here")
    return held
