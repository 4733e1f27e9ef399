"""`make gpu-check` without a GPU: steps on a device run on a simulated one, the others say what they need."""

import pytest

from simulated_device import SimulatedDevice
from tools import gpu_check
from tools.gpu_check import Outcome, Rig, checked

PEAK = 3.35e12


def rig(slower=1.0, event_ns=0):
    device = SimulatedDevice()
    device.log = type("Silent", (list,), {"append": lambda self, what: None})()

    def copy(nbytes):
        return device.call(int(slower * 2 * nbytes / (0.9 * PEAK) * 1e9) - event_ns)

    return Rig(device, lambda cycles: device.enqueue(int(cycles / 1.98)), copy, lambda: None, 0.0, PEAK)


def test_all_fifteen_steps_run_or_say_what_they_need():
    outcomes = list(checked(rig(), None))
    assert len(outcomes) == 15
    of_device = [one for one in outcomes if one.good is not None]
    assert [one.good for one in of_device] == [True] * 5, of_device
    assert all(one.measured == "needs a GPU" and one.expected for one in outcomes if one.good is None)
    assert [one.measured for one in checked(None, None)] == ["needs a GPU"] * 15


def test_a_copy_that_takes_twice_as_long_is_not_as_expected():
    found = {one.step: one.good for one in checked(rig(slower=2.0), None) if one.good is not None}
    assert found.pop("copy of 256 MiB") is found.pop("copy of 1024 MiB") is False
    assert all(found.values())


def test_a_step_that_fails_does_not_keep_the_next_one_from_running():
    broken = rig()
    broken.device.occupy = lambda ns: 1 / 0
    outcomes = [one for one in checked(broken, None) if one.good is not None]
    assert len(outcomes) == 5 and any("ZeroDivisionError" in one.measured for one in outcomes)


def test_the_page_has_expected_beside_measured():
    text = gpu_check.page(
        [Outcome("a step", "1 | 2", "3 | 4", False), Outcome("other", "x", "needs a GPU", None)], "torch"
    )
    assert "| a step" in text and "3 / 4" in text and "**NOT as expected**" in text and "not tried" in text


@pytest.mark.skipif(gpu_check.rig_of(gpu_check.host.machine()) is not None, reason="there is a GPU")
def test_without_a_gpu_it_ends_with_3(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "PAGE", tmp_path / "page.md")
    assert gpu_check.main() == 3
    assert (tmp_path / "page.md").read_text().count("needs a GPU") == 15
