"""How many iterations a case may keep in one launch: every rank's stamps come together on rank 0.

In: a case. Out: a count. Knows no torch and no numpy. Each iteration leaves a start and a duration of each rank; all
of them are kept as they are, not condensed into quantiles, because who was late, and when, cannot be told from
quantiles. So what grows with the ranks is bounded by measuring fewer iterations (docs/method.md, "Order, warm-up,
stopping").
"""

from bench.operations import cycle
from bench.records import Case, Plan

# Pairs of a start and a duration in one case and launch: 4 MiB as numbers on each rank, about 6 MB as a line of
# samples.jsonl. 2000 iterations, the usual maximum, fit up to 131 ranks.
MOST_STAMPS = 2**18
# Below so many no interval of a median exists (`intervals.FEWEST_FOR_MEDIAN`, which planning would load scipy for).
FEWEST = 6


def most_iterations(case: Case) -> int:
    """Iterations that are kept, and so made: never fewer than an interval needs in each round or group."""
    return max(FEWEST * cycle(case), MOST_STAMPS // case.world_size)


def bounded(plan: Plan) -> dict[int, int]:
    """World size → most iterations, where that is less than the plan asks for."""
    asked = plan.sampling.iterations or plan.sampling.max_iterations
    most: dict[int, int] = {}
    for case in plan.cases:
        if (kept := most_iterations(case)) < asked:
            most[case.world_size] = max(kept, most.get(case.world_size, 0))
    return most
