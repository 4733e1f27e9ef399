"""A bucket plan put to the test: what to measure beside it, and what was predicted of each.

In: a scenario, a profile, a curve and the advice that follows from them. Out: a `TrainingPlan` and predictions by the
label of each strategy. Measures nothing; `Verified` says what came of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.errors import UnmeasurableError
from bench.records import Machine
from bench.training import planner
from bench.training.all_reduce_cost import AllReduceCost
from bench.training.conclusions import Advice, StrategyResult
from bench.training.plan import unsupported_scenario, with_controls
from bench.training.planner import BucketPlan
from bench.training.ready_times import ReadyTimes
from bench.training.records import Scenario, SkippedStrategy, Strategy, TrainingLaunch, TrainingPlan
from bench.training.strategies import label, unsupported

# Three launches give an interval over launches; a few rounds of two steps a launch are done in half a minute.
LAUNCHES, ROUNDS, STEPS, WARMUP = 3, 6, 2, 3
TIMEOUT_S = 60.0
# Of the machine's CPU time used by others, as in configs.
FOREIGN = 0.06
# A prediction holds if it is off by so many seconds, or by such a share of itself.
OFF_S, OFF_SHARE = 1e-3, 0.1


@dataclass(frozen=True, slots=True)
class Verified:
    """One plan. predicted_s: exposed after backward. outcome: what was measured; None if it was not."""

    name: str
    predicted_s: float
    result: StrategyResult | None

    @property
    def tail_s(self) -> float | None:
        """The tail of the rank that came last: what others wait for it is not the link's."""
        split = self.result.split if self.result is not None else None
        return None if split is None else split.tail_s - split.late_s

    @property
    def holds(self) -> bool | None:
        """Whether it was as long as predicted; None without a measurement."""
        return None if self.tail_s is None else close(self.predicted_s, self.tail_s)


def close(predicted_s: float, measured_s: float) -> bool:
    """Within a millisecond, or a tenth."""
    return abs(measured_s - predicted_s) <= max(OFF_S, OFF_SHARE * predicted_s)


def candidates(ready_times: ReadyTimes, advice: Advice, of_shape: bool) -> dict[str, tuple[Strategy, BucketPlan]]:
    """The best plan and those that people use, as strategies. A shape cannot be wrapped by torch."""
    best, default = planner.best_plan(ready_times, advice), planner.torch_default(ready_times)
    sizes = planner.bucket_bytes(ready_times, default)
    found = {
        "best plan": (Strategy("plan", buckets=advice.buckets), best),
        "best uniform cap": (
            Strategy("overlap_bucket", cap_bytes=advice.best_cap),
            planner.uniform(ready_times, advice.best_cap),
        ),
        "torch's default": (Strategy("plan", buckets=sizes) if of_shape else Strategy("ddp"), default),
        "all in one": (Strategy("flat"), (len(ready_times.nbytes),)),
        "one call a gradient": (Strategy("overlap_param"), tuple(range(1, len(ready_times.nbytes) + 1))),
    }
    if not of_shape:
        found["best plan, by DistributedDataParallel"] = (Strategy("ddp", buckets=advice.buckets), best)
    return found


def planned(scenario: Scenario, strategies: Iterable[Strategy], name: str, seed: int, machine: Machine) -> TrainingPlan:
    """Their measurement, with references and A/A pairs. Raises UnmeasurableError where none can be measured."""
    reasons = {
        one: unsupported_scenario(scenario, machine) or unsupported(one, scenario, machine) for one in strategies
    }
    fit = [one for one, reason in reasons.items() if reason is None]
    if not fit:
        raise UnmeasurableError("; ".join(dict.fromkeys(str(reason) for reason in reasons.values())))
    order = tuple(TrainingLaunch(scenario, launch, with_controls(fit), ROUNDS) for launch in range(1, LAUNCHES + 1))
    skips = tuple(SkippedStrategy(scenario, one, reason) for one, reason in reasons.items() if reason is not None)
    return TrainingPlan(name, order, skips, LAUNCHES, STEPS, WARMUP, seed, TIMEOUT_S, FOREIGN)


def verified(
    asked: dict[str, tuple[Strategy, BucketPlan]],
    ready_times: ReadyTimes,
    cost: AllReduceCost,
    results: Iterable[StrategyResult],
) -> list[Verified]:
    """Predictions beside what was measured."""
    measured = {one.label: one for one in results}
    return [
        Verified(name, planner.exposed(ready_times, ends, cost), measured.get(label(strategy)))
        for name, (strategy, ends) in asked.items()
    ]
