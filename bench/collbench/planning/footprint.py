"""Compute the memory that a case needs on each rank, and the largest number of its iterations.

In: a case, and the size of the pool of buffers. Out: numbers of buffers, bytes and iterations. Imports neither torch
nor numpy.

Calls use the buffers of a pool in turn. Its size is bounded: a pool larger than the last-level cache would make each
call work on cold memory, but virtual machines report their host's cache, and filling twice 480 MiB for each case took
63 % of a rank's time. An operation in place needs enough buffers for calls back to back without a refill between them
(docs/method.md, "Data").

Each iteration gives a start and a duration for each rank. All of them are kept and not condensed into quantiles, which
would not show which rank was late, and when. Their number grows with the ranks; to limit it, fewer iterations are
measured (docs/method.md, "Order, warm-up, stopping").
"""

import math
from collections.abc import Sequence

from collbench.catalog import collectives
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import ALIGNMENT, OPERATIONS, cycle, placement, ranks_together
from collbench.catalog.dtypes import calls_before_refill
from collbench.catalog.metrics import metric_of
from collbench.model.projection import PLACEMENTS
from collbench.model.records import Case, Plan, Settings

# Most pairs of a start and a duration in one case and launch, over all ranks: 4 MiB as numbers on each rank, about
# 6 MB as a line of samples.jsonl. 2000 iterations, the usual maximum, fit up to 131 ranks.
MAX_STAMP_PAIRS = 2**18
# Most bytes that the buffers of cases measured together may take on one rank; a single case may take more. Buffers are
# filled only as far as they are used.
MOST_BATCH_BYTES = 2**30
# Messages up to this size take no time to prepare, in comparison with the start of the ranks.
MOST_SMALL_BYTES = 2**20
# Most cases measured together: if a rank dies before the last round, all of these cases are measured again.
MOST_TOGETHER = 16
# Operations for whose list of tensors ProcessGroupNCCL allocates one flat tensor in each call.
FLATTENED = frozenset({"all_gather_list", "reduce_scatter_list"})
# Fewest iterations that measure a case: two in each of four blocks.
FEWEST_ITERATIONS = 8
# Long calls get FEWEST_ITERATIONS if they take at most PATIENCE times `seconds_per_case`: four calls show too little if
# differences between blocks explain half of the apparent between-launch variance.
PATIENCE = 6


def pool_slots(case: Case, pool_bytes: int) -> int:
    """Return the number of buffers that a case uses in turn: enough for `depth` calls without a refill in between.

    With `rotate` or `reused`, also enough to fill the pool; metrics with fixed buffers need at most `depth` buffers.
    """
    if case.size_bytes == 0 or not OPERATIONS[case.op].pooled:
        return 1
    # Asynchronous calls are under way at the same time: two of them must not work on one buffer.
    in_flight = case.depth if case.call == "async" else 1
    turning = case.buffers in {"rotate", "reused"}
    rotating = math.ceil(pool_bytes / max(case.size_bytes, ALIGNMENT)) if turning else 1
    exact = math.ceil(case.depth / (calls_between_refills(case) or case.depth))
    if not metric_of(case).fixed_buffers:
        return max(1, rotating, in_flight, exact)
    if case.buffers == "reused":
        return max(in_flight, min(case.depth, rotating))
    if case.buffers == "hot":  # each replay begins with the first buffer
        return next(slots for slots in range(max(in_flight, exact), case.depth + 1) if case.depth % slots == 0)
    return case.depth


def calls_between_refills(case: Case) -> int | None:
    """Return how often a buffer may be used before it must be refilled; None means any number of times."""
    return None if case.buffers == "reused" else _exact_calls(case)


def checked_apart(case: Case) -> bool:
    """Return whether calls on new data are checked in place of the timed calls, whose results are no longer exact."""
    return case.buffers == "reused" and _exact_calls(case) is not None


def _exact_calls(case: Case) -> int | None:
    if placement(case) == "copied":
        return 1 if OPERATIONS[case.op].copied == "in" else None
    if not OPERATIONS[case.op].reduces or placement(case) == "out":
        return None
    if case.op.startswith("all_reduce"):
        return calls_before_refill(case.dtype, case.reduce_op, ranks_together(case))
    return 1  # reduce destroys the root's input, reduce_scatter a part of every rank's input


def buffer_bytes(case: Case, pool_bytes: int) -> int:
    """Return the bytes of buffers on one rank for a case, without `scratch_bytes`."""
    return collectives.room_bytes(case) * pool_slots(case, pool_bytes)


def aligned(nbytes: int) -> int:
    """Round the bytes of a pool up to a multiple of ALIGNMENT, because every pool begins at such a multiple."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def batches(cases: Sequence[Case], settings: Settings, small_apart: bool = False) -> list[tuple[Case, ...]]:
    """Divide the cases of a launch, in order, into batches that share rounds: as large as memory allows, or one row.

    A rank allocates the pools of a whole batch. Cases that have references are always one batch.
    small_apart: if sizes ascend, a batch ends before the first large message, so that the times of small messages are
    known before the buffers of large messages are filled.
    """
    kind, pool_bytes = cases[0], settings.pool_bytes
    if OPERATIONS[kind.op].against:
        return [tuple(cases)]
    if BACKENDS[kind.backend].device == "cuda":
        most = settings.gpu_batch_bytes // (kind.world_size if kind.oversubscribed else 1)
    else:
        most = min(MOST_BATCH_BYTES, settings.batch_bytes // kind.world_size)
    batches: list[list[Case]] = [[]]
    used = 0
    small_apart = small_apart and [*cases] == sorted(cases, key=lambda case: case.size_bytes)
    for case in cases:
        nbytes = aligned(buffer_bytes(case, pool_bytes))
        full = used + nbytes > most or len(batches[-1]) == MOST_TOGETHER
        full |= small_apart and bool(batches[-1]) and batches[-1][-1].size_bytes <= MOST_SMALL_BYTES < case.size_bytes
        if batches[-1] and (
            full or (settings.row_by_row and PLACEMENTS.residue(case) != PLACEMENTS.residue(batches[-1][-1]))
        ):
            batches.append([])
            used = 0
        batches[-1].append(case)
        used += nbytes
    return [tuple(batch) for batch in batches]


def arena_bytes(cases: Sequence[Case], pool_bytes: int) -> int:
    """Return the bytes of buffers on one rank for cases that are measured together, without `scratch_bytes`."""
    return sum(aligned(buffer_bytes(case, pool_bytes)) for case in cases)


def scratch_bytes(case: Case, flush_bytes: int) -> int:
    """Return the bytes that `flush` overwrites before each call, so that no buffer is in a cache."""
    return flush_bytes if case.buffers == "flush" else 0


def most_iterations(case: Case) -> int:
    """Return the most iterations of a case whose stamps are kept; at least an interval's need per round or group."""
    # An iteration leaves a start, a duration and its inner stamps on each rank.
    numbers = 2 + OPERATIONS[case.op].inner_stamps(case)
    return max(FEWEST_ITERATIONS * cycle(case), 2 * MAX_STAMP_PAIRS // (case.world_size * numbers))


def bounded(plan: Plan) -> dict[int, int]:
    """Map a world size to the most iterations of a case in one launch, if the plan asks for more."""
    sampling = plan.settings.sampling
    most: dict[int, int] = {}
    for case in plan.cases:
        fixed = OPERATIONS[case.op].against
        wanted = plan.settings.own_of(case).rounds if fixed else sampling.iterations or sampling.max_iterations
        if (kept := most_iterations(case)) < wanted:
            most[case.world_size] = max(kept, most.get(case.world_size, 0))
    return most
