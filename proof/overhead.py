"""The reported time against a bare loop of the same calls, interleaved in one process group: ratio 1.00."""

import functools
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.special import stdtrit

from bench.launch.mpirun import MpiLauncher
from bench.launch.ranks import Starter
from bench.machine import host
from bench.model.conclusions import Interval
from bench.model.records import Case
from bench.planning.footprint import buffer_bytes
from bench.protocol import messages
from bench.protocol.rank_context import RankContext
from bench.rank import timing
from bench.rank.process import joined
from bench.rank.rounds import workload_of
from bench.rank.tensors import Arena
from bench.stats.intervals import effective_size
from proof.claim import Effort, Outcome
from proof.rig import Rig

KIB = 1024
# Size, calls between two stamps, pairs of blocks, iterations a block, and the deviation that is allowed.
BLOCKS = (
    (4 * KIB, 1, 1500, 10, 0.05),
    (1024 * KIB, 1, 1500, 10, 0.05),
    (16384 * KIB, 1, 900, 3, 0.02),
    (4 * KIB, 20, 500, 2, 0.05),
    (1024 * KIB, 20, 300, 2, 0.05),
    (16384 * KIB, 10, 300, 1, 0.02),
)
# The same for MPI, whose calls take microseconds. At 2 µs a call, whatever runs between two calls makes the second one
# slower, because it is no longer in the processor's nearest caches: 2 µs of Python by 30 to 50 ns, filling the tensor
# with zeros by 50 ns, making the suite's next call by 60 ns (2.07 to 2.13 µs, 3 %). The loop below does nothing there.
MPI_BLOCKS = (
    (4 * KIB, 1, 1500, 100, 0.02),
    (1024 * KIB, 1, 900, 10, 0.05),
    (4 * KIB, 20, 500, 10, 0.05),
)
Lines = tuple[tuple[int, int, int, int, float], ...]


def against_a_bare_loop(rig: Rig, effort: Effort) -> list[Outcome]:
    """Medians of blocks in random order; the denominator is the mean of two bare loops, which also are the control."""
    return _compared(rig.launcher, "gloo", BLOCKS, effort)


def mpi_against_a_bare_loop(rig: Rig, effort: Effort) -> list[Outcome]:
    """The same through mpi4py, against a loop of its own calls with the same arguments."""
    unsupported = host.unsupported_mpi()
    if unsupported is not None:
        return [Outcome("mpi: reported / bare loop", "contains 1", unsupported, None)]
    return _compared(MpiLauncher(rig.launcher), "mpi", MPI_BLOCKS, effort)


def _compared(starter: Starter, backend: str, lines: Lines, effort: Effort) -> list[Outcome]:
    job = [(size, depth, max(20, round(pairs * effort.blocks)), length) for size, depth, pairs, length, _ in lines]
    ranks = starter.start(2, "proof.overhead:main", (backend, job))
    found = []
    try:
        for (size, depth, pairs, _), (*_, allowed) in zip(job, lines, strict=True):
            assert ranks.members[0].connection.poll(900), "the ranks did not answer"
            message, _ = messages.receive(ranks.members[0].connection)
            medians = {name: np.array(values) for name, values in message["medians"].items()}
            ratio = _mean_ratio(medians["reported"] / np.sqrt(medians["bare"] * medians["bare again"]))
            control = _mean_ratio(medians["bare again"] / medians["bare"])
            metric = "isolated" if depth == 1 else f"pipelined ({depth})"
            found.append(
                Outcome(
                    f"{'' if backend == 'gloo' else f'{backend}: '}reported / bare loop, {metric}, {size // KIB} KiB",
                    f"contains 1, within ±{allowed:.0%}",
                    f"{ratio.value:.3f} [{ratio.low:.3f} – {ratio.high:.3f}]; bare / bare {control.value:.3f} "
                    f"[{control.low:.3f} – {control.high:.3f}]; {pairs} pairs",
                    ratio.low <= 1 <= ratio.high and ratio.low >= 1 - allowed and ratio.high <= 1 + allowed,
                )
            )
    finally:
        ranks.kill()
    return found


def _mean_ratio(ratios: np.ndarray) -> Interval:
    """Geometric mean over the pairs of blocks; they are autocorrelated, so their effective number counts.

    Taken as independent, the control, which compares a loop with itself, missed 1 in 2 of 6 lines.
    """
    logs = np.log(ratios)
    count = effective_size(ratios)
    half = float(stdtrit(count - 1, 0.975) * logs.std(ddof=1) / np.sqrt(count))
    middle = float(logs.mean())
    return Interval(float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half)), "over blocks")


def main(context: RankContext, task: tuple[str, list[tuple[int, int, int, int]]]) -> None:
    """A rank: sends, for each line of the job, the medians of the blocks of each kind.

    In real time where it is permitted: the question is what the suite adds, not what the scheduler does. Not where
    ranks poll, which would keep everybody else from the cores.
    """
    backend, job = task
    if backend == "gloo" and host.unsupported_realtime() is None:
        host.use_realtime()
    gc.disable()  # as a rank of the suite does while it measures
    with joined(context, backend, 120) as group:
        rng = np.random.default_rng(5)  # the same order on every rank
        for size, depth, pairs, length in job:
            metric = "isolated" if depth == 1 else "pipelined"
            case = Case("all_reduce", backend, group.world_size, "float32", size, "sum", "hot", metric, depth=depth)
            arena = Arena(buffer_bytes(case, 0), group.device.handle)
            work = workload_of(case, group, arena, 0, 0, 1)
            arena.clear()
            tensor = arena.take(size, torch.float32)  # the very buffer: another one lies elsewhere in the caches
            call = BARE[backend](tensor)
            timer = timing.CaseTimer(work, case, group.barrier, _nothing, group.device, group.align)
            blocks = {
                "reported": lambda t=timer, k=length: t.measure(k).duration_ns,
                "bare": lambda c=call, d=depth, k=length: bare_loop(c, k, d, group.barrier),
                "bare again": lambda c=call, d=depth, k=length: bare_loop(c, k, d, group.barrier),
            }
            mine: dict[str, list[list[int]]] = {name: [] for name in blocks}
            for turn in range(pairs + 3):
                for name in rng.permutation(list(blocks)):
                    durations = blocks[name]()
                    if turn >= 3:  # warm-up
                        mine[name].append(durations)
                    tensor.zero_()  # a bare loop does not refill, and sums grow
            everyone = group.gather(mine)
            if group.rank == 0:
                slowest = {name: np.max([one[name] for one in everyone], axis=0) for name in blocks}
                medians = {name: np.median(values, axis=1).tolist() for name, values in slowest.items()}
                context.send({"kind": "medians", "medians": medians})
    context.send({"kind": "done"})


def _of_torch(tensor: torch.Tensor) -> Callable[[], Any]:
    return functools.partial(dist.all_reduce, tensor)


def _of_mpi(tensor: torch.Tensor) -> Callable[[], Any]:
    """With the buffer in the form that mpi4py is quickest with; a numpy array as it is costs 0.4 µs more a call."""
    from mpi4py import MPI

    everyone, mine = MPI.COMM_WORLD, [MPI.buffer.frombuffer(tensor.numpy()), MPI.FLOAT]
    return functools.partial(everyone.Allreduce, MPI.IN_PLACE, mine)


BARE = {"gloo": _of_torch, "mpi": _of_mpi}


def bare_loop(call: Callable[[], Any], count: int, depth: int, barrier) -> list[int]:
    """What anyone would write: barrier, clock, calls, clock."""
    clock, durations = time.perf_counter_ns, []
    for _ in range(count):
        barrier()
        if depth == 1:  # a loop around one call takes 0.1 µs, which is 4 % of a call of MPI
            start = clock()
            call()
            stop = clock()
        else:
            start = clock()
            for _ in range(depth):
                call()
            stop = clock()
        durations.append(stop - start)
    return durations


def _nothing() -> None:
    return None
