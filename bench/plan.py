"""`Config` + `Machine` → `Plan`: what will be measured, in which order, and what cannot be, with reasons.

Starts nothing and touches no file. The order is shuffled by the seed that the plan records, anew for
each launch, so that a drift of the machine does not fall on the same sizes each time (docs/method.md).
"""

import itertools
import math
import random
from collections.abc import Iterable
from dataclasses import replace

from bench.backends import BACKENDS
from bench.config import Config
from bench.operations import DTYPES, OPERATIONS, calls_before_refill
from bench.records import Block, Case, Fault, Machine, Plan, Sampling, Skip
from bench.units import format_rounded_bytes

# What a rank takes beside its buffers: private pages of an idle torch process (about 60 MiB measured)
# and the backend's own buffers.
RANK_OVERHEAD_BYTES = 100 * 2**20
# The rest is for the page cache, the parent and the other processes of the machine.
USABLE_SHARE_OF_MEMORY = 0.8
# L2 of the largest GPUs (126 MB on a B200): a driver does not tell it without CUDA.
LARGEST_GPU_CACHE_BYTES = 128 * 2**20
# First set of ranks (torch is loaded once), and each further one: measured 2.5 s and 0.1 s.
FIRST_START_S, NEXT_START_S = 3.0, 0.3
# Filling and verifying buffers: bytes a second of one core, measured 1 to 3 GB/s.
HANDLING_BYTES_PER_S = 1e9
# Of a budget, the share for the planned launches; the rest goes to further ones of the cases with the widest
# intervals. Small, because launches differ more than iterations do: many short ones beat few long ones.
FIRST_LAUNCHES_SHARE = 0.3
# Less time than this gives no more than the fewest iterations anyway.
FEWEST_S = 0.01


def expand(config: Config, machine: Machine, seed: int) -> Plan:
    """All combinations that the configuration asks for, minus what this machine cannot do."""
    on_gpu = any(BACKENDS[name].device == "cuda" for name in config.backends)
    pool_bytes = 2 * max(machine.last_level_cache_bytes, LARGEST_GPU_CACHE_BYTES if on_gpu else 0)
    cases: list[Case] = []
    skips: list[Skip] = []
    for case in _combinations(config):
        reason = _obstacle(case, machine, pool_bytes)
        if reason is None:
            cases.append(case)
        else:
            skips.append(Skip(case, reason))
    sampling = _sampling(config)
    if config.budget is not None and cases:
        sampling = _within_budget(sampling, config, cases, pool_bytes)
    return Plan(
        name=config.name,
        blocks=tuple(_blocks(cases, config.launches, seed)),
        skips=tuple(skips),
        launches=config.launches,
        seed=seed,
        sampling=sampling,
        timeout_s=config.timeout,
        pool_bytes=pool_bytes,
        budget_s=config.budget,
        faults=tuple(Fault(f.do, f.rank, f.iteration, f.world_size, f.size, f.launch, f.delay) for f in config.faults),
        link_bytes_per_s=config.link,
    )


def remaining(plan: Plan, done: set[tuple[str, int]]) -> list[Block]:
    """The blocks without the (case key, launch) pairs that are already measured; empty ones fall away."""
    rest = []
    for block in plan.blocks:
        cases = tuple(case for case in block.cases if (case.key, block.launch) not in done)
        if cases:
            rest.append(Block(block.backend, block.world_size, block.launch, cases))
    return rest


def pool_slots(case: Case, pool_bytes: int) -> int:
    """How many buffers a case walks through; with `rotate`, so many that none is in a cache when its turn comes.

    Always so many that `depth` calls can follow each other without a refill between them.
    """
    rotating = math.ceil(pool_bytes / case.size_bytes) if case.buffers == "rotate" else 1
    return max(1, rotating, math.ceil(case.depth / (calls_before_refill(case) or case.depth)))


def buffer_bytes(case: Case, pool_bytes: int) -> int:
    """Bytes of buffers that one rank holds for a case, without what `flush` overwrites."""
    return OPERATIONS[case.op].buffers * case.size_bytes * pool_slots(case, pool_bytes)


def scratch_bytes(case: Case, pool_bytes: int) -> int:
    """Bytes that `flush` overwrites before each call, so that the caches hold nothing of the buffers."""
    return pool_bytes if case.buffers == "flush" else 0


def _within_budget(sampling: Sampling, config: Config, cases: list[Case], pool_bytes: int) -> Sampling:
    """The same with so few seconds a case that all launches cost their share of the budget."""
    assert config.budget is not None  # noqa: S101 - the caller sees to it
    groups = len({(case.backend, case.world_size) for case in cases})
    handling = sum(_handling_s(case, pool_bytes) + sampling.warmup_s for case in cases)
    left = FIRST_LAUNCHES_SHARE * (config.budget - FIRST_START_S)
    a_launch = left / config.launches - handling - NEXT_START_S * groups
    return replace(sampling, seconds_per_case=min(sampling.seconds_per_case, max(FEWEST_S, a_launch / len(cases))))


def estimate_s(plan: Plan) -> float:
    """How long the run takes at most (adaptive), or about (fixed count, from rough rates)."""
    if plan.budget_s is not None:
        return plan.budget_s
    starts = FIRST_START_S + NEXT_START_S * len(plan.blocks)
    return starts + sum(_case_s(case, plan) for block in plan.blocks for case in block.cases)


def _case_s(case: Case, plan: Plan) -> float:
    handling = _handling_s(case, plan.pool_bytes)
    if plan.sampling.iterations is None:
        return plan.sampling.warmup_s + plan.sampling.seconds_per_case + handling
    backend = BACKENDS[case.backend]
    one = (backend.latency_s + case.size_bytes / backend.bytes_per_s) * max(1, case.world_size / 2)
    return handling + one * (plan.sampling.warmup + plan.sampling.iterations) + plan.sampling.warmup_s


def _handling_s(case: Case, pool_bytes: int) -> float:
    """Filling and verifying the buffers."""
    return 4 * buffer_bytes(case, pool_bytes) / HANDLING_BYTES_PER_S


def _combinations(config: Config) -> Iterable[Case]:
    for op, backend, dtype, n, size in itertools.product(
        config.operations, config.backends, config.dtypes, config.world_sizes, config.size_list
    ):
        for reduce_op, metric in itertools.product(
            config.reduce_ops if OPERATIONS[op].reduces else ["sum"],
            ["isolated"] if OPERATIONS[op].paired else config.metrics,
        ):
            yield Case(
                op,
                backend,
                n,
                dtype,
                size,
                reduce_op=reduce_op,
                buffers=config.buffers,
                metric=metric,
                sync=config.sync,
                scheduling=config.scheduling,
                depth=config.pipeline_depth if metric == "pipelined" else 1,
            )


def _obstacle(case: Case, machine: Machine, pool_bytes: int) -> str | None:
    """Why this machine cannot measure the case; None if it can."""
    backend, dtype = BACKENDS[case.backend], DTYPES[case.dtype]
    if machine.ranks is not None and (reason := _obstacle_of_the_job(case, machine.ranks)):
        return reason
    if case.backend in machine.backends_missing:
        return machine.backends_missing[case.backend]
    if case.scheduling == "rr" and machine.realtime_missing is not None:
        return machine.realtime_missing
    if case.world_size < OPERATIONS[case.op].fewest_ranks:
        return f"{case.op} needs {OPERATIONS[case.op].fewest_ranks} ranks or more"
    if backend.device == "cuda" and case.world_size > machine.gpus:
        return f"{case.world_size} ranks need {case.world_size} GPUs, one each; this machine has {machine.gpus}"
    if case.dtype in backend.dtypes_lacking:
        return f"{case.backend} has no {case.dtype}"
    if case.size_bytes % dtype.itemsize:
        return f"{case.size_bytes} B is not a whole number of {case.dtype} elements of {dtype.itemsize} B"
    if case.world_size > 2**dtype.exact_bits:
        return f"a sum over {case.world_size} ranks is not exact in {case.dtype}, so it could not be verified"
    if backend.device == "cpu":
        return _memory_obstacle(case, machine, pool_bytes)
    return None


def _obstacle_of_the_job(case: Case, ranks: int) -> str | None:
    """Why these ranks, which a launcher started, cannot measure the case."""
    if case.world_size > ranks:
        return f"the job has {ranks} ranks"
    if case.sync == "deadline":
        return "sync: deadline needs memory that all ranks share; the ranks of a job share none"
    return None


def _memory_obstacle(case: Case, machine: Machine, pool_bytes: int) -> str | None:
    a_rank = buffer_bytes(case, pool_bytes) + scratch_bytes(case, pool_bytes) + RANK_OVERHEAD_BYTES
    usable = USABLE_SHARE_OF_MEMORY * machine.memory_available_bytes
    together = min(case.world_size, machine.ranks_a_host or case.world_size)
    if together * a_rank <= usable:
        return None
    return (
        f"needs {together} × {format_rounded_bytes(a_rank)} of memory{' on a host' if machine.ranks else ''}; "
        f"{format_rounded_bytes(usable)} may be used ({USABLE_SHARE_OF_MEMORY:.0%} of what is available)"
    )


def _blocks(cases: list[Case], launches: int, seed: int) -> Iterable[Block]:
    dice = random.Random(seed)
    groups = list(dict.fromkeys((case.backend, case.world_size) for case in cases))
    for launch in range(1, launches + 1):
        dice.shuffle(groups)
        for backend, world_size in groups:
            mine = [case for case in cases if (case.backend, case.world_size) == (backend, world_size)]
            dice.shuffle(mine)
            yield Block(backend, world_size, launch, tuple(mine))


def _sampling(config: Config) -> Sampling:
    asked = config.sampling
    return Sampling(
        warmup=asked.warmup,
        warmup_s=asked.warmup_seconds,
        iterations=asked.iterations,
        relative_error=asked.relative_error,
        seconds_per_case=asked.seconds_per_case,
        max_iterations=asked.max_iterations,
    )
