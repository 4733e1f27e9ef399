"""Convert records to JSON and back: plan.json, lines of samples.jsonl, and messages between processes.

In: a Plan, Samples, or a value for another process. Out: JSON or bytes; and the other way round. Touches no file:
`folders` does. The format is described in docs/develop/results-format.md.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Annotated, Any, TypeVar

import orjson
from annotated_types import Ge
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from collbench.catalog import splits, subgroups
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import BYTES, DTYPES, REDUCE_OPS
from collbench.catalog.metrics import METRICS
from collbench.model.projection import grouped
from collbench.model.records import Case, Job, Json, OwnDetail, Plan, Samples, Side, Timings, of_operation

T = TypeVar("T")
# Positions in a list: Python would count a negative one from the end.
Places = list[Annotated[int, Ge(0)]]
# Field of a case → the names that it may have.
NAMED: dict[str, set[str]] = {
    "op": {*OPERATIONS},
    "backend": {*BACKENDS},
    "dtype": {*DTYPES, BYTES.name},
    "metric": {*METRICS},
    "reduce_op": {*REDUCE_OPS},
}
# Fields of samples that are written only if they have a value.
OF_SOME_SAMPLES = frozenset({"aggregate", "checks", "detail"})


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Make an adapter on first use: a rank needs only adapters for values that it gathers (`prepare_to_decode`)."""
    return TypeAdapter(kind)


def validated(kind: type[T], value: Any, strict: bool = False) -> T:
    """Return a value of JSON as this type; raises ValueError, in one line, if it is not of this type."""
    try:
        valid: T = _adapter(kind).validate_python(value, strict=strict)  # type: ignore[arg-type] # types are hashable
    except ValidationError as error:
        raise _one_line(error) from None
    return valid


def _one_line(error: ValidationError) -> ValueError:
    problem = error.errors(include_url=False, include_input=False)[0]
    return ValueError(": ".join(filter(None, (".".join(map(str, problem["loc"])), problem["msg"]))))


def plan_to_json(plan: Plan) -> Json:
    """Return the content of plan.json. Each case is written once; the order refers to cases by number."""
    numbers = {case.key: number for number, case in enumerate(plan.cases)}
    order = [
        {
            "backend": launch.backend,
            "world_size": launch.world_size,
            "launch": launch.number,
            "cases": [numbers[case.key] for case in launch.cases],
        }
        for launch in plan.order
    ]
    data: Json = _adapter(Plan).dump_python(dataclasses.replace(plan, order=()))
    for skip in data["skips"]:
        skip["reason"] = {name: value for name, value in skip["reason"].items() if value not in (None, ())}
    return {**data, "cases": _adapter(tuple[Case, ...]).dump_python(plan.cases), "order": order}


def plan_from_json(data: Json) -> Plan:
    """Read the plan, as the inverse of `plan_to_json`; raises ValueError, KeyError or TypeError on anything else."""
    cases = validated(tuple[Case, ...], data["cases"])
    order = [
        {**launch, "number": launch["launch"], "cases": [cases[at] for at in validated(Places, launch["cases"])]}
        for launch in data["order"]
    ]
    plan = validated(Plan, {**data, "order": order})
    for case in (*cases, *(skip.case for skip in plan.skips)):
        _check_case(case)
    for op, own in plan.settings.own.items():
        if op not in OPERATIONS or type(own) is not OPERATIONS[op].settings:
            raise ValueError(f"settings.own: {op!a:.60} does not have these settings")
    return plan


def _check_case(case: Case) -> None:
    """Raise ValueError if a case has a name that CollBench does not know, or parts that contradict each other."""
    for name, allowed in NAMED.items():
        if getattr(case, name) not in allowed:
            raise ValueError(f"{name} {getattr(case, name)!r:.60}: CollBench does not have this value")
    if type(case.own) is not OPERATIONS[case.op].own:
        raise ValueError(f"own: options of {case.own.operation or 'no operation'} in a case of {case.op}")
    subgroups.parse(str(case.groups))
    if case.splits is not None:
        splits.parse(str(case.splits))
    if case.root >= case.world_size:
        raise ValueError(f"root {case.root}: from 0 to {case.world_size - 1}")


def side_from_json(data: Json) -> Side:
    """Return the side in a manifest, as `dataclasses.asdict` wrote it; raises ValueError on anything else."""
    side = validated(Side, data)
    if side.python is not None and not side.python.startswith("/"):
        raise ValueError(f"python: {side.python!a} is not an absolute path of an interpreter")
    return side


def prepare_to_decode(*kinds: Any) -> None:
    """Make the adapters for these types. A large one takes 20 ms, which a forked rank then saves."""
    for kind in kinds:
        _adapter(kind)


def encoded(value: Any) -> bytes:
    """Return a value for another process, such as the job of a rank, as JSON; NaN and infinity are kept."""
    return to_json(value, inf_nan_mode="constants")


def decoded(data: bytes | str, kind: type[T]) -> T:
    """Read a value, as the inverse of `encoded`; raises ValueError, in one line, if it is not of this type."""
    try:
        valid: T = _adapter(kind).validate_json(data, strict=True)  # type: ignore[arg-type] # as above
    except ValidationError as error:
        raise _one_line(error) from None
    return valid


def variables_of(job: Job | Plan) -> list[tuple[str, str]]:
    """Return name and value of each environment variable that ranks of a job or plan set for themselves."""
    cases = job.launch.cases if isinstance(job, Job) else job.cases
    return sorted({pair for case in cases for pair in case.settings.pairs})


def imports_of(job: Job | Plan) -> list[str]:
    """Return the user's objects that ranks of a job, or of a plan, import, as "module:name"."""
    by_operation = grouped(job.launch.cases if isinstance(job, Job) else job.cases, lambda case: case.op)
    functions = ((OPERATIONS[op].imports, cases) for op, cases in by_operation.items())
    return sorted({name for named, cases in functions if named is not None for name in named(cases, job.settings)})


class SampleLine:
    """A line of samples.jsonl on its way into the file; its samples are decoded once, when they are first needed."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @functools.cached_property
    def samples(self) -> Samples:
        """Return the samples in the line; raises the errors of `samples_from_line`."""
        return samples_from_line(self.text)


def samples_to_line(samples: Samples) -> bytes:
    """Return one line of `samples.jsonl`, without its newline."""
    data = _adapter(Samples).dump_python(samples)
    given = {name: value for name, value in data.items() if value or name not in OF_SOME_SAMPLES}
    return json.dumps(given, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")


def samples_from_line(line: bytes) -> Samples:
    """Read samples, as the inverse of `samples_to_line`; raises ValueError or TypeError on anything else."""
    # orjson: reading 70 MB of samples takes 0.6 s instead of 2.2 s
    samples = validated(Samples, orjson.loads(line))
    _check_case(samples.case)
    if samples.failure is None and samples.timed is None and samples.aggregate is None:
        raise ValueError("neither times nor a failure")
    for timings in (samples.warmup, samples.timed):
        if timings is not None:
            _check_timings(timings, samples.case.world_size)
    kind: Any = of_operation(OwnDetail, samples.case.op)
    return samples if samples.detail is None else dataclasses.replace(samples, detail=validated(kind, samples.detail))


def _check_timings(timings: Timings, world_size: int) -> None:
    """Raise ValueError if the parts of timings contradict each other or the case."""
    shape = timings.start_ns.shape
    arrays = [
        *timings.arrays.values(),
        *(array[..., 0] if array.ndim == 3 else array for array in timings.inner_ns.values()),
    ]
    if len(shape) != 2 or any(array.shape != shape for array in arrays):
        raise ValueError("arrays of different lengths")
    if shape[1] != world_size:
        raise ValueError(f"{shape[1]} ranks where {world_size} were expected")
    blocks, foreign = timings.blocks, timings.foreign_cpu
    if blocks and sum(blocks) != shape[0]:
        raise ValueError(f"blocks of {sum(blocks)} iterations in all, but {shape[0]} iterations")
    if foreign and len(foreign) != len(blocks):
        raise ValueError(f"{len(foreign)} shares of other processes for {len(blocks)} blocks")
