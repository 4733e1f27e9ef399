"""Spend the rest of a run's time budget on further launches of the cases with the widest intervals.

In: the plan and what was measured so far. Out: the cases of one further launch; none if every interval is as narrow
as asked or no case fits the time that is left. Starts nothing and reads no clock: `sweep` does.

It adds launches, not iterations: launches differ by more than the iterations within one do, and the report gives the
interval over launches (docs/method.md, "Launches").
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from bench.model.records import Case, Launch, Plan, Samples
from bench.planning.plan import NEXT_START_S, process_kind
from bench.stats.intervals import launch_interval, within_launch

# An interval that is still wide after so many launches will not get narrow in a sensible time.
MOST_LAUNCHES = 200
# A case with fewer launches is measured again, however narrow its interval is.
FEWEST_TO_STOP = 5


@dataclass(slots=True)
class Spent:
    """Time spent and results so far, by case key.

    medians_s, wall_s: median and wall time of each launch. within: relative half-width of the interval within the last
    launch. launches: number of the last launch.
    """

    medians_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wall_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    within: dict[str, float] = field(default_factory=dict)
    launches: int = 0

    def add(self, samples: Samples) -> None:
        """Add the samples of one case and launch; of a failure only the launch counts."""
        self.launches = max(self.launches, samples.launch)
        if samples.failure is None and samples.timed is not None and samples.usage is not None:
            interval = within_launch(samples.timed.slowest_s, samples.timed.blocks)
            self.medians_s[samples.case.key].append(interval.value)
            self.within[samples.case.key] = interval.relative_half_width
            self.wall_s[samples.case.key].append(samples.usage.wall_s)

    @property
    def total_s(self) -> float:
        """Wall time of all successful measurements."""
        return sum(map(sum, self.wall_s.values()))

    def width(self, key: str) -> float:
        """Relative half-width of the interval that a report would give; infinite with a single launch."""
        return _width(self.medians_s[key])

    def is_narrow(self, key: str, relative_error: float) -> bool:
        """Whether the interval is as narrow as asked, now and one launch ago.

        Launches that agree by chance end nothing: stopping at the first such launch, intervals covered 90 to 92 % in
        simulations; by this rule 93 to 95 %, for two launches more.
        """
        medians = self.medians_s[key]
        enough = len(medians) >= FEWEST_TO_STOP
        return enough and max(_width(medians), _width(medians[:-1])) <= relative_error


def _width(medians_s: list[float]) -> float:
    return launch_interval(np.array(medians_s)).relative_half_width if len(medians_s) > 1 else float("inf")


def next_launch(plan: Plan, spent: Spent, left_s: float) -> list[Launch]:
    """One further launch of the cases whose intervals are wider than asked: widest first, as many as fit `left_s`."""
    if spent.launches >= MOST_LAUNCHES:
        return []
    wide = [case for case in plan.cases if spent.medians_s[case.key]]
    wide = [case for case in wide if not spent.is_narrow(case.key, plan.sampling.relative_error)]
    # Cases of equal width (after a single launch) are ordered by the width within the launch.
    wide.sort(key=lambda case: (spent.width(case.key), spent.within[case.key]), reverse=True)
    cases: dict[tuple[object, ...], list[Case]] = {}
    for case in wide:
        place = process_kind(case)
        cost = float(np.mean(spent.wall_s[case.key])) + (0.0 if place in cases else NEXT_START_S)
        if cost <= left_s:
            left_s -= cost
            cases.setdefault(place, []).append(case)
    return [Launch(c[0].backend, c[0].world_size, spent.launches + 1, tuple(c)) for c in cases.values()]
