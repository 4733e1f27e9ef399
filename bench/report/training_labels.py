"""Describe scenarios, strategies and their numbers in few words.

In: records and conclusions of the training benchmark. Out: text. A missing number is a dash, never a zero or `nan`.
"""

import math
import re
from collections.abc import Callable, Iterable

from bench.model.conclusions import Interval, ScenarioAnalysis, StrategyResult
from bench.model.records import Scenario
from bench.model.training import REFERENCE
from bench.model.units import format_rate, format_seconds
from bench.report.labels import NOTHING, between, ranks_text

UNRESOLVED = "not resolved"
# A plan's label lists its buckets; if there are more than this, tables show the first two and their number.
MOST_BUCKETS = 4
_BUCKETS = re.compile(r"\[([^\]]*)\]")


def scenario_text(scenario: Scenario) -> str:
    """Such as `micro · gloo · 2 ranks · batch 16 (8 a rank) · sequence 64 · float32 · sgd`."""
    words = [scenario.case.model, scenario.case.backend, ranks_text(scenario.case.world_size)]
    words += [f"batch {global_batch(scenario)} ({scenario.case.batch} a rank)", f"sequence {scenario.case.sequence}"]
    words += [
        scenario.case.dtype,
        scenario.case.optimizer + (f", norm ≤ {scenario.case.clip:g}" if scenario.case.clip else ""),
    ]
    if scenario.link is not None:
        link = scenario.link
        words.append(f"emulated link of {seconds(link.latency_s)} and {format_rate(link.bytes_per_s)} GB/s")
    if scenario.case.threads != 1:
        words.append(f"{scenario.case.threads} threads a rank")
    return " · ".join(words)


def global_batch(scenario: Scenario) -> int:
    """Examples of one step, over all ranks."""
    return scenario.case.batch * scenario.case.world_size


def short_name(label: str) -> str:
    """A strategy's label with a long list of buckets cut down; the whole list is in the CSV."""
    listed = _BUCKETS.search(label)
    sizes = listed[1].split(", ") if listed else []
    if listed is None or len(sizes) <= MOST_BUCKETS:
        return label
    return f"{label[: listed.start()]}[{sizes[0]}, {sizes[1]}, … {len(sizes)} buckets]{label[listed.end() :]}"


def short_names(labels: Iterable[str]) -> dict[str, str]:
    """Label → short name; two that would read the same get a number."""
    names: dict[str, str] = {}
    for label in dict.fromkeys(labels):
        base = name = short_name(label)
        number = 1
        while name in names.values():
            number += 1
            name = f"{base} #{number}"
        names[label] = name
    return names


def names_of(comparison: ScenarioAnalysis) -> dict[str, str]:
    """Label → short name of all strategies of a scenario."""
    return short_names(result.label for result in comparison.results)


def ordered(comparison: ScenarioAnalysis) -> list[StrategyResult]:
    """The reference first, then by place, then strategies with a time and no place, and the refused ones last."""

    def key(result: StrategyResult) -> tuple[int, float, float]:
        group = 3 if result.step is None else 0 if is_reference(result) else 1 if result.place else 2
        return group, result.place or 0, result.step.value if result.step else 0

    return sorted(comparison.results, key=key)


def is_reference(result: StrategyResult) -> bool:
    """Whether it is the strategy without synchronisation; its second copy (A/A pair) is compared like any other."""
    strategy = result.strategy
    return strategy.name == REFERENCE and strategy.imported is None and not strategy.again


def place_text(result: StrategyResult, comparison: ScenarioAnalysis) -> str:
    """Such as `1`, `3 =` where others share the place, `3 =, not resolved`."""
    if is_reference(result):
        return "reference"
    alike = sum(other.place == result.place for other in comparison.results)
    place = NOTHING if result.place is None else f"{result.place} =" if alike > 1 else str(result.place)
    return place if result.resolved else f"{place}, {UNRESOLVED}"


def seconds(value: float | None) -> str:
    """`1.61 ms`; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return format_seconds(value) if value else "0 s"


def percent(value: float | None) -> str:
    """`12.3` for 0.123: the unit is in the header."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{round(100 * value, 1) + 0.0:.1f}"  # + 0.0: a rounded −0.0 is 0.0


def spread(value: float | None, std: float | None, text: Callable[[float | None], str]) -> str:
    """`1.61 ms ± 40 µs`."""
    if value is None:
        return NOTHING
    return text(value) + (f" ± {text(std)}" if std is not None and math.isfinite(std) else "")


def ends(interval: Interval | None) -> tuple[float, float] | None:
    """Both ends of an interval; None where it is not known or not finite."""
    if interval is None or not interval.known or not math.isfinite(interval.high - interval.low):
        return None
    return interval.low, interval.high


def bounds(interval: Interval | None) -> str:
    """`[1.00 – 1.20 ms]`; a dash where no interval is known."""
    limits = ends(interval)
    return f"[{between(*map(seconds, limits))}]" if limits else NOTHING


def cell(text: str) -> str:
    """Text of a failure or of a user, made fit for one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
