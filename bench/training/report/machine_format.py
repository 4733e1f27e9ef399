"""Write training steps for programs: their columns in CSV, and their parts of the JSON document."""

from dataclasses import asdict, fields
from typing import Any

from bench.model.conclusions import Analysis
from bench.model.records import Case, Json, Run
from bench.report.machine_format import COUNT, NUMBER, TEXT, interval_columns
from bench.report.parts import CaseColumns
from bench.training.conclusions import Split, StrategyResult, training_of
from bench.training.model import Scenario
from bench.training.report.steps import global_batch

# Fields of a step besides those of every case, here and in summary.csv, under their customary names. Times are seconds
# a step of the slowest rank.
FIELDS: dict[str, tuple[Any, str]] = {
    "label": ("string", "the strategy as tables name it"),
    "scenario": ("string", "names what all strategies of a launch share"),
    "global_batch_size": (COUNT, "examples of one step, over all ranks"),
    "warmup_steps": (COUNT, "steps of each launch before the timed ones"),
    "benchmark_steps": (COUNT, "timed steps that count, of all launches"),
    "step_time_avg": (NUMBER, "time of a step: mean of the rounds, geometric mean of the launches"),
    "step_time_std": (NUMBER, "standard deviation over rounds"),
    "step_time_low": (NUMBER, "lower end of its 95 % interval; null if none is known"),
    "step_time_high": (NUMBER, "upper end"),
    "comm_time_avg": (NUMBER, "exposed communication: the step less the same step without synchronisation"),
    "comm_time_std": (NUMBER, "standard deviation over rounds"),
    "comm_time_low": (NUMBER, "lower end of its 95 % interval; null if none is known"),
    "comm_time_high": (NUMBER, "upper end"),
    "comm_frac_avg": (NUMBER, "comm_time over step_time"),
    "comm_frac_std": (NUMBER, "standard deviation over rounds"),
    "hidden": (NUMBER, "1 − comm_time / calls_alone_s; negative where calls cost more than alone"),
    "tail_s": (NUMBER, "blocked after backward until the last gradient was usable"),
    "pack_s": (NUMBER, "hooks, flattening, copying, dividing; null inside a library"),
    "interference_s": (NUMBER, "growth of forward and backward"),
    "residual_s": (NUMBER, "what the other parts do not explain"),
    "late_s": (NUMBER, "part of the tail: waiting for ranks whose backward ended later"),
    "gather_s": (NUMBER, "calls of a sharded optimizer"),
    "update_s": (NUMBER, "growth of clipping and the update"),
    "calls_alone_s": (NUMBER, "the calls of a step back to back, without computing"),
    "calls": (["integer", "null"], "all-reduces of a step; null where the library does not tell"),
    "place": (["integer", "null"], "1 for the fastest; those that cannot be told apart share one"),
    "resolved": (["boolean", "null"], "false if the interval of comm_time holds 0"),
    "adds_up": (["boolean", "null"], "whether the parts explain comm_time"),
    "rounds": (COUNT, "blocks that count, of all launches"),
    "refused": (TEXT, "why there are no times"),
    "bucket_bytes": (["integer", "null"], "cap of the buckets"),
    "accumulate": (COUNT, "micro-batches of a step"),
    "peak_memory_bytes": (["integer", "null"], "most that torch gave out at once for it alone; null: not measured"),
    "computed_memory_bytes": (["integer", "null"], "its tensors without activations; null where not known"),
    "link_latency_s": (NUMBER, "of the emulated link; null for a real one"),
    "link_bytes_per_s": (NUMBER, "its rate"),
}


def columns(run: Run, analysis: Analysis) -> dict[Case, Json]:
    """FIELDS of each case of training steps."""

    def row(scenario: Scenario, result: StrategyResult) -> Json:
        link, parts = scenario.link, result.split
        columns: Json = {
            "label": result.label,
            "scenario": scenario.case.key,
            "global_batch_size": global_batch(result.case),
            "warmup_steps": run.plan.settings.warmup_steps,
            "benchmark_steps": result.case.depth * result.rounds,
            "comm_frac_avg": result.share,
            "comm_frac_std": result.share_std,
            "hidden": result.hidden,
            **{part.name: getattr(parts, part.name) if parts else None for part in fields(Split)},
            "calls_alone_s": result.communication_only_s,
            "calls": len(result.calls) if result.calls is not None else None,
            "place": result.place,
            "resolved": result.resolved if result.step else None,
            "adds_up": result.adds_up,
            "rounds": result.rounds,
            "refused": result.refused,
            "bucket_bytes": result.strategy.cap_bytes,
            "accumulate": result.strategy.accumulate,
            "peak_memory_bytes": result.memory.peak_bytes if result.memory else None,
            "computed_memory_bytes": result.computed_bytes,
            "link_latency_s": link.latency_s if link else None,
            "link_bytes_per_s": link.bytes_per_s if link else None,
        }
        for name, interval, std in (
            ("step_time", result.step, result.step_std),
            ("comm_time", result.exposed, result.exposed_std),
        ):
            names = (f"{name}_avg", f"{name}_low", f"{name}_high")
            columns |= {f"{name}_std": std, **interval_columns(interval, *names)}
        return {name: columns[name] for name in FIELDS}

    return {
        result.case: row(entry.scenario, result)
        for entry in training_of(analysis).scenarios
        for result in entry.results
    }


def details(analysis: Analysis) -> dict[Case, Json]:
    """Of each case, what only JSON has: its checks, and the bytes of its all-reduces."""
    return {
        result.case: {"checks": [asdict(check) for check in result.checks], "call_bytes": result.calls}
        for entry in training_of(analysis).scenarios
        for result in entry.results
    }


def document(analysis: Analysis) -> Json:
    """Scenarios, scaling and call sizes."""
    found = training_of(analysis)
    return {
        "scenarios": [
            {
                "scenario": scenario.scenario.case.key,
                "compute": asdict(scenario.compute) if scenario.compute else None,
                "noise_s": scenario.noise_s,
                "blocks": scenario.blocks,
                "dropped": scenario.dropped,
                "aa_pairs": [asdict(pair) for pair in scenario.aa_pairs],
                "advice": asdict(scenario.advice) if scenario.advice else None,
            }
            for scenario in found.scenarios
        ],
        "scaling": [
            {"key": point.case.key, **{name: value for name, value in asdict(point).items() if name != "case"}}
            for point in found.scaling
        ],
        "call_sizes": [asdict(point) for point in found.call_sizes],
    }


COLUMNS = CaseColumns(
    fields=FIELDS,
    columns=columns,
    only_json={
        "checks": {"type": "array", "description": "of training steps: invariant, ok (null: does not apply), text"},
        "call_bytes": {"type": ["array", "null"], "description": "of training steps: bytes of each all-reduce"},
    },
    details=details,
    top={
        "scenarios": {
            "type": "array",
            "description": "of training steps: the step without synchronisation, A/A pairs, advice on buckets",
        },
        "scaling": {"type": "array", "description": "throughput and efficiency of steps over numbers of ranks"},
        "call_sizes": {"type": "array", "description": "the same bytes in more and more all-reduces"},
    },
    document=document,
)
