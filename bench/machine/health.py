"""What GPUs and network adapters went through during a launch: counters before and after, states meanwhile.

In: handles of GPUs. Out: a record for each launch, as JSON: differences of what is counted (energy, time held back,
errors, bytes over NVLink and InfiniBand), and of states the worst that was seen (lowest clock, highest temperature).
Before and after a run GPUs are idle and their clocks low, so that readings there say nothing of it.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.machine import gpus
from bench.model.records import Json

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
# Between two looks at the GPUs, in seconds: NVML answers within 0.1 ms.
LOOK_EVERY_S = 1.0
# NVML's reasons that only say that nobody asks for more: idle, and clocks that were set.
HARMLESS_REASONS = 0x1 | 0x2


class HealthMeter:
    """Context of a launch; afterwards `record` says what passed. It costs nothing where there is nothing to read."""

    def __init__(self, handles: Sequence[Any], infiniband: Path = INFINIBAND) -> None:
        self._handles, self._infiniband = handles, infiniband
        self._worst: list[dict[str, int]] = [{} for _ in handles]
        self._over = threading.Event()

    def __enter__(self) -> "HealthMeter":
        self._before = self._counted()
        self._looking = threading.Thread(target=self._look, daemon=True)
        if self._handles:
            self._looking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._handles:
            self._looking.join()
        self._after = self._counted()

    @property
    def record(self) -> Json:
        """For each GPU and port, what has changed; parts that did not change, or cannot be read, are left out."""
        changes = [
            {name: after[name] - value for name, value in before.items() if after.get(name, value) != value}
            for before, after in zip(self._before[0], self._after[0], strict=True)
        ]
        ports = {
            port: changed
            for port, before in self._before[1].items()
            if (changed := {n: self._after[1].get(port, {}).get(n, v) - v for n, v in before.items()
                            if self._after[1].get(port, {}).get(n, v) != v})
        }  # fmt: skip
        seen = [{**change, **worst} for change, worst in zip(changes, self._worst, strict=True)]
        return {name: value for name, value in (("gpus", seen), ("infiniband", ports)) if value}

    def _counted(self) -> tuple[list[dict[str, int]], dict[str, dict[str, int]]]:
        return [gpus.counted(handle) for handle in self._handles], _ports(self._infiniband)

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            for handle, worst in zip(self._handles, self._worst, strict=True):
                _note(worst, gpus.state(handle))


def _note(worst: dict[str, int], state: Json) -> None:
    """Keep the lowest clock, the highest temperature and power, and every reason for low clocks."""
    for name, keep in (("sm_clock_mhz", min), ("temperature_c", max), ("power_mw", max)):
        value = state.get(name)
        if isinstance(value, int):
            worst[name] = keep(worst.get(name, value), value)
    reasons = state.get("throttle_reasons")
    if isinstance(reasons, int) and reasons & ~HARMLESS_REASONS:
        worst["throttle_reasons"] = worst.get("throttle_reasons", 0) | reasons & ~HARMLESS_REASONS


def _ports(root: Path) -> dict[str, dict[str, int]]:
    """The counters of each port, by names such as `mlx5_0/1`."""
    found: dict[str, dict[str, int]] = {}
    for counters in sorted(root.glob("*/ports/*/counters")):
        values = {}
        for name in PORT_COUNTERS:
            try:
                values[name] = int((counters / name).read_text())
            except (OSError, ValueError):
                continue
        found[f"{counters.parents[2].name}/{counters.parent.name}"] = values
    return found
