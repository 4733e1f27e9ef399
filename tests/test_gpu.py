"""What only a GPU can show: NCCL at world size 1 (dispatch and event cost), and one rank a GPU where there are more."""

import pytest

from bench.measure import environment

MACHINE = environment.machine()
REASON = MACHINE.backends_missing.get("nccl", "")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif("nccl" in MACHINE.backends_missing, reason=f"needs a GPU: {REASON}")]

NCCL = """
backends: [nccl]
world_sizes: [1, 2]
launches: 1
operations: [all_reduce]
dtypes: [float32, bfloat16]
sizes: [4KiB, 1MiB]
metrics: [isolated, pipelined]
sampling: {warmup: 2, iterations: 20}
"""


def test_nccl_is_measured_with_events_and_host_time(cli):
    done = cli("run", cli.config(NCCL), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    run = cli.only_run()
    assert all(s.failure is None for s in run.samples)
    for samples in run.samples:
        assert (samples.timed.host_ns >= samples.timed.duration_ns).mean() > 0.9
    assert run.environment[0]["launches"][0]["ranks"][0]["nccl"]
    assert "CUDA events" in done.stdout
    assert {s.timed.calls for s in run.samples} == {1, 20}
    assert all(floor > 0 for s in run.samples for floor in s.usage.floor_ns)


def test_a_hang_on_a_gpu_ends_at_its_deadline(cli):
    fault = "faults=[{do: hang, rank: 0, iteration: 4, size: 4KiB}]"
    done = cli(
        "run",
        cli.config(NCCL),
        "--no-plots",
        "--set",
        fault,
        "--set",
        "timeout=5s",
        "--set",
        "dtypes=[float32]",
        "--set",
        "metrics=[isolated]",
    )
    assert done.returncode == 1
    by_size = {s.case.size_bytes: s for s in cli.only_run().samples if s.case.world_size == 1}
    assert by_size[4096].failure.kind == "hang" and by_size[2**20].failure is None
