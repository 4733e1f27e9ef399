"""Convert records of the training benchmark to JSON and back: plan.json, lines of samples.jsonl, jobs.

In: records, or JSON. Out: the other. Touches no file: `store` does. Each line has a `kind`, the name of its record's
class. The format is described in docs/results-format.md.
"""

import dataclasses
import json
from typing import Any, get_args

from pydantic import TypeAdapter

from bench.model.records import Json
from bench.model.training import Fact, TrainingJob, TrainingPlan, TrainingRun
from bench.store.folders import Codec

_PLAN = TypeAdapter(TrainingPlan)
_JOB = TypeAdapter(TrainingJob)
_KINDS = {record.__name__: TypeAdapter(record) for record in get_args(Fact)}


def plan_to_json(plan: TrainingPlan) -> Json:
    """The content of plan.json."""
    return dataclasses.asdict(plan)


def plan_from_json(data: Json) -> TrainingPlan:
    """The inverse of `plan_to_json`; raises ValueError on anything else."""
    return _PLAN.validate_python(data)


def job_from_json(data: Json) -> TrainingJob:
    """The job that a message carries, as `dataclasses.asdict` wrote it; raises ValueError on anything else."""
    return _JOB.validate_python(data)


def imports_of(job: TrainingJob) -> list[str]:
    """The user's model and synchronisers, as "module:name"."""
    model = job.launch.scenario.model
    models = [model] if ":" in model and job.launch.scenario.shape is None else []
    return models + [strategy.imported for strategy in job.launch.strategies if strategy.imported is not None]


def variables_of(_: TrainingPlan) -> list[tuple[str, str]]:
    """Environment variables that ranks set for themselves: none."""
    return []


def fact_to_line(fact: Fact) -> bytes:
    """One line of samples.jsonl, without its newline."""
    data = {"kind": type(fact).__name__, **dataclasses.asdict(fact)}
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def fact_from_line(line: bytes) -> Fact:
    """The inverse of `fact_to_line`; raises ValueError or KeyError on anything else."""
    data = json.loads(line)
    adapter: TypeAdapter[Any] = _KINDS[data.pop("kind")]
    fact: Fact = adapter.validate_python(data)
    return fact


CODEC = Codec("training", plan_to_json, plan_from_json, fact_from_line, TrainingRun)
