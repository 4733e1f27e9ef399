"""Find the nodes of a fleet that are too slow, from rounds in which groups of nodes are measured at the same time.

In: a `Fleet`, which measures groups of nodes, and drops nodes that fail. Out: a `GateVerdict`. Starts no launch.

    inside     the ranks of each node among themselves, all nodes at the same time
    look       matchings: pairs of nodes, all at the same time, with different partners in each round

Both are repeated in up to TURNS turns, until every node is decided. A slow node is slow with every partner, and its
partners are slow only with it. So the model for the logarithm of a group's time is the sum of its nodes' effects, plus
an effect of the round if rounds have many groups, fitted by least squares. The slowness of a node is its effect less
the median effect of the other nodes. A node is PASS if an upper bound of its slowness is below the limit, FAIL if a
lower bound is above the limit, else INCONCLUSIVE. Missing evidence passes no node: a node that was not measured is
INCONCLUSIVE, too.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, stdtrit

from collbench.catalog import collectives
from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.subgroups import of_sets, rounds
from collbench.config.models import Config
from collbench.model.conclusions import Interval, IntervalKind
from collbench.model.errors import BenchError, ConfigError
from collbench.model.notices import Kind, Notice
from collbench.model.projection import grouped
from collbench.model.records import Case, Machine
from collbench.packages.gate.conclusions import CheckVerdict, GateVerdict, NodeCheck, SlowPath
from collbench.planning import plan
from collbench.stats.intervals import Floats

PASS, FAIL, INCONCLUSIVE, _ = CheckVerdict
# Per turn: fewest matchings, and launches of the inside of all nodes. More matchings cost little, but a launch
# is expensive, and a repeated matching needs a further launch: 4 nodes have only three matchings.
MATCHINGS, LAUNCHES_INSIDE = 8, 4
# Step between successive matchings, as a share of all matchings: the golden section spreads them best.
SPREAD = 0.382
# Fewest matchings of 2 or 3 nodes, which are only compared with a table.
MATCHINGS_OF_FEW = 4
# Most turns; then a node stays undecided. At a scatter of 0.13, 24 rounds distinguish 85 % of the rate from 75 %.
TURNS = 3
# False-alarm rate (any node of a sound fleet fails), split over the stages; rate at which a node at the limit passes.
ERROR_RATE, STAGES, PASS_RATE = 0.02, 2, 0.03
# Variance of the median of many values, divided by the variance of their mean.
OF_MEDIAN = math.pi / 2
# Smallest standard deviation: a value below the noise of clocks and counters would make chance significant.
LEAST_SD = 0.01
# With three nodes, a slow node is in two of the three pairs, so the usual rate is unknown.
FEWEST_NODES = 4
# Smallest eigenvalue, as a share of the largest eigenvalue, that is not a rounding error.
NO_VALUE = 1e-9
# Shrinkage of the variance of one node: the variance of all times counts as this many of its own times.
PRIOR = 10
# One round does not distinguish a node from its partner.
FEWEST_ROUNDS = 2
# With fewer groups in a round, half may have a slow node by chance: the usual time is then taken over all rounds.
FEWEST_GROUPS = 8
# If the fastest 5 % deviate from the median by more than the slowest 5 % do (plus the limit), the median itself is
# slow: about a third of the nodes are bad.
FASTEST = 0.05
# False-alarm rate: equal nodes are taken for two kinds, as more times are far below the usual time than far above.
TWO_KINDS_RATE = 0.02
# Standard deviations by which pairs across groups must be slower than pairs within groups, to divide nodes into groups.
SURELY_APART = 3.0
REFINEMENTS = 5
# Quantile of a node's times that shows its own speed, even if only a few of its partners are sound.
BEST = 0.25

Group = tuple[int, ...]
# Groups that are measured at the same time; no node is in two groups.
Round = list[Group]
Times = Mapping[Group, float]
# Function of nodes and a `turn` that makes the rounds of these nodes.
RoundsOf = Callable[..., list[Round]]


class Fleet(Protocol):
    """Nodes 0, 1, … that can be measured in groups."""

    nodes: int
    # Nodes with several ranks.
    several: Sequence[int]
    # Node that failed → notice on the reason; it is not measured any more.
    dropped: dict[int, Notice]
    # Notices on failures that could not be attributed to a node.
    broken: list[Notice]

    def measured(
        self, stage: str, nodes: Sequence[int], rounds_of: Callable[[Sequence[int]], list[Round]]
    ) -> list[Times]:
        """Return the seconds of each group in each round of `rounds_of(nodes)`; a repeated round has a further launch.

        Nodes that fail are dropped, and the rounds are made and measured again without them. Groups that could not be
        measured in a bounded number of attempts are missing.
        """


# ── rounds ───────────────────────────────────────────────────────────────────────────────────────
def matchings(nodes: Sequence[int], turn: int = 0) -> list[Round]:
    """Return matchings of these nodes: of many nodes, different matchings per turn; of few, all matchings, repeated."""
    every: list[Round] = []
    if len(nodes) > 1:
        every = [[(nodes[a], nodes[b]) for a, b in pairs] for pairs in rounds(len(nodes))]
    wanted = MATCHINGS if len(nodes) >= FEWEST_NODES else MATCHINGS_OF_FEW
    if len(every) > wanted:
        # Not successive matchings: in these, a node meets only nodes of one part of the list.
        step = next(step for step in range(round(SPREAD * len(every)), len(every)) if math.gcd(step, len(every)) == 1)
        return [every[(turn * wanted + number) * step % len(every)] for number in range(wanted)]
    return every * math.ceil(wanted / len(every)) if every else []


def alone(nodes: Sequence[int], turn: int = 0) -> list[Round]:
    """Return rounds in which each node is measured alone, all nodes at the same time, in several launches."""
    return [[(node,) for node in nodes]] * LAUNCHES_INSIDE if nodes else []


def schedule(nodes: int, inside: int) -> tuple[list[list[Round]], list[list[Round]]]:
    """Return the rounds of each stage for a sound fleet, and the most further rounds for undecided nodes.

    inside: number of nodes with several ranks.
    """
    turns = [[alone(range(inside), turn), matchings(range(nodes), turn)] for turn in range(TURNS)]
    usual, *further = [[stage for stage in stages if stage] for stages in turns]
    return usual, [stage for stages in further for stage in stages]


# ── the measured case, and its duration ──────────────────────────────────────────────────────────
def check(settings: Config, path: Path) -> None:
    """Raise ConfigError unless the configuration begins with a collective on buffers."""
    operation = next(iter(settings.operations), None)
    if operation is None or not OPERATIONS[operation].typed or not OPERATIONS[operation].sized:
        raise ConfigError(f"{path}: operations: gate needs a collective on buffers first, not {operation or 'none'}")


def estimate_s(settings: Config, path: Path, machine: Machine, nodes: int) -> float:
    """Return the most seconds that a gate takes for equal nodes. Raises BenchError if nothing can be compared."""
    check(settings, path)
    if nodes < 2:
        raise BenchError("plan --verb gate: gate compares nodes: give --nodes 2 or more")
    return estimates_s(settings, machine, [machine.ranks_a_host or 1] * nodes)[1]


def estimates_s(settings: Config, machine: Machine, ranks: Sequence[int]) -> tuple[float, float]:
    """Estimate the seconds of a gate for a sound fleet, and with undecided nodes, from rough rates. ranks: per node."""
    several = [count for count in ranks if count > 1]

    def stage_s(rounds: Sequence[Round]) -> float:
        each = min(several) if all(len(group) == 1 for groups in rounds for group in groups) else min(ranks)
        world = sum(several) if each != min(ranks) else sum(ranks)
        cases = [
            case(settings, world, [[node * each + rank for node in group for rank in range(each)] for group in groups])
            for groups in rounds
        ]
        return plan.estimate_s(plan.plan_cases(settings, machine, 0, "gate", cases))

    usual_s, further_s = (sum(map(stage_s, stages)) for stages in schedule(len(ranks), len(several)))
    return usual_s, usual_s + further_s


def case(settings: Config, world_size: int, groups: Sequence[Sequence[int]]) -> Case:
    """Return the case in which these groups of ranks make the measured call at the same time."""
    requested = Case(
        settings.operations[0],
        settings.backends[0],
        world_size,
        settings.dtypes[0],
        max(settings.size_list, default=0),
        buffers=settings.buffers,
        groups=of_sets(groups),
    )
    return collectives.usual(requested)


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
DROPPED = Kind("dropped", "{why}")
SLOW_INSIDE = Kind("slow-inside", "too slow among its own ranks, in {rounds} rounds")
SLOW_BETWEEN = Kind("slow-between", "too slow with all partners, in {rounds} rounds")
NONE_INSIDE = Kind(
    "none-inside", "every node has one rank, so nothing was measured inside: no link between GPUs of one node"
)
SOME_NOT_INSIDE = Kind(
    "some-not-inside",
    "{single} of {nodes} nodes have one rank, so nothing was measured inside: no link between GPUs of one node",
)


def examine(fleet: Fleet, allowed: float, least_s: float | None = None) -> GateVerdict:
    """Measure a fleet as far as needed, and judge it.

    allowed: share of the usual rate that a node must reach. least_s: seconds of a pair that is just good enough, from
    a table; without it, nodes are compared with each other only.
    """
    limit, nodes = -math.log(allowed), range(fleet.nodes)
    inside, _ = _examined("inside", alone, SLOW_INSIDE, fleet, fleet.several, limit)
    sound = [node for node in nodes if node not in inside or inside[node].verdict != FAIL]
    between, taken = _examined("look", matchings, SLOW_BETWEEN, fleet, sound, limit)
    if least_s is not None:
        between = _against_table(between, taken, least_s)
    checks = []
    for node in nodes:
        if node in fleet.dropped:
            checks.append(NodeCheck(node, FAIL, None, DROPPED(why=(fleet.dropped[node],))))
        else:
            own = [stage[node] for stage in (inside, between) if node in stage]
            checks.append(min(own, key=lambda check: (FAIL, INCONCLUSIVE, PASS).index(check.verdict)))
    single, remarks = fleet.nodes - len(fleet.several), []
    if single == fleet.nodes:
        remarks.append(NONE_INSIDE())
    elif single:
        remarks.append(SOME_NOT_INSIDE(single=single, nodes=fleet.nodes))
    failed = any(check.verdict == FAIL for check in checks)
    path = None if failed else slow_path(taken, limit)
    passed = not fleet.broken and path is None and all(check.verdict == PASS for check in checks)
    verdict = FAIL if failed else PASS if passed else INCONCLUSIVE
    return GateVerdict(verdict, tuple(checks), tuple(remarks), tuple(fleet.broken), path)


def slow_path(taken: Sequence[Times], limit: float) -> SlowPath | None:
    """Return the groups of nodes whose pairs are slow across groups, and not within groups; None if there are none."""
    ends = np.array([pair for times in taken for pair in times], dtype=int).reshape(-1, 2)
    logs = np.log([s for times in taken for s in times.values()])
    groups = _apart(ends, logs, limit)
    if len(groups) < 2:
        return None
    # With more than two groups, a half can have nodes of each: every node goes to the group with which it is fastest.
    group_of = np.zeros(ends.max() + 1, dtype=int)
    for number, group in enumerate(groups):
        group_of[list(group)] = number
    for _ in range(REFINEMENTS):
        sums, counts = np.zeros((2, len(group_of), len(groups)))
        for node, partner in (ends.T, ends.T[::-1]):
            np.add.at(sums, (node, group_of[partner]), logs)
            np.add.at(counts, (node, group_of[partner]), 1)
        group_of = np.where(counts > 0, sums / np.maximum(counts, 1), math.inf).argmin(axis=1)
    members = [np.intersect1d(np.flatnonzero(group_of == number), ends) for number in range(len(groups))]
    across = np.not_equal(*group_of[ends].T)
    rate = math.exp(logs[~across].mean() - logs[across].mean())
    return SlowPath(tuple(sorted(tuple(group.tolist()) for group in members if len(group))), rate)


def _apart(ends: NDArray[np.int_], logs: Floats, limit: float) -> list[Group]:
    """Divide nodes into halves by their times without the effects of nodes, and divide each half again.

    A slow half is not a slow path: pairs within it are as slow as pairs across.
    """
    nodes, places = np.unique(ends, return_inverse=True)
    places, undivided = places.reshape(-1, 2), [tuple(nodes.tolist())]
    if len(nodes) < FEWEST_NODES:
        return undivided
    centred = logs - logs.mean()
    times = np.bincount(places.ravel(), minlength=len(nodes))
    effects = np.bincount(places.ravel(), np.repeat(centred, 2)) / times * (len(nodes) - 1) / (len(nodes) - 2)
    matrix = np.zeros((len(nodes), len(nodes)))
    np.add.at(matrix, tuple(places.T), centred - effects[places].sum(axis=1))
    side = np.linalg.eigh(matrix + matrix.T)[1][:, 0] > 0
    side_sums = side[places].sum(axis=1)  # 0 and 2 within a half, 1 across
    parts = [logs[side_sums == number] for number in range(3)]
    if min(map(len, parts)) < 2:
        return undivided
    gap = float(parts[1].mean() - max(parts[0].mean(), parts[2].mean()))
    sd = math.sqrt(sum(float(np.var(part)) * len(part) for part in parts) / max(1, len(logs) - len(parts)))
    if gap < max(limit, SURELY_APART * sd * math.sqrt(sum(1 / len(part) for part in parts))):
        return undivided
    halves = [_apart(ends[side_sums == number], logs[side_sums == number], limit) for number in (0, 2)]
    return halves[0] + halves[1]


@dataclass(frozen=True, slots=True)
class _Fit:
    """Effects of nodes on the logarithms of times, by least squares."""

    effects: dict[int, float]
    # Standard error of the contrast between a node and the mean of the other nodes.
    errors: dict[int, float]
    # Residual standard deviation of all times, and its degrees of freedom.
    sd: float
    freedom: int


def _fit(taken: Sequence[Times]) -> _Fit:
    """Fit the times of all rounds: an effect per node, and an effect per round if all rounds have many groups."""
    logs, groups, round_of = _logs(taken)
    nodes = sorted({node for group in groups for node in group})
    members = np.array([np.isin(nodes, group) for group in groups], dtype=float)
    levels = np.ones((len(logs), 1))
    if _by_round(taken):
        levels = (round_of[:, None] == np.unique(round_of)).astype(float)
    design = np.hstack([members, levels])
    # A common level may shift between effects of nodes and of rounds: the comparisons do not depend on it.
    inverse = np.linalg.pinv(design.T @ design, NO_VALUE, hermitian=True)
    solution = inverse @ design.T @ logs
    fit_errors = logs - design @ solution
    freedom = len(logs) - int(np.linalg.matrix_rank(inverse, hermitian=True))
    sd = max(LEAST_SD, math.sqrt(float(fit_errors @ fit_errors) / freedom)) if freedom > 0 else 0.0
    contrasts = np.eye(len(nodes)) - (1 - np.eye(len(nodes))) / max(1, len(nodes) - 1)
    variances = np.sum((contrasts @ inverse[: len(nodes), : len(nodes)]) * contrasts, axis=1)
    # The scatter of a node may be larger than the scatter of all times, as far as its own times show.
    own = PRIOR * sd**2 + len(logs) / max(1, freedom) * (fit_errors**2 @ members)
    scatter = np.maximum(sd**2, own / (PRIOR + members.sum(axis=0)))
    errors = np.sqrt(scatter * np.maximum(variances, 0))
    effects = dict(zip(nodes, solution.tolist(), strict=False))
    return _Fit(effects, dict(zip(nodes, errors.tolist(), strict=True)), sd, freedom)


def _by_round(taken: Sequence[Times]) -> bool:
    return all(len(times) >= FEWEST_GROUPS for times in taken if times)


def _logs(taken: Sequence[Times]) -> tuple[Floats, list[Group], NDArray[np.int_]]:
    """Return the logarithm of each time, its group, and the number of its round."""
    rows = [(math.log(s), group, number) for number, times in enumerate(taken) for group, s in times.items()]
    return np.array([log for log, _, _ in rows]), [group for _, group, _ in rows], np.array([row[2] for row in rows])


def _most_differ(taken: Sequence[Times], limit: float) -> bool:
    """Return whether the usual time may be that of slow nodes: times far below it are more, or farther, than above."""
    logs, groups, round_of = _logs(taken)
    by_round, deviations = _by_round(taken), np.empty(len(logs))
    for number in np.unique(round_of):
        # Lower median: of 4 nodes, half of all pairs have the slow node.
        usual = logs[round_of == number] if by_round else logs
        deviations[round_of == number] = logs[round_of == number] - np.quantile(usual, 0.5, method="lower")
    by_group = grouped(zip(groups, deviations.tolist(), strict=True), lambda pair: pair[0])
    means = [np.mean([deviation for _, deviation in pairs]) for pairs in by_group.values()]
    fastest, slowest = np.quantile(means, [FASTEST, 1 - FASTEST], method="lower")
    if -fastest > limit + slowest:
        return True
    fast, slow = (int(np.sum(sign * deviations > limit)) for sign in (-1, 1))
    return by_round and fast > 0 and float(bdtrc(fast - 1, fast + slow, 0.5)) < TWO_KINDS_RATE / TURNS


ROUNDS_FAILED = Kind("rounds-failed", "its rounds failed")
_GIVE = "give the rate by --against"
TOO_FEW_NODES = Kind("too-few-nodes", "with fewer than {fewest} nodes, the usual rate is unknown", _GIVE)
NOTHING_USUAL = Kind("nothing-usual", "too many nodes differ to know the usual value", _GIVE)


def _examined(
    stage: str, rounds_of: RoundsOf, slow: Kind, fleet: Fleet, nodes: Sequence[int], limit: float
) -> tuple[dict[int, NodeCheck], list[Times]]:
    """Return a verdict on each of these nodes, and the times of all rounds.

    slow: notice on a slow node. limit: logarithm of the largest allowed time over the usual time.
    """
    checks = {node: NodeCheck(node, INCONCLUSIVE, None, ROUNDS_FAILED()) for node in nodes}
    taken, why = list[Times](), None
    for turn in range(TURNS):
        name = stage if turn == 0 else f"{stage}-{turn + 1}"
        able = [node for node in nodes if node not in fleet.dropped]
        taken += fleet.measured(name, able, partial(rounds_of, turn=turn))
        counts = Counter(node for times in taken for group in times for node in group)
        tested = [node for node in nodes if counts[node] >= FEWEST_ROUNDS and node not in fleet.dropped]
        if not tested:
            break
        if len(tested) < FEWEST_NODES:
            why = TOO_FEW_NODES(fewest=FEWEST_NODES)
        elif _most_differ(taken, limit):
            why = NOTHING_USUAL()
        if why and (turn == TURNS - 1 or len(tested) < FEWEST_NODES):
            return checks | {node: NodeCheck(node, INCONCLUSIVE, None, why) for node in tested}, taken
        fit = _fit(taken)
        for node in tested:
            if not why and checks[node].verdict == INCONCLUSIVE:
                checks[node] = _judged(node, fit, tested, limit, slow, counts[node])
        if not why and all(checks[node].verdict != INCONCLUSIVE for node in tested):
            break
    return checks, taken


TOO_FEW_ROUNDS = Kind("too-few-rounds", "too few rounds were measured")
UNDECIDED_NODE = Kind("undecided-node", "undecided after {rounds} rounds")


def _judged(node: int, fit: _Fit, nodes: Sequence[int], limit: float, slow: Kind, count: int) -> NodeCheck:
    """Return the verdict on a node from all rounds so far. count: number of its rounds."""
    slowness = fit.effects[node] - float(np.median([fit.effects[other] for other in nodes if other != node]))
    share = 1 / (len(nodes) - 1)
    error = fit.errors[node] * math.sqrt((1 + OF_MEDIAN * share) / (1 + share))
    if fit.freedom < 1:
        return NodeCheck(node, INCONCLUSIVE, None, TOO_FEW_ROUNDS())
    fail_rate, pass_rate = (
        _rate(slowness, float(stdtrit(fit.freedom, 1 - error_rate / TURNS)) * error)
        for error_rate in (ERROR_RATE / STAGES / len(nodes), PASS_RATE)
    )
    if fail_rate.high < math.exp(-limit):
        return NodeCheck(node, FAIL, fail_rate, slow(rounds=count))
    if pass_rate.low > math.exp(-limit):
        return NodeCheck(node, PASS, pass_rate)
    return NodeCheck(node, INCONCLUSIVE, fail_rate, UNDECIDED_NODE(rounds=count))


def _rate(slowness: float, half: float) -> Interval:
    """Return a rate with its interval, from a logarithm of a time and half the width of its interval."""
    value, low, high = (math.exp(-slowness + shift) for shift in (0.0, -half, half))
    return Interval(value, low, high, IntervalKind.OVER_ROUNDS)


BELOW_TABLE = Kind("below-table", "too slow for the table")
ONE_OF_TWO = Kind("one-of-two", "too slow for the table; with one partner, either node may be the slow one")
NOT_SHOWN = Kind("not-shown", "its pairs do not show whether it reaches the table")
USUAL_UNKNOWN = Kind("usual-unknown", "reaches the table; the usual rate is unknown here")


def _against_table(checks: dict[int, NodeCheck], taken: Sequence[Times], least_s: float) -> dict[int, NodeCheck]:
    """Compare with the table every node that did not fail so far, by the mean of its pairs with such nodes.

    A pair is as slow as its slower node: only partners that reach the table in other pairs show whether a node does.
    """
    failed = {node for node, check in checks.items() if check.verdict == FAIL}
    sound = [{group: s for group, s in times.items() if failed.isdisjoint(group)} for times in taken]
    held = dict(checks)
    if not any(sound) or not (fit := _fit(sound)).freedom:
        return held
    half = float(stdtrit(fit.freedom, 1 - ERROR_RATE / STAGES / len(checks))) * fit.sd
    pairs = [
        (*ends, math.log(s / least_s)) for times in sound for group, s in times.items() for ends in (group, group[::-1])
    ]
    pairs_of = grouped(pairs, lambda pair: pair[0])
    best = {node: np.quantile([log for _, _, log in ends], BEST) for node, ends in pairs_of.items()}
    reaching = {node for node, log in best.items() if log < 0} or {*best}
    for node, check in checks.items():
        logs = [log for _, partner, log in pairs_of.get(node, ()) if partner in reaching]
        if check.verdict == FAIL or not logs:
            continue
        rate = _rate(float(np.mean(logs)), half / math.sqrt(len(logs)))
        if rate.high < 1:
            kind = ONE_OF_TWO if len(checks) == 2 else BELOW_TABLE
            held[node] = NodeCheck(node, FAIL, rate, kind())
        elif rate.low < 1:
            held[node] = NodeCheck(node, INCONCLUSIVE, rate, NOT_SHOWN())
        elif check.note is not None and check.note.kind in {TOO_FEW_NODES, NOTHING_USUAL}:
            held[node] = NodeCheck(node, PASS, rate, USUAL_UNKNOWN())
    return held
