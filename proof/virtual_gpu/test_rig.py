"""CollBench reports the times of the rule on virtual GPUs; `make test-virtual-gpu` runs these tests.

All code between CollBench and the stand-ins is torch's own: its CUDA code, ProcessGroupNCCL, DDP's reducer. Device
times are compared with arithmetic; no test depends on times of this machine.
"""

import contextlib
import mmap
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from collbench.analyze.analysis import analyze
from collbench.store import folders
from proof import virtual
from proof.claim import HOLDS
from proof.virtual_gpu import rig
from proof.virtual_gpu.rig import measured, run
from tools import gpu_check

# Processes that a shell starts in the background ignore Ctrl-C, and their children, too; a test here sends it.
signal.signal(signal.SIGINT, signal.default_int_handler)

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
# One case, which tests measure in many ways.
ONE = """
backends: [nccl]
world_sizes: [2]
launches: 1
operations: [all_reduce]
sizes: [64KiB]
sampling: {warmup: 1, warmup_seconds: 0, iterations: 40}
timeout: 20s
seed: 1
"""


def left() -> list[Path]:
    """Return the segments of shared memory that no process has mapped: killed processes left them."""
    segments = set(Path("/dev/shm").glob("virtual-gpu-*"))
    for maps in Path("/proc").glob("[0-9]*/maps") if segments else ():
        with contextlib.suppress(OSError):  # the process has ended, or belongs to somebody else
            text = maps.read_text()
            segments = {segment for segment in segments if str(segment) not in text}
    return sorted(segments)


@pytest.fixture(autouse=True)
def _only_segments_that_were_left_are_removed(monkeypatch):
    """Tests run side by side: `rig.clean` would remove a segment whose second rank is about to join, and then waits."""
    monkeypatch.setattr(rig, "clean", lambda: [path.unlink(missing_ok=True) for path in left()])


def test_a_mapped_segment_is_in_use():
    path = Path(f"/dev/shm/virtual-gpu-{os.getpid()}")
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert path not in left()
    assert path in left() or not path.exists()  # another worker may have removed it
    path.unlink(missing_ok=True)


# ── times ────────────────────────────────────────────────────────────────────────────────────────
def test_device_times_are_those_of_the_rule(tmp_path):
    measurements, shown = measured(tmp_path, RULE, SWEEP)
    off = {}
    for samples in measurements.samples:
        case, timed = samples.case, samples.timed
        assert samples.failure is None
        reported_us = float(np.median(timed.duration_ns.max(axis=1))) / timed.calls / 1000
        truth_us = rig.collective_us(case.op, case.size_bytes, case.world_size, RULE)
        if abs(reported_us / truth_us - 1) > 0.005:
            off[case.key] = (reported_us, truth_us)
    assert len(measurements.samples) == 5 * 2 * 3 and off == {}
    assert "Virtual GPUs: these times follow a rule" in shown


def test_tails_of_a_training_step_are_those_of_arithmetic():
    """The tails of six strategies, with torch's DDP, follow arithmetic: their last transfers overlap no computation.

    A late host makes a tail longer once; a wrong tail would be wrong each time.
    """
    held, lines = set(), []
    for _ in range(3):
        lines = virtual.training_on(*virtual.LINKS[0])
        assert len(lines) == 6
        held |= {line.says for line in lines if line.outcome == HOLDS}
        if len(held) == 6:
            break
    assert len(held) == 6, lines


# ── results ──────────────────────────────────────────────────────────────────────────────────────
DTYPES = "dtypes=[float32, float8_e5m2]"


def test_every_operation_is_right_and_a_flipped_element_is_found_in_each(tmp_path):
    text = (rig.ROOT / "configs" / "everything.yaml").read_text().replace("[gloo, mpi]", "[nccl]")
    sound, _ = measured(tmp_path, {}, text, "--set", DTYPES)
    assert len(sound.samples) > 60 and not [s.case.key for s in sound.samples if s.failure]
    flipped = tmp_path / "flipped"
    flipped.mkdir()
    harmed, _ = measured(flipped, {"flip_every": 1}, text, "--set", DTYPES, code=1)
    unnoticed = [s.case.key for s in harmed.samples if s.failure is None and s.case.op != "barrier"]
    kinds = {s.failure.kind for s in harmed.samples if s.failure and s.case.dtype != "bytes"}
    assert len(harmed.samples) == len(sound.samples) and unnoticed == [] and kinds == {"wrong"}


def test_a_graph_is_checked_where_its_timed_results_are_not_exact(tmp_path):
    """With `reused` buffers, one call on new data is captured and replayed; 20 sums in bfloat16 cannot be verified."""
    text = ONE.replace("timeout", "dtypes: [bfloat16]\nmetrics: [graph]\nbuffers: reused\ntimeout")
    (sample,) = measured(tmp_path, {"flip_captured@1": 1}, text, code=1)[0].samples
    assert sample.failure.kind == "wrong" and sample.failure.rank == 1 and "after timing" in sample.failure.text


@pytest.mark.slow
def test_every_strategy_trains_the_same_model(tmp_path):
    """The invariants of each strategy are checked before it is timed; two exact strategies give the same bits."""
    text = (rig.ROOT / "configs" / "ddp-strategies.yaml").read_text().replace("[gloo]", "[nccl]")
    sets = ("launches=1", "operations=[]", "training.models=[nano]", "training.links=[real]", "training.rounds=2")
    measurements, shown = measured(tmp_path, {}, text, *(word for text in sets for word in ("--set", text)))
    assert len(measurements.samples) > 12 and not [s.case.key for s in measurements.samples if s.failure], shown


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow  # arrivals depend on this machine's cores, too
def test_a_late_gpu_is_named_and_none_if_all_are_equal(tmp_path):
    for name, rule in {"equal": {}, "late": {"late_us@1": 200}}.items():
        (tmp_path / name).mkdir()
        measurements, shown = measured(tmp_path / name, RULE | rule, ONE)
        named = [finding.rank for finding in analyze(measurements).diagnosis.findings]
        assert named == ([1] if name == "late" else []), shown


def test_a_gpu_with_slow_links_is_named_by_the_pairs_and_none_if_all_are_equal():
    slow, equal = virtual.slow_link(None, 1)
    assert (slow.outcome, equal.outcome) == (HOLDS, HOLDS), (slow, equal)


@pytest.mark.slow
@pytest.mark.skipif(rig.missing_hosts() is not None, reason=str(rig.missing_hosts()))
def test_a_slow_node_of_four_fails_the_gate(tmp_path):
    """With fewer than four nodes, the usual rate would be unknown."""
    (tmp_path / "gate.yaml").write_text(virtual.FLEET)
    rules = [virtual.RULE | {"gpus": 2, "memory_gib": 4, "bus_gbps": 320 if host == 2 else 400} for host in range(4)]
    done = rig.on_hosts(tmp_path, rules, "gate", "gate.yaml")
    assert "FAIL: virtual-2; of 4 nodes" in done.stdout and "virtual GPUs" in done.stdout, done.stdout


@pytest.mark.slow
def test_gpu_check_is_red_in_the_right_step(tmp_path):
    """Only the step with a planted fault fails; all steps on a device are as expected without a fault."""
    copies = {"copy of 256 MiB", "copy of 1 GiB"}
    wrongs = [({}, set()), ({"copy_gbps": 100}, copies), ({"ghz_low": 0.4, "rise_s": 60}, {"calibration"})]
    for rule, red in wrongs:
        # Copies that take several times longer than this machine needs to enqueue them.
        slower = {"gpus": 1, "memory_gib": 12, "copy_gbps": 300, "memory_mhz": 524}
        command = [rig.PYTHON, "-m", "tools.gpu_check", "fork and CUDA", *gpu_check.ON_DEVICE]
        environment = rig.variables(tmp_path, slower | rule)
        gpu_check.PAGE.unlink(missing_ok=True)
        subprocess.run(command, cwd=rig.ROOT, env=environment, capture_output=True, timeout=600)
        page = gpu_check.PAGE.read_text()
        rows = [line.split("|")[1:5] for line in page.splitlines() if line.startswith("| ")]
        verdicts = {step.strip(): verdict.strip() for step, *_, verdict in rows[1:]}
        assert {step for step, verdict in verdicts.items() if verdict != "as expected"} == red, verdicts
        assert "Virtual GPU" in page


# ── failures ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("rule", "fault", "kind", "words"),
    [
        # The fault is in each process that is started, so that both cases fail.
        ({"error_call.all_reduce@1": 9}, "", "raised", "rank 1 raised DistBackendError"),
        ({"async_error_call.all_reduce@1": 9}, "", "raised", "rank 1: NCCL error: remote process exited"),
        ({}, "kill", "killed", "rank 1 was ended by SIGKILL"),
        ({}, "stop", "hang", "rank 1"),
        ({}, "hang", "hang", "rank 1"),
    ],
    ids=["an error of NCCL", "an asynchronous error", "killed", "stopped", "hangs"],
)
def test_the_failure_of_a_rank_is_named_and_other_cases_are_measured(tmp_path, rule, fault, kind, words):
    text = ONE.replace("[64KiB]", "[64KiB, 128KiB]").replace("20s", "8s")
    if fault:
        text += f"faults: [{{do: {fault}, rank: 1, iteration: 4, size: 64KiB}}]\n"
    measurements, shown = measured(tmp_path, RULE | rule, text, code=1)
    failures = [s.failure for s in measurements.samples if s.failure]
    assert len(measurements.samples) == 2 and len(failures) == (1 if fault else 2), shown
    assert all(failure.kind == kind and words in failure.text for failure in failures), failures
    assert not left()


def test_an_interrupted_run_is_resumed_and_leaves_no_process(tmp_path):
    (tmp_path / "c.yaml").write_text(ONE.replace("launches: 1", "launches: 6"))
    variables = rig.variables(tmp_path, {"gpus": 2})
    command = [rig.PYTHON, str(rig.ROOT / "run_bench.py"), "run", "c.yaml", "--no-plots"]
    process = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    while not [p for p in (tmp_path / "results").glob("*/samples.jsonl") if p.stat().st_size]:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130 and psutil.wait_procs(children, timeout=20)[1] == []
    rig.clean()
    done = run(tmp_path, {}, "resume", "c", "--no-plots")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folders.runs(tmp_path / "results")
    assert [s.launch for s in folders.read(path).samples] == [1, 2, 3, 4, 5, 6]


def test_doctor_tries_nccl(tmp_path):
    good, bad = run(tmp_path, {}, "doctor"), run(tmp_path, {"error_call.all_reduce": 2}, "doctor")
    assert good.returncode == 0 and "4 KiB correctly on nccl" in " ".join(good.stdout.split()), good.stdout
    assert bad.returncode == 1 and "no    trial" in bad.stdout, bad.stdout


def test_perf_prints_the_hosts_time_and_the_devices_below(tmp_path):
    done = run(tmp_path, RULE, "perf", "all_reduce", "-b", "1K", "-e", "1K", "--no-plots", "--set", "launches=1")
    (row,) = (line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["1024"])
    device = next(line for line in done.stdout.splitlines() if line.split()[:2] == ["#", "1024"])
    assert "us out of place by a copy, 12.00 us in place" in device, done.stdout
    assert float(row[5]) > 12 and float(row[9]) > 12, done.stdout


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
def test_ab_finds_a_change_of_2_percent_and_none_where_nothing_changed(tmp_path):
    (tmp_path / "c.yaml").write_text(ONE.replace("[64KiB]", "[16MiB]").replace("iterations: 40", "iterations: 8"))
    larger = 2**24 + 0.02 * rig.collective_us("all_reduce", 2**24, 2, RULE) * RULE["bus_gbps"] * 1e3
    for size, verdict in ((2**24, "SAME"), (round(larger / 8) * 8, "SLOWER by 2 %")):
        sides = ("--a", f"sizes=[{2**24}]", "--b", f"sizes=[{size}]") if size != 2**24 else ()
        done = run(tmp_path, RULE, "ab", "c.yaml", *sides, "--min-change", "1%", "--budget", "4min", "--no-plots")
        last = " ".join(done.stdout.rpartition(f"\n{verdict}")[2].split())
        assert f"\n{verdict}" in done.stdout and "virtual GPUs" in last, done.stdout
