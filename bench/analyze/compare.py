"""Two runs side by side: the ratio of each common case with its interval, and what differs around it.

Says "resolved" or "not resolved", no more: resolved where both sides have at least two launches and the
interval of the ratio excludes 1. Iterations of different launches are never pooled.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.conclusions import Change, Comparison, Summary
from bench.errors import UnmeasurableError
from bench.intervals import ratio_interval, ratio_of_intervals
from bench.records import Run

# Facts of a host that a difference in numbers may come from, by their place in environment.json.
COMPARED = (
    "hostname",
    "collbench",
    "commit",
    "python",
    "packages.torch",
    "kernel",
    "boot_id",
    "cpu.model",
    "cpu.usable_cores",
    "cpu.governor",
    "memory_bytes",
    "variables",
)


def compare(before: Run, after: Run, old: Sequence[Summary], new: Sequence[Summary]) -> Comparison:
    """Changes of the common cases. Raises UnmeasurableError where there is none."""
    olds = {s.case.key: s for s in old if s.time_s is not None}
    news = {s.case.key: s for s in new if s.time_s is not None}
    common = [key for key in olds if key in news]
    if not common:
        raise UnmeasurableError(
            f"{before.name} and {after.name} have no measured case in common: "
            "same operation, backend, world size, dtype and size are needed"
        )
    changes = tuple(_change(olds[key], news[key]) for key in common)
    warnings = []
    by_chance = round(0.05 * len(changes), 1)
    if by_chance >= 0.5 and any(change.resolved for change in changes):
        warnings.append(
            f"of {len(changes)} cases about {by_chance:g} would be resolved by chance alone, without any change"
        )
    return Comparison(
        before=before.name,
        after=after.name,
        changes=changes,
        differences=_differences(before, after),
        only_before=tuple(olds[key].case for key in olds if key not in news),
        only_after=tuple(news[key].case for key in news if key not in olds),
        warnings=tuple(warnings),
    )


def _change(old: Summary, new: Summary) -> Change:
    assert old.time_s is not None and new.time_s is not None  # noqa: S101 - the caller selects such
    if min(old.launches, new.launches) < 2:
        ratio = ratio_of_intervals(old.time_s, new.time_s)
        return Change(old.case, old.time_s, new.time_s, ratio, False, "one launch on a side: cannot be resolved")
    ratio = ratio_interval(np.array(old.medians_s), np.array(new.medians_s))
    return Change(old.case, old.time_s, new.time_s, ratio, not ratio.low <= 1 <= ratio.high)


def _differences(before: Run, after: Run) -> tuple[tuple[str, str, str], ...]:
    """(fact, value before, value after) for what differs around the numbers."""
    hosts = [run.environment[0].get("host", {}) if run.environment else {} for run in (before, after)]
    rows = [(name, *(str(_dig(host, name)) for host in hosts)) for name in COMPARED]
    settings = dataclasses.fields(before.plan.sampling)
    rows += [
        (f"sampling.{f.name}", str(getattr(before.plan.sampling, f.name)), str(getattr(after.plan.sampling, f.name)))
        for f in settings
    ]
    rows.append(("launches", str(before.plan.launches), str(after.plan.launches)))
    rows.append(("planted faults", str(len(before.plan.faults)), str(len(after.plan.faults))))
    return tuple((name, old, new) for name, old, new in rows if old != new)


def _dig(facts: Any, path: str) -> Any:
    for key in path.split("."):
        facts = facts.get(key, "not available") if isinstance(facts, dict) else "not available"
    return facts
