"""Measure cases together, in rounds: each round visits every case for one block, in a new random order.

In: cases, the `Job`, the joined `Group`, the rank's `Arena`. Out: `Samples` of each case, in the order of the cases.
Every rank makes the same calls in the same order; in a job with turns, each rank waits for its turn before each
block, and keeps the turn until it asks for the next one. One gather before the rounds collects wrong results and the
duration of a call, one gather per round collects the times of all cases, and one gather at the end collects the last
checks and the costs. `sampling` decides how long the next block is, `timing` times it.
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from collbench.catalog.collectives import OPERATIONS, cycle
from collbench.catalog.metrics import makes_groups, metric_of
from collbench.machine import host
from collbench.model.records import (
    LAUNCH_WARMUP_S,
    Case,
    Failure,
    Job,
    Json,
    OwnDetail,
    Samples,
    Settings,
    Timings,
    Usage,
)
from collbench.model.units import NS
from collbench.planning.footprint import checked_apart, most_iterations, scratch_bytes
from collbench.protocol.rank_context import RankContext
from collbench.rank import timing
from collbench.rank.barrier import BarrierOperation, FirstCall, Joining, NewGroup
from collbench.rank.collectives import COLLECTIVES, rest
from collbench.rank.group import Group
from collbench.rank.sampling import Sampler
from collbench.rank.stage import RankPlace, Workloads
from collbench.rank.tensors import Arena, TensorOperation
from collbench.rank.timing import RankTimings
from collbench.rank.workload import BlockUse, Flushed, Workload, plant

if TYPE_CHECKING:
    from collbench.model.records import Integers

# CPU time of other processes that the kernel's accounting cannot distinguish from 0: it counts in ticks of each core.
UNSEEN_TICKS = 2
# Fields of `Usage` with one entry per rank, and fields that are sums over hosts.
PER_RANK = ("cpu_s", "involuntary_switches", "peak_rss_bytes", "timer_cost_ns", "floor_ns")
PER_HOST = ("machine_busy_s", "steal_s", "throttled")
# Pause of all ranks after they have shown their first times, so that drawing these takes no core from timed calls.
SHOWN_S = 0.1


def workload_of(
    case: Case,
    group: Group,
    arena: Arena,
    settings: Settings,
    tick: Callable[[], None] = rest,
    workloads: Workloads | None = None,
) -> Workload:
    """Return the workload of a case, ready to be called.

    tick: called repeatedly while buffers are filled and checked. workloads: those of a package's operation.
    """
    workload: Workload
    seed = settings.seed
    if workloads is not None:
        workload = workloads(case)
    elif case.op in COLLECTIVES:
        workload = tensors = TensorOperation(case, group, arena, settings.pool_bytes, seed, tick)
        if makes_groups(case):
            workload = FirstCall(case, group, tensors)
    elif case.op == "init_process_group":
        workload = Joining()
    elif case.op == "new_group":
        workload = NewGroup(case, group)
    else:
        workload = BarrierOperation(case, group)
    nbytes = scratch_bytes(case, settings.flush_bytes)
    return Flushed(workload, arena.scratch(nbytes)) if nbytes else workload


class Batch:
    """Cases that are measured together. `first` is the position of the first case in the launch, from 0."""

    def __init__(
        self, cases: Sequence[Case], first: int, context: RankContext, job: Job, group: Group, arena: Arena
    ) -> None:
        self._context, self._job, self._group, self._arena = context, job, group, arena
        self._meter = _Meter()
        arena.clear()
        self._cases: list[_MeasuredCase] = []
        of_packages: dict[str, Workloads] = {}
        for position, case in enumerate(cases, first):
            context.enters(position)
            if (deferred := OPERATIONS[case.op].rank) is not None and case.op not in of_packages:
                place = RankPlace(group, arena, context.stack_file.parent, context.tick)
                of_packages[case.op] = deferred(case, job.settings, job.launch.number, place)
            measured = _MeasuredCase(case, position, group, arena, job, context, of_packages.get(case.op))
            if job.in_turns_s is None:  # the ranks of other sides start meanwhile; these are not other processes
                measured.spent = self._meter.spent(measured.spent)
            self._cases.append(measured)

    def measure(self, show: Callable[[Sequence[Samples]], None]) -> list[Samples]:
        """Measure every case, and check its results before and after timing.

        show: receives the results after one timed round, on rank 0, in the first launch, unless ranks take turns.
        """
        shows = self._job.launch.number == 1 and self._job.in_turns_s is None
        ranks = self._group.gather([(measured.checked(), measured.first_s) for measured in self._cases])
        # With turns, the first calls of each case are warm-up enough: the rest is equal on all sides.
        first = self._cases[0].position == 0 and self._job.in_turns_s is None
        warm_s = LAUNCH_WARMUP_S / len(self._cases) if first else 0.0
        for index, measured in enumerate(self._cases):
            measured.failure = measured.failed([rank[index][0] for rank in ranks], "before timing")
            measured.start(max(rank[index][1] for rank in ranks), warm_s)
        self._meter.reset()
        number = 0
        while unfinished := [measured for measured in self._cases if measured.unfinished]:
            if self._group.rank == 0:
                self._context.send({"kind": "begin", "index": number})
            self._round(number, unfinished)
            number += 1
            if shows and all(measured.sampler.timed_blocks for measured in unfinished):
                shows = False
                self._show(unfinished, show)
        return self._conclude()

    def _show(self, cases: list[_MeasuredCase], show: Callable[[Sequence[Samples]], None]) -> None:
        """Pass on the results of the cases so far; all ranks pause meanwhile."""
        if self._group.rank == 0:
            show([measured.samples(None, None) for measured in cases])
        time.sleep(SHOWN_S)
        self._meter.reset()

    def _round(self, number: int, unfinished: list[_MeasuredCase]) -> None:
        order = list(unfinished)
        random.Random(f"{self._job.settings.seed}/{self._job.launch.number}/{number}").shuffle(order)
        if OPERATIONS[order[0].case.op].against:
            gc.collect()  # such calls leave reference cycles, which would keep large tensors
        own: dict[int, RankTimings] = {}
        for measured in order:
            if self._job.in_turns_s is not None:
                self._context.wait_for_turn()
                self._meter.reset()
            self._context.enters(measured.position)
            own[measured.position] = measured.timed_block()
            measured.spent = self._meter.spent(measured.spent)
        ranks = self._group.gather([own[measured.position] for measured in unfinished])
        for measured, block in zip(unfinished, zip(*ranks, strict=True), strict=True):
            bound = [rank["dispatch_bound"] for rank in block if "dispatch_bound" in rank]
            elapsed_s = max(rank["elapsed_ns"] for rank in block) * NS
            timings = _timings(block, measured.case.depth)
            measured.sampler.add(timings, elapsed_s, np.any(bound, axis=0) if bound else None)
        self._meter.reset()

    def _conclude(self) -> list[Samples]:
        """End the cases, check the results of all ranks, and return the samples of each case.

        All ranks do the same in the same order, because cases that are checked apart make one more call.
        """
        for measured in self._cases:
            self._context.enters(measured.position)
            measured.close()
            if measured.failure is None and checked_apart(measured.case):
                measured.work.renew()
                measured.call(captured=metric_of(measured.case).captured)
            measured.spent = self._meter.spent(measured.spent)
        costs, problems = [], []
        for measured in self._cases:
            self._context.enters(measured.position)
            problems.append(measured.checked() if measured.failure is None else None)
            measured.spent = self._meter.spent(measured.spent)
            costs.append(measured.costs())
        costs_of_ranks, problems_of_ranks = zip(*self._group.gather((costs, problems)), strict=True)
        samples = []
        for index, measured in enumerate(self._cases):
            usage = _usage([costs[index] for costs in costs_of_ranks], measured, self._arena.nbytes)
            failure = measured.failed([problems[index] for problems in problems_of_ranks], "after timing")
            samples.append(measured.samples(usage, failure))
        return samples


class _MeasuredCase:
    """One case of a batch on this rank: its workload, the state of its measurement, and its costs."""

    def __init__(
        self,
        case: Case,
        position: int,
        group: Group,
        arena: Arena,
        job: Job,
        context: RankContext,
        workloads: Workloads | None,
    ) -> None:
        """Build the workload and make its first calls."""
        self.case, self.position = case, position
        self._group, self._job = group, job
        self._unix_s = 0.0
        self.spent: Json = {}
        self.failure: Failure | None = None
        self._detail: OwnDetail | None = None
        self._compared = OPERATIONS[case.op].against is not None
        # The workload without planted faults, for everything except calls.
        self._inner = workload_of(case, group, arena, job.settings, context.tick, workloads)
        self.work, barrier = plant(job.settings.faults, case, job.launch.number, group.rank, self._inner, group.barrier)
        self._timer = timing.CaseTimer(self.work, case, barrier, context.tick, group.device, group.align)
        self._problem: str | None = None
        self.call()
        self._inner.stamps()

    def call(self, captured: bool = False) -> None:
        """Make one call per turn, without a barrier before it, and check all results but the last (see `checked`)."""
        took, device = [], self._group.device
        for turn in range(cycle(self.case)):
            if turn:
                self._problem = self.checked()
                self.work.renew()  # on all ranks, also if a rank rested or had a wrong result
            began = time.perf_counter()
            timing.call_once(self.work, self.case, device if captured else None)
            device.synchronize()
            took.append(time.perf_counter() - began)
        self.first_s = sum(took) / len(took)

    def checked(self) -> str | None:
        """Return the first wrong result on this rank since the beginning, as a sentence; None if all are right."""
        return self._problem or self.work.verify()

    def start(self, first_s: float, warm_s: float) -> None:
        """Set the first block. first_s: time of one call on the slowest rank. warm_s: least time of the warm-up."""
        sampling, operation = self._job.settings.sampling, OPERATIONS[self.case.op]
        if operation.once or operation.against:
            rounds = 1 if operation.once else self._job.settings.own_of(self.case).rounds
            sampling = replace(sampling, iterations=rounds, warmup=0)
        most, fixed = most_iterations(self.case), operation.against is not None
        in_turns_s = None if self._job.in_turns_s is None else self._job.in_turns_s[self.position]
        self.sampler = Sampler(sampling, cycle(self.case), most, first_s, fixed, in_turns_s, warm_s)

    @property
    def unfinished(self) -> bool:
        return self.failure is None and self.sampler.stopped_by is None

    def timed_block(self) -> RankTimings:
        """Time the block that the sampler asks for."""
        self._unix_s = self._unix_s or time.time()
        if OPERATIONS[self.case.op].once:
            start_ns, duration_ns = self._group.joined_ns
            return {"start_ns": [start_ns], "duration_ns": [duration_ns], "elapsed_ns": duration_ns}
        before = _cpu_s() if self._compared else None
        timings = self._timer.measure(self.sampler.block.total)
        if before is not None:
            self._group.barrier()  # the block ends when all ranks have ended it
            (idle_s, own_s), (busy_s, all_s) = before, _cpu_s()
            used_s = None if idle_s is None or busy_s is None else busy_s - idle_s
            cores = os.cpu_count() or 1
            timings["use"] = BlockUse(host=host.hostname(), cores=cores, busy_s=used_s, own_s=all_s - own_s)
        if (stamps := self._inner.stamps()) is not None:
            # On a GPU, host times were measured first, in as many further iterations, whose stamps are dropped.
            timings["inner"] = stamps[-self.sampler.block.total :]
        return timings

    def close(self) -> None:
        """Close the timer; in the first launch, keep the details of the case."""
        self._timer.close()
        if self.failure is None and self._job.launch.number == 1:
            self._detail = self._inner.detail()

    def failed(self, problems: list[str | None], when: str) -> Failure | None:
        """Return a failure if any rank's data are wrong; name the rank if it is the only one. problems: per rank."""
        wrong = {rank: problem for rank, problem in enumerate(problems) if problem is not None}
        if not wrong:
            return None
        first, text = next(iter(wrong.items()))
        if not self._inner.checks():  # an invariant is violated by all ranks together
            text = f"wrong result {when} on {len(wrong)} of {len(problems)} ranks: rank {first}: {text}"
        return Failure("wrong", first if len(wrong) == 1 else None, text, tuple(wrong) if len(wrong) > 1 else ())

    def costs(self) -> Json:
        """Return the costs of the case on this rank, to be gathered, by fields of `Usage`; None: not measured."""
        call = self.work.single_rank_call() if self.failure is None else None
        return self.spent | {
            "cpu_s": round(self.spent["cpu_s"], 4),
            "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "timer_cost_ns": self._timer.cost_ns(),
            "host": host.boot(),
            "floor_ns": None if call is None else timing.floor_ns(call, self._group.device),
        }

    def samples(self, usage: Usage | None, failure: Failure | None) -> Samples:
        """Return the samples, for a line of samples.jsonl. usage: None before the end. failure: found after timing."""
        launch = self._job.launch.number
        if self.failure is not None:
            return Samples(self.case, launch, time.time(), failure=self.failure, checks=self._inner.checks())
        warmup, timed = self.sampler.warmup, self.sampler.timed
        base_ns = int(timed.start_ns.min())
        return Samples(
            case=self.case,
            launch=launch,
            unix_s=self._unix_s,
            base_ns=base_ns,
            warmup=replace(warmup, start_ns=warmup.start_ns - base_ns) if warmup else None,
            timed=replace(timed, start_ns=timed.start_ns - base_ns),
            stopped_by=self.sampler.stopped_by,
            usage=usage,
            failure=failure,
            checks=self._inner.checks(),
            detail=self._detail,
        )


def _timings(ranks: Sequence[RankTimings], depth: int) -> Timings:
    """Return the timings of all ranks for one block, as arrays of shape (iterations, ranks)."""

    def columns(lists: list[list[int]]) -> Integers:
        return np.array(lists, dtype=np.int64).T

    hosts = [rank["host_ns"] for rank in ranks if "host_ns" in rank]
    waits = [rank["wait_ns"] for rank in ranks if "wait_ns" in rank]
    stamps = [rank["inner"] for rank in ranks if "inner" in rank]
    uses = [rank["use"] for rank in ranks if "use" in rank]
    wall_s = max(max(rank["duration_ns"]) for rank in ranks) * NS
    return Timings(
        start_ns=columns([rank["start_ns"] for rank in ranks]),
        duration_ns=columns([rank["duration_ns"] for rank in ranks]),
        host_ns=columns(hosts) if hosts else None,
        # The rank that comes last waits for no other rank, only while its own stream is occupied.
        wait_ns=(waited := columns(waits)) - waited.min(axis=1, keepdims=True) if waits else None,
        calls=depth,
        inner_ns={
            name: np.array([[step[name] for step in rank] for rank in stamps], dtype=np.int64).swapaxes(0, 1)
            for name in (stamps[0][0] if stamps else ())
        },
        foreign_cpu=(_foreign_cpu(uses, wall_s),) if uses else (),
    )


def _cpu_s() -> tuple[float | None, float]:
    """Return the CPU seconds of the host, None if the kernel does not report them, and of this process."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return host.busy_and_steal_s(except_for=None)[0], own.ru_utime + own.ru_stime


def _foreign_cpu(ranks: list[BlockUse], wall_s: float) -> float | None:
    """Return the share of a host's CPU time that other processes than ranks used, maximum over hosts; None: unknown."""
    shares = []
    for name in {rank["host"] for rank in ranks}:
        neighbours = [rank for rank in ranks if rank["host"] == name]
        busy_s = neighbours[0]["busy_s"]
        if busy_s is None:
            return None
        # The undetectable time is subtracted; as a threshold it would, under steady load, exclude only long blocks.
        foreign_s = busy_s - sum(rank["own_s"] for rank in neighbours) - UNSEEN_TICKS / os.sysconf("SC_CLK_TCK")
        shares.append(round(max(foreign_s, 0.0) / (wall_s * neighbours[0]["cores"]), 4))
    return max(shares)


# ── costs of a case ──────────────────────────────────────────────────────────────────────────────
class _Meter:
    """Adds up the usage between `reset` and `spent`, and between one `spent` and the next, by fields of `Usage`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Leave out all usage until now."""
        self._last = self._read()

    def spent(self, so_far: Json) -> Json:
        """Return the usage since the last reading, added to `so_far` ({} at first); values are None if unknown."""
        before, self._last = self._last, self._read()
        changes = {
            name: None if after is None or before[name] is None else after - before[name]
            for name, after in self._last.items()
        }
        return {
            name: None if change is None or (earlier := so_far.get(name, 0)) is None else earlier + change
            for name, change in changes.items()
        }

    @staticmethod
    def _read() -> Json:
        """Read the counters of this rank and of its host, which takes 0.1 ms."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        busy_s, steal_s = host.busy_and_steal_s(except_for=mp.parent_process())
        return {
            "wall_s": time.perf_counter(),
            "cpu_s": own.ru_utime + own.ru_stime,
            "involuntary_switches": own.ru_nivcsw,
            "machine_busy_s": busy_s,
            "steal_s": steal_s,
            "throttled": host.throttled_periods(),
        }


def _usage(ranks: list[Json], measured: _MeasuredCase, buffer_bytes: int) -> Usage:
    """Return the usage of a case from its costs on each rank (`costs`), and from this rank's own records."""
    fields: Json = {}
    for name in PER_RANK:
        values = [rank[name] for rank in ranks]
        fields[name] = None if None in values else values
    for name in PER_HOST:
        # Each rank leaves out its own parent, so the smallest value of a host is from the rank with the busiest parent.
        least: dict[str, float] = {}
        for rank in ranks:
            if rank[name] is not None:
                least[rank["host"]] = min(rank[name], least.get(rank["host"], rank[name]))
        unknown = any(rank[name] is None for rank in ranks)
        fields[name] = None if unknown else round(sum(least.values()), 4)
    fields |= {"dispatch_bound": measured.sampler.dispatch_bound, "left_out": measured.sampler.left_out}
    return Usage(wall_s=round(measured.spent["wall_s"], 4), buffer_bytes=buffer_bytes, **fields)
