"""Put the arrivals of all ranks on one clock, and give the uncertainty of that.

In: samples, and what the ranks of their launch reported about their clocks. Out: timings whose starts are on rank 0's
clock, with the uncertainty; None where the offsets are unknown. Offsets are interpolated between the start and the
end of a launch, because clocks drift apart.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.model.records import Json, Run, Samples, Timings

Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Aligned:
    """timings: starts on rank 0's clock. uncertainty_s: 0 where all ranks read the same clock."""

    timings: Timings
    uncertainty_s: float


class Clocks:
    """The clock records of each launch of a run."""

    def __init__(self, run: Run) -> None:
        self._launches: dict[Place, list[Json]] = defaultdict(list)
        for session in run.environment:
            for launch in session.get("launches", []):
                self._launches[launch.get("backend"), launch.get("world_size"), launch.get("launch")].append(launch)
        # Computed once: there are more cases than launches, and a launch can have a thousand ranks.
        self._several = {place for place, found in self._launches.items() if not all(map(_one_clock, found))}

    def aligned(self, samples: Samples) -> Aligned | None:
        """The timed iterations, aligned; None where the clocks' offsets are unknown."""
        assert samples.timed is not None  # noqa: S101 - failures have no arrivals
        place = (samples.case.backend, samples.case.world_size, samples.launch)
        launches = self._launches.get(place, [])
        if place not in self._several:
            return Aligned(samples.timed, 0.0)
        known = [launch["clocks"] for launch in launches if launch.get("clocks")]
        # After a failure new processes measure the rest: which of them made these samples is not recorded.
        return _shifted(samples, *known[0]) if len(launches) == len(known) == 1 else None


def _one_clock(launch: Json) -> bool:
    return len({rank.get("clock") for rank in launch.get("ranks", [])}) <= 1


def _shifted(samples: Samples, first: Sequence[Sequence[int]], last: Sequence[Sequence[int]]) -> Aligned:
    """first, last: `rank.clocks.Bounds` of each rank (at, low, high; ns), at the start and at the end of the launch."""
    timed = samples.timed
    assert timed is not None  # noqa: S101 - the caller has it
    begin, end = np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)
    offset_0, offset_1 = ((side[:, 1] + side[:, 2]) // 2 for side in (begin, end))
    span = max(1, int(end[-1, 0] - begin[-1, 0]))
    at = timed.start_ns[:, :1] + samples.base_ns - begin[-1, 0]  # rank 0's offset is 0
    offset = offset_0 + (offset_1 - offset_0) * (at / span)
    start = timed.start_ns - np.rint(offset).astype(np.int64)
    uncertainty = max(int((side[:, 2] - side[:, 1]).max()) for side in (begin, end)) / 2e9
    return Aligned(replace(timed, start_ns=start), uncertainty)
