"""Run one rank of one launch: join the other ranks, then measure the launch's cases.

In: a `RankContext` (which rank this is, the connection to its parent) and an encoded `Job`. Out, over the connection,
JSON messages:

    ready    every rank, with facts that only the rank knows; the rank then waits for the parent's `go`
    turn     any rank, if the job takes turns: the rank gives up its turn, and waits for the parent's `go`
    begin    rank 0: a round begins
    sampled  rank 0: a case ended, with its line for samples.jsonl
    error    any rank: an exception, which ends it
    chosen   rank 0, in a launch that only probes: NCCL's log of its choices
    done     every rank: all cases are measured; from rank 0, with the clock bounds

Writes no file except the log, which receives the output of torch and its libraries.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from collbench.catalog.collectives import OPERATIONS, cycle
from collbench.machine import environment, host
from collbench.model.records import Job, Json, Samples
from collbench.planning.footprint import arena_bytes, batches
from collbench.protocol.rank_context import RankContext
from collbench.rank import process_group, timing
from collbench.rank.group import Group, clock_bounds
from collbench.rank.process import facts, joined, run_rank, wait_to_begin
from collbench.rank.rounds import Batch, workload_of
from collbench.rank.tensors import Arena
from collbench.store import encoding

# NCCL connects in the first call of a kind, and may log more during it.
PROBE_CALLS = 2


def main(context: RankContext, job: bytes) -> None:
    """Run a rank's process from its beginning; never return."""
    run_rank(context, lambda: _work(context, encoding.decoded(job, Job)))


def _work(context: RankContext, job: Job) -> Json:
    if (of_package := OPERATIONS[job.launch.cases[0].op].rank) is not None:
        _ = of_package.value  # before the ranks join: `ready` names the modules in which it waits
    with entered(context, job) as group:
        if job.probe:
            wait_to_begin(context, group, lambda: facts(group, job.launch.backend))
            _probe(context, job, group, _log_of(context))
            return {}
        at_start = clock_bounds(group)
        wait_to_begin(context, group, lambda: facts(group, job.launch.backend))
        _measure(context, job, group)
        at_end = clock_bounds(group)
    return {"clocks": [at_start, at_end] if at_start and at_end else None}


@contextmanager
def entered(context: RankContext, job: Job) -> Iterator[Group]:
    """Set up this process as the cases of a launch require, and join the other ranks.

    All cases of a launch have the same scheduling and settings, so the first case represents all. Threads that torch
    starts from here on inherit the scheduling.
    """
    kind = job.launch.cases[0]
    if kind.scheduling == "rr":
        host.use_realtime()
    environment.apply(kind.settings.pairs)
    if kind.oversubscribed:
        environment.apply(process_group.shared_gpu(context.rank).items())
    if job.probe:
        log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING", "NCCL_DEBUG_FILE": str(_log_of(context))}
        environment.apply(log.items())
    with joined(context, job.launch.backend, job.settings.timeout_s, kind.scheduling) as group:
        yield group


def _log_of(context: RankContext) -> Path:
    """Return the path of the log that NCCL writes during probing."""
    return context.stack_file.with_name(f"nccl-{context.rank}.log")


def _measure(context: RankContext, job: Job, group: Group) -> None:
    """Measure the cases batch by batch, and send a line for each case."""
    pool_bytes = job.settings.pool_bytes
    together = batches(job.launch.cases, job.settings, small_apart=job.launch.number == 1)
    nbytes = max(arena_bytes(cases, pool_bytes) for cases in together)
    with buffers_of(job, group, nbytes) as arena:
        first = 0
        for cases in together:
            gc.collect()
            gc.disable()
            for samples in Batch(cases, first, context, job, group, arena).measure(partial(_show, context)):
                if group.rank == 0:
                    failure = samples.failure.text if samples.failure else None
                    context.send({"kind": "sampled", "failure": failure}, encoding.samples_to_line(samples))
            first += len(cases)


def _show(context: RankContext, cases: Sequence[Samples]) -> None:
    """Send the results of the cases so far; they are not kept."""
    context.send({"kind": "shown"}, b"\n".join(map(encoding.samples_to_line, cases)))


@contextmanager
def buffers_of(job: Job, group: Group, nbytes: int) -> Iterator[Arena]:
    """Yield the memory of all buffers; register it, if the launch asks for that, with the groups that its cases use."""
    kind = job.launch.cases[0].memory
    if kind == "plain":
        yield Arena(nbytes, group.device.handle)
        return
    used = {case.groups: group.subgroup(case) for case in job.launch.cases}
    # A rank in none of the groups of a division makes no calls in that division, and does not register with it.
    handles = [subgroup.handle for subgroup in used.values() if not subgroup.idle]
    with process_group.registered_memory(group.device.handle, handles, kind == "symmetric") as register:
        arena = Arena(nbytes, group.device.handle)
        register()
        yield arena
        arena.free()


def _probe(context: RankContext, job: Job, group: Group, log: Path) -> None:
    """Make the calls of each case with NCCL's log on, which reports the algorithm that NCCL chose; nothing is timed.

    Send the text that NCCL wrote into `log` before the first case and during each case; `machine.nccl_log`
    reads it. This is a separate launch, because every line of the log takes a lock and a write on rank 0, which would
    make rank 0 the straggler.
    """
    settings = replace(job.settings, pool_bytes=0, flush_bytes=0)
    # Registered if the cases register their memory: NCCL chooses other kernels for registered memory.
    with buffers_of(job, group, max(arena_bytes([case], 0) for case in job.launch.cases)) as arena:
        texts = [_text_from(log, 0)]
        for position, case in enumerate(job.launch.cases):
            context.enters(position)
            arena.clear()
            work = workload_of(case, group, arena, settings, context.tick)
            for _ in range(PROBE_CALLS * cycle(case)):
                timing.call_once(work, case)
            group.device.synchronize()
            context.tick()
            texts.append(_text_from(log, sum(map(len, texts))))
    if group.rank == 0:
        context.send({"kind": "chosen", "texts": [text.decode(errors="replace") for text in texts]})


def _text_from(log: Path, start: int) -> bytes:
    """Return the content of the log from byte `start` on; empty if the log cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            return file.read()
    except OSError:
        return b""
