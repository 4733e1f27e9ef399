"""What CollBench reports on virtual GPUs is what their rule says; `make test-virtual-gpu` runs it."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from bench.store import folders
from proof.virtual_gpu import rig

pytestmark = pytest.mark.skipif(rig.missing() is not None, reason=str(rig.missing()))
RULE = {"latency_us": 12.0, "bus_gbps": 400.0}
SWEEP = """
backends: [nccl]
world_sizes: [2]
launches: 1
operations: [all_reduce, all_gather, reduce_scatter, broadcast, all_to_all]
sizes: [1KiB, 1MiB]
metrics: [isolated, pipelined, graph]
sampling: {warmup: 1, warmup_seconds: 0, iterations: 12}
timeout: 60s
seed: 1
"""


def measured(folder: Path, rule: dict[str, object], text: str, code: int = 0):
    """The run of a configuration on virtual GPUs, and what was printed."""
    (folder / "c.yaml").write_text(text)
    command = [rig.PYTHON, rig.ROOT / "run_bench.py", "run", "c.yaml", "--no-plots"]
    variables = rig.variables(folder, {"gpus": 2, **rule})
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=600)
    rig.clean()
    assert done.returncode == code, done.stdout + done.stderr
    (path,) = folders.runs(folder / "results")
    return folders.read(path), done.stdout + done.stderr


def test_device_times_are_those_of_the_rule(tmp_path):
    run, _ = measured(tmp_path, RULE, SWEEP)
    off = {}
    for samples in run.samples:
        case, timed = samples.case, samples.timed
        assert samples.failure is None
        reported_us = float(np.median(timed.duration_ns.max(axis=1))) / timed.calls / 1000
        truth_us = rig.collective_us(case.op, case.size_bytes, case.world_size, RULE)
        if abs(reported_us / truth_us - 1) > 0.005:
            off[case.key] = (reported_us, truth_us)
    assert len(run.samples) == 5 * 2 * 3 and off == {}


def test_a_flipped_element_is_wrong(tmp_path):
    text = SWEEP.replace("[1KiB, 1MiB]", "[1KiB]").replace("[isolated, pipelined, graph]", "[isolated]")
    text = text.replace("[all_reduce, all_gather, reduce_scatter, broadcast, all_to_all]", "[all_gather]")
    # The first all-gather of the control of ranks is not NCCL's: the first call of the case is its verification.
    run, shown = measured(tmp_path, {**RULE, "flip_call.all_gather@1": 1}, text, code=1)
    assert [samples.failure.kind for samples in run.samples] == ["wrong"] and "rank 1" in shown
