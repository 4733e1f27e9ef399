"""`make gpu-check` works without a GPU: device steps run on a simulated device, other steps report what they need."""

import subprocess
import sys
from dataclasses import replace

import pytest

from collbench.catalog.rules import HERE, Facts
from collbench.model.notices import first, kind_named
from collbench.model.records import Case
from simulated_device import SimulatedDevice
from tools import gpu_check
from tools.gpu_check import Rig, checked

PEAK = 3.35e12


def rig(slower=1.0, event_ns=0):
    device = SimulatedDevice()
    device.log = type("Silent", (list,), {"append": lambda self, action: None})()

    def copy(nbytes):
        return device.call(int(slower * 2 * nbytes / (0.9 * PEAK) * 1e9) - event_ns)

    return Rig(device, lambda cycles: device.enqueue(int(cycles / 1.98)), copy, lambda: None, 0.0, PEAK)


def test_all_fifteen_steps_run_or_say_what_they_need():
    outcomes = list(checked(rig, None))
    assert len(outcomes) == 15
    on_device = [outcome for outcome in outcomes if outcome.good is not None]
    assert [outcome.good for outcome in on_device] == [True] * 5, on_device
    assert all(outcome.measured == "needs a GPU" and outcome.expected for outcome in outcomes if outcome.good is None)
    assert [outcome.measured for outcome in checked(lambda: None, None)] == ["needs a GPU"] * 15


def test_a_copy_that_takes_twice_as_long_is_not_as_expected():
    good = {row.step: row.good for row in checked(lambda: rig(slower=2.0), None) if row.good is not None}
    assert good.pop("copy of 256 MiB") is good.pop("copy of 1 GiB") is False
    assert all(good.values())


@pytest.mark.skipif(gpu_check.rig_of(gpu_check.host.machine()) is not None, reason="there is a GPU")
def test_without_a_gpu_it_ends_with_3(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "PAGE", tmp_path / "page.md")
    assert gpu_check.main([]) == 3
    assert (tmp_path / "page.md").read_text().count("needs a GPU") == 15


@pytest.mark.slow
def test_the_modules_and_the_sentence_that_it_looks_for_exist():
    """The modules that the fork server loads can be loaded; a plan gives the expected sentence on too few GPUs."""
    command = [sys.executable, "-c", gpu_check.fork_program()]
    done = subprocess.run(command, cwd=gpu_check.ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == gpu_check.NOT_INITIALIZED == "3" or "libcuda.so.1" in done.stderr, done.stderr
    case = Case("all_reduce", "nccl", 2, "float32", 4096)
    machine = replace(gpu_check.host.machine(), gpus=1, backends_missing={}, torch=None)
    assert first(HERE, Facts(case, machine)) == kind_named("too-few-gpus")(ranks=2, gpus=1)


def test_tests_do_not_put_another_torch_over_that_of_the_system():
    made = subprocess.run(["make", "-nB", "test-gpu", "SYSTEM=1"], cwd=gpu_check.ROOT, capture_output=True, text=True)
    installs = [line for line in made.stdout.splitlines() if " pip install " in line]
    assert installs and not any("-r requirements.txt" in line or "-r requirements-dev.txt" in line for line in installs)
