"""Compare cases with their references, within the rounds in which both were measured.

In: a `Run` with cases that name a reference (`catalog.operation.Against`). Out: the timed blocks that count, by one
rule that summaries and comparisons follow, too; and the difference of each case and its reference, with an interval.

Iteration i of all cases of a launch is round i: differences are taken within rounds, and averaged over the rounds of
each launch, then over launches. With fewer than three launches, the rounds of all launches are pooled, and the interval
is marked within-run. The time of an iteration is the time of the slowest rank.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.analyze.reading import once
from collbench.analyze.round_series import Series, estimates, pooled_mean
from collbench.catalog.collectives import OPERATIONS, against
from collbench.model.conclusions import Interval
from collbench.model.notices import Kind, Notice
from collbench.model.projection import grouped
from collbench.model.records import Case, Run, Samples, Timings, options_in
from collbench.stats.intervals import Floats

Booleans = NDArray[np.bool_]
# Function that returns seconds per call in each iteration, (iterations,).
Value = Callable[[Timings], Floats]
# A case, and the case that is subtracted from it.
Pair = tuple[Case, Case]


# ── blocks that count ────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Rounds:
    """The timed blocks of cases that share rounds. Cases without times, or with a failed check, are missing."""

    # Case → launch → its blocks, with one iteration for each round.
    timings: dict[Case, dict[int, Timings]]
    # Case → launch → (rounds,): False if other processes used more of the CPU than the plan allows.
    counts: dict[Case, dict[int, Booleans]]
    # Cases that other processes disturbed so often that all blocks count.
    disturbed: tuple[Case, ...]

    @property
    def blocks(self) -> int:
        """Return the number of timed blocks."""
        return sum(len(counts) for launches in self.counts.values() for counts in launches.values())

    @property
    def dropped(self) -> int:
        """Return the number of timed blocks that do not count."""
        return sum(int((~counts).sum()) for launches in self.counts.values() for counts in launches.values())


def compared(case: Case) -> bool:
    """Return whether a case is of an operation whose cases are compared with references."""
    return OPERATIONS[case.op].against is not None


@once
def scenes_of(run: Run) -> dict[Case, tuple[Case, ...]]:
    """Return the compared cases that share rounds, in the order of the plan, by what they share (`Case.shared`)."""
    cases = dict.fromkeys(case for launch in run.plan.order for case in launch.cases if compared(case))
    return {shared: tuple(members) for shared, members in grouped(cases, lambda case: case.shared).items()}


def samples_of(run: Run, shared: Case) -> dict[Case, list[Samples]]:
    """Return the samples of each tried case that shares these rounds."""
    own = (samples for samples in run.samples if compared(samples.case) and samples.case.shared == shared)
    return grouped(own, lambda samples: samples.case)


@once
def rounds_of(run: Run, shared: Case) -> Rounds:
    """Return the timed blocks of the cases that share these rounds, and mark the blocks that count.

    Blocks are left out, not rounds: with 17 cases, hardly half of the rounds have no disturbed block. If more than half
    of a case's blocks would be left out, all count; if a case would share no round with its reference, all blocks of
    all cases count.
    """
    timings = {
        case: launches
        for case, tries in samples_of(run, shared).items()
        if all(check.ok is not False for samples in tries for check in samples.checks)
        and (launches := {s.launch: s.timed for s in tries if s.timed is not None and s.failure is None})
    }
    most = run.plan.settings.own_of(shared).max_foreign_cpu
    calm = {
        case: {
            # Where the CPU use of other processes is unknown, no block is disturbed.
            launch: np.array(
                [share is None or share <= most for share in timed.foreign_cpu] or [True] * len(timed.duration_ns)
            )
            for launch, timed in launches.items()
        }
        for case, launches in timings.items()
    }
    disturbed = [case for case, launches in calm.items() if np.mean(np.concatenate(list(launches.values()))) < 1 / 2]
    rounds = Rounds(timings, _all_count(calm, disturbed), tuple(disturbed))
    pairs = [(case, relation.reference) for case in timings if (relation := against(case)) is not None]
    if any(reference in timings and not by_launch(rounds, case, minus=reference) for case, reference in pairs):
        return Rounds(timings, _all_count(calm, timings), tuple(timings))
    return rounds


def _all_count(calm: dict[Case, dict[int, Booleans]], exempt: Iterable[Case]) -> dict[Case, dict[int, Booleans]]:
    return calm | {case: {launch: np.ones_like(counts) for launch, counts in calm[case].items()} for case in exempt}


@once
def samples_that_count(run: Run) -> list[Samples]:
    """Return the samples of a run; those of compared cases have only the timed blocks that count."""
    rounds = {shared: rounds_of(run, shared) for shared in scenes_of(run)}
    return [
        replace(samples, timed=_timed_that_counts(samples, rounds[samples.case.shared]))
        if compared(samples.case)
        else samples
        for samples in run.samples
    ]


def _timed_that_counts(samples: Samples, rounds: Rounds) -> Timings | None:
    timed = rounds.timings.get(samples.case, {}).get(samples.launch)
    if timed is None or samples.timed is None:
        return None
    counts = rounds.counts[samples.case][samples.launch]
    if not counts.any():
        return None
    shares = tuple(share for share, kept in zip(timed.foreign_cpu, counts, strict=False) if kept)
    return replace(timed.iterations(counts, (1,) * int(counts.sum())), foreign_cpu=shares)


_BECAUSE = ": other processes used the CPU"
_WHERE = "{what} on {backend}, {ranks:count rank}: "
BLOCKS_LEFT_OUT = Kind("blocks-left-out", f"{_WHERE}{{dropped}} of {{blocks}} timed blocks left out{_BECAUSE}")
DISTURBED_BLOCKS_KEPT = Kind(
    "disturbed-blocks-kept",
    f"{_WHERE}too much of {{disturbed}} of {{of_cases}} cases disturbed to leave it out, so all of those kept"
    f"{_BECAUSE}",
)


def disturbances(run: Run) -> list[Notice]:
    """Return notices on the cases that were measured while other processes used the CPU."""
    notices = []
    for shared in scenes_of(run):
        rounds = rounds_of(run, shared)
        where: dict[str, Any] = {"what": _named(shared), "backend": shared.backend, "ranks": shared.world_size}
        if rounds.dropped:
            notices.append(BLOCKS_LEFT_OUT(**where, dropped=rounds.dropped, blocks=rounds.blocks))
        if rounds.disturbed:
            keys = [case.key for case in rounds.disturbed]
            where |= {"disturbed": len(rounds.disturbed), "of_cases": len(rounds.timings)}
            notices.append(DISTURBED_BLOCKS_KEPT(keys, **where))
    return notices


def _named(case: Case) -> str:
    """Return the operation, with the names among the options that only its cases have, such as a model."""
    options = ((option, case.value(option.name)) for option in options_in(type(case.own)))
    names = [option.in_words(value) for option, value in options if isinstance(value, str) and value != option.default]
    return " · ".join([case.op, *names])


# ── differences ──────────────────────────────────────────────────────────────────────────────────
def call_s(timings: Timings) -> Floats:
    """Return seconds per call on the slowest rank."""
    return timings.slowest_s


def by_launch(
    rounds: Rounds, case: Case, value: Value = call_s, minus: Case | None = None, share: bool = False
) -> Series:
    """Return per launch the `value` of a case in each round whose block counts; launches without any are left out.

    minus: another case of these rounds, whose value in the same round is subtracted. share: the difference is divided
    by the value of `case`.
    """
    series = {}
    subtracted = None if minus is None else _values(rounds, minus, value)
    for launch, values in _values(rounds, case, value).items():
        others = np.zeros(len(values)) if subtracted is None else subtracted.get(launch, np.empty(0))
        common = min(len(values), len(others))
        own, other = values[:common], others[:common]
        chosen = (own - other) / own if share else own - other
        chosen = chosen[~np.isnan(chosen)]
        if len(chosen):
            series[launch] = chosen
    return series


def _values(rounds: Rounds, case: Case, value: Value) -> Series:
    """Return per launch the value in every round; NaN if its block does not count."""
    return {
        launch: np.where(rounds.counts[case][launch], value(timings), np.nan)
        for launch, timings in rounds.timings.get(case, {}).items()
    }


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences of the cases that share rounds, in seconds per call."""

    # Each case minus its reference, and each second copy minus the first.
    series: dict[Pair, Series]
    intervals: dict[Pair, Interval]
    # Each case that shares a round with its reference → the pair of both.
    over_reference: dict[Case, Pair]
    # Differences of second copies and the first ones (A/A pairs).
    copies: dict[Pair, Interval]

    @property
    def noise_s(self) -> float:
        """Return the A/A noise: the largest difference within the intervals of two copies; 0 without copies."""
        return max((max(abs(each.low), abs(each.high)) for each in self.copies.values()), default=0.0)


@once
def differences_of(run: Run, shared: Case) -> Differences:
    """Return the differences of the cases that share these rounds."""
    rounds = rounds_of(run, shared)
    relations = [(case, relation) for case in scenes_of(run)[shared] if (relation := against(case)) is not None]
    pairs = [(case, other) for case, each in relations for other in (each.reference, each.copy_of) if other is not None]
    series = {pair: found for pair in pairs if (found := by_launch(rounds, pair[0], minus=pair[1]))}
    intervals = estimates(series, levels_of(rounds, series))
    over_reference = {case: pair for case, each in relations if (pair := (case, each.reference)) in series}
    copied = [(case, each.copy_of) for case, each in relations if each.copy_of is not None]
    copies = {pair: intervals[pair] for pair in copied if pair in intervals}
    return Differences(series, intervals, over_reference, copies)


def levels_of(rounds: Rounds, pairs: Iterable[Pair]) -> dict[Pair, tuple[float, float]]:
    """Return seconds per call of both cases of each pair, as `estimates` takes them."""
    pairs = list(pairs)
    level_s = {case: pooled_mean(by_launch(rounds, case)) for case in {case for pair in pairs for case in pair}}
    return {(case, other): (level_s[case], level_s[other]) for case, other in pairs}


def noise_of(run: Run) -> float | None:
    """Return the largest A/A noise of the run, in seconds per call; None without second copies."""
    return max(
        (each.noise_s for shared in scenes_of(run) if (each := differences_of(run, shared)).copies), default=None
    )


def over_references(run: Run) -> dict[Case, tuple[Series, float]]:
    """For each case with a reference, return the difference in each round, and the A/A noise of its rounds (seconds).

    The A/A noise is the largest difference between two copies of one case.
    """
    found: dict[Case, tuple[Series, float]] = {}
    for shared in scenes_of(run):
        differences = differences_of(run, shared)
        noise_s = differences.noise_s
        found |= {case: (differences.series[pair], noise_s) for case, pair in differences.over_reference.items()}
    return found
