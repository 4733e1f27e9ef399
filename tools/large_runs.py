"""Write results of many ranks with planted late nodes, late ranks and slow links, as large runs would leave them.

A node is `RANKS_A_NODE` ranks on one host. Ranks arrive with some jitter; like a collective, an operation ends for all
ranks some time after the last rank has arrived; ranks of a planted node, or planted ranks, arrive later by a delay.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from collbench.catalog.subgroups import rounds
from collbench.machine import host
from collbench.model.records import Case, Launch, Plan, Samples, Sampling, Settings, Timings, Usage
from collbench.store import folders
from collbench.store.encoding import samples_to_line
from collbench.store.folders import Journal

RANKS_A_NODE = 8
# Times in nanoseconds: mean jitter of arrivals; duration of an operation after all ranks have arrived.
JITTER, TAKES = 50e3, 1e6
SETTINGS = Settings(Sampling(5, 0.05, None, 0.05, 1.0, 2000), seed=1, timeout_s=60.0, pool_bytes=0)


def host_of(rank: int) -> str:
    return f"node{rank // RANKS_A_NODE}"


def ranks_of(node: int) -> range:
    return range(node * RANKS_A_NODE, (node + 1) * RANKS_A_NODE)


def timings(start_ns: np.ndarray, duration_ns: np.ndarray) -> Timings:
    """Return timings of iterations that follow each other by 10 ms. start_ns: after the begin of the iteration."""
    begin_ns = np.arange(len(duration_ns))[:, None] * 10**7
    return Timings(begin_ns + start_ns.astype(np.int64), duration_ns.astype(np.int64))


def scattered(rng: np.random.Generator, case: Case, iterations: int = 200) -> Timings:
    """Return times around 1 ms that scatter by a fifth, as of ranks without a fault."""
    shape = (iterations, case.world_size)
    return timings(rng.integers(0, 10**5, shape), TAKES * rng.lognormal(0, 0.2, shape))


def collective(rng: np.random.Generator, ranks: int, iterations: int, late: Sequence[int], delay_s: float) -> Timings:
    """Return times of a collective, which ends for all ranks some time after the last, delayed one has arrived."""
    arrive = rng.exponential(JITTER, (iterations, ranks))
    arrive[:, list(late)] += delay_s * 1e9
    end = arrive.max(axis=1, keepdims=True) + TAKES * rng.lognormal(0, 0.1, (iterations, 1))
    return timings(arrive, end - arrive)


def exchanges(rng: np.random.Generator, ranks: int, cycles: int, slow: Mapping[tuple[int, int], float]) -> Timings:
    """Return times of a pairwise case: all pairs take the same time, pairs in `slow` a multiple of it."""
    schedule = rounds(ranks)
    duration = np.zeros((cycles * len(schedule), ranks))
    for row in range(len(duration)):
        for pair in schedule[row % len(schedule)]:
            duration[row, list(pair)] = TAKES * slow.get(pair, 1.0) * rng.lognormal(0, 0.05)
    return timings(np.zeros_like(duration), duration)


def write(root: Path, name: str, launches: int, measured: Iterable[tuple[int, Case, Timings]]) -> Path:
    """Write a run folder of launches, cases and their timings; ranks report their host."""
    lines = [_samples(*one) for one in measured]
    blocks: dict[tuple[int, int], list[Case]] = {}
    for line in lines:
        blocks.setdefault((line.launch, line.case.world_size), []).append(line.case)
    order = tuple(Launch("gloo", ranks, launch, tuple(cases)) for (launch, ranks), cases in blocks.items())
    path = folders.create(root, Plan(name, order, (), launches, SETTINGS), b"", {})
    session = {"host": {}, "before": host.state(), "after": host.state()}
    session["launches"] = [
        {
            "backend": "gloo", "world_size": ranks, "launch": launch, "ready_s": 1.0, "clocks": None,
            "ranks": [{"rank": rank, "hostname": host_of(rank), "clock": "one"} for rank in range(ranks)],
        }
        for launch, ranks in blocks
    ]  # fmt: skip
    folders.write_environment(path, [session])
    with Journal(path) as journal:
        for line in lines:
            journal.append(samples_to_line(line))
    folders.update_manifest(path, status="complete")
    return path


def _samples(launch: int, case: Case, timed: Timings) -> Samples:
    n = case.world_size
    usage = Usage(1.0, [1.0] * n, [3] * n, [10**8] * n, case.size_bytes, [80.0] * n, None, None)
    return Samples(case, launch, 1e9 + launch, 123, timed=timed, stopped_by="count", usage=usage)


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
    """Write a run of all-reduces, ten sizes for each invented buffer policy, in which these ranks are late."""
    rng = np.random.default_rng(seed)
    planned = [
        Case("all_reduce", "gloo", ranks, "float32", 1024 * 2 ** (number % 10), buffers=f"pool{number // 10}")
        for number in range(cases)
    ]
    measured = (
        (launch, case, collective(rng, ranks, iterations, late, delay_s))
        for launch in range(1, launches + 1)
        for case in planned
    )
    return write(root, "large", launches, measured)


def pairs_run(
    root: Path, slow: Mapping[tuple[int, int], float], ranks: int = 32, cycles: int = 12, seed: int = 1
) -> Path:
    """Write a run of pairwise exchanges in which these pairs, smaller rank first, take a multiple of the time."""
    case = Case("pairwise", "gloo", ranks, "float32", 2**20)
    return write(root, "pairs", 1, [(1, case, exchanges(np.random.default_rng(seed), ranks, cycles, slow))])


def across(node: int, ranks: int, factor: float) -> dict[tuple[int, int], float]:
    """Return the factor for all pairs of a rank of this node and a rank of another node."""
    pairs = ((a, b) for a in range(ranks) for b in range(a + 1, ranks))
    return {pair: factor for pair in pairs if sum(rank in ranks_of(node) for rank in pair) == 1}
