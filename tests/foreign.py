"""Invented output of other tools: the layouts of real files, with numbers from a formula.

`nccl`, `nccl_json` and `osu` return a file as text. Its times are 20 µs plus size over 10 GB/s, so that tests can
compute the numbers that an importer must find; bandwidths are printed as the tools compute them.
"""

import json

SIZES = (1024, 65536, 1048576, 134217728)
FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0, "broadcast": 0.0}


def time_s(size: int, placement: str = "out") -> float:
    return 20e-6 + size / 10e9 + (1e-6 if placement == "in" else 0.0)


def rates(test: str, size: int, ranks: int, seconds: float) -> tuple[float, float]:
    """Return algbw and busbw in GB/s."""
    algbw = size / seconds / 1e9
    factor = FACTORS[test]
    return algbw, algbw * (factor * (ranks - 1) / ranks if factor else 1.0)


def nccl_time(seconds: float) -> str:
    """Return a time as BenchTime of nccl-tests 2 prints it."""
    us = seconds * 1e6
    return f"{us:7.0f}" if us >= 10000 else f"{us:7.1f}" if us >= 100 else f"{us:7.2f}"


def half(test: str, size: int, ranks: int, place: str, wrong: str = "0") -> str:
    seconds = time_s(size, place)
    algbw, busbw = rates(test, size, ranks, seconds)
    return f"  {nccl_time(seconds)}  {algbw:6.2f}  {busbw:6.2f}  {wrong:>5}"


def preamble(test: str, ranks: int, head: str = "#", iters: int = 20, extra: str = "") -> list[str]:
    return [
        f"{head} nThread 1 nGpus {ranks} minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: {iters} "
        f"agg iters: 1 validation: 1 graph: 0{extra}",
        head,
        f"{head} Using devices",
        *(
            f"{head}  Rank {rank:2d} Group  0 Pid {100 + rank:6d} on    node-1 device {rank:2d} [0x0{rank}] Example GPU"
            for rank in range(ranks)
        ),
        head,
    ]


HEADER = [
    "#                                                              out-of-place                       in-place",
    "#       size         count      type   redop    root" + 2 * "     time   algbw   busbw #wrong",
    "#        (B)    (elements)                          " + 2 * "     (us)  (GB/s)  (GB/s)       ",
]
FOOT = ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.2345", "#"]


def nccl_rows(
    test: str = "all_reduce", ranks: int = 4, sizes=SIZES, wrong: str = "0", dtype: str = "float"
) -> list[str]:
    redop = "none" if FACTORS[test] == 1.0 and test != "reduce_scatter" else "sum"
    shares = ranks if FACTORS[test] == 1.0 else 1
    return [
        f"{size:12d}  {size // 4 // shares:12d}  {dtype:>8}  {redop:>6}  {-1:6d}{half(test, size, ranks, 'out', wrong)}"
        f"{half(test, size, ranks, 'in')}"
        for size in sizes
    ]


def nccl(test: str = "all_reduce", ranks: int = 4, named: bool = True, **rows) -> str:
    """Return the output of nccl-tests 2.10 and later."""
    version = ["# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902"]
    name = [f"# Collective test starting: {test}_perf"]
    end = [f"# Collective test concluded: {test}_perf"]
    lines = [
        *(version + name if named else []),
        *preamble(test, ranks),
        *HEADER,
        *nccl_rows(test, ranks, **rows),
        *FOOT,
    ]
    return "\n".join([*lines, *(end if named else [])]) + "\n"


def nccl_json(ranks: int = 2, **changes) -> str:
    """Return JSON of nccl-tests, version 4, with an environment that holds a secret."""

    def halves(size: int) -> dict:
        columns = {}
        for key, place in (("out_of_place", "out"), ("in_place", "in")):
            seconds = time_s(size, place)
            algbw, busbw = rates("all_reduce", size, ranks, seconds)
            columns[key] = {"time": seconds * 1e6, "alg_bw": algbw, "bus_bw": busbw, "nwrong": 0.0}
        return columns

    document = {
        "version": 4,
        "start_time": "2026-01-02 03:04:05",
        "args": ["/opt/tests/all_reduce_perf", "-b", "1K", "-a", "3"],
        "env": ["SECRET_TOKEN=hunter2", "NCCL_ALGO=Ring", "PATH=/secret/bin"],
        "nccl_version": 22902,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "warmup_iters": 5,
            "iterations": 20,
            "aggregated_iterations": 1,
            "validation": 1,
            "graph": 0,
            "blocking_collectives": "false",
            "per_iter_timing": "false",
            "parallel_init": "false",
            "devices": [
                {"rank": rank, "group": 0, "pid": 1, "hostname": "node-1", "device": rank, "device_info": "Example GPU"}
                for rank in range(ranks)
            ],
        },
        "results": [
            {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1", **halves(size)}
            for size in SIZES
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"},
        "errors": [""],
    }
    return json.dumps({**document, **changes}, indent=2)


def osu(
    title: str = "MPI Allreduce", full: bool = False, version: str = "7.4", datatype: str | None = "MPI_FLOAT"
) -> str:
    """Return the output of a latency test of the OSU Micro-Benchmarks."""
    header = f"{'# Size':<10}{'Avg Latency(us)':>18}"
    if full:
        header += f"{'Min Latency(us)':>18}{'Max Latency(us)':>18}{'Iterations':>12}"
    lines = ["", f"# OSU {title} Latency Test v{version}", *([f"# Datatype: {datatype}."] if datatype else []), header]
    for size in SIZES:
        us = time_s(size) * 1e6
        lines.append(f"{size:<10}{us:18.2f}" + (f"{us - 1:18.2f}{us + 1:18.2f}{1000:12d}" if full else ""))
    return "\n".join([*lines, ""])
