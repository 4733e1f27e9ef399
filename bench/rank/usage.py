"""Measure what a case costs: counters of this rank and of its host, before and after each of its parts.

In: nothing. Out: a `Meter`, which adds up what passes while a case runs, and a `Usage` from those of all ranks.
"""

import multiprocessing as mp
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

from bench.machine import cgroup, host
from bench.model.records import Json, Usage


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of this rank and of its host: at one moment, or differences of two moments."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    involuntary: int = 0
    busy_s: float | None = 0.0
    steal_s: float | None = 0.0
    throttled: int | None = 0

    @staticmethod
    def read() -> "Counters":
        """Now; it takes 0.1 ms."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        busy, steal = host.busy_and_steal_s(except_for=mp.parent_process())
        throttled = cgroup.throttled_periods()
        return Counters(time.perf_counter(), own.ru_utime + own.ru_stime, own.ru_nivcsw, busy, steal, throttled)

    def plus(self, after: "Counters", before: "Counters") -> "Counters":
        """These and what passed between two moments."""
        return Counters(
            self.wall_s + after.wall_s - before.wall_s,
            self.cpu_s + after.cpu_s - before.cpu_s,
            self.involuntary + after.involuntary - before.involuntary,
            _added(self.busy_s, after.busy_s, before.busy_s),
            _added(self.steal_s, after.steal_s, before.steal_s),
            None if (more := _added(self.throttled, after.throttled, before.throttled)) is None else int(more),
        )


class Meter:
    """Adds up what passes between `reset` and `spent`, and between one `spent` and the next."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Leave out what has passed until now."""
        self._last = Counters.read()

    def spent(self, so_far: Counters) -> Counters:
        """What passed since the last reading, added to `so_far`."""
        before, self._last = self._last, Counters.read()
        return so_far.plus(self._last, before)


def of_rank(spent: Counters, floor_ns: float | None, bound: int | None, stamp_ns: float) -> Json:
    """What a case cost this rank, to be gathered."""
    return {
        "cpu_s": round(spent.cpu_s, 4),
        "involuntary": spent.involuntary,
        "rss": _peak_rss_bytes(),
        "stamp": stamp_ns,
        "host": host.boot(),
        "busy": spent.busy_s,
        "steal": spent.steal_s,
        "throttled": spent.throttled,
        "floor": floor_ns,
        "bound": bound,
    }


def of_all(everyone: list[Json], wall_s: float, buffer_bytes: int) -> Usage:
    """The usage of a case from what it cost each rank (`of_rank`)."""
    return Usage(
        wall_s=round(wall_s, 4),
        cpu_s=[one["cpu_s"] for one in everyone],
        involuntary_switches=[one["involuntary"] for one in everyone],
        peak_rss_bytes=[one["rss"] for one in everyone],
        buffer_bytes=buffer_bytes,
        timer_cost_ns=[one["stamp"] for one in everyone],
        machine_busy_s=_over_hosts(everyone, "busy"),
        steal_s=_over_hosts(everyone, "steal"),
        throttled=None if (periods := _over_hosts(everyone, "throttled")) is None else int(periods),
        floor_ns=_known([one["floor"] for one in everyone]),
        dispatch_bound=_known([one["bound"] for one in everyone]),
    )


def _known(values: list[Any]) -> list[Any] | None:
    return None if None in values else values


def _over_hosts(everyone: list[Json], what: str) -> float | None:
    """Sum over hosts of the smallest value that a rank of the host saw.

    Each rank leaves out its own parent, so the smallest value is that of the rank with the busiest parent.
    """
    least: dict[str, float] = {}
    for one in everyone:
        if one[what] is None:
            return None
        least[one["host"]] = min(one[what], least.get(one["host"], one[what]))
    return round(sum(least.values()), 4)


def _added(sum_: float | None, after: float | None, before: float | None) -> float | None:
    return None if sum_ is None or after is None or before is None else sum_ + after - before


def _peak_rss_bytes() -> int:
    # kilobytes on Linux, bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
