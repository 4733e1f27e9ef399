"""Estimate how many launches and iterations reach a wanted precision, and how long that takes.

In: a run that serves as a pilot, its summaries, the wanted relative half-width. Out: one `Need` per case.

Kalibera & Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013: with the variance T₁² between
iterations and T₂² between launches, an iteration costing c₁ and a launch c₂, the cheapest number of iterations
per launch is ⌈√((c₂/c₁)(T₁²/T₂²))⌉; launches then follow from the wanted interval. Variances are those of logarithms;
T₁² is the variance at which independent iterations would give the interval that was seen within a launch.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from bench.model.conclusions import Need, NeedsInAll, Summary
from bench.model.records import Run
from bench.planning.plan import NEXT_START_S
from bench.stats.intervals import CONFIDENCE, FEWEST_FOR_MEDIAN

# Upper limit of the advice: more launches than this are not practical.
MOST_LAUNCHES = 1000
# Half-width of a 95 % interval, in standard errors.
STANDARD_ERRORS = 1.96
# Factor on the seconds needed: the first launch of a budget measures every case, whether the case needs it or not.
BUDGET_MARGIN = 1.3


def needs(run: Run, summaries: Sequence[Summary], precision: float) -> list[Need]:
    """For each measured case; precision: relative half-width of the 95 % interval over launches."""
    seconds = {s.case.key: _cost(run, s.case.key) for s in summaries}
    return [_need(s, precision, *seconds[s.case.key], run) for s in summaries if s.time_s is not None]


def in_all(needs: Sequence[Need]) -> NeedsInAll | None:
    """What these cases take together; None where no need is known."""
    known = [(need.seconds, need.launches, need.iterations or 0) for need in needs if need.launches and need.seconds]
    if not known:
        return None
    launches = max(count for _, count, _ in known)
    seconds = sum(one for one, _, _ in known)
    uniform_s = sum(one / count * launches for one, count, _ in known)
    return NeedsInAll(seconds, launches, max(each for _, _, each in known), uniform_s, BUDGET_MARGIN * seconds)


def _cost(run: Run, key: str) -> tuple[float, float]:
    """(seconds per iteration, seconds per launch besides its iterations) of one case."""
    mine = [s for s in run.samples if s.case.key == key and s.timed is not None and s.usage is not None]
    iterations, spans, walls = [], [], []
    for samples in mine:
        assert samples.timed is not None and samples.usage is not None  # noqa: S101 - selected above
        count = len(samples.timed.duration_ns)
        ends = samples.timed.start_ns + samples.timed.duration_ns
        spans.append(float(ends.max() - samples.timed.start_ns.min()) / 1e9 / count)
        iterations.append(count)
        walls.append(samples.usage.wall_s)
    if not mine:
        return 0.0, 0.0
    shared = max(1, max(len(block.cases) for block in run.plan.order))
    one = float(np.mean(spans))
    return one, max(0.0, float(np.mean(walls)) - one * float(np.mean(iterations))) + NEXT_START_S / shared


def _need(summary: Summary, precision: float, iteration_s: float, launch_s: float, run: Run) -> Need:
    case = summary.case
    if summary.imported:
        return Need(
            case, None, None, None, "imported: nothing is known of single iterations and of what a launch costs"
        )
    if summary.scatter is None or summary.reached is None:
        return Need(case, None, None, None, "one launch cannot show how launches differ: pilot with launches: 3")
    done = summary.iterations / summary.launches
    within = (summary.reached / STANDARD_ERRORS) ** 2  # variance of one launch's median
    iteration_variance = within * done
    launch_variance = max(0.0, summary.scatter**2 - within)
    most = run.plan.sampling.max_iterations
    iterations = most
    if launch_variance > 0 and iteration_s > 0:
        iterations = math.ceil(math.sqrt(launch_s / iteration_s * iteration_variance / launch_variance))
    iterations = min(max(iterations, FEWEST_FOR_MEDIAN), most)
    variance = launch_variance + iteration_variance / iterations
    launches = _launches(variance, math.log1p(precision))
    if launches is None:
        return Need(case, None, iterations, None, f"±{precision:.0%} would take more than {MOST_LAUNCHES} launches")
    return Need(case, launches, iterations, launches * (launch_s + iterations * iteration_s))


def _launches(variance: float, half_width: float) -> int | None:
    """Fewest launches whose Student interval of the mean logarithm is as narrow as `half_width`; None if too many."""
    counts = np.arange(2, MOST_LAUNCHES + 1)
    reached = stdtrit(counts - 1, (1 + CONFIDENCE) / 2) * np.sqrt(variance / counts) <= half_width
    return int(counts[np.argmax(reached)]) if reached.any() else None
