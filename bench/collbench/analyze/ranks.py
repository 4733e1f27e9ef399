"""Find the ranks and nodes that are always among the last to arrive (stragglers).

In: a `Run`. Out: findings of kind "late rank" and "late node". The rank that waits longest is the victim and is never
named. The straggler is the rank that begins last or, without a common clock, the rank that spends the shortest time in
the operation, because it waits for no other rank (operations with a root are then left out). The latter also applies
to results of other tools, if they time each call of each rank apart (`Aggregate.apart`). On GPUs, the straggler is the
rank whose device is ready last: it waits least for the others just before the calls (`Timings.wait_ns`); timestamps of
the host do not describe a device. Cases in which ranks compute are left out: their ranks leave a barrier together.
Ranks are placed anew in each launch: a finding that chance could cause in so few launches states "in this launch".

A node is a host with two ranks or more, if there are several hosts; it arrives when half of its ranks have arrived.
Nodes are examined first, then the ranks of the nodes that are not late. In each case, the late units (ranks or nodes)
are at the end of the order of arrival, a quarter of all at most, and their delay behind all other units has a median
over iterations of at least 10 % of the operation's time (and of the uncertainty of the clocks; on GPUs of 50 µs), and
is positive in more than half of the iterations of each launch.
Friedman's test must show that there are differences at all. For each late unit, a one-sided binomial test then
compares with chance how often it arrives after all units that are not late, over an effective sample size of iterations
(they are autocorrelated), corrected by Holm (1979) over all ranks, nodes and cases.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.analyze.sessions import Clocks, clocks_of, hosts, in_words
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS, cycle
from collbench.model.conclusions import Finding, FindingKind
from collbench.model.divisions import WORLD
from collbench.model.notices import Kind
from collbench.model.projection import grouped
from collbench.model.records import Case, Run, Samples
from collbench.stats.intervals import Floats
from collbench.stats.verdicts import holm

Booleans = NDArray[np.bool_]

LEVEL = 0.05
# Smallest delay that counts, as a share of the operation's time: a smaller delay is not worth investigating.
SMALLEST_COST = 0.10
# Smallest delay on GPUs also, in seconds: before each iteration, ranks leave the barrier tens of microseconds apart.
SMALLEST_ON_GPU_S = 50e-6
# At most this share of all ranks, or nodes, can be late: to be late is to differ from most others.
LARGEST_SHARE = 0.25
# With fewer iterations no rank is named.
FEWEST_ITERATIONS = 6
# Number of parts of a launch whose shares show the autocorrelation of iterations.
PARTS = 5


@dataclass(frozen=True, slots=True)
class _Unit:
    """One rank, or all ranks of a node, which arrive together."""

    ranks: tuple[int, ...]
    # Name of the host, if it is known.
    node: str | None = None

    @property
    def is_node(self) -> bool:
        return len(self.ranks) > 1


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """Evidence against one rank or node in one case."""

    case: Case
    unit: _Unit
    # Share of the iterations in which the unit arrives after all units that are not late.
    share: float
    # Share that is expected by chance.
    chance: float
    p: float
    # Wait that the unit causes, as a share of the operation's time.
    relative_cost: float
    # Median over iterations of the unit's arrival minus the median arrival of the units that are not late.
    delay_s: float
    # Number of launches that were measured.
    launches: int


def late_ranks(run: Run) -> list[Finding]:
    """Return one finding for each rank or node that arrives last too often for chance, and thereby costs time."""
    clocks, places = clocks_of(run), hosts(run)
    several = (s for s in run.samples if s.failure is None and s.case.world_size > 1 and cycle(s.case) == 1)
    launches = grouped((s for s in several if _shows_last_rank(s, clocks)), lambda samples: samples.case)
    suspicions: list[_Suspicion] = []
    tests = 0
    for case, measured in launches.items():
        placed = places.get((case.backend, case.world_size), {})
        # One host, or hosts of one rank each, are no further units.
        has_nodes = len(placed) > 1 and max(map(len, placed.values())) > 1
        nodes = [_Unit(ranks, host) for host, ranks in placed.items()] if has_nodes else []
        suspicions += _suspicions(case, measured, clocks, nodes)
        tests += case.world_size + len(nodes)
    corrected = holm(np.array([suspicion.p for suspicion in suspicions]), tests)
    named: dict[tuple[str, int, _Unit], list[tuple[_Suspicion, float]]] = defaultdict(list)
    for suspicion, p in zip(suspicions, corrected, strict=True):
        if p <= LEVEL:
            case = suspicion.case
            named[case.backend, case.world_size, suspicion.unit].append((suspicion, float(p)))
    return [_finding(group, [*launches]) for group in named.values()]


def _shows_last_rank(samples: Samples, clocks: Clocks) -> bool:
    """Return whether arrivals are known, or durations can replace them.

    Durations cannot if there is a root: it may be done before the other ranks have arrived.
    """
    case, timed = samples.case, samples.timed
    rooted = OPERATIONS[case.op].rooted
    if samples.aggregate is not None:
        each_rank = len(samples.aggregate.each_s) == case.world_size
        return samples.aggregate.apart and each_rank and case.groups == WORLD and not rooted
    if timed is None or timed.arrivals_ns is None or OPERATIONS[case.op].against:
        return False
    return not rooted or timed.wait_ns is not None or clocks.aligned(samples) is not None


def _suspicions(case: Case, launches: Sequence[Samples], clocks: Clocks, nodes: Sequence[_Unit]) -> list[_Suspicion]:
    """Return the late nodes of one case, and the late ranks of its other nodes."""
    arrivals, unsure_s = _arrivals(launches, clocks)
    if sum(map(len, arrivals)) < FEWEST_ITERATIONS:
        return []
    time_s = float(np.mean([np.mean(measured.slowest_s) for s in launches if (measured := s.timed or s.aggregate)]))
    on_gpu = BACKENDS[case.backend].device == "cuda" and launches[0].aggregate is None
    limit_s = max(SMALLEST_COST * time_s, unsure_s, SMALLEST_ON_GPU_S if on_gpu else 0.0)
    late_nodes: list[_Suspicion] = []
    if nodes:
        # A node arrives when half of its ranks have arrived (lower median): one late rank does not make a node late.
        halves = [(list(unit.ranks), (len(unit.ranks) - 1) // 2) for unit in nodes]
        columns = ([np.partition(times[:, own], half, axis=1)[:, half] for own, half in halves] for times in arrivals)
        late = _late(case, nodes, [np.stack(column, axis=1) for column in columns], limit_s, time_s)
        late_nodes = [suspicion for suspicion in late if suspicion.unit.is_node]
    excused = {rank for suspicion in late_nodes for rank in suspicion.unit.ranks}
    host_of = {rank: unit.node for unit in nodes for rank in unit.ranks}
    others = [_Unit((rank,), host_of.get(rank)) for rank in range(case.world_size) if rank not in excused]
    own = [unit.ranks[0] for unit in others]
    return late_nodes + _late(case, others, [a[:, own] for a in arrivals], limit_s, time_s)


def _late(
    case: Case, units: Sequence[_Unit], arrivals: Sequence[Floats], limit_s: float, time_s: float
) -> list[_Suspicion]:
    """Return the units later than all other units by the limit or more. arrivals: (iterations, units) per launch."""
    late, on_time = _split(arrivals, limit_s)
    if not late:
        return []
    from scipy.stats import binomtest, friedmanchisquare  # imported here: slower to load than most reports

    # Friedman's test: whether the units differ at all. For two units, the binomial test alone shows the same.
    if len(units) > 2 and friedmanchisquare(*np.concatenate(arrivals).T).pvalue > LEVEL:
        return []
    suspicions = []
    bounds = [a[:, on_time].max(axis=1) for a in arrivals]
    middles = [np.median(a[:, on_time], axis=1) for a in arrivals]
    chance = 1 / (len(on_time) + 1)
    for position in late:
        behind = [a[:, position] - bound for a, bound in zip(arrivals, bounds, strict=True)]
        after = np.concatenate([a[:, position] - middle for a, middle in zip(arrivals, middles, strict=True)])
        together = np.concatenate(behind)
        counts = [_independent(b > 0) for b in behind]
        last = sum(round(float((b > 0).mean()) * count) for b, count in zip(behind, counts, strict=True))
        suspicions.append(
            _Suspicion(
                case=case,
                unit=units[position],
                share=float((together > 0).mean()),
                chance=chance,
                p=float(binomtest(last, sum(counts), chance, alternative="greater").pvalue),
                relative_cost=float(np.median(together)) / time_s,
                delay_s=float(np.median(after)),
                launches=len(behind),
            )
        )
    return suspicions


def _independent(last: Booleans) -> int:
    """Return the effective sample size: the number of iterations divided by the design effect of clusters (Kish).

    Iterations are autocorrelated, so that shares of parts of a launch scatter by more than chance explains.
    """
    if len(last) < 2 * PARTS:
        return len(last)
    share = float(last.mean())
    by_chance = share * (1 - share) / (len(last) // PARTS)
    scatter = float(np.var([part.mean() for part in np.array_split(last, PARTS)], ddof=1))
    return max(1, round(len(last) / max(1.0, scatter / by_chance))) if by_chance else len(last)


def _split(arrivals: Sequence[Floats], limit_s: float) -> tuple[list[int], list[int]]:
    """Return the positions of the late units (the largest last group that is behind all units before it) and the rest.

    A unit is behind if its median delay over all iterations is the limit or more (a mean would depend on the few
    iterations in which the scheduler stalled a rank), and if its median delay in each launch is above 0. Both lists are
    empty if no unit is late.
    """
    together = np.concatenate(arrivals)
    n = together.shape[1]
    order = np.argsort(np.median(together - together.min(axis=1, keepdims=True), axis=0), kind="stable")
    ordered = together[:, order]
    latest_before = np.maximum.accumulate(ordered, axis=1)
    fewest_on_time = n - max(1, int(n * LARGEST_SHARE))
    borders = np.cumsum([len(a) for a in arrivals])[:-1]
    # The gap between each unit and all units before it. It is cheap, and no cut is possible if it is below the limit.
    gaps = np.median(ordered[:, fewest_on_time:] - latest_before[:, fewest_on_time - 1 : -1], axis=0)
    for cut in fewest_on_time + np.flatnonzero(gaps >= limit_s):
        delays = ordered[:, cut:] - latest_before[:, cut - 1 : cut]
        in_each_launch = all(np.median(launch, axis=0).min() > 0 for launch in np.split(delays, borders))
        if in_each_launch and np.median(delays, axis=0).min() >= limit_s:
            return order[cut:].tolist(), order[:cut].tolist()
    return [], []


def _arrivals(launches: Sequence[Samples], clocks: Clocks) -> tuple[list[Floats], float]:
    """Return the start of each rank in seconds, (iterations, ranks) per launch; and the uncertainty in seconds.

    A rank that begins later waits less: on GPUs the negative wait replaces the start, and without a common clock the
    negative duration.
    """
    aggregates = [samples.aggregate for samples in launches if samples.aggregate is not None]
    if aggregates:
        return [-np.array(aggregate.each_s).T for aggregate in aggregates], 0.0
    timed = [samples.timed for samples in launches if samples.timed is not None]
    if timed[0].wait_ns is not None:
        return [np.asarray(timings.arrivals_ns / 1e9) for timings in timed if timings.arrivals_ns is not None], 0.0
    aligned = [clocks.aligned(samples) for samples in launches]
    known = [launch for launch in aligned if launch is not None]
    if len(known) == len(launches):
        return [np.asarray(a.timings.start_ns / 1e9) for a in known], max(a.uncertainty_s for a in known)
    return [np.asarray(-s.timed.duration_ns / 1e9) for s in launches if s.timed is not None], 0.0


_COST = " {relative_cost:share} of an operation's time (p = {p:.1g} after Holm)"
_LATE = (
    "{who} of {ranks} on {backend} is late{launches:here}: last to arrive in {share:share} of the iterations (chance: "
    "{chance:fine share}), {delay_s:seconds} after the others, in {cases_late} of {of_cases} cases; it "
)
LATE = Kind("late", f"{_LATE}costs up to{_COST}")
LATE_ON_GPU = Kind("late-on-gpu", f"{_LATE}makes others wait, outside the measured time, for up to{_COST}")


def _finding(group: list[tuple[_Suspicion, float]], cases: Sequence[Case]) -> Finding:
    """Create the finding about one rank or node, over all cases in which it is late."""
    worst, p = max(group, key=lambda pair: pair[0].relative_cost)
    case, unit = worst.case, worst.unit
    comparable = sum(1 for c in cases if (c.backend, c.world_size) == (case.backend, case.world_size))
    delay = float(np.median([suspicion.delay_s for suspicion, _ in group]))
    share = float(np.median([suspicion.share for suspicion, _ in group]))
    subject = f"node {unit.node}" if unit.is_node else f"rank {unit.ranks[0]}"
    where = in_words(unit.ranks) if unit.is_node else unit.node and f"on {unit.node}"
    # The placement of ranks differs between launches, so the launch is the unit: with few launches, the same rank may
    # be the last in all launches by chance.
    by_chance = worst.chance**worst.launches * round(1 / worst.chance) > LEVEL
    why = (LATE if BACKENDS[case.backend].device == "cpu" else LATE_ON_GPU)(
        [suspicion.case.key for suspicion, _ in group],
        who=f"{subject} ({where})" if where else subject,
        ranks=case.world_size,
        backend=case.backend,
        launches=worst.launches if by_chance else None,
        share=share,
        chance=worst.chance,
        delay_s=delay,
        cases_late=len(group),
        of_cases=comparable,
        relative_cost=worst.relative_cost,
        p=p,
    )
    return Finding(
        kind=FindingKind.LATE_NODE if unit.is_node else FindingKind.LATE_RANK,
        subject=subject,
        notice=why,
        cases=tuple(suspicion.case for suspicion, _ in group),
        rank=None if unit.is_node else unit.ranks[0],
        ranks=unit.ranks,
        cost_s=delay,
        share=share,
        p=p,
    )
