"""Compare the communication of a recorded job with the same calls made here.

In: a `Run` that has replays. Out: a `ReplayedStep` for each. The communication of a step is the time in which at least
one call of a rank is under way, on the rank where it is longest; of the recording, on the recorded rank. While several
calls are under way, the time is counted for the one that ends first: a call that was made early and waits for others is
not charged with their time, and the kinds add up to the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.catalog.operations import ranks_together
from bench.model.conclusions import Interval, ReplayedKind, ReplayedStep, StepBar
from bench.model.records import Case, Replay, Run, Samples, Timings
from bench.stats import intervals
from bench.stats.intervals import Floats

NS = 1e-9
Integers = NDArray[np.int64]


def replayed_steps(run: Run) -> list[ReplayedStep]:
    """One for each case that is a replay and was measured."""
    measured: dict[str, list[Samples]] = {}
    for samples in run.samples:
        if samples.case.recording and samples.failure is None and samples.timed is not None:
            measured.setdefault(samples.case.key, []).append(samples)
    return [_step(launches, run.plan.settings.replays[launches[0].case.recording]) for launches in measured.values()]


@dataclass(frozen=True, slots=True)
class _Calls:
    """When the calls of one launch began and ended, in nanoseconds: shape (iterations, ranks, calls)."""

    starts: Integers
    stops: Integers


def _inner_ns(timed: Timings) -> tuple[Integers, Integers] | None:
    if timed.inner_start_ns is None or timed.inner_duration_ns is None:
        return None
    return timed.inner_start_ns, timed.inner_start_ns + timed.inner_duration_ns


def _step(launches: Sequence[Samples], replay: Replay) -> ReplayedStep:
    calls = [_Calls(*inner) for launch in launches if launch.timed and (inner := _inner_ns(launch.timed)) is not None]
    # The case that stands for the kind of each call: calls that differ in being waited for are of one kind.
    kind_of = [
        replace(replay.cases[call.case], call="sync", depth=1, splits="", reduce_op="sum") for call in replay.calls
    ]
    # Seconds in which a call of the rank is under way: shape (iterations, ranks).
    under_way = [covered(launch.starts, launch.stops) * NS for launch in calls]
    # Seconds of each call on the slowest rank of each iteration, as `attributed`: shape (iterations, calls).
    of_slowest = []
    for launch, times in zip(calls, under_way, strict=True):
        rows, ranks = np.arange(len(times)), times.argmax(axis=1)
        spans = zip(launch.starts[rows, ranks].tolist(), launch.stops[rows, ranks].tolist(), strict=True)
        of_slowest.append(np.array([attributed(*span) for span in spans]) * NS)
    recorded = _recorded(replay)
    kinds = []
    for kind in dict.fromkeys(kind_of):
        mine = np.array([other == kind for other in kind_of])
        recorded_s = float(recorded[mine].sum())
        kinds.append(
            ReplayedKind(
                case=kind,
                calls=int(mine.sum()),
                ranks=ranks_together(kind),
                recorded_s=None if np.isnan(recorded_s) else recorded_s,
                time=_interval([times[:, mine].sum(axis=1) for times in of_slowest]),
            )
        )
    known = [call for call in replay.calls if call.recorded_s is not None]
    return ReplayedStep(
        case=launches[0].case,
        source=replay.source,
        recorded_rank=replay.rank,
        recorded_world=replay.recorded_world,
        gaps=replay.gaps,
        time=_interval([times.max(axis=1) for times in under_way]),
        recorded_s=float(np.nansum(recorded)) if known else None,
        without_time=len(replay.calls) - len(known),
        kinds=tuple(sorted(kinds, key=lambda kind: -kind.time.value)),
        changes=replay.changes,
        recorded_bars=tuple(
            StepBar(kind, call.start_s, call.recorded_s)
            for call, kind in zip(replay.calls, kind_of, strict=True)
            if call.start_s is not None and call.recorded_s is not None
        ),
        bars=_middle_bars(calls, under_way, kind_of),
    )


def covered(starts: NDArray[Any], stops: NDArray[Any]) -> Floats:
    """Length of the union of intervals along the last axis."""
    order = np.argsort(starts, axis=-1)
    begin, end = np.take_along_axis(starts, order, -1), np.take_along_axis(stops, order, -1)
    latest = np.maximum.accumulate(end, axis=-1)
    before = np.concatenate([begin[..., :1], latest[..., :-1]], axis=-1)
    return np.asarray(np.clip(end - np.maximum(begin, before), 0, None).sum(axis=-1), dtype=float)


def attributed(starts: Sequence[float], stops: Sequence[float]) -> Floats:
    """The time in which each call is the one under way that ends first; together the length of `covered`."""
    own_s = np.zeros(len(starts))
    taken: list[list[float]] = []  # what calls that end earlier have taken, as disjoint spans
    for place in np.argsort(stops, kind="stable").tolist():
        start, stop = starts[place], stops[place]
        own = stop - start
        while taken and taken[-1][1] > start:
            begin, end = taken.pop()
            own -= end - max(start, begin)
            start = min(start, begin)
        taken.append([start, stop])
        own_s[place] = own
    return own_s


def _interval(launches: Sequence[Floats]) -> Interval:
    """Over launches if there are several; one alone says nothing of how its steps scatter."""
    means = np.array([float(np.mean(times)) for times in launches])
    return intervals.launch_interval(means) if len(means) > 1 else intervals.without_interval(float(means[0]))


def _recorded(replay: Replay) -> Floats:
    """Seconds that each call took in the recording, as `attributed` where starts are known; NaN without a duration."""
    durations = np.array([np.nan if call.recorded_s is None else call.recorded_s for call in replay.calls])
    starts = np.array([np.nan if call.start_s is None else call.start_s for call in replay.calls])
    known = ~np.isnan(durations)
    if np.isnan(starts[known]).any():
        return durations
    durations[known] = attributed(starts[known].tolist(), (starts + durations)[known].tolist())
    return durations


def _middle_bars(calls: Sequence[_Calls], under_way: Sequence[Floats], kind_of: Sequence[Case]) -> tuple[StepBar, ...]:
    """The calls of the step whose communication takes as long as that of the median step, on its slowest rank."""
    totals = np.concatenate([times.max(axis=1) for times in under_way])
    place = int(np.argsort(totals)[len(totals) // 2])
    for launch, times in zip(calls, under_way, strict=True):
        if place < len(times):
            rank = int(times[place].argmax())
            starts = launch.starts[place, rank] * NS
            durations = (launch.stops[place, rank] - launch.starts[place, rank]) * NS
            bars = zip(kind_of, starts.tolist(), durations.tolist(), strict=True)
            return tuple(StepBar(kind, start - float(starts[0]), duration) for kind, start, duration in bars)
        place -= len(times)
    return ()
