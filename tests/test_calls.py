"""Each rank of any world makes exactly the calls of torch that the table below demands.

Cases are built by the code of a run, at their true size, on torch's fake process group and the meta device, which hold
and move no data. A recorder takes the calls in torch's place. The table is a second statement of
`rank/collectives.py`, written in bytes, so that a mistake there is noticed.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from collbench.catalog import collectives
from collbench.catalog.collectives import CALLS, COALESCED_PIECES, OPERATIONS, cycle, ranks_together
from collbench.catalog.dtypes import DTYPES
from collbench.catalog.rules import ANYWHERE, Facts
from collbench.catalog.subgroups import partner
from collbench.config.models import parse
from collbench.machine import host
from collbench.model.notices import first
from collbench.model.records import Case, Settings
from collbench.planning.cases import combinations
from collbench.planning.footprint import buffer_bytes
from collbench.rank import timing
from collbench.rank.collectives import Subgroup
from collbench.rank.device import Host
from collbench.rank.process_group import TorchGroup
from collbench.rank.rounds import workload_of
from collbench.rank.tensors import Arena
from conftest import SAMPLING

EVERYTHING = f"""
backends: [gloo]
operations: [{", ".join(CALLS)}]
sizes: [4KiB, 16MiB]
"""
MACHINE = host.machine()


# ── recorded calls ───────────────────────────────────────────────────────────────────────────────
class Recorded(NamedTuple):
    """A recorded call: (start, stop) of each tensor in bytes of the buffer, and the root or the partner as `peer`."""

    name: str
    ranks: int
    sent: list[tuple[int, int]]
    received: list[tuple[int, int]]
    peer: int | None
    sent_parts: Sequence[int] = ()
    received_parts: Sequence[int] = ()


class Recorder(TorchDispatchMode):
    """Context that records torch's collectives in `calls` and runs none of them; their handles are complete."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else torch loads its compiler, which takes seconds

    def __init__(self):
        super().__init__()
        self.calls: list[Recorded] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        name = func._schema.name.removeprefix("c10d::")
        tensors = {
            way: [given[key] for key in given if key.startswith(way) and "split" not in key]
            for way in ("input", "output")
        }
        if "tensors" in given:  # one argument for both ways
            tensors["input"] = [] if name.startswith("recv") else [given["tensors"]]
            tensors["output"] = [] if name == "send" else [given["tensors"]]
        self.calls.append(
            Recorded(
                name,
                dist.ProcessGroup.unbox(given["process_group"]).size(),
                spans(tensors["input"]),
                spans(tensors["output"]),
                next((int(given[key]) for key in ("root_rank", "dst", "src") if key in given), None),
                given.get("input_split_sizes", ()),
                given.get("output_split_sizes", ()),
            )
        )
        work = FakeWork().boxed()
        return (args[0], work) if len(func._schema.returns) > 1 else work


def spans(values) -> list[tuple[int, int]]:
    """Return (start, stop) in bytes per tensor in nested lists; all tensors are contiguous."""
    if isinstance(values, torch.Tensor):
        begin = values.storage_offset() * values.element_size()
        return [(begin, begin + values.numel() * values.element_size())]
    return [span for value in values for span in spans(value)]


@contextmanager
def fake_group(rank: int, world_size: int):
    """Yield the group of a rank in a world whose other ranks do not exist."""
    devices = dist.Backend.backend_capability["fake"]
    if "meta" not in devices:  # batched calls look there
        devices.append("meta")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield TorchGroup(rank, world_size, "fake", Host(torch.device("meta")), control=None, barrier=lambda: None)
    finally:
        dist.destroy_process_group()


def turns_of(case: Case, group) -> list[list[Recorded]]:
    """Return the calls of a case, per turn."""
    arena = Arena(buffer_bytes(case, 0), group.device.handle)
    work = workload_of(case, group, arena, Settings(SAMPLING, 1, 60.0, 0))
    turns = []
    for _ in range(cycle(case)):
        with Recorder() as recorder:
            timing.call_once(work, case)
        turns.append(recorder.calls)
    return turns


# ── expected calls ───────────────────────────────────────────────────────────────────────────────
class Expected(NamedTuple):
    """An expected call, with the bytes of each tensor; `peer` is None if the call names no rank."""

    name: str
    sent: list[int]
    received: list[int]
    peer: int | None = None


class Member(NamedTuple):
    """A rank of a group of `n`: `size` has the bytes of the case, `share` the bytes of one rank's part of it."""

    size: int
    share: int
    n: int
    rank: int
    root: int

    @property
    def at_root(self) -> bool:
        return self.rank == self.root


def both_ways(m: Member, to: int, source: int) -> list[Expected]:
    return [Expected("send", [m.size], [], to), Expected("recv_", [], [m.size], source)]


def coalesced(m: Member, turn: int) -> list[Expected]:
    pieces = [m.size // COALESCED_PIECES] * COALESCED_PIECES
    return [Expected("allreduce_coalesced_", pieces, pieces)]


def paired(m: Member, turn: int) -> list[Expected]:
    return both_ways(m, m.rank ^ 1, m.rank ^ 1) if (m.rank ^ 1) < m.n else []


def pairwise(m: Member, turn: int) -> list[Expected]:
    other = partner(m.rank, turn, m.n)
    return [] if other is None else both_ways(m, other, other)


# (member, turn) → the calls of torch's operators, in their order; none: this rank rests.
EXPECTED: dict[str, Callable[[Member, int], list[Expected]]] = {
    "all_reduce": lambda m, turn: [Expected("allreduce_", [m.size], [m.size])],
    "all_reduce_coalesced": coalesced,
    "all_gather": lambda m, turn: [Expected("_allgather_base_", [m.share], [m.size])],
    "all_gather_list": lambda m, turn: [Expected("allgather_", [m.share], [m.share] * m.n)],
    "reduce_scatter": lambda m, turn: [Expected("_reduce_scatter_base_", [m.size], [m.share])],
    "reduce_scatter_list": lambda m, turn: [Expected("reduce_scatter_", [m.share] * m.n, [m.share])],
    "broadcast": lambda m, turn: [Expected("broadcast_", [m.size], [m.size], m.root)],
    "reduce": lambda m, turn: [Expected("reduce_", [m.size], [m.size], m.root)],
    "gather": lambda m, turn: [Expected("gather_", [m.share], [m.share] * m.n * m.at_root, m.root)],
    "scatter": lambda m, turn: [Expected("scatter_", [m.share] * m.n * m.at_root, [m.share], m.root)],
    "all_to_all": lambda m, turn: [Expected("alltoall_base_", [m.size], [m.size])],
    "all_to_all_list": lambda m, turn: [Expected("alltoall_", [m.share] * m.n, [m.share] * m.n)],
    "all_to_all_uneven": lambda m, turn: [Expected("alltoall_base_", [m.size], [m.size])],
    "send_recv": lambda m, turn: paired(m, turn)[(m.rank + m.root) % 2 :][:1],
    "sendrecv_pair": paired,
    "sendrecv_ring": lambda m, turn: both_ways(m, (m.rank + 1) % m.n, (m.rank - 1) % m.n),
    "pairwise": pairwise,
    "barrier": lambda m, turn: [Expected("barrier", [], [])],
}


def mismatch(case: Case, subgroup: Subgroup, turn: int, calls: Sequence[Recorded]) -> str | None:
    """Return what is wrong with the calls of one turn, or None."""
    n = ranks_together(case)
    m = Member(case.size_bytes, case.size_bytes // subgroup.size, n, subgroup.rank, case.root)
    resting = subgroup.subgroups > 1 and turn != subgroup.number
    wanted = [] if resting else EXPECTED[case.op](m, turn)
    sizes = lambda tensors: [stop - start for start, stop in tensors]  # noqa: E731
    got = [Expected(call.name, sizes(call.sent), sizes(call.received), call.peer) for call in calls]
    if got != wanted or any(call.ranks != n for call in calls):
        return f"torch is called with {got} in groups of {[call.ranks for call in calls]}, not with {wanted} in {n}"
    for call in calls:
        parts, uneven = call.sent_parts, case.op == "all_to_all_uneven"
        if parts != call.received_parts or bool(parts) is not uneven:
            return f"{call.name} sends parts {parts} and receives parts {call.received_parts}"
        if uneven and (len(parts) != n or sum(parts) * DTYPES[case.dtype].itemsize != m.size or (min(parts) and n > 1)):
            return f"{call.name} sends parts {parts}"
    # All tensors together take the memory that was planned; a rank that is not the root, or only sends, takes less.
    held = end = 0
    for start, stop in sorted(span for call in calls for span in (*call.sent, *call.received)):
        held, end = held + max(0, stop - max(start, end)), max(end, stop)
    planned = collectives.buffer_bytes(case)
    partly = case.op == "send_recv" or (OPERATIONS[case.op].rooted and not m.at_root)
    if OPERATIONS[case.op].typed and calls and (held > planned or (held < planned and not partly)):
        return f"the tensors take {held} B, and {planned} B are planned"
    return None


# ── the comparison ───────────────────────────────────────────────────────────────────────────────
def mismatches(world_size: int, *sets: str, ranks=None) -> tuple[set[str], list[str]]:
    """Call the operations as first, middle and last rank of a world; return the operations and the problems."""
    config = parse(EVERYTHING.encode(), "everything", [f"world_sizes=[{world_size}]", *sets])
    cases = [case for case in combinations(config, MACHINE) if first(ANYWHERE, Facts(case)) is None]
    problems = []
    for rank in ranks or sorted({0, world_size // 2, world_size - 1}):
        with fake_group(rank, world_size) as group:
            # Cases that share their data follow each other: making the data of many ranks takes long.
            for case in sorted(cases, key=lambda case: (case.dtype, case.reduce_op)):
                try:
                    for turn, calls in enumerate(turns_of(case, group)):
                        problem = mismatch(case, group.subgroup(case), turn, calls)
                        problems += [] if problem is None else [f"{case.key} as rank {rank}: {problem}"]
                except (ValueError, RuntimeError) as error:
                    problems.append(f"{case.key} as rank {rank}: {error}")
    return {case.op for case in cases}, problems


@pytest.mark.parametrize("world_size", [1, 2, 5, 256])
def test_every_operation_fits_the_table(world_size):
    called, problems = mismatches(world_size)
    assert not problems
    assert called == {name for name in CALLS if OPERATIONS[name].fewest_ranks <= world_size}


@pytest.mark.parametrize(
    "variant",
    [
        ["placements=[usual, in, out]", "calls=[sync, async]"],
        ["roots=[0, 3, 15]"],
        ["groups=['contiguous:4', 'strided:4', 'contiguous:4:serial', 'strided:2:serial']"],
        ["dtypes=[float64, bfloat16, bool, complex64, int8]", "reduce_ops=[sum, avg, product, max]"],
        ["metrics=[isolated, pipelined]", "buffers=flush"],
        ["backends=[nccl]", "metrics=[isolated, graph]", "dtypes=[float8_e5m2, float32]"],
    ],
    ids=lambda variant: variant[0].split("=")[0],
)
def test_variants_fit_too(variant):
    called, problems = mismatches(16, "sizes=[4KiB]", *variant, ranks=[7])
    assert called and not problems
