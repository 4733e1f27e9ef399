"""Find cases whose launches fall into two groups, one slower, and the recorded facts that differ between the groups.

In: a run. Out: a `LaunchModes` for each such case. A whole launch may be slow because of its cores or the order of its
addresses. Such a mode only widens an interval over launches; here it gets a name and a probability.

Launches are of two kinds if the gap between the groups is wide compared with the scatter within the groups, both in
the 10th and in the 30th percentile of each launch. A mode within launches moves at most one of these percentiles: a
launch that has more slow iterations than other launches still has fast iterations.
"""

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from collbench.analyze.reading import Reading
from collbench.analyze.summaries import headlines, one_series
from collbench.model.facts import LaunchFacts
from collbench.model.projection import grouped
from collbench.model.records import Case, Run, Samples
from collbench.model.units import format_seconds
from collbench.packages.bimodality.analyze.stalls import gloo_stalls
from collbench.packages.bimodality.conclusions import Companion, LaunchFact, LaunchModes, ModesAnalysis
from collbench.stats.intervals import Floats, average_ranks, of_share

Flags = NDArray[np.bool_]
# With fewer launches, or fewer of one kind, no gap is wide enough; with fewer iterations there is no 10th percentile.
FEWEST_LAUNCHES, FEWEST_OF_A_KIND, FEWEST_ITERATIONS = 8, 2, 10
# Largest number of values of a fact that are listed.
MOST_VALUES = 3
# A fact, and its rank; None for a fact of the whole launch.
RankedFact = tuple[LaunchFact, int | None]
# Threshold of the gap over the standard deviation within groups, for n launches: BASE + MORE / n. Its false-alarm rate
# is below 1 % if the logarithms of times are exponentially distributed, and 0.1 % if they are normally distributed.
BASE, MORE = 3.0, 46.0
# Smallest ratio of the slower group to the faster group that is reported.
LEAST_RATIO = 1.1
QUANTILES = (10, 30)
# Error rate of the probability's interval, and of reporting any unrelated fact; number of permutations.
ERROR_RATE, PERMUTATIONS = 0.05, 1999


def launch_modes(run: Run) -> list[LaunchModes]:
    """Return each case whose launches are of two kinds, in the order of the run."""
    good = (s for s in run.samples if s.failure is None and s.timed is not None and one_series(s.case))
    modes = []
    for case, launches in grouped(good, lambda samples: samples.case).items():
        times = [np.asarray(samples.timed.slowest_s) for samples in launches if samples.timed is not None]
        slow = two_kinds(times)
        if slow is None:
            continue
        means = np.log([series.mean() for series in times])
        facts = facts_of(run, case, launches)
        modes.append(
            LaunchModes(
                case,
                tuple(samples.launch for samples, is_slow in zip(launches, slow, strict=True) if is_slow),
                len(launches),
                float(np.exp(means[~slow].mean())),
                float(np.exp(means[slow].mean())),
                *of_share(int(slow.sum()), len(slow), ERROR_RATE),
                tuple(differing(facts, slow)),
                tuple(dict.fromkeys(fact for fact, _ in facts)),
            )
        )
    return modes


def two_kinds(times: Sequence[Floats]) -> Flags | None:
    """Flag the launches of the slower kind; None if there is one kind. times: seconds of each launch's iterations."""
    n = len(times)
    if n < FEWEST_LAUNCHES or min(map(len, times)) < FEWEST_ITERATIONS:
        return None
    levels = np.log([np.percentile(series, QUANTILES) for series in times])
    levels = levels[order := np.argsort(levels[:, 1])]
    best, chosen = 0.0, 0
    for fast in range(FEWEST_OF_A_KIND, n - FEWEST_OF_A_KIND + 1):
        gap = float((levels[fast:].min(axis=0) - levels[:fast].max(axis=0)).min())
        within = sum(np.var(part, axis=0) * len(part) for part in (levels[:fast], levels[fast:])) / (n - 2)
        ratio = gap / max(1e-12, float(np.sqrt(within.max())))
        apart = float(levels[fast:, 1].mean() - levels[:fast, 1].mean())
        if ratio > best and apart > np.log(LEAST_RATIO):
            best, chosen = ratio, fast
    if best <= BASE + MORE / n:
        return None
    slow = np.zeros(n, dtype=bool)
    slow[order[chosen:]] = True
    return slow


# ── facts that differ between the groups ─────────────────────────────────────────────────────────
def facts_of(run: Run, case: Case, launches: Sequence[Samples]) -> dict[RankedFact, list[Hashable]]:
    """Return fact and rank → value in each of these launches, if known: numbers as floats, categories as text."""
    recorded = {
        (launch.get("backend"), launch.get("world_size"), launch.get("launch")): (launch, number)
        for number, session in enumerate(run.environment, start=1)
        for launch in session.get("launches", [])
    }
    begins: dict[int, list[float]] = defaultdict(list)
    for samples in run.samples:
        if (samples.case.backend, samples.case.world_size) == (case.backend, case.world_size):
            begins[samples.launch].append(samples.unix_s)
    facts: dict[RankedFact, list[Hashable]] = defaultdict(list)
    for samples in launches:
        unknown: tuple[LaunchFacts, int | None] = ({}, None)
        launch, session = recorded.get((case.backend, case.world_size, samples.launch), unknown)
        for rank in launch.get("ranks", []):
            number = rank.get("rank")
            state = rank.get("seen", {}).get("joined", {}).get("joining", {})
            facts[LaunchFact.CORES, number].append(str(state.get("affinity")))
            facts[LaunchFact.HOST, number].append(str(rank.get("hostname")))
            facts[LaunchFact.GPU, number].append(str(rank.get("device_uuid")))
        facts[LaunchFact.CHOICE, None].append(json.dumps(launch.get("chosen", {}).get(case.key), sort_keys=True))
        facts[LaunchFact.OPEN_TO, None].append("; ".join(launch.get("open_to", [])))
        facts[LaunchFact.SESSION, None].append(str(session))
        sent = [host.get("tcp", {}).get("all", {}).get("segments_again") for host in launch.get("health", {}).values()]
        again = sum(filter(None, sent), 0.0) if sent and None not in sent else None
        facts[LaunchFact.SEGMENTS_AGAIN, None].append(again)
        facts[LaunchFact.TIME, None].append(samples.unix_s)
        facts[LaunchFact.PLACE, None].append(float(sum(begin < samples.unix_s for begin in begins[samples.launch])))
        usage = samples.usage
        if usage is not None and usage.machine_busy_s is not None and usage.wall_s:
            facts[LaunchFact.OTHER_PROCESSES, None].append((usage.machine_busy_s - sum(usage.cpu_s)) / usage.wall_s)
            facts[LaunchFact.STEAL, None].append(None if usage.steal_s is None else usage.steal_s / usage.wall_s)
    return {name: values for name, values in facts.items() if len(values) == len(launches) and None not in values}


def differing(facts: Mapping[RankedFact, Sequence[Hashable]], slow: Flags) -> Iterator[Companion]:
    """Yield facts that differ between the groups, by a permutation test corrected for all facts, most certain first.

    Facts that divide the launches in the same way count as one fact.
    """
    facts_by_division: dict[tuple[bool, tuple[float, ...]], list[RankedFact]] = defaultdict(list)
    for name, values in facts.items():
        if len(set(values)) > 1:
            numbers = [value for value in values if isinstance(value, float)]
            is_number = len(numbers) == len(values)
            coded = average_ranks(np.array(numbers)) if is_number else [list(values).index(value) for value in values]
            facts_by_division[is_number, tuple(map(float, coded))].append(name)
    rng = np.random.default_rng(len(slow))
    drawn = np.array([slow, *(rng.permutation(slow) for _ in range(PERMUTATIONS))], dtype=float)
    rows = []
    for (is_number, codes), names in facts_by_division.items():
        column: Floats = np.array(codes)
        if is_number:
            score = np.abs(drawn @ (column - column.mean()))
        else:
            with_value = [(drawn @ (column == value), float((column == value).sum())) for value in set(codes)]
            score = np.sum([np.maximum(own, total - own) for own, total in with_value], axis=0)
        chance = float(np.mean(score >= score[0] - 1e-9))
        if chance * len(facts_by_division) <= ERROR_RATE:
            rows.append((chance, _companion(names, facts[names[0]], slow, is_number)))
    yield from (companion for _, companion in sorted(rows, key=lambda row: row[0]))


def _companion(names: Sequence[RankedFact], values: Sequence[Hashable], slow: Flags, is_number: bool) -> Companion:
    slow_values, others = (np.array(values, dtype=object)[flags] for flags in (slow, ~slow))
    if is_number:
        return Companion(tuple(names), more=bool(slow_values.mean() > others.mean()))
    return Companion(tuple(names), None, *(tuple(sorted(set(group))[:MOST_VALUES]) for group in (slow_values, others)))


def read(run: Run) -> Reading:
    """Return both kinds of modes, of launches and of calls of gloo; as facts, share and levels of two kinds."""
    launches = launch_modes(run)
    facts = {
        f"launches of two kinds, {modes.case.key}": f"{len(modes.slow)} of {modes.launches} take "
        f"{format_seconds(modes.slow_s)}, the others {format_seconds(modes.fast_s)}"
        for modes in launches
    }
    return Reading(ModesAnalysis(tuple(launches), gloo_stalls(headlines(run))), facts=facts)
