"""Run one rank of one launch: join the other ranks, then measure the launch's cases one after the other.

In: a `RankContext` (which rank this is, the connection to its parent) and a `Job`. Out, over the connection, JSON
messages:

    ready    every rank, with facts that only it knows; it then waits until the parent tells it to begin
    begin    rank 0: a case begins
    sampled  rank 0: a case ended, with its line for samples.jsonl
    error    any rank: an exception, which ends it
    done     every rank: all cases measured; rank 0: how the clocks differ

Writes no file but the log, which takes what torch and its libraries print.
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import resource
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import encoding
from bench.footprint import buffer_bytes, most_iterations
from bench.machine import environment, host
from bench.operations import cycle
from bench.protocol.rank_context import RankContext
from bench.rank import clocks, faults, nccl, timing, workload
from bench.rank.process import facts, joined, run_rank, wait_to_begin
from bench.rank.process_group import Group
from bench.rank.sampling import AgreedTimings, sample
from bench.rank.tensors import Arena
from bench.records import Case, Failure, Job, Json, Samples, Timings, Usage

if TYPE_CHECKING:
    from bench.records import Integers

NS = 1e-9


def main(context: RankContext, job: Job) -> None:
    """Entry of a rank's process; never returns."""
    run_rank(context, job.log, lambda: _work(context, job))


def _work(context: RankContext, job: Job) -> Json:
    # All cases of a launch have the same scheduling and settings, so the first one stands for all. Threads that torch
    # starts from here on inherit the scheduling.
    kind = job.launch.cases[0]
    if kind.scheduling == "rr":
        host.use_realtime()
    environment.apply(kind.settings)
    if kind.oversubscribed:
        environment.apply(nccl.shared_gpu(context.rank))
    with joined(context, job.launch.backend, job.timeout_s, kind.sync, kind.ctas) as group:
        at_start = clocks.bounds(group)
        _serve(context, job, group)
        at_end = clocks.bounds(group)
    return {"clocks": [at_start, at_end] if at_start and at_end else None}


def _serve(context: RankContext, job: Job, group: Group) -> None:
    wait_to_begin(context, group, lambda: facts(group, job.launch.backend))
    gc.collect()
    gc.disable()
    nbytes = max(buffer_bytes(case, job.pool_bytes) for case in job.launch.cases)
    registered = job.launch.cases[0].memory == "registered"
    with nccl.registered_memory(group.device) if registered else nullcontext():
        arena = Arena(nbytes, group.device)
    for index, case in enumerate(job.launch.cases):
        if group.rank == 0:
            context.send({"kind": "begin", "index": index})
        samples = _measure(case, job, group, arena, context)
        if group.rank == 0:
            failure = samples.failure.text if samples.failure else None
            context.send({"kind": "sampled", "failure": failure}, encoding.samples_to_line(samples))
        gc.collect()


def _measure(case: Case, job: Job, group: Group, arena: Arena, context: RankContext) -> Samples:
    before, unix_s = _Meter.read(), time.time()
    work = workload.build(case, group, arena, job.pool_bytes, job.flush_bytes, job.seed)
    work, barrier = faults.plant(job.faults, case, job.launch.number, group.rank, work, group.barrier)

    began = time.perf_counter()
    for _ in range(cycle(case)):
        timing.call_once(work, case)
    group.synchronize()
    first_s = (time.perf_counter() - began) / cycle(case)
    everyone = group.gather((work.verify(), first_s))
    failure = _failure([said for said, _ in everyone], "before timing")
    if failure is not None:
        return Samples(case, job.launch.number, unix_s, failure=failure)
    misses = context.barrier.misses if context.barrier else 0

    def tick() -> None:
        context.progress[context.rank] += 1

    def measure_block(count: int) -> AgreedTimings:
        return _agree(group, timing.measure(work, count, case, barrier, tick, group.device), case.depth)

    first_s = max(took for _, took in everyone)
    sampled = sample(job.sampling, measure_block, cycle(case), most_iterations(case), first_s)
    said = work.verify()
    single_rank_call = work.single_rank_call()
    costs = {
        "floor": None if single_rank_call is None else timing.floor_ns(single_rank_call, group.device),
        "misses": context.barrier.misses - misses if context.barrier and case.sync == "deadline" else None,
    }
    usage, verdicts = _usage(before, group, arena, costs, said)
    base_ns = int(sampled.timed.start_ns.min())
    return Samples(
        case=case,
        launch=job.launch.number,
        unix_s=unix_s,
        base_ns=base_ns,
        warmup=_relative(sampled.warmup, base_ns) if sampled.warmup else None,
        timed=_relative(sampled.timed, base_ns),
        stopped_by=sampled.stopped_by,
        usage=usage,
        failure=_failure(verdicts, "after timing"),
    )


def _agree(group: Group, own: timing.RankTimings, depth: int) -> AgreedTimings:
    """The timings of all ranks for one block, on every rank."""
    everyone: list[timing.RankTimings] = group.gather(own)
    hosts = [one.host_ns for one in everyone if one.host_ns is not None]
    timings = Timings(
        start_ns=_columns([one.start_ns for one in everyone]),
        duration_ns=_columns([one.duration_ns for one in everyone]),
        host_ns=_columns(hosts) if hosts else None,
        calls=depth,
    )
    return AgreedTimings(timings, max(one.elapsed_ns for one in everyone) * NS)


def _columns(ranks: list[list[int]]) -> Integers:
    return np.array(ranks, dtype=np.int64).T


def _relative(timings: Timings, base_ns: int) -> Timings:
    return replace(timings, start_ns=timings.start_ns - base_ns)


def _failure(verdicts: list[str | None], when: str) -> Failure | None:
    """A failure if any rank's data are wrong. verdicts: what each rank's check said. One rank alone is named."""
    problems = {rank: said for rank, said in enumerate(verdicts) if said is not None}
    if not problems:
        return None
    first, said = next(iter(problems.items()))
    who = first if len(problems) == 1 else None
    return Failure(
        "wrong", who, f"wrong result {when} on {len(problems)} of {len(verdicts)} ranks: rank {first}: {said}"
    )


@dataclass(frozen=True, slots=True)
class _Meter:
    """Counters of this rank and of its host at one moment."""

    wall_s: float
    cpu_s: float
    involuntary: int
    busy_s: float | None
    steal_s: float | None
    throttled: int | None

    @staticmethod
    def read() -> _Meter:
        own = resource.getrusage(resource.RUSAGE_SELF)
        busy, steal = host.busy_and_steal_s(except_for=mp.parent_process())
        throttled = host.throttled_periods()
        return _Meter(time.perf_counter(), own.ru_utime + own.ru_stime, own.ru_nivcsw, busy, steal, throttled)


def _usage(
    before: _Meter, group: Group, arena: Arena, costs: dict[str, float | None], said: str | None
) -> tuple[Usage, list[str | None]]:
    """What the case cost each rank, and what each rank's last check said: one gather for both."""
    now = _Meter.read()
    own = {
        "cpu_s": round(now.cpu_s - before.cpu_s, 4),
        "involuntary": now.involuntary - before.involuntary,
        "rss": _peak_rss_bytes(),
        "stamp": timing.stamp_cost_ns(),
        "host": host.boot(),
        "busy": _difference(now.busy_s, before.busy_s),
        "steal": _difference(now.steal_s, before.steal_s),
        "throttled": _difference(now.throttled, before.throttled),
        "said": said,
        **costs,
    }
    everyone: list[dict[str, Any]] = group.gather(own)
    usage = Usage(
        wall_s=round(now.wall_s - before.wall_s, 4),
        cpu_s=[one["cpu_s"] for one in everyone],
        involuntary_switches=[one["involuntary"] for one in everyone],
        peak_rss_bytes=[one["rss"] for one in everyone],
        buffer_bytes=arena.nbytes,
        timer_cost_ns=[one["stamp"] for one in everyone],
        machine_busy_s=_over_hosts(everyone, "busy"),
        steal_s=_over_hosts(everyone, "steal"),
        throttled=None if (periods := _over_hosts(everyone, "throttled")) is None else int(periods),
        floor_ns=_known([one["floor"] for one in everyone]),
        deadline_misses=_known([one["misses"] for one in everyone]),
    )
    return usage, [one["said"] for one in everyone]


def _known(values: list[Any]) -> list[Any] | None:
    return None if None in values else values


def _over_hosts(everyone: list[dict[str, Any]], what: str) -> float | None:
    """Sum over hosts of the smallest value that a rank of the host saw.

    Each rank leaves out its own parent, so the smallest value is that of the rank with the busiest parent.
    """
    least: dict[str, float] = {}
    for one in everyone:
        if one[what] is None:
            return None
        least[one["host"]] = min(one[what], least.get(one["host"], one[what]))
    return round(sum(least.values()), 4)


def _difference(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else round(now - before, 4)


def _peak_rss_bytes() -> int:
    # kilobytes on Linux, bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
