"""Measure cases together, in rounds: each round visits every case for one block, in a new random order.

In: cases, the `Job`, the joined `Group`, the rank's `Arena`. Out: `Samples` of each case, in the order of the cases.
Every rank goes through the same calls in the same order. One gather before the rounds tells which results are wrong
and how long a call takes, one a round has the times of all cases, and one at the end the last checks and the costs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.catalog.operations import OPERATIONS, cycle
from bench.model.records import Case, Failure, Job, Samples, Timings, Usage
from bench.planning.footprint import most_iterations
from bench.protocol.rank_context import RankContext
from bench.rank import faults, timing, usage, workload
from bench.rank.process_group import Group
from bench.rank.replay import ReplayOperation
from bench.rank.sampling import AgreedTimings, Sampler
from bench.rank.tensors import Arena
from bench.rank.timing import RankTimings

if TYPE_CHECKING:
    from bench.model.records import Integers

NS = 1e-9


class Batch:
    """Cases that are measured together. first: position of the first one in the launch, from 0."""

    def __init__(
        self, cases: Sequence[Case], first: int, context: RankContext, job: Job, group: Group, arena: Arena
    ) -> None:
        self._context, self._job, self._group, self._arena = context, job, group, arena
        self._meter = usage.Meter()
        arena.clear()
        self._all = [self._built(case, first + index) for index, case in enumerate(cases)]

    def measure(self) -> list[Samples]:
        """Measure every case, and check its results before and after."""
        self._check_before()
        number = 0
        while going := [one for one in self._all if one.goes_on]:
            if self._group.rank == 0:
                self._context.send({"kind": "begin", "index": number})
            self._round(number, going)
            number += 1
        return self._check_after()

    def _built(self, case: Case, position: int) -> _Measured:
        """A case, ready to be timed: its first calls are made."""
        self._context.enters(position)
        one = _Measured(case, position, self._group, self._arena, self._job, self._context)
        one.spent = self._meter.spent(one.spent)
        return one

    def _check_before(self) -> None:
        everyone = self._group.gather([(one.work.verify(), one.first_s) for one in self._all])
        for index, one in enumerate(self._all):
            one.failure = _failure([said[index][0] for said in everyone], "before timing")
            one.start(max(said[index][1] for said in everyone))
        self._meter.reset()

    def _round(self, number: int, going: list[_Measured]) -> None:
        order = list(going)
        random.Random(f"{self._job.seed}/{self._job.launch.number}/{number}").shuffle(order)
        own: dict[int, RankTimings] = {}
        for one in order:
            self._context.enters(one.position)
            own[one.position] = one.timed_block()
            one.spent = self._meter.spent(one.spent)
        everyone = self._group.gather([astuple(own[one.position]) for one in going])
        for at, one in enumerate(going):
            one.sampler.add(_agreed([RankTimings(*rank[at]) for rank in everyone], one.case.depth))
        self._meter.reset()

    def _check_after(self) -> list[Samples]:
        for one in self._all:
            one.close()
        stamp_ns = timing.stamp_cost_ns()
        own = []
        for one in self._all:
            said = one.work.verify() if one.failure is None else None
            one.spent = self._meter.spent(one.spent)
            own.append((usage.of_rank(one.spent, *one.costs(), stamp_ns), said))
        everyone = self._group.gather(own)
        return [
            one.samples(
                usage.of_all([rank[index][0] for rank in everyone], one.spent.wall_s, self._arena.nbytes),
                _failure([rank[index][1] for rank in everyone], "after timing"),
            )
            for index, one in enumerate(self._all)
        ]


class _Measured:
    """One case of a batch on this rank: what is called, how far it is measured, and what it has cost."""

    def __init__(self, case: Case, position: int, group: Group, arena: Arena, job: Job, context: RankContext) -> None:
        self.case, self.position = case, position
        self._group, self._job = group, job
        self._unix_s, self.spent = 0.0, usage.Counters()
        self.failure: Failure | None = None
        self._bound = 0
        work = workload.build(case, group, arena, job.pool_bytes, job.flush_bytes, job.seed, context.tick, job.replays)
        self._replay = work if isinstance(work, ReplayOperation) else None
        self.work, barrier = faults.plant(job.faults, case, job.launch.number, group.rank, work, group.barrier)
        self._timer = timing.CaseTimer(self.work, case, barrier, context.tick, group.device, group.align)
        began = time.perf_counter()
        for _ in range(cycle(case)):
            timing.call_once(self.work, case)
        group.synchronize()
        self.first_s = (time.perf_counter() - began) / cycle(case)
        if self._replay is not None:
            self._replay.stamps()

    def start(self, first_s: float) -> None:
        """Set the first block. first_s: how long one call took on the slowest rank."""
        sampling = self._job.sampling
        if OPERATIONS[self.case.op].once:
            sampling = replace(sampling, iterations=1, warmup=0)
        self.sampler = Sampler(sampling, cycle(self.case), most_iterations(self.case), first_s)

    @property
    def goes_on(self) -> bool:
        return self.failure is None and self.sampler.stopped_by is None

    def timed_block(self) -> RankTimings:
        """Time the block that the sampler asks for."""
        self._unix_s = self._unix_s or time.time()
        if OPERATIONS[self.case.op].once:
            start_ns, duration_ns = self._group.joined_ns
            return RankTimings([start_ns], [duration_ns], None, duration_ns)
        found = self._timer.measure(self.sampler.block.total)
        if self._replay is not None:
            # On a GPU host times were measured first, in as many further iterations.
            found.inner = self._replay.stamps()[-self.sampler.block.total :]
        self._bound += found.dispatch_bound or 0
        return found

    def close(self) -> None:
        """Let go of what only timing needs."""
        self._timer.close()

    def costs(self) -> tuple[float | None, int | None]:
        """The time of dispatching a call in ns, and the number of iterations in which the device ran out of work while
        calls were enqueued; None: not measured."""
        call = self.work.single_rank_call() if self.failure is None else None
        floor = None if call is None else timing.floor_ns(call, self._group.device)
        return floor, self._bound if self._group.device.enqueues else None

    def samples(self, costs: Usage, failure: Failure | None) -> Samples:
        """The line for samples.jsonl."""
        launch = self._job.launch.number
        if self.failure is not None:
            return Samples(self.case, launch, time.time(), failure=self.failure)
        timed = self.sampler.timed
        base_ns = int(timed.start_ns.min())
        return Samples(
            case=self.case,
            launch=launch,
            unix_s=self._unix_s,
            base_ns=base_ns,
            warmup=_relative(self.sampler.warmup, base_ns) if self.sampler.warmup else None,
            timed=_relative(timed, base_ns),
            stopped_by=self.sampler.stopped_by,
            usage=costs,
            failure=failure,
        )


def _agreed(everyone: list[RankTimings], depth: int) -> AgreedTimings:
    """The timings of all ranks for one block."""
    hosts = [one.host_ns for one in everyone if one.host_ns is not None]
    timings = Timings(
        start_ns=_columns([one.start_ns for one in everyone]),
        duration_ns=_columns([one.duration_ns for one in everyone]),
        host_ns=_columns(hosts) if hosts else None,
        calls=depth,
        inner_start_ns=_of_calls(everyone, 0),
        inner_duration_ns=_of_calls(everyone, 1),
    )
    return AgreedTimings(timings, max(one.elapsed_ns for one in everyone) * NS)


def _of_calls(everyone: list[RankTimings], which: int) -> Integers | None:
    """Starts (0) or durations (1) of the calls of a replay: iterations, ranks, calls; None of other cases."""
    if any(one.inner is None for one in everyone):
        return None
    return np.array([[step[which] for step in one.inner or ()] for one in everyone], dtype=np.int64).swapaxes(0, 1)


def _columns(ranks: list[list[int]]) -> Integers:
    return np.array(ranks, dtype=np.int64).T


def _relative(timings: Timings, base_ns: int) -> Timings:
    return replace(timings, start_ns=timings.start_ns - base_ns)


def _failure(verdicts: list[str | None], when: str) -> Failure | None:
    """A failure if any rank's data are wrong. verdicts: what each rank's check said. One rank alone is named."""
    problems: dict[int, Any] = {rank: said for rank, said in enumerate(verdicts) if said is not None}
    if not problems:
        return None
    first, said = next(iter(problems.items()))
    who = first if len(problems) == 1 else None
    return Failure(
        "wrong", who, f"wrong result {when} on {len(problems)} of {len(verdicts)} ranks: rank {first}: {said}"
    )
