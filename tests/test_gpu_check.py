"""`make gpu-check` without a GPU: steps on a device run on a simulated one, the others say what they need."""

import subprocess
import sys
from dataclasses import replace

import pytest

from bench.model.notices import SkipNotice, notice
from bench.model.records import Case
from bench.planning.cases import unsupported_here
from simulated_device import SimulatedDevice
from tools import gpu_check
from tools.gpu_check import Rig, checked

PEAK = 3.35e12


def rig(slower=1.0, event_ns=0):
    device = SimulatedDevice()
    device.log = type("Silent", (list,), {"append": lambda self, what: None})()

    def copy(nbytes):
        return device.call(int(slower * 2 * nbytes / (0.9 * PEAK) * 1e9) - event_ns)

    return Rig(device, lambda cycles: device.enqueue(int(cycles / 1.98)), copy, lambda: None, 0.0, PEAK)


def test_all_fifteen_steps_run_or_say_what_they_need():
    outcomes = list(checked(rig, None))
    assert len(outcomes) == 15
    of_device = [one for one in outcomes if one.good is not None]
    assert [one.good for one in of_device] == [True] * 5, of_device
    assert all(one.measured == "needs a GPU" and one.expected for one in outcomes if one.good is None)
    assert [one.measured for one in checked(lambda: None, None)] == ["needs a GPU"] * 15


def test_a_copy_that_takes_twice_as_long_is_not_as_expected():
    found = {one.step: one.good for one in checked(lambda: rig(slower=2.0), None) if one.good is not None}
    assert found.pop("copy of 256 MiB") is found.pop("copy of 1024 MiB") is False
    assert all(found.values())


@pytest.mark.skipif(gpu_check.rig_of(gpu_check.host.machine()) is not None, reason="there is a GPU")
def test_without_a_gpu_it_ends_with_3(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "PAGE", tmp_path / "page.md")
    assert gpu_check.main([]) == 3
    assert (tmp_path / "page.md").read_text().count("needs a GPU") == 15


@pytest.mark.slow
def test_what_it_looks_for_is_there():
    """The modules that the fork server loads can be loaded; the sentence on too few GPUs is the one that is said."""
    done = subprocess.run(
        [sys.executable, "-c", gpu_check.fork_program()], cwd=gpu_check.ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == gpu_check.NOT_INITIALIZED or "libcuda.so.1" in done.stderr, done.stderr
    case = Case("all_reduce", "nccl", 2, "float32", 4096)
    machine = replace(gpu_check.host.machine(), gpus=1, backends_missing={}, torch=None)
    assert unsupported_here(case, machine) == notice(SkipNotice.TOO_FEW_GPUS, ranks=2, gpus=1)


def test_tests_do_not_put_another_torch_over_that_of_the_system():
    made = subprocess.run(["make", "-nB", "test-gpu", "SYSTEM=1"], cwd=gpu_check.ROOT, capture_output=True, text=True)
    installs = [line for line in made.stdout.splitlines() if " pip install " in line]
    assert installs and not any("-r requirements.txt" in line or "-r requirements-dev.txt" in line for line in installs)
