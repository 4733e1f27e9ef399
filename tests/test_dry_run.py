"""A dry run makes every call of the table as any rank of any world, takes no memory for it, and sees a wrong call."""

import dataclasses

import pytest

from bench.catalog.operations import CALLS, OPERATIONS
from bench.catalog.pairing import partner, rounds
from bench.cli import call
from bench.config.models import parse
from bench.machine import host
from bench.planning import plan as planning
from bench.rank import dry_run, objects
from bench.rank.collectives import COLLECTIVES, OBJECT_COLLECTIVES
from conftest import ROOT
from expected_calls import mismatch

EVERYTHING = f"""
backends: [gloo]
world_sizes: [2]
operations: [{", ".join(CALLS)}]
sizes: [4KiB, 1GiB]
launches: 1
""".encode()
MACHINE = host.machine()


def dry_run_of(world_size: int, *sets: str, ranks=None, config=EVERYTHING, check=mismatch):
    plan = planning.dry_run_plan(parse(config, "everything", sets), MACHINE, world_size, 1)
    return dry_run.dry_run(plan, world_size, ranks or sorted({0, world_size // 2, world_size - 1}), check)


def mismatches(found) -> list[str]:
    return [text for one in found.kinds for text in one.mismatches]


@pytest.mark.parametrize("world_size", [1, 2, 5, 64])
def test_every_operation_fits_the_table(world_size):
    found = dry_run_of(world_size)
    assert not mismatches(found)
    fewest = {name for name in CALLS if OPERATIONS[name].fewest_ranks <= world_size}
    assert {one.case.op for one in found.kinds} == fewest
    assert {skip.case.op for skip in found.skips} >= set(CALLS) - fewest


def test_no_memory_is_taken_for_what_a_rank_would_hold():
    before = dry_run_of(2, "operations=[all_reduce]", "sizes=[4KiB]").peak_rss_bytes
    found = dry_run_of(4, "operations=[all_to_all]", "sizes=[1GiB]")
    (one,) = found.kinds
    assert one.buffer_bytes == 2 * 2**30
    assert found.peak_rss_bytes - before < 2**28


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
    found = dry_run_of(16, "sizes=[4KiB]", *variant, ranks=[7])
    assert found.kinds and not mismatches(found)


def changed(op, **changes):
    """A collective whose transfer is wrong."""
    right = COLLECTIVES[op].transfer
    wrong = lambda who, case, length, turn: dataclasses.replace(right(who, case, length, turn), **changes)  # noqa: E731
    return COLLECTIVES[op]._replace(transfer=wrong)


# Of each mistake: the operation, what is changed, what the exact yardstick says, what the verb says by itself.
MISTAKES = {
    "too little is sent": ("all_reduce", {"sends": (0, 8), "receives": (0, 8)}, "sends", "planned"),
    "too much is received": ("all_gather", {"receives": (0, 1024)}, "planned", "planned"),
    "to the wrong rank": ("sendrecv_ring", {"to": 0}, "names rank 0, not 3", None),
    "to a rank that is not there": ("sendrecv_ring", {"to": 9}, "names rank 9", "names rank 9"),
    "parts that do not add up": ("all_to_all_uneven", {"sent": (0,) * 4}, "parts", None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_transfer_is_seen(mistake, monkeypatch):
    op, changes, exact, said = MISTAKES[mistake]
    monkeypatch.setitem(COLLECTIVES, op, changed(op, **changes))
    (problem,) = mismatches(dry_run_of(4, f"operations=[{op}]", "sizes=[4KiB]", ranks=[2]))
    assert exact in problem and "rank 2" in problem
    if said is not None:
        (problem,) = mismatches(dry_run_of(4, f"operations=[{op}]", "sizes=[4KiB]", ranks=[2], check=None))
        assert said in problem


@pytest.mark.parametrize(
    ("op", "other", "said"),
    [
        ("all_gather_list", "all_gather", "is called with _allgather_base_, not with allgather_"),
        ("broadcast", "all_reduce", "is called with allreduce_, not with broadcast_"),
        ("reduce_scatter", "all_gather", "is called with _allgather_base_"),
    ],
)
def test_a_wrong_call_is_seen(op, other, said, monkeypatch):
    monkeypatch.setitem(COLLECTIVES, op, COLLECTIVES[op]._replace(call=COLLECTIVES[other].call))
    (problem,) = mismatches(dry_run_of(4, f"operations=[{op}]", "sizes=[4KiB]", ranks=[2]))
    assert said in problem


@pytest.mark.parametrize("check", [mismatch, None])
def test_a_wrong_group_is_seen(check, monkeypatch):
    right = COLLECTIVES["all_reduce"].call
    arguments = lambda s: s._replace(subgroup=dataclasses.replace(s.subgroup, handle=None))  # noqa: E731
    monkeypatch.setitem(
        COLLECTIVES, "all_reduce", COLLECTIVES["all_reduce"]._replace(call=lambda s: right(arguments(s)))
    )
    sets = ["operations=[all_reduce]", "sizes=[4KiB]", "groups=['strided:2']"]
    (problem,) = mismatches(dry_run_of(4, *sets, ranks=[2], check=check))
    assert "a group of 4 ranks, not of 2" in problem


def test_a_wrong_root_is_seen_by_the_verb_itself(monkeypatch):
    right = COLLECTIVES["broadcast"]
    call = lambda s: right.call(s._replace(case=dataclasses.replace(s.case, root=1)))  # noqa: E731
    monkeypatch.setitem(COLLECTIVES, "broadcast", right._replace(call=call))
    (problem,) = mismatches(dry_run_of(4, "operations=[broadcast]", "sizes=[4KiB]", ranks=[2], check=None))
    assert "names rank 1 as root, not 0" in problem


def test_a_wrong_call_on_objects_is_seen(monkeypatch):
    right = OBJECT_COLLECTIVES["scatter_object"]
    wrong = right._replace(call=lambda t, c, own, into: right.call(t, c, own[1:], into))
    monkeypatch.setitem(OBJECT_COLLECTIVES, "scatter_object", wrong)
    (problem,) = mismatches(dry_run_of(4, "operations=[scatter_object]", "sizes=[4KiB]", ranks=[0]))
    assert "sends 3 × 1 KiB, not 4 × 1 KiB" in problem


def test_a_rank_holds_no_object_of_a_broadcast_but_the_roots():
    assert [len(one) for one in objects._objects(1, 4, 100, 2)] == [0, 0, 100, 0]
    assert [len(one) for one in objects._objects(1, 4, 100, None)] == [100] * 4


def test_what_torch_objects_to_is_a_mismatch(monkeypatch):
    def broken(who, case, length, turn):
        raise ValueError("no such rank")

    monkeypatch.setitem(COLLECTIVES, "broadcast", COLLECTIVES["broadcast"]._replace(transfer=broken))
    (problem,) = mismatches(dry_run_of(4, "operations=[broadcast]", "sizes=[4KiB]", ranks=[0]))
    assert "ValueError: no such rank" in problem


@pytest.mark.parametrize("n", range(1, 12))
def test_whom_a_rank_meets_is_that_of_the_schedule(n):
    for turn, pairs in enumerate(rounds(n)):
        met = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
        assert [partner(rank, turn, n) for rank in range(n)] == [met.get(rank) for rank in range(n)]


def test_the_verb_says_what_it_checked_and_its_exit_code_tells(monkeypatch, capsys):
    command = ["plan", str(ROOT / "configs/gloo.yaml"), "--simulate", "1024", "--set", "sizes=[1KiB, 64MiB]"]
    assert call(command) == 0
    good = capsys.readouterr().out
    assert "as ranks 0, 512, 1023 of 1024: 6 calls of 2 cases" in good
    assert "at 1024 ranks at most 256 iterations are kept" in good
    monkeypatch.setitem(COLLECTIVES, "all_reduce", changed("all_reduce", sends=(0, 8), receives=(0, 8)))
    assert call([*command, "--rank", "3"]) == 1
    assert "1024 B as rank 3: the call's tensors take" in capsys.readouterr().out
    assert call([*command, "--rank", "1024"]) == 2
    assert call(["plan", str(ROOT / "configs/pairs.yaml"), "--simulate", "1"]) == 3
