"""Facts about GPUs from NVML: which there are, their links, their present clocks. Loads no torch.

A value that a card does not support is "not available".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.records import NOT_AVAILABLE, Json

# Maximum number of NVLinks of a GPU in NVML (NVML_NVLINK_MAX_LINKS).
MOST_NVLINKS = 18


def visible(chosen: str | None) -> list[Any]:
    """Handles of the GPUs that CUDA_VISIBLE_DEVICES (`chosen`; None: not set) leaves; empty without a driver."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        if chosen is None:
            return handles
        wanted = [part.strip() for part in chosen.split(",")]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
        picked = []
        for part in wanted:  # CUDA stops at the first entry that it does not know
            match = [i for i, uuid in enumerate(uuids) if str(i) == part or (part and uuid.startswith(part))]
            if not match:
                break
            picked.append(handles[match[0]])
        return picked


def facts(handle: Any) -> Json:
    """Facts that do not change during a run."""
    with _nvml() as nvml:
        return {
            "name": _asked(nvml.nvmlDeviceGetName, handle),
            "uuid": _asked(nvml.nvmlDeviceGetUUID, handle),
            "memory_bytes": _asked(lambda h: nvml.nvmlDeviceGetMemoryInfo(h).total, handle),
            "driver": _asked(lambda _: nvml.nvmlSystemGetDriverVersion(), handle),
            "ecc": _asked(lambda h: nvml.nvmlDeviceGetEccMode(h)[0], handle),
            "mig": _asked(lambda h: nvml.nvmlDeviceGetMigMode(h)[0], handle),
            "power_limit_mw": _asked(nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            "most_sm_clock_mhz": _asked(lambda h: nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM), handle),
            # The maxima, not the present values: an idle card trains its link down.
            "pcie_generation": _asked(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            "pcie_width": _asked(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            "nvlinks": _nvlinks(nvml, handle),
        }


def state(handle: Any) -> Json:
    """Values that change during a run: read them before and after."""
    with _nvml() as nvml:
        return {
            "sm_clock_mhz": _asked(lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM), handle),
            "memory_clock_mhz": _asked(lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM), handle),
            "power_mw": _asked(nvml.nvmlDeviceGetPowerUsage, handle),
            "temperature_c": _asked(lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU), handle),
            "throttle_reasons": _asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        }


def _nvlinks(nvml: Any, handle: Any) -> list[int]:
    """The version of each NVLink that is up (0 if not available); empty on a card without NVLink."""
    versions = []
    for link in range(MOST_NVLINKS):
        if _asked(lambda h, link=link: nvml.nvmlDeviceGetNvLinkState(h, link), handle) == 1:
            version = _asked(lambda h, link=link: nvml.nvmlDeviceGetNvLinkVersion(h, link), handle)
            versions.append(version if isinstance(version, int) else 0)
    return versions


@contextmanager
def _nvml() -> Iterator[Any]:
    """The NVML module, initialised, or None where there is no driver."""
    try:
        import pynvml  # imported here: most commands need no GPU facts

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, or a driver that fails to start: no GPU can be used
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _asked(question: Any, handle: Any) -> Any:
    try:
        return question(handle)
    except Exception:  # each NVML call may be unsupported by a card
        return NOT_AVAILABLE
