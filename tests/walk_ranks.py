"""Ranks that walk through cases without timing: each case is called, checked, spoilt on purpose and checked again."""

import contextlib
import traceback

from collbench.catalog.collectives import cycle
from collbench.machine import host
from collbench.model.records import Case, Sampling, Settings
from collbench.planning.footprint import buffer_bytes
from collbench.protocol.rank_context import RankContext
from collbench.rank import timing
from collbench.rank.process import joined
from collbench.rank.rounds import workload_of
from collbench.rank.tensors import Arena
from collbench.store import encoding

# Bytes of the buffers of a case: several buffers are used, and one is used again.
POOL_BYTES = 2 * 1920
SETTINGS = Settings(Sampling(1, 0.0, 1, 0.05, 1.0, 1), 5, 60.0, POOL_BYTES, POOL_BYTES)


def walk(context: RankContext, encoded: bytes) -> None:
    """Send the parent, for each case, the errors before and after it was spoilt."""
    try:
        cases = encoding.decoded(encoded, list[Case])
        if cases[0].backend == "gloo":
            with contextlib.suppress(OSError):  # without real-time scheduling, it mostly waits for a turn
                host.use_realtime()
        with joined(context, cases[0].backend, 60.0) as group:
            arena = Arena(max(buffer_bytes(case, POOL_BYTES) for case in cases), group.device.handle)
            context.send({"kind": "walked", "cases": {case.key: _walk(case, group, arena) for case in cases}})
    except BaseException as error:
        traceback.print_exc()
        context.send({"kind": "error", "text": f"{type(error).__name__}: {error}"})


def _walk(case: Case, group, arena) -> dict:
    arena.clear()
    work = workload_of(case, group, arena, SETTINGS)
    errors = []
    for calls in (cycle(case), 3 * cycle(case)):
        for _ in range(calls):
            timing.call_once(work, case)
        group.device.synchronize()
        errors.append(work.verify())
    for _ in range(cycle(case)):
        timing.call_once(work, case)
    group.device.synchronize()
    spoilt = work.corrupt()
    after = work.verify()
    alone = work.single_rank_call()
    if alone is not None:
        alone()
    return {"said": errors, "spoilt": spoilt, "after": after, "alone": alone is not None}
