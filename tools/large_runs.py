"""Write results of many ranks with planted late nodes, late ranks and slow links, as large runs would leave them.

A node is `RANKS_A_NODE` ranks on one host. Ranks arrive with some jitter; like a collective, an operation ends for all
ranks some time after the last rank has arrived; ranks of a planted node, or planted ranks, arrive later by a delay.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson

from collbench.catalog.subgroups import rounds
from collbench.machine import host
from collbench.model.records import Case, Json, Launch, Plan, Sampling, Settings
from collbench.store import folders
from collbench.store.folders import Journal

RANKS_A_NODE = 8
# Times in nanoseconds: mean jitter of arrivals; duration of an operation after all ranks have arrived.
JITTER, TAKES = 50e3, 1e6
SAMPLING = Sampling(5, 0.05, None, 0.05, 1.0, 2000)
Numbers = np.ndarray


def host_of(rank: int) -> str:
    return f"node{rank // RANKS_A_NODE}"


def ranks_of(node: int) -> range:
    return range(node * RANKS_A_NODE, (node + 1) * RANKS_A_NODE)


def collectives(count: int, ranks: int) -> tuple[Case, ...]:
    """Return `count` cases of all-reduce, ten sizes for each of some invented buffer policies."""
    return tuple(
        Case("all_reduce", "gloo", ranks, "float32", 1024 * 2 ** (number % 10), buffers=f"pool{number // 10}")
        for number in range(count)
    )


def arrivals(rng: np.random.Generator, iterations: int, ranks: int, late: Sequence[int], delay_s: float) -> Numbers:
    """Draw the start of each rank, in ns after the earliest possible start of the iteration."""
    arrive = rng.exponential(JITTER, (iterations, ranks))
    arrive[:, list(late)] += delay_s * 1e9
    return arrive


def timed(rng: np.random.Generator, arrive: Numbers) -> Json:
    """Return starts and durations, by rank, as in samples.jsonl."""
    iterations = len(arrive)
    end = arrive.max(axis=1, keepdims=True) + TAKES * rng.lognormal(0, 0.1, (iterations, 1))
    start = arrive + np.arange(iterations)[:, None] * 1e7
    return {"start_ns": _rank_by_rank(start), "duration_ns": _rank_by_rank(end - arrive)}


def exchanges(rng: np.random.Generator, case: Case, cycles: int, slow: dict[tuple[int, int], float]) -> Json:
    """Return timings of a pairwise case: all pairs take the same time, pairs in `slow` a multiple of it."""
    schedule = rounds(case.world_size)
    duration = np.zeros((cycles * len(schedule), case.world_size))
    for row in range(len(duration)):
        for pair in schedule[row % len(schedule)]:
            duration[row, list(pair)] = TAKES * slow.get(pair, 1.0) * rng.lognormal(0, 0.05)
    start = np.arange(len(duration))[:, None] * 1e7 + np.zeros_like(duration)
    return {"start_ns": _rank_by_rank(start), "duration_ns": _rank_by_rank(duration)}


def scattered(rng: np.random.Generator, case: Case, iterations: int = 200) -> Json:
    """Return timings around 1 ms that scatter by a fifth, as of ranks without a fault."""
    shape = (iterations, case.world_size)
    start = np.arange(iterations)[:, None] * 1e7 + rng.integers(0, 10**5, shape)
    return {"start_ns": _rank_by_rank(start), "duration_ns": _rank_by_rank(1e6 * rng.lognormal(0, 0.2, shape))}


def _rank_by_rank(values: Numbers) -> list[list[int]]:
    return values.astype(np.int64).T.tolist()


def write(root: Path, name: str, cases: Sequence[Case], launches: int, made: dict[tuple[str, int], Json]) -> Path:
    """Write a run folder of `made` timings, by case key and launch; ranks report their host."""
    world_sizes = sorted({case.world_size for case in cases})
    blocks = tuple(
        Launch("gloo", ranks, launch, tuple(case for case in cases if case.world_size == ranks))
        for launch in range(1, launches + 1)
        for ranks in world_sizes
    )
    plan = Plan(name, blocks, (), launches, Settings(SAMPLING, seed=1, timeout_s=60.0, pool_bytes=0))
    path = folders.create(root, plan, b"", {})
    facts = [{"rank": rank, "hostname": host_of(rank), "clock": "one"} for rank in range(world_sizes[-1])]
    session = {"host": {}, "before": host.state(), "after": host.state()}
    session["launches"] = [
        {
            "backend": "gloo", "world_size": block.world_size, "launch": block.number, "ready_s": 1.0, "clocks": None,
            "ranks": facts[: block.world_size],
        }
        for block in blocks
    ]  # fmt: skip
    folders.write_environment(path, [session])
    with Journal(path) as journal:
        for block in blocks:
            for case in block.cases:
                journal.append(orjson.dumps(_line(case, block.number, made[case.key, block.number])))
    folders.update_manifest(path, status="complete")
    return path


def _line(case: Case, launch: int, timings: Json) -> Json:
    n = case.world_size
    usage = {
        "wall_s": 1.0, "cpu_s": [1.0] * n, "involuntary_switches": [3] * n, "peak_rss_bytes": [10**8] * n,
        "buffer_bytes": case.size_bytes, "timer_cost_ns": [80.0] * n, "machine_busy_s": None, "steal_s": None,
    }  # fmt: skip
    return {
        "case": {field: getattr(case, field) for field in case.__dataclass_fields__},
        "launch": launch, "unix_s": 1e9 + launch, "base_ns": 123, "stopped_by": "count", "failure": None,
        "usage": usage, "warmup": None, "timed": timings,
    }  # fmt: skip


def large_run(
    root: Path,
    late: Sequence[int] = (),
    delay_s: float = 2e-3,
    ranks: int = 256,
    cases: int = 200,
    launches: int = 2,
    iterations: int = 50,
    seed: int = 1,
) -> Path:
    """Write a run of collectives in which these ranks are late."""
    rng = np.random.default_rng(seed)
    planned = collectives(cases, ranks)
    made = {
        (case.key, launch): timed(rng, arrivals(rng, iterations, ranks, late, delay_s))
        for case in planned
        for launch in range(1, launches + 1)
    }
    return write(root, "large", planned, launches, made)


def pairs_run(root: Path, slow: dict[tuple[int, int], float], ranks: int = 32, cycles: int = 12, seed: int = 1) -> Path:
    """Write a run of pairwise exchanges in which these pairs, smaller rank first, take a multiple of the time."""
    rng = np.random.default_rng(seed)
    case = Case("pairwise", "gloo", ranks, "float32", 2**20)
    return write(root, "pairs", [case], 1, {(case.key, 1): exchanges(rng, case, cycles, slow)})


def across(node: int, ranks: int, factor: float) -> dict[tuple[int, int], float]:
    """Return the factor for all pairs of a rank of this node and a rank of another node."""
    pairs = ((a, b) for a in range(ranks) for b in range(a + 1, ranks))
    return {pair: factor for pair in pairs if sum(rank in ranks_of(node) for rank in pair) == 1}
