"""Limits of the control groups that this process is in: memory and CPU time.

In: /proc/self/cgroup and the files of the groups that it names. Out: numbers, or None where there is no limit.

A batch system puts a job into a group several levels down, and without a cgroup namespace the root of /sys/fs/cgroup is
that of the host: its own files say nothing of the job. Every group on the way up may set a limit. Both versions of
control groups are read, as of 2 the files memory.max, cpu.max and cpu.stat.
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
# Version 1 writes a number near 2**63 where there is no limit.
UNLIMITED_BYTES = 2**60


def free_memory_bytes(root: Path = ROOT) -> int | None:
    """The least of what each group still allows; None without a limit. Caches of files that can be dropped are free."""
    free = []
    for group in _groups(root, "memory"):
        limit = _number(group, "memory.max", "memory.limit_in_bytes")
        used = _number(group, "memory.current", "memory.usage_in_bytes")
        if limit is None or used is None or limit >= UNLIMITED_BYTES:
            continue
        droppable = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
        free.append(max(0, limit - used + (int(droppable[1]) if droppable else 0)))
    return min(free, default=None)


def cpu_max(root: Path = ROOT) -> str | None:
    """The tightest limit of CPU time, as `QUOTA PERIOD` in µs, such as "150000 100000"; None without one."""
    limits: list[tuple[float, str]] = []
    for group in _groups(root, "cpu"):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append((int(quota) / int(period), f"{quota} {period}"))
    return min(limits)[1] if limits else None


def throttled_periods(root: Path = ROOT) -> int | None:
    """Number of periods in which a group's quota was used up, since it was made: of the group that limits most."""
    stats = (_text(group / "cpu.stat") for group in _groups(root, "cpu"))
    periods = (re.search(r"^nr_throttled (\d+)$", text, re.MULTILINE) for text in stats)
    return max((int(number[1]) for number in periods if number), default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the groups of a controller, from the process's own up to the root of the hierarchy."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = mount / path.lstrip("/")
        while group != mount and mount in group.parents:
            yield group
            group = group.parent
        yield mount


def _number(group: Path, *names: str) -> int | None:
    return next((int(text) for name in names if (text := _text(group / name)).isdigit()), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
