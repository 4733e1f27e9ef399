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

from bench.catalog.subgroups import rounds
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
    suspicious = [node for node in range(nodes) if scores[node] > limit]
    return sorted(suspicious, key=lambda node: -scores[node])[: nodes // 2]


def retests(nodes: int, suspected: Sequence[int]) -> list[list[Pair]]:
    """Matchings in which each suspect has another partner that passed, and the others measure what is usual."""
    passed = [node for node in range(nodes) if node not in set(suspected)]
    matchings = []
    for turn in range(RETESTS):
        shift = turn * max(1, len(passed) // RETESTS)
        partners = passed[shift:] + passed[:shift]
        pairs = list(zip(suspected, partners, strict=False))
        left = partners[len(pairs) :]
        pairs += zip(left[::2], left[1::2], strict=False)
        matchings.append([(min(pair), max(pair)) for pair in pairs])
    return matchings


def levels(members: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """Groups of 4, 8, … of these nodes, neighbours together; the last level has all of them."""
    groups, size = [], 4
    while size < len(members):
        starts = range(0, len(members) - size + 1, size)
        groups.append([tuple(members[start : start + size]) for start in starts])
        size *= 2
    return [*groups, [tuple(members)]] if len(members) > 2 else groups


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
    checks = [NodeCheck(node, float(scores[node]), None, PASS, "") for node in range(nodes)]
    residuals: dict[int, list[float]] = {node: [] for node in suspected}
    usual: list[float] = []  # residuals of the pairs without a suspect
    for times in filter(None, again):
        logs = {pair: math.log(seconds) for pair, seconds in times.items()}
        controls = [log for pair, log in logs.items() if not residuals.keys() & set(pair)] or list(logs.values())
        middle = float(np.median(controls))
        usual += [log - middle for log in controls]
        for pair, log in logs.items():
            for node in residuals.keys() & set(pair):
                residuals[node].append(log - middle)
    sd = _sd(np.array(usual))
    for node, values in residuals.items():
        if not values:
            note = "suspected, and there was nobody to retest it with"
            checks[node] = NodeCheck(node, 0.0, None, INCONCLUSIVE, note)
            continue
        score, error = float(np.mean(values)), sd / math.sqrt(len(values))
        critical = float(-ndtri(ERROR_RATE / 2 / len(suspected))) * error
        rate = math.exp(-score)
        verdict, note = PASS, "suspected at first, sound in its retests"
        if score > -math.log(allowed) and score > critical:
            verdict, note = FAIL, f"{rate:.0%} of the usual rate with {len(values)} sound partners"
        elif score > -math.log(allowed):
            verdict = INCONCLUSIVE
            note = f"suspected; {rate:.0%} of the usual rate in its retests, which chance could do"
        checks[node] = NodeCheck(node, score, rate, verdict, note)
    if usual_s is None:
        return checks
    # A node that passed among its fellows is held against the table: its best pair must be good enough.
    for node, check in enumerate(checks):
        best_s = min((s for times in (*taken, *again) for pair, s in times.items() if node in pair), default=0.0)
        if check.verdict == PASS and best_s > usual_s:
            rate = usual_s / best_s
            note = f"{rate:.0%} of what the table expects, in its best pair"
            checks[node] = NodeCheck(node, check.score, rate, FAIL, note)
    return checks


def judge_groups(
    taken: Sequence[Mapping[tuple[int, ...], float]], looked: Sequence[Times], nodes: int, allowed: float
) -> list[GroupCheck]:
    """Groups of one level that are slower than the others of it; of fewer than FEWEST_GROUPS groups none can be.

    Few groups say little about what they scatter by: at least what the pairs of the first looks do.
    """
    slow = []
    _, of_pairs = _scores(looked, nodes)
    tested = [level for level in taken if len(level) >= FEWEST_GROUPS]
    total = sum(map(len, tested))
    for level in tested:
        logs = np.log(np.array(list(level.values())))
        residuals = logs - np.median(logs)
        critical = float(-ndtri(ERROR_RATE / 2 / total)) * max(of_pairs, _sd(residuals))
        for members, residual in zip(level, residuals.tolist(), strict=True):
            if residual > critical and residual > -math.log(allowed):
                slow.append(GroupCheck(members, math.exp(-residual)))
    return slow


def conclude(nodes: Sequence[NodeCheck], groups: Sequence[GroupCheck], broken: Sequence[str]) -> GateVerdict:
    """PASS if every node passed and nothing broke; FAIL if one surely did not; else INCONCLUSIVE.

    broken: sentences on what failed while it was measured.
    """
    verdicts = {node.verdict for node in nodes}
    verdict = FAIL if FAIL in verdicts or groups or broken else INCONCLUSIVE if INCONCLUSIVE in verdicts else PASS
    return GateVerdict(verdict, tuple(nodes), tuple(groups), tuple(broken))


# ── scores ───────────────────────────────────────────────────────────────────────────────────────
def _scores(taken: Sequence[Times], nodes: int) -> tuple[Floats, float]:
    """The median residual of each node, and what residuals scatter by."""
    residuals: list[list[float]] = [[] for _ in range(nodes)]
    of_pairs = []
    for times in filter(None, taken):
        middle = float(np.median(np.log(list(times.values()))))
        for pair, seconds in times.items():
            residual = math.log(seconds) - middle
            of_pairs.append(residual)
            for node in pair:
                residuals[node].append(residual)
    scores = np.array([float(np.median(of_node)) if of_node else 0.0 for of_node in residuals])
    return scores, _sd(np.array(of_pairs))


def _sd(residuals: Floats) -> float:
    """Standard deviation, from the median absolute deviation, which a few slow nodes do not change."""
    if not len(residuals):
        return LEAST_SD
    return max(LEAST_SD, MAD_TO_SD * float(np.median(np.abs(residuals - np.median(residuals)))))
