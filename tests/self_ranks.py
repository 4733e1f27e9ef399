"""Ranks for `bench_self`: blocks through the suite's own timing, beside a bare loop of the same calls."""

import time

import numpy as np
import torch
import torch.distributed as dist

from bench.measure import collectives, timing
from bench.measure.group import joined
from bench.measure.launcher import Seat
from bench.records import Case


def main(seat: Seat, job: dict) -> None:
    """Sends, a size, the medians of each block: reported, bare, bare again (the control)."""
    with joined(seat, "gloo", 120) as group:
        rng = np.random.default_rng(5)  # the same order on every rank
        for size, pairs, length in job["sizes"]:
            case = Case("all_reduce", "gloo", group.world_size, "float32", size, buffers="hot")
            arena = collectives.Arena(size, group.device)
            workload = collectives.build(case, group, arena, 0, 1)
            tensor = arena.take(size, torch.float32)  # the very buffer: another one lies elsewhere in the caches
            blocks = {
                "reported": lambda w=workload, k=length: (
                    timing.measure(w, k, group.barrier, _nothing, group.device).duration_ns
                ),
                "bare": lambda t=tensor, k=length: bare_loop(t, k, seat),
                "bare again": lambda t=tensor, k=length: bare_loop(t, k, seat),
            }
            mine: dict[str, list[list[int]]] = {name: [] for name in blocks}
            for turn in range(pairs + 3):
                for name in rng.permutation(list(blocks)):
                    durations = blocks[name]()
                    if turn >= 3:  # warm-up
                        mine[name].append(durations)
            everyone = group.gather(mine)
            if group.rank == 0:
                slowest = {name: np.max([one[name] for one in everyone], axis=0) for name in blocks}
                medians = {name: np.median(values, axis=1).tolist() for name, values in slowest.items()}
                seat.send({"kind": "medians", "size": size, "medians": medians})
    seat.send({"kind": "done"})


def bare_loop(tensor: torch.Tensor, count: int, seat: Seat) -> list[int]:
    """What anyone would write: barrier, clock, call, clock."""
    durations = []
    for _ in range(count):
        seat.gate.meet()
        start = time.perf_counter_ns()
        dist.all_reduce(tensor)
        durations.append(time.perf_counter_ns() - start)
    return durations


def _nothing() -> None:
    return None
