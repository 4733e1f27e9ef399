"""Every operation gives the right data on real ranks, in every dtype and with every reduce op that a backend takes;
one spoilt element is noticed on every rank that receives an element."""

import dataclasses
import itertools

import pytest

from collbench.catalog import splits, subgroups
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import (
    CALLS,
    OPERATIONS,
    busbw,
    cycle,
    placement,
    ranks_together,
    room_bytes,
)
from collbench.catalog.dtypes import DTYPES, REDUCE_OPS
from collbench.catalog.rules import ANYWHERE, Facts
from collbench.config.models import parse
from collbench.machine import host
from collbench.model.notices import first
from collbench.model.records import Case
from collbench.planning.cases import combinations, unsupported
from collbench.protocol import messages
from collbench.rank.collectives import COLLECTIVES, Subgroup
from collbench.report.notices import sentence

EVERYTHING = f"""
backends: [gloo]
world_sizes: [2]
operations: [{", ".join(CALLS)}]
dtypes: [{", ".join(DTYPES)}]
reduce_ops: [{", ".join(REDUCE_OPS)}]
sizes: [1920]
launches: 1
""".encode()
MACHINE = host.machine()
ANSWER_S = 120.0
# Operations that gloo of the installed torch does not have yet.
TOO_NEW = {op for op, first in BACKENDS["gloo"].since.items() if MACHINE.torch is not None and MACHINE.torch < first}
PAIRS = {"send_recv", "sendrecv_pair", "pairwise"}


def selected(*sets: str) -> tuple[list[Case], dict[str, str]]:
    """Return the cases that can be measured, and the reasons why the others cannot."""
    cases = list(combinations(parse(EVERYTHING, "everything", sets), MACHINE))
    reasons = {case.key: unsupported(case, MACHINE, 0, 0) for case in cases}
    lacking = {key: sentence(reason) for key, reason in reasons.items() if reason is not None}
    return [case for case in cases if case.key not in lacking], lacking


def too_new() -> list[str]:
    """Return the words of the reasons for operations that gloo of the installed torch does not have yet."""
    return [f"has no {op}; that of " for op in TOO_NEW]


def walked(launcher, cases: list[Case]) -> dict[str, list[dict]]:
    """Return the answers of all ranks for each case."""
    # Cases that share their data follow each other: making the data takes most of the time.
    together = sorted(cases, key=lambda case: (case.dtype, OPERATIONS[case.op].reduces, case.reduce_op))
    ranks = launcher.start(cases[0].world_size, "walk_ranks:walk", together)
    try:
        # A rank of MPI does not notice that another rank has ended.
        assert all(member.connection.poll(ANSWER_S) for member in ranks.members), "a rank does not answer"
        answers = [messages.receive(member.connection)[0] for member in ranks.members]
    finally:
        ranks.kill()
    assert {message["kind"] for message in answers} == {"walked"}, answers
    return {case.key: [message["cases"][case.key] for message in answers] for case in cases}


def assert_right(launcher, cases: list[Case]) -> None:
    for key, answers in walked(launcher, cases).items():
        case = next(case for case in cases if case.key == key)
        assert len(answers) == case.world_size, key
        groups = case.world_size // ranks_together(case)
        assert all(answer["said"] == [None, None] for answer in answers), (key, answers)
        for rank, answer in enumerate(answers):
            assert (answer["after"] is not None) == answer["spoilt"], f"{key}: spoilt on rank {rank}: {answer}"
        # Every rank that receives data notices: all ranks, the root, every second rank, or none.
        few = {"reduce": groups, "gather": groups, "barrier": 0}
        least = few.get(case.op, groups * (ranks_together(case) // 2) if case.op in PAIRS else case.world_size)
        assert sum(answer["spoilt"] for answer in answers) >= least, key


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_operation_in_every_dtype_and_reduce_op(launcher, world_size):
    # At 2 ranks all reduce ops; at more, those that depend on the number of ranks.
    few = [] if world_size == 2 else ["reduce_ops=[sum, product]"]
    cases, skipped = selected(f"world_sizes=[{world_size}]", *few)
    assert {case.op for case in cases} == set(CALLS) - TOO_NEW
    assert_right(launcher, cases)
    taken = {case.dtype for case in cases} | {key.split("/")[3] for key in skipped}
    assert taken == {*DTYPES, "bytes"}
    for reason in skipped.values():
        words = ("gloo has no", "is not defined for", "not exact", *too_new())
        assert any(word in reason for word in words), reason


VARIANTS = (
    "placements=[usual, in, out, copied]",
    "calls=[sync, async]",
    "roots=all",
    "groups=['contiguous:2', 'strided:2', 'contiguous:2:serial', 'strided:2:serial']",
)


def test_variants_are_right_and_features_that_a_backend_lacks_are_reported(launcher):
    cases, skipped = {}, {}
    for variant in VARIANTS:
        measured, lacking = selected("world_sizes=[4]", "dtypes=[float32]", "reduce_ops=[sum]", variant)
        cases |= {case.key: case for case in measured}
        skipped |= lacking
    assert_right(launcher, [*cases.values()])
    lacks = (
        *("works only", "is not measured with a copy", "works in place", "no asynchronous", "no buffers"),
        *("all ranks of the world", *too_new()),
    )
    assert all(any(word in reason for word in lacks) for reason in skipped.values()), skipped


def test_sizes_that_divide_badly(launcher):
    sizes = f"sizes=[1, 4, 7, 4096, {3 * 262_144 + 5}]"
    cases, _ = selected("world_sizes=[3]", "dtypes=[uint8]", "reduce_ops=[sum]", sizes)
    assert len({case.size_bytes for case in cases}) >= 5
    assert_right(launcher, cases)


def test_bus_bandwidth_equals_nccl_tests_and_groups_count_only_their_own_ranks():
    for op, factor in {"all_reduce": 1.5, "all_gather": 0.75, "broadcast": 1, "sendrecv_ring": 1}.items():
        assert busbw(Case(op, "gloo", 4, "float32", 4000), 1e-6) == pytest.approx(4e9 * factor)
    assert busbw(Case("barrier", "gloo", 4, "bytes", 0), 1e-6) is None
    case = Case("all_reduce", "gloo", 8, "float32", 4000, groups=subgroups.parse("strided:2:serial"))
    assert busbw(case, 1e-6) == pytest.approx(4e9)
    assert cycle(case) == 4
    uneven = dataclasses.replace(case, op="all_to_all", splits=splits.parse("zipf:1.2"))
    assert cycle(uneven) == 4 and first(ANYWHERE, Facts(uneven)) is None


def test_no_operation_needs_more_than_its_buffers():
    for op, ranks, size in itertools.product(COLLECTIVES, (2, 3, 4, 5), (240, 960)):
        for place in OPERATIONS[op].placements:
            case = Case(op, "gloo", ranks, "int8", size, placement=place)
            for rank, turn in itertools.product(range(ranks), range(cycle(case))):
                transfer = COLLECTIVES[op].transfer(Subgroup(rank, ranks, None), case, size, turn)
                if transfer is None:
                    continue
                spans = [transfer.sends, transfer.receives, *((b.start, b.start + b.length) for b in transfer.arrives)]
                assert max(end for _, end in spans) <= room_bytes(case), (op, place, rank)
                received = transfer.receives[1] - transfer.receives[0]
                assert sum(span.length for span in transfer.arrives) == received
                assert placement(case) == place
