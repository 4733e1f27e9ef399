"""Time all-reduces between two clock readings, without statistics, as people do who need a number quickly.

`torchrun --nproc-per-node 2 tools/plain_loop.py 1024 65536 1048576` prints a line for each size, in bytes. It uses
no code of CollBench; `tools.first_look` compares the times until the first number of this script and of `run`.
"""

import sys
import time

import torch
import torch.distributed as dist

WARM_UP, CALLS = 5, 20


def mean_s(size: int) -> float:
    """Return the mean seconds of an all-reduce of `size` bytes, on this rank."""
    tensor = torch.ones(size // 4)
    for _ in range(WARM_UP):
        dist.all_reduce(tensor)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(CALLS):
        dist.all_reduce(tensor)
    return (time.perf_counter() - began) / CALLS


def main() -> None:
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    for size in map(int, sys.argv[1:]):
        seconds = mean_s(size)
        if dist.get_rank() == 0:
            rate = 2 * (ranks - 1) / ranks * size / seconds / 1e9
            print(f"{size:>12} bytes {seconds * 1e6:>12.1f} us {rate:>8.3f} GB/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
