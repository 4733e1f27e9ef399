"""Compare reported times with a bare loop of the same calls, interleaved in one process group.

Without a fault, and with the fault that claims about `ab` plant; the bare loop measures the cost of that fault.
"""

import functools
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.special import stdtrit

from collbench.launch.mpirun import MpiLauncher
from collbench.launch.ranks import Starter
from collbench.machine import host
from collbench.model.records import Case, Fault, Sampling, Settings
from collbench.planning.footprint import buffer_bytes
from collbench.protocol import messages
from collbench.protocol.rank_context import RankContext
from collbench.rank import timing
from collbench.rank.group import Group
from collbench.rank.process import joined
from collbench.rank.rounds import workload_of
from collbench.rank.tensors import Arena
from collbench.rank.workload import Workload, plant
from collbench.report.notices import sentence
from proof.claim import Line, within
from proof.rig import Rig

KIB = 1024
# The level of each of the two one-sided tests, and the allowed deviation: blocks of gloo scatter by 5 to 8 %.
LEVEL, ALLOWED = 0.05, {"gloo": 0.03, "mpi": 0.02}
# Size, calls between two stamps, turns per block, iterations per turn. A block has turns of all kinds of loop in random
# order; its means are the unit. A block is longer than the tens of calls for which gloo stays in one mode.
LINES = {
    "gloo": (
        (4 * KIB, 1, 25, 10),
        (1024 * KIB, 1, 25, 10),
        (16384 * KIB, 1, 8, 3),
        (4 * KIB, 20, 10, 2),
        (1024 * KIB, 20, 5, 2),
        (16384 * KIB, 10, 3, 1),
    ),
    # At 2 µs per call, any code between two calls makes the second call slower, because that code evicts it from the
    # processor's nearest caches: 2 µs of Python by 30 to 50 ns, filling the tensor with zeros by 50 ns, making the
    # suite's next call by 60 ns (2.07 to 2.13 µs, 3 %). The bare loop does nothing between calls.
    "mpi": ((4 * KIB, 1, 25, 100), (1024 * KIB, 1, 15, 10), (4 * KIB, 20, 10, 10)),
}
WARMUP = 3
# Runs some iterations; returns the ns of each.
Loop = Callable[[], list[int]]
# Planted shares of a call, and the lines of claims about them.
PLANTED, PLANTED_LINES = (0.02, 0.2), ((64 * KIB, 1, 25, 10), (1024 * KIB, 1, 25, 10), (16384 * KIB, 1, 8, 3))
SETTINGS = Settings(Sampling(0, 0.0, None, None, 0.0, 1), seed=1, timeout_s=60.0, pool_bytes=0)


@dataclass(frozen=True)
class Task:
    """What two ranks measure: the suite and bare loops of the same calls, with planted faults or without."""

    backend: str
    trials: int
    # As in LINES.
    lines: Sequence[Sequence[int]]
    # Of the threads of gloo's loop: the overhead of the suite is wanted, not gloo's stalls.
    scheduling: str = "batch"
    # Shares of a call that the fault `slow` adds.
    shares: Sequence[float] = ()
    suite: bool = True


def against_a_bare_loop(rig: Rig, trials: int) -> list[Line]:
    return _compared(rig.launcher, Task("gloo", trials, LINES["gloo"]))


def mpi_against_a_bare_loop(rig: Rig, trials: int) -> list[Line]:
    """Compare calls through mpi4py with a loop of mpi4py's own calls with the same arguments."""
    return _compared(MpiLauncher(rig.launcher), Task("mpi", trials, LINES["mpi"], "normal"))


def without_mpi() -> str | None:
    """Return why MPI cannot be measured here; None if it can."""
    reason = host.unsupported_mpi()
    return None if reason is None else sentence(reason)


def plants(rig: Rig, trials: int) -> list[Line]:
    """Compare bare loops with and without the fault `slow`, and the suite with the fault.

    Ranks share the cores, so a fault costs more than its share; the suite and the bare loop must find the same cost.
    """
    lines = []
    means = _means(rig.launcher, Task("gloo", trials, PLANTED_LINES, shares=PLANTED))
    for (size, *_), blocks in zip(PLANTED_LINES, means, strict=True):
        for share in PLANTED:
            slowed, reported = blocks[f"bare {share}"], blocks[f"reported {share}"]
            title = f"reported / bare loop, both with {share:.0%} planted, {size // KIB} KiB"
            cost = note("the fault costs", slowed / blocks["bare"])
            lines.append(within(title, *ratio_of(reported / slowed), ALLOWED["gloo"], cost))
    return lines


def cost_of(rig: Rig, share: float, scheduling: str, trials: int = 12) -> float:
    """Return the slowdown of a bare loop by a fault: the mean ratio over the sizes of `PLANTED_LINES`."""
    task = Task("gloo", trials, PLANTED_LINES, scheduling, (share,), suite=False)
    ratios = [ratio_of(blocks[f"bare {share}"] / blocks["bare"])[0] for blocks in _means(rig.launcher, task)]
    return float(np.exp(np.mean(np.log(ratios))))


def _means(starter: Starter, task: Task) -> Iterator[dict[str, np.ndarray]]:
    """Yield, per line, the means of the blocks of each kind of loop."""
    ranks = starter.start(2, "proof.overhead:main", task)
    try:
        for _ in task.lines:
            assert ranks.members[0].connection.poll(900), "the ranks did not answer"
            message, _ = messages.receive(ranks.members[0].connection)
            yield {name: np.array(values) for name, values in message["means"].items()}
    finally:
        ranks.kill()


def _compared(starter: Starter, task: Task) -> list[Line]:
    """Compare reported times with the mean of two bare loops; the ratio of these two loops is the control."""
    results = []
    for (size, depth, *_), means in zip(task.lines, _means(starter, task), strict=True):
        metric = "isolated" if depth == 1 else f"pipelined ({depth})"
        title = f"{task.backend}: reported / bare loop, {metric}, {size // KIB} KiB"
        control = note("bare / bare", means["bare again"] / means["bare"])
        both = np.sqrt(means["bare"] * means["bare again"])
        results.append(within(title, *ratio_of(means["reported"] / both), ALLOWED[task.backend], control))
    return results


def note(about: str, ratios: np.ndarray) -> str:
    """Return a text such as `; bare / bare +0.1% [-0.5% to +0.7%]`."""
    return f"; {about} " + "{:+.1%} [{:+.1%} to {:+.1%}]".format(*(bound - 1 for bound in ratio_of(ratios)))


def ratio_of(ratios: np.ndarray) -> tuple[float, float, float]:
    """Return the geometric mean over blocks, and its interval, which corresponds to two one-sided tests."""
    logs = np.log(ratios)
    half = stdtrit(len(logs) - 1, 1 - LEVEL) * logs.std(ddof=1) / np.sqrt(len(logs))
    middle = float(logs.mean())
    return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))


def main(context: RankContext, given: bytes) -> None:
    """Run a rank, which sends the means of the blocks of each kind of loop, per line."""
    task = Task(**json.loads(given))
    gc.disable()  # as in a rank of the suite during measurements
    scheduling = task.scheduling if host.unsupported_batch() is None else "normal"
    with joined(context, task.backend, 120, scheduling=scheduling) as group:
        for line in task.lines:
            _measure(context, group, task, *line)
    context.send({"kind": "done"})


def _measure(context: RankContext, group: Group, task: Task, size: int, depth: int, turns: int, length: int) -> None:
    metric = "isolated" if depth == 1 else "pipelined"
    case = Case("all_reduce", task.backend, group.world_size, "float32", size, "sum", "reused", metric, depth=depth)
    arena = Arena(buffer_bytes(case, 0), group.device.handle)
    work = workload_of(case, group, arena, SETTINGS)
    arena.clear()
    tensor = arena.take(size, torch.float32)  # the same buffer: another buffer has other places in the caches
    call = BARE[task.backend](tensor)

    def bare(call: Callable[[], Any]) -> Loop:
        return functools.partial(bare_loop, call, length, depth, group.barrier)

    def reported(work: Workload, barrier: Callable[[], None]) -> Loop:
        timer = timing.CaseTimer(work, case, barrier, lambda: None, group.device, group.align)
        return lambda: timer.measure(length)["duration_ns"]

    if not task.shares:
        loops = {"reported": reported(work, group.barrier), "bare": bare(call), "bare again": bare(call)}
    else:
        loops = {"bare": bare(call)}
    for share in task.shares:
        faults = [Fault("slow", group.rank, share=share)]
        slowed, _ = plant(faults, case, 1, group.rank, _Bare(call), group.barrier)
        loops[f"bare {share}"] = bare(slowed.ready(1)[0])
        if task.suite:
            loops[f"reported {share}"] = reported(*plant(faults, case, 1, group.rank, work, group.barrier))
    _send_means(context, group, loops, task.trials, turns, tensor)


class _Bare(Workload):
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def prepare(self) -> Callable[[], Any]:
        return self._call


def _send_means(
    context: RankContext, group: Group, loops: dict[str, Loop], trials: int, turns: int, tensor: torch.Tensor
) -> None:
    """Run all loops in random order, the same order on all ranks, and send the means of their blocks."""
    rng = np.random.default_rng(5)
    mine: dict[str, list[list[int]]] = {name: [] for name in loops}
    for turn in range(trials * turns + WARMUP):
        for name in rng.permutation(list(loops)):
            durations = loops[name]()
            if turn >= WARMUP:
                mine[name].append(durations)
            tensor.zero_()  # no loop refills its buffer, and sums grow
    by_rank = group.gather(mine)
    if group.rank == 0:
        slowest = {name: np.max([measured[name] for measured in by_rank], axis=0) for name in loops}
        means = {name: times.reshape(trials, -1).mean(axis=1).tolist() for name, times in slowest.items()}
        context.send({"kind": "means", "means": means})


def _mpi_call(tensor: torch.Tensor) -> Callable[[], Any]:
    """Return a call with the suite's arguments: a numpy array costs 0.4 µs more, no operation 0.04 µs less."""
    from mpi4py import MPI

    world, mine = MPI.COMM_WORLD, [MPI.buffer.frombuffer(tensor.numpy()), MPI.FLOAT]
    return functools.partial(world.Allreduce, MPI.IN_PLACE, mine, MPI.SUM)


BARE = {"gloo": lambda tensor: functools.partial(dist.all_reduce, tensor), "mpi": _mpi_call}


def bare_loop(call: Callable[[], Any], count: int, depth: int, barrier) -> list[int]:
    """Time calls with the obvious loop: barrier, clock, calls, clock."""
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
