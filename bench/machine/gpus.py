"""Facts about GPUs from NVML: which there are, their links, their present state, what they have counted. No torch.

A value that a card does not support is "not available". NVML is initialised once a process, because handles do not
outlive a shutdown.
"""

import atexit
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from bench.model.records import NOT_AVAILABLE, Json

# Most NVLinks of a GPU that nvidia-ml-py 13 knows (NVML_NVLINK_MAX_LINKS).
MOST_NVLINKS = 36
# Fields of NVML: data sent and received over all NVLinks, in KiB.
NVLINK_SENT, NVLINK_RECEIVED = 138, 139
ALL_LINKS = 0xFFFFFFFF
# NVML_DEVICE_ARCH_HOPPER.
HOPPER = 9
# Why clocks are below what was asked for, as NVML counts it: name → NVML_PERF_POLICY_*, in ns.
HELD_BACK = {"power": 0, "thermal": 1, "board": 3, "reliability": 5}


def visible(chosen: str | None) -> list[Any]:
    """Handles of the GPUs that CUDA_VISIBLE_DEVICES (`chosen`; None: not set) leaves; empty without a driver.

    As CUDA reads it: an index, or the beginning of a UUID that only one GPU has; it stops at the first entry that it
    does not know, and a GPU that is named twice leaves none. Of a GPU that is divided (MIG), an instance is used: the
    first one, unless its UUID is named; without a choice only one instance of all.
    """
    nvml = _nvml()
    if nvml is None:
        return []
    gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    instances = [list(_instances(nvml, gpu)) for gpu in gpus]
    if chosen is None:
        every = [parts[0] if parts else gpu for gpu, parts in zip(gpus, instances, strict=True)]
        return [next(parts[0] for parts in instances if parts)] if any(instances) else every
    by_uuid = {_asked(lambda h: nvml.nvmlDeviceGetUUID(h), one): one for one in (*gpus, *itertools.chain(*instances))}
    picked: list[str] = []
    for part in (part.strip() for part in chosen.split(",")):
        uuids = [uuid for uuid in by_uuid if part and str(uuid).startswith(part)]
        if part.isdecimal() and int(part) < len(gpus):
            uuids = [_asked(lambda h: nvml.nvmlDeviceGetUUID(h), gpus[int(part)])]
        if len(uuids) != 1:
            break
        whole = next((n for n, gpu in enumerate(gpus) if by_uuid[uuids[0]] is gpu), None)
        if whole is not None and instances[whole]:
            uuids = [_asked(lambda h: nvml.nvmlDeviceGetUUID(h), instances[whole][0])]
        picked += uuids
    return [] if len(set(picked)) < len(picked) else [by_uuid[uuid] for uuid in picked]


def _instances(nvml: Any, gpu: Any) -> Iterator[Any]:
    """The instances into which a GPU is divided; none if it is not."""
    count = _asked(lambda h: nvml.nvmlDeviceGetMaxMigDeviceCount(h), gpu)
    for number in range(count if isinstance(count, int) else 0):
        instance = _asked(lambda g, n=number: nvml.nvmlDeviceGetMigDeviceHandleByIndex(g, n), gpu)
        if instance != NOT_AVAILABLE:
            yield instance


def facts(handle: Any) -> Json:
    """Facts that do not change during a run."""
    nvml = _nvml()
    return {
        "name": _asked(lambda h: nvml.nvmlDeviceGetName(h), handle),
        "uuid": _asked(lambda h: nvml.nvmlDeviceGetUUID(h), handle),
        "memory_bytes": _asked(lambda h: nvml.nvmlDeviceGetMemoryInfo(h).total, handle),
        "driver": _asked(lambda _: nvml.nvmlSystemGetDriverVersion(), handle),
        "ecc": _asked(lambda h: nvml.nvmlDeviceGetEccMode(h)[0], handle),
        "mig": _asked(lambda h: nvml.nvmlDeviceGetMigMode(h)[0], handle),
        "power_limit_mw": _asked(lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h), handle),
        "most_sm_clock_mhz": _asked(lambda h: nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM), handle),
        # The maxima, not the present values: an idle card trains its link down.
        "pcie_generation": _asked(lambda h: nvml.nvmlDeviceGetMaxPcieLinkGeneration(h), handle),
        "pcie_width": _asked(lambda h: nvml.nvmlDeviceGetMaxPcieLinkWidth(h), handle),
        "nvlinks": _nvlinks(nvml, handle),
    }


def state(handle: Any) -> Json:
    """Values that change during a run: read them before, meanwhile, and after."""
    nvml = _nvml()
    return {
        "sm_clock_mhz": _asked(lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM), handle),
        "memory_clock_mhz": _asked(lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM), handle),
        "power_mw": _asked(lambda h: nvml.nvmlDeviceGetPowerUsage(h), handle),
        "temperature_c": _asked(lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU), handle),
        "throttle_reasons": _asked(lambda h: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h), handle),
    }


def counted(handle: Any) -> dict[str, int]:
    """What the card has counted since it was started, as far as it does; differences tell what passed meanwhile."""
    nvml = _nvml()
    questions: dict[str, Any] = {
        "energy_mj": lambda h: nvml.nvmlDeviceGetTotalEnergyConsumption(h),
        "pcie_replays": lambda h: nvml.nvmlDeviceGetPcieReplayCounter(h),
        "uncorrected_errors": lambda h: nvml.nvmlDeviceGetTotalEccErrors(
            h, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        **{
            f"held_back_{why}_ns": lambda h, policy=policy: nvml.nvmlDeviceGetViolationStatus(h, policy).violationTime
            for why, policy in HELD_BACK.items()
        },
        **{
            f"nvlink_{which}_kib": lambda h, field=field: (
                nvml.nvmlDeviceGetFieldValues(h, [(field, ALL_LINKS)])[0].value.ullVal
            )
            for which, field in (("sent", NVLINK_SENT), ("received", NVLINK_RECEIVED))
        },
    }
    found = {name: _asked(question, handle) for name, question in questions.items()}
    return {name: value for name, value in found.items() if isinstance(value, int)}


def unsupported_registration(handle: Any) -> str | None:
    """Why NCCL's allocator, which torch uses only where memory can be multicast, will refuse; None if it may work."""
    architecture = _asked(lambda h: _nvml().nvmlDeviceGetArchitecture(h), handle)
    if isinstance(architecture, int) and architecture < HOPPER:
        name = _asked(lambda h: _nvml().nvmlDeviceGetName(h), handle)
        return f"registered memory needs multicast over NVSwitch, from Hopper on; {name} has none"
    return None


def capability(handle: Any) -> int | None:
    """Compute capability, such as 90 for 9.0; None if it cannot be read."""
    found = _asked(lambda h: _nvml().nvmlDeviceGetCudaComputeCapability(h), handle)
    return 10 * found[0] + found[1] if isinstance(found, tuple | list) else None


def free_bytes(handle: Any) -> int | None:
    """Memory of the GPU that nobody uses; None if it cannot be read. CUDA itself would make a context to tell it."""
    found = _asked(lambda h: _nvml().nvmlDeviceGetMemoryInfo(h).free, handle)
    return found if isinstance(found, int) else None


def _nvlinks(nvml: Any, handle: Any) -> list[int]:
    """The version of each NVLink that is up (0 if not available); empty on a card without NVLink."""
    versions = []
    for link in range(MOST_NVLINKS):
        if _asked(lambda h, link=link: nvml.nvmlDeviceGetNvLinkState(h, link), handle) == 1:
            version = _asked(lambda h, link=link: nvml.nvmlDeviceGetNvLinkVersion(h, link), handle)
            versions.append(version if isinstance(version, int) else 0)
    return versions


@functools.cache
def _nvml() -> Any:
    """The NVML module, initialised, or None where there is no driver."""
    try:
        import pynvml  # imported here: most commands need no GPU facts

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, or a driver that fails to start: no GPU can be used
        return None
    atexit.register(pynvml.nvmlShutdown)
    return pynvml


def _asked(question: Any, handle: Any) -> Any:
    try:
        return question(handle)
    except Exception:  # each NVML call may be unsupported by a card
        return NOT_AVAILABLE
