"""Find the nodes of a fleet that are too slow, from exchanges between pairs of nodes, in few rounds.

In: seconds that pairs of nodes, or larger groups, took in each round. Out: which pairs to measure next, and a
`GateVerdict`. Starts nothing.

    look       LOOKS matchings: every node is measured with as many partners at the same time as all others
    retest     RETESTS matchings in which every suspect has a partner that passed; new measurements decide
    scale      groups of 4, 8, … nodes: faults that only many nodes together show

A slow node is slow with every partner, and its partners are slow with it alone: so a node's score is the median of its
pairs. All times are taken as logarithms, relative to the median pair of the same round; what they scatter by is the
median absolute deviation of all of them. A suspect is named on its retests alone, with the error rate shared among all
suspects (Bonferroni), and only if it is slower by more than is allowed.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import ndtri

from bench.catalog.pairing import rounds
from bench.model.comparisons import GateVerdict, GroupCheck, NodeCheck
from bench.stats.intervals import Floats

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
LOOKS, RETESTS = 4, 4
# Nodes whose score lies so many standard deviations above the others are retested: a fiftieth of a sound fleet.
SUSPICIOUS = 2.0
# Chance that any node of a sound fleet is named; half for nodes, half for groups.
ERROR_RATE = 0.02
# Of a normal distribution, the standard deviation over the median absolute deviation; and of the median of LOOKS
# values, over that of one (Monte Carlo, 10⁷ draws: 0.5455).
MAD_TO_SD, SD_OF_MEDIAN = 1.4826, 0.5455
# A smaller scatter than clocks and counters have would make chance significant.
LEAST_SD = 0.01
# Fewer groups of a level say too little about what is usual.
FEWEST_GROUPS = 3

Pair = tuple[int, int]
Times = Mapping[Pair, float]


def looks(nodes: int) -> list[list[Pair]]:
    """The first matchings: so many that every node meets LOOKS others, or all of them."""
    every = rounds(nodes)
    step = max(1, len(every) // LOOKS)
    return every[::step][:LOOKS]


def suspects(taken: Sequence[Times], nodes: int, allowed: float) -> list[int]:
    """The nodes to retest, the most suspicious first. allowed: share of the usual rate that a node must reach."""
    scores, sd = _scores(taken, nodes)
    limit = min(SUSPICIOUS * SD_OF_MEDIAN * sd, -math.log(allowed))
    found = [node for node in range(nodes) if scores[node] > limit]
    return sorted(found, key=lambda node: -scores[node])[: nodes // 2]


def retests(nodes: int, suspected: Sequence[int]) -> list[list[Pair]]:
    """Matchings in which each suspect has another partner that passed, and the others measure what is usual."""
    passed = [node for node in range(nodes) if node not in set(suspected)]
    found = []
    for turn in range(RETESTS):
        shift = turn * max(1, len(passed) // RETESTS)
        partners = passed[shift:] + passed[:shift]
        pairs = list(zip(suspected, partners, strict=False))
        left = partners[len(pairs) :]
        pairs += zip(left[::2], left[1::2], strict=False)
        found.append([(min(pair), max(pair)) for pair in pairs])
    return found


def levels(members: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """Groups of 4, 8, … of these nodes, neighbours together; the last level has all of them."""
    found, size = [], 4
    while size < len(members):
        starts = range(0, len(members) - size + 1, size)
        found.append([tuple(members[start : start + size]) for start in starts])
        size *= 2
    return [*found, [tuple(members)]] if len(members) > 2 else found


def judge(
    taken: Sequence[Times],
    again: Sequence[Times],
    suspected: Sequence[int],
    nodes: int,
    allowed: float,
    usual_s: float | None = None,
) -> list[NodeCheck]:
    """A verdict on each node, from its retests where it is suspected.

    usual_s: seconds of a pair that is just good enough, from a table; without it, `allowed` of the fleet's own median.
    """
    scores, _ = _scores(taken, nodes)
    checks = {node: NodeCheck(node, float(scores[node]), None, PASS, "") for node in range(nodes)}
    limit = -math.log(allowed)
    for node, values, sd in _of_suspects(again, suspected):
        checks[node] = _tested(node, values, sd, limit, len(suspected))
    if usual_s is not None:
        for node in range(nodes):
            checks[node] = _against(checks[node], _pairs_of(node, [*taken, *again]), usual_s)
    return [checks[node] for node in range(nodes)]


def judge_groups(
    taken: Sequence[Mapping[tuple[int, ...], float]], looked: Sequence[Times], nodes: int, allowed: float
) -> list[GroupCheck]:
    """Groups of one level that are slower than the others of it; of fewer than FEWEST_GROUPS groups none can be.

    Few groups say little about what they scatter by: at least what the pairs of the first looks do.
    """
    found = []
    _, of_pairs = _scores(looked, nodes)
    tested = [level for level in taken if len(level) >= FEWEST_GROUPS]
    total = sum(map(len, tested))
    for level in tested:
        logs = np.log(np.array(list(level.values())))
        residuals = logs - np.median(logs)
        critical = float(-ndtri(ERROR_RATE / 2 / total)) * max(of_pairs, _sd(residuals))
        for members, residual in zip(level, residuals.tolist(), strict=True):
            if residual > critical and residual > -math.log(allowed):
                found.append(GroupCheck(members, math.exp(-residual)))
    return found


def conclude(nodes: Sequence[NodeCheck], groups: Sequence[GroupCheck], broken: Sequence[str]) -> GateVerdict:
    """PASS if every node passed and nothing broke; FAIL if one surely did not; else INCONCLUSIVE.

    broken: sentences on what failed while it was measured.
    """
    verdicts = {one.verdict for one in nodes}
    verdict = FAIL if FAIL in verdicts or groups or broken else INCONCLUSIVE if INCONCLUSIVE in verdicts else PASS
    return GateVerdict(verdict, tuple(nodes), tuple(groups), tuple(broken))


# ── scores ───────────────────────────────────────────────────────────────────────────────────────
def _scores(taken: Sequence[Times], nodes: int) -> tuple[Floats, float]:
    """The median residual of each node, and what residuals scatter by."""
    residuals: list[list[float]] = [[] for _ in range(nodes)]
    every = []
    for times in filter(None, taken):
        middle = float(np.median(np.log(list(times.values()))))
        for pair, seconds in times.items():
            residual = math.log(seconds) - middle
            every.append(residual)
            for node in pair:
                residuals[node].append(residual)
    return np.array([float(np.median(one)) if one else 0.0 for one in residuals]), _sd(np.array(every))


def _sd(residuals: Floats) -> float:
    """Standard deviation, from the median absolute deviation, which a few slow nodes do not change."""
    if not len(residuals):
        return LEAST_SD
    return max(LEAST_SD, MAD_TO_SD * float(np.median(np.abs(residuals - np.median(residuals)))))


def _of_suspects(again: Sequence[Times], suspected: Sequence[int]) -> list[tuple[int, list[float], float]]:
    """Of each suspect: the residuals of its retests, and what those of other pairs scatter by."""
    named = set(suspected)
    values: dict[int, list[float]] = {node: [] for node in suspected}
    usual = []
    for times in filter(None, again):
        logs = {pair: math.log(seconds) for pair, seconds in times.items()}
        controls = [value for pair, value in logs.items() if not named & set(pair)] or list(logs.values())
        middle = float(np.median(controls))
        usual += [value - middle for value in controls]
        for pair, value in logs.items():
            for node in named & set(pair):
                values[node].append(value - middle)
    sd = _sd(np.array(usual)) if usual else LEAST_SD
    return [(node, found, sd) for node, found in values.items()]


def _tested(node: int, values: Sequence[float], sd: float, limit: float, suspected: int) -> NodeCheck:
    if not values:
        return NodeCheck(node, 0.0, None, INCONCLUSIVE, "suspected, and there was nobody to retest it with")
    mean, error = float(np.mean(values)), sd / math.sqrt(len(values))
    critical = float(-ndtri(ERROR_RATE / 2 / suspected)) * error
    rate = math.exp(-mean)
    if mean > critical and mean > limit:
        return NodeCheck(node, mean, rate, FAIL, f"{rate:.0%} of the usual rate with {len(values)} sound partners")
    if mean > limit:
        note = f"suspected; {rate:.0%} of the usual rate in its retests, which chance could do"
        return NodeCheck(node, mean, rate, INCONCLUSIVE, note)
    return NodeCheck(node, mean, rate, PASS, "suspected at first, sound in its retests")


def _pairs_of(node: int, taken: Sequence[Times]) -> list[float]:
    return [seconds for times in taken for pair, seconds in times.items() if node in pair]


def _against(check: NodeCheck, pairs: Sequence[float], usual_s: float) -> NodeCheck:
    """Hold a node that passed among its fellows against a table: its best pair must be good enough."""
    if check.verdict != PASS or not pairs or min(pairs) <= usual_s:
        return check
    rate = usual_s / min(pairs)
    return NodeCheck(check.node, check.score, rate, FAIL, f"{rate:.0%} of what the table expects, in its best pair")
