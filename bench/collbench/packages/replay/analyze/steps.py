"""Compare the communication of a recorded job with the same calls made here.

In: a `Run` with replays, and the account of the recorded job's time. Out: a `ReplayedStep` per replay. The time of the
communication in a step is the time in which at least one call of a rank is in progress, as the mean over ranks. While
several calls are in progress, the time is counted for the call that ends first. So a call that was made early and
waits for other calls is not charged with their time, and the times of all kinds add up to the total.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.analyze.reading import Reading
from collbench.catalog.collectives import ranks_together
from collbench.model.conclusions import Interval
from collbench.model.divisions import WORLD, Division
from collbench.model.errors import ForeignError, StoreError
from collbench.model.projection import grouped
from collbench.model.records import Case, Run, Samples, Timings
from collbench.model.units import NS
from collbench.packages.replay import store
from collbench.packages.replay.analyze.recorded import CallKind, kind_of, recorded_job, time_of_kinds
from collbench.packages.replay.conclusions import RecordedJob, ReplayAnalysis, ReplayedKind, ReplayedStep, StepBar
from collbench.packages.replay.recorded_calls import CallList
from collbench.packages.replay.replayed_calls import DURATION_NS, NAME, START_NS, Replay, replay_of
from collbench.packages.replay.spans import attributed
from collbench.stats import intervals
from collbench.stats.intervals import Floats

Integers = NDArray[np.int64]


def replayed_steps(run: Run, job: RecordedJob | None, recording: CallList | None) -> list[ReplayedStep]:
    """Return a `ReplayedStep` for each replay that was measured."""
    replays = (s for s in run.samples if s.case.op == NAME and s.failure is None and s.timed is not None)
    measured = grouped(replays, lambda samples: samples.case)
    return [
        _step(launches, replay_of(run.plan.settings, launches[0].case), recording, job)
        for launches in measured.values()
    ]


class _Calls(NamedTuple):
    """The begins and ends of the calls of one launch in ns, and the seconds that `attributed` counts for each.

    Each array has the shape (iterations, ranks, calls).
    """

    starts: Integers
    stops: Integers
    own: Floats


def _step(
    launches: Sequence[Samples], replay: Replay, recording: CallList | None, job: RecordedJob | None
) -> ReplayedStep:
    calls = [_calls(launch.timed, replay) for launch in launches if launch.timed]
    ranks = calls[0].starts.shape[1]
    kinds = list(map(_kind, replay.cases))
    together = {kind: ranks_together(kind) for kind in kinds}
    # Seconds of each kind on each rank: shape (iterations, ranks).
    seconds = [{kind: np.zeros(launch.own.shape[:2]) for kind in together} for launch in calls]
    numbers = dict.fromkeys(together, 0)
    # For each kind, the kinds of recorded calls that it represents.
    origins: dict[Case, set[CallKind]] = {kind: set() for kind in together}
    for rank in range(ranks):
        made = replay.of(rank)
        for place, call in enumerate(made.calls):
            numbers[kinds[call.case]] += 1
            if recording is not None:
                origins[kinds[call.case]].add(kind_of(recording.ranks[made.recorded].calls[call.recorded]))
            for launch, kind_seconds in zip(calls, seconds, strict=True):
                kind_seconds[kinds[call.case]][:, rank] += launch.own[:, rank, place]
    rows = [
        ReplayedKind(
            kind,
            numbers[kind] / ranks,
            together[kind],
            time_of_kinds(job, origins[kind]) if job is not None else None,
            _interval([kind_seconds[kind].mean(axis=1) for kind_seconds in seconds]),
        )
        for kind in together
    ]
    recorded_bars, bars = _bars(replay, kinds, recording, calls)
    return ReplayedStep(
        case=launches[0].case,
        source=replay.source,
        stand_in=replay.stand_in,
        time=_interval([launch.own.sum(axis=2).mean(axis=1) for launch in calls]),
        recorded=job.total if job is not None else None,
        kinds=tuple(sorted(rows, key=lambda row: -row.time.value)),
        changes=replay.changes,
        recorded_bars=recorded_bars,
        bars=bars,
    )


def _kind(case: Case) -> Case:
    """Return the case that represents all calls that differ only in group (of equal size), root, parts or call mode."""
    ranks = ranks_together(case)
    groups = WORLD if ranks == case.world_size else Division("contiguous", ranks)
    return replace(case, call="sync", depth=1, splits=None, reduce_op="sum", root=0, groups=groups)


def _calls(timed: Timings, replay: Replay) -> _Calls:
    starts, stops = timed.inner_ns[START_NS], timed.inner_ns[START_NS] + timed.inner_ns[DURATION_NS]
    own = np.zeros(starts.shape)
    for rank in range(starts.shape[1]):
        count = len(replay.of(rank).calls)
        spans = zip(starts[:, rank, :count].tolist(), stops[:, rank, :count].tolist(), strict=True)
        own[:, rank, :count] = [attributed(*span) * NS for span in spans]
    return _Calls(starts, stops, own)


def _interval(launches: Sequence[Floats]) -> Interval:
    """Return the mean with an interval over launches."""
    return intervals.of_launches(np.array([float(np.mean(times)) for times in launches]))


def _bars(
    replay: Replay, kinds: Sequence[Case], recording: CallList | None, calls: Sequence[_Calls]
) -> tuple[tuple[StepBar, ...], tuple[StepBar, ...]]:
    """Return the recorded calls of rank 0, if a timeline has them, and its calls in the step of median time."""
    made = replay.of(0)
    call_kinds = [kinds[call.case] for call in made.calls]
    recorded = []
    if recording is not None:
        for call, kind in zip(made.calls, call_kinds, strict=True):
            origin = recording.ranks[made.recorded].calls[call.recorded]
            if origin.ran_s is not None and origin.duration_s is not None:
                recorded.append(StepBar(kind, origin.ran_s, origin.duration_s))
    first_s = min((bar.start_s for bar in recorded), default=0.0)
    totals = np.concatenate([launch.own[:, 0].sum(axis=1) for launch in calls])
    place = int(np.argsort(totals)[len(totals) // 2])
    starts = np.concatenate([launch.starts[:, 0] for launch in calls])[place] * NS
    stops = np.concatenate([launch.stops[:, 0] for launch in calls])[place] * NS
    spans = zip(call_kinds, starts.tolist(), stops.tolist(), strict=False)
    return (
        tuple(replace(bar, start_s=bar.start_s - first_s) for bar in recorded),
        tuple(StepBar(kind, start - float(starts[0]), stop - start) for kind, start, stop in spans),
    )


def read(run: Run) -> Reading:
    """Return where the time of the recorded job went, and how long its replayed steps take here."""
    recording = _recording(run)
    job = recorded_job(recording) if recording is not None else None
    return Reading(ReplayAnalysis(job, tuple(replayed_steps(run, job, recording))))


def _recording(run: Run) -> CallList | None:
    """Return the recording that the run keeps in its folder; None if it keeps none."""
    path = run.path / store.FILE
    try:
        return store.read(path) if path.is_file() else None
    except ForeignError as error:
        raise StoreError(str(error)) from None
