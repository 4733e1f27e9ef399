"""The data of all ranks together is bounded: larger worlds have fewer iterations, but never too few for an interval."""

from dataclasses import replace

import pytest

from collbench.catalog import subgroups
from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.rules import unsupported_by_backend
from collbench.model.deferred import Deferred
from collbench.model.records import Case, Settings
from collbench.packages.training.synchronisation import StepOptions, Strategy, with_strategy
from collbench.planning import footprint
from collbench.stats import intervals
from conftest import SAMPLING
from test_sampling import FakeRanks, noisy, sample, settings

CASE = Case("all_reduce", "gloo", 2, "float32", 4096)
OWN = StepOptions(strategy=Strategy("flat"), model="tiny")
TRAINING = Case("training_step", "gloo", 2, "float32", 0, metric="pipelined", depth=4, own=OWN)


@pytest.mark.parametrize("n", [2, 64, 131, 132, 1024, 65536])
def test_all_ranks_together_leave_no_more_than_the_bound(n):
    kept = footprint.most_iterations(replace(CASE, world_size=n))
    assert kept >= footprint.FEWEST_ITERATIONS == 2 * intervals.FEWEST_BLOCKS
    assert kept * n <= max(footprint.MAX_STAMP_PAIRS, footprint.FEWEST_ITERATIONS * n)
    assert (kept >= 2000) == (n <= 131)


def test_each_round_and_each_group_has_enough_for_an_interval():
    assert footprint.most_iterations(replace(CASE, op="pairwise", world_size=1024)) == 8 * 1023
    serial = replace(CASE, world_size=65536, groups=subgroups.parse("strided:2:serial"))
    assert footprint.most_iterations(serial) == 8 * 32768


@pytest.mark.parametrize("sampling", [{"iterations": 500}, {"max_iterations": 500, "seconds_per_case": 1e9}])
def test_no_count_and_no_warm_up_exceeds_the_bound(sampling):
    ranks = FakeRanks(noisy(1.5))
    got = sample(settings(warmup=30, warmup_s=1.0, **sampling), ranks, most=50)
    assert (got.stopped_by, len(got.timed.duration_ns)) == ("count", 50)
    assert ranks.blocks[0].warmup == 30


def test_cases_are_measured_together_as_far_as_memory_allows():
    cases = [replace(CASE, size_bytes=size) for size in (1024, 2**20, 2**24, 2**28)]
    rich = Settings(SAMPLING, 1, 60.0, 2**26)
    assert footprint.batches(cases, rich) == [tuple(cases)]
    assert footprint.batches(cases, rich, small_apart=True) == [tuple(cases[:2]), tuple(cases[2:])]
    assert footprint.batches(cases[2:], rich, small_apart=True) == [tuple(cases[2:])]
    mixed = (cases[2], cases[0], cases[3], cases[1])  # the order of plans of tune: separate batches gain nothing
    assert footprint.batches(mixed, rich, small_apart=True) == [mixed]
    poor = replace(rich, batch_bytes=2**28)
    assert footprint.batches(cases, poor) == [tuple(cases[:2]), (cases[2],), (cases[3],)]
    together = footprint.batches([CASE] * 20, replace(rich, pool_bytes=0))
    assert together == [(CASE,) * footprint.MOST_TOGETHER, (CASE,) * 4]


METRICS = ("isolated", "pipelined", "graph")


def test_on_gpus_their_memory_counts_and_not_the_host_s():
    """33 cases of up to 1 GiB among 8 ranks form the largest possible batches, on a host with little memory."""
    cases = [Case("all_reduce", "nccl", 8, "float32", 1024 * 4**k, metric=m) for k in range(11) for m in METRICS]
    settings = Settings(SAMPLING, 1, 60.0, 2**26, batch_bytes=2**28, gpu_batch_bytes=20 * 2**30)
    assert [len(batch) for batch in footprint.batches(cases, settings)] == [16, 16, 1]
    shared = footprint.batches([replace(case, oversubscribed=True) for case in cases], settings)
    assert all(footprint.arena_bytes(batch, 2**26) <= 20 * 2**30 // 8 for batch in shared)


def test_an_operation_of_a_package_with_buffers_has_the_pool_and_one_without_has_not(monkeypatch):
    """With one buffer in place of a pool, a wrong element would be overwritten before it is checked."""
    own = replace(OPERATIONS["all_reduce"], rank=Deferred("packages.none:workloads"))
    monkeypatch.setitem(OPERATIONS, "all_reduce", own)
    assert footprint.pool_slots(CASE, 2**20) == 2**20 // 4096
    assert unsupported_by_backend(replace(CASE, metric="first")).kind == "metric-of-torch"
    monkeypatch.setitem(OPERATIONS, "all_reduce", replace(own, typed=False))
    assert footprint.pool_slots(CASE, 2**20) == 1


def test_training_steps_are_one_batch_and_leave_the_times_of_their_parts():
    steps = [with_strategy(TRAINING, Strategy("overlap_bucket", cap_bytes=cap)) for cap in range(20)]
    assert footprint.batches(steps, Settings(SAMPLING, 1, 60.0, 2**26, batch_bytes=0)) == [tuple(steps)]
    assert footprint.arena_bytes(steps, 2**26) == 0
    # Start, duration, seven parts and four tails, in place of a start and a duration.
    assert footprint.most_iterations(TRAINING) == footprint.most_iterations(CASE) * 2 // (2 + 7 + 4)
