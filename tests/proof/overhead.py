"""The reported time against a bare loop of the same calls, interleaved in one process group: ratio 1.00."""

import gc
import time

import numpy as np
import torch
import torch.distributed as dist
from scipy.special import stdtrit

from bench.conclusions import Interval
from bench.intervals import effective_size
from bench.measure import channel, environment, timing, workload
from bench.measure.group import joined
from bench.measure.launcher import Seat
from bench.pools import buffer_bytes
from bench.records import Case
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


def against_a_bare_loop(rig: Rig, effort: Effort) -> list[Outcome]:
    """Medians of blocks in random order; the denominator is the mean of two bare loops, which also are the control."""
    job = [(size, depth, max(20, round(pairs * effort.blocks)), length) for size, depth, pairs, length, _ in BLOCKS]
    ranks = rig.launcher.start(2, "proof.overhead:main", job)
    found = []
    try:
        for (size, depth, pairs, _), (*_, allowed) in zip(job, BLOCKS, strict=True):
            assert ranks.members[0].connection.poll(900), "the ranks did not answer"
            message, _ = channel.receive(ranks.members[0].connection)
            medians = {name: np.array(values) for name, values in message["medians"].items()}
            ratio = _mean_ratio(medians["reported"] / np.sqrt(medians["bare"] * medians["bare again"]))
            control = _mean_ratio(medians["bare again"] / medians["bare"])
            metric = "isolated" if depth == 1 else f"pipelined ({depth})"
            found.append(
                Outcome(
                    f"reported / bare loop, {metric}, {size // KIB} KiB",
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


def main(seat: Seat, job: list[tuple[int, int, int, int]]) -> None:
    """A rank: sends, for each line of the job, the medians of the blocks of each kind.

    In real time where it is permitted: the question is what the suite adds, not what the scheduler does.
    """
    if environment.realtime_obstacle() is None:
        environment.use_realtime()
    gc.disable()  # as a rank of the suite does while it measures
    with joined(seat, "gloo", 120) as group:
        rng = np.random.default_rng(5)  # the same order on every rank
        for size, depth, pairs, length in job:
            metric = "isolated" if depth == 1 else "pipelined"
            case = Case("all_reduce", "gloo", group.world_size, "float32", size, "sum", "hot", metric, depth=depth)
            arena = workload.Arena(buffer_bytes(case, 0), group.device)
            work = workload.build(case, group, arena, 0, 1)
            tensor = arena.take(size, torch.float32)  # the very buffer: another one lies elsewhere in the caches
            blocks = {
                "reported": lambda w=work, c=case, k=length: (
                    timing.measure(w, k, c, group.barrier, _nothing, group.device).duration_ns
                ),
                "bare": lambda t=tensor, d=depth, k=length: bare_loop(t, k, d, group.barrier),
                "bare again": lambda t=tensor, d=depth, k=length: bare_loop(t, k, d, group.barrier),
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
                seat.send({"kind": "medians", "medians": medians})
    seat.send({"kind": "done"})


def bare_loop(tensor: torch.Tensor, count: int, depth: int, barrier) -> list[int]:
    """What anyone would write: barrier, clock, calls, clock."""
    durations = []
    for _ in range(count):
        barrier()
        start = time.perf_counter_ns()
        for _ in range(depth):
            dist.all_reduce(tensor)
        durations.append(time.perf_counter_ns() - start)
    return durations


def _nothing() -> None:
    return None
