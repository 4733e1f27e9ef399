"""A plan on paper: every case as some ranks of a world that does not exist, call by call, against the table.

In: a plan, its world size, ranks to be. Out: a `DryRunResult`. Each case is built by the same code as in a run, at its
true size, on torch's fake process group and its meta device, which hold and move nothing; each call is made once, and
what it hands to torch is held against `wanted`. No number of it measures communication, and no data are checked.

Operations on Python objects are built and their arguments checked, but not called: nothing arrives that could be
unpickled. Those of mpi4py have no fake group.
"""

import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench import stamps
from bench.backends import BACKENDS
from bench.conclusions import DryRunCases, DryRunResult
from bench.dtypes import dtype_named
from bench.footprint import buffer_bytes
from bench.operations import OPERATIONS, cycle, ranks_together
from bench.rank import expected_calls, timing, workload
from bench.rank.process_group import Group, formed
from bench.rank.recorder import Recorder
from bench.rank.tensors import Arena
from bench.rank.torch_calls import OBJECT_CALLS
from bench.records import Case, Plan, Skip

FAKE = "fake"
PAPER, REAL = torch.device("meta"), torch.device("cpu")
# What a call costs in Python does not depend on the size: a small one will do, of as many bytes a rank at most.
SMALL_BYTES = 64 * 2**10
# Python objects are the only data that take real memory here: at larger sizes they are rehearsed at this one.
LARGEST_OBJECT_BYTES = 2**20
# Calls whose median is given.
REPEATS = 5
# No case and no rank needs more to be understood.
MOST_MISMATCHES = 3


@dataclass(slots=True)
class _Kind:
    """What has been found of the cases of one kind so far."""

    cases: list[Case]
    calls: int = 0
    build_s: list[float] = field(default_factory=list)
    call_s: float | None = None
    mismatches: list[str] = field(default_factory=list)


def dry_run(plan: Plan, world_size: int, ranks: Sequence[int]) -> DryRunResult:
    """Each case of a plan as each of the ranks."""
    began = time.perf_counter()
    skips = [Skip(case, reason) for case in plan.cases if (reason := _unsupported(case)) is not None]
    left_out = {skip.case.key for skip in skips}
    kinds: dict[tuple[object, ...], _Kind] = {}
    for case in plan.cases:
        if case.key not in left_out:
            kinds.setdefault(_kind(case), _Kind([])).cases.append(case)
    # One after the other what shares its data: at 1024 ranks a result takes a third of a second to work out.
    in_order = sorted(kinds.values(), key=lambda kind: (kind.cases[0].dtype, kind.cases[0].reduce_op))
    for rank in ranks:
        with _on_paper(rank, world_size, PAPER) as group:
            for kind in in_order:
                _walk(kind, group, plan.seed)
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
        most_iterations=stamps.bounded(plan).get(world_size),
    )


def _unsupported(case: Case) -> str | None:
    """Why a case that could be measured elsewhere cannot be rehearsed here; None if it can."""
    if BACKENDS[case.backend].library != "torch":
        return f"{BACKENDS[case.backend].library} has no fake process group"
    if case.reduce_op == "premul_sum" and not hasattr(dist, "_make_nccl_premul_sum"):
        return "this torch was built without NCCL, which alone has premul_sum"
    return None


def _kind(case: Case) -> tuple[object, ...]:
    """Cases that differ in size only go into one line."""
    return (case.op, case.backend, case.dtype, *case.extras)


@contextmanager
def _on_paper(rank: int, world_size: int, device: torch.device) -> Iterator[Group]:
    """One rank of a world whose other ranks do not exist."""
    taken = dist.Backend.backend_capability[FAKE]
    if PAPER.type not in taken:  # torch's own list leaves it out, and calls that are made in batches look there
        taken.append(PAPER.type)
    dist.init_process_group(FAKE, store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield formed(rank, world_size, FAKE, device, control=None, barrier=lambda: None)
    finally:
        dist.destroy_process_group()


def _walk(kind: _Kind, group: Group, seed: int) -> None:
    """Each size of a kind, each of its turns."""
    for asked in kind.cases:
        case = _smaller(asked, LARGEST_OBJECT_BYTES) if asked.op in OBJECT_CALLS else asked
        try:
            began = time.perf_counter()
            work = _built(case, group, seed)
            kind.build_s.append(time.perf_counter() - began)
            found = list(_mismatches(case, group, work))
        except Exception as error:  # whatever torch or a builder objects to is what this looks for
            found = [f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"]
        kind.calls += cycle(case)
        where = f"{asked.size_bytes} B as rank {group.rank}"
        kind.mismatches += [f"{where}: {one}" for one in found if one is not None][:MOST_MISMATCHES]


def _built(case: Case, group: Group, seed: int) -> workload.Workload:
    """The workload that a run would build, with one buffer."""
    arena = Arena(buffer_bytes(case, 0), group.device)
    return workload.build(case, group, arena, 0, seed)


def _mismatches(case: Case, group: Group, work: workload.Workload) -> Iterator[str | None]:
    """What is wrong in each turn."""
    subgroup = group.subgroup(case)
    with Recorder() as recorder:
        for turn in range(cycle(case)):
            if case.op in OBJECT_CALLS:
                call: Any = work.prepare()
                if subgroup.subgroups == 1 or turn == subgroup.number:  # the others rest
                    yield expected_calls.mismatch_of_objects(case, subgroup, call.args, call.keywords)
                continue
            recorder.calls.clear()
            timing.call_once(work, case)
            yield expected_calls.mismatch(case, subgroup, turn, recorder.calls)


def _call_s(case: Case, group: Group, seed: int) -> float | None:
    """Median time of one small call of this kind in Python and torch's bookkeeping; the fake group moves next to
    nothing. None of Python objects."""
    if case.op in OBJECT_CALLS:
        return None
    small = _smaller(case, SMALL_BYTES)
    work, took = _built(small, group, seed), []
    for _ in range(REPEATS):
        call = work.prepare()
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
        for _ in range(cycle(small) - 1):  # turns of others
            work.prepare()
    return statistics.median(took)


def _smaller(case: Case, nbytes: int) -> Case:
    """The case with so many bytes at most, in whole pieces of whole elements."""
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
