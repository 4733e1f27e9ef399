"""Make the calls of each case with NCCL's log on, so that it tells which algorithm it chose; nothing is timed.

In: a job, a joined group, the file into which this rank's NCCL writes. Out: the message `chosen` of rank 0, with what
NCCL wrote until the first case and during each case. This is a launch of its own, because every line of the log takes a
lock and a write on rank 0, which would make it the slow one. `bench/machine/nccl_log.py` reads the text.
"""

from pathlib import Path

from bench.catalog.operations import cycle
from bench.model.records import Job
from bench.planning.footprint import arena_bytes
from bench.protocol.rank_context import RankContext
from bench.rank import timing, workload
from bench.rank.process_group import Group
from bench.rank.tensors import Arena

# NCCL connects in the first call of a kind, and may tell more of it.
CALLS = 2


def settings(file: Path) -> str:
    """Environment settings that make NCCL write what it chooses; to be set before its first communicator is made."""
    return f"NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING NCCL_DEBUG_FILE={file}"


def choices(context: RankContext, job: Job, group: Group, file: Path) -> None:
    """Make each case's calls, and send what NCCL wrote meanwhile."""
    arena = Arena(max(arena_bytes([case], 0) for case in job.launch.cases), group.device.handle)
    said = [_new_text(file, 0)]
    for position, case in enumerate(job.launch.cases):
        context.enters(position)
        arena.clear()
        work = workload.build(case, group, arena, 0, 0, job.seed, context.tick)
        for _ in range(CALLS * cycle(case)):
            timing.call_once(work, case)
        group.synchronize()
        context.tick()
        said.append(_new_text(file, sum(map(len, said))))
    if group.rank == 0:
        context.send({"kind": "chosen", "texts": [text.decode(errors="replace") for text in said]})


def _new_text(file: Path, start: int) -> bytes:
    """What was written since byte `start`."""
    try:
        with file.open("rb") as log:
            log.seek(start)
            return log.read()
    except OSError:
        return b""
