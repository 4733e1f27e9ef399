"""A plan has every combination once per launch, in an order that its seed fixes, and reports cases left out."""

from dataclasses import replace

import pytest

from collbench.catalog import dtypes, subgroups
from collbench.config.models import parse
from collbench.machine.gpus import NVLINK_DOWN
from collbench.machine.host import UNNAMED_THREADS
from collbench.model.notices import kind_named
from collbench.model.records import Case, Failure, Launch, Machine, Samples
from collbench.packages.interop.cli import flags as nccl_tests_flags
from collbench.packages.training.synchronisation import StepOptions, Strategy
from collbench.planning import cases, footprint
from collbench.planning import plan as planning
from collbench.report.notices import sentence
from conftest import ROOT

MACHINE = Machine("h", 2, 16 * 2**30, 32 * 2**20, 0, {})
BASE = b"backends: [gloo]\nworld_sizes: [2, 4]\noperations: [all_reduce]\nsizes: [4KiB, 1MiB]\nlaunches: 3\n"


def expand(sets=(), machine=MACHINE, seed=1):
    return planning.expand(parse(BASE, "c", sets), machine, seed)


WITHOUT_SIZES = BASE.replace(b"world_sizes: [2, 4]\n", b"")


@pytest.mark.parametrize(
    ("backend", "machine", "sizes"),
    [
        ("gloo", MACHINE, [2]),
        ("gloo", replace(MACHINE, cores=6), [2, 4, 6]),
        ("gloo", replace(MACHINE, cores=1), [2]),
        ("nccl", replace(MACHINE, gpus=8), [2, 4, 8]),
        ("nccl", replace(MACHINE, gpus=0), [1]),
        ("nccl", replace(MACHINE, gpus=16, ranks=16, ranks_a_host=8), [2, 4, 8, 16]),
        ("nccl", replace(MACHINE, gpus=12, ranks=12, ranks_a_host=4), [2, 4, 8, 12]),
        ("gloo", replace(MACHINE, cores=64, ranks=3, ranks_a_host=1), [2, 3]),
    ],
)
def test_default_world_sizes_go_up_to_the_whole_machine(backend, machine, sizes):
    config = parse(WITHOUT_SIZES.replace(b"gloo", backend.encode()), "c", [])
    assert cases.world_sizes(config, machine, backend) == sizes
    plan = planning.expand(config, machine, 1)
    planned = {case.world_size for case in plan.cases} | {skip.case.world_size for skip in plan.skips}
    assert planned == set(sizes)


@pytest.mark.parametrize(("version", "has"), [((2, 8), False), ((2, 11), False), ((2, 12), True), (None, True)])
def test_operations_that_an_older_torch_lacks_are_skipped(version, has):
    plan = expand(["operations=[all_to_all_list]"], replace(MACHINE, torch=version))
    assert bool(plan.cases) is has
    assert has or "has no all_to_all_list; torch 2.12 has it" in sentence(plan.skips[0].reason)


def test_every_combination_is_planned_once_per_launch():
    plan = expand(["dtypes=[float32, int8]", "reduce_ops=[sum, max]"])
    assert len(plan.cases) == 2 * 2 * 2 * 2
    assert plan.total == 3 * len(plan.cases)
    for launch in (1, 2, 3):
        keys = [case.key for block in plan.order if block.number == launch for case in block.cases]
        assert sorted(keys) == sorted(case.key for case in plan.cases)
    for block in plan.order:
        assert {(case.backend, case.world_size) for case in block.cases} == {(block.backend, block.world_size)}


def test_the_seed_fixes_the_order_and_each_launch_has_its_own():
    sets = ["sizes={from: 1KiB, to: 1MiB}", "world_sizes=[2]"]
    assert expand(sets) == expand(sets)
    assert expand(sets, seed=2).order != expand(sets).order
    first, second, *_ = expand(sets).order
    assert first.cases != second.cases


def test_row_by_row_every_launch_goes_from_size_to_size_and_both_placements_share_rounds():
    """The order does not depend on the seed, and the measured cases stay the same."""
    sets = ["operations=[all_gather]", "placements=[in, out]", "sizes=[4KiB, 1KiB, 64KiB]", "launches=3"]
    shuffled = expand(sets)
    plan = planning.row_by_row(shuffled)
    assert plan.cases == shuffled.cases and [launch.number for launch in plan.order] == sorted(
        launch.number for launch in shuffled.order
    )
    for launch in plan.order:
        rows = footprint.batches(launch.cases, plan.settings)
        assert [{case.size_bytes for case in batch} for batch in rows] == [{1024}, {4096}, {65536}]
        assert all(len(batch) == 2 for batch in rows)
        assert len(footprint.batches(launch.cases, shuffled.settings)) == 1


def test_cases_that_do_not_fit_into_memory_are_skipped_with_the_numbers():
    small = replace(MACHINE, memory_available_bytes=4 * 2**30)
    plan = expand(["sizes=[1MB, 1GB]", "world_sizes=[2, 6]"], small)
    (skip,) = plan.skips
    assert (skip.case.world_size, skip.case.size_bytes) == (6, 10**9)
    assert "6 × 1.03 GiB" in sentence(skip.reason) and "3.20 GiB may be used" in sentence(skip.reason)


def test_sides_whose_ranks_cannot_be_alive_at_once_alternate():
    """Sides alternate if a GPU or host cannot hold the ranks of both sides."""
    host = replace(MACHINE, memory_available_bytes=5 * 2**30)
    large, small = (expand([f"sizes=[{size}]", "world_sizes=[2]", "buffers=hot"], host) for size in ("1GB", "1MB"))
    assert "2.06 GiB + 2.06 GiB of memory on a host; 4.00 GiB" in sentence(
        planning.reason_to_alternate([large, large], host)
    )
    assert planning.reason_to_alternate([large, small], host) is None
    gpus = replace(host, gpus=2, gpu_free_bytes=10 * 2**30)
    nccl = expand(["backends=[nccl]", "sizes=[4GB]", "world_sizes=[2]", "buffers=hot"], gpus)
    assert "on a GPU; 8.00 GiB may be used" in sentence(planning.reason_to_alternate([nccl, nccl], gpus))
    assert planning.reason_to_alternate([nccl, large], gpus) is None
    exclusive = replace(gpus, gpu_free_bytes=2**40, gpu_exclusive=True)
    assert "exclusive mode" in sentence(planning.reason_to_alternate([nccl, nccl], exclusive))
    assert planning.reason_to_alternate([large, small], exclusive) is None


def test_cases_that_do_not_fit_into_a_gpu_are_skipped_with_the_numbers():
    """Buffers, data that torch flattens, and all ranks of a GPU count; the memory of the host is not checked."""
    gpus = replace(MACHINE, gpus=2, gpu_free_bytes=10 * 2**30, memory_available_bytes=2**30)
    sets = ["backends=[nccl]", "world_sizes=[2, 8]", "buffers=hot", "oversubscribe_gpu=true"]
    plan = expand([*sets, "operations=[all_reduce, all_gather_list]", "sizes=[1MiB, 4GiB]"], gpus)
    large = [skip for skip in plan.skips if skip.case.size_bytes > 2**30]
    left = {(skip.case.op, skip.case.world_size): sentence(skip.reason) for skip in large}
    assert set(left) == {("all_gather_list", 2), ("all_reduce", 8), ("all_gather_list", 8)}
    assert "needs 1 × 11.0 GiB of memory on a GPU" in left["all_gather_list", 2]
    assert "needs 4 × 5.00 GiB" in left["all_reduce", 8] and "8.00 GiB may be used" in left["all_reduce", 8]
    assert all(case.size_bytes == 2**20 or case.world_size == 2 for case in plan.cases)


def test_perf_needs_one_pair_of_buffers_for_large_sizes_on_gpus():
    flags = {"g": "8", "d": "bfloat16", "b": "8", "e": "8G", "f": "2"}
    eight = replace(MACHINE, gpus=8, gpu_free_bytes=79 * 2**30)
    plan = planning.expand(parse(nccl_tests_flags.translate("all_reduce", flags).encode(), "c"), eight, 1)
    assert plan.skips == () and max(case.size_bytes for case in plan.cases) == 2**33
    assert {footprint.pool_slots(case, 2**26) for case in plan.cases if case.size_bytes >= 2**26} == {1}
    assert {footprint.pool_slots(case, 2**26) for case in plan.cases if case.size_bytes == 2**20} == {64}
    graph = replace(plan.cases[0], metric="graph", buffers="rotate")
    assert footprint.pool_slots(graph, 0) == 20 and footprint.pool_slots(replace(graph, buffers="reused"), 0) == 1
    assert footprint.pool_slots(replace(graph, buffers="reused"), 2**26) == 20
    assert footprint.pool_slots(replace(plan.cases[0], call="async"), 0) == 20


def test_a_graph_has_as_few_hot_buffers_as_its_data_allow_and_a_pipeline_needs_no_refill():
    """A copy of 16 MiB takes an H200 5.7 µs within its cache and 9.9 µs without: twenty buffers are not hot."""
    for dtype in ("float32", "bfloat16", "int8"):
        case = Case("all_reduce", "nccl", 4, dtype, 4096, buffers="hot", metric="graph", depth=20)
        slots = footprint.pool_slots(case, 0)
        assert 20 % slots == 0 and slots * footprint.calls_between_refills(case) >= 20
        assert footprint.pool_slots(replace(case, op="all_gather"), 0) == 1
        assert footprint.pool_slots(replace(case, call="async"), 0) == 20
        pipelined = replace(case, metric="pipelined")
        assert footprint.pool_slots(pipelined, 0) * footprint.calls_between_refills(pipelined) >= 20


NCCL = ["backends=[nccl]", "world_sizes=[1]"]
SHARED = ["backends=[nccl]", "world_sizes=[4]", "oversubscribe_gpu=true"]
ONE_GPU = replace(MACHINE, gpus=1)
NO_MULTICAST = replace(ONE_GPU, registered_missing=NVLINK_DOWN())
AMPERE = replace(ONE_GPU, gpu_capability=80)
ROOMY = replace(MACHINE, memory_available_bytes=2**50)
MPI = ["backends=[mpi]"]
AVERAGES = ["backends=[nccl]", "dtypes=[bfloat16]", "reduce_ops=[avg]"]
UNNAMED = UNNAMED_THREADS(version="2.13")


@pytest.mark.parametrize(
    ("sets", "machine", "reason"),
    [
        ([*SHARED, "env={NCCL_NET: [IB]}"], ONE_GPU, "ranks that share a GPU need NCCL_NET=Socket"),
        ([*NCCL, "memory=[registered]"], NO_MULTICAST, "needs multicast"),
        ([*NCCL, "metrics=[graph]", "operations=[barrier]"], ONE_GPU, "waits on the CPU"),
        ([*NCCL, "dtypes=[complex64]", "operations=[reduce_scatter]"], ONE_GPU, "no reduce_scatter of complex64"),
        ([*NCCL, "dtypes=[float8_e4m3fn]"], AMPERE, "from compute capability 9.0 on; the GPU has 8.0"),
        ([*NCCL, "dtypes=[float8_e5m2]", "reduce_ops=[premul_sum]"], ONE_GPU, "nccl has no premul_sum of float8_e5m2"),
        (NCCL, replace(MACHINE, backends_missing={"nccl": kind_named("no-gpu")()}), "no NVIDIA GPU"),
        (["backends=[nccl]", "world_sizes=[4]"], replace(MACHINE, gpus=2), "this machine has 2"),
        ([*NCCL, "env={NCCL_ALGO: [PAT]}"], ONE_GPU, "write NCCL_ALGO=allgather:pat"),
        (["sizes=[4095]"], MACHINE, "whole number of float32"),
        ([*AVERAGES, "world_sizes=[48]"], replace(ROOMY, gpus=48), "not exact in bfloat16"),
        (["operations=[barrier]", "metrics=[first]"], MACHINE, "metric first is for torch's operations on buffers"),
        (["operations=[init_process_group]", "backends=[mpi]"], MACHINE, "MPI joins its ranks before"),
        ([*MPI, "operations=[all_reduce_coalesced]"], MACHINE, "several buffers"),
        ([*MPI, "dtypes=[bfloat16]"], MACHINE, "mpi copies bfloat16 and does not reduce it"),
        ([*MPI, "operations=[broadcast]", "dtypes=[uint8]", "sizes=[2GiB]"], ROOMY, "at most 2147483647 elements"),
        ([*MPI, "scheduling=rr"], MACHINE, "by polling"),
        ([*MPI, "scheduling=batch"], MACHINE, "has none"),
        ([*NCCL, "scheduling=batch"], ONE_GPU, "has none"),
        (["operations=[new_group]", "scheduling=batch"], MACHINE, "over by then"),
        ([*NCCL, "dtypes=[float8_e5m2]", "reduce_ops=[avg]"], ONE_GPU, "with one rank"),
        (["groups=[contiguous:3]"], MACHINE, "cannot be divided into groups of 3"),
        (["groups=[strided:2:serial]", "metrics=[pipelined]"], MACHINE, "timed call by call"),
        (["operations=[broadcast]", "roots=[9]"], MACHINE, "there is no rank 9"),
        (["operations=[sendrecv_ring]", "groups=[strided:1]"], MACHINE, "ring needs 2 ranks or more"),
        (["memory=[registered]"], MACHINE, "needs NCCL"),
        (["metrics=[graph]"], MACHINE, "metric graph needs GPUs"),
        (["operations=[broadcast]", "placements=[out]"], MACHINE, "works only in place"),
        (["placements=[out]"], MACHINE, "torch's all_reduce works in place"),
        (["operations=[sendrecv_ring]", "calls=[async]"], MACHINE, "no asynchronous call"),
        (["dtypes=[float8_e5m2]"], MACHINE, "gloo has no float8_e5m2"),
        (["dtypes=[int8]", "reduce_ops=[avg]"], MACHINE, "avg is not defined for int8"),
        (["scheduling=batch"], replace(MACHINE, scheduling_missing={"batch": UNNAMED}), "needs torch 2.13 or newer"),
    ],
)
def test_cases_that_cannot_be_measured_are_skipped_with_their_reason(sets, machine, reason):
    plan = expand(sets, machine)
    assert plan.total == 0
    assert all(reason in sentence(skip.reason) for skip in plan.skips)
    assert plan.skips


@pytest.mark.parametrize(
    ("sets", "machine"),
    [
        ([*MPI, "operations=[broadcast]", "dtypes=[float8_e5m2]"], MACHINE),
        ([*MPI, "operations=[broadcast]", "dtypes=[uint8]", f"sizes=[{2**31 - 1}]"], ROOMY),
        ([*AVERAGES, "world_sizes=[1]"], ONE_GPU),
        (["scheduling=batch"], MACHINE),
    ],
)
def test_cases_next_to_these_are_planned(sets, machine):
    assert expand(sets, machine).skips == ()


def test_remaining_is_the_plan_without_the_measured_samples():
    plan = expand()
    done = [Samples(case, launch.number, 0.0) for launch in plan.order[:2] for case in launch.cases]
    remaining = planning.remaining(plan, done)
    assert remaining == [*plan.order[2:]]
    more = [Samples(case, launch.number, 0.0) for launch in remaining for case in launch.cases]
    assert planning.remaining(plan, [*done, *more]) == []


def test_failed_cases_are_done_and_lost_cases_are_not():
    plan = expand()
    *most, last = [Samples(case, launch.number, 0.0) for launch in plan.order for case in launch.cases]
    failed, lost = (replace(last, failure=Failure(kind, None, "why")) for kind in ("hang", "lost"))
    assert planning.remaining(plan, [*most, failed]) == [] and planning.done(plan, [*most, failed]) is None
    (remaining,) = planning.remaining(plan, [*most, lost])
    assert (remaining.cases, remaining.number) == ((last.case,), last.launch)
    assert planning.done(plan, [*most, lost]) == plan.total - 1


def test_strategies_of_a_launch_are_measured_together_or_not_at_all():
    steps = [
        Case("training_step", "gloo", 2, "float32", 0, own=StepOptions(strategy=Strategy(name)))
        for name in ("none", "flat", "naive")
    ]
    plan = replace(expand(), order=(Launch("gloo", 2, 1, tuple(steps)), Launch("gloo", 2, 2, tuple(steps))))
    done = [Samples(case, 1, 0.0) for case in steps]
    failed = Samples(steps[2], 2, 0.0, failure=Failure("hang", 1, "it hung"))
    partly = [*done, Samples(steps[0], 2, 0.0), failed]
    assert planning.remaining(plan, partly) == [Launch("gloo", 2, 2, tuple(steps[:2]))]
    assert planning.remaining(plan, [*partly, Samples(steps[1], 2, 0.0)]) == []


def test_a_pool_is_bounded_and_large_messages_need_none():
    case = Case("all_reduce", "gloo", 2, "float32", 4096)
    assert footprint.pool_slots(case, 64 * 2**20) == 16384
    assert footprint.pool_slots(replace(case, size_bytes=10**9), 64 * 2**20) == 1
    assert footprint.pool_slots(replace(case, buffers="hot"), 64 * 2**20) == 1
    assert footprint.scratch_bytes(replace(case, buffers="flush"), 64 * 2**20) == 64 * 2**20
    assert dtypes.calls_before_refill("bfloat16", "sum", 1024) == 1  # a sum that is not exact causes no endless loop


def test_variables_are_an_axis_with_processes_of_their_own():
    env = "env={GLOO_LOG_LEVEL: [WARN, ERROR], GLOO_DEVICE_TRANSPORT: [TCP]}"
    plan = expand([env, "world_sizes=[2]", "launches=1"])
    assert {str(case.settings) for case in plan.cases} == {
        "GLOO_DEVICE_TRANSPORT=TCP GLOO_LOG_LEVEL=WARN",
        "GLOO_DEVICE_TRANSPORT=TCP GLOO_LOG_LEVEL=ERROR",
    }
    assert len(plan.order) == 2
    assert all(len({case.settings for case in block.cases}) == 1 for block in plan.order)


def test_cases_in_a_graph_share_their_communicator_with_no_other_cases():
    config = parse((ROOT / "configs" / "nccl.yaml").read_bytes(), "c", ["metrics=[isolated, graph]"])
    plan = planning.expand(config, replace(MACHINE, gpus=8, backends_missing={}), 1)
    kinds = [{case.metric == "graph" for case in block.cases} for block in plan.order]
    assert {True} in kinds and {False} in kinds and {True, False} not in kinds


def test_groups_are_in_the_order_of_ranks_as_torch_has_them():
    assert subgroups.divide(subgroups.parse("sets:5,1|0,3"), 8).groups == ((1, 5), (0, 3))


def test_options_that_an_operation_does_not_have_make_no_further_cases():
    sets = ["operations=[barrier, broadcast]", "reduce_ops=[sum, max]", "dtypes=[float32, int8]", "world_sizes=[4]"]
    plan = expand([*sets, "roots=all"])
    by_op = {op: [case for case in plan.cases if case.op == op] for op in ("barrier", "broadcast")}
    assert len(by_op["barrier"]) == 1
    assert len(by_op["broadcast"]) == 2 * 2 * 4
    assert {case.root for case in by_op["broadcast"]} == {0, 1, 2, 3}


def test_sizes_of_shares_are_rounded_down_and_too_small_sizes_are_skipped():
    plan = expand(["operations=[all_gather]", "world_sizes=[3]", "sizes=[8, 1MiB]"])
    assert [case.size_bytes for case in plan.cases] == [2**20 // 48 * 48]
    (skip,) = plan.skips
    assert "8 B is not a whole number of 3 pieces of float32" in sentence(skip.reason)


def test_ranks_share_a_gpu_only_if_requested():
    one_gpu = replace(MACHINE, gpus=1)
    sets = ["backends=[nccl]", "world_sizes=[1, 2]"]
    assert {case.world_size for case in expand(sets, one_gpu).cases} == {1}
    shared = expand([*sets, "oversubscribe_gpu=true"], one_gpu)
    assert {(case.world_size, case.oversubscribed) for case in shared.cases} == {(1, False), (2, True)}
