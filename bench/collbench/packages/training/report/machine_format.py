"""Write training steps for programs: their columns in CSV, and their parts of the JSON document."""

from dataclasses import fields
from typing import Annotated

from collbench.model.conclusions import Analysis
from collbench.model.records import Case, Json, Run
from collbench.packages.training.conclusions import Split, StrategyResult, training_of
from collbench.packages.training.report.steps import global_batch
from collbench.packages.training.synchronisation import Scenario, step_settings
from collbench.report.parts import CaseColumns
from collbench.report.public import (
    JSON_ONLY,
    Number,
    PublicCase,
    PublicInterval,
    PublicModel,
    Text,
    about,
    interval_columns,
)


class PublicCheck(PublicModel):
    """The check of one invariant."""

    invariant: str
    ok: bool | None = about("null: does not apply")
    text: Text


class TrainingCase(PublicCase):
    """A strategy: the fields of every case, then seconds per step of the slowest rank, under customary names."""

    label: Text = about("the strategy as tables name it")
    scenario: str = about("names what all strategies of a launch share")
    global_batch_size: int = about("examples of one step, over all ranks")
    warmup_steps: int = about("steps per launch before the timed ones")
    benchmark_steps: int = about("timed steps that count, of all launches")
    step_time_avg: Number = about("time of a step: mean of the rounds, geometric mean of the launches")
    step_time_std: Number = about("standard deviation over rounds")
    step_time_low: Number = about("lower end of its 95 % interval; null if none is known")
    step_time_high: Number = about("upper end")
    comm_time_avg: Number = about("exposed communication: the step less the same step without synchronisation")
    comm_time_std: Number = about("standard deviation over rounds")
    comm_time_low: Number = about("lower end of its 95 % interval; null if none is known")
    comm_time_high: Number = about("upper end")
    comm_frac_avg: Number = about("comm_time over step_time")
    comm_frac_std: Number = about("standard deviation over rounds")
    hidden: Number = about("1 − comm_time / calls_alone_s; negative where calls cost more than alone")
    tail_s: Number = about("blocked after backward until the last gradient was usable")
    pack_s: Number = about("hooks, flattening, copying, dividing; null inside a library")
    interference_s: Number = about("growth of forward and backward")
    residual_s: Number = about("the rest, which the other parts do not explain")
    late_s: Number = about("part of the tail: waiting for ranks whose backward ended later")
    gather_s: Number = about("calls of a sharded optimizer")
    update_s: Number = about("growth of clipping and the update")
    calls_alone_s: Number = about("the calls of a step back to back, without computing")
    calls: int | None = about("all-reduces of a step; null if the library does not report them")
    place: int | None = about("1 for the fastest; strategies that cannot be distinguished share a rank")
    resolved: bool | None = about("false if the interval of comm_time includes 0")
    adds_up: bool | None = about("whether the parts explain comm_time")
    rounds: int = about("blocks that count, of all launches")
    refused: Text | None = about("why there are no times")
    bucket_bytes: int | None = about("cap of the buckets")
    accumulate: int = about("micro-batches of a step")
    peak_memory_bytes: int | None = about("most that torch gave out at once for it alone; null: not measured")
    computed_memory_bytes: int | None = about("its tensors without activations; null where not known")
    link_latency_s: Number = about("of the emulated link; null for a real one")
    link_bytes_per_s: Number = about("its rate")
    checks: Annotated[tuple[PublicCheck, ...], JSON_ONLY] = about("of the invariants")
    call_bytes: Annotated[tuple[int, ...] | None, JSON_ONLY] = about("per all-reduce of a step")


class PublicPair(PublicModel):
    """Two copies of one strategy, measured as if they were two strategies."""

    label: Text
    difference: PublicInterval = about("step of the second less step of the first")


class PublicPrediction(PublicModel):
    """The prediction for a plan of buckets; seconds per step."""

    buckets: tuple[int, ...] = about("bytes of each all-reduce, in the order in which they are sent")
    tail_s: Number = about("communication after backward, on the link as assumed")
    slower_s: Number = about("on a link whose latency and rate are worse by `off`")
    faster_s: Number = about("on a link that is better by as much")


class PublicAdvice(PublicModel):
    """The cap of buckets to use; times are predictions, seconds per step."""

    advised: bool = about("whether the cap is worth typing in place of torch's default")
    cap_bytes: int = about("the best cap of one size for all buckets")
    cap: PublicPrediction
    default: PublicPrediction
    bound_s: Number = about("no plan, in whatever order, leaves less")
    off: Number = about("share by which latency and rate may be off")
    caps: tuple[tuple[int, Number], ...] = about("cap in bytes, predicted tail in seconds")


class PublicScenario(PublicModel):
    """The scenario in which strategies were measured side by side."""

    scenario: str = about("as in its cases")
    compute: PublicInterval | None = about("a step without synchronisation")
    noise_s: Number = about("most that two copies of one strategy may differ by")
    blocks: int = about("timed, over all launches")
    dropped: int = about("of them, left out because other processes used the machine")
    aa_pairs: tuple[PublicPair, ...]
    advice: PublicAdvice | None = about("on buckets")


class PublicScalingPoint(PublicModel):
    """The speed at which a strategy trains on a number of ranks."""

    key: str = about("of the case")
    label: Text
    step: PublicInterval
    examples_per_s: PublicInterval = about("of all ranks together")
    base_ranks: int = about("fewest ranks that were measured")
    efficiency: PublicInterval | None = about("step without synchronisation on these over this step")
    speed_up: Number = about("of the examples a second against that step")


class TrainingEntries(PublicModel):
    """The entries of a run in addition to cases."""

    scenarios: list[PublicScenario]
    scaling: list[PublicScalingPoint]


def values(run: Run, analysis: Analysis) -> dict[Case, Json]:
    """Return the fields that `TrainingCase` adds, for each case of training steps."""
    warmup_steps = step_settings(run.plan.settings).warmup_steps

    def row(scenario: Scenario, result: StrategyResult) -> Json:
        """Return the fields of a case. Fields of the result, and parts of its split, keep their names."""
        added = TrainingCase.model_fields.keys() - PublicCase.model_fields.keys()
        return {
            **{name: getattr(result, name) for name in added if hasattr(result, name)},
            **{part.name: getattr(result.split, part.name, None) for part in fields(Split)},
            "scenario": scenario.case.key,
            "global_batch_size": global_batch(result.case),
            "warmup_steps": warmup_steps,
            "benchmark_steps": result.case.depth * result.rounds,
            **interval_columns(result.step, "step_time_avg", "step_time_low", "step_time_high"),
            "step_time_std": result.step_std,
            **interval_columns(result.exposed, "comm_time_avg", "comm_time_low", "comm_time_high"),
            "comm_time_std": result.exposed_std,
            "comm_frac_avg": result.share,
            "comm_frac_std": result.share_std,
            "calls": None if result.calls is None else len(result.calls),
            "call_bytes": result.calls,
            "resolved": result.resolved if result.step else None,
            "bucket_bytes": result.strategy.cap_bytes,
            "accumulate": result.strategy.accumulate,
            "peak_memory_bytes": getattr(result.memory, "peak_bytes", None),
            "computed_memory_bytes": result.computed_bytes,
            "link_latency_s": getattr(scenario.link, "latency_s", None),
            "link_bytes_per_s": getattr(scenario.link, "bytes_per_s", None),
        }

    scenarios = training_of(analysis).scenarios
    return {result.case: row(entry.scenario, result) for entry in scenarios for result in entry.results}


def document(analysis: Analysis) -> TrainingEntries:
    """Return the scenarios and the scaling of a run."""
    conclusions = training_of(analysis)

    def entry(model: type[PublicModel], record: object, **named: object) -> Json:
        """Return the fields of a model from a record with the same names. named: fields that it has not."""
        return {name: getattr(record, name) for name in model.model_fields if name not in named} | named

    return TrainingEntries.model_validate(
        {
            "scenarios": [
                entry(PublicScenario, scenario, scenario=scenario.scenario.case.key)
                for scenario in conclusions.scenarios
            ],
            "scaling": [entry(PublicScalingPoint, point, key=point.case.key) for point in conclusions.scaling],
        }
    )


COLUMNS = CaseColumns(case=TrainingCase, values=values, entries=TrainingEntries, document=document)
