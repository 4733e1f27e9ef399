"""Tests that need a GPU. World 1: dispatch, events, graphs. Several ranks on one GPU: every operation is right,
hangs and kills end. One rank per GPU if there are more: real exchanges."""

import pytest

from collbench.catalog.collectives import CALLS
from collbench.catalog.dtypes import DTYPES
from collbench.machine import host

MACHINE = host.machine()
REASON = MACHINE.backends_missing.get("nccl", "")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif("nccl" in MACHINE.backends_missing, reason=f"needs a GPU: {REASON}")]

NCCL = """
backends: [nccl]
world_sizes: [1, 2]
launches: 1
operations: [all_reduce]
dtypes: [float32, bfloat16]
sizes: [4KiB, 1MiB]
metrics: [isolated, pipelined, graph]
sampling: {warmup: 2, iterations: 20}
"""
SHARED = f"""
backends: [nccl]
world_sizes: [2, 4]
launches: 1
operations: [{", ".join(CALLS)}]
sizes: [96KiB]
buffers: hot
oversubscribe_gpu: true
sampling: {{warmup: 1, warmup_seconds: 0, iterations: 6}}
timeout: 60s
"""


def measured(cli, config, *sets, timeout=300, code=0):
    """Run a configuration; return the run and the output. With code 0, no case may fail."""
    words = [word for text in sets for word in ("--set", text)]
    done = cli("run", cli.config(config), "--no-plots", *words, timeout=timeout)
    assert done.returncode == code, done.stdout + done.stderr
    run = cli.only_run()
    assert run.samples
    assert code or not {s.case.key: s.failure for s in run.samples if s.failure is not None}
    return run, done.stdout


def test_nccl_is_measured_with_events_and_host_time(cli):
    run, _ = measured(cli, NCCL)
    for samples in run.samples:
        assert (samples.timed.host_ns >= samples.timed.duration_ns).mean() > 0.9
    assert run.environment[0]["launches"][0]["ranks"][0]["nccl"]
    assert "CUDA events" in (cli.folder / "results" / run.name / "report.md").read_text()
    assert {(s.case.metric, s.timed.calls) for s in run.samples} == {("isolated", 1), ("pipelined", 20), ("graph", 20)}
    assert all(floor > 0 for s in run.samples for floor in s.usage.floor_ns)


def test_every_operation_is_right_with_several_ranks_on_one_gpu(cli):
    run, text = measured(cli, SHARED, timeout=900)
    assert {case.op for case in run.plan.cases} == set(CALLS)
    if MACHINE.gpus == 1:
        assert all(case.oversubscribed for case in run.plan.cases)
        assert "shared a GPU" in text


def test_every_dtype_is_right_with_several_ranks_on_one_gpu(cli):
    sets = ["world_sizes=[2]", "operations=[all_reduce, all_gather]", f"dtypes=[{', '.join(DTYPES)}]"]
    measured(cli, SHARED, *sets, timeout=600)


def test_faults_with_several_ranks_on_one_gpu_are_recorded_and_cost_their_cases_only(cli):
    kinds = {"kill": "killed", "hang": "hang", "corrupt": "wrong"}
    planted = [f"{{do: {do}, rank: 1, iteration: 4, size: {size}KiB}}" for size, do in enumerate(kinds, 1)]
    sets = ["world_sizes=[2]", "operations=[all_reduce]", "timeout=20s", "sizes=[1KiB, 2KiB, 3KiB, 4KiB]"]
    run, _ = measured(cli, SHARED, *sets, f"faults=[{', '.join(planted)}]", code=1)
    failures = {s.case.size_bytes // 1024: s.failure and s.failure.kind for s in run.samples}
    assert failures == {**dict(enumerate(kinds.values(), 1)), 4: None}


def test_algorithms_and_blocks_are_axes(cli):
    sets = ["world_sizes=[1]", "metrics=[isolated]", "env={NCCL_ALGO: [Ring, Tree]}"]
    run, _ = measured(cli, NCCL, *sets)
    assert {str(s.case.settings) for s in run.samples} == {f"NCCL_ALGO={algorithm}" for algorithm in ("Ring", "Tree")}


def test_registered_buffers_are_right(cli):
    run, _ = measured(cli, NCCL, "world_sizes=[1]", "metrics=[isolated]", "memory=[plain, registered]")
    able = {"plain", "registered"} if MACHINE.registered_missing is None else {"plain"}
    assert {s.case.memory for s in run.samples} == able


def test_a_hang_on_a_gpu_ends_at_its_deadline(cli):
    fault = "faults=[{do: hang, rank: 0, iteration: 4, size: 4KiB}]"
    run, _ = measured(cli, NCCL, fault, "timeout=5s", "dtypes=[float32]", "metrics=[isolated]", code=1)
    by_size = {s.case.size_bytes: s for s in run.samples if s.case.world_size == 1}
    assert by_size[4096].failure.kind == "hang" and by_size[2**20].failure is None
