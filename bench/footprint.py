"""How many buffers a case walks through, and how many bytes that takes. Knows no torch.

A pool larger than the caches makes each call work on cold memory; and an operation in place needs so many buffers that
calls back to back need no refill between them (docs/method.md, "Data").
"""

import math

from bench import operations
from bench.dtypes import calls_before_refill
from bench.operations import OPERATIONS, placement, ranks_together
from bench.records import Case


def pool_slots(case: Case, pool_bytes: int) -> int:
    """How many buffers a case walks through; with `rotate`, so many that none is in a cache when its turn comes.

    Always so many that `depth` calls can follow each other without a refill between them.
    """
    if case.size_bytes == 0:
        return 1
    if case.metric == "graph":
        return case.depth  # a captured graph calls on the same buffers each time it is replayed
    rotating = math.ceil(pool_bytes / case.size_bytes) if case.buffers == "rotate" else 1
    return max(1, rotating, math.ceil(case.depth / (fresh_calls(case) or case.depth)))


def fresh_calls(case: Case) -> int | None:
    """How often a buffer may be used before it must be filled anew; None: any number of times."""
    operation = OPERATIONS[case.op]
    if not operation.reduces or placement(case) == "out":
        return None
    if case.op.startswith("all_reduce"):
        return calls_before_refill(case.dtype, case.reduce_op, ranks_together(case))
    return 1  # one rank's data are gone, or a part of each one's


def buffer_bytes(case: Case, pool_bytes: int) -> int:
    """Bytes of buffers that one rank holds for a case, without what `flush` overwrites."""
    return operations.buffer_bytes(case) * pool_slots(case, pool_bytes)


def scratch_bytes(case: Case, pool_bytes: int) -> int:
    """Bytes that `flush` overwrites before each call, so that the caches hold nothing of the buffers."""
    return pool_bytes if case.buffers == "flush" else 0
