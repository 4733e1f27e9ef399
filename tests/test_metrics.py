"""Metrics, synchronisation and scheduling are different cases, really measured, and never mixed."""

import contextlib
import os
import time
from pathlib import Path

import psutil
import pytest

from collbench.machine import host
from collbench.model.records import Machine

MACHINE = Machine("h", 2, 16 * 2**30, 32 * 2**20, 0, {})

BASE = """
backends: [gloo]
world_sizes: [2]
launches: 1
operations: [all_reduce]
sizes: [4KiB]
sampling: {warmup: 2, warmup_seconds: 0, iterations: 10}
timeout: 10s
seed: 1
"""
PAIRS = BASE.replace("all_reduce", "pairwise")


def test_pairs_are_measured_round_by_round(warm):
    (samples,) = warm.measure(PAIRS, "world_sizes=[3]", "sampling.iterations=12").samples
    assert samples.timed.duration_ns.shape == (12, 3)
    # one rank rests in each round, and takes almost no time
    assert (samples.timed.duration_ns.min(axis=1) < samples.timed.duration_ns.max(axis=1) / 2).all()


def test_other_buffers_and_real_time_are_cases_of_their_own(warm):
    fault = "faults=[{do: corrupt, rank: 1, iteration: 5, size: 4KiB}]"
    flushed = warm.measure(BASE, "buffers=flush", "sizes=[4KiB, 1KiB]", fault, code=1)
    other = "scheduling=rr" if host.unsupported_realtime() is None else "buffers=hot"
    runs = {"buffers=flush": flushed.path, other: warm.measure(BASE, other).path}
    assert all(setting in (run / "summary.csv").read_text() for setting, run in runs.items())
    failures = {samples.case.size_bytes: samples.failure for samples in flushed.samples}
    assert failures[1024] is None and failures[4096].kind == "wrong" and "after" in failures[4096].text
    compared = warm("compare", *map(str, runs.values()))
    assert compared.returncode == 3
    assert "no measured case in common" in compared.stderr


def loop_policies(process: psutil.Process) -> list[int]:
    """Return the scheduling policy of each thread of gloo that waits for the network."""
    policies = []
    with contextlib.suppress(OSError, psutil.Error):  # the thread has ended meanwhile
        for thread in process.threads():
            if Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text().strip() == "gloo_tcp_loop":
                policies.append(os.sched_getscheduler(thread.id))
    return policies


@pytest.mark.skipif(host.unsupported_batch() is not None, reason=str(host.unsupported_batch()))
@pytest.mark.parametrize(
    ("scheduling", "policy"), [pytest.param("normal", "SCHED_OTHER", marks=pytest.mark.slow), ("batch", "SCHED_BATCH")]
)
def test_the_loop_threads_of_every_group_have_the_requested_policy(cli, scheduling, policy):
    """Each rank has three groups: the world, the control group, and a subgroup that is made later."""
    sampling = "sampling: {relative_error: 0.00001, seconds_per_case: 1min, max_iterations: 1000000}"
    text = BASE.partition("sampling")[0] + f"{sampling}\ngroups: [world, contiguous:1]\nscheduling: {scheduling}\n"
    run = cli.start("run", cli.config(text), "--no-plots")
    try:
        deadline, by_process = time.monotonic() + 60, []
        while by_process != [{getattr(os, policy)}] * 2 and time.monotonic() < deadline and run.poll() is None:
            time.sleep(0.1)
            every = [loop_policies(process) for process in cli.processes()]
            by_process = [set(policies) for policies in every if len(policies) == 3]
        assert by_process == [{getattr(os, policy)}] * 2
    finally:
        run.kill()
        run.communicate()


def test_a_late_rank_is_named_by_the_command_line(warm):
    warm.measure(BASE, "faults=[{do: late, rank: 1, delay: 20ms}]", "sampling.iterations=40")
    done = warm("diagnose")
    assert done.returncode == 0
    assert "rank 1 of 2 on gloo is late" in done.stdout
    assert '"rank": 1' in warm("diagnose", "--format", "json").stdout
