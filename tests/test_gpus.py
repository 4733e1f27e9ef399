"""GPUs as NVML reports them: handles that die at a shutdown, choices as CUDA reads them, and effects of a launch."""
# ruff: noqa: N802 - names of NVML

import sys
import time
from types import SimpleNamespace

import pytest

from collbench.machine import gpus, host
from collbench.machine.gpus import NVLINK_DOWN
from collbench.report.notices import sentence


class FakeNvml:
    """Two GPUs whose handles are useless after `nvmlShutdown`; GPUs with a number in `mig` are divided into two."""

    NVML_CLOCK_SM = NVML_CLOCK_MEM = NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 0

    def __init__(self, mig=()):
        self.era, self.inits, self.energy, self.clocks = 0, 0, 0, [1980]
        self.uuids = ["GPU-aa11", "GPU-ab22"]
        self.instances = {self.uuids[number]: [f"MIG-{number}x", f"MIG-{number}y"] for number in mig}
        self.nvmlDeviceGetCount = lambda: len(self.uuids)
        self.nvmlDeviceGetHandleByIndex = lambda number: (self.era, self.uuids[number])
        self.nvmlDeviceGetUUID = lambda handle: self._alive(handle)[1]
        self.nvmlDeviceGetIndex = lambda handle: self.uuids.index(handle[1])
        self.nvmlSystemGetCudaDriverVersion = lambda: 12_040
        self.nvmlSystemGetDriverVersion = lambda: "550.54"
        self.nvmlDeviceGetMaxMigDeviceCount = lambda handle: len(self.instances.get(handle[1], []))
        self.nvmlDeviceGetMigDeviceHandleByIndex = lambda handle, n: (self.era, self.instances[handle[1]][n])
        self.nvmlDeviceGetMemoryInfo = lambda handle: self._alive(handle) and SimpleNamespace(total=80, free=70)
        self.nvmlDeviceGetCudaComputeCapability = lambda handle: self._alive(handle) and (9, 0)
        self.nvmlDeviceGetTotalEnergyConsumption = lambda handle: self.energy
        self.nvmlDeviceGetClockInfo = lambda handle, which: self.clocks.pop(0) if self.clocks[1:] else self.clocks[0]
        self.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x1 | 0x4

    def _alive(self, handle):
        assert handle[0] == self.era, "this handle did not outlive a shutdown"
        return handle

    def nvmlInit(self):
        self.inits += 1

    def nvmlShutdown(self):
        self.era += 1


@pytest.fixture
def nvml(monkeypatch):
    def installed(**options):
        fake = FakeNvml(**options)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        gpus._nvml.cache_clear()
        return fake

    yield installed
    gpus._nvml.cache_clear()


def uuids(handles):
    return [handle[1] for handle in handles]


def test_it_is_initialised_once_so_that_handles_live(nvml):
    fake = nvml()
    first = gpus.visible(None)
    assert gpus.facts(first[0])["uuid"] == "GPU-aa11" and gpus.free_bytes(first[1]) == 70
    assert uuids(gpus.visible(None)) == uuids(first) and fake.inits == 1 and fake.era == 0


@pytest.mark.parametrize(
    ("chosen", "mig", "visible"),
    [
        (None, (), ["GPU-aa11", "GPU-ab22"]),
        ("1", (), ["GPU-ab22"]),
        ("1,0", (), ["GPU-ab22", "GPU-aa11"]),
        ("GPU-aa", (), ["GPU-aa11"]),
        ("GPU-a", (), []),  # two UUIDs begin like this
        ("0,7,1", (), ["GPU-aa11"]),  # CUDA stops at an unknown number
        ("0,-1,1", (), ["GPU-aa11"]),
        ("0,0", (), []),
        ("", (), []),
        (None, (0,), ["MIG-0x"]),
        ("0", (0,), ["MIG-0x"]),
        ("MIG-0y", (0,), ["MIG-0y"]),
        ("1", (0,), ["GPU-ab22"]),
    ],
)
def test_a_choice_is_read_as_cuda_reads_it(nvml, chosen, mig, visible):
    nvml(mig=mig)
    assert uuids(gpus.visible(chosen)) == visible


def test_a_launch_records_its_effects_on_gpus_and_adapters(nvml, monkeypatch, tmp_path):
    """The record has differences of counters and the worst values in between; before and after, GPUs are idle."""
    monkeypatch.setattr(gpus, "LOOK_EVERY_S", 0.01)
    fake = nvml()
    counters = tmp_path / "mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "port_xmit_data").write_text("100\n")
    (counters / "symbol_error").write_text("2\n")
    fake.clocks = [1980, 1200, 1980]
    with gpus.HealthMeter(gpus.visible("0"), tmp_path) as meter:
        fake.energy = 250
        (counters / "port_xmit_data").write_text("1100\n")
        deadline = time.monotonic() + 20
        while "sm_clock_mhz" not in meter._worst[0] or len(fake.clocks) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    gpu = meter.record["gpus"]["0"]
    assert gpu["energy_mj"] == 250 and gpu["throttle_reasons"] == 0x4
    assert meter.record["infiniband"] == {"mlx5_0/1": {"port_xmit_data": 1000}}


def test_a_launch_records_tcp_segments_that_were_sent_again(monkeypatch, tmp_path):
    counts = iter([{"segments": 100, "segments_again": 1}, {"segments": 900, "segments_again": 41}])
    monkeypatch.setattr(gpus.network, "tcp_counters", lambda: next(counts))
    with gpus.HealthMeter([], tmp_path) as meter:
        pass
    assert meter.record == {"tcp": {"all": {"segments": 800, "segments_again": 40}}}


@pytest.mark.parametrize(("built_for", "newer"), [("13.2", True), ("12.8", False), (None, False)])
def test_a_driver_that_is_too_old_for_torch_is_reported_before_any_launch(nvml, built_for, newer):
    nvml()
    assert gpus.driver() == {"version": "550.54", "cuda": "12.4"}
    reason = host.old_driver(built_for, gpus.driver())
    assert (reason is not None) is newer
    assert not newer or "driver 550.54 runs CUDA 12.4" in sentence(reason)
    build = {"version": "2.15", "cuda": built_for, "hip": None}
    assert built_for is None or (host.missing_backends(build, 1).get("nccl") == reason)


def test_registered_memory_needs_a_link_that_is_up(nvml):
    """A virtual machine with one H200 of eight has no such link, and NCCL's allocator refuses there."""
    fake = nvml()
    (gpu, _) = gpus.visible(None)
    fake.nvmlDeviceGetNvLinkState = lambda handle, link: 0
    assert gpus.unsupported_registration(gpu) == NVLINK_DOWN()
    fake.nvmlDeviceGetNvLinkState = lambda handle, link: int(link == 3)
    assert gpus.unsupported_registration(gpu) is None
