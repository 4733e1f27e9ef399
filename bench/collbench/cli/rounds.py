"""Measure rounds of launches whose sides take turns, within a budget; for `ab` and `tune`.

In: the journal of a run, and for each round the function that measures its sides. Out: lines in samples.jsonl, and
their samples. The verb decides what a round measures and when the rounds end.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from collbench.launch.turns import Measuring, Turn, measure_in_turns
from collbench.model.notices import Notice
from collbench.model.records import Samples
from collbench.store.encoding import SampleLine
from collbench.store.folders import Journal, with_side

# Measures what is missing in a launch of a side. Arguments: side, function that takes each line, turns of the side.
MeasureSide = Callable[[str, Callable[[SampleLine], None], Turn], Measuring[None]]


@dataclass(slots=True)
class RoundsInTurns:
    """The rounds of a run that is being measured, and the time that they took."""

    journal: Journal
    # Shows a failure: side and samples.
    show_failure: Callable[[str, Samples], None]
    # Time that earlier sessions of the run spent.
    earlier_s: float
    # Samples of the run so far, by side. A run without sides has all samples under "", and its lines name no side.
    samples: dict[str, list[Samples]]
    # Reason why the ranks of all sides of a round cannot be alive at once; None if they can.
    alternate: Notice | None
    # Time that the last round took.
    _last_s: float = 0.0
    _began: float = field(default_factory=lambda: time.monotonic())

    @property
    def spent_s(self) -> float:
        """Time spent on the run so far."""
        return self.earlier_s + time.monotonic() - self._began

    def within(self, budget_s: float, most: int, due: Callable[[int], bool]) -> Iterator[int]:
        """Yield the numbers of the rounds that the budget allows, from 1 to at most `most`.

        A round begins only if a round as long as the last one would end within `budget_s`. due: whether a round is
        made whatever the budget is, because it is one of the first, or was measured in an earlier session.
        """
        for number in range(1, most + 1):
            began_s = self.spent_s
            if not due(number) and began_s + self._last_s > budget_s:
                return
            yield number
            self._last_s = self.spent_s - began_s

    def measure(self, sides: Sequence[str], seed: str, measure_side: MeasureSide) -> None:
        """Measure a launch of each side, in turns whose random order comes from `seed`, and keep the samples."""

        def launch(side: str, turn: Turn) -> Measuring[None]:
            return measure_side(side, lambda line: self._keep(side, line), turn)

        measure_in_turns(sides, seed, self.alternate is None, launch)

    def _keep(self, side: str, line: SampleLine) -> None:
        """Write a line and add its samples to the run's samples, where they replace a lost measurement."""
        without_sides = self.samples.get("")
        self.journal.append(with_side(line.text, side) if without_sides is None else line.text)
        kept, samples = self.samples[side] if without_sides is None else without_sides, line.samples
        kept[:] = [other for other in kept if (other.case, other.launch) != (samples.case, samples.launch)]
        kept.append(samples)
        if samples.failure is not None:
            self.show_failure(side, samples)
