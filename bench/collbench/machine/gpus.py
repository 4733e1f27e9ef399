"""Read facts about GPUs from NVML: visible GPUs, their links, their state, and changes during a launch. No torch.

In: the value of CUDA_VISIBLE_DEVICES, handles of GPUs. Out: JSON. A value that a card does not support is "not
available". NVML is initialised once per process, because handles do not outlive a shutdown.
"""

import atexit
import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from collbench.machine import network
from collbench.model.notices import Kind, Notice
from collbench.model.records import NOT_AVAILABLE, Json

# Most NVLinks of a GPU that nvidia-ml-py 13 knows (NVML_NVLINK_MAX_LINKS).
MOST_NVLINKS = 36
# Fields of NVML: data sent and received over all NVLinks, in KiB.
NVLINK_SENT, NVLINK_RECEIVED = 138, 139
ALL_LINKS = 0xFFFFFFFF
# Compute capabilities: from 9.0 on NVSwitch can multicast, but GPUs of 12.0 (RTX 50, RTX PRO) have no NVLink.
HOPPER, CONSUMER_BLACKWELL = 90, 120
# Reasons for clocks below the requested clock; NVML counts the ns of each: name → NVML_PERF_POLICY_*.
HELD_BACK = {"power": 0, "thermal": 1, "board": 3, "reliability": 5}
INFINIBAND = Path("/sys/class/infiniband")
# Counters of a port: data in words of 4 bytes, waits in ticks, and errors.
PORT_COUNTERS = (
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_wait",
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "port_rcv_errors",
    "port_xmit_discards",
)
# Interval between two readings of the GPUs, in seconds: NVML answers within 0.1 ms.
LOOK_EVERY_S = 1.0
# NVML's throttle reasons that only mean that no higher clock is requested: idle, and clocks set by the user.
HARMLESS_REASONS = 0x1 | 0x2


@functools.cache
def _nvml() -> Any:
    """Return the initialised NVML module; None without a driver."""
    try:
        import pynvml  # deferred import: most commands need no GPU facts

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, or a driver that fails to start: no GPU can be used
        return None
    atexit.register(pynvml.nvmlShutdown)
    return pynvml


def _ask(question: Callable[..., Any]) -> Any:
    """Return the answer of NVML; "not available" if NVML gives none."""
    try:
        return question(_nvml())
    except Exception:  # each NVML call may be unsupported by a card
        return NOT_AVAILABLE


def visible(chosen: str | None) -> list[Any]:
    """Return handles of the GPUs that CUDA_VISIBLE_DEVICES (`chosen`; None: not set) allows; empty without a driver.

    Entries are read as CUDA reads them: an index, or the beginning of a UUID that only one GPU has. Reading stops at an
    unknown entry; if a GPU is named twice, no GPU is visible. A divided GPU (MIG) gives one instance: the first, unless
    an instance is named by its UUID. Without a choice, divided GPUs give one instance in total.
    """
    nvml = _nvml()
    if nvml is None:
        return []
    gpus = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    instances: list[list[Any]] = []
    for gpu in gpus:
        most = _ask(lambda n, gpu=gpu: n.nvmlDeviceGetMaxMigDeviceCount(gpu))
        handles = [
            _ask(lambda n, gpu=gpu, number=number: n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number))
            for number in range(most if isinstance(most, int) else 0)
        ]
        instances.append([handle for handle in handles if handle != NOT_AVAILABLE])
    if chosen is None:
        divided = [parts[0] for parts in instances if parts]
        return divided[:1] or gpus
    by_uuid = {uuid(handle): handle for handle in (*gpus, *itertools.chain(*instances))}
    picked: list[str] = []
    for word in (word.strip() for word in chosen.split(",")):
        uuids = [candidate for candidate in by_uuid if word and candidate.startswith(word)]
        if word.isdecimal() and int(word) < len(gpus):
            uuids = [uuid(gpus[int(word)])]
        if len(uuids) != 1:
            break
        index = next((number for number, gpu in enumerate(gpus) if by_uuid[uuids[0]] is gpu), None)
        picked.append(uuid(instances[index][0]) if index is not None and instances[index] else uuids[0])
    return [by_uuid[name] for name in picked] if len(set(picked)) == len(picked) else []


def uuid(handle: Any) -> str:
    """Return the UUID of a GPU or of an instance."""
    return str(_ask(lambda n: n.nvmlDeviceGetUUID(handle)))


def _number(handle: Any) -> str:
    """Return the number of a GPU among all GPUs of its host, visible or not; for an instance, its UUID."""
    number = _ask(lambda n: n.nvmlDeviceGetIndex(handle))
    return uuid(handle) if number == NOT_AVAILABLE else str(number)


def facts(handle: Any) -> Json:
    """Return constant facts; `nvlinks`: NVML's version of each link that is up (0: unreadable); `capability`: as 90."""
    versions = []
    for link in _links_up(handle):
        version = _ask(lambda n, link=link: n.nvmlDeviceGetNvLinkVersion(handle, link))
        versions.append(version if isinstance(version, int) else 0)
    return {
        "name": _ask(lambda n: n.nvmlDeviceGetName(handle)),
        "uuid": _ask(lambda n: n.nvmlDeviceGetUUID(handle)),
        "memory_bytes": _ask(lambda n: n.nvmlDeviceGetMemoryInfo(handle).total),
        "driver": _ask(lambda n: n.nvmlSystemGetDriverVersion()),
        "ecc": _ask(lambda n: n.nvmlDeviceGetEccMode(handle)[0]),
        "mig": _ask(lambda n: n.nvmlDeviceGetMigMode(handle)[0]),
        "power_limit_mw": _ask(lambda n: n.nvmlDeviceGetEnforcedPowerLimit(handle)),
        "most_sm_clock_mhz": _ask(lambda n: n.nvmlDeviceGetMaxClockInfo(handle, n.NVML_CLOCK_SM)),
        # The maxima, not the present values: an idle card slows its link down.
        "pcie_generation": _ask(lambda n: n.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        "pcie_width": _ask(lambda n: n.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        "nvlinks": versions,
        "capability": capability(handle),
    }


def _links_up(handle: Any) -> list[int]:
    """Return the numbers of the NVLinks that are up."""
    return [n for n in range(MOST_NVLINKS) if _ask(lambda nvml, n=n: nvml.nvmlDeviceGetNvLinkState(handle, n)) == 1]


def state(handle: Any) -> Json:
    """Return values that change during a run: read them before, during and after it."""
    return {
        "sm_clock_mhz": _ask(lambda n: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM)),
        "memory_clock_mhz": _ask(lambda n: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM)),
        "power_mw": _ask(lambda n: n.nvmlDeviceGetPowerUsage(handle)),
        "temperature_c": _ask(lambda n: n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU)),
        "throttle_reasons": _ask(lambda n: n.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    }


_MULTICAST = "registered memory needs multicast over NVSwitch"
NO_MULTICAST = Kind("no-multicast", f"{_MULTICAST}, of data-centre GPUs from Hopper on; {{name}} has none")
NVLINK_DOWN = Kind("nvlink-down", f"{_MULTICAST}, and no NVLink of the GPU is up")


def unsupported_registration(handle: Any) -> Notice | None:
    """Return why NCCL's allocator will refuse (torch uses it only if memory can be multicast); None if it may work."""
    version = capability(handle)
    if version is not None and not HOPPER <= version < CONSUMER_BLACKWELL:
        name = _ask(lambda n: n.nvmlDeviceGetName(handle))
        return NO_MULTICAST(name=str(name))
    if version is not None and not _links_up(handle):
        return NVLINK_DOWN()
    return None


def driver() -> Json:
    """Return the version of the driver, and of the CUDA that it can run, such as "13.0"; empty without a driver."""
    if _nvml() is None:
        return {}
    cuda = _ask(lambda n: n.nvmlSystemGetCudaDriverVersion())
    number = f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else NOT_AVAILABLE
    return {"version": _ask(lambda n: n.nvmlSystemGetDriverVersion()), "cuda": number}


def exclusive(handle: Any) -> bool:
    """Return whether only one process at a time may use the GPU (compute mode EXCLUSIVE_PROCESS)."""
    return _ask(lambda n: n.nvmlDeviceGetComputeMode(handle) == n.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS) is True


def capability(handle: Any) -> int | None:
    """Return the compute capability, such as 90 for 9.0; None if it cannot be read."""
    version = _ask(lambda n: n.nvmlDeviceGetCudaComputeCapability(handle))
    return 10 * version[0] + version[1] if isinstance(version, tuple | list) else None


def memory_bytes_per_s(handle: Any) -> float:
    """Return the peak bandwidth of a GPU's memory: two transfers in each cycle of its clock, over its whole bus."""
    clock_mhz = _nvml().nvmlDeviceGetMaxClockInfo(handle, _nvml().NVML_CLOCK_MEM)
    return float(2 * clock_mhz * 1e6 * _nvml().nvmlDeviceGetMemoryBusWidth(handle) / 8)


def free_bytes(handle: Any) -> int | None:
    """Return the free bytes of GPU memory; None if they cannot be read. CUDA would need a context to report them."""
    nbytes = _ask(lambda n: n.nvmlDeviceGetMemoryInfo(handle).free)
    return nbytes if isinstance(nbytes, int) else None


# ── changes of GPUs and network adapters during a launch ─────────────────────────────────────────
Counters = dict[str, int]
_Readings = tuple[list[Counters], dict[str, Counters], Counters]


class HealthMeter:
    """Context of a launch. Afterwards `record` contains its changes; `record` is empty if ranks never started.

    The meter costs nothing if there is nothing to read. Before and after a run GPUs are idle and their clocks low, so
    readings at these times do not describe the run: the meter keeps the worst state during the launch.
    """

    def __init__(self, handles: Sequence[Any], infiniband: Path = INFINIBAND) -> None:
        self._handles, self._infiniband = handles, infiniband
        self._worst: list[Counters] = [{} for _ in handles]
        self._over = threading.Event()
        self._after: _Readings | None = None  # None until ranks have ended

    def __enter__(self) -> "HealthMeter":
        self._before = self._counted()
        self._looking = threading.Thread(target=self._look, daemon=True)
        if self._handles:
            self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._handles:
            self._looking.join()
        self._after = self._counted()

    @property
    def record(self) -> Json:
        """Return the changes on each GPU, by its number, and on each port, without values that cannot be read."""
        if self._after is None:
            return {}
        gpus = {
            _number(handle): {**_changes(before, after), **worst}
            for handle, before, after, worst in zip(
                self._handles, self._before[0], self._after[0], self._worst, strict=True
            )
        }
        changed = {port: _changes(before, self._after[1].get(port, {})) for port, before in self._before[1].items()}
        ports = {port: changes for port, changes in changed.items() if changes}
        tcp = _changes(self._before[2], self._after[2])
        parts = {"gpus": gpus, "infiniband": ports, "tcp": {"all": tcp} if "segments_again" in tcp else {}}
        return {name: value for name, value in parts.items() if value}

    def _look(self) -> None:
        """Keep the lowest clock, the highest temperature and power, and every reason for low clocks."""
        while not self._over.wait(LOOK_EVERY_S):
            for handle, worst in zip(self._handles, self._worst, strict=True):
                now = state(handle)
                for name, keep in (("sm_clock_mhz", min), ("temperature_c", max), ("power_mw", max)):
                    if isinstance(now[name], int):
                        worst[name] = keep(worst.get(name, now[name]), now[name])
                reasons = now["throttle_reasons"]
                if isinstance(reasons, int) and reasons & ~HARMLESS_REASONS:
                    worst["throttle_reasons"] = worst.get("throttle_reasons", 0) | reasons & ~HARMLESS_REASONS

    def _counted(self) -> "_Readings":
        """Return the counters of each GPU since its start, of each port by names such as `mlx5_0/1`, and of TCP."""
        ports: dict[str, Counters] = {}
        for counters in sorted(self._infiniband.glob("*/ports/*/counters")):
            port = ports[f"{counters.parents[2].name}/{counters.parent.name}"] = {}
            for name in PORT_COUNTERS:
                try:
                    port[name] = int((counters / name).read_text())
                except (OSError, ValueError):
                    continue
        return [_counters(handle) for handle in self._handles], ports, network.tcp_counters()


def merged(records: Sequence[Mapping[str, Json]]) -> Json:
    """Merge records by host; processes of one host may have watched different GPUs, or the same GPUs."""
    together: Json = {}
    for by_host in records:
        for host, record in by_host.items():
            for part, members in record.items():
                together.setdefault(host, {}).setdefault(part, {}).update(members)
    return together


def _counters(handle: Any) -> Counters:
    """Return the counters that a GPU supports."""
    questions: dict[str, Callable[..., Any]] = {
        "energy_mj": lambda n: n.nvmlDeviceGetTotalEnergyConsumption(handle),
        "pcie_replays": lambda n: n.nvmlDeviceGetPcieReplayCounter(handle),
        "uncorrected_errors": lambda n: n.nvmlDeviceGetTotalEccErrors(
            handle, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC
        ),
    }
    for why, policy in HELD_BACK.items():
        questions[f"held_back_{why}_ns"] = lambda n, policy=policy: (
            n.nvmlDeviceGetViolationStatus(handle, policy).violationTime
        )
    for way, field in (("sent", NVLINK_SENT), ("received", NVLINK_RECEIVED)):
        questions[f"nvlink_{way}_kib"] = lambda n, field=field: (
            n.nvmlDeviceGetFieldValues(handle, [(field, ALL_LINKS)])[0].value.ullVal
        )
    answers = {name: _ask(question) for name, question in questions.items()}
    return {name: value for name, value in answers.items() if isinstance(value, int)}


def _changes(before: Mapping[str, int], after: Mapping[str, int]) -> Counters:
    return {name: after[name] - value for name, value in before.items() if after.get(name, value) != value}
