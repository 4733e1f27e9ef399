"""The best bucket plan for a scenario, from what its own run measured of link and gradients.

The link: as emulated, or the all-reduces of the ladder and of strategies' calls alone. The gradients' ready times:
those of the step without synchronisation.
"""

from collections.abc import Sequence

import numpy as np

from bench.errors import BenchError
from bench.gradients.conclusions import Advice
from bench.gradients.curve import Curve
from bench.gradients.planner import advise
from bench.gradients.profiles import Profile, recorded
from bench.gradients.records import REFERENCE, Alone, Rung, Scenario, Timeline

FLOAT32_BYTES = 4


def advised(
    scenario: Scenario, timelines: Sequence[Timeline], alone: Sequence[Alone], rungs: Sequence[Rung]
) -> Advice | None:
    """None where a run tells too little of the link or of the gradients."""
    curve = curve_of(scenario, alone, rungs)
    profile = next((one for one in timelines if one.strategy == REFERENCE), None)
    if curve is None or profile is None:
        return None
    try:
        return advise(Profile.of_shape(recorded(profile)), curve)
    except BenchError:
        return None


def curve_of(scenario: Scenario, alone: Sequence[Alone], rungs: Sequence[Rung]) -> Curve | None:
    """Time of one all-reduce against its bytes, where calls follow each other."""
    if scenario.link is not None:
        return Curve.emulated(scenario.link)
    points: dict[float, list[float]] = {}
    for rung in rungs:
        if (rung.backend, rung.world_size) == (scenario.backend, scenario.world_size):
            size = rung.parameters * FLOAT32_BYTES / rung.calls
            points.setdefault(size, []).append(float(np.median(rung.times_s)) / rung.calls)
    for one in alone:
        if len(set(one.calls)) == 1:
            points.setdefault(float(one.calls[0]), []).append(float(np.median(one.times_s)) / len(one.calls))
    if len(points) < 2:
        return None
    sizes = sorted(points)
    return Curve.through(sizes, [float(np.median(points[size])) for size in sizes])
