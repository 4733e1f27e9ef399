"""Make each case's call twice on data whose sums are rounded, and write this rank's results to files.

In: an encoded `BitsJob`. Out: for each case a message with facts on the results of all ranks, and files with the raw
results, part after part; results with the same bits share a file. Data that are only moved are compared here with the
data that were sent. Times nothing.
"""

import json

import numpy as np
import torch
from numpy.typing import NDArray

from collbench.catalog.collectives import room_bytes
from collbench.catalog.dtypes import DTYPES
from collbench.model.records import Case, Fault, Json
from collbench.packages.bits.planning import CALLS, BitsJob, sent, shares
from collbench.planning.footprint import arena_bytes
from collbench.protocol.rank_context import RankContext
from collbench.rank.collectives import CallArguments, Transfer, built
from collbench.rank.group import Group
from collbench.rank.main import buffers_of, entered
from collbench.rank.process import facts, run_rank, wait_to_begin
from collbench.rank.tensors import POISON, Arena, turns
from collbench.store import encoding


def main(context: RankContext, job: bytes) -> None:
    """Run a rank's process; never return."""
    run_rank(context, lambda: _work(context, encoding.decoded(job, BitsJob)))


def _work(context: RankContext, bits: BitsJob) -> Json:
    """Make the calls of all cases, then send a line for each case."""
    cases = bits.launch.cases
    with entered(context, bits.job) as group:
        wait_to_begin(context, group, lambda: facts(group, bits.launch.backend))
        with buffers_of(bits.job, group, max(arena_bytes([case], 0) for case in cases)) as arena:
            own = []
            for position, case in enumerate(cases):
                context.enters(position)
                arena.clear()
                own.append(_called(case, position, bits, group, arena))
                context.tick()
            for ranks in zip(*group.gather(own), strict=True):
                if group.rank == 0:
                    context.send({"kind": "sampled", "failure": None}, json.dumps(ranks).encode())
    return {}


def _called(case: Case, position: int, bits: BitsJob, group: Group, arena: Arena) -> Json:
    """Make the calls of a case; return lengths of the parts, a file for each call, and the number of wrong elements."""
    settings, subgroup = bits.job.settings, group.subgroup(case)
    transfer = turns(case, subgroup)[0]
    offset = 1 if case.alignment == "unaligned" else 0
    buffer = arena.take(room_bytes(case), getattr(torch, case.dtype))[offset:]
    if transfer is None:
        return {"parts": [], "files": [""] * CALLS, "wrong": 0}
    outgoing, incoming = buffer[slice(*transfer.sends)], buffer[slice(*transfer.receives)]
    call = built(group.calls, CallArguments(subgroup, case, transfer, outgoing, incoming))
    own = _as_sent(case, settings.seed, subgroup.rank, outgoing.numel()).to(buffer.device)
    received: list[NDArray[np.uint8]] = []
    files: list[str] = []
    for number in range(CALLS):
        buffer.view(torch.uint8).fill_(POISON)
        outgoing.copy_(own)
        work = call()
        if hasattr(work, "wait"):
            work.wait()
        group.device.synchronize()
        parts = [buffer[span.start : span.start + span.length] for span in transfer.arrives] or [buffer[:0]]
        data = torch.cat(parts).view(torch.uint8).cpu().numpy()
        for fault in settings.faults:
            if _is_for(fault, case, bits.launch.number, group.rank, number) and len(data):
                data[fault.iteration % len(data)] ^= 1
        received.append(data)
        same = number and np.array_equal(data, received[0])
        files.append(files[0] if same else f"{bits.folder}/{position}-{group.rank}-{number}")
        if not same:
            data.tofile(files[number])
    lengths = [span.length for span in transfer.arrives]
    wrong = _wrong(case, transfer, received[0], settings.seed, subgroup.size)
    return {"parts": lengths, "files": files, "wrong": wrong}


def _as_sent(case: Case, seed: int, rank: int, count: int) -> torch.Tensor:
    """Return the data that a rank sends, in the dtype of the case."""
    return torch.from_numpy(sent(case, seed, rank, count)).to(getattr(torch, case.dtype))


def _wrong(case: Case, transfer: Transfer, received: NDArray[np.uint8], seed: int, ranks: int) -> int:
    """Count the elements that were only moved and differ from the elements that were sent."""
    elements, wrong, place = received.reshape(-1, DTYPES[case.dtype].itemsize), 0, 0
    for span in transfer.arrives:
        if span.rank is not None:
            count = ranks * span.length if shares(case) > 1 else span.offset + span.length
            data = _as_sent(case, seed, span.rank, count)[span.offset : span.offset + span.length]
            wanted = data.contiguous().view(torch.uint8).numpy().reshape(-1, elements.shape[1])
            wrong += int((wanted != elements[place : place + span.length]).any(axis=1).sum())
        place += span.length
    return wrong


def _is_for(fault: Fault, case: Case, launch: int, rank: int, call: int) -> bool:
    """Return whether a planted fault flips a bit here: in the first call, at byte `iteration`."""
    wanted = ((fault.world_size, case.world_size), (fault.size_bytes, case.size_bytes), (fault.launch, launch))
    return fault.do == "corrupt" and fault.rank == rank and not call and all(w in {None, have} for w, have in wanted)
