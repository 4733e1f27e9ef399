"""A plan has every combination once per launch, in an order that its seed fixes, and reports cases left out."""

from dataclasses import replace

import pytest

from collbench.config.models import parse
from collbench.machine.gpus import NVLINK_DOWN
from collbench.machine.host import UNNAMED_THREADS
from collbench.model.notices import kind_named
from collbench.model.records import Failure, Machine, Samples
from collbench.planning import cases
from collbench.planning import plan as planning
from collbench.report.notices import sentence

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
