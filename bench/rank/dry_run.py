"""Make every call of a plan on torch's fake process group, and check each against the table of operations.

In: a plan, its world size, and the ranks to simulate. Out: a `DryRunResult`. Each case is built by the same code as in
a run, at its true size, on the fake process group and the meta device, which hold and move no data. Each call is made
once and recorded; it must go to the right group, name the right root, and use as many bytes as memory was planned for
(`operations.buffer_bytes`). No number of a dry run measures communication, and no data are checked.

Calls on Python objects are built but not made: nothing would arrive that could be unpickled. mpi4py has no fake
process group, so its cases are skipped.
"""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from bench.catalog import operations
from bench.catalog.backends import BACKENDS
from bench.catalog.dtypes import dtype_named
from bench.catalog.metrics import makes_groups
from bench.catalog.operations import OPERATIONS, cycle, ranks_together
from bench.model.conclusions import DryRunCases, DryRunResult
from bench.model.records import Case, Plan, Skip
from bench.planning.footprint import bounded, buffer_bytes
from bench.rank import timing, workload
from bench.rank.collectives import OBJECT_COLLECTIVES
from bench.rank.device import Host
from bench.rank.process_group import Group, make_group
from bench.rank.tensors import Arena
from bench.rank.transfer import Subgroup, rest

FAKE = "fake"
PAPER, REAL = torch.device("meta"), torch.device("cpu")
# Largest size, in bytes a rank, of the calls that are timed: what a call costs in Python does not depend on the size.
SMALL_BYTES = 64 * 2**10
# Python objects are the only data that take real memory in a dry run: larger ones are replaced by this size.
LARGEST_OBJECT_BYTES = 2**20
# Number of timed calls, of which the median is reported.
REPEATS = 5
# Arguments of torch's operators that name the root, or the rank at the other end.
PEERS = ("root_rank", "dst", "src")
# Most mismatches reported for one case on one rank: more would not explain more.
MOST_MISMATCHES = 3


@dataclass(slots=True)
class _Kind:
    """What the dry run has found so far for the cases of one kind."""

    cases: list[Case]
    calls: int = 0
    build_s: list[float] = field(default_factory=list)
    call_s: float | None = None
    mismatches: list[str] = field(default_factory=list)


def dry_run(plan: Plan, world_size: int, ranks: Sequence[int], check: "Check | None" = None) -> DryRunResult:
    """Make the calls of each case of a plan as each of the ranks. check: judges a turn's calls; default `mismatch`."""
    began = time.perf_counter()
    skips = [Skip(case, reason) for case in plan.cases if (reason := _unsupported(case)) is not None]
    left_out = {skip.case.key for skip in skips}
    kinds: dict[tuple[object, ...], _Kind] = {}
    for case in plan.cases:
        if case.key not in left_out:
            kinds.setdefault(_kind(case), _Kind([])).cases.append(case)
    # Kinds that share their data follow each other, so that cached data are reused: at 1024 ranks a reduced result
    # takes a third of a second to compute.
    in_order = sorted(kinds.values(), key=lambda kind: (kind.cases[0].dtype, kind.cases[0].reduce_op))
    for rank in ranks:
        with _on_paper(rank, world_size, PAPER) as group:
            for kind in in_order:
                _walk(kind, group, plan.seed, check or mismatch)
    with _on_paper(ranks[0], world_size, REAL) as group:
        for kind in in_order:
            kind.call_s = None if kind.mismatches else _call_s(kind.cases[0], group, plan.seed)
    return DryRunResult(
        world_size=world_size,
        ranks=tuple(ranks),
        kinds=tuple(_cases_of_kind(kind, plan.pool_bytes) for kind in kinds.values()),
        skips=(*plan.skips, *skips),
        wall_s=time.perf_counter() - began,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        most_iterations=bounded(plan).get(world_size),
    )


def _unsupported(case: Case) -> str | None:
    """Why a case that could be measured cannot be dry-run here; None if it can."""
    if BACKENDS[case.backend].library != "torch":
        return f"{BACKENDS[case.backend].library} has no fake process group"
    if OPERATIONS[case.op].recorded or makes_groups(case):
        return "it makes groups or several calls, which cannot be checked on paper"
    if case.reduce_op == "premul_sum" and not hasattr(dist, "_make_nccl_premul_sum"):
        return "premul_sum needs a torch that was built with NCCL"
    return None


def _kind(case: Case) -> tuple[object, ...]:
    """What cases of one kind have in common: they differ only in size and are reported in one line."""
    return (case.op, case.backend, case.dtype, *case.extras)


@contextmanager
def _on_paper(rank: int, world_size: int, device: torch.device) -> Iterator[Group]:
    """One rank of a world whose other ranks do not exist."""
    taken = dist.Backend.backend_capability[FAKE]
    if PAPER.type not in taken:  # torch's list of the fake backend's devices lacks it, and batched calls look there
        taken.append(PAPER.type)
    dist.init_process_group(FAKE, store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield make_group(rank, world_size, FAKE, Host(device), control=None, barrier=lambda: None)
    finally:
        dist.destroy_process_group()


def _walk(kind: _Kind, group: Group, seed: int, check: "Check") -> None:
    """Make the calls of each size of a kind, in each of its turns."""
    for asked in kind.cases:
        case = _smaller(asked, LARGEST_OBJECT_BYTES) if asked.op in OBJECT_COLLECTIVES else asked
        try:
            began = time.perf_counter()
            work = _built(case, group, seed)
            kind.build_s.append(time.perf_counter() - began)
            found = list(_mismatches(case, group, work, check))
        except Exception as error:  # any exception of torch or of a builder is a finding
            found = [f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"]
        kind.calls += cycle(case)
        where = f"{asked.size_bytes} B as rank {group.rank}"
        kind.mismatches += [f"{where}: {one}" for one in found if one is not None][:MOST_MISMATCHES]


def _built(case: Case, group: Group, seed: int) -> workload.Workload:
    """The workload that a run would build, with one buffer."""
    arena = Arena(buffer_bytes(case, 0), group.device.handle)
    return workload.build(case, group, arena, 0, 0, seed)


def _mismatches(case: Case, group: Group, work: workload.Workload, check: "Check") -> Iterator[str | None]:
    """What `check` says of the calls of each turn."""
    subgroup = group.subgroup(case)
    with Recorder() as recorder:
        for turn in range(cycle(case)):
            recorder.calls.clear()
            if case.op in OBJECT_COLLECTIVES:
                call = work.prepare()
                recorder.calls += [_of_objects(call)] if call is not rest else []
            else:
                timing.call_once(work, case)
            yield check(case, subgroup, turn, recorder.calls)


def _call_s(case: Case, group: Group, seed: int) -> float | None:
    """Median seconds that one small call of this kind spends in Python and torch, as the fake group moves next to
    nothing. None for Python objects."""
    if case.op in OBJECT_COLLECTIVES:
        return None
    small = _smaller(case, SMALL_BYTES)
    work, took = _built(small, group, seed), []
    for _ in range(REPEATS):
        call = work.prepare()
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
        for _ in range(cycle(small) - 1):  # skip the other turns of the cycle
            work.prepare()
    return statistics.median(took)


def _smaller(case: Case, nbytes: int) -> Case:
    """The case with at most `nbytes` bytes, in equal pieces of whole elements, but at least one element a piece."""
    unit = OPERATIONS[case.op].pieces(ranks_together(case)) * dtype_named(case.dtype).itemsize
    return replace(case, size_bytes=min(case.size_bytes, max(unit, nbytes // unit * unit)))


def _cases_of_kind(kind: _Kind, pool_bytes: int) -> DryRunCases:
    return DryRunCases(
        case=kind.cases[0],
        cases=len(kind.cases),
        calls=kind.calls,
        buffer_bytes=max(buffer_bytes(case, pool_bytes) for case in kind.cases),
        build_s=statistics.median(kind.build_s) if kind.build_s else 0.0,
        call_s=kind.call_s,
        mismatches=tuple(kind.mismatches),
    )


# ── recording ────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class PaperCall:
    """One call of torch's operators, or of torch's function for Python objects.

    ranks: number of ranks in the group that is called. sent, received: (start, stop) in bytes of the buffer, one for
    each tensor. peer: the root, or the rank at the other end, within the group. sent_parts, received_parts: elements
    for each rank, where the call states them. arguments: positional ones of a function for Python objects.
    """

    name: str
    ranks: int
    sent: tuple[tuple[int, int], ...]
    received: tuple[tuple[int, int], ...]
    peer: int | None
    sent_parts: tuple[int, ...]
    received_parts: tuple[int, ...]
    arguments: tuple[Any, ...] = ()


# A subclass, because torch offers no other way to see every operator.
class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Context that records torch's collectives in `calls` and runs none of them; their handles are complete."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[PaperCall] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        self.calls.append(_recorded(func._schema.name.removeprefix("c10d::"), given))
        work = FakeWork().boxed()
        return (args[0], work) if len(func._schema.returns) > 1 else work


def _recorded(name: str, given: Mapping[str, Any]) -> PaperCall:
    """A record of an operator's call, from its arguments by name: the names are the same in all versions of torch."""
    outputs = [value for key, value in given.items() if key.startswith("output") and "split" not in key]
    inputs = [value for key, value in given.items() if key.startswith("input") and "split" not in key]
    both = given.get("tensors")
    if both is not None:
        inputs = [] if name.startswith("recv") else [both]
        outputs = [] if name == "send" else [both]
    return PaperCall(
        name=name,
        ranks=dist.ProcessGroup.unbox(given["process_group"]).size(),
        sent=_spans(inputs),
        received=_spans(outputs),
        peer=next((int(given[key]) for key in PEERS if key in given), None),
        sent_parts=tuple(given.get("input_split_sizes", ())),
        received_parts=tuple(given.get("output_split_sizes", ())),
    )


def _spans(values: Any) -> tuple[tuple[int, int], ...]:
    """(start, stop) in bytes of each tensor in nested lists; all tensors are contiguous."""
    if isinstance(values, torch.Tensor):
        begin = values.storage_offset() * values.element_size()
        return ((begin, begin + values.numel() * values.element_size()),)
    return tuple(span for value in values for span in _spans(value))


def _of_objects(call: Any) -> PaperCall:
    """A record of a call on Python objects, which was built but is not made."""
    named = call.keywords
    peer = next((named[key] for key in ("group_src", "group_dst") if key in named), None)
    return PaperCall(call.func.__name__, dist.get_world_size(named["group"]), (), (), peer, (), (), call.args)


# ── checking ─────────────────────────────────────────────────────────────────────────────────────
# (case, subgroup, turn, its calls) → what is wrong, or None.
Check = Callable[[Case, Subgroup, int, Sequence[PaperCall]], str | None]


def mismatch(case: Case, subgroup: Subgroup, turn: int, calls: Sequence[PaperCall]) -> str | None:
    """What contradicts the table of operations in a turn's calls: group, root or buffers. None if nothing does."""
    operation, ranks = OPERATIONS[case.op], ranks_together(case)
    if subgroup.subgroups > 1 and turn != subgroup.number:
        return f"calls {calls[0].name} in the turn of another subgroup" if calls else None
    for call in calls:
        if call.ranks != ranks:
            return f"{call.name}: goes to a group of {call.ranks} ranks, not of {ranks}"
        if operation.rooted and call.peer != case.root:
            return f"{call.name}: names rank {call.peer} as root, not {case.root}"
        if call.peer is not None and not 0 <= call.peer < ranks:
            return f"{call.name}: names rank {call.peer} of {ranks}"
    planned = operations.buffer_bytes(case)
    held = _covered([span for call in calls for span in (*call.sent, *call.received)])
    # A rank that only sends or only receives, or is not the root, holds only a part of the planned bytes.
    partly = case.op == "send_recv" or (operation.rooted and subgroup.rank != case.root)
    if operation.typed and calls and (held > planned or (held < planned and not partly)):
        return f"the call's tensors take {held} B, and {planned} B are planned"
    return None


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """Bytes that lie in one of the spans or more."""
    total = end = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
