"""Convert records to JSON and back: plan.json, lines of samples.jsonl, and messages between processes.

In: a Plan, Samples, or a value for another process. Out: JSON or bytes; and the other way round. Touches no file:
`folders` does. The format is described in docs/develop/results-format.md.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from collbench.catalog import splits, subgroups
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.catalog.dtypes import BYTES, DTYPES, REDUCE_OPS
from collbench.catalog.metrics import METRICS
from collbench.model.records import (
    OPTIONS,
    AbState,
    Aggregate,
    Case,
    Failure,
    InvariantCheck,
    Job,
    Json,
    Machine,
    OwnDetail,
    Plan,
    Samples,
    Side,
    Timings,
    Usage,
    options_in,
)
from collbench.model.units import MOST_ELEMENTS, MOST_RANKS
from collbench.planning.parts import parts

if TYPE_CHECKING:
    from collbench.model.notices import Notice
    from collbench.model.records import Integers

# Field of a case → the names that it may have.
NAMED: dict[str, set[str]] = {
    "op": {*OPERATIONS},
    "backend": {*BACKENDS},
    "dtype": {*DTYPES, BYTES.name},
    "metric": {*METRICS},
    "reduce_op": {*REDUCE_OPS},
}
# Arrays of `Timings` that not every operation or device has.
OTHER_ARRAYS = ("host_ns", "wait_ns")


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Make an adapter on first use: a rank needs only adapters for values that it gathers (`prepare_to_decode`)."""
    return TypeAdapter(kind)


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
    skips = [{"case": _case_to_json(skip.case), "reason": _notice_to_json(skip.reason)} for skip in plan.skips]
    cases = [_case_to_json(case) for case in plan.cases]
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return {**fields, "settings": dataclasses.asdict(plan.settings), "skips": skips, "cases": cases, "order": order}


def plan_from_json(data: Json) -> Plan:
    """Read the plan, as the inverse of `plan_to_json`; raises ValueError, KeyError or TypeError on anything else."""
    cases = [_case_from_json(case) for case in data["cases"]]
    order = [
        {**launch, "number": launch["launch"], "cases": [cases[_place(number)] for number in launch["cases"]]}
        for launch in data["order"]
    ]
    skips = [{**skip, "case": _case_from_json(skip["case"])} for skip in data["skips"]]
    plan: Plan = _adapter(Plan).validate_python({**data, "order": order, "skips": skips})
    for op, own in plan.settings.own.items():
        if op not in OPERATIONS or type(own) is not OPERATIONS[op].settings:
            raise ValueError(f"settings.own: {op!a:.60} does not have these settings")
    return plan


def _notice_to_json(notice: Notice) -> Json:
    """Return the notice's kind and values, and the host if it is about one host."""
    data = dataclasses.asdict(notice)
    return {name: data[name] for name in ("kind", "values", "host") if data[name] is not None}


def _place(number: int) -> int:
    """Return an index of a list; raises ValueError if it is negative, because Python would count it from the end."""
    if number < 0:
        raise ValueError(f"case {number}: no such place")
    return number


def _case_to_json(case: Case) -> Json:
    """Return the JSON of a case, without options at their defaults."""
    usual = {option.name for option in OPTIONS if getattr(case, option.name) == option.default}
    usual |= {"own", *(["asked_bytes"] if not case.asked_bytes else [])}
    values = dataclasses.asdict(case)
    data = {name: value for name, value in values.items() if name not in usual}
    if options := options_in(type(case.own)):
        given = {
            option.name: values["own"][option.name] for option in options if case.value(option.name) != option.default
        }
        data["own"] = {"operation": case.own.operation, **given}
    return data


def _case_from_json(data: Json) -> Case:
    case: Case = _adapter(Case).validate_python(data)
    for name, allowed in NAMED.items():
        if getattr(case, name) not in allowed:
            raise ValueError(f"{name} {getattr(case, name)!r:.60}: CollBench does not have this value")
    if type(case.own) is not OPERATIONS[case.op].own:
        raise ValueError(f"own: options of {case.own.operation or 'no operation'} in a case of {case.op}")
    subgroups.check(str(case.groups))
    if case.splits is not None:
        splits.parse(str(case.splits))
    limits = {
        "world_size": (1, MOST_RANKS),
        "size_bytes": (0, MOST_ELEMENTS),
        "asked_bytes": (0, MOST_ELEMENTS),
        "root": (0, case.world_size - 1),
    }
    for name, (low, high) in limits.items():
        if not low <= getattr(case, name) <= high:
            raise ValueError(f"{name} {getattr(case, name)}: from {low} to {high}")
    return case


def machine_from_json(data: Json) -> Machine:
    """Return the machine of a handshake, as `dataclasses.asdict` wrote it; raises ValueError on anything else."""
    machine: Machine = _adapter(Machine).validate_python(data)
    return machine


def side_from_json(data: Json) -> Side:
    """Return the side in a manifest, as `dataclasses.asdict` wrote it; raises ValueError on anything else."""
    side: Side = _adapter(Side).validate_python(data)
    if side.python is not None and not side.python.startswith("/"):
        raise ValueError(f"python: {side.python!a} is not an absolute path of an interpreter")
    return side


def ab_from_json(data: Json) -> AbState:
    """Return the state of `ab` in a manifest, as `dataclasses.asdict` wrote it; raises ValueError on anything else."""
    state: AbState = _adapter(AbState).validate_python(data)
    if state.undecided not in {"pass", "fail", "3"}:
        raise ValueError(f"undecided: {state.undecided!a}")
    if not all(0 < pairs <= MOST_ELEMENTS and 0 <= share <= 1 for pairs, share in state.looks):
        raise ValueError("looks: they are numbers of pairs and shares of the budget")
    return state


def prepare_to_decode(*kinds: Any) -> None:
    """Make the adapters for these types. A large one takes 20 ms, which a forked rank then saves."""
    for kind in kinds:
        _adapter(kind)


def encoded(value: Any) -> bytes:
    """Return a value for another process, such as the job of a rank, as JSON; NaN and infinity are kept."""
    return to_json(value, inf_nan_mode="constants")


def decoded(data: bytes | str, kind: Any) -> Any:
    """Read a value, as the inverse of `encoded`; raises ValueError, in one line, if it is not of this type."""
    try:
        return _adapter(kind).validate_json(data, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{where} {problem['msg']}".strip()) from None


def variables_of(job: Job | Plan) -> list[tuple[str, str]]:
    """Return name and value of each environment variable that ranks of a job or plan set for themselves."""
    cases = job.launch.cases if isinstance(job, Job) else job.cases
    return sorted({pair for case in cases for pair in case.settings.pairs})


def imports_of(job: Job | Plan) -> list[str]:
    """Return the user's objects that ranks of a job, or of a plan, import, as "module:name"."""
    cases = job.launch.cases if isinstance(job, Job) else job.cases
    return sorted(set().union(*(part.imports(cases, job.settings) for part in parts())))


class SampleLine:
    """A line of samples.jsonl on its way into the file; its samples are decoded once, when they are first needed."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @functools.cached_property
    def samples(self) -> Samples:
        """Return the samples in the line; raises the errors of `samples_from_line`."""
        return samples_from_line(self.text)


def samples_to_line(samples: Samples) -> bytes:
    """Return one line of `samples.jsonl`, without its newline. Arrays are written as one list per rank."""
    data = {
        "case": _case_to_json(samples.case),
        **{name: getattr(samples, name) for name in ("launch", "unix_s", "base_ns", "stopped_by")},
        "failure": samples.failure and dataclasses.asdict(samples.failure),
        "usage": samples.usage and dataclasses.asdict(samples.usage),
        "warmup": _timings_to_json(samples.warmup),
        "timed": _timings_to_json(samples.timed),
    }
    if samples.aggregate is not None:
        data["aggregate"] = dataclasses.asdict(samples.aggregate)
    if samples.checks:
        data["checks"] = [dataclasses.asdict(check) for check in samples.checks]
    if samples.detail is not None:
        data["detail"] = dataclasses.asdict(samples.detail)
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")


def samples_from_line(line: bytes) -> Samples:
    """Read samples, as the inverse of `samples_to_line`; raises ValueError, KeyError or TypeError on anything else."""
    # orjson: reading 70 MB of samples takes 0.6 s instead of 2.2 s
    data: Json = orjson.loads(line)
    samples = Samples(
        case=_case_from_json(data["case"]),
        launch=_adapter(int).validate_python(data["launch"]),
        unix_s=_adapter(float).validate_python(data["unix_s"]),
        base_ns=_adapter(int).validate_python(data["base_ns"]),
        stopped_by=_adapter(str | None).validate_python(data["stopped_by"]),
        warmup=_timings_from_json(data["warmup"]),
        timed=_timings_from_json(data["timed"]),
        usage=_adapter(Usage | None).validate_python(data["usage"]),
        failure=_adapter(Failure | None).validate_python(data["failure"]),
        aggregate=_adapter(Aggregate | None).validate_python(data.get("aggregate")),
        checks=_adapter(tuple[InvariantCheck, ...]).validate_python(data.get("checks", ())),
        detail=_detail_from_json(data),
    )
    if samples.failure is None and samples.timed is None and samples.aggregate is None:
        raise ValueError("neither times nor a failure")
    for timings in (samples.warmup, samples.timed):
        if timings is not None and timings.duration_ns.shape[1] != samples.case.world_size:
            raise ValueError(f"{timings.duration_ns.shape[1]} ranks where {samples.case.world_size} were expected")
    return samples


def _detail_from_json(data: Json) -> OwnDetail | None:
    kind: Any = OPERATIONS[data["case"]["op"]].detail
    detail: OwnDetail | None = _adapter(kind | None).validate_python(data.get("detail"))
    return detail


def _timings_to_json(timings: Timings | None) -> Json | None:
    """Return the JSON of timings, without fields at their defaults. Arrays: a list per rank, an entry per iteration."""
    if timings is None:
        return None
    data: Json = {}
    for field in dataclasses.fields(timings):
        value = getattr(timings, field.name)
        if field.name == "inner_ns":
            if value:
                data["inner_ns"] = {name: array.swapaxes(0, 1).tolist() for name, array in value.items()}
            continue
        if field.name.endswith("_ns"):
            value = None if value is None else value.swapaxes(0, 1).tolist()
        if value != field.default:
            data[field.name] = value
    return data


def _timings_from_json(data: Json | None) -> Timings | None:
    if data is None:
        return None
    start, duration = _array(data["start_ns"]), _array(data["duration_ns"])
    arrays: Json = {name: _array(data[name]) for name in OTHER_ARRAYS if name in data}
    inner_lists = _adapter(dict[str, list[Any]]).validate_python(data.get("inner_ns", {}))
    inner = {name: _array(values, 2, 3) for name, values in inner_lists.items()}
    if any(array.shape[:2] != start.shape for array in (duration, *arrays.values(), *inner.values())):
        raise ValueError("arrays of different lengths")
    blocks = tuple(_adapter(list[int]).validate_python(data.get("blocks", [])))
    if blocks and (min(blocks) < 1 or sum(blocks) != len(start)):
        raise ValueError(f"blocks of {sum(blocks)} iterations in all, but {len(start)} iterations")
    foreign = tuple(_adapter(list[float]).validate_python(data.get("foreign_cpu", [])))
    if foreign and len(foreign) != len(blocks):
        raise ValueError(f"{len(foreign)} shares of other processes for {len(blocks)} blocks")
    calls = _adapter(int).validate_python(data.get("calls", 1))
    if not 0 < calls <= MOST_ELEMENTS:
        raise ValueError(f"{calls:g} calls between two stamps")
    return Timings(start, duration, calls=calls, blocks=blocks, foreign_cpu=foreign, inner_ns=inner, **arrays)


def _array(ranks: list[Any], *dimensions: int) -> Integers:
    """Return times as an array (iterations, ranks), or with a third axis for the parts of an iteration."""
    import numpy as np  # here, so that `list` and `plan` start without it

    array = np.array(ranks, dtype=np.int64)
    if array.ndim not in (dimensions or (2,)):
        raise ValueError(f"expected one list of times per rank{', with one list per iteration' if dimensions else ''}")
    return array.swapaxes(0, 1)
