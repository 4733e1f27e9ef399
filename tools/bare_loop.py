"""Time calls of one rank on a GPU with only torch and events, for a comparison with CollBench's device times.

`python -m tools.bare_loop`; the same cases in CollBench are in docs/studies/h200.md. Nothing of CollBench is used.
"""

import functools
import os
import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist

SIZES = (4096, 2**20, 2**24, 2**28)
CALLS, ISOLATED, REPEATS = 20, 60, 30
# Keeps the stream busy for about 2 ms, so that all calls are enqueued before the first event passes.
BUSY_CYCLES = 4_000_000


def calls(nbytes: int) -> dict[str, Callable[[], object]]:
    a = torch.ones(nbytes // 4, device="cuda")
    b = torch.empty_like(a)
    return {
        "all_gather": lambda: dist.all_gather_into_tensor(b, a),
        "all_to_all": lambda: dist.all_to_all_single(b, a),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(b, a, op=dist.ReduceOp.AVG),
        "all_reduce": lambda: dist.all_reduce(a, op=dist.ReduceOp.AVG),
        "copy": lambda: b.copy_(a),
    }


def between_us(what: Callable[[], object]) -> float:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(BUSY_CYCLES)
    before.record()
    what()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) * 1e3


def repeat(call: Callable[[], object], times: int = CALLS) -> None:
    for _ in range(times):
        call()


def main() -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    for nbytes in SIZES:
        for name, call in calls(nbytes).items():
            repeated = functools.partial(repeat, call)
            repeat(call, 5)
            torch.cuda.synchronize()
            isolated = statistics.fmean(between_us(call) for _ in range(ISOLATED))
            pipelined = statistics.fmean(between_us(repeated) for _ in range(REPEATS)) / CALLS
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                repeated()
            between_us(graph.replay)
            replayed = statistics.fmean(between_us(graph.replay) for _ in range(REPEATS)) / CALLS
            print(f"{name:14s} {nbytes:9d} B  isolated {isolated:7.2f} µs", end="")
            print(f"  pipelined {pipelined:7.2f} µs  graph {replayed:7.2f} µs")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
