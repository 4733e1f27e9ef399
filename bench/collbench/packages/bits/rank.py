"""Make each case's call twice on data whose sums are rounded, and keep hashes and bits of this rank's results.

In: an encoded `BitsJob`. Out: for each case a message with the hashes of all ranks, and
files with the raw results, which the parent reads only if hashes differ:

    FOLDER/<case>-<rank>       result of the first call, part after part
    FOLDER/<case>-<rank>-1     result of the second call, if it differs

Data that are only moved are compared here with the data that were sent. Times nothing.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from collbench.catalog.collectives import room_bytes
from collbench.catalog.dtypes import DTYPES
from collbench.model.records import Case, Fault, Json
from collbench.packages.bits.planning import BLOCK, CALLS, BitsJob, sent, shares
from collbench.planning.footprint import arena_bytes
from collbench.protocol.rank_context import RankContext
from collbench.rank.collectives import CallArguments, Transfer, built
from collbench.rank.group import Group
from collbench.rank.main import buffers_of, entered
from collbench.rank.process import facts, run_rank, wait_to_begin
from collbench.rank.tensors import POISON, Arena, turns
from collbench.store import encoding

# Number of cases whose hashes are gathered in one call: with more ranks than cores, a call takes longer than hashing.
TOGETHER = 16
DIGEST_BYTES = 8


def main(context: RankContext, job: bytes) -> None:
    """Run a rank's process; never return."""
    run_rank(context, lambda: _work(context, encoding.decoded(job, BitsJob)))


def _work(context: RankContext, bits: BitsJob) -> Json:
    job = bits.job
    with entered(context, job) as group:
        wait_to_begin(context, group, lambda: facts(group, job.launch.backend))
        with buffers_of(job, group, max(arena_bytes([case], 0) for case in job.launch.cases)) as arena:
            _compare(context, bits, group, arena)
    return {}


def _compare(context: RankContext, bits: BitsJob, group: Group, arena: Arena) -> None:
    """Make the calls of all cases, and send a line for each case."""
    job = bits.job
    for first in range(0, len(job.launch.cases), TOGETHER):
        cases, own = job.launch.cases[first : first + TOGETHER], []
        for position, case in enumerate(cases, first):
            context.enters(position)
            arena.clear()
            own.append(_results(case, position, bits, group, arena))
            context.tick()
        for case, results in zip(cases, zip(*group.gather(own), strict=True), strict=True):
            if group.rank == 0:
                line = json.dumps({"case": case.key, "ranks": results}).encode()
                context.send({"kind": "sampled", "failure": None}, line)


def _results(case: Case, position: int, bits: BitsJob, group: Group, arena: Arena) -> Json:
    """Return hashes of each call's result, numbers of elements of the parts, and the number of wrong moved elements."""
    job = bits.job
    subgroup = group.subgroup(case)
    transfer = turns(case, subgroup)[0]
    itemsize = DTYPES[case.dtype].itemsize
    offset = 1 if case.alignment == "unaligned" else 0
    buffer = arena.take(room_bytes(case), getattr(torch, case.dtype))[offset:]
    if transfer is None:
        return {"hashes": [[]] * CALLS, "parts": [], "wrong": 0}
    outgoing, incoming = buffer[slice(*transfer.sends)], buffer[slice(*transfer.receives)]
    call = built(group.calls, CallArguments(subgroup, case, transfer, outgoing, incoming))
    own = _as_sent(case, job.settings.seed, subgroup.rank, outgoing.numel()).to(buffer.device)
    received = []
    for number in range(CALLS):
        buffer.view(torch.uint8).fill_(POISON)
        outgoing.copy_(own)
        work = call()
        if hasattr(work, "wait"):
            work.wait()
        group.device.synchronize()
        received.append(_received(buffer, transfer))
        for fault in job.settings.faults:
            if _is_for(fault, case, job.launch.number, group.rank, number) and len(received[-1]):
                received[-1][fault.iteration % len(received[-1])] ^= 1
    folder, name = Path(bits.folder), f"{position}-{group.rank}"
    (folder / name).write_bytes(received[0].tobytes())
    if not np.array_equal(received[0], received[1]):
        (folder / f"{name}-1").write_bytes(received[1].tobytes())
    return {
        "hashes": [list(hashes(data, itemsize)) for data in received],
        "parts": [span.length for span in transfer.arrives],
        "wrong": _wrong(case, transfer, received[0], job.settings.seed, subgroup.size),
    }


def hashes(data: NDArray[np.uint8], itemsize: int) -> Iterator[str]:
    """Yield a hash of each block of elements."""
    for start in range(0, len(data), BLOCK * itemsize):
        yield hashlib.blake2b(data[start : start + BLOCK * itemsize].tobytes(), digest_size=DIGEST_BYTES).hexdigest()


def _as_sent(case: Case, seed: int, rank: int, count: int) -> torch.Tensor:
    """Return the data that a rank sends, in the dtype of the case."""
    data = torch.from_numpy(sent(case, seed, rank, count))
    dtype = getattr(torch, case.dtype)
    # Converted by way of float32, like the reference: values were drawn with the bits of a float32.
    return data if case.dtype == "float64" else data.to(torch.float32).to(dtype)


def _received(buffer: torch.Tensor, transfer: Transfer) -> NDArray[np.uint8]:
    """Return the bytes that arrived, part after part."""
    parts = [buffer[span.start : span.start + span.length] for span in transfer.arrives]
    if not parts:
        return np.zeros(0, np.uint8)
    received: NDArray[np.uint8] = torch.cat(parts).contiguous().view(torch.uint8).cpu().numpy()
    return received


def _wrong(case: Case, transfer: Transfer, received: NDArray[np.uint8], seed: int, ranks: int) -> int:
    """Count the elements that were only moved and differ from the elements that were sent."""
    itemsize, wrong, place = DTYPES[case.dtype].itemsize, 0, 0
    for span in transfer.arrives:
        if span.rank is not None:
            count = ranks * span.length if shares(case) > 1 else span.offset + span.length
            data = _as_sent(case, seed, span.rank, count)[span.offset : span.offset + span.length]
            wanted = data.contiguous().view(torch.uint8).numpy().reshape(-1, itemsize)
            got = received[place * itemsize : (place + span.length) * itemsize].reshape(-1, itemsize)
            wrong += int((wanted != got).any(axis=1).sum())
        place += span.length
    return wrong


def _is_for(fault: Fault, case: Case, launch: int, rank: int, call: int) -> bool:
    """Return whether a planted fault flips a bit here: in the first call, at byte `iteration`."""
    wanted = ((fault.world_size, case.world_size), (fault.size_bytes, case.size_bytes), (fault.launch, launch))
    return fault.do == "corrupt" and fault.rank == rank and not call and all(w in {None, have} for w, have in wanted)
