"""Compare the communication of a recorded job with the same calls made here.

In: a `Run` with replays, and the account of the recorded job's time. Out: a `ReplayedStep` per replay. The time of the
communication in a step is the time in which at least one call of a rank is in progress, as the mean over ranks. While
several calls are in progress, the time is counted for the call that ends first. So a call that was made early and
waits for other calls is not charged with their time, and the times of all kinds add up to the total.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from collbench.analyze.reading import Reading, once
from collbench.catalog.collectives import ranks_together
from collbench.model.conclusions import Interval
from collbench.model.divisions import WORLD, Division
from collbench.model.errors import ForeignError, StoreError
from collbench.model.projection import grouped
from collbench.model.records import Case, Run, Timings
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


def replayed_steps(run: Run, job: RecordedJob | None) -> list[ReplayedStep]:
    """Return a `ReplayedStep` for each replay that was measured."""
    replays = (s for s in run.samples if s.case.op == NAME and s.failure is None and s.timed is not None)
    measured = grouped(replays, lambda samples: samples.case)
    return [
        _step(case, [samples.timed for samples in launches if samples.timed], run, job)
        for case, launches in measured.items()
    ]


def _step(case: Case, launches: Sequence[Timings], run: Run, job: RecordedJob | None) -> ReplayedStep:
    replay, recording = replay_of(run.plan.settings, case), recording_of(run)
    kinds = list(map(_kind, replay.cases))
    starts, lengths = (np.concatenate([timed.inner_ns[name] for timed in launches]) for name in (START_NS, DURATION_NS))
    seconds = [_own_s(timed, replay) for timed in launches]
    # Number of the kind of each call of each rank, or -1 after its last call: shape (ranks, calls).
    numbers = np.full(starts.shape[1:], -1)
    order = list(dict.fromkeys(kinds))
    # For each kind, the kinds of recorded calls that it represents.
    origins: list[set[CallKind]] = [set() for _ in order]
    for rank in range(len(numbers)):
        made = replay.of(rank)
        for place, call in enumerate(made.calls):
            numbers[rank, place] = number = order.index(kinds[call.case])
            if recording is not None:
                origins[number].add(kind_of(recording.ranks[made.recorded].calls[call.recorded]))
    rows = [
        ReplayedKind(
            kind,
            float(np.mean(np.sum(numbers == number, axis=1))),
            ranks_together(kind),
            time_of_kinds(job, origins[number]) if job is not None else None,
            _interval([np.where(numbers == number, own, 0.0) for own in seconds]),
        )
        for number, kind in enumerate(order)
    ]
    median = np.argsort(np.concatenate([own[:, 0].sum(axis=1) for own in seconds]))[len(starts) // 2]
    bars = zip(((starts - starts[:, :, :1])[median, 0] * NS).tolist(), (lengths[median, 0] * NS).tolist(), strict=True)
    return ReplayedStep(
        case=case,
        source=replay.source,
        stand_in=replay.stand_in,
        time=_interval(seconds),
        recorded=job.total if job is not None else None,
        kinds=tuple(sorted(rows, key=lambda row: -row.time.value)),
        changes=replay.changes,
        recorded_bars=_recorded_bars(replay, kinds, recording),
        bars=tuple(StepBar(kinds[call.case], *bar) for call, bar in zip(replay.of(0).calls, bars, strict=False)),
    )


def _kind(case: Case) -> Case:
    """Return the case that represents all calls that differ only in group (of equal size), root, parts or call mode."""
    ranks = ranks_together(case)
    groups = WORLD if ranks == case.world_size else Division("contiguous", ranks)
    return replace(case, call="sync", depth=1, splits=None, reduce_op="sum", root=0, groups=groups)


def _own_s(timed: Timings, replay: Replay) -> Floats:
    """Return the seconds that `attributed` counts for each call: shape (iterations, ranks, calls)."""
    starts, stops = timed.inner_ns[START_NS], timed.inner_ns[START_NS] + timed.inner_ns[DURATION_NS]
    own = np.zeros(starts.shape)
    for rank in range(starts.shape[1]):
        count = len(replay.of(rank).calls)
        spans = zip(starts[:, rank, :count].tolist(), stops[:, rank, :count].tolist(), strict=True)
        own[:, rank, :count] = [attributed(*span) * NS for span in spans]
    return own


def _interval(launches: Sequence[Floats]) -> Interval:
    """Return the mean time of a step over ranks, with an interval over launches. launches: see `_own_s`."""
    return intervals.of_launches(np.array([float(np.mean(own.sum(axis=2).mean(axis=1))) for own in launches]))


def _recorded_bars(replay: Replay, kinds: Sequence[Case], recording: CallList | None) -> tuple[StepBar, ...]:
    """Return the recorded calls of the rank whose calls rank 0 makes, if a timeline has them."""
    made = replay.of(0)
    calls = [] if recording is None else recording.ranks[made.recorded].calls
    bars = [
        StepBar(kinds[call.case], origin.ran_s, origin.duration_s)
        for call in made.calls
        if calls and (origin := calls[call.recorded]).ran_s is not None and origin.duration_s is not None
    ]
    first_s = min((bar.start_s for bar in bars), default=0.0)
    return tuple(replace(bar, start_s=bar.start_s - first_s) for bar in bars)


def read(run: Run) -> Reading:
    """Return where the time of the recorded job went, and how long its replayed steps take here."""
    recording = recording_of(run)
    job = recorded_job(recording) if recording is not None else None
    return Reading(ReplayAnalysis(job, tuple(replayed_steps(run, job))))


@once
def recording_of(run: Run) -> CallList | None:
    """Return the recording that the run keeps in its folder; None if it keeps none."""
    path = run.path / store.FILE
    try:
        return store.read(path) if path.is_file() else None
    except ForeignError as error:
        raise StoreError(str(error)) from None
