"""Write a run for programs: one JSON object, with its schema number, and units in the names of its fields.

In: a run and its analysis. Out: JSON, and the JSON Schema that describes it (`schema report` prints it).
"""

import json
from dataclasses import asdict, fields
from typing import Any, Protocol

from bench.model.conclusions import Analysis, Summary
from bench.model.records import Case, Json, Run

# Increased when a field is renamed, removed or changes its meaning. 1 was a list of the rows of summary.csv; 2 is this.
SCHEMA = 2
NUMBER, COUNT, TEXT, TEXTS, TRUTH = ["number", "null"], "integer", ["string", "null"], "array", "boolean"
# Field of a case → its type in JSON, and what it is. Those of the case itself (operation, backend, …) come before.
FIELDS: dict[str, tuple[Any, str]] = {
    "key": ("string", "names the case; the same in every run that measures it"),
    "time_s": (NUMBER, "of one call on the slowest rank: median of the iterations, geometric mean over the launches"),
    "time_low_s": (NUMBER, "lower end of its 95 % interval; null if none is known"),
    "time_high_s": (NUMBER, "upper end"),
    "interval": (TEXT, "what the interval was computed over"),
    "algbw_bytes_per_s": (NUMBER, "algorithm bandwidth: size over time"),
    "busbw_bytes_per_s": (NUMBER, "bus bandwidth: algorithm bandwidth times the factor of the operation"),
    "mean_s": (NUMBER, "mean of all iterations, for comparison with tools that print means"),
    "p90_s": (NUMBER, "90 % of the iterations are faster; null if there are too few to say"),
    "p95_s": (NUMBER, "95 %"),
    "p99_s": (NUMBER, "99 %"),
    "host_time_s": (NUMBER, "GPUs: time by the host's clock, from an idle device to an idle device"),
    "fastest_rank_s": (NUMBER, "as time_s, of the fastest rank"),
    "skew_s": (NUMBER, "median of last minus first arrival"),
    "pure_s": (NUMBER, "median of last end minus last arrival"),
    "floor_s": (NUMBER, "time of the call in a group of one rank"),
    "timer_s": (NUMBER, "cost of reading the clock"),
    "scatter_log_sd": (NUMBER, "standard deviation of the logarithms of the launches' medians"),
    "precision_asked": (NUMBER, "relative half-width that was asked for within a launch"),
    "precision_reached": (NUMBER, "the mean of those that were reached"),
    "foreign_cpu_share": (NUMBER, "share of the busy CPU time that other processes used"),
    "launches": (COUNT, "launches that gave a number"),
    "iterations": (COUNT, "timed iterations of all launches"),
    "outliers": (COUNT, "iterations more than 1.5 interquartile ranges above the upper quartile"),
    "far_outliers": (COUNT, "more than 3"),
    "steady": (TRUTH, "false if the times changed near an end of a launch"),
    "stopped_by": (TEXT, "why the case ended"),
    "stall_share": (NUMBER, "share of the iterations in a second, slower mode"),
    "stall_extra_s": (NUMBER, "what that mode adds; null if there is none"),
    "fast_mode_s": (NUMBER, "median of the fast mode"),
    "chosen": (TEXT, "what NCCL chose; empty if it was not asked"),
    "imported": (TEXT, "how another tool computed the time; empty for our own"),
    "failures": (TEXTS, "what failed, one sentence each"),
    "warnings": (TEXTS, "what speaks against the numbers of this case"),
}
# Our names of a summary's fields, where FIELDS says the unit.
_RENAMED = {
    "algbw_bytes_per_s": "algbw",
    "busbw_bytes_per_s": "busbw",
    "scatter_log_sd": "scatter",
    "precision_asked": "asked",
    "precision_reached": "reached",
    "foreign_cpu_share": "foreign_cpu",
}
_OF_THE_RUN = ("started", "finished", "status", "argv", "overrides", "collbench", "imported")


class AnyRun(Protocol):
    """A run of any benchmark."""

    @property
    def name(self) -> str: ...
    @property
    def manifest(self) -> Json: ...
    @property
    def environment(self) -> list[Json]: ...


def head(run: AnyRun) -> Json:
    """What every JSON of a run begins with: schema, the run, and the machine before and after it."""
    told = {name: run.manifest[name] for name in _OF_THE_RUN if name in run.manifest}
    environment = [{name: value for name, value in one.items() if name != "launches"} for one in run.environment]
    return {"schema": SCHEMA, "run": {"name": run.name, **told}, "environment": environment}


def to_json(run: Run, analysis: Analysis) -> str:
    """The run with all its cases; null where there is no number."""
    found = {
        **head(run),
        "cases": [_case(summary) for summary in analysis.summaries],
        "skipped": [{"key": skip.case.key, "reason": skip.reason} for skip in run.plan.skips],
        "findings": [asdict(one) for one in (*analysis.diagnosis.findings, *analysis.inconsistencies)],
        "warnings": list(analysis.warnings),
    }
    return json.dumps(found, indent=1, ensure_ascii=False)


def _case(summary: Summary) -> Json:
    time_s, stall = summary.time_s, summary.stall
    special = {
        "key": summary.case.key,
        "time_s": time_s.value if time_s else None,
        "time_low_s": time_s.low if time_s and time_s.known else None,
        "time_high_s": time_s.high if time_s and time_s.known else None,
        "interval": time_s.kind if time_s else None,
        "stall_share": stall.share if stall else 0.0,
        "stall_extra_s": stall.extra_s if stall else None,
        "fast_mode_s": stall.fast_s if stall else None,
        "failures": [failure.text for failure in summary.failures],
        "warnings": list(summary.warnings),
    }
    measured = {
        name: special[name] if name in special else getattr(summary, _RENAMED.get(name, name)) for name in FIELDS
    }
    case = {
        ("operation" if field.name == "op" else field.name): getattr(summary.case, field.name) for field in fields(Case)
    }
    return {"key": measured.pop("key"), **case, **measured}


def json_schema() -> Json:
    """The JSON Schema of `to_json`; fields of the case itself may be added without another number."""
    case = {name: {"type": kind, "description": about} for name, (kind, about) in FIELDS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A run of CollBench's collectives benchmark (report --format json)",
        "type": "object",
        "required": ["schema", "run", "environment", "cases", "skipped", "findings", "warnings"],
        "properties": {
            "schema": {"const": SCHEMA},
            "run": {"type": "object", "required": ["name"], "description": "name, times (UTC), status, command line"},
            "environment": {"type": "array", "description": "one entry a session: the machine before and after it"},
            "cases": {"type": "array", "items": {"type": "object", "required": list(FIELDS), "properties": case}},
            "skipped": {"type": "array", "items": {"type": "object", "required": ["key", "reason"]}},
            "findings": {"type": "array", "description": "ranks, nodes or links that are named, with the evidence"},
            "warnings": {"type": "array", "items": {"type": "string"}, "description": "the gravest first"},
        },
    }
