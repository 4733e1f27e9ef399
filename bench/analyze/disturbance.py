"""Find what disturbed a case while it was measured: other processes, the hypervisor, a quota, the scheduler.

In: the samples of one case. Out: shares and short phrases. A disturbance was seen in the same time as the outliers;
that it caused them is likely, not proven.
"""

from collections.abc import Sequence

from bench.model.records import Samples, Usage

# /proc/stat counts in hundredths of a second: with less busy time than this, the share is noise.
FOREIGN_CPU_MIN_S = 0.3
# Shares above which a cause is named: stolen time of the wall time; other processes of the busy CPU time.
STEAL_SHARE, FOREIGN_SHARE = 0.01, 0.05


def foreign_cpu(samples: Sequence[Samples]) -> float | None:
    """Share of the host's busy CPU time that no rank used; None where it cannot be told."""
    usages = [s.usage for s in samples if s.usage is not None and s.usage.machine_busy_s is not None]
    busy = sum(usage.machine_busy_s or 0.0 for usage in usages)
    if busy < FOREIGN_CPU_MIN_S:
        return None
    return max(0.0, 1 - sum(sum(usage.cpu_s) for usage in usages) / busy)


def causes(samples: Sequence[Samples]) -> tuple[str, ...]:
    """What was seen while the case ran and can make single iterations long, in short phrases."""
    usages = [s.usage for s in samples if s.usage is not None]
    found = []
    switches = sum(sum(usage.involuntary_switches) for usage in usages)
    if switches:
        found.append(f"{switches} involuntary context switches")
    found += _of_the_machine(usages)
    foreign = foreign_cpu(samples)
    if foreign is not None and foreign > FOREIGN_SHARE:
        found.append(f"other processes used {foreign:.0%} of the busy CPU time")
    return tuple(found)


def _of_the_machine(usages: Sequence[Usage]) -> list[str]:
    found = []
    wall = sum(usage.wall_s for usage in usages)
    steal = sum(usage.steal_s or 0.0 for usage in usages)
    if wall and steal / wall > STEAL_SHARE:
        found.append(f"the hypervisor took {steal / wall:.0%} of a core")
    throttled = sum(usage.throttled or 0 for usage in usages)
    if throttled:
        found.append(f"a cgroup's quota was used up in {throttled} periods")
    return found
